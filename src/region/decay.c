#include "region/decay.h"

#include "base/knobs.h"
#include "base/memory.h"
#include "os/os.h"
#include "region/allowance.h"
#include "region/in_hand.h"
#include "region/region.h"

HAK_WRITTEN_BY_MANY static HAK_ATOMIC(uint64_t) period_start_ms;

/* After a round that has brought nothing, the next one begins at this time, or when so many units are dirty. */
static HAK_ATOMIC(uint64_t) next_round_ms, next_round_units;

/* Not worth a system call. */
enum { FEW_UNITS = 4 };

/* ---- By turns ---------------------------------------------------------------------------------------------------- */

/* Of the round from the top of the heap to its bottom; guesses that two threads may make worse, not wrong. */
static HAK_ATOMIC(uint64_t) round_place = HAK_PURGE_FROM_TOP;
static HAK_ATOMIC(uint64_t) round_bytes;

/* A round that has brought nothing is the last for a while: the kernel refuses, or huge pages are worth more. */
static void end_round(void) {
    if (hak_atomic_exchange(&round_bytes, 0, relaxed) != 0) {
        hak_atomic_store(&next_round_ms, 0, relaxed);
        return;
    }
    uint64_t dirty_units = hak_atomic_load(&hak_dirty_units, relaxed);
    hak_atomic_store(&hak_owed_units, 0, relaxed);
    hak_atomic_store(&next_round_ms, hak_os_clock_ms() + hak_knob(decay_ms), relaxed);
    hak_atomic_store(&next_round_units, dirty_units + dirty_units / 16 + FEW_UNITS, relaxed);
}

/* Most that was released at once since the last turn, where nobody else gives it back, or not before the program may
 * need it for something else: the turn gives back as much. */
static HAK_ATOMIC(uint32_t) released_units;

static bool pays_all(void) { return !hak_is_paid() || hak_memory_most_free_bytes() != UINT64_MAX; }

/* Goes on with the round, at most to its end. Returns the bytes. */
static size_t pay_from_place(uint64_t units) {
    uint64_t place = hak_atomic_load(&round_place, relaxed);
    size_t bytes = hak_region_purge_turn(&place, units, hak_atomic_load(&hak_memory_is_tight, relaxed));
    hak_atomic_fetch_add(&round_bytes, bytes, relaxed);
    if (place == 0) end_round();
    hak_atomic_store(&round_place, place == 0 ? HAK_PURGE_FROM_TOP : place, relaxed);
    return bytes;
}

static size_t pay_units(void) {
    uint64_t owed = hak_atomic_load(&hak_owed_units, relaxed), most = hak_atomic_load(&released_units, relaxed);
    if (most < HAK_TURN_BYTES / HAK_UNIT_BYTES) most = HAK_TURN_BYTES / HAK_UNIT_BYTES;
    else hak_atomic_store(&released_units, 0, relaxed);
    if (owed == 0) return 0;
    if (owed > most) owed = most;
    size_t bytes = pay_from_place(owed), paid = bytes / HAK_UNIT_BYTES;
    /* What was released above the place: there may be no other call that pays for it. */
    if (paid < owed && hak_atomic_load(&hak_owed_units, relaxed) != 0) bytes += pay_from_place(owed - paid);
    return bytes;
}

void hak_decay_owe_all(void) {
    hak_atomic_store(&round_place, HAK_PURGE_FROM_TOP, relaxed);
    hak_atomic_store(&next_round_ms, 0, relaxed); /* what was passed over before may go back now */
    hak_owe(hak_atomic_load(&hak_dirty_units, relaxed));
    hak_mapping_cache_owe_all();
}

size_t hak_decay_pay(void) {
    struct hak_hand *outer = hak_hand_take_up(NULL); /* I5 of in_hand.h: perhaps of what a handler has interrupted */
    size_t bytes = pay_units();
    if (bytes < HAK_TURN_BYTES) bytes += hak_mapping_cache_pay(HAK_TURN_BYTES - bytes);
    hak_decay_gave(bytes);
    hak_hand_take_up(outer);
    return bytes;
}

/* ---- Periods ----------------------------------------------------------------------------------------------------- */

/* By so many units per SuperSlab the heap of a program that does the same all the time goes up and down: such a program
 * needs no system calls. A sixteenth of a heap at most. */
enum { FEW_IDLE_UNITS = HAK_UNITS_PER_SUPER_SLAB / 16 };

void hak_decay_gave(size_t bytes) {
    if (hak_is_paid() || hak_atomic_load(&hak_memory_is_tight, relaxed)) return;
    hak_allowance_gave(bytes);
}

void hak_decay_look(void) { hak_allowance_look(hak_mapping_cache_free_bytes()); }

static uint64_t most_dirty_bytes(void) {
    uint64_t limit = hak_knob(dirty_limit_bytes), most = hak_memory_most_free_bytes();
    return limit < most || hak_knob_is_highest(dirty_limit_bytes) ? limit : most;
}

/* Ends the period, if it is time; what lay idle through it is owed. */
static void tell_idle(uint64_t dirty_units, uint64_t now_ms) {
    uint64_t start_ms = hak_atomic_load(&period_start_ms, relaxed);
    if (now_ms - start_ms < hak_knob(decay_ms)) return;
    /* One thread ends the period. */
    if (!hak_atomic_cas(&period_start_ms, &start_ms, now_ms, relaxed, relaxed)) return;
    uint64_t idle_units = hak_owed_begin_period(dirty_units);
    hak_allowance_end_period(idle_units * HAK_UNIT_BYTES + hak_mapping_cache_age());
    if (start_ms != 0 && idle_units >= FEW_IDLE_UNITS * hak_region_count_super_slabs()) hak_owe(idle_units);
}

void hak_decay_look_for_idle(void) {
    if (hak_is_paid()) return;
    hak_decay_look();
    tell_idle(hak_atomic_load(&hak_dirty_units, relaxed), hak_os_clock_ms());
}

static void tell_owed(void) {
    bool is_tight = hak_atomic_load(&hak_memory_is_tight, relaxed);
    uint64_t dirty_units = hak_atomic_load(&hak_dirty_units, relaxed),
             limit = is_tight ? 0 : most_dirty_bytes() / HAK_UNIT_BYTES;
    uint64_t now_ms = hak_os_clock_ms();
    bool may_purge = now_ms >= hak_atomic_load(&next_round_ms, relaxed) ||
                     dirty_units >= hak_atomic_load(&next_round_units, relaxed);
    if (dirty_units > limit && may_purge) hak_owe(dirty_units - limit / 2);
    if (hak_is_paid()) return;
    hak_decay_look();
    uint64_t allowed_units = hak_allowance_bytes() / HAK_UNIT_BYTES;
    if (dirty_units > allowed_units + FEW_UNITS && may_purge) hak_owe(dirty_units - allowed_units);
    tell_idle(dirty_units, now_ms);
}

void hak_decay_after_release(uint32_t units) {
    tell_owed();
    if (pays_all() && hak_atomic_load(&hak_owed_units, relaxed) != 0 &&
        units > hak_atomic_load(&released_units, relaxed))
        hak_atomic_store(&released_units, units, relaxed);
}

size_t hak_decay_end_period(uint64_t least_bytes) {
    uint64_t dirty_units = hak_atomic_load(&hak_dirty_units, relaxed);
    uint64_t idle_units = hak_owed_begin_period(dirty_units);
    hak_mapping_cache_age();
    size_t bytes = hak_mapping_cache_pay(SIZE_MAX);
    if (idle_units == 0 || idle_units * HAK_UNIT_BYTES < least_bytes) return bytes;
    return bytes + hak_region_purge_units(idle_units, false);
}
