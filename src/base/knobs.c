#include "base/knobs.h"

#include <string.h>

struct hak_knobs hak_knobs = {
#define HAK_KNOB(name, initial, lowest, highest, text) .name = (initial),
#include "base/knobs.def"
#undef HAK_KNOB
};

const struct hak_knob_row hak_knob_table[HAK_KNOB_COUNT] = {
#define HAK_KNOB(name, initial, lowest, highest, text) {#name, initial, lowest, highest, text},
#include "base/knobs.def"
#undef HAK_KNOB
};

static HAK_ATOMIC(uint64_t) *const knob_places[HAK_KNOB_COUNT] = {
#define HAK_KNOB(name, initial, lowest, highest, text) &hak_knobs.name,
#include "base/knobs.def"
#undef HAK_KNOB
};

enum hak_knob_number hak_knob_find(const char *name, size_t length) {
    uint32_t number = 0;
    while (number < HAK_KNOB_COUNT &&
           (strlen(hak_knob_table[number].name) != length || memcmp(hak_knob_table[number].name, name, length) != 0))
        number++;
    return (enum hak_knob_number)number;
}

uint64_t hak_knob_get(enum hak_knob_number number) { return hak_atomic_load(knob_places[number], relaxed); }

static bool is_within_bounds(enum hak_knob_number number, uint64_t value) {
    return value >= hak_knob_table[number].lowest && value <= hak_knob_table[number].highest;
}

bool hak_knob_set(enum hak_knob_number number, uint64_t value) {
    if (!is_within_bounds(number, value)) return false;
    hak_atomic_store(knob_places[number], value, relaxed);
    return true;
}

static HAK_ATOMIC(uint64_t) given_knobs; /* a bit for each; config.c sees that they fit */

bool hak_knob_give(enum hak_knob_number number, uint64_t value) {
    if (!is_within_bounds(number, value)) return false;
    hak_atomic_fetch_or(&given_knobs, (uint64_t)1 << number, relaxed);
    /* Release pairs with hak_knob_turn: who turns it from this value sees that it is given. */
    hak_atomic_store(knob_places[number], value, release);
    return true;
}

bool hak_knob_is_given(enum hak_knob_number number) {
    return (hak_atomic_load(&given_knobs, relaxed) >> number & 1) != 0;
}

bool hak_knob_turn(enum hak_knob_number number, uint64_t before, uint64_t value) {
    uint64_t turned = value;
    /* Acquire pairs with hak_knob_give. */
    if (!is_within_bounds(number, value) || !hak_atomic_cas(knob_places[number], &before, value, acquire, relaxed))
        return false;
    if (!hak_knob_is_given(number)) return true;
    hak_atomic_cas(knob_places[number], &turned, before, relaxed, relaxed); /* what it was given, perhaps */
    return false;
}
