/* Knobs: numbers the slow paths read once per miss, never on a hit. Plain data: whoever may change one stores it here,
 * within its bounds, and whoever uses it sees it soon. */
#ifndef HAK_BASE_KNOBS_H
#define HAK_BASE_KNOBS_H

#include "base/atomic.h"
#include "base/platform.h"

struct hak_knobs {
#define HAK_KNOB(name, initial, lowest, highest, text) HAK_ATOMIC(uint64_t) name;
#include "base/knobs.def"
#undef HAK_KNOB
};

extern struct hak_knobs hak_knobs;

#define hak_knob(name) hak_atomic_load(&hak_knobs.name, relaxed)

/* Blocks go to their slabs when they are freed, past the bins. */
HAK_INLINE bool hak_frees_directly(void) { return hak_knob(direct_free_mode) != 0; }

/* ---- By number, for what treats all alike ---- */

enum hak_knob_number {
#define HAK_KNOB(name, initial, lowest, highest, text) HAK_KNOB_##name,
#include "base/knobs.def"
#undef HAK_KNOB
    HAK_KNOB_COUNT
};

struct hak_knob_row {
    const char *name;
    uint64_t initial, lowest, highest;
    const char *text;
};

extern const struct hak_knob_row hak_knob_table[HAK_KNOB_COUNT];

/* Of a limit, or a time: the highest value stands for none. */
#define hak_knob_is_highest(name) (hak_knob(name) == hak_knob_table[HAK_KNOB_##name].highest)

/* HAK_KNOB_COUNT when there is none of this name, which need not end with a NUL. */
enum hak_knob_number hak_knob_find(const char *name, size_t length);

uint64_t hak_knob_get(enum hak_knob_number number);

/* False, and nothing changes, when the value is out of bounds. */
bool hak_knob_set(enum hak_knob_number number, uint64_t value);

/* The same in the name of the program or its user: from then on the controller leaves it alone (A2 of control/ace.h),
 * in children, too. */
bool hak_knob_give(enum hak_knob_number number, uint64_t value);

/* For the controller: `value` in place of `before`. False, and nothing changes, when it is out of bounds, when the knob
 * has another value, or was given one. Who is just giving it the very `value` may find it given `before`. */
bool hak_knob_turn(enum hak_knob_number number, uint64_t before, uint64_t value);
bool hak_knob_is_given(enum hak_knob_number number);

#endif
