/* BenchFast: an allocator that does almost nothing, as a ceiling for those that do their work.
 *
 * Built as libbenchfast.so and preloaded like any other. What a benchmark program reaches on it is what the program
 * itself, its touches and the machine allow. fast_test.c and fast_path.py pin down that it does no more than this:
 *
 *     malloc   the block of its class that this thread freed last; if there is none, the one after the class's newest
 *     free     one more block to take
 *
 * Nothing is checked, given back, written into blocks, or read from them. Each class has a region of address space, so
 * that a block's class is a part of its address. A thread bumps through a chunk per class, and chunks of a region
 * follow each other. It keeps the blocks it frees on stacks, a page of pointers each: the top one, and one below, full
 * or empty. Full pages beyond that are shared, so that a thread that only frees feeds one that only allocates; they
 * are stacked too. The cache of a thread that ended is the next one's.
 *
 * Classes: n + 1 for blocks of 16 n bytes up to 1 KiB, then four to a doubling, up to 4 GiB. Class 1 is for malloc(0);
 * class 0 is that of NULL, and has no blocks.
 *
 * Invariants:
 *   C1  blocks are aligned to their size where that is a power of two, and to 16 bytes anyway;
 *   C2  the first slot of a page of pointers is NULL while a thread has it; the top is the newest block, or that slot;
 *   C3  a class without a page has its top at the end of a page of NULLs: no block to take, no room for one.
 */
#define _GNU_SOURCE

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    LINEAR_MAX_BITS = 10,
    LINEAR_CLASSES = (1 << LINEAR_MAX_BITS) / 16 + 2,
    MAX_BITS = 32,
    TOO_LARGE = LINEAR_CLASSES + (MAX_BITS - LINEAR_MAX_BITS) * 4, /* the class of larger blocks has room for none */
    CLASS_COUNT,
    REGION_COUNT = 256,
    REGION_BITS = 35,
    PAGE_BYTES = 4096, /* of a page of pointers */
    PAGE_SLOTS = PAGE_BYTES / sizeof(void *),
    CHUNK_BYTES = 64 << 10
};

_Static_assert(CLASS_COUNT <= REGION_COUNT, "every class has a region");

struct cache {
    void **tops[CLASS_COUNT];
    void **others[CLASS_COUNT];   /* the top of the page below: its first slot, or its last; NULL: there is none */
    uintptr_t bumps[CLASS_COUNT]; /* bumps[i] <= limits[i]: what lies between was never handed out */
    uintptr_t limits[CLASS_COUNT];
    struct cache *home; /* where it is left at the end of the thread; NULL: the thread has no cache yet */
    struct cache *next; /* of those that were left */
};

static _Alignas(PAGE_BYTES) void *nulls[PAGE_SLOTS];
#define NO_PAGE (nulls + PAGE_SLOTS - 1)
#define NO_CACHE                                                                                                       \
    {                                                                                                                  \
        .tops = { [0 ... CLASS_COUNT - 1] = NO_PAGE }                                                                  \
    } /* C3 */

static const struct cache no_cache = NO_CACHE;
static _Thread_local struct cache cache = NO_CACHE;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cache *left; /* of threads that ended; lock */
static void **empty_pages; /* first slots, each with a pointer to the next; lock */
static _Atomic(void **)
    full_pages[CLASS_COUNT]; /* the same; written with the lock held, and read to see if there is any */

static uintptr_t heap;                              /* where the regions begin, 0: not yet; lock, or who has a cache */
static pthread_key_t at_exit;                       /* as heap */
static _Atomic(uintptr_t) region_ends[CLASS_COUNT]; /* where the next chunk begins */

/* ---- Classes --------------------------------------------------------------------------------------------------- */

/* Above 1 KiB: by the highest bit of the offset of the last byte, and the two bits below it. */
static inline size_t class_of_size(size_t size) {
    if (__builtin_expect(size <= 1 << LINEAR_MAX_BITS, 1)) {
        return (size + 15) / 16 + 1;
    }
    if (size > (size_t)1 << MAX_BITS) {
        return TOO_LARGE;
    }
    unsigned highest = 63 - (unsigned)__builtin_clzll(size - 1);
    return LINEAR_CLASSES + (highest - LINEAR_MAX_BITS) * 4 + ((size - 1) >> (highest - 2) & 3);
}

static inline size_t class_of_block(const void *block) { return (uintptr_t)block >> REGION_BITS & (REGION_COUNT - 1); }

static size_t bytes_of_class(size_t number) {
    if (number < LINEAR_CLASSES) {
        return number > 1 ? (number - 1) * 16 : 16;
    }
    size_t step = number - LINEAR_CLASSES;
    return number < TOO_LARGE ? (5 + step % 4) << (LINEAR_MAX_BITS - 2 + step / 4) : (size_t)2 << REGION_BITS;
}

/* ---- Caches ---------------------------------------------------------------------------------------------------- */

static void *reserve(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* At the end of a thread. */
static void leave(void *home) {
    memcpy(home, &cache, sizeof cache);
    memcpy(&cache, &no_cache, sizeof cache);
    struct cache *own = home;
    pthread_mutex_lock(&lock);
    own->next = left;
    left = own;
    pthread_mutex_unlock(&lock);
}

/* The regions, aligned to all of their size, so that the class is in the same bits of every address. */
static bool reserve_heap(void) {
    size_t bytes = (size_t)REGION_COUNT << REGION_BITS;
    uintptr_t memory = (uintptr_t)reserve(2 * bytes);
    if (memory == 0 || pthread_key_create(&at_exit, leave) != 0) {
        return false;
    }
    heap = (memory + bytes - 1) & ~(uintptr_t)(bytes - 1);
    for (size_t i = 0; i < CLASS_COUNT; i++) {
        atomic_store_explicit(&region_ends[i], heap + (i << REGION_BITS), memory_order_relaxed);
    }
    return true;
}

/* Memory of a region's that was never handed out; 0 when it has no more. */
static uintptr_t carve(size_t number, size_t bytes) {
    uintptr_t start = atomic_fetch_add_explicit(&region_ends[number], bytes, memory_order_relaxed);
    return start + bytes <= heap + ((number + 1) << REGION_BITS) ? start : 0;
}

static uintptr_t carve_block(size_t size) {
    size_t number = class_of_size(size);
    return carve(number, bytes_of_class(number));
}

/* False when there is no address space left. */
static bool attach(void) {
    pthread_mutex_lock(&lock);
    bool ready = heap != 0 || reserve_heap();
    struct cache *home = left;
    left = home ? home->next : NULL;
    pthread_mutex_unlock(&lock);
    if (home) {
        memcpy(&cache, home, sizeof cache);
    } else {
        home = ready ? (struct cache *)carve_block(sizeof *home) : NULL;
        cache.home = home;
    }
    return home && pthread_setspecific(at_exit, home) == 0;
}

/* ---- Pages of pointers ----------------------------------------------------------------------------------------- */

static bool is_full(void **top) { return (uintptr_t)(top + 1) % PAGE_BYTES == 0; }

static void **first_slot(void **top) { return (void **)((uintptr_t)top & ~(uintptr_t)(PAGE_BYTES - 1)); }

static void **take_empty_page(void) {
    pthread_mutex_lock(&lock);
    void **page = empty_pages;
    empty_pages = page ? *page : NULL;
    pthread_mutex_unlock(&lock);
    page = page ? page : (void **)carve_block(PAGE_BYTES);
    if (page) {
        *page = NULL; /* C2 */
    }
    return page;
}

static void share_full_page(size_t number, void **page) {
    pthread_mutex_lock(&lock);
    *page = atomic_load_explicit(&full_pages[number], memory_order_relaxed);
    atomic_store_explicit(&full_pages[number], page, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
}

/* NULL when another thread was faster. */
static void **take_full_page(size_t number) {
    pthread_mutex_lock(&lock);
    void **page = atomic_load_explicit(&full_pages[number], memory_order_relaxed);
    if (page) {
        atomic_store_explicit(&full_pages[number], *page, memory_order_relaxed);
        *page = NULL; /* C2 */
    }
    pthread_mutex_unlock(&lock);
    return page;
}

static void give_empty_page(void **page) {
    pthread_mutex_lock(&lock);
    *page = empty_pages;
    empty_pages = page;
    pthread_mutex_unlock(&lock);
}

/* ---- Slow paths ------------------------------------------------------------------------------------------------ */

static void *pop(size_t number) {
    void **top = cache.tops[number];
    cache.tops[number] = top - 1;
    return *top;
}

/* A full page takes the place of the top one, which is empty. */
static void *pop_from(void **full, size_t number) {
    void **empty = cache.tops[number];
    void **other = cache.others[number];
    cache.tops[number] = full;
    cache.others[number] = empty != NO_PAGE ? empty : NULL;
    if (other && other != full) {
        give_empty_page(other);
    }
    return pop(number);
}

/* Nothing is left of the chunk. */
static __attribute__((noinline)) void *take_chunk(size_t number) {
    size_t bytes = bytes_of_class(number);
    if (!cache.home) {
        return attach() ? malloc(bytes) : NULL;
    }
    size_t chunk_bytes = bytes < CHUNK_BYTES ? CHUNK_BYTES / bytes * bytes : bytes;
    uintptr_t chunk = carve(number, chunk_bytes);
    if (chunk == 0) {
        errno = ENOMEM;
        return NULL;
    }
    cache.bumps[number] = chunk + bytes;
    cache.limits[number] = chunk + chunk_bytes;
    return (void *)chunk;
}

/* The top page is empty. */
static __attribute__((noinline)) void *malloc_without_block(size_t number) {
    void **other = cache.others[number];
    if (other && is_full(other)) {
        return pop_from(other, number);
    }
    if (atomic_load_explicit(&full_pages[number], memory_order_relaxed)) {
        void **page = take_full_page(number);
        if (page) {
            return pop_from(page + PAGE_SLOTS - 1, number);
        }
    }
    uintptr_t block = cache.bumps[number];
    if (__builtin_expect(block == cache.limits[number], 0)) {
        return take_chunk(number);
    }
    cache.bumps[number] = block + bytes_of_class(number);
    return (void *)block;
}

/* The top page is full. A block that no page can be had for is lost. */
static __attribute__((noinline)) void free_without_slot(void *block) {
    size_t number = class_of_block(block);
    if (!block) {
        return;
    }
    if (!cache.home) {
        if (attach()) {
            free(block);
        }
        return;
    }
    void **full = cache.tops[number];
    void **empty = cache.others[number];
    if (empty && is_full(empty)) {
        share_full_page(number, first_slot(empty));
        empty = NULL;
    }
    empty = empty ? empty : take_empty_page();
    if (empty) {
        cache.others[number] = full != NO_PAGE ? full : NULL;
        cache.tops[number] = empty + 1;
        empty[1] = block;
    }
}

/* ---- The interface --------------------------------------------------------------------------------------------- */

void *malloc(size_t size) {
    size_t number = class_of_size(size);
    void **top = cache.tops[number];
    void *block = *top;
    if (__builtin_expect(block != NULL, 1)) {
        cache.tops[number] = top - 1;
        return block;
    }
    return malloc_without_block(number);
}

void free(void *block) {
    size_t number = class_of_block(block);
    void **slot = cache.tops[number] + 1;
    if (__builtin_expect((uintptr_t)slot % PAGE_BYTES != 0, 1)) {
        *slot = block;
        cache.tops[number] = slot;
    } else {
        free_without_slot(block);
    }
}

void *calloc(size_t count, size_t size) {
    size_t bytes;
    void *block = __builtin_mul_overflow(count, size, &bytes) ? NULL : malloc(bytes);
    return block ? memset(block, 0, bytes) : NULL;
}

size_t malloc_usable_size(void *block) { return block ? bytes_of_class(class_of_block(block)) : 0; }

/* A block stays where it is as long as it is large enough. */
void *realloc(void *old, size_t size) {
    size_t old_bytes = malloc_usable_size(old);
    if (old && size <= old_bytes) {
        return old;
    }
    void *block = malloc(size);
    if (old && block) {
        memcpy(block, old, old_bytes);
        free(old);
    }
    return block;
}

/* The next power of two has a class of its own: C1. */
void *memalign(size_t alignment, size_t size) {
    size_t bytes = alignment;
    while (bytes < size && bytes != 0) {
        bytes *= 2;
    }
    return bytes != 0 ? malloc(bytes) : NULL;
}

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **block, size_t alignment, size_t size) {
    void *found = memalign(alignment, size);
    *block = found ? found : *block;
    return found ? 0 : ENOMEM;
}
