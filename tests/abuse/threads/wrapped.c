/* libc wrapped: by functions that allocate, and hold a lock meanwhile that can't be taken twice, as tools do that
 * keep records of what a program maps, starts and loads. On the C library's malloc they work, because it never calls
 * them; so they have to here. What takes memory away is called (docs/decisions/0074): there a wrapper may allocate,
 * without its lock. Who waits for himself runs out of time. */
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "../case.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint calls;

static void use_heap(void) {
    void *records[40];
    free(malloc(100000)); /* which looks at the time */
    for (int i = 0; i < 40; i++) records[i] = malloc((size_t)16 << i % 8);
    for (int i = 0; i < 40; i++) free(records[i]);
    atomic_fetch_add(&calls, 1);
}

static void use_heap_locked(void) {
    pthread_mutex_lock(&lock);
    use_heap();
    pthread_mutex_unlock(&lock);
}

static void *next(const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    expect(function != NULL, "%s", name);
    return function;
}

/* What libc's own does. */
#define DIRECTLY(...) (((long (*)(long, ...))next("syscall"))(__VA_ARGS__))

long syscall(long number, ...) {
    long arguments[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) arguments[i] = va_arg(rest, long);
    va_end(rest);
    use_heap_locked();
    return DIRECTLY(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    use_heap_locked();
    return (int)DIRECTLY(SYS_clock_gettime, clock, time);
}

void *mmap(void *start, size_t bytes, int protection, int flags, int descriptor, off_t offset) {
    use_heap_locked();
    return (void *)DIRECTLY(SYS_mmap, start, bytes, protection, flags, descriptor, offset);
}

int mprotect(void *start, size_t bytes, int protection) {
    use_heap_locked();
    return (int)DIRECTLY(SYS_mprotect, start, bytes, protection);
}

int munmap(void *start, size_t bytes) {
    use_heap();
    return (int)DIRECTLY(SYS_munmap, start, bytes);
}

int madvise(void *start, size_t bytes, int advice) {
    use_heap();
    return (int)DIRECTLY(SYS_madvise, start, bytes, advice);
}

void *mremap(void *start, size_t old_bytes, size_t new_bytes, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    void *target = (flags & MREMAP_FIXED) != 0 ? va_arg(rest, void *) : NULL;
    va_end(rest);
    use_heap();
    return (void *)DIRECTLY(SYS_mremap, start, old_bytes, new_bytes, flags, target);
}

int pthread_key_create(pthread_key_t *key, void (*destroy)(void *)) {
    int (*real)(pthread_key_t *, void (*)(void *)) = (__typeof__(real))next("pthread_key_create");
    use_heap_locked();
    return real(key, destroy);
}

int pthread_setspecific(pthread_key_t key, const void *value) {
    int (*real)(pthread_key_t, const void *) = (__typeof__(real))next("pthread_setspecific");
    use_heap();
    return real(key, value);
}

void *dlopen(const char *name, int flags) {
    void *(*real)(const char *, int) = (__typeof__(real))next("dlopen");
    use_heap_locked();
    return real(name, flags);
}

pid_t fork(void) {
    pid_t (*real)(void) = (__typeof__(real))next("fork");
    use_heap_locked();
    return real();
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        (__typeof__(real))next("pthread_create");
    use_heap_locked();
    return real(thread, attributes, run, argument);
}

/* ---- Cases ------------------------------------------------------------------------------------------------------ */

enum { BLOCKS = 4000, LARGE_BYTES = 48 << 20 };

/* Small and large blocks, so many that hakmem maps, moves, trims and unmaps. */
static void use_all(void) {
    static __thread void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc((size_t)16 + i * 8), i, 16);
    void *large = calloc(1, LARGE_BYTES), *moved = realloc(large, 2 * (size_t)LARGE_BYTES);
    expect(large != NULL && moved != NULL, "no memory");
    free(moved);
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    malloc_trim(0);
}

static void *use_all_in_thread(void *nothing) {
    pthread_key_t key;
    expect(pthread_key_create(&key, NULL) == 0 && pthread_setspecific(key, &key) == 0, "no key");
    use_all();
    return nothing;
}

static void run_grow(void) {
    use_all();
    void *mapped = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(mprotect(mapped, 1 << 20, PROT_READ) == 0 && madvise(mapped, 1 << 20, MADV_DONTNEED) == 0, "errno %d",
           errno);
    expect(munmap(mapped, 1 << 20) == 0, "errno %d", errno);
    expect(syscall(SYS_getpid) == getpid(), "errno %d", errno);
    expect(atomic_load(&calls) > 5, "nothing is wrapped");
}

static void run_threads(void) {
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        expect(pthread_create(&threads[i], NULL, use_all_in_thread, NULL) == 0, "no thread");
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    use_all();
}

static void run_fork(void) {
    for (int i = 0; i < 6; i++) {
        pid_t child = fork();
        if (child == 0) {
            case_bound_time(30);
            run_threads();
            _exit(0);
        }
        case_expect_success(child, 30);
    }
}

static void run_load(void) {
    for (int i = 0; i < 20; i++) {
        void *library = dlopen("libm.so.6", RTLD_NOW);
        use_all();
        if (library != NULL) dlclose(library);
    }
}

static const struct hak_case cases[] = {
    {"grow", run_grow, 60, 1024, NULL, false},
    {"threads", run_threads, 60, 2048, NULL, false},
    {"fork", run_fork, 100, 2048, NULL, false},
    {"load", run_load, 60, 1024, NULL, false},
};

CASE_MAIN(cases)
