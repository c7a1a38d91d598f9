/* Front: malloc and free where they hit. This header is the whole hit path: no call, no lock, no atomic operation that
 * the processor would notice, no branch on a setting.
 *
 *   alloc: size -> offset of its bin (table) -> the newest block of the bin.
 *   free:  address -> unit -> class (page map) -> bin -> on top.
 *
 * Whatever is out of the ordinary meets an ordinary miss: a thread that has no heap yet has a static one, whose bins
 * are all empty and full at once; an address that is not ours, or not small, has a class whose bin is so too. Of the
 * misuse of small blocks, free sees at once that the newest one of a bin is freed again, and that an address is not
 * where a block begins (hak_is_on_grid); the rest is found when the bin is flushed.
 *
 * Another thread may drain the bin at any moment, from below (pool/drain.h). Therefore a hit compares by order, and
 * touches no slot but the topmost one and the one above it.
 *
 * In the secure build (HAK_SECURE) no free is a hit. Its blocks have canaries, which say what they are `from`
 * (pool/canary.h); the other builds ignore that.
 */
#ifndef HAK_FRONT_FRONT_H
#define HAK_FRONT_FRONT_H

#include "pool/canary.h"
#include "pool/heap.h"
#include "region/region.h"

/* The calling thread's heap; never NULL. */
extern __thread struct hak_heap *hak_thread_heap __attribute__((tls_model("initial-exec")));

/* Byte offset of the bin for sizes of (index - 1) * 16 + 1 .. index * 16 in a heap. All 0 until the process is
 * initialised: bin 0 is always empty. front/routes.h says who writes it, and when. */
extern HAK_ATOMIC(uint16_t) hak_bin_offsets[HAK_BLOCK_MAX / HAK_ALIGNMENT + 1];

/* Everything the hit path does not do. The first returns NULL with errno = ENOMEM when there is no memory; `caller` is
 * the code that wants it (front/background.h). */
HAK_MISS void *hak_front_alloc_miss(size_t size, const void *caller);
HAK_MISS void hak_front_free_miss(void *block);

/* The secure build's: a live block is from another call than malloc; a live small block, or one that the caller has
 * just got, ends at `size`, as far as it has room (others stay as they are); and a free of what is from such a
 * call. */
void hak_front_change_from(void *block, uint32_t from);
void hak_front_change_end(void *block, size_t size, bool is_fresh);
void hak_front_free_checked(void *block, uint32_t from);

HAK_INLINE void *hak_front_say_from(void *block, uint32_t from) {
    if (HAK_SECURE) hak_front_change_from(block, from);
    return block;
}

/* In the secure build a block ends where the caller wants: a live one; or a fresh one, or NULL, that was asked for with
 * more, so that it lies as it must. */
HAK_INLINE void *hak_front_end_at(void *block, size_t size) {
    if (HAK_SECURE) hak_front_change_end(block, size, false);
    return block;
}
HAK_INLINE void *hak_front_end_fresh_at(void *block, size_t size) {
    if (HAK_SECURE && HAK_LIKELY(block != NULL)) hak_front_change_end(block, size, true);
    return block;
}

/* What the program may use of a block that hak_region_find has found, live and whole: in the secure build, of a small
 * one, what was asked for. And what it might have without being moved. */
HAK_INLINE size_t hak_front_usable_bytes(const struct hak_place *place) {
    if (HAK_SECURE && place->kind == HAK_PLACE_SMALL) return hak_canary_asked((void *)place->start, place->bytes);
    return place->bytes;
}
HAK_INLINE size_t hak_front_usable_bytes_of(const void *block) {
    struct hak_place place = hak_region_find((uintptr_t)block);
    return hak_front_usable_bytes(&place);
}
HAK_INLINE size_t hak_front_room(const struct hak_place *place) {
    return HAK_SECURE && place->kind == HAK_PLACE_SMALL ? hak_usable_bytes(place->size_class) : place->bytes;
}

/* Ends the program when a block of this alignment and size can't be the one. Of the secure build: the others trust what
 * a sized delete is told. */
void hak_front_check_size(const void *block, size_t alignment, size_t size);

/* A block of at least `size` bytes, or NULL: then it is a miss. In the secure build it has as many, and is zero. */
HAK_INLINE void *hak_front_take(size_t size, uint32_t from) {
    if (HAK_LIKELY(size <= HAK_SMALL_MAX)) {
        uint16_t offset = hak_atomic_load(&hak_bin_offsets[hak_route_index(size)], relaxed);
        struct hak_bin *bin = hak_bin_at(hak_thread_heap, offset);
        void **top = hak_owned_get(&bin->top);
        if (HAK_LIKELY(hak_relaxed_below(&bin->base, top))) {
            void *block = top[-1];
            hak_bin_set_top(bin, top - 1);
            if (block == NULL) __builtin_unreachable();
            if (HAK_SECURE) hak_canary_hand_out(block, hak_usable_bytes(offset / HAK_BIN_STRIDE), size, from);
            return block;
        }
    }
    return NULL;
}

/* A block of at least `size` bytes. */
HAK_INLINE void *hak_front_alloc(size_t size, const void *caller) {
    void *block = hak_front_take(size, HAK_FROM_MALLOC);
    return HAK_LIKELY(block != NULL) ? block : hak_front_alloc_miss(size, caller);
}

/* Puts a block on top of its bin. False: it is a miss. */
HAK_INLINE bool hak_front_put(struct hak_bin *bin, void *block) {
    if (HAK_UNLIKELY(!hak_is_on_grid(block, bin->grid_reciprocal))) return false;
    hak_signal_fence(); /* little lies between reading the top and writing it, where handlers do harm */
    void **top = hak_owned_get(&bin->top);
    if (HAK_LIKELY(hak_relaxed_above(&bin->limit, top)) && HAK_LIKELY(top[-1] != block)) {
        *top = block;
        hak_signal_fence(); /* a signal handler's malloc finds a block below each top */
        hak_bin_set_top(bin, top + 1);
        return true;
    }
    return false;
}

HAK_INLINE void hak_front_free(void *block, uint32_t from) {
    if (HAK_SECURE) {
        hak_front_free_checked(block, from);
        return;
    }
    uintptr_t start = hak_atomic_load(&hak_window.start, relaxed), unit = ((uintptr_t)block - start) >> HAK_UNIT_SHIFT;
    if (HAK_LIKELY(hak_page_map_reaches(unit))) {
        HAK_ATOMIC(uint16_t) *page_map = (void *)(start - HAK_PAGE_MAP_BYTES);
        struct hak_bin *bin = hak_bin_at(hak_thread_heap, hak_atomic_load(&page_map[unit], relaxed));
        HAK_IN_REGISTER(bin);
        if (HAK_LIKELY(hak_front_put(bin, block))) return;
    }
    hak_front_free_miss(block);
}

/* The same when the size asked for is known: the bin is found from it, and the page map only has to agree, so that no
 * load waits for another. Blocks of another class (aligned ones, or a wrong size) take the way of hak_front_free. */
HAK_INLINE void hak_front_free_sized(void *block, size_t size, uint32_t from) {
    if (HAK_SECURE) {
        hak_front_check_size(block, HAK_ALIGNMENT, size);
        hak_front_free_checked(block, from);
        return;
    }
    uintptr_t start = hak_atomic_load(&hak_window.start, relaxed), unit = ((uintptr_t)block - start) >> HAK_UNIT_SHIFT;
    if (HAK_LIKELY(hak_page_map_reaches(unit) && size <= HAK_SMALL_MAX)) {
        HAK_ATOMIC(uint16_t) *page_map = (void *)(start - HAK_PAGE_MAP_BYTES);
        uint16_t offset = hak_atomic_load(&hak_bin_offsets[hak_route_index(size)], relaxed);
        bool agrees = hak_atomic_load(&page_map[unit], relaxed) == offset;
        if (HAK_LIKELY(agrees && hak_front_put(hak_bin_at(hak_thread_heap, offset), block))) return;
    }
    hak_front_free(block, from);
}

/* The same when an alignment was asked for, too. */
HAK_INLINE void hak_front_free_aligned_sized(void *block, size_t alignment, size_t size, uint32_t from) {
    if (HAK_SECURE) {
        hak_front_check_size(block, alignment, size);
        hak_front_free_checked(block, from);
        return;
    }
    hak_front_free_sized(block, size, from);
}

#endif
