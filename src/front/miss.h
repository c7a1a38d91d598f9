/* Misses: how bins are filled and emptied, and how large objects are made and freed. */
#ifndef HAK_FRONT_MISS_H
#define HAK_FRONT_MISS_H

#include "base/knobs.h"
#include "front/front.h"
#include "region/large.h"

/* Fills the calling thread's bin of a class if it is empty; false when it stays so. */
bool hak_front_refill(uint32_t size_class);

/* A block with a page run or mapping of its own: above HAK_SMALL_MAX bytes, or aligned as no class is. NULL with errno
 * = ENOMEM for more than PTRDIFF_MAX bytes too. `clear` as in hak_large_alloc, `caller` as in hak_front_alloc_miss. */
void *hak_front_alloc_large(size_t size, size_t alignment, bool clear, const void *caller);

/* A block of up to HAK_SMALL_MAX bytes that no bin has: of the pool's partial slab with the lowest address, if there is
 * one of its class. It is not sampled. And the way back to its slab, past the bins, for a block of any size, or
 * NULL. */
void *hak_front_alloc_uncached(size_t size, const void *caller);
void hak_front_free_uncached(void *block);

/* hak_large_resize; what changes its size is sampled anew. To be called where hak_front_alloc_large may be. */
void *hak_front_resize_large(const struct hak_place *place, size_t size, const void *caller);

/* A block stays where it is, because there is no memory to move it, or no need, and becomes as small as it can be. NULL
 * when it has no room for the size. */
void *hak_front_stay(const struct hak_place *place, size_t size, const void *caller);

/* hak_front_resize_large when there was no room elsewhere either: what is more than it has is looked for among what is
 * free. NULL with ENOMEM when there is none. */
void *hak_front_resize_at_last(const struct hak_place *place, size_t size, const void *caller);

/* Fills the calling thread's bins for blocks of up to `max_bytes`. Returns the number of blocks in these bins. */
size_t hak_front_prewarm(size_t max_bytes);

/* Of the secure build: blocks in quarantine are looked at, and go back to their slabs. */
void hak_front_end_waits(void);

/* hak_purge_all with the calling thread's heap. */
size_t hak_front_purge(void);

/* hak_purge_begin_round with the same. */
void hak_front_begin_round(void);

/* What `block` is; misuse of `function` when it is not the start of a block. */
struct hak_place hak_front_place_of(const void *block, const char *function);

/* The same for who is about to resize the block. Where hak_front_place_of knows nothing of free blocks, this one looks
 * where one may be at hand: misuse of `function` when it is there. */
struct hak_place hak_front_place_to_resize(const void *block, const char *function);

/* True when a block of a small class is free, as far as what the processor has at hand tells. Not in a signal handler
 * that has interrupted a slow path: that may be moving blocks. */
bool hak_front_is_free_nearby(const void *block, uint32_t size_class);

/* The class of a block of the first range that is not sampled; HAK_CLASS_NONE where none begins, and often enough where
 * one does. */
HAK_INLINE uint32_t hak_front_class_of_start(const void *block) {
    uintptr_t start = hak_atomic_load(&hak_window.start, relaxed), offset = (uintptr_t)block - start,
              unit = offset >> HAK_UNIT_SHIFT;
    if (!hak_page_map_reaches(unit)) return HAK_CLASS_NONE;
    HAK_ATOMIC(uint16_t) *page_map = (void *)(start - HAK_PAGE_MAP_BYTES);
    uint32_t size_class = hak_atomic_load(&page_map[unit], relaxed) / HAK_BIN_STRIDE;
    if (size_class > HAK_SMALL_CLASS_COUNT) return HAK_CLASS_NONE;
    const struct hak_size_class *cut = &hak_size_classes[size_class];
    offset &= cut->unit_count * HAK_UNIT_BYTES - 1;
    uint32_t index = hak_block_index((uint32_t)offset, cut->reciprocal);
    bool is_start = index < cut->block_count && (size_t)index * cut->block_bytes == offset;
    return is_start ? size_class : HAK_CLASS_NONE;
}

/* The same of a block that may be resized without a further look; HAK_CLASS_NONE of any other. */
HAK_INLINE uint32_t hak_front_class_to_resize(const void *block) {
    if (HAK_SECURE) return HAK_CLASS_NONE;
    uint32_t size_class = hak_front_class_of_start(block);
    bool is_known = HAK_LIKELY(size_class != HAK_CLASS_NONE) && HAK_LIKELY(!hak_frees_directly()) &&
                    HAK_LIKELY(!hak_front_is_free_nearby(block, size_class));
    return is_known ? size_class : HAK_CLASS_NONE;
}

#endif
