/* A block that is freed twice: found at once when it was the last one freed, and else when both frees have reached the
 * slab, however they came there, as long as the block was not handed out in between. */
#include <malloc.h>

#include "churn.h"
#include "complaint.h"

static const char *const sizes[] = {"1", "16", "24", "64", "100", "1000", "1024", "4096", "30000"};
static const char *const large_sizes[] = {"40000", "300000", "4000000", "70000000"};

enum { SIZES = sizeof sizes / sizeof *sizes, LARGE_SIZES = sizeof large_sizes / sizeof *large_sizes };

static struct herd herd;
static char second_half; /* its address says which half of the herd to free; NULL is the first */

static void announce_survival(void) {
    case_print(1, "survived");
    _exit(0);
}

static void expect_found(void) {
    for (int i = 0; i < SIZES; i++) complaint_expect(sizes[i], "", DOUBLE_FREE, NULL);
}

/* Runs a body in a thread that then ends, and has its cache, which is kept for another thread, emptied. */
static void in_thread(void *(*body)(void *), void *argument) {
    pthread_t thread;
    expect(pthread_create(&thread, NULL, body, argument) == 0, "no thread");
    pthread_join(thread, NULL);
    malloc_trim(0);
}

/* ---- At once --------------------------------------------------------------------------------------------------- */

static void victim_newest(const char *size) {
    void *block = malloc(strtoul(size, NULL, 10));
    complaint_announce(block);
    free(block);
    free(hidden(block));
    announce_survival();
}

static void run_newest(void) {
    for (int i = 0; i < SIZES; i++) complaint_expect(sizes[i], "free", DOUBLE_FREE, NULL);
}

static void run_large(void) {
    for (int i = 0; i < LARGE_SIZES; i++) complaint_expect(large_sizes[i], "free", DOUBLE_FREE, NULL);
}

/* The bin may be full, and flushed between the two. */
static void victim_newest_full(const char *size) {
    herd_make(&herd, strtoul(size, NULL, 10));
    herd_free_odd(&herd, 0);
    victim_newest(size);
}

/* ---- After others ---------------------------------------------------------------------------------------------- */

static unsigned others_count;

static void *free_twice_around_others(void *nothing) {
    free(herd_victim(&herd));
    for (unsigned i = 0; i < others_count; i++) free(herd.blocks[2 * i + 1]);
    free(herd_victim(&herd));
    herd_free_odd(&herd, 1);
    return nothing;
}

/* Frees a few others in between: 1, 5, 30, 200, each in a run of its own. */
static void victim_after_others(const char *size_and_count) {
    char *rest;
    herd_make(&herd, strtoul(size_and_count, &rest, 10));
    others_count = (unsigned)strtoul(rest + 1, NULL, 10);
    complaint_announce(herd_victim(&herd));
    in_thread(free_twice_around_others, NULL);
    announce_survival();
}

static void run_after_others(void) {
    static const unsigned counts[] = {1, 5, 30, 200};
    for (int i = 0; i < SIZES; i++) {
        for (size_t j = 0; j < sizeof counts / sizeof *counts; j++) {
            char argument[32];
            snprintf(argument, sizeof argument, "%s,%u", sizes[i], counts[j]);
            complaint_expect(argument, "", DOUBLE_FREE, NULL);
        }
    }
}

/* At random: so many frees of the size before, so many between, and enough to empty the cache afterwards. */
static void victim_among_frees(const char *size_and_seed) {
    enum { BEFORE_MOST = 300, BETWEEN_MOST = 65, BLOCKS = 6400 };
    static void *blocks[BLOCKS];
    char *rest;
    size_t size = strtoul(size_and_seed, &rest, 10);
    uint64_t random = strtoul(rest + 1, NULL, 10) * 0x9E3779B97F4A7C15u + 1;
    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(size);
    unsigned before = (unsigned)(churn_random(&random) % BEFORE_MOST), at = 0;
    unsigned between = (unsigned)(churn_random(&random) % BETWEEN_MOST);
    while (at < before) free(blocks[at++]);
    void *block = blocks[at++];
    complaint_announce(block);
    free(block);
    while (at < before + 1 + between) free(blocks[at++]);
    free(hidden(block));
    while (at < BLOCKS) free(blocks[at++]);
    announce_survival();
}

static void run_among_frees(void) {
    enum { SEEDS = 40 };
    for (size_t size = 16; size <= 2048; size += size < 128 ? 16 : size / 8) {
        for (int seed = 1; seed <= SEEDS; seed++) {
            char argument[32];
            snprintf(argument, sizeof argument, "%zu,%d", size, seed);
            complaint_expect(argument, "", DOUBLE_FREE, NULL);
        }
    }
}

static void *free_others(void *half) {
    herd_free_odd(&herd, half != NULL);
    return NULL;
}

static void *free_victim_and_others(void *half) {
    free(herd_victim(&herd));
    return free_others(half);
}

static void *free_delayed(void *nothing) {
    free_victim_and_others(NULL);
    free(malloc(50000));
    free_victim_and_others(&second_half);
    return nothing;
}

/* The first copy is in its slab long before the second comes. */
static void victim_delayed(const char *size) {
    herd_make(&herd, strtoul(size, NULL, 10));
    complaint_announce(herd_victim(&herd));
    in_thread(free_delayed, NULL);
    announce_survival();
}

/* ---- Two threads ----------------------------------------------------------------------------------------------- */

static void *make_herd(void *size) {
    herd_make(&herd, strtoul(size, NULL, 10));
    return NULL;
}

static void *free_it(void *block) {
    free(block);
    return NULL;
}

static pthread_barrier_t barrier;

/* Both have the block in their caches before either has flushed. */
static void *free_with_other(void *half) {
    free(herd_victim(&herd));
    pthread_barrier_wait(&barrier);
    return free_others(half);
}

static void free_in_two_threads(void) {
    pthread_t first, second;
    pthread_barrier_init(&barrier, NULL, 2);
    expect(pthread_create(&first, NULL, free_with_other, NULL) == 0, "no thread");
    expect(pthread_create(&second, NULL, free_with_other, &second_half) == 0, "no thread");
    pthread_join(first, NULL);
    pthread_join(second, NULL);
    malloc_trim(0);
}

/* Both are foreign to the block: its owner lives and does nothing. */
static void victim_both_remote(const char *size) {
    herd_make(&herd, strtoul(size, NULL, 10));
    complaint_announce(herd_victim(&herd));
    free_in_two_threads();
    announce_survival();
}

/* The block's owner has ended. */
static void victim_orphan(const char *size) {
    in_thread(make_herd, (void *)(uintptr_t)size);
    complaint_announce(herd_victim(&herd));
    free_in_two_threads();
    announce_survival();
}

/* One foreign thread, twice. */
static void victim_remote_twice(const char *size) {
    herd_make(&herd, strtoul(size, NULL, 10));
    complaint_announce(herd_victim(&herd));
    in_thread(free_victim_and_others, NULL);
    in_thread(free_victim_and_others, &second_half);
    announce_survival();
}

/* Allocates all that was freed, and more: the block must not come, since it was freed twice before. */
static void expect_found_by_refill(void) {
    static struct herd again;
    void *block = herd_victim(&herd);
    unsigned seen = 0;
    again.count = herd.count;
    for (unsigned i = 0; i < again.count; i++) {
        again.blocks[i] = malloc(malloc_usable_size(herd.blocks[0]));
        seen += again.blocks[i] == block;
    }
    case_print(1, "handed out %u times", seen);
    announce_survival();
}

/* The owner first, then another; and the other way round. */
static void victim_local_then_remote(const char *size) {
    herd_make(&herd, strtoul(size, NULL, 10));
    complaint_announce(herd_victim(&herd));
    free_victim_and_others(NULL);
    in_thread(free_victim_and_others, &second_half);
    expect_found_by_refill();
}

static void victim_remote_then_local(const char *size) {
    herd_make(&herd, strtoul(size, NULL, 10));
    complaint_announce(herd_victim(&herd));
    in_thread(free_victim_and_others, NULL);
    free_victim_and_others(&second_half);
    expect_found_by_refill();
}

/* Both free a large object at the same moment: one is told, of the right size. */
static atomic_int racers;
static void *free_at_once(void *block) {
    case_meet(&racers);
    free(block);
    return NULL;
}

static void victim_large_at_once(const char *size) {
    pthread_t thread;
    void *block = malloc(strtoul(size, NULL, 10));
    complaint_announce(block);
    expect(pthread_create(&thread, NULL, free_at_once, block) == 0, "no thread");
    free_at_once(hidden(block));
    pthread_join(thread, NULL);
    announce_survival();
}

/* With what is left of the last page in the default build. */
static void run_large_at_once(void) {
    enum { ROUNDS = 80 };
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < ROUNDS * LARGE_SIZES; i++) {
        const char *size = large_sizes[i % LARGE_SIZES];
        char whole[80], asked[80];
        snprintf(asked, sizeof asked, DOUBLE_FREE "%s bytes\n", size);
        snprintf(whole, sizeof whole, DOUBLE_FREE "%zu bytes\n", (strtoul(size, NULL, 10) + page - 1) / page * page);
        complaint_expect(size, "free", whole, asked);
    }
}

/* The thread has freed none of that size before: it looks into the cache of who has allocated the block. */
static void victim_by_thread(const char *size) {
    void *block = malloc(strtoul(size, NULL, 10));
    complaint_announce(block);
    free(block);
    in_thread(free_it, hidden(block));
    announce_survival();
}

/* ---- The slab has gone ----------------------------------------------------------------------------------------- */

static void *free_all(void *nothing) {
    for (unsigned i = 0; i < herd.count; i++) free(herd.blocks[i]);
    return nothing;
}

static void *free_victim(void *nothing) {
    free(herd_victim(&herd));
    return nothing;
}

/* Every block is free when the second free comes, and the slab may belong to nobody. */
static void victim_emptied(const char *size) {
    herd_make(&herd, strtoul(size, NULL, 10));
    complaint_announce(herd_victim(&herd));
    in_thread(free_all, NULL);
    in_thread(free_victim, NULL);
    announce_survival();
}

static void run_emptied(void) {
    for (int i = 0; i < SIZES; i++) complaint_expect(sizes[i], "", DOUBLE_FREE, NOT_A_BLOCK);
}

#define CASE(name_, run_, victim_)                                                                                     \
    { .name = name_, .run = run_, .seconds = 120, .memory_mib = 1024, .victim = victim_ }

static const struct hak_case cases[] = {
    CASE("newest", run_newest, victim_newest),
    CASE("newest-full", run_newest, victim_newest_full),
    CASE("large", run_large, victim_newest),
    CASE("after-others", run_after_others, victim_after_others),
    CASE("among-frees", run_among_frees, victim_among_frees),
    CASE("delayed", expect_found, victim_delayed),
    CASE("both-remote", expect_found, victim_both_remote),
    CASE("large-at-once", run_large_at_once, victim_large_at_once),
    CASE("orphan", expect_found, victim_orphan),
    CASE("remote-twice", expect_found, victim_remote_twice),
    CASE("local-then-remote", expect_found, victim_local_then_remote),
    CASE("remote-then-local", expect_found, victim_remote_then_local),
    CASE("emptied", run_emptied, victim_emptied),
    CASE("by-thread", run_newest, victim_by_thread),
};

CASE_MAIN(cases)
