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

#endif
