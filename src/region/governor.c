#include "region/governor.h"

#include "base/atomic.h"
#include "os/os.h"
#include "region/region.h"

/* Touches of small pages that took less or more than this tell of something else than page faults. */
enum { LEAST_SMALL_NS = 250, MOST_SMALL_NS = 4000, SMALL_NS_AT_FIRST = 500, MEAN_OF = 8 };

enum { LOSS = 2 }; /* times what small pages would have taken */
enum { SKIPPED_AT_FIRST = 8, SHARE = 20, MOST_DOUBLINGS = 10 };

static HAK_ATOMIC(uint64_t) mean_small_ns;
static HAK_ATOMIC(uint64_t) to_skip; /* SuperSlabs */
static HAK_ATOMIC(uint32_t) losses;  /* in a row */

/* What the first touches of all of a SuperSlab's small pages take. */
static uint64_t small_pages_ns(void) {
    uint64_t mean = hak_atomic_load(&mean_small_ns, relaxed);
    return (mean == 0 ? SMALL_NS_AT_FIRST : mean) * (HAK_SUPER_SLAB_BYTES / hak_os_page_bytes());
}

bool hak_governor_may_ask(void) {
    uint64_t skip = hak_atomic_load(&to_skip, relaxed);
    if (HAK_LIKELY(skip == 0)) return true;
    hak_atomic_store(&to_skip, skip - 1, relaxed);
    return false;
}

void hak_governor_took(uint64_t huge_ns) {
    uint64_t small_ns = small_pages_ns();
    if (HAK_LIKELY(huge_ns <= LOSS * small_ns)) {
        hak_atomic_store(&losses, 0, relaxed);
        return;
    }
    uint32_t before = hak_atomic_load(&losses, relaxed);
    uint64_t skip = SKIPPED_AT_FIRST;
    if (before != 0) skip += huge_ns / small_ns * SHARE << (before <= MOST_DOUBLINGS ? before - 1 : MOST_DOUBLINGS);
    hak_atomic_store(&losses, before + 1, relaxed);
    hak_atomic_store(&to_skip, skip, relaxed);
}

void hak_governor_took_small(uint64_t small_ns) {
    if (small_ns < LEAST_SMALL_NS) small_ns = LEAST_SMALL_NS;
    if (small_ns > MOST_SMALL_NS) small_ns = MOST_SMALL_NS;
    uint64_t mean = hak_atomic_load(&mean_small_ns, relaxed);
    hak_atomic_store(&mean_small_ns, mean == 0 ? small_ns : mean - mean / MEAN_OF + small_ns / MEAN_OF, relaxed);
}
