/* What an operation costs machines with many cores: see lines.h.
 *
 *     scale WORKLOAD                                            checks the bounds of a workload
 *     scale [--sites] WORKLOAD THREADS operations|steps         counts
 *
 * Each operation of one thread comes between two of each other one; or, by steps, each atomic read-modify-write does.
 * Counting writes a line of comma-separated values: workload, threads, interleaving, operations, then for 1000
 * operations the library's accesses, atomic read-modify-writes, failed compare-and-swaps, transfers, the program's own
 * transfers, system calls, and transfers of the hottest lines, most first. With --sites, where most transfers were
 * made, too.
 *
 * The machine has 64 processors, as far as the library knows. Time goes on by 20 us with each operation of all. The
 * library believes that its background thread is there and awake, as it is where threads have 8 MiB or more; what that
 * thread and the controller do is done once a period, however much the program does, and is not counted. In the
 * workload `small` there is no such thread: the heap is smaller, or the program doesn't want one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>

#include "front/background.h"
#include "hakmem/hakmem.h"
#include "lines.h"
#include "pool/heap.h"
#include "region/decay.h"
#include "region/heap_count.h"
#include "turns.h"

enum { PROCESSORS = 64, HEAPS_PER_PROCESSOR = 2, NS_PER_OPERATION = 20000, WARM_UP_TURN = 50, LAST_WARM_UP = 4 };

/* One seat of a program: what a thread has. */
struct seat {
    uint64_t random;
    void *blocks[256];
    uint32_t first, count; /* of a queue of blocks */
};

static struct seat seats[LINES_MOST_CORES];
static int seat_count;

static uint32_t draw(struct seat *seat, uint32_t below) {
    seat->random = seat->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(((seat->random >> 32) * below) >> 32);
}

static void *alloc(size_t size) {
    void *block = hak_malloc(size);
    if (block == NULL) abort();
    lines_program_writes(block);
    return block;
}

/* 16 bytes to 4 KiB; small ones are more. */
static size_t draw_size(struct seat *seat) {
    uint32_t shift = draw(seat, 8);
    return (16U << shift) + draw(seat, 16U << shift);
}

/* Replaces one of its blocks. */
static void work_private(int number) {
    struct seat *seat = &seats[number];
    void **block = &seat->blocks[draw(seat, 256)];
    hak_free(*block);
    *block = alloc(draw_size(seat));
}

/* Every other thread allocates, and its neighbour frees in the same order. A thread that has nobody does both. */
static void work_handing(int number) {
    struct seat *seat = &seats[number & ~1];
    bool allocates = seat_count == 1 ? seat->count <= 128 : number % 2 == 0;
    if (allocates && seat->count < 256) {
        seat->blocks[(seat->first + seat->count) % 256] = alloc(64U << draw(seat, 4));
        seat->count++;
    } else if (!allocates && seat->count > 128) {
        hak_free(seat->blocks[seat->first]);
        seat->first = (seat->first + 1) % 256;
        seat->count--;
    }
}

/* Page runs of 64 KiB to 1 MiB. */
static void work_runs(int number) {
    struct seat *seat = &seats[number];
    void **block = &seat->blocks[draw(seat, 4)];
    hak_free(*block);
    *block = alloc((65536U << draw(seat, 4)) + draw(seat, 65536));
}

/* A thread is born, allocates a few blocks, frees them, and ends. */
static void live_short(int number) {
    void *blocks[16];
    for (int i = 0; i < 16; i++) blocks[i] = alloc(draw_size(&seats[number]));
    for (int i = 0; i < 16; i++) hak_free(blocks[i]);
}

static void work_births(int number) {
    (void)number;
    turns_run_inside(live_short);
}

static const struct workload {
    const char *name;
    void (*work)(int number);
    uint32_t warm_up;    /* operations of each thread, some in each turn */
    uint32_t operations; /* of all that are counted; but `least` of each */
    uint32_t least;
    bool has_background;
} workloads[] = {
    {"private", work_private, 4000, 50000, 200, true}, {"small", work_private, 4000, 50000, 200, false},
    {"handing", work_handing, 4000, 50000, 400, true}, {"runs", work_runs, 32, 20000, 50, true},
    {"births", work_births, 2, 2000, 8, true},
};

static const struct workload *workload;
static uint32_t rounds;
static bool is_by_steps;
static int warm_count, finished_count;
static uint64_t done_count;
static struct lines_counts counts;

/* Waits until all have come here; the last one is told so first. */
static void meet(int *here, void (*last)(void)) {
    if (++*here == seat_count) last();
    while (*here < seat_count) turns_end();
}

static void set_background(bool is_there) {
    hak_background_state = is_there ? HAK_BACKGROUND_AWAKE : HAK_BACKGROUND_NONE;
    hak_background_pay(is_there);
}

static void begin(void) {
    turns_are_steps = is_by_steps;
    lines_begin();
}

static void end(void) {
    turns_are_steps = false;
    lines_end(&counts);
    lines_stop();
    set_background(false);
}

static void operate(int number) {
    workload->work(number);
    lines_set_clock_ns(++done_count * NS_PER_OPERATION);
}

static void run(int number) {
    seats[number].random = (uint64_t)number + 1;
    for (uint32_t i = 0; i < workload->warm_up + LAST_WARM_UP; i++) {
        operate(number);
        if (i % WARM_UP_TURN == 0 || i >= workload->warm_up) turns_end();
    }
    meet(&warm_count, begin);
    for (uint32_t i = 0; i < rounds; i++) {
        operate(number);
        turns_end();
    }
    meet(&finished_count, end);
}

/* The library reads its settings before main; and the kernel chooses addresses, by which threads that meet part. */
static void start_again_with_settings(char **arguments) {
    if (getenv("HAKMEM_BACKGROUND") != NULL) return;
    setenv("HAKMEM_BACKGROUND", "0", 1);
    setenv("HAKMEM_ACE_ENABLED", "0", 1);
    personality(ADDR_NO_RANDOMIZE);
    execv("/proc/self/exe", arguments);
    abort();
}

static double per_1000(uint64_t count) { return 1000.0 * (double)count / ((double)rounds * seat_count); }

static void print(void) {
    const uint64_t columns[] = {counts.accesses,  counts.atomic_writes,     counts.failed_swaps,
                                counts.transfers, counts.program_transfers, counts.system_calls};
    printf("%s,%d,%s,%u", workload->name, seat_count, is_by_steps ? "steps" : "operations",
           rounds * (unsigned)seat_count);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) printf(",%.3f", per_1000(columns[i]));
    for (int i = 0; i < LINES_HOTTEST; i++) printf(",%.3f", per_1000(counts.hottest[i]));
    printf("\n");
    fflush(stdout);
}

static void count(int threads, bool by_steps) {
    seat_count = threads;
    is_by_steps = by_steps;
    rounds = workload->operations / (uint32_t)seat_count;
    if (rounds < workload->least) rounds = workload->least;
    hak_free(hak_malloc(1)); /* all that is done once, is done */
    hak_few_heaps = PROCESSORS * HEAPS_PER_PROCESSOR;
    set_background(workload->has_background);
    turns_run(seat_count, run);
    print();
}

/* ---- Bounds ------------------------------------------------------------------------------------------------------ */

/* What 1000 operations may cost at most. There is room for other compilers, and none for one more line that all threads
 * write in each miss. Heaps are many from 129 threads on: then slabs are handed round. */
static const struct bound {
    const char *workload;
    int threads;
    bool is_by_steps;
    double transfers, hottest, failed_swaps, system_calls;
} bounds[] = {
    {"private", 8, false, 1, 0.5, 1, 1},       {"private", 64, false, 5, 3, 1, 1},
    {"private", 64, true, 6, 4, 1, 1},         {"private", 512, false, 82, 5, 1, 1},
    {"small", 8, false, 1, 0.5, 1, 1},         {"small", 64, false, 5, 3, 1, 1},
    {"small", 512, false, 82, 5, 1, 1},        {"handing", 8, false, 28, 5, 1, 1},
    {"handing", 64, false, 40, 8, 2, 1},       {"handing", 64, true, 40, 12, 5, 1},
    {"handing", 512, false, 60, 15, 2, 1},     {"runs", 8, false, 18000, 2500, 1, 1},
    {"runs", 64, false, 24000, 2500, 1, 1},    {"runs", 64, true, 45000, 8000, 5000, 2},
    {"runs", 512, false, 28000, 2500, 1, 1},   {"births", 8, false, 90000, 2100, 1, 1},
    {"births", 64, false, 90000, 2100, 1, 1},  {"births", 64, true, 220000, 12000, 8000, 200},
    {"births", 512, false, 90000, 2100, 1, 1},
};

static int check(const struct bound *bound, const char *what, double found, double most) {
    if (found <= most) return 0;
    printf("%s, %d threads, by %s: %.3f %s in 1000 operations, and not %.3f at most\n", bound->workload, bound->threads,
           bound->is_by_steps ? "steps" : "operations", found, what, most);
    return 1;
}

static int check_bound(const struct bound *bound) {
    count(bound->threads, bound->is_by_steps);
    return check(bound, "transfers", per_1000(counts.transfers), bound->transfers) +
           check(bound, "transfers of the hottest line", per_1000(counts.hottest[0]), bound->hottest) +
           check(bound, "failed compare-and-swaps", per_1000(counts.failed_swaps), bound->failed_swaps) +
           check(bound, "system calls", per_1000(counts.system_calls), bound->system_calls);
}

/* Each in a process of its own. */
static int check_bounds(void) {
    int faults = 0;
    for (const struct bound *bound = bounds; bound < bounds + sizeof bounds / sizeof *bounds; bound++) {
        if (strcmp(bound->workload, workload->name) != 0) continue;
        pid_t child = fork();
        if (child == 0) exit(check_bound(bound) == 0 ? 0 : 1);
        int status = 1;
        while (waitpid(child, &status, 0) < 0) continue;
        faults += status != 0;
    }
    return faults == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
    bool wants_sites = argc > 1 && strcmp(argv[1], "--sites") == 0;
    char **words = argv + 1 + wants_sites;
    int word_count = argc - 1 - wants_sites;
    if (word_count != 1 && word_count != 3) return 2;
    start_again_with_settings(argv);
    for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++)
        if (strcmp(workloads[i].name, words[0]) == 0) workload = &workloads[i];
    int threads = word_count == 3 ? atoi(words[1]) : 1;
    if (workload == NULL || threads < 1 || threads > LINES_MOST_CORES) return 2;
    if (word_count == 1) return check_bounds();
    count(threads, strcmp(words[2], "steps") == 0);
    if (wants_sites) lines_print_sites();
    return 0;
}
