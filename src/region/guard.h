/* Guards: a few blocks that each lie in a page of their own, between pages that can't be accessed. An access beside
 * such a block, or to one that was freed, faults at the instruction that makes it. Which allocations get one is the
 * caller's business (front/miss.c).
 *
 *   W1  The pool is one reservation of HAK_GUARD_POOL_BYTES: records, then pages in turn: a guard, a slot, a guard, and
 *       so on. Guards are never accessible. A slot is accessible while it is LIVE.
 *   W2  The state of a slot says who may change its record and its page: who has made it BUSY, and nobody else.
 *   W3  A freed slot waits for its turn: half as many others are tried before it as there are slots.
 *   W4  A block touches one end of its page, by turns: at the lower end writes before it fault, at the upper end those
 *       behind it. What the page has left within HAK_GUARD_MARGIN bytes of it is filled, and looked at by the free.
 *
 * Lock-free; any thread, at any time. In a child of fork slots are what they were; one that another thread was at is
 * lost. A pool that the kernel refuses is not asked for again: there are no guards then.
 */
#ifndef HAK_REGION_GUARD_H
#define HAK_REGION_GUARD_H

#include "base/atomic.h"
#include "base/bits.h"

#define HAK_GUARD_POOL_BYTES ((size_t)4 << 20)
enum { HAK_GUARD_FRAMES = 16, HAK_GUARD_MARGIN = 64 };

/* A call that has made or freed a block. */
struct hak_guard_trace {
    HAK_ATOMIC(uint32_t) thread_id, depth;
    HAK_ATOMIC(uintptr_t) addresses[HAK_GUARD_FRAMES]; /* the innermost first */
};

/* All relaxed, but `state`. */
struct hak_guard {
    HAK_ATOMIC(uint32_t) state; /* W2 */
    HAK_ATOMIC(uint32_t) bytes;
    HAK_ATOMIC(uintptr_t) start;
    HAK_ATOMIC(uint64_t) freed_turn; /* W3: turns that had been taken by then */
    struct hak_guard_trace allocated, freed;
};

enum hak_guard_state { HAK_GUARD_UNUSED, HAK_GUARD_BUSY, HAK_GUARD_LIVE, HAK_GUARD_FREED };

/* Makes the pool unless there is one. True for who has made it. */
HAK_COLD bool hak_guard_begin(void);

/* A block of at most a page for the thread whose stack is given, as of hak_stack_walk. NULL when no slot is to be had,
 * or the size is larger. */
HAK_COLD void *hak_guard_alloc(size_t bytes, const uintptr_t *addresses, uint32_t depth);

/* Frees the block that hak_guard_find has found. SPOILED, and nothing is done, when something was written beside it:
 * the first byte of that, counted from the block's start, is written to `offset`. */
enum hak_guard_outcome { HAK_GUARD_WAS_FREED, HAK_GUARD_WAS_FREE, HAK_GUARD_SPOILED };
HAK_COLD enum hak_guard_outcome hak_guard_free(void *block, const uintptr_t *addresses, uint32_t depth,
                                               ptrdiff_t *offset);

/* True for addresses in the pool. */
bool hak_guard_covers(uintptr_t address);

/* The live block that covers an address. */
bool hak_guard_find(uintptr_t address, uintptr_t *start, size_t *bytes);

/* What is nearest to an address: the slot that it is in, or the one whose block is nearest to it in a guard. NULL when
 * there was no block there, or the address is not in the pool. For reports: what it says may be changing. */
const struct hak_guard *hak_guard_near(uintptr_t address);

/* The bytes of the freed block that began there; 0 for none. */
size_t hak_guard_freed_bytes(uintptr_t start);

/* Blocks that are live, and their sizes. */
extern HAK_ATOMIC(uint64_t) hak_guard_live_blocks, hak_guard_live_bytes;

#endif
