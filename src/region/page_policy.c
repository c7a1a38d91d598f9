#include "region/page_policy.h"

#include "base/knobs.h"
#include "os/os.h"
#include "region/region.h"

static HAK_ATOMIC(uint64_t) period_start_ms;
static HAK_ATOMIC(uint64_t) fewest_dirty_units; /* in this period; a guess that two threads may make worse, not wrong */

static HAK_ATOMIC(uint64_t) next_sweep_ms; /* later than now when the kernel has refused to take memory */

HAK_ATOMIC(uint32_t) hak_page_policy_has_background;

void hak_page_policy_after_taking(uint64_t dirty_units_left) {
    if (dirty_units_left < hak_atomic_load(&fewest_dirty_units, relaxed))
        hak_atomic_store(&fewest_dirty_units, dirty_units_left, relaxed);
}

void hak_page_policy_after_release(void) {
    uint64_t dirty_units = hak_atomic_load(&hak_dirty_units, relaxed),
             limit = hak_knob(dirty_limit_bytes) / HAK_UNIT_BYTES;
    uint64_t now_ms = hak_os_clock_ms(), start_ms = hak_atomic_load(&period_start_ms, relaxed);
    if (dirty_units > limit && now_ms >= hak_atomic_load(&next_sweep_ms, relaxed) &&
        hak_region_purge_units(dirty_units - limit / 2) == 0)
        hak_atomic_store(&next_sweep_ms, now_ms + hak_knob(decay_ms), relaxed);
    if (hak_atomic_load(&hak_page_policy_has_background, relaxed) != 0) return;
    if (now_ms - start_ms < hak_knob(decay_ms)) return;
    /* One thread ends the period. */
    if (!hak_atomic_cas(&period_start_ms, &start_ms, now_ms, relaxed, relaxed)) return;
    uint64_t idle_units = hak_atomic_exchange(&fewest_dirty_units, dirty_units, relaxed);
    if (idle_units > 0 && start_ms != 0) hak_region_purge_units(idle_units);
}

size_t hak_page_policy_end_period(uint64_t least_bytes) {
    uint64_t dirty_units = hak_atomic_load(&hak_dirty_units, relaxed);
    uint64_t idle_units = hak_atomic_exchange(&fewest_dirty_units, dirty_units, relaxed);
    if (idle_units == 0 || idle_units * HAK_UNIT_BYTES < least_bytes) return 0;
    return hak_region_purge_units(idle_units);
}
