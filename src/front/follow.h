/* Follow: which policy this process follows, if any, and that its knobs stand as that says.
 *
 * HAKMEM_POLICY names a file, or is `auto`: then it is the one that is named by the program's build id, in the folder
 * of the user's configuration or, if that has none, of the system's. Nothing is opened unless it is set.
 */
#ifndef HAK_FRONT_FOLLOW_H
#define HAK_FRONT_FOLLOW_H

#include "base/format.h"

/* Before main, once the knobs have been set as the profile and other settings say: gives the knobs the values that the
 * policy has for them. `setting` is that of HAKMEM_POLICY, not NULL. True when a policy is followed. Of one that can't
 * be, a line is added to `messages`; with `explains` also of what `auto` has found. */
bool hak_follow_policy(const char *setting, char *const *environment, bool explains, struct hak_text *messages);

#endif
