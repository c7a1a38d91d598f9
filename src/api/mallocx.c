/* jemalloc's functions with flags, all seven: a program that gets its memory by one of them gives it back by another.
 * What tells programs that their malloc is jemalloc (mallctl and its kin) is not here: docs/decisions/0113. */
#include <errno.h>
#include <string.h>

#include "api/override.h"
#include "front/front.h"
#include "front/miss.h"
#include "front/process.h"
#include "observe/stack.h"
#include "os/os.h"

/* Parts of the flags: the alignment's logarithm, and which thread cache, 0 for the usual one. Above is an arena. */
enum { LOG2_ALIGNMENT = 0x3F, TCACHE = 0xFFF00 };

static size_t alignment_of(int flags) {
    size_t alignment = (size_t)1 << (flags & LOG2_ALIGNMENT);
    return alignment > HAK_ALIGNMENT ? alignment : HAK_ALIGNMENT;
}

static bool is_small_as_asked(size_t size, int flags) {
    return size <= HAK_SMALL_MAX && alignment_of(flags) <= HAK_SMALL_MAX;
}

static bool is_uncached(int flags) { return (flags & TCACHE) == HAK_MALLOCX_TCACHE_NONE; }

static void clear_rest(void *block, size_t first) {
    size_t bytes = hak_front_usable_bytes_of(block);
    if (first < bytes) memset((char *)block + first, 0, bytes - first);
}

size_t hak_nallocx(size_t size, int flags) {
    size_t alignment = alignment_of(flags);
    if (size > PTRDIFF_MAX - hak_os_page_bytes() || alignment > PTRDIFF_MAX) return 0;
    if (!hak_process_initialize()) return 0;
    uint32_t size_class = hak_size_class_of_aligned(alignment, size);
    if (size_class != HAK_CLASS_NONE) return HAK_SECURE ? size : hak_usable_bytes(size_class);
    if (size == 0) size = 1;
    return HAK_SECURE ? size : hak_align_up(size, hak_os_page_bytes());
}

/* The least room that a block has for it. */
HAK_INLINE size_t room_for(size_t size, int flags) {
    size_t told = hak_nallocx(size, flags);
    uint32_t size_class = HAK_SECURE ? hak_size_class_of_aligned(alignment_of(flags), size) : HAK_CLASS_NONE;
    return size_class == HAK_CLASS_NONE ? told : hak_usable_bytes(size_class);
}

static void *alloc_as_asked(size_t size, int flags) {
    HAK_WALKABLE();
    size_t alignment = alignment_of(flags), bytes = room_for(size, flags);
    bool clears = (flags & HAK_MALLOCX_ZERO) != 0;
    if (clears && !is_small_as_asked(size, flags) && alignment == HAK_ALIGNMENT)
        return hak_calloc(1, bytes == 0 ? size : bytes);
    void *block = is_small_as_asked(size, flags) && is_uncached(flags)
                      ? hak_front_end_fresh_at(hak_front_alloc_uncached(bytes, HAK_CALLER()), size)
                  : alignment == HAK_ALIGNMENT ? hak_front_alloc(size, HAK_CALLER())
                                               : hak_aligned_alloc(alignment, size);
    if (block != NULL && clears) clear_rest(block, 0);
    return block;
}

void *hak_mallocx(size_t size, int flags) {
    bool is_plain = (flags & (LOG2_ALIGNMENT | HAK_MALLOCX_ZERO | TCACHE)) == 0;
    return is_plain ? hak_malloc(size) : alloc_as_asked(size, flags);
}

size_t hak_sallocx(const void *block, int flags) {
    (void)flags;
    return block == NULL ? 0 : hak_front_place_of(block, "sallocx").bytes;
}

size_t hak_xallocx(void *block, size_t size, size_t extra, int flags) {
    (void)size, (void)extra, (void)flags;
    return block == NULL ? 0 : hak_front_place_of(block, "xallocx").bytes;
}

void hak_dallocx(void *block, int flags) {
    if (is_uncached(flags)) hak_front_free_uncached(block);
    else hak_front_free(block, HAK_FROM_MALLOC);
}

void hak_sdallocx(void *block, size_t size, int flags) {
    if (is_uncached(flags)) hak_front_free_uncached(block);
    else hak_front_free_aligned_sized(block, alignment_of(flags), size, HAK_FROM_MALLOC);
}

/* Whether hak_realloc does: it aligns large blocks to units, small ones to HAK_ALIGNMENT, and only these are cached. */
static bool suits_realloc(size_t had, size_t size, int flags) {
    bool stays_large = had > HAK_SMALL_MAX && size > HAK_SMALL_MAX;
    return alignment_of(flags) <= (stays_large ? HAK_UNIT_BYTES : HAK_ALIGNMENT) &&
           (stays_large || !is_uncached(flags));
}

/* The block has the alignment and all the room that such blocks have, and the size uses half of it. A large object
 * doesn't become a small one where it is. */
static bool suits_as_it_is(const void *block, size_t room, size_t size, int flags) {
    bool is_same_kind = (room <= HAK_SMALL_MAX) == is_small_as_asked(size, flags);
    return room_for(size, flags) <= room && size > room / 2 && is_same_kind &&
           (uintptr_t)block % alignment_of(flags) == 0;
}

static void *move_as_asked(const struct hak_place *place, size_t size, int flags) {
    void *block = (void *)place->start;
    if (suits_as_it_is(block, hak_front_room(place), size, flags)) return hak_front_stay(place, size, HAK_CALLER());
    int saved_errno = errno;
    void *moved = hak_mallocx(size, flags);
    if (moved == NULL) {
        moved = place->start % alignment_of(flags) == 0 ? hak_front_stay(place, size, HAK_CALLER()) : NULL;
        if (moved != NULL) errno = saved_errno;
        return moved;
    }
    memcpy(moved, block, size < place->bytes ? size : place->bytes);
    hak_dallocx(block, flags);
    return moved;
}

void *hak_rallocx(void *block, size_t size, int flags) {
    HAK_WALKABLE();
    if (block == NULL) return hak_mallocx(size, flags);
    struct hak_place place = hak_front_place_to_resize(block, "rallocx");
    size_t had = place.bytes, kept = size < had ? size : had;
    if (size == 0) size = 1; /* realloc would free the block */
    void *resized = suits_realloc(had, size, flags) ? hak_realloc(block, size) : move_as_asked(&place, size, flags);
    if (resized != NULL && (flags & HAK_MALLOCX_ZERO) != 0) clear_rest(resized, resized == block ? had : kept);
    return resized;
}

#ifndef HAK_NO_OVERRIDE
HAK_OVERRIDE(hak_nallocx, nallocx, (size_t, int), size_t);
HAK_OVERRIDE(hak_mallocx, mallocx, (size_t, int), void *);
HAK_OVERRIDE(hak_rallocx, rallocx, (void *, size_t, int), void *);
HAK_OVERRIDE(hak_xallocx, xallocx, (void *, size_t, size_t, int), size_t);
HAK_OVERRIDE(hak_sallocx, sallocx, (const void *, int), size_t);
HAK_OVERRIDE(hak_dallocx, dallocx, (void *, int), void);
HAK_OVERRIDE(hak_sdallocx, sdallocx, (void *, size_t, int), void);
#endif
