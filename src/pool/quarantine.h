/* Quarantine: freed blocks of small classes that wait before they can be handed out again. Of the secure build
 * (HAK_SECURE): front puts in each block that is freed, zeroed, and gets another one out, which it frees as the other
 * builds do.
 *
 *   Q1  A heap has for each class as many places as make HAK_QUARANTINE_BYTES, HAK_QUARANTINE_LEAST at least. A freed
 *       block goes into the next empty one. When all are full, it goes into one that chance picks, and what was in
 *       there comes out. So it waits for as many frees of its class as there are places, on average, and nobody can
 *       tell for how many.
 *   Q2  Who has the heap (H5) changes its places; others may peek. Of two threads that free a block at once only one
 *       gets here (C3 of pool/canary.h): a block is in one place.
 *   Q3  To its slab a block in quarantine is allocated: it stays in no bin, and its page is no hole.
 *
 * A heap's places are mapped when it frees its first block; without memory for them no block waits. They stay when its
 * thread ends, as bins do, and when it is idle. In a child of fork they are what they were.
 */
#ifndef HAK_POOL_QUARANTINE_H
#define HAK_POOL_QUARANTINE_H

#include "pool/heap.h"

enum { HAK_QUARANTINE_BYTES = 20 << 10, HAK_QUARANTINE_LEAST = 8 };

/* Decides on the places and on the secret numbers, also those of slots, before any block is handed out. */
void hak_quarantine_begin(void);

/* Another secret number of places, for tests. */
HAK_COLD void hak_quarantine_seed(uint64_t seed);

/* Puts a block in. Returns the one that comes out, which is the caller's, or NULL; where there are no places, the same.
 * The caller has the heap. */
void *hak_quarantine_exchange(struct hak_heap *heap, void *block, uint32_t size_class);

/* How many blocks of a class are in, at this moment. */
HAK_INLINE uint32_t hak_quarantine_count(const struct hak_heap *heap, uint32_t size_class) {
    return hak_owned_peek(&heap->waiting_count[size_class]);
}

/* True when the heap has the block in, or any of any class. */
bool hak_quarantine_has(const struct hak_heap *heap, uint32_t size_class, const void *block);
bool hak_quarantine_has_any(const struct hak_heap *heap);

/* All go back to their slabs. The caller has the heap. */
HAK_COLD void hak_quarantine_empty(struct hak_heap *heap);

#endif
