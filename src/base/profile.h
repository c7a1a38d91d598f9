/* Profiles: rows of values for the knobs, each with a name. */
#ifndef HAK_BASE_PROFILE_H
#define HAK_BASE_PROFILE_H

#include "base/config.h"

/* For what is said about a name that isn't one. */
#define HAK_PROFILE_NAMES "balanced, speed, lean, mid-heavy, hardened"

/* In the order of profile.def, and NULL. */
extern const char *const hak_profile_names[], *const hak_profile_aliases[];

/* Sets the knobs as the row says; returns its goal. */
enum hak_goal hak_profile_apply(uint64_t profile);

#endif
