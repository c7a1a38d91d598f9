/* Counters: one record per heap, written by the thread that has the heap, read by anybody.
 *
 * A counter is a relaxed atomic with one writer, so that counting costs a plain add; the shared record of threads
 * without a heap is counted with hak_counter_add_shared. Sums over records are figures of a heap in motion. */
#ifndef HAK_BASE_COUNTERS_H
#define HAK_BASE_COUNTERS_H

#include "base/atomic.h"
#include "base/platform.h"

struct hak_counters {
#define HAK_COUNTER(name, text) HAK_ATOMIC(uint64_t) name;
#include "base/counters.def"
#undef HAK_COUNTER
};

#define hak_counter_add(counter, amount)                                                                               \
    hak_atomic_store((counter), hak_atomic_load((counter), relaxed) + (amount), relaxed)

#define hak_counter_add_shared(counter, amount) ((void)hak_atomic_fetch_add((counter), (amount), relaxed))

/* Pages that have come into use so far: what had no memory and is taken for use counts, touched or not. Fresh units,
 * new mappings, emptied pages of slabs. */
extern HAK_ATOMIC(uint64_t) hak_pages_grown;

/* Of these, pages that had gone back to the kernel while nobody used them: it was in vain. */
extern HAK_ATOMIC(uint64_t) hak_pages_reused;

/* Of all slabs: bytes of their blocks, of those that are handed out (to bins, too), and pages of the others that were
 * purged. Relaxed guesses. */
extern HAK_ATOMIC(uint64_t) hak_slab_bytes, hak_out_bytes, hak_slab_holes;

#define hak_count_growth(pages) hak_counter_add_shared(&hak_pages_grown, (uint64_t)(pages))
#define hak_count_reuse(pages) hak_counter_add_shared(&hak_pages_reused, (uint64_t)(pages))

#endif
