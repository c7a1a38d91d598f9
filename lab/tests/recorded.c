/* What test_trace.py has recorded: calls that are known one by one. Sizes above 10,000,000 tell where in a trace they
 * are. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MARK = 10000000 };

static void mark(int number) { free(malloc(MARK + number)); }

static void every_function(void) {
    void *aligned;
    void *a = malloc(100);
    void *b = calloc(3, 7);
    a = realloc(a, 5000);
    void *c = aligned_alloc(64, 128);
    if (posix_memalign(&aligned, 256, 33) != 0) {
        abort();
    }
    free(b);
    void *d = memalign(32, 48);
    void *e = realloc(NULL, 77);
    void *f = reallocarray(NULL, 4, 6);
    f = reallocarray(f, 1, 6);
    if (realloc(e, 0) || realloc(d, SIZE_MAX / 4) || malloc(SIZE_MAX / 4) || calloc(SIZE_MAX, 16)) {
        abort();
    }
    free(NULL);
    void *pages = valloc(10);
    void *g = pvalloc(4097);
    void *zero = malloc(0);
    void *all[] = {a, aligned, c, d, f, pages, g, zero};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]);
    }
}

/* Two threads take turns: one gets a block, the other gives it back. */
enum { PASSED_COUNT = 500 };
static sem_t filled, emptied;
static void *passed;

static void *give_back(void *unused) {
    for (int i = 0; i < PASSED_COUNT; i++) {
        sem_wait(&filled);
        free(passed);
        sem_post(&emptied);
    }
    return unused;
}

static void pass_blocks(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, give_back, NULL);
    mark(0);
    for (int i = 0; i < PASSED_COUNT; i++) {
        passed = malloc(1000);
        sem_post(&filled);
        sem_wait(&emptied);
    }
    mark(1);
    pthread_join(thread, NULL);
}

/* Threads exchange blocks of one size as fast as they can: an address goes from hand to hand. They wait for each other
 * now and then, so that none is done before the others begin. */
enum { STORM_COUNT = 2000, STORM_THREAD_COUNT = 4, SLOT_COUNT = 8 };
static _Atomic(void *) slots[SLOT_COUNT];
static pthread_barrier_t all_there;

static void *storm(void *seed) {
    uint32_t random = (uint32_t)(uintptr_t)seed;
    for (int i = 0; i < STORM_COUNT; i++) {
        random = random * 1664525 + 1013904223;
        _Atomic(void *) *slot = &slots[random >> 29];
        void *block = random & 4096 ? calloc(1, 64) : realloc(atomic_exchange(slot, NULL), 64);
        free(atomic_exchange(slot, block));
        if (i % 20 == 0) {
            pthread_barrier_wait(&all_there);
        }
    }
    return NULL;
}

static void run_threads(void *(*body)(void *), uintptr_t count, uintptr_t at_once) {
    pthread_t threads[8];
    for (uintptr_t i = 0; i < count; i += at_once) {
        for (uintptr_t j = 0; j < at_once; j++) {
            pthread_create(&threads[j], NULL, body, (void *)(i + j + 1));
        }
        for (uintptr_t j = 0; j < at_once; j++) {
            pthread_join(threads[j], NULL);
        }
    }
}

static void *one_call(void *number) {
    mark((int)(uintptr_t)number);
    return NULL;
}

/* Its second call comes when the file is full already. */
static void *call_early_and_late(void *unused) {
    mark(0);
    sem_post(&filled);
    sem_wait(&emptied);
    mark(1);
    return unused;
}

static void allocate(int count) {
    for (int i = 0; i < count; i++) {
        *(volatile char *)malloc(16 + i % 100) = 1;
    }
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    if (strcmp(what, "every_function") == 0) {
        mark(0);
        every_function();
        mark(1);
    } else if (strcmp(what, "pass_blocks") == 0) {
        pass_blocks();
    } else if (strcmp(what, "storm") == 0) {
        pthread_barrier_init(&all_there, NULL, STORM_THREAD_COUNT);
        run_threads(storm, STORM_THREAD_COUNT, STORM_THREAD_COUNT);
    } else if (strcmp(what, "many_threads") == 0) {
        run_threads(one_call, 300, 1);
    } else if (strcmp(what, "killed") == 0) {
        for (int file = 3; file < 100; file++) {
            close(file);
        }
        allocate(10000);
        mark(0);
        kill(getpid(), SIGKILL);
    } else if (strcmp(what, "leaves_at_once") == 0) {
        mark(0);
        _exit(3);
    } else if (strcmp(what, "waits") == 0) {
        mark(0);
        close(creat(words[2], 0600));
        for (int i = 0; i < 30000 && access(words[3], F_OK) != 0; i++) {
            usleep(10000);
        }
        allocate(10000);
    } else if (strcmp(what, "forks") == 0) {
        mark(0);
        pid_t child = fork();
        mark(child ? 1 : 2);
        if (child) {
            waitpid(child, NULL, 0);
            mark(3);
        } else {
            free(malloc(20000));
        }
    } else if (strcmp(what, "becomes") == 0) {
        mark(0);
        words[1] = words[2];
        words[2] = NULL;
        execv("/proc/self/exe", words);
    } else if (strcmp(what, "many_blocks") == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, call_early_and_late, NULL);
        sem_wait(&filled);
        allocate(500000);
        sem_post(&emptied);
        pthread_join(thread, NULL);
    }
    return 0;
}
