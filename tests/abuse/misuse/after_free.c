/* Writes to freed blocks steer nothing: whatever an attacker leaves there, malloc hands out sound blocks of the heap,
 * and never the address he wrote. */
#include "poke.h"

/* What he would like to get: it looks like a free block, like a list of free blocks, and like a header, all at once. */
static void *bait[POKE_PAGE / sizeof(void *)] __attribute__((aligned(POKE_PAGE)));

static struct targets targets, again;

static void bait_prepare(void) {
    for (size_t i = 0; i < sizeof bait / sizeof *bait; i++) bait[i] = &bait[i & ~(size_t)1];
}

static void poison(unsigned char *block, size_t size, const void *bytes) {
    for (size_t done = 0; done < size; done += POKE_PAGE) {
        size_t part = size - done < POKE_PAGE ? size - done : POKE_PAGE;
        poke(block + done, bytes, part);
    }
}

static void expect_no_bait(const struct targets *made) {
    for (unsigned i = 0; i < made->count; i++) {
        uintptr_t offset = (uintptr_t)made->blocks[i] - (uintptr_t)bait;
        expect(offset >= sizeof bait, "malloc handed out the attacker's address %p", (void *)made->blocks[i]);
    }
    targets_check(made);
}

/* Frees all (by `release`), writes over all of them, and allocates as many. */
static void attack(void (*release)(void), size_t size, const void *bytes) {
    static unsigned char *stale[TARGETS_MAX];
    targets_make(&targets, size);
    unsigned count = targets.count;
    size_t usable = malloc_usable_size(targets.blocks[0]);
    memcpy(stale, targets.blocks, sizeof stale);
    release();
    for (unsigned i = 0; i < count; i++) poison(stale[i], usable, bytes);
    targets_make(&again, size);
    expect_no_bait(&again);
    targets_free_shuffled(&again);
    for (unsigned i = 0; i < count; i++) poison(stale[i], usable, bytes);
    targets_make(&again, size);
    expect_no_bait(&again);
    targets_free_shuffled(&again);
}

static void attack_all(void (*release)(void)) {
    static unsigned char letters[POKE_PAGE], ones[POKE_PAGE];
    bait_prepare();
    memset(letters, 'A', sizeof letters);
    memset(ones, 0xFF, sizeof ones);
    for (int i = 0; i < TARGET_SIZES; i++) {
        attack(release, target_sizes[i], bait);
        attack(release, target_sizes[i], letters);
        attack(release, target_sizes[i], ones);
    }
    churn_once(1, 100000, 2048);
    churn_once(2, 10000, 256 << 10);
}

static void release_here(void) { targets_free_shuffled(&targets); }

static void *release_in_thread(void *nothing) {
    release_here();
    return nothing;
}

static void release_elsewhere(void) {
    pthread_t thread;
    expect(pthread_create(&thread, NULL, release_in_thread, NULL) == 0, "no thread");
    pthread_join(thread, NULL);
}

/* In order and every second one: runs of neighbours, and holes. */
static void release_in_order(void) {
    for (unsigned i = 0; i < targets.count; i += 2) free(targets.blocks[i]);
    for (unsigned i = 1; i < targets.count; i += 2) free(targets.blocks[i]);
    targets.count = 0;
}

static void release_and_trim(void) {
    release_here();
    malloc_trim(0);
}

static void run_local(void) { attack_all(release_here); }
static void run_ordered(void) { attack_all(release_in_order); }
static void run_remote(void) { attack_all(release_elsewhere); }
static void run_trimmed(void) { attack_all(release_and_trim); }

#define CASE(name_, run_)                                                                                              \
    { .name = name_, .run = run_, .seconds = 120, .memory_mib = 2048 }

static const struct hak_case cases[] = {
    CASE("local", run_local),
    CASE("ordered", run_ordered),
    CASE("remote", run_remote),
    CASE("trimmed", run_trimmed),
};

CASE_MAIN(cases)
