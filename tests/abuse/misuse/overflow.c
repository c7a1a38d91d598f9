/* Writes past the ends of blocks spoil the program's own data, never the allocator: all that comes after works. */
#include "poke.h"

enum { AFTERWARDS = 100000 };

/* Whatever was written, new blocks are sound ones. */
static void expect_sound_heap(void) {
    static struct targets again;
    for (int i = 0; i < TARGET_SIZES; i++) {
        targets_make(&again, target_sizes[i]);
        targets_check(&again);
        targets_free_shuffled(&again);
    }
    churn_once(1, AFTERWARDS, 2048);
    churn_once(2, AFTERWARDS / 10, 256 << 10);
}

static void *free_targets(void *targets) {
    targets_free_shuffled(targets);
    return NULL;
}

/* Writes `length` bytes at `offset` from the start (or from the end of the usable bytes) of every third block, while
 * all live; then frees half of the sizes here and half in another thread. */
static void spoil(bool from_end, ptrdiff_t offset, const void *bytes, size_t length) {
    static struct targets targets[TARGET_SIZES];
    for (int i = 0; i < TARGET_SIZES; i++) {
        targets_make(&targets[i], target_sizes[i]);
        if (i % 2) targets_free_shuffled(&targets[i]); /* some neighbours are free ones */
        if (i % 2) targets_make(&targets[i], target_sizes[i]);
    }
    for (int i = 0; i < TARGET_SIZES; i++) {
        size_t usable = from_end ? malloc_usable_size(targets[i].blocks[0]) : 0;
        for (unsigned j = 0; j < targets[i].count; j += 3) {
            poke(targets[i].blocks[j] + usable + offset, bytes, length);
        }
    }
    for (int i = 0; i < TARGET_SIZES; i++) {
        pthread_t thread;
        if (i % 4 < 2) {
            targets_free_shuffled(&targets[i]);
        } else {
            expect(pthread_create(&thread, NULL, free_targets, &targets[i]) == 0, "no thread");
            pthread_join(thread, NULL);
        }
    }
    expect_sound_heap();
}

static unsigned char letters[POKE_PAGE];

static void overflow(size_t length) {
    memset(letters, 'A', sizeof letters);
    spoil(true, 0, letters, length);
}

static void run_one(void) { overflow(1); }
static void run_eight(void) { overflow(8); }
static void run_thirty_two(void) { overflow(32); }
static void run_page(void) { overflow(POKE_PAGE); }
static void run_nul(void) { spoil(true, 0, "", 1); }
static void run_underflow(void) {
    memset(letters, 'A', sizeof letters);
    spoil(false, -32, letters, 32);
}
static void run_underflow_one(void) { spoil(false, -1, "", 1); }

#define CASE(name_, run_)                                                                                              \
    { .name = name_, .run = run_, .seconds = 120, .memory_mib = 2048 }

static const struct hak_case cases[] = {
    CASE("one", run_one),
    CASE("eight", run_eight),
    CASE("thirty-two", run_thirty_two),
    CASE("page", run_page),
    CASE("nul", run_nul),
    CASE("underflow", run_underflow),
    CASE("underflow-one", run_underflow_one),
};

CASE_MAIN(cases)
