/* Size classes: which block size serves a request, and how a slab of it is cut.
 *
 * Classes 1..HAK_SMALL_CLASS_COUNT are small: blocks of 16 to 32768 bytes from slabs. Sizes go in steps of 16 up to
 * 256, and in steps of 1/8 of the power of two below above, so that a block is less than 16 bytes or 12.5 % larger than
 * its request. Sizes above 1 KiB are served in groups of four classes by the widest of the group while there are few of
 * them (front/meter.h). Each small class has a sampled one, with the same blocks: those that the heap profile watches
 * lie in slabs of their own, so that every free of one is a miss (observe/profile.h). Class 0 means "no block here";
 * the classes above these mark units that are no slab.
 */
#ifndef HAK_SLAB_SIZE_CLASS_H
#define HAK_SLAB_SIZE_CLASS_H

#include "base/bits.h"

#define HAK_ALIGNMENT 16 /* of every block */
#define HAK_BLOCK_MAX 32768
#define HAK_CANARY_BYTES (HAK_SECURE ? 8u : 0u)          /* at the end of each block (pool/canary.h) */
#define HAK_SMALL_MAX (HAK_BLOCK_MAX - HAK_CANARY_BYTES) /* the largest request that gets a block */
#define HAK_UNIT_SHIFT 16
#define HAK_UNIT_BYTES ((size_t)1 << HAK_UNIT_SHIFT) /* address space is handed out in units; a slab is 1, 2 or 4 */

enum {
    HAK_CLASS_NONE = 0,
    HAK_FINE_CLASS_COUNT = 16,                            /* 16, 32 .. 256 */
    HAK_SMALL_CLASS_COUNT = HAK_FINE_CLASS_COUNT + 7 * 8, /* .. 32768 */
    HAK_SLAB_CLASS_COUNT = 2 * HAK_SMALL_CLASS_COUNT,     /* with the sampled ones */
    HAK_CLASS_RUN_HEAD,                                   /* first unit of a page run */
    HAK_CLASS_RUN_BODY,                                   /* its other units */
    HAK_CLASS_LIMIT,
};

enum {
    HAK_SINGLE_CLASS_COUNT = HAK_FINE_CLASS_COUNT + 2 * 8, /* 16 .. 1024; the others are in groups */
    HAK_GROUP_CLASSES = 4, /* the sizes from a power of two to 1.5 times it, or from there to the next */
};

struct hak_size_class {
    uint32_t block_bytes;
    uint32_t block_count;     /* per slab, at most HAK_SLAB_MAX_BLOCKS */
    uint32_t unit_count;      /* per slab: a power of two; slabs start at a multiple of it */
    uint32_t reciprocal;      /* ceil(2^35 / block_bytes): hak_block_index divides by multiplying */
    uint32_t grid_reciprocal; /* ceil(2^32 / grid): hak_is_on_grid */
};

#define HAK_SLAB_MAX_BLOCKS (HAK_UNIT_BYTES / HAK_ALIGNMENT)

/* Filled by hak_size_class_initialize; index 0 and those above HAK_SLAB_CLASS_COUNT stay 0. */
extern struct hak_size_class hak_size_classes[HAK_CLASS_LIMIT];

/* Before there are slabs. Of the secure build with the size of a page: each slab has a guard then, unless pages are
 * larger than a sixteenth of a unit. 0: slabs have none. */
void hak_size_class_initialize(size_t guard_page_bytes);

/* What lies at the end of each slab, and has no block: a page for a guard (pool/pool.c), or nothing. */
extern size_t hak_slab_guard; /* const after the start */
HAK_INLINE size_t hak_slab_guard_bytes(void) { return HAK_SECURE ? hak_slab_guard : 0; }

/* The smallest class of blocks of at least `bytes`, HAK_BLOCK_MAX at most. */
HAK_INLINE uint32_t hak_class_of_block(size_t bytes) {
    if (bytes <= 256) return bytes == 0 ? 1 : (uint32_t)((bytes + 15) / 16);
    uint32_t magnitude = hak_highest_bit(bytes - 1); /* 2^magnitude < bytes <= 2^(magnitude + 1); 8 at least */
    uint32_t eighth = (uint32_t)((bytes - 1) >> (magnitude - 3)) & 7;
    return HAK_FINE_CLASS_COUNT + (magnitude - 8) * 8 + eighth + 1;
}

/* The smallest class that serves a request of `size` bytes; size <= HAK_SMALL_MAX. */
HAK_INLINE uint32_t hak_size_class_of(size_t size) { return hak_class_of_block(size + HAK_CANARY_BYTES); }

/* What the program may use of a block of a class. */
HAK_INLINE size_t hak_usable_bytes(uint32_t size_class) {
    return hak_size_classes[size_class].block_bytes - HAK_CANARY_BYTES;
}

/* Where the table of routes has a size (front/front.h). */
HAK_INLINE size_t hak_route_index(size_t size) { return (size + HAK_CANARY_BYTES + HAK_ALIGNMENT - 1) / HAK_ALIGNMENT; }

/* The smallest class that holds `size` bytes and whose blocks, one after the other from the start of a unit, all lie at
 * multiples of `alignment`, a power of two; HAK_CLASS_NONE when there is none. So do those of the class that may serve
 * it (hak_widest_of_group). */
uint32_t hak_size_class_of_aligned(size_t alignment, size_t size);

/* The class that serves a size of `size_class` while its group is closed. Whatever power of two divides the block size
 * of a class of the group divides that of the widest. */
HAK_INLINE uint32_t hak_widest_of_group(uint32_t size_class) {
    if (size_class <= HAK_SINGLE_CLASS_COUNT) return size_class;
    return (size_class - 1) / HAK_GROUP_CLASSES * HAK_GROUP_CLASSES + HAK_GROUP_CLASSES;
}

/* The sampled class of a small one, and the small class of either. */
HAK_INLINE uint32_t hak_sampled_class(uint32_t size_class) { return size_class + HAK_SMALL_CLASS_COUNT; }
HAK_INLINE uint32_t hak_plain_class(uint32_t size_class) {
    return size_class > HAK_SMALL_CLASS_COUNT ? size_class - HAK_SMALL_CLASS_COUNT : size_class;
}

#define HAK_RECIPROCAL_SHIFT 35 /* the largest with which the reciprocal of 16 fits 32 bits */

/* offset / block_bytes for an offset into a slab of the class. Exact for offsets below 2^18: with r = ceil(2^35 / d)
 * the error of n * r / 2^35 is below n / 2^35, less than 1 / d for n * d < 2^35 (Granlund & Montgomery, 1994). */
HAK_INLINE uint32_t hak_block_index(uint32_t offset, uint32_t reciprocal) {
    return (uint32_t)(((uint64_t)offset * reciprocal) >> HAK_RECIPROCAL_SHIFT);
}

/* The grid of a class: its blocks begin at multiples of it, counted from the beginning of their unit. It is the block
 * size where a slab is one unit, else the power of two that divides it.
 *
 * True for an address on the grid, of a unit of the class. With r = ceil(2^32 / grid) the offset n = k * grid + m has
 * n * r = k * 2^32 + m * r + e, where e < n < 2^16: the lower half of that is e when m is 0, else 2^17 at least, and no
 * more than fits (after Lemire, Kaser and Kurz, Faster remainder by direct computation, 2019). */
HAK_INLINE bool hak_is_on_grid(const void *block, uint32_t grid_reciprocal) {
    uint32_t product = (uint32_t)((uintptr_t)block % HAK_UNIT_BYTES) * grid_reciprocal;
    return product < HAK_UNIT_BYTES;
}

/* What the page map has of a class is a multiple of this: the offset of its bin in a heap. */
#define HAK_BIN_STRIDE 32

#endif
