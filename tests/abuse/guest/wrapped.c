/* A program, or a tool in it, that wraps pthread_create: what hakmem does in a malloc must not come back to it.
 *
 *     guest_wrapped CASE */
#include "../../api/expect.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

typedef int create_function(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool holds_lock, allocates, takes_long;
static int error_for_others; /* given to all who are not the program */
static _Thread_local bool is_programs;
static _Atomic int others;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    static create_function *real;
    if (real == NULL) real = (create_function *)dlsym(RTLD_NEXT, "pthread_create");
    if (!is_programs) others++;
    if (!is_programs && error_for_others != 0) return error_for_others;
    if (holds_lock) pthread_mutex_lock(&lock);
    if (allocates)
        for (int i = 0; i < 4; i++) *(volatile char *)malloc(MIB) = 1; /* kept: records of threads */
    if (takes_long) nanosleep(&(struct timespec){0, 20000000}, NULL);
    int error = real(thread, attributes, run, argument);
    if (holds_lock) pthread_mutex_unlock(&lock);
    return error;
}

static void *work(void *unused) {
    for (int i = 0; i < 20; i++) {
        void *block = calloc(1, 64 * KIB);
        EXPECT(block != NULL, "no memory");
        if (i % 2 == 0) free(block);
    }
    return unused;
}

/* Grows to some hundred MiB, with two threads or three at a time: hakmem's own are due all the while. */
static void run_threads(void) {
    for (int i = 0; i < 100; i++) {
        pthread_t threads[2];
        for (int j = 0; j < 2; j++) {
            is_programs = true;
            EXPECT(pthread_create(&threads[j], NULL, work, NULL) == 0, "no thread");
            is_programs = false;
            work(NULL);
        }
        for (int j = 0; j < 2; j++) pthread_join(threads[j], NULL);
    }
    EXPECT(others == 0, "the wrapper was called %d times by somebody else", others);
}

static void allocating(void) {
    allocates = true;
    run_threads();
}
static void locking(void) {
    holds_lock = allocates = true;
    run_threads();
}
static void taking_long(void) {
    holds_lock = allocates = takes_long = true;
    run_threads();
}
static void failing(void) {
    error_for_others = EAGAIN;
    run_threads();
}

/* Threads that end and are joined under the wrapper's lock. */
static void joining(void) {
    holds_lock = allocates = true;
    for (int i = 0; i < 100; i++) {
        pthread_t thread;
        is_programs = true;
        EXPECT(pthread_create(&thread, NULL, work, NULL) == 0, "no thread");
        is_programs = false;
        pthread_mutex_lock(&lock);
        work(NULL);
        pthread_join(thread, NULL);
        pthread_mutex_unlock(&lock);
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"allocates", allocating},
                                             {"locks", locking},
                                             {"takes_long", taking_long},
                                             {"fails", failing},
                                             {"joins", joining}};
    return run_case(argc, argv, cases, COUNT_OF(cases), 50);
}
