/* Canary: the last word of a small block in the secure build (HAK_SECURE), which says what the block is. Whoever hands
 * the block out or frees it writes the word. Somebody who has seen canaries may find the secret number.
 *
 *   C1  The canary of a live block is made of its address, of a secret number, and of the call that it came from.
 *   C2  A free block is zero, canary and all, wherever it is: in quarantine, in a bin, in its slab, purged, or never
 *       handed out. So units that become a slab are zero.
 *   C3  A block is looked at when it is freed, when it goes back to its slab, and when it is handed out. What doesn't
 *       hold then is misuse, and ends the program.
 */
#ifndef HAK_POOL_CANARY_H
#define HAK_POOL_CANARY_H

#include "slab/size_class.h"

/* Which call a block is from, in the low bits. Above is the logarithm of the alignment that a `new` was told, or 0. */
enum { HAK_FROM_MALLOC = 1, HAK_FROM_NEW = 2, HAK_FROM_NEW_ARRAY = 3, HAK_FROM_BITS = 2 };

HAK_INLINE uint32_t hak_from_aligned_new(size_t alignment) {
    return HAK_FROM_NEW | hak_highest_bit(alignment) << HAK_FROM_BITS;
}

/* Chooses the secret number, before any block is handed out. */
void hak_canary_begin(void);

/* A free block becomes live: C2 is looked at. `usable` is what lies before the canary. */
void hak_canary_hand_out(void *block, size_t usable, uint32_t from);

/* The same block is from another call. */
void hak_canary_change(void *block, size_t usable, uint32_t from);

/* A live block becomes free, by what frees blocks from such a call. */
void hak_canary_take_back(void *block, size_t usable, uint32_t from);

/* True when the block is free. One that is neither live nor free ends the program. */
bool hak_canary_is_free(const void *block, size_t usable, const char *function);

/* A free block: C2 is looked at. */
void hak_canary_look(const void *block, size_t usable);

#endif
