#include "region/decay.h"

#include "base/knobs.h"
#include "base/memory.h"
#include "os/os.h"
#include "region/in_hand.h"
#include "region/region.h"

HAK_WRITTEN_BY_MANY static HAK_ATOMIC(uint64_t) period_start_ms;
static HAK_ATOMIC(uint64_t) next_sweep_ms; /* later than now when the kernel has refused to take memory */

HAK_ATOMIC(uint32_t) hak_decay_has_background;

/* ---- By turns ---------------------------------------------------------------------------------------------------- */

/* Of the round from the top of the heap to its bottom; guesses that two threads may make worse, not wrong. */
static HAK_ATOMIC(uint64_t) round_place = HAK_PURGE_FROM_TOP;
static HAK_ATOMIC(uint64_t) round_bytes;

/* A round that has brought nothing is the last for a while: the kernel refuses, or huge pages are worth more. */
static void end_round(void) {
    if (hak_atomic_exchange(&round_bytes, 0, relaxed) != 0) return;
    hak_atomic_store(&hak_owed_units, 0, relaxed);
    hak_atomic_store(&next_sweep_ms, hak_os_clock_ms() + hak_knob(decay_ms), relaxed);
}

static size_t pay_units(void) {
    uint64_t owed = hak_atomic_load(&hak_owed_units, relaxed), place = hak_atomic_load(&round_place, relaxed);
    if (owed == 0) return 0;
    if (owed > HAK_TURN_BYTES / HAK_UNIT_BYTES) owed = HAK_TURN_BYTES / HAK_UNIT_BYTES;
    size_t bytes = hak_region_purge_turn(&place, owed, hak_atomic_load(&hak_memory_is_tight, relaxed));
    hak_atomic_fetch_add(&round_bytes, bytes, relaxed);
    if (place == 0) end_round();
    hak_atomic_store(&round_place, place == 0 ? HAK_PURGE_FROM_TOP : place, relaxed);
    return bytes;
}

void hak_decay_owe_all(void) {
    hak_atomic_store(&round_place, HAK_PURGE_FROM_TOP, relaxed);
    hak_atomic_store(&next_sweep_ms, 0, relaxed); /* what was passed over before may go back now */
    hak_owe(hak_atomic_load(&hak_dirty_units, relaxed));
    hak_mapping_cache_owe_all();
}

size_t hak_decay_pay(void) {
    struct hak_hand *outer = hak_hand_take_up(NULL); /* I5 of in_hand.h: perhaps of what a handler has interrupted */
    size_t bytes = pay_units();
    if (bytes < HAK_TURN_BYTES) bytes += hak_mapping_cache_pay(HAK_TURN_BYTES - bytes);
    hak_hand_take_up(outer);
    return bytes;
}

/* ---- Periods ----------------------------------------------------------------------------------------------------- */

/* By so many units per SuperSlab the heap of a program that does the same all the time goes up and down: such a program
 * needs no system calls. A sixteenth of a heap at most. */
enum { FEW_IDLE_UNITS = HAK_UNITS_PER_SUPER_SLAB / 16 };

void hak_decay_after_release(void) {
    bool is_tight = hak_atomic_load(&hak_memory_is_tight, relaxed);
    uint64_t dirty_units = hak_atomic_load(&hak_dirty_units, relaxed),
             limit = is_tight ? 0 : hak_knob(dirty_limit_bytes) / HAK_UNIT_BYTES;
    uint64_t now_ms = hak_os_clock_ms(), start_ms = hak_atomic_load(&period_start_ms, relaxed);
    if (dirty_units > limit && now_ms >= hak_atomic_load(&next_sweep_ms, relaxed)) hak_owe(dirty_units - limit / 2);
    if (hak_atomic_load(&hak_decay_has_background, relaxed) != 0) return;
    if (now_ms - start_ms < hak_knob(decay_ms)) return;
    /* One thread ends the period. */
    if (!hak_atomic_cas(&period_start_ms, &start_ms, now_ms, relaxed, relaxed)) return;
    uint64_t idle_units = hak_owed_begin_period(dirty_units);
    if (start_ms != 0 && idle_units >= FEW_IDLE_UNITS * hak_region_count_super_slabs()) hak_owe(idle_units);
    hak_mapping_cache_age();
}

size_t hak_decay_end_period(uint64_t least_bytes) {
    uint64_t dirty_units = hak_atomic_load(&hak_dirty_units, relaxed);
    uint64_t idle_units = hak_owed_begin_period(dirty_units);
    hak_mapping_cache_age();
    size_t bytes = hak_mapping_cache_pay(SIZE_MAX);
    if (idle_units == 0 || idle_units * HAK_UNIT_BYTES < least_bytes) return bytes;
    return bytes + hak_region_purge_units(idle_units, false);
}
