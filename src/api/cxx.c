/* operator new and delete, all forms up to C++17, from C: the names below are what the C++ ABI calls them on machines
 * where size_t is unsigned long. The library does not link to a C++ runtime; if the program has one, its new-handler is
 * asked and its bad_alloc is thrown. */
#include <errno.h>
#include <stdlib.h>

#include "api/override.h"
#include "front/front.h"
#include "observe/stack.h"

#ifndef HAK_NO_OVERRIDE

_Static_assert(sizeof(size_t) == sizeof(unsigned long), "the letter m in the names");

/* std::get_new_handler() and std::__throw_bad_alloc(), NULL without a C++ runtime. */
extern void (*_ZSt15get_new_handlerv(void))(void) __attribute__((weak));
extern void _ZSt17__throw_bad_allocv(void) __attribute__((weak));

/* api/new_handler.cpp: true when the handler returned, false when it threw. */
bool hak_call_new_handler(void (*handler)(void));

/* The first try has failed. Asks the new-handler for memory until there is some or it gives up, by throwing or by not
 * being there. `alignment` is 0 for none in particular. */
static HAK_COLD void *new_failed(size_t size, size_t alignment, bool may_throw) {
    for (;;) {
        void (*handler)(void) = _ZSt15get_new_handlerv == NULL ? NULL : _ZSt15get_new_handlerv();
        if (handler == NULL) break;
        if (may_throw) handler();
        else if (!hak_call_new_handler(handler)) return NULL;
        void *block = alignment == 0 ? hak_malloc(size) : hak_aligned_alloc(alignment, size);
        if (block != NULL) return block;
    }
    if (!may_throw) return NULL;
    if (_ZSt17__throw_bad_allocv != NULL) _ZSt17__throw_bad_allocv();
    abort();
}

static HAK_COLD void *new_missed(size_t size, bool may_throw) {
    HAK_WALKABLE();
    void *block = hak_front_alloc_miss(size, HAK_CALLER()); /* new_missed is a last act */
    return HAK_LIKELY(block != NULL) ? block : new_failed(size, 0, may_throw);
}

HAK_INLINE void *new_block(size_t size, bool may_throw) {
    void *block = hak_front_take(size);
    return HAK_LIKELY(block != NULL) ? block : new_missed(size, may_throw);
}

static void *new_aligned(size_t size, size_t alignment, bool may_throw) {
    HAK_WALKABLE();
    void *block = hak_aligned_alloc(alignment, size);
    return HAK_LIKELY(block != NULL) ? block : new_failed(size, alignment, may_throw);
}

struct nothrow; /* std::nothrow_t, passed by reference and never looked at */

static void *new_throwing(size_t size) { return new_block(size, true); }
static void *new_nothrow(size_t size, const struct nothrow *tag) {
    (void)tag;
    return new_block(size, false);
}
static void *new_aligned_throwing(size_t size, size_t alignment) { return new_aligned(size, alignment, true); }
static void *new_aligned_nothrow(size_t size, size_t alignment, const struct nothrow *tag) {
    (void)tag;
    return new_aligned(size, alignment, false);
}

HAK_OVERRIDE(new_throwing, _Znwm, (size_t), void *);
HAK_OVERRIDE(new_throwing, _Znam, (size_t), void *);
HAK_OVERRIDE(new_nothrow, _ZnwmRKSt9nothrow_t, (size_t, const struct nothrow *), void *);
HAK_OVERRIDE(new_nothrow, _ZnamRKSt9nothrow_t, (size_t, const struct nothrow *), void *);
HAK_OVERRIDE(new_aligned_throwing, _ZnwmSt11align_val_t, (size_t, size_t), void *);
HAK_OVERRIDE(new_aligned_throwing, _ZnamSt11align_val_t, (size_t, size_t), void *);
HAK_OVERRIDE(new_aligned_nothrow, _ZnwmSt11align_val_tRKSt9nothrow_t, (size_t, size_t, const struct nothrow *), void *);
HAK_OVERRIDE(new_aligned_nothrow, _ZnamSt11align_val_tRKSt9nothrow_t, (size_t, size_t, const struct nothrow *), void *);

/* delete: with a tag or an alignment it is free; with a size it is free_sized. */
static void delete_tagged(void *block, const struct nothrow *tag) {
    (void)tag;
    hak_front_free(block);
}
static void delete_aligned(void *block, size_t alignment) {
    (void)alignment;
    hak_front_free(block);
}
static void delete_aligned_tagged(void *block, size_t alignment, const struct nothrow *tag) {
    (void)alignment, (void)tag;
    hak_front_free(block);
}
static void delete_sized_aligned(void *block, size_t size, size_t alignment) {
    (void)alignment;
    hak_front_free_sized(block, size);
}

HAK_OVERRIDE(hak_free, _ZdlPv, (void *), void);
HAK_OVERRIDE(hak_free, _ZdaPv, (void *), void);
HAK_OVERRIDE(hak_free_sized, _ZdlPvm, (void *, size_t), void);
HAK_OVERRIDE(hak_free_sized, _ZdaPvm, (void *, size_t), void);
HAK_OVERRIDE(delete_tagged, _ZdlPvRKSt9nothrow_t, (void *, const struct nothrow *), void);
HAK_OVERRIDE(delete_tagged, _ZdaPvRKSt9nothrow_t, (void *, const struct nothrow *), void);
HAK_OVERRIDE(delete_aligned, _ZdlPvSt11align_val_t, (void *, size_t), void);
HAK_OVERRIDE(delete_aligned, _ZdaPvSt11align_val_t, (void *, size_t), void);
HAK_OVERRIDE(delete_aligned_tagged, _ZdlPvSt11align_val_tRKSt9nothrow_t, (void *, size_t, const struct nothrow *),
             void);
HAK_OVERRIDE(delete_aligned_tagged, _ZdaPvSt11align_val_tRKSt9nothrow_t, (void *, size_t, const struct nothrow *),
             void);
HAK_OVERRIDE(delete_sized_aligned, _ZdlPvmSt11align_val_t, (void *, size_t, size_t), void);
HAK_OVERRIDE(delete_sized_aligned, _ZdaPvmSt11align_val_t, (void *, size_t, size_t), void);

#endif
