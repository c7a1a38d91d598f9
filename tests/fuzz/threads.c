#include "threads.h"

#ifdef FUZZ_THREADS_WRAPPED

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_PASSAGES = 64, NAP_US = 100, MOST_NAPS = 10000 };

/* A thread that begins: from before pthread_create until that has returned, and the thread's own function runs. One that
 * takes a name: while it calls prctl. Or one that ends: from the end of its function until the kernel has it no more. */
struct passage {
    int left;     /* who still is at it; 0: nobody has it */
    pid_t ending; /* the thread; 0: none */
    void *(*run)(void *);
    void *argument;
};

static struct passage passages[MOST_PASSAGES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int is_over(struct passage *passage) {
    if (passage->ending != 0 && syscall(SYS_tgkill, getpid(), passage->ending, 0) != 0 && errno == ESRCH)
        *passage = (struct passage){0};
    return passage->left == 0;
}

/* One that is over; NULL when none is. */
static struct passage *find(void) {
    for (unsigned i = 0; i < MOST_PASSAGES; i++)
        if (is_over(&passages[i])) return &passages[i];
    return NULL;
}

static struct passage *begin(const struct passage *how) {
    for (;;) {
        pthread_mutex_lock(&lock);
        struct passage *passage = find();
        if (passage != NULL) *passage = *how;
        pthread_mutex_unlock(&lock);
        if (passage != NULL) return passage;
        sched_yield();
    }
}

static void leave(struct passage *passage) {
    pthread_mutex_lock(&lock);
    passage->left--;
    pthread_mutex_unlock(&lock);
}

static void *run(void *argument) {
    struct passage *passage = argument, own = *passage;
    leave(passage);
    void *result = own.run(own.argument);
    begin(&(struct passage){.left = 1, .ending = (pid_t)syscall(SYS_gettid)});
    return result;
}

int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *),
                          void *argument) {
    struct passage *passage = begin(&(struct passage){.left = 2, .run = function, .argument = argument});
    int error = __real_pthread_create(thread, attributes, run, passage);
    if (error != 0) leave(passage); /* for the thread */
    leave(passage);
    return error;
}

int __real_prctl(int, ...);
int __wrap_prctl(int, ...);

/* For a name. Reads four words, whatever the caller gave. */
__attribute__((no_sanitize_address)) int __wrap_prctl(int option, ...) {
    unsigned long words[4];
    va_list arguments;
    va_start(arguments, option);
    for (int i = 0; i < 4; i++) words[i] = va_arg(arguments, unsigned long);
    va_end(arguments);
    struct passage *passage = begin(&(struct passage){.left = 1});
    int result = __real_prctl(option, words[0], words[1], words[2], words[3]);
    leave(passage);
    return result;
}

static int is_any_at_it(void) {
    int is_any = 0;
    for (unsigned i = 0; i < MOST_PASSAGES; i++) is_any |= !is_over(&passages[i]);
    return is_any;
}

int threads_hold(void) {
    for (unsigned naps = 0; naps < MOST_NAPS; naps++) {
        pthread_mutex_lock(&lock);
        if (!is_any_at_it()) return 1;
        pthread_mutex_unlock(&lock);
        usleep(NAP_US);
    }
    return 0;
}

void threads_let(void) { pthread_mutex_unlock(&lock); }

#else

int threads_hold(void) { return 1; }
void threads_let(void) {}

#endif
