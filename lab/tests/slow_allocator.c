/* An allocator that is easy to catch: one list of blocks for all threads, the one freed last is the next to be
 * returned, and malloc and free linger on their way out. calloc and realloc call malloc as a program does. */
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK_BYTES = 256, POOL_BYTES = 64 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Alignas(16) char pool[POOL_BYTES];
static size_t used;
static void *list;
static unsigned call_count;

void *malloc(size_t bytes);
void free(void *block);
void *calloc(size_t count, size_t bytes_each);
void *realloc(void *block, size_t bytes);

static void linger(void) {
    if (++call_count % 4 == 0) {
        usleep(1);
    }
}

void *malloc(size_t bytes) {
    pthread_mutex_lock(&lock);
    void *block = list;
    if (bytes <= BLOCK_BYTES && block) {
        list = *(void **)block;
    } else {
        block = pool + used;
        used += bytes <= BLOCK_BYTES ? BLOCK_BYTES : (bytes + 15) & ~(size_t)15;
    }
    pthread_mutex_unlock(&lock);
    linger();
    return block;
}

/* Blocks of more than BLOCK_BYTES are not used for more than that again. */
void free(void *block) {
    if (block) {
        pthread_mutex_lock(&lock);
        *(void **)block = list;
        list = block;
        pthread_mutex_unlock(&lock);
        linger();
    }
}

void *calloc(size_t count, size_t bytes_each) { return memset(malloc(count * bytes_each), 0, count * bytes_each); }

void *realloc(void *block, size_t bytes) {
    void *moved = malloc(bytes);
    if (block) {
        memcpy(moved, block, bytes < BLOCK_BYTES ? bytes : BLOCK_BYTES);
        free(block);
    }
    return moved;
}
