#include "region/governor.h"

#include "base/atomic.h"

/* What a touch may take: twice what all small pages of a SuperSlab do on a slow machine. And what touches may take
 * together beyond that: some ticks of the clock. */
enum { SMALL_PAGES_US = 500, MAY_TAKE_US = 2 * SMALL_PAGES_US, MOST_DEBT_US = 10000 };
enum { SKIPPED_AT_FIRST = 8, SHARE = 20, MOST_DOUBLINGS = 10 };
enum { CALM_TOUCHES = 4, CALM_US = 16000 }; /* end a row of losses: one more for so much of the last one */

static HAK_ATOMIC(uint64_t) debt_us;
static HAK_ATOMIC(uint64_t) to_skip;      /* SuperSlabs */
static HAK_ATOMIC(uint32_t) losses;       /* in a row */
static HAK_ATOMIC(uint32_t) calm_touches; /* in a row, which left no debt */
static HAK_ATOMIC(uint32_t) calm_wanted;  /* touches, before the next loss is a first one */

bool hak_governor_may_ask(void) {
    uint64_t skip = hak_atomic_load(&to_skip, relaxed);
    if (HAK_LIKELY(skip == 0)) return true;
    hak_atomic_store(&to_skip, skip - 1, relaxed);
    return false;
}

static void lose(uint64_t lost_us) {
    uint32_t before = hak_atomic_load(&losses, relaxed);
    uint64_t skip = SKIPPED_AT_FIRST;
    if (before != 0)
        skip += lost_us / SMALL_PAGES_US * SHARE << (before <= MOST_DOUBLINGS ? before - 1 : MOST_DOUBLINGS);
    hak_atomic_store(&losses, before + 1, relaxed);
    hak_atomic_store(&calm_touches, 0, relaxed);
    hak_atomic_store(&calm_wanted, (uint32_t)(CALM_TOUCHES + lost_us / CALM_US), relaxed);
    hak_atomic_store(&debt_us, 0, relaxed);
    hak_atomic_store(&to_skip, skip, relaxed);
}

void hak_governor_took(uint64_t huge_ms) {
    uint64_t debt = hak_atomic_load(&debt_us, relaxed) + huge_ms * 1000;
    debt = debt > MAY_TAKE_US ? debt - MAY_TAKE_US : 0;
    if (HAK_UNLIKELY(debt > MOST_DEBT_US)) {
        lose(debt);
        return;
    }
    uint32_t calm = debt != 0 ? 0 : hak_atomic_load(&calm_touches, relaxed) + 1;
    if (calm == hak_atomic_load(&calm_wanted, relaxed)) hak_atomic_store(&losses, 0, relaxed);
    hak_atomic_store(&calm_touches, calm, relaxed);
    hak_atomic_store(&debt_us, debt, relaxed);
}
