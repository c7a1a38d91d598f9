/* How many heaps threads have, and whether these are too many for each to hold much for itself.
 *
 * Births and ends of threads write the exact number; misses read one that is about right, and is written rarely. */
#ifndef HAK_REGION_HEAP_COUNT_H
#define HAK_REGION_HEAP_COUNT_H

#include "base/atomic.h"
#include "base/platform.h"

/* Heaps that threads have. Each birth and each end of a thread writes it. */
extern HAK_ATOMIC(uint32_t) hak_heaps_in_use;

/* The same for misses, which must not wait for who writes that: written when an eighth of them has come or gone, and by
 * the background thread. Relaxed. */
extern HAK_ATOMIC(uint32_t) hak_heaps_about;

/* Heaps above this number, but for those that rest, are many: more than two threads for each processor that the first
 * thread could run on at its first request, and more than a few. Later the program may have bound its threads. */
extern HAK_ATOMIC(uint32_t) hak_few_heaps; /* relaxed */

/* Of those in use, the ones that have not missed for a period, and are drained. Relaxed; the background thread
 * counts. */
extern HAK_ATOMIC(uint32_t) hak_heaps_resting;
void hak_heap_set_resting(uint32_t count);

/* True when what every heap holds for itself is too much memory, and rarely used: busy threads wait for processors. */
HAK_INLINE bool hak_heaps_are_many(void) {
    return hak_atomic_load(&hak_heaps_about, relaxed) >
           hak_atomic_load(&hak_few_heaps, relaxed) + hak_atomic_load(&hak_heaps_resting, relaxed);
}

/* Before there are heaps, by the first thread. */
void hak_heap_count_initialize(void);

/* A thread gets a heap (1), or leaves one (-1). */
void hak_heap_count_change(int32_t by);

/* In a child after fork. */
void hak_heap_set_in_use(uint32_t count);

#endif
