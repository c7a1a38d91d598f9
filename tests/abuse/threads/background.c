/* The background thread in real processes: what sleeping threads freed goes back without a call, and a process with such a thread
 * forks, ends and counts its threads as before. */
#include "churn.h"

#include <dirent.h>
#include <malloc.h>
#include <sys/stat.h>

enum { THREADS = 4, BLOCKS = 20000, BYTES = 1000 }; /* 76 MiB */

static pthread_barrier_t freed, done;

#ifdef THREAD_LOCAL_BYTES
_Thread_local char case_thread_locals[THREAD_LOCAL_BYTES]; /* every thread's stack has to hold them */
#endif

static void *burst_and_sleep(void *blocks) {
    char **block = blocks;
    for (int i = 0; i < BLOCKS; i++) {
        block[i] = malloc(BYTES);
        memset(block[i], i, BYTES);
    }
    for (int i = 0; i < BLOCKS; i++)
        if (i % 64 != 0) free(block[i]);
    pthread_barrier_wait(&freed);
    pthread_barrier_wait(&done);
    for (int i = 0; i < BLOCKS; i += 64) free(block[i]);
    return NULL;
}

static char *blocks[THREADS][BLOCKS];
static pthread_t threads[THREADS];

static void start_bursts(void) {
    pthread_barrier_init(&freed, NULL, THREADS + 1);
    pthread_barrier_init(&done, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        expect(pthread_create(&threads[i], NULL, burst_and_sleep, blocks[i]) == 0, "no thread");
    pthread_barrier_wait(&freed);
}

static void end_bursts(void) {
    pthread_barrier_wait(&done);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

/* Threads of this process that are called hakmem. */
static int count_own_threads(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0) continue;
        ssize_t length = read(file, name, sizeof name - 1);
        close(file);
        count += length > 0 && strcmp(name, "hakmem\n") == 0;
    }
    if (tasks != NULL) closedir(tasks);
    return count;
}

/* All threads of this process, counted without a malloc, which could start one. */
static int count_threads(void) {
    struct stat tasks;
    return stat("/proc/self/task", &tasks) == 0 ? (int)tasks.st_nlink - 2 : -1;
}

static void wait_for_own_thread(void) {
    while (count_own_threads() == 0) case_sleep_us(1000); /* it names itself when it first runs */
}

/* The case's bound of time is that of the decay; it looks like a program that does nothing. */
static void run_idle(void) {
    size_t before = case_rss_bytes();
    start_bursts();
    size_t live = (size_t)THREADS * BLOCKS / 64 * 8192;
    while (case_growth_kib(before, case_rss_bytes()) > (live >> 10) + 3072) case_sleep_us(50000);
    end_bursts();
}

static void run_trim(void) {
    size_t before = case_rss_bytes();
    start_bursts();
    malloc_trim(0);
    size_t live = (size_t)THREADS * BLOCKS / 64 * 8192, growth = case_growth_kib(before, case_rss_bytes());
    expect(growth <= (live >> 10) + 3072, "%zu KiB stay", growth);
    expect(count_own_threads() == 0, "there is a thread");
    end_bursts();
}

static void run_fork(void) {
    start_bursts();
    wait_for_own_thread();
    pid_t child = fork();
    if (child == 0) {
        expect(count_threads() == 1, "the child has a thread from the start");
        for (int i = 0; i < BLOCKS; i++) blocks[1][i] = malloc(BYTES);
        start_bursts(); /* two threads with heaps */
        wait_for_own_thread();
        end_bursts();
        _exit(0);
    }
    case_expect_success(child, 20);
    end_bursts();
}

/* The process ends with its last thread, hakmem's not counted. */
static void *burst_again(void *unused) {
    (void)unused;
    churn_once(1, 2000, 64 << 10);
    return NULL;
}
static void victim_main_leaves(const char *argument) {
    (void)argument;
    pthread_t thread;
    start_bursts();
    wait_for_own_thread();
    end_bursts();
    expect(pthread_create(&thread, NULL, burst_again, NULL) == 0, "no thread");
    pthread_detach(thread);
    pthread_exit(NULL);
}
static void run_main_leaves(void) {
    struct case_end end = case_watch("once");
    expect(WIFEXITED(end.status) && WEXITSTATUS(end.status) == 0, "wait status %#x; it said: %s", (unsigned)end.status,
           end.error);
}

static const struct hak_case cases[] = {
    {.name = "idle", .run = run_idle, .seconds = 60, .memory_mib = 1024},
    {.name = "trim", .run = run_trim, .seconds = 60, .memory_mib = 1024},
    {.name = "fork", .run = run_fork, .seconds = 60, .memory_mib = 1024},
    {.name = "main-leaves", .run = run_main_leaves, .seconds = 60, .memory_mib = 1024, .victim = victim_main_leaves},
};

CASE_MAIN(cases)
