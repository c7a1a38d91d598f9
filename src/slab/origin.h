/* Origin: which call made a block. The secure build (HAK_SECURE) keeps it, in the canary of a small block
 * (pool/canary.h) and in the record of a large object (region/large.h); 8 bits. The other builds ignore it. */
#ifndef HAK_SLAB_ORIGIN_H
#define HAK_SLAB_ORIGIN_H

#include "base/bits.h"

/* In the low bits, by which call. Above is the logarithm of the alignment that a `new` or `new[]` was told, or 0. */
enum { HAK_FROM_MALLOC = 1, HAK_FROM_NEW = 2, HAK_FROM_NEW_ARRAY = 3, HAK_FROM_BITS = 2 };

/* Of a large object from malloc that has been asked for less since, and has kept its bytes. In malloc's blocks no
 * alignment is kept. */
enum { HAK_FROM_MALLOC_LEFT = HAK_FROM_MALLOC | 1 << HAK_FROM_BITS };

HAK_INLINE uint32_t hak_from_without_left(uint32_t from) {
    return from == HAK_FROM_MALLOC_LEFT ? HAK_FROM_MALLOC : from;
}

HAK_INLINE uint32_t hak_from_aligned(uint32_t from, size_t alignment) {
    return from | hak_highest_bit(alignment) << HAK_FROM_BITS;
}

#endif
