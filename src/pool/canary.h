/* Canary: the last word of a small block in the secure build (HAK_SECURE), which says what the block is. Whoever hands
 * the block out or frees it writes the word. Somebody who has seen canaries may find the secret number.
 *
 * What lies before the canary is the room of a block, `usable` here. A live one ends where it was asked; what is left
 * of its room behind that is its slack.
 *
 *   C1  The canary of a live block is made of its address, of a secret number, of the call that it came from, and of
 *       the length of its slack; it tells these two. The first 16 bytes of the slack are filled with another secret
 *       number by turns of its bytes, none of which is a letter or zero. What lies behind them is not looked at.
 *   C2  A free block is zero, canary and all, wherever it is: in quarantine, in a bin, in its slab, purged, or never
 *       handed out. So units that become a slab are zero.
 *   C3  A block is looked at when it is freed, when it goes back to its slab, and when it is handed out. What doesn't
 *       hold then is misuse, and ends the program. Of two threads that free a block at once, one takes the canary; the
 *       other finds zero.
 *   C4  Behind a live large object all bytes to the end of its last page are filled (its slack, region/large.h), with
 *       what is made of its address and of another secret, by a one-way function. No byte of it is a letter or zero.
 *       But the bytes up to the end of the page that the object ends in may all be zero: the kernel clears whole pages
 *       where a program tells it that it needs the object's contents no longer (madvise).
 */
#ifndef HAK_POOL_CANARY_H
#define HAK_POOL_CANARY_H

#include "slab/origin.h"
#include "slab/size_class.h"

/* Chooses the secret number, before any block is handed out. */
void hak_canary_begin(void);

/* A free block becomes live, of `size` bytes: C2 is looked at. */
void hak_canary_hand_out(void *block, size_t usable, size_t size, uint32_t from);

/* The same block, which has just been handed out, is from another call. */
void hak_canary_change(void *block, size_t usable, uint32_t from);

/* The same block ends at a smaller size. */
void hak_canary_shorten(void *block, size_t usable, size_t size);

/* A live block, from whatever call, ends at another size. What it gets is zero. `function` is who wants it. */
void hak_canary_resize(void *block, size_t usable, size_t size, const char *function);

/* Takes the canary of a live block from such a call, if it has one: zero is left. Of two who do so at once one gets it,
 * and the other finds zero. True when it was there; `found` is what was. */
bool hak_canary_take(void *block, size_t usable, uint32_t from, uint64_t *found);

/* A live block becomes free, by what frees blocks from such a call. */
void hak_canary_take_back(void *block, size_t usable, uint32_t from);

/* What a live block was asked for. Where its canary isn't one, `usable`. */
size_t hak_canary_asked(const void *block, size_t usable);

/* False when the block is live, and was asked for with another size. */
bool hak_canary_may_be_asked(const void *block, size_t usable, size_t size);

/* True when all of the block is zero, as of a free one; of a live one only the canary is read. */
bool hak_canary_is_cleared(const void *block, size_t usable);

/* True when the block is live, and was asked for with `asked` bytes; false when it is free. One that is neither ends
 * the program. */
bool hak_canary_is_live(const void *block, size_t usable, size_t *asked, const char *function);

/* The `slack` bytes behind a large object of `usable` bytes are filled; looked at, for `function`; zeroed, unless they
 * are not as they should be: then false. */
void hak_canary_fill(void *block, size_t usable, size_t slack);
void hak_canary_look_behind(const void *block, size_t usable, size_t slack, const char *function);
bool hak_canary_clear(void *block, size_t usable, size_t slack);

/* What frees blocks from such a call. */
const char *hak_canary_freed_by(uint32_t from);

/* Ends the program when `by`, what frees blocks from one call, gets a block that is `from` another. `function` is its
 * name. */
void hak_canary_compare_origin(const void *block, size_t usable, uint32_t from, uint32_t by, const char *function);

/* The same of a live small block, whose origin is in its canary. */
void hak_canary_expect_from(const void *block, size_t usable, uint32_t by, const char *function);

/* A free block: C2 is looked at. */
void hak_canary_look(const void *block, size_t usable);

#endif
