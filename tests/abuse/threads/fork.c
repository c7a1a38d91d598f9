/* fork and its relatives while the heap is busy: the child has a heap that works, the parent keeps one. */
#include <malloc.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "churn.h"

extern char **environ;

enum { CHILD_SECONDS = 30, SIZE_MAX_BYTES = 64 << 10 };

static void child_begins(void) { case_bound_time(CHILD_SECONDS); }

/* ---- Plain forks while four threads churn ---------------------------------------------------------------------- */

static void fork_rounds(unsigned rounds, void (*child_work)(void)) {
    struct churners churners = {0};
    churners_start(&churners, 4);
    for (unsigned i = 0; i < rounds; i++) {
        pid_t child = fork();
        if (child == 0) {
            child_begins();
            child_work();
            _exit(0);
        }
        case_expect_success(child, CHILD_SECONDS + 1);
        churn_once(i, 200, SIZE_MAX_BYTES);
    }
    churners_stop(&churners);
}

static void child_churns(void) { churn_once(1, 2000, SIZE_MAX_BYTES); }

static void run_churn(void) { fork_rounds(50, child_churns); }

static void run_many(void) {
    fork_rounds(20, child_churns);
    size_t before = case_rss_bytes();
    fork_rounds(200, child_churns);
    size_t growth_kib = case_growth_kib(before, case_rss_bytes());
    expect(growth_kib < 16 << 10, "200 forks cost the parent %zu KiB", growth_kib);
}

static void child_starts_threads(void) {
    struct churners churners = {0};
    churners_start(&churners, 4);
    churn_once(2, 2000, SIZE_MAX_BYTES);
    churners_stop(&churners);
}

static void run_child_threads(void) { fork_rounds(40, child_starts_threads); }

static void child_exits(void) {
    churn_once(3, 500, SIZE_MAX_BYTES);
    exit(0);
}

static void run_child_exits(void) { fork_rounds(50, child_exits); }

static void nest(unsigned depth) {
    struct churners churners = {0};
    churners_start(&churners, 4);
    churn_once(depth, 500, SIZE_MAX_BYTES);
    pid_t child = depth > 0 ? fork() : 0;
    if (depth > 0 && child == 0) {
        child_begins();
        nest(depth - 1);
        _exit(0);
    }
    if (depth > 0) case_expect_success(child, CHILD_SECONDS + 1);
    churners_stop(&churners);
}

static void run_nested(void) {
    for (int i = 0; i < 15; i++) nest(4);
}

/* ---- Blocks of threads that the child does not have ------------------------------------------------------------ */

enum { SHELF = 2048 };

/* A filled block, its size in the first word; the thread that put it here may free it at any time. */
static _Atomic(size_t *) shelf[SHELF];

static unsigned char shelf_tag(const size_t *block) { return (unsigned char)((uintptr_t)block >> 4); }

static void shelf_drop(size_t *block) {
    if (!block) return;
    expect(churn_is_filled((unsigned char *)(block + 1), *block, shelf_tag(block)), "%p has changed", (void *)block);
    free(block);
}

static size_t *shelf_make(uint64_t *random) {
    size_t size = churn_size(random, SIZE_MAX_BYTES);
    size_t *block = malloc(sizeof *block + size);
    expect(block, "no memory");
    *block = size;
    memset(block + 1, shelf_tag(block), size);
    return block;
}

static void *shelf_fill(void *stop) {
    uint64_t random = (uintptr_t)&random;
    while (!atomic_load((atomic_bool *)stop)) {
        size_t slot = churn_random(&random) % SHELF;
        shelf_drop(atomic_exchange(&shelf[slot], shelf_make(&random)));
    }
    return NULL;
}

static void child_clears_shelf(void) {
    uint64_t random = 7;
    for (unsigned i = 0; i < SHELF; i++) {
        size_t *block = atomic_exchange(&shelf[i], NULL);
        if (i % 3 == 0 && block) {
            size_t size = *block;
            unsigned char tag = shelf_tag(block);
            block = realloc(block, sizeof *block + size + 100);
            expect(block && churn_is_filled((unsigned char *)(block + 1), size, tag), "realloc lost contents");
            free(block);
        } else {
            shelf_drop(block);
        }
        if (i % 2 == 0) atomic_store(&shelf[i], shelf_make(&random));
    }
    for (unsigned i = 0; i < SHELF; i++) shelf_drop(atomic_exchange(&shelf[i], NULL));
    child_churns();
}

static void run_others_blocks(void) {
    atomic_bool stop = false;
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) expect(pthread_create(&threads[i], NULL, shelf_fill, &stop) == 0, "no thread");
    case_sleep_us(50000);
    for (int i = 0; i < 30; i++) {
        pid_t child = fork();
        if (child == 0) {
            child_begins();
            child_clears_shelf();
            _exit(0);
        }
        case_expect_success(child, CHILD_SECONDS + 1);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

/* ---- stdio's locks --------------------------------------------------------------------------------------------- */

/* fork takes stdio's list lock after all prepare handlers; fflush(NULL) takes it and then each stream's; getline holds
 * a stream's and allocates. An allocator that holds a lock across fork closes the circle. */
static FILE *lines;
static atomic_bool stdio_stop;

static void *stdio_reads(void *nothing) {
    while (!atomic_load(&stdio_stop)) {
        char *line = NULL;
        size_t room = 0;
        if (getline(&line, &room, lines) < 0) rewind(lines);
        free(line);
    }
    return nothing;
}

static void *stdio_flushes(void *nothing) {
    while (!atomic_load(&stdio_stop)) fflush(NULL);
    return nothing;
}

static void *stdio_prints(void *nothing) {
    uint64_t random = 11;
    while (!atomic_load(&stdio_stop)) {
        FILE *null = fopen("/dev/null", "w");
        expect(null, "no /dev/null");
        for (int i = 0; i < 20; i++) fprintf(null, "%*d %.3f\n", (int)churn_size(&random, 4000), i, i / 7.0);
        fclose(null);
        churn_once(churn_random(&random), 100, SIZE_MAX_BYTES);
    }
    return nothing;
}

static void child_uses_stdio(void) {
    char *text = NULL;
    size_t length = 0;
    FILE *memory = open_memstream(&text, &length);
    expect(memory, "no stream");
    for (int i = 0; i < 200; i++) fprintf(memory, "%d\n", i);
    fclose(memory);
    expect(length == 690, "%zu bytes were written", length);
    free(text);
    child_churns();
}

static void run_stdio(void) {
    lines = tmpfile();
    expect(lines, "no temporary file");
    for (int i = 1; i < 200; i++) fprintf(lines, "%*d\n", i * 300, i);
    rewind(lines);
    void *(*const work[])(void *) = {stdio_reads, stdio_reads, stdio_flushes, stdio_prints};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) expect(pthread_create(&threads[i], NULL, work[i], NULL) == 0, "no thread");
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        if (child == 0) {
            child_begins();
            child_uses_stdio();
            _exit(0);
        }
        case_expect_success(child, CHILD_SECONDS + 1);
    }
    atomic_store(&stdio_stop, true);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

/* ---- Fork handlers --------------------------------------------------------------------------------------------- */

/* Two sets of handlers that allocate: one registered before the allocator can have registered its own, one after.
 * Both are idle except in run_atfork. */
static bool handlers_active;
static void *handed_over[2][64];

static void handler_prepares(int set) {
    if (!handlers_active) return;
    for (int i = 0; i < 64; i++) {
        free(handed_over[set][i]);
        handed_over[set][i] = malloc((size_t)16 << (i % 13));
        expect(handed_over[set][i], "no memory in a fork handler");
    }
    churn_once((unsigned)set, 200, SIZE_MAX_BYTES);
}

static void handler_resumes(int set) {
    if (!handlers_active) return;
    churn_once((unsigned)set, 200, SIZE_MAX_BYTES);
    for (int i = 0; i < 64; i++) {
        free(handed_over[set][i]);
        handed_over[set][i] = NULL;
    }
}

static void early_prepare(void) { handler_prepares(0); }
static void early_parent(void) { handler_resumes(0); }

/* A library that was there first begins its thread again, and waits until it works. */
static bool thread_active;
static struct churners early_thread;

/* Or it forks, and what it has forked begins threads, and goes on as the child that it was called in. */
static bool fork_active;

static void fork_and_begin(void) {
    fork_active = false;
    pid_t child = fork();
    if (child == 0) {
        child_begins();
        churners_start(&early_thread, 4);
        case_sleep_us(2000);
        return;
    }
    case_expect_success(child, CHILD_SECONDS);
    _exit(0);
}

static void early_child(void) {
    if (handlers_active) child_begins();
    handler_resumes(0);
    if (fork_active) fork_and_begin();
    if (!thread_active) return;
    child_begins();
    churners_start(&early_thread, 1);
    case_sleep_us(2000);
}
static void late_prepare(void) { handler_prepares(1); }
static void late_parent(void) { handler_resumes(1); }
static void late_child(void) {
    if (handlers_active) child_begins();
    handler_resumes(1);
}

static void register_early(void) { pthread_atfork(early_prepare, early_parent, early_child); }
__attribute__((section(".preinit_array"), used)) static void (*const preinit)(void) = register_early;

static void run_atfork(void) {
    pthread_atfork(late_prepare, late_parent, late_child);
    handlers_active = true;
    fork_rounds(100, child_churns);
}

static void child_meets_thread(void) {
    child_starts_threads();
    churners_stop(&early_thread);
    child_starts_threads(); /* with the heaps of threads that have ended */
    malloc_trim(0);
    child_churns();
}

static void run_early_thread(void) {
    thread_active = true;
    for (unsigned i = 0; i < 100; i++) {
        pid_t child = fork();
        if (child == 0) {
            child_meets_thread();
            _exit(0);
        }
        case_expect_success(child, CHILD_SECONDS + 1);
    }
    fork_rounds(100, child_meets_thread);
}

/* Its heaps are those of the threads that run, when hakmem's handler is called again for the fork before. */
static void run_early_fork(void) {
    for (unsigned i = 0; i < 50; i++) {
        fork_active = true;
        pid_t child = fork();
        if (child == 0) {
            child_starts_threads();
            churners_stop(&early_thread);
            child_churns();
            _exit(0);
        }
        case_expect_success(child, CHILD_SECONDS + 1);
        fork_active = false;
    }
}

/* ---- fork in a signal handler that interrupted malloc ---------------------------------------------------------- */

static volatile sig_atomic_t armed, is_child, child_allocates;
static volatile pid_t forked;

static void fork_in_handler(int signal) {
    (void)signal;
    if (!armed) return;
    armed = 0;
    pid_t child = fork();
    if (child != 0) {
        forked = child;
        return;
    }
    child_begins();
    is_child = 1;
    if (!child_allocates) return;
    void *blocks[64];
    for (int i = 0; i < 64; i++) blocks[i] = malloc((size_t)16 << (i % 13));
    for (int i = 0; i < 64; i++) free(blocks[i]);
}

/* Mostly misses and overflows, so that this is where the signal finds the thread. */
static void burst(uint64_t random) {
    static void *blocks[400];
    size_t size = churn_size(&random, SIZE_MAX_BYTES);
    for (int i = 0; i < 400 && !is_child; i++) blocks[i] = malloc(size);
    for (int i = 0; i < 400; i++) {
        free(blocks[i]);
        blocks[i] = NULL;
    }
}

/* A child that allocated inside the handler re-entered an interrupted malloc; no heap promises to be sound then, and
 * how it ends is not looked at. It must end, though. */
static void expect_end(pid_t child) {
    if (child_allocates) {
        int status = case_await(child, CHILD_SECONDS - 1);
        expect(status != -1, "the child hung");
    } else {
        case_expect_success(child, CHILD_SECONDS - 1);
    }
}

static void signal_rounds(unsigned rounds, unsigned churner_count) {
    struct churners churners = {0};
    struct sigaction action = {.sa_handler = fork_in_handler, .sa_flags = SA_RESTART};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* inherited by the churners: the signal is for this thread */
    churners_start(&churners, churner_count);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    sigaction(SIGUSR1, &action, NULL);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct itimerspec every = {{0, 311000}, {0, 311000}};
    timer_t timer;
    expect(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "no timer");
    timer_settime(timer, 0, &every, NULL);
    for (unsigned i = 0; i < rounds; i++) {
        forked = 0;
        armed = 1;
        for (uint64_t j = 1; !forked && !is_child; j++) burst(i * 1000 + j);
        if (is_child) {
            churn_once(i, 2000, SIZE_MAX_BYTES);
            _exit(0);
        }
        expect_end(forked);
    }
    timer_delete(timer);
    churners_stop(&churners);
    churn_once(5, 2000, SIZE_MAX_BYTES);
}

static void run_signal(void) { signal_rounds(200, 0); }

static void run_signal_allocates(void) {
    child_allocates = 1;
    signal_rounds(200, 0);
}

static void run_signal_threads(void) { signal_rounds(200, 2); }

static void run_signal_threads_allocates(void) {
    child_allocates = 1;
    signal_rounds(200, 2);
}

/* ---- Relatives of fork ----------------------------------------------------------------------------------------- */

static void spawn_rounds(pid_t (*start)(void)) {
    struct churners churners = {0};
    struct churn churn;
    churn_start(&churn, 3, SIZE_MAX_BYTES);
    churners_start(&churners, 2);
    for (int i = 0; i < 150; i++) {
        churn_steps(&churn, 200);
        case_expect_success(start(), CHILD_SECONDS);
    }
    churners_stop(&churners);
    churn_end(&churn);
}

static char program_name[] = "true";
static char *const arguments[] = {program_name, NULL};

static pid_t start_by_vfork(void) {
    pid_t child = vfork();
    if (child == 0) {
        execv("/bin/true", arguments);
        _exit(127);
    }
    return child;
}

/* The child borrows the parent's memory and its heap, as shells do between vfork and exec. */
static pid_t start_by_vfork_and_allocate(void) {
    pid_t child = vfork();
    if (child == 0) {
        for (size_t size = 16; size <= SIZE_MAX_BYTES; size *= 2) free(malloc(size));
        _exit(0);
    }
    return child;
}

static pid_t start_by_spawn(void) {
    pid_t child;
    expect(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0, "no child");
    return child;
}

static int clone_body(void *nothing) {
    (void)nothing;
    for (size_t size = 16; size <= SIZE_MAX_BYTES; size *= 2) free(malloc(size));
    return 0;
}

static pid_t start_by_clone_vm(void) {
    static char stack[64 << 10] __attribute__((aligned(16)));
    return clone(clone_body, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
}

/* Like fork, but no handler of the library's runs; the child does nothing, the parent's heap must not notice. */
static pid_t start_by_raw_fork(void) {
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(0);
    return child;
}

static void run_vfork(void) {
    spawn_rounds(start_by_vfork);
    spawn_rounds(start_by_vfork_and_allocate);
}

static void run_spawn(void) { spawn_rounds(start_by_spawn); }

static void run_clone_vm(void) { spawn_rounds(start_by_clone_vm); }

static void run_clone_fork(void) { spawn_rounds(start_by_raw_fork); }

/* The same from a process with one thread, whose child goes on to allocate. */
static void run_clone_alone(void) {
    struct churn churn;
    churn_start(&churn, 9, SIZE_MAX_BYTES);
    for (int i = 0; i < 100; i++) {
        churn_steps(&churn, 200);
        pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0) {
            child_begins();
            churn_steps(&churn, 500);
            churn_end(&churn);
            _exit(0);
        }
        case_expect_success(child, CHILD_SECONDS + 1);
    }
    churn_end(&churn);
}

static const struct hak_case cases[] = {
    {.name = "churn", .run = run_churn, .seconds = 120, .memory_mib = 1024},
    {.name = "many", .run = run_many, .seconds = 120, .memory_mib = 1024},
    {.name = "nested", .run = run_nested, .seconds = 120, .memory_mib = 1024},
    {.name = "child-threads", .run = run_child_threads, .seconds = 120, .memory_mib = 1024},
    {.name = "child-exits", .run = run_child_exits, .seconds = 120, .memory_mib = 1024},
    {.name = "others-blocks", .run = run_others_blocks, .seconds = 120, .memory_mib = 1024},
    {.name = "stdio", .run = run_stdio, .seconds = 120, .memory_mib = 1024},
    {.name = "atfork", .run = run_atfork, .seconds = 120, .memory_mib = 1024},
    {.name = "early-fork", .run = run_early_fork, .seconds = 120, .memory_mib = 1024},
    {.name = "early-thread", .run = run_early_thread, .seconds = 120, .memory_mib = 1024},
    {.name = "signal", .run = run_signal, .seconds = 120, .memory_mib = 1024},
    {.name = "signal-allocates", .run = run_signal_allocates, .seconds = 120, .memory_mib = 1024},
    {.name = "signal-threads", .run = run_signal_threads, .seconds = 120, .memory_mib = 1024},
    {.name = "signal-threads-allocates", .run = run_signal_threads_allocates, .seconds = 120, .memory_mib = 1024},
    {.name = "vfork", .run = run_vfork, .seconds = 120, .memory_mib = 1024},
    {.name = "spawn", .run = run_spawn, .seconds = 120, .memory_mib = 1024},
    {.name = "clone-vm", .run = run_clone_vm, .seconds = 120, .memory_mib = 1024},
    {.name = "clone-fork", .run = run_clone_fork, .seconds = 120, .memory_mib = 1024},
    {.name = "clone-alone", .run = run_clone_alone, .seconds = 120, .memory_mib = 1024},
};

CASE_MAIN(cases)
