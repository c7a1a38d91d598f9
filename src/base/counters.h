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

/* Pages that may still get memory before somebody looks how much the process may have (front/tight.h); negative when it
 * is time. What had no memory and is taken for use counts, touched or not: fresh units, new mappings, emptied pages of
 * slabs. */
extern HAK_ATOMIC(uint64_t) hak_pages_to_look;

#define hak_count_growth(pages) ((void)hak_atomic_fetch_sub(&hak_pages_to_look, (uint64_t)(pages), relaxed))

#endif
