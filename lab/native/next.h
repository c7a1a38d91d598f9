/* next: the allocator behind a library that is preloaded before it, and blocks for whoever calls while that is being found.
 * What is here is the including library's own. */
#ifndef LAB_NEXT_H
#define LAB_NEXT_H

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* All NULL until find_next has been called; `malloc` is found last. */
static struct {
    void *(*malloc)(size_t);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    void (*free)(void *);
    void *(*aligned_alloc)(size_t, size_t);
    void *(*memalign)(size_t, size_t);
    int (*posix_memalign)(void **, size_t, size_t);
    size_t (*malloc_usable_size)(void *);
} next;

static inline void find_next(void) {
    *(void **)&next.calloc = dlsym(RTLD_NEXT, "calloc");
    *(void **)&next.realloc = dlsym(RTLD_NEXT, "realloc");
    *(void **)&next.free = dlsym(RTLD_NEXT, "free");
    *(void **)&next.aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
    *(void **)&next.memalign = dlsym(RTLD_NEXT, "memalign");
    *(void **)&next.posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
    *(void **)&next.malloc_usable_size = dlsym(RTLD_NEXT, "malloc_usable_size");
    *(void **)&next.malloc = dlsym(RTLD_NEXT, "malloc");
}

/* True once it is found. The first call finds it, after `prepare`, which may be NULL; to calls meanwhile, by what that does and
 * by other threads, it is still missing. */
static inline bool find_next_once(void (*prepare)(void)) {
    static bool is_beginning;
    if (!next.malloc && !is_beginning) {
        is_beginning = true;
        if (prepare) {
            prepare();
        }
        find_next();
    }
    return next.malloc;
}

/* ---- Early blocks: given out once, never taken back -------------------------------------------------------------- */

enum { EARLY_BYTES = 16384, EARLY_UNIT = 16 };

static _Alignas(EARLY_UNIT) char early[EARLY_BYTES];
static size_t early_used;

static inline bool is_early(const void *block) { return (uintptr_t)block - (uintptr_t)early < EARLY_BYTES; }

/* The unit before a block holds its size. */
static inline size_t early_size(const void *block) {
    return *(const size_t *)(const void *)((const char *)block - EARLY_UNIT);
}

static inline void *early_allocate(size_t bytes) {
    if (bytes > EARLY_BYTES - 2 * EARLY_UNIT - early_used) {
        return NULL;
    }
    char *unit = early + early_used;
    *(size_t *)(void *)unit = bytes;
    early_used += EARLY_UNIT + (bytes + EARLY_UNIT - 1) / EARLY_UNIT * EARLY_UNIT;
    return unit + EARLY_UNIT;
}

/* realloc, for an early block, or while the next allocator is being found. */
static inline void *early_reallocate(void *block, size_t bytes) {
    size_t old_bytes = block ? early_size(block) : 0;
    void *copy = malloc(bytes);
    return copy && block ? memcpy(copy, block, old_bytes < bytes ? old_bytes : bytes) : copy;
}

/* ---- Functions that are others under another name ---------------------------------------------------------------- */

/* Of the including library: whether the next allocator has been found by now. */
static bool is_ready(void);

EXPORT void *reallocarray(void *block, size_t count, size_t bytes_each) {
    size_t bytes;
    if (__builtin_mul_overflow(count, bytes_each, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(block, bytes);
}

EXPORT void *valloc(size_t bytes) { return memalign((size_t)sysconf(_SC_PAGESIZE), bytes); }

EXPORT void *pvalloc(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return memalign(page, (bytes + page - 1) / page * page);
}

/* Of C23; the C library may not have them yet. */
EXPORT void free_sized(void *block, size_t bytes);
EXPORT void free_aligned_sized(void *block, size_t alignment, size_t bytes);

void free_sized(void *block, size_t bytes) {
    (void)bytes;
    free(block);
}

void free_aligned_sized(void *block, size_t alignment, size_t bytes) {
    (void)alignment;
    (void)bytes;
    free(block);
}

/* ---- operator new and delete, from C: the names are those of the C++ ABI ----------------------------------------- */

/* Where the next operator is that of the next allocator, it would not pass by malloc or free: the including library's own
 * are called in its place. Any other operator, of a C++ runtime or of a library of the program's, is called: it calls
 * malloc and free. Where there is none, its runtime is out of sight, and malloc and free are called. */
struct operator{
    const char *name;
    _Atomic bool is_found;
    bool is_elsewhere; /* not in the next allocator */
    void *next;
};

static inline bool is_elsewhere(struct operator* of) {
    if (!is_ready()) {
        return false;
    }
    if (!atomic_load_explicit(&of->is_found, memory_order_acquire)) {
        Dl_info own, of_malloc;
        of->next = dlsym(RTLD_NEXT, of->name);
        void *runtime = of->next ? NULL : dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD); /* that a plugin brought */
        if (runtime) {
            of->next = dlsym(runtime, of->name);
        }
        of->is_elsewhere = of->next && dladdr(of->next, &own) && dladdr(*(void **)&next.malloc, &of_malloc) &&
                           own.dli_fbase != of_malloc.dli_fbase;
        atomic_store_explicit(&of->is_found, true, memory_order_release); /* pairs with the acquire above */
    }
    return of->is_elsewhere;
}

/* Without memory, the next operator asks the program's handler and throws what it catches. */
#define OPERATOR_NEW(symbol, block_of_this, parameters, ...)                                                           \
    EXPORT void *symbol parameters;                                                                                    \
    void *symbol parameters {                                                                                          \
        static struct operator of = {.name = #symbol};                                                                 \
        void *block = is_elsewhere(&of) ? NULL : (block_of_this);                                                      \
        void *(*next_new)parameters;                                                                                   \
        *(void **)&next_new = of.next;                                                                                 \
        return block || !next_new ? block : next_new(__VA_ARGS__);                                                     \
    }

OPERATOR_NEW(_Znwm, malloc(bytes ? bytes : 1), (size_t bytes), bytes)
OPERATOR_NEW(_Znam, malloc(bytes ? bytes : 1), (size_t bytes), bytes)
OPERATOR_NEW(_ZnwmRKSt9nothrow_t, malloc(bytes ? bytes : 1), (size_t bytes, const void *tag), bytes, tag)
OPERATOR_NEW(_ZnamRKSt9nothrow_t, malloc(bytes ? bytes : 1), (size_t bytes, const void *tag), bytes, tag)
OPERATOR_NEW(_ZnwmSt11align_val_t, memalign(alignment, bytes ? bytes : 1), (size_t bytes, size_t alignment), bytes,
             alignment)
OPERATOR_NEW(_ZnamSt11align_val_t, memalign(alignment, bytes ? bytes : 1), (size_t bytes, size_t alignment), bytes,
             alignment)
OPERATOR_NEW(_ZnwmSt11align_val_tRKSt9nothrow_t, memalign(alignment, bytes ? bytes : 1),
             (size_t bytes, size_t alignment, const void *tag), bytes, alignment, tag)
OPERATOR_NEW(_ZnamSt11align_val_tRKSt9nothrow_t, memalign(alignment, bytes ? bytes : 1),
             (size_t bytes, size_t alignment, const void *tag), bytes, alignment, tag)

#define OPERATOR_DELETE(symbol, parameters, ...)                                                                       \
    EXPORT void symbol parameters;                                                                                     \
    void symbol parameters {                                                                                           \
        static struct operator of = {.name = #symbol};                                                                 \
        if (!is_elsewhere(&of) || is_early(block)) {                                                                   \
            free(block);                                                                                               \
            return;                                                                                                    \
        }                                                                                                              \
        void(*next_delete) parameters;                                                                                 \
        *(void **)&next_delete = of.next;                                                                              \
        next_delete(__VA_ARGS__);                                                                                      \
    }

OPERATOR_DELETE(_ZdlPv, (void *block), block)
OPERATOR_DELETE(_ZdaPv, (void *block), block)
OPERATOR_DELETE(_ZdlPvm, (void *block, size_t bytes), block, bytes)
OPERATOR_DELETE(_ZdaPvm, (void *block, size_t bytes), block, bytes)
OPERATOR_DELETE(_ZdlPvRKSt9nothrow_t, (void *block, const void *tag), block, tag)
OPERATOR_DELETE(_ZdaPvRKSt9nothrow_t, (void *block, const void *tag), block, tag)
OPERATOR_DELETE(_ZdlPvSt11align_val_t, (void *block, size_t alignment), block, alignment)
OPERATOR_DELETE(_ZdaPvSt11align_val_t, (void *block, size_t alignment), block, alignment)
OPERATOR_DELETE(_ZdlPvmSt11align_val_t, (void *block, size_t bytes, size_t alignment), block, bytes, alignment)
OPERATOR_DELETE(_ZdaPvmSt11align_val_t, (void *block, size_t bytes, size_t alignment), block, bytes, alignment)
OPERATOR_DELETE(_ZdlPvSt11align_val_tRKSt9nothrow_t, (void *block, size_t alignment, const void *tag), block, alignment,
                tag)
OPERATOR_DELETE(_ZdaPvSt11align_val_tRKSt9nothrow_t, (void *block, size_t alignment, const void *tag), block, alignment,
                tag)

EXPORT size_t malloc_usable_size(void *block) {
    if (is_early(block)) {
        return early_size(block);
    }
    return block && is_ready() ? next.malloc_usable_size(block) : 0;
}

#endif
