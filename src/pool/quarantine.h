/* Quarantine: freed blocks of small classes that wait before they can be handed out again. Of the secure build
 * (HAK_SECURE): front puts in each block that is freed, zeroed, and gets another one out, which it frees as the other
 * builds do.
 *
 *   Q1  Each class has as many places as make HAK_QUARANTINE_BYTES, within bounds, in groups of HAK_QUARANTINE_GROUP:
 *       a cache line. A secret number and its address tell the group of a block. In there it takes an empty place, or
 *       else one picked by chance, whose block comes out: so in full groups a block waits for as many frees as there
 *       are places, on average, and nobody can tell for how many. In a group that isn't full it would stay: one free
 *       in HAK_QUARANTINE_GROUP empties a place of the class besides, whichever chance picks.
 *   Q2  A block in its group is free: who finds the very block there that he frees, frees it twice. Two threads that do
 *       so at once may both put it in. Who takes out one of the two finds the other one, and knows: nobody can have
 *       put it in since, for it is not handed out yet.
 *   Q3  To its slab a block in quarantine is allocated: it stays in no bin, and its page is no hole.
 *
 * One table for the process, mapped at the start; without memory for it no block waits. Lock-free. In a child
 * of fork it is what it was: a block that another thread had just taken out is lost.
 */
#ifndef HAK_POOL_QUARANTINE_H
#define HAK_POOL_QUARANTINE_H

#include "pool/heap.h"

enum { HAK_QUARANTINE_BYTES = 64 << 10, HAK_QUARANTINE_GROUP = 8, HAK_QUARANTINE_MOST = 4096 };

/* Makes the table and the secret number, before any block is handed out. */
void hak_quarantine_begin(void);

/* Another secret number (hak_secret), for tests. Nothing may be in. */
HAK_COLD void hak_quarantine_seed(uint64_t seed);

/* Asks for the memory of a block's group, which is about to be put in. */
void hak_quarantine_prefetch(const void *block, uint32_t size_class);

/* Puts a block in. Returns the one that comes out, which is the caller's, or NULL; where there is no table, the same.
 * `turn` is another number each time. Of a block that was freed twice, `twice` tells (Q2); else it becomes NULL. */
void *hak_quarantine_exchange(void *block, uint32_t size_class, uint64_t turn, const void **twice);

/* Empties a place of the class that chance picks, which `turn` is for, as above. Returns what was in it, or NULL. */
void *hak_quarantine_release(uint32_t size_class, uint64_t turn, const void **twice);

/* True when the block is in. A guess while others free. */
bool hak_quarantine_has(const void *block, uint32_t size_class);

/* How many blocks of a class are in, at this moment. */
uint32_t hak_quarantine_count(uint32_t size_class);

/* All go back to their slabs. `heap` as for hak_pool_put. */
HAK_COLD void hak_quarantine_empty(struct hak_heap *heap);

#endif
