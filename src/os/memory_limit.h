/* Memory limits: how much memory the kernel lets this process have, and how much of that was used at the start.
 *
 * Limits are those of control groups, of whichever version has the memory controller: the process's own group and all
 * above it that can be seen. They are found by way of /proc/self/cgroup and, where groups are not at the usual place,
 * /proc/self/mountinfo; where these can't be read, there are none. Files are opened, read and closed, before main
 * alone: later a sandbox may kill for it, and descriptors are the program's.
 *
 * Facts only; what they mean is the caller's affair, and so is all state. Nothing is allocated; errno is left as it
 * was.
 */
#ifndef HAK_OS_MEMORY_LIMIT_H
#define HAK_OS_MEMORY_LIMIT_H

#include "base/platform.h"

enum { HAK_GROUP_PATH_BYTES = 1024, HAK_GROUP_LIMITS = 16 };

/* What is used of a limit, without what the kernel would take back before anybody suffers: contents of files.
 * `limit_bytes` 0: there is none. */
struct hak_memory_use {
    uint64_t limit_bytes;
    uint64_t used_bytes;
};

/* Groups above have paths that this one's begins with. */
struct hak_memory_groups {
    uint32_t version; /* of control groups: 1 or 2; 0: none found */
    uint32_t limit_count;
    struct hak_memory_use limits[HAK_GROUP_LIMITS]; /* from the own group upwards, as they were found */
    size_t path_length;
    char path[HAK_GROUP_PATH_BYTES]; /* of the folder of the own group, or of the uppermost one that can be seen */
};

/* Finds the groups, the limits they have now, and what is used of them now. To be called by one thread at a time. */
void hak_memory_groups_find(struct hak_memory_groups *groups);

/* Of the group that is nearest to its limit, if so much more, or less, is used of each. Makes no system call. */
struct hak_memory_use hak_memory_use(const struct hak_memory_groups *groups, int64_t more_bytes);

#endif
