#include "region/owed.h"

HAK_WRITTEN_BY_MANY HAK_ATOMIC(uint64_t) hak_owed_units;
HAK_WRITTEN_BY_MANY static HAK_ATOMIC(uint64_t) fewest_dirty_units;
HAK_ATOMIC(uint32_t) hak_background_pays;

void hak_owe(uint64_t units) {
    uint64_t owed = hak_atomic_load(&hak_owed_units, relaxed);
    while (owed < units && !hak_atomic_cas(&hak_owed_units, &owed, units, relaxed, relaxed)) {
    }
}

static void owe_less(uint64_t units) {
    uint64_t owed = hak_atomic_load(&hak_owed_units, relaxed);
    while (owed != 0 && !hak_atomic_cas(&hak_owed_units, &owed, owed < units ? 0 : owed - units, relaxed, relaxed)) {
    }
}

void hak_owed_after_taking(uint64_t dirty_units_left, uint64_t taken) {
    if (dirty_units_left < hak_atomic_load(&fewest_dirty_units, relaxed))
        hak_atomic_store(&fewest_dirty_units, dirty_units_left, relaxed);
    owe_less(taken);
}

uint64_t hak_owed_begin_period(uint64_t dirty_units) {
    return hak_atomic_exchange(&fewest_dirty_units, dirty_units, relaxed);
}
