#include "base/profile.h"

#include "base/knobs.h"

const char *const hak_profile_names[] = {
#define HAK_PROFILE(name, alias, goal, values, help) name,
#include "base/profile.def"
#undef HAK_PROFILE
    NULL};

const char *const hak_profile_aliases[] = {
#define HAK_PROFILE(name, alias, goal, values, help) alias,
#include "base/profile.def"
#undef HAK_PROFILE
    NULL};

enum hak_goal hak_profile_apply(uint64_t profile) {
    uint64_t row = 0;
#define HAK_SET(knob, value) hak_atomic_store(&hak_knobs.knob, (value), relaxed);
#define HAK_PROFILE(name, alias, goal, values, help)                                                                   \
    if (row++ == profile) {                                                                                            \
        values;                                                                                                        \
        return HAK_GOAL_##goal;                                                                                        \
    }
#include "base/profile.def"
#undef HAK_PROFILE
#undef HAK_SET
    return HAK_GOAL_BALANCED;
}
