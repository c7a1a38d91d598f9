/* Memory limits: how much memory the kernel lets this process have, and how much of that is used.
 *
 * Limits are those of control groups, of whichever version has the memory controller: the process's own group and all above it
 * that can be seen. They are found by way of /proc/self/cgroup and /proc/self/mountinfo; where these can't be read, there are
 * none. Files are opened, read and closed: no descriptor is kept, which a program might close, hand on or count.
 *
 * Facts only; what they mean is the caller's affair, and so is all state. Nothing is allocated; errno is left as it was.
 */
#ifndef HAK_OS_MEMORY_LIMIT_H
#define HAK_OS_MEMORY_LIMIT_H

#include "base/platform.h"

enum { HAK_GROUP_PATH_BYTES = 1024, HAK_GROUP_LIMITS = 16 };

/* A group that has a limit: the first `path_length` bytes of the path lead to it. */
struct hak_group_limit {
    uint64_t bytes;
    size_t path_length;
};

/* Groups above have paths that this one's begins with. */
struct hak_memory_groups {
    uint32_t version; /* of control groups: 1 or 2; 0: none found */
    uint32_t limit_count;
    struct hak_group_limit limits[HAK_GROUP_LIMITS]; /* from the own group upwards */
    size_t path_length;
    char path[HAK_GROUP_PATH_BYTES]; /* of the folder of the own group, or of the uppermost one that can be seen */
};

/* Finds the groups and the limits they have now. Callers of this and of the functions below see to it that there is one at a
 * time. */
void hak_memory_groups_find(struct hak_memory_groups *groups);

/* What is used of a limit; `limit_bytes` 0: there is none, or it can't be read. */
struct hak_memory_use {
    uint64_t limit_bytes;
    uint64_t used_bytes;
};

/* Below this share of the limit, used_bytes includes what the kernel would take back before anybody suffers: contents of
 * files. Above, it doesn't. */
enum { HAK_USE_EXACT_FROM_PERCENT = 75 };

/* Of the group that is nearest to its limit. */
struct hak_memory_use hak_memory_use(const struct hak_memory_groups *groups);

/* How long some task of the group, or of the system where groups are not told apart, has been waiting for memory in all, in us; 0
 * when the kernel doesn't tell. */
uint64_t hak_memory_stall_us(const struct hak_memory_groups *groups);

#endif
