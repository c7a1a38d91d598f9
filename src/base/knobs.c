#include "base/knobs.h"

struct hak_knobs hak_knobs = {
#define HAK_KNOB(name, initial, lowest, highest, text) .name = (initial),
#include "base/knobs.def"
#undef HAK_KNOB
};
