/* A program that goes on as before asks the kernel for nothing: no memory system call after the warm-up, of any thread, hakmem's
 * own included; and that thread wakes up seldom, or never. A long run in two threads may make a few calls a second.
 *
 *     steady mixed OPERATIONS SLOTS        what bench_random_mixed does
 *     steady threads OPERATIONS SLOTS      the same in two threads at once, with a heap that has a background thread
 *     steady large SECONDS MIB             a block of so many MiB, its pages written, freed again: where no thread of hakmem's
 *                                          may begin, up to 16 MiB stay
 *     steady large_beside SECONDS MIB      the same where there is a background thread, and more stays
 *     steady background SECONDS            how often that thread wakes up, while the program is busy and while it rests
 */
#include "supervise.h"

#include "bench_slots.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    THREADS = 2,
    MOST_ROUNDS = 100,
    MOST_WAKES_A_SECOND = 3,
    LONGEST_WAIT_MS = 200,
    WAIT_MS = 50,
    CALLS_OF_WAIT = 8
};

static uint64_t amount; /* operations, or seconds */
static uint64_t size;   /* slots, or MiB */

/* ---- Operations ---- */

static struct bench_slots make_slots(uint64_t count, uint64_t seed) {
    struct bench_slots set = {.count = count, .sizes = bench_sizes(16, 1040), .random = bench_random_seeded(seed, 0)};
    set.slots = bench_map(count, sizeof *set.slots);
    return set;
}

/* A short run may need a SuperSlab more at any time, as it goes on growing. So there are free units to begin with, which need no
 * system call: between blocks that stay, for malloc_trim unmaps SuperSlabs that are free as a whole. */
static void spare_units(void) {
    enum { PAIRS = 8 };
    void *spare[PAIRS];
    if (amount >= 100000000) return;
    for (int i = 0; i < PAIRS; i++) {
        spare[i] = opaque_pointer(malloc(MIB / 2));
        EXPECT(opaque_pointer(malloc(MIB / 8)) != NULL, "no memory");
    }
    for (int i = 0; i < PAIRS; i++) free(spare[i]);
    malloc_trim(0);
}

/* A tenth, and enough for numbers of blocks to have been about as high as they get. */
static uint64_t warm_up_operations(void) { return amount / 10 > 10000000 ? amount / 10 : 10000000; }

static void mixed(void) {
    spare_units();
    struct bench_slots set = make_slots(size, 1);
    bench_slots_churn(&set, warm_up_operations(), false);
    supervised_forget();
    bench_slots_churn(&set, amount, false);
    expect_no_memory_calls("random mixed");
}

static pthread_barrier_t barrier; /* of all threads and the main thread */

/* How long, at most, a thread waited for a processor while it was to run. To a background thread such a thread rests. */
static _Atomic uint64_t longest_wait_ns;

static uint64_t own_cpu_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void *churn(void *argument) {
    struct bench_slots *set = argument;
    bench_slots_churn(set, warm_up_operations(), false);
    pthread_barrier_wait(&barrier);
    for (;;) { /* a round each; the last one waits for ever: the end of a thread makes memory calls, for its stack */
        pthread_barrier_wait(&barrier);
        uint64_t start_ns = now_ns(), start_cpu_ns = own_cpu_ns();
        bench_slots_churn(set, amount, false);
        uint64_t wait_ns = now_ns() - start_ns - (own_cpu_ns() - start_cpu_ns), longest_ns = longest_wait_ns;
        while (wait_ns > longest_ns && !atomic_compare_exchange_weak(&longest_wait_ns, &longest_ns, wait_ns)) {
        }
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

/* A long run may make a call in a hundred milliseconds: threads are not equally fast all the time, so that the heap may grow once
 * more, and what lies free through a whole period goes back. A short one makes none, unless a thread waited long for a processor:
 * that round says nothing. Who makes calls in each round never passes one that counts: the case's bound of time is that of this. */
static bool is_round_steady(void) {
    supervised_forget();
    atomic_store(&longest_wait_ns, 0);
    uint64_t start_ns = now_ns();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    unsigned long calls = count_memory_calls("random mixed in two threads");
    if (amount >= 100000000) return calls <= (now_ns() - start_ns) / 100000000u + 10;
    if (calls == 0) return true;
    EXPECT(longest_wait_ns >= LONGEST_WAIT_MS * 1000000u, "%lu calls, though no thread waited for long", calls);
    return false;
}

static void threads(void) {
    spare_units();
    pthread_t thread;
    static struct bench_slots sets[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    for (size_t i = 0; i < THREADS; i++) {
        sets[i] = make_slots(size, i);
        EXPECT(!pthread_create(&thread, NULL, churn, &sets[i]), "no thread");
    }
    pthread_barrier_wait(&barrier);
    for (int rounds = 1; !is_round_steady(); rounds++)
        EXPECT(rounds < MOST_ROUNDS, "calls in each of %d rounds", rounds);
}

/* ---- Large blocks ---- */

/* Returns for how many blocks the thread waited for a processor. */
static unsigned long use_blocks(void) {
    size_t bytes = size * MIB;
    unsigned long waits = 0;
    for (uint64_t end_ns = now_ns() + amount * 1000000000u, start_ns; (start_ns = now_ns()) < end_ns;) {
        uint64_t start_cpu_ns = own_cpu_ns();
        volatile char *block = malloc(bytes);
        EXPECT(block, "malloc(%zu)", bytes);
        for (size_t i = 0; i < bytes; i += 4096) {
            block[i] = 1;
        }
        free((void *)block);
        uint64_t wall_ns = now_ns() - start_ns, cpu_ns = own_cpu_ns() - start_cpu_ns;
        waits += wall_ns >= cpu_ns + WAIT_MS * 1000000u;
    }
    return waits;
}

/* Each slice is of so many seconds. What was free before may go back in the first ones; what lies free while its thread
 * waits for a processor may, too, and is mapped again. Who makes other calls for ever never has CALM_SLICES in a row: the
 * case's bound of time is that of this. */
static void large(void) {
    enum { CALM_SLICES = 3 };
    for (int calm = 0; calm < CALM_SLICES;) {
        supervised_forget();
        unsigned long waits = use_blocks();
        calm = count_memory_calls(NULL) <= CALLS_OF_WAIT * waits ? calm + 1 : 0;
    }
}

/* ---- With a background thread ---- */

static atomic_int churners[THREADS]; /* their ids */

/* The thread of this process that it has not made; 0 when there is none yet. It has a name only where no call is filtered. */
static int find_background(void) {
    int found = 0;
    DIR *tasks = opendir("/proc/self/task");
    EXPECT(tasks, "/proc/self/task");
    for (struct dirent *task; !found && (task = readdir(tasks));) {
        int id = atoi(task->d_name), is_own = id == 0 || id == getpid();
        for (size_t i = 0; i < THREADS; i++) {
            is_own |= id == atomic_load(&churners[i]) || atomic_load(&churners[i]) == 0;
        }
        if (!is_own) {
            found = id;
        }
    }
    closedir(tasks);
    return found;
}

static atomic_bool resting, ending;

static struct bench_slots sets[THREADS];

static void *churn_or_rest(void *argument) {
    struct bench_slots *set = argument;
    atomic_store(&churners[set - sets], (int)syscall(SYS_gettid));
    while (!atomic_load(&ending)) {
        if (atomic_load(&resting)) {
            bench_sleep(0.01);
        } else {
            bench_slots_churn(set, 10000, false);
        }
    }
    return NULL;
}

/* Two threads churn within a heap that is large enough. Returns the background thread. */
static int start_churning(void) {
    pthread_t thread;
    for (size_t i = 0; i < THREADS; i++) {
        sets[i] = make_slots(50000, i);
        EXPECT(!pthread_create(&thread, NULL, churn_or_rest, &sets[i]), "no thread");
    }
    int background;
    while (!(background = find_background())) {
        bench_sleep(0.01);
    }
    return background;
}

/* The other threads rest, and what they had free goes back, which takes its time. */
static void large_beside(void) {
    start_churning();
    atomic_store(&resting, true);
    large();
}

/* Whether a thread waits for a futex, without a timeout. */
static int is_asleep(int thread) {
    char path[64];
    char text[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0) {
        close(file);
    }
    if (length <= 0) {
        SKIP("%s can't be read", path);
    }
    unsigned long call;
    unsigned long arguments[4];
    int count = sscanf(text, "%lu %lx %lx %lx %lx", &call, &arguments[0], &arguments[1], &arguments[2], &arguments[3]);
    return count == 5 && call == SYS_futex && arguments[3] == 0;
}

static void background(void) {
    int thread = start_churning();
    bench_sleep(1);
    supervised_forget(); /* each wait for a futex ends with a wake-up, and nobody else here waits for one */
    uint64_t start_ns = now_ns();
    bench_sleep((double)amount);
    unsigned long wakes = supervised_count_of("futex");
    double seconds = (double)(now_ns() - start_ns) * 1e-9;
    EXPECT((double)wakes <= MOST_WAKES_A_SECOND * seconds + 1, "busy: %lu wakes in %.1f s", wakes, seconds);
    atomic_store(&resting, true);
    while (!is_asleep(thread)) { /* the case's bound of time is that of this */
        bench_sleep(0.05);
    }
    supervised_forget();
    bench_sleep((double)amount);
    wakes = supervised_count_of("futex");
    EXPECT(wakes == 0, "idle: %lu wakes in %lu s", wakes, (unsigned long)amount);
    expect_no_memory_calls("idle");
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"mixed", mixed},
                                             {"threads", threads},
                                             {"large", large},
                                             {"large_beside", large_beside},
                                             {"background", background}};
    if (argc < 3 || argc > 4) {
        return run_case(1, argv, cases, COUNT_OF(cases), 1);
    }
    if (!is_supervised()) {
        return run_supervised(argv, MEMORY_CALLS ",futex", 2 * GIB);
    }
    amount = strtoull(argv[2], NULL, 10);
    size = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
    /* Twice as many seconds, or some nanoseconds for each operation. */
    unsigned needed = (unsigned)(amount < 1000 ? 2 * amount : amount / 1000000);
    return run_case(argc, argv, cases, COUNT_OF(cases), 50 + needed);
}
