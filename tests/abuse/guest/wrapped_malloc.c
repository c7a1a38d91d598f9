/* A program, or a tool in it, that wraps malloc and its kin, and holds a lock while it calls hakmem's: libc calls the
 * wrapper, too, also where hakmem has called libc. */
#include "../../api/expect.h"

#include <dlfcn.h>
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(function)                                                                                                 \
    static __typeof__(function) *real;                                                                                 \
    if (real == NULL) real = (__typeof__(function) *)dlsym(RTLD_NEXT, #function)

void *malloc(size_t size) {
    REAL(malloc);
    pthread_mutex_lock(&lock);
    void *block = real(size);
    pthread_mutex_unlock(&lock);
    return block;
}

void *calloc(size_t count, size_t size) {
    REAL(calloc);
    pthread_mutex_lock(&lock);
    void *block = real(count, size);
    pthread_mutex_unlock(&lock);
    return block;
}

void *realloc(void *old, size_t size) {
    REAL(realloc);
    pthread_mutex_lock(&lock);
    void *block = real(old, size);
    pthread_mutex_unlock(&lock);
    return block;
}

void free(void *block) {
    REAL(free);
    pthread_mutex_lock(&lock);
    real(block);
    pthread_mutex_unlock(&lock);
}

/* Grows to some ten MiB with two threads or three at a time, and gives them back. */
static void *work(void *unused) {
    enum { BLOCKS = 5000 };
    static _Thread_local void *blocks[BLOCKS];
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < BLOCKS; i++) {
            blocks[i] = realloc(malloc(i + 1), 2 * i + 2);
            EXPECT(blocks[i] != NULL, "no memory");
            memset(blocks[i], 1, 2 * i + 2);
        }
        for (size_t i = 0; i < BLOCKS; i++) free(blocks[i]);
    }
    return unused;
}

int main(void) {
    size_t before = resident_bytes();
    for (int i = 0; i < 10; i++) {
        pthread_t threads[2];
        for (int j = 0; j < 2; j++) EXPECT(pthread_create(&threads[j], NULL, work, NULL) == 0, "no thread");
        for (int j = 0; j < 2; j++) pthread_join(threads[j], NULL);
    }
    work(NULL);
    size_t after = resident_bytes();
    EXPECT(after < before + 64 * MIB, "%zu MiB resident", after / MIB);
    return 0;
}
