/* What a fork costs the child, in pages that it writes: as much as its threads had in hand, however large the heap is. */
#include <limits.h>
#include <malloc.h>
#include <sys/mman.h>

#include "churn.h"

enum {
    THREADS = 8,
    BLOCK_BYTES = 640, /* not touched: a heap of 1 GiB takes little memory */
    FIRST_MIB = 128,
    LAST_MIB = 1024,
    CHILD_SECONDS = 20,
    FORKS = 9,
    PAGE_KIB = 4,
    MOST_KIB = 200, /* the child's own memory, with the kernel's and libc's pages */
    FEW_FAULTS = 6, /* that come and go */
    CHURNERS = 4,
    HELD_FAULTS = 8, /* of what one churner is at */
};

/* ---- What a child has written ------------------------------------------------------------------------------------ */

struct cost {
    long faults, dirty_kib;
};

/* Without the heap. */
static long private_dirty_kib(void) {
    static char text[4096];
    int descriptor = open("/proc/self/smaps_rollup", O_RDONLY);
    ssize_t length = descriptor < 0 ? 0 : read(descriptor, text, sizeof text - 1);
    if (descriptor >= 0) close(descriptor);
    text[length > 0 ? length : 0] = '\0';
    const char *line = strstr(text, "\nPrivate_Dirty:");
    return line == NULL ? -1 : strtol(line + sizeof "\nPrivate_Dirty:" - 1, NULL, 10);
}

/* Counted at the return of fork; by then all that is done at a fork is done. */
static struct cost cost_of_fork(void (*then)(void)) {
    static struct cost *shared;
    if (shared == NULL) {
        shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        expect(shared != MAP_FAILED, "no shared memory");
    }
    *shared = (struct cost){0, 0}; /* and no fault for it in the child */
    pid_t child = fork();
    if (child == 0) {
        struct rusage usage;
        getrusage(RUSAGE_SELF, &usage);
        shared->faults = usage.ru_minflt;
        shared->dirty_kib = private_dirty_kib();
        case_bound_time(CHILD_SECONDS);
        if (then != NULL) then();
        _exit(0);
    }
    case_expect_success(child, CHILD_SECONDS + 1);
    return *shared;
}

/* The cheapest of some. */
static struct cost least_cost(void) {
    struct cost least = {LONG_MAX, LONG_MAX};
    for (int i = 0; i < FORKS; i++) {
        struct cost cost = cost_of_fork(NULL);
        if (cost.faults < least.faults) least.faults = cost.faults;
        if (cost.dirty_kib < least.dirty_kib) least.dirty_kib = cost.dirty_kib;
    }
    return least;
}

/* ---- Threads that have a heap, and wait -------------------------------------------------------------------------- */

/* Blocks in a list of their own would be touched; each thread keeps where they are. */
struct hoard {
    pthread_t thread;
    void **blocks;
    size_t count, room;
};

static struct hoard hoards[THREADS];
static pthread_barrier_t barrier;
static size_t wanted; /* blocks a thread; 0: the end */

/* All of them, but for some holes: slabs that are full, partial, held and in the pool. */
static void hoard_grow(struct hoard *hoard) {
    for (size_t first = hoard->count; hoard->count < wanted; hoard->count++) {
        hoard->blocks[hoard->count] = malloc(BLOCK_BYTES);
        expect(hoard->blocks[hoard->count] != NULL, "no memory");
        if (hoard->count % 1000 != 999 || hoard->count - 500 < first) continue;
        free(hoard->blocks[hoard->count - 500]);
        hoard->blocks[hoard->count - 500] = NULL;
    }
}

static void *hoard_wait(void *argument) {
    struct hoard *hoard = argument;
    for (;;) {
        pthread_barrier_wait(&barrier);
        if (wanted == 0) break;
        hoard_grow(hoard);
        pthread_barrier_wait(&barrier);
    }
    for (size_t i = 0; i < hoard->count; i++) free(hoard->blocks[i]);
    return NULL;
}

static void hoards_start(void) {
    size_t room = (size_t)LAST_MIB * 1024 * 1024 / BLOCK_BYTES / THREADS;
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) {
        hoards[i].blocks =
            mmap(NULL, room * sizeof(void *), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        expect(hoards[i].blocks != MAP_FAILED, "no memory");
        expect(pthread_create(&hoards[i].thread, NULL, hoard_wait, &hoards[i]) == 0, "no thread");
    }
}

static void hoards_grow_to(size_t mib) {
    wanted = mib * 1024 * 1024 / BLOCK_BYTES / THREADS;
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
}

static void hoards_end(void) {
    wanted = 0;
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < THREADS; i++) pthread_join(hoards[i].thread, NULL);
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static void expect_flat(struct cost small, struct cost large, long few) {
    case_print(STDERR_FILENO, "%d MiB: %ld faults, %ld KiB dirty; %d MiB: %ld faults, %ld KiB dirty\n", FIRST_MIB,
               small.faults, small.dirty_kib, LAST_MIB, large.faults, large.dirty_kib);
    expect(large.faults <= small.faults + few, "faults grow with the heap");
}

/* A heap that all threads but the first have made, and are not at. */
static void run_idle(void) {
    hoards_start();
    free(malloc(1));
    hoards_grow_to(FIRST_MIB);
    struct cost small = least_cost();
    hoards_grow_to(LAST_MIB);
    struct cost large = least_cost();
    expect_flat(small, large, FEW_FAULTS);
    expect(small.dirty_kib > 0, "the kernel does not tell");
    expect(large.dirty_kib <= small.dirty_kib + FEW_FAULTS * PAGE_KIB, "memory written grows with the heap");
    expect(large.dirty_kib <= MOST_KIB, "too much memory is written");
    hoards_end();
}

/* What they have left is there for the child. */
static void child_frees_all(void) {
    for (int i = 0; i < THREADS; i++)
        for (size_t j = 0; j < hoards[i].count; j++) free(hoards[i].blocks[j]);
    malloc_trim(0);
    expect(mallinfo2().uordblks < 1 << 20, "%zu bytes are in use still", mallinfo2().uordblks);
}

static void run_inherited(void) {
    hoards_start();
    hoards_grow_to(FIRST_MIB);
    cost_of_fork(child_frees_all);
    hoards_end();
}

/* Others are in the middle of something most of the time. */
static void run_busy(void) {
    struct churners churners = {0};
    hoards_start();
    churners_start(&churners, CHURNERS);
    hoards_grow_to(FIRST_MIB);
    struct cost small = least_cost();
    hoards_grow_to(LAST_MIB);
    struct cost large = least_cost();
    churners_stop(&churners);
    expect_flat(small, large,
                FEW_FAULTS +
                    CHURNERS * HELD_FAULTS); /* what is private of the child's here may be the parent's doing */
    hoards_end();
}

static const struct hak_case cases[] = {
    {.name = "idle", .run = run_idle, .seconds = 60, .memory_mib = 2048},
    {.name = "inherited", .run = run_inherited, .seconds = 60, .memory_mib = 2048},
    {.name = "busy", .run = run_busy, .seconds = 60, .memory_mib = 2048},
};

int main(int argc, char **argv) { return case_main(argc, argv, cases, sizeof cases / sizeof *cases); }
