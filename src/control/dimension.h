/* Dimensions: what the controller turns, by number, and what the arms of each mean. Bins of some size classes come
 * first, then knobs; the last one is run_limit_bytes, whose arms are the strategies of control/rating.h. Tables and
 * arithmetic. */
#ifndef HAK_CONTROL_DIMENSION_H
#define HAK_CONTROL_DIMENSION_H

#include "base/knobs.h"
#include "control/life_cycle.h"

enum {
    HAK_CLASS_PLACES = 4, /* bins of the classes that miss most */
    HAK_CLASS_AS_IS = 1,  /* the arm of a class whose bins are as the knobs say */
    HAK_TURNED_KNOBS = 3,
    HAK_LIMIT_DIMENSION = HAK_CLASS_PLACES + HAK_TURNED_KNOBS - 1, /* run_limit_bytes */
    HAK_DIMENSION_COUNT = HAK_CLASS_PLACES + HAK_TURNED_KNOBS,
    HAK_CLASS_BITS = (1 << HAK_CLASS_PLACES) - 1,
};
_Static_assert((int)HAK_DIMENSION_COUNT <= (int)HAK_DIMENSIONS, "all fit");

extern const struct hak_dimension hak_dimensions[HAK_DIMENSION_COUNT];

HAK_INLINE bool hak_dimension_is_class(uint32_t dimension) { return dimension < HAK_CLASS_PLACES; }

/* The knob of a dimension that isn't of a class; and the dimension of a knob, HAK_DIMENSION_COUNT for one that is not
 * turned. */
enum hak_knob_number hak_dimension_knob(uint32_t dimension);
uint32_t hak_dimension_of_knob(enum hak_knob_number knob);

/* "class_slots", or the knob's; also for HAK_DIMENSION_COUNT. */
const char *hak_dimension_name(uint32_t dimension);

/* What an arm gives the knob, which stood at `first_value` when main began; and the arm that it stood at. */
uint64_t hak_dimension_value(uint32_t dimension, uint32_t arm, uint64_t first_value);
uint32_t hak_dimension_first_arm(uint32_t dimension, uint64_t first_value);

/* What an arm gives the bins of a class: slots, 0 for as many as the knobs say. And how many these are. */
uint16_t hak_dimension_slots(uint32_t size_class, uint32_t arm);
size_t hak_dimension_all_slots(uint32_t size_class, uint32_t arm);

#endif
