#include "control/dimension.h"

#include "pool/bin.h"
#include "pool/bin_size.h"

enum { CLASS_ARMS = 5 }; /* half of the slots, all, 2, 4, 8 times as many */

/* The knob stands at its first arm when main begins; each arm is `factor` times the one before, within bounds. */
static const struct turned_knob {
    enum hak_knob_number knob;
    uint32_t factor; /* 0: strategies */
} turned_knobs[HAK_TURNED_KNOBS] = {
    {HAK_KNOB_bin_budget_share, 8}, {HAK_KNOB_decay_ms, 4}, {HAK_KNOB_run_limit_bytes, 0}};

/* What changes at once has short pulls; what has to fill or to decay first, long ones. */
const struct hak_dimension hak_dimensions[HAK_DIMENSION_COUNT] = {
    {CLASS_ARMS, HAK_CLASS_AS_IS, 2, false},
    {CLASS_ARMS, HAK_CLASS_AS_IS, 2, false},
    {CLASS_ARMS, HAK_CLASS_AS_IS, 2, false},
    {CLASS_ARMS, HAK_CLASS_AS_IS, 2, false},
    {3, 1, 3, false},
    {4, 1, 4, true},
    {HAK_STRATEGIES, HAK_STRATEGIES - 1, 2, true},
};

enum hak_knob_number hak_dimension_knob(uint32_t dimension) { return turned_knobs[dimension - HAK_CLASS_PLACES].knob; }

uint32_t hak_dimension_of_knob(enum hak_knob_number knob) {
    uint32_t dimension = HAK_CLASS_PLACES;
    while (dimension < HAK_DIMENSION_COUNT && hak_dimension_knob(dimension) != knob) dimension++;
    return dimension;
}

const char *hak_dimension_name(uint32_t dimension) {
    return hak_dimension_is_class(dimension) || dimension >= HAK_DIMENSION_COUNT
               ? "class_slots"
               : hak_knob_table[hak_dimension_knob(dimension)].name;
}

uint64_t hak_dimension_value(uint32_t dimension, uint32_t arm, uint64_t first_value) {
    if (dimension == HAK_LIMIT_DIMENSION) return hak_strategy_bytes(arm);
    const struct turned_knob *knob = &turned_knobs[dimension - HAK_CLASS_PLACES];
    const struct hak_knob_row *row = &hak_knob_table[knob->knob];
    uint64_t value = first_value;
    for (uint32_t i = hak_dimensions[dimension].first; i > arm; i--) value /= knob->factor;
    for (uint32_t i = hak_dimensions[dimension].first; i < arm && value <= row->highest; i++) value *= knob->factor;
    return value < row->lowest ? row->lowest : value > row->highest ? row->highest : value;
}

uint32_t hak_dimension_first_arm(uint32_t dimension, uint64_t first_value) {
    return dimension == HAK_LIMIT_DIMENSION ? hak_strategy_of(first_value) : hak_dimensions[dimension].first;
}

size_t hak_dimension_all_slots(uint32_t size_class, uint32_t arm) {
    size_t usual = hak_heap_usual_slots(size_class), slots = usual << arm >> 1;
    if (arm == HAK_CLASS_AS_IS) return usual;
    if (slots < HAK_LEAST_SLOTS) slots = HAK_LEAST_SLOTS;
    return slots > HAK_CLASS_MOST_SLOTS ? HAK_CLASS_MOST_SLOTS : slots;
}

uint16_t hak_dimension_slots(uint32_t size_class, uint32_t arm) {
    return arm == HAK_CLASS_AS_IS ? 0 : (uint16_t)hak_dimension_all_slots(size_class, arm);
}
