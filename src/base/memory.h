/* Memory: what is known of how much the process may have. Plain data, set by whoever watches (front/tight.h),
 * relaxed. */
#ifndef HAK_BASE_MEMORY_H
#define HAK_BASE_MEMORY_H

#include "base/atomic.h"
#include "base/platform.h"

/* Memory is scarce: no fault-ahead, no huge pages, no lazy purging, nothing kept for later. */
extern HAK_ATOMIC(bool) hak_memory_is_tight;

/* How often it became so; and the least limit that is known, or 0. */
extern HAK_ATOMIC(uint64_t) hak_memory_tight_count, hak_memory_limit_bytes;

/* Of that limit, how much of a kind (units, mappings) may lie free while the program, or another one, may need it for
 * something else: an eighth. UINT64_MAX where none is known. */
HAK_INLINE uint64_t hak_memory_most_free_bytes(void) {
    uint64_t limit = hak_atomic_load(&hak_memory_limit_bytes, relaxed);
    return limit == 0 ? UINT64_MAX : limit / 8;
}

#endif
