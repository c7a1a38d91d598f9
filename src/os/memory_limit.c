#include "os/memory_limit.h"

#include <errno.h>
#include <string.h>

#include "os/os.h"

/* Larger ones are how version 1 says that there is none. */
#define LARGEST_LIMIT ((uint64_t)1 << 60)

/* ---- Text files, line by line ------------------------------------------------------------------------------------ */

/* Lines and paths are static: threads have small stacks, and one caller at a time looks. */
enum { LINE_BYTES = 1024, NAME_BYTES = 32 };

struct reader {
    int descriptor; /* -1: nothing to be read */
    size_t at, end;
    char buffer[512];
};

static void open_reader(struct reader *reader, const char *path) {
    reader->descriptor = hak_os_open_file(path);
    reader->at = reader->end = 0;
}

static void close_reader(const struct reader *reader) {
    if (reader->descriptor >= 0) hak_os_close(reader->descriptor);
}

/* False at the end of the file, and where it can't be read. */
static bool next_byte(struct reader *reader, char *byte) {
    if (reader->descriptor < 0) return false;
    if (reader->at == reader->end) {
        reader->at = 0;
        reader->end = hak_os_read(reader->descriptor, reader->buffer, sizeof reader->buffer);
        if (reader->end == 0) return false;
    }
    *byte = reader->buffer[reader->at++];
    return true;
}

/* The next line, without its end; what does not fit is left out. False when there is none. */
static bool next_line(struct reader *reader, char *line, size_t capacity) {
    size_t length = 0;
    char byte;
    bool any = false;
    for (; next_byte(reader, &byte) && byte != '\n'; any = true)
        if (length + 1 < capacity) line[length++] = byte;
    line[length] = '\0';
    return any || (reader->descriptor >= 0 && reader->end != 0);
}

/* Cuts the next word off. NULL when there is none. */
static char *next_word(char **rest) {
    char *word = *rest + strspn(*rest, " ");
    if (*word == '\0') return NULL;
    size_t length = strcspn(word, " ");
    *rest = word + length + (word[length] != '\0');
    word[length] = '\0';
    return word;
}

/* True when `item` is in a list with commas. */
static bool has_item(const char *list, const char *item) {
    size_t length = strlen(item);
    for (; list != NULL; list = strchr(list, ',')) {
        if (*list == ',') list++;
        if (strncmp(list, item, length) == 0 && (list[length] == ',' || list[length] == '\0')) return true;
    }
    return false;
}

/* A decimal number and nothing else. */
static bool parse_number(const char *text, uint64_t *number) {
    uint64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (value > (UINT64_MAX - 9) / 10) return false;
        value = value * 10 + (uint64_t)(*at - '0');
    }
    *number = value;
    return at != text && *at == '\0';
}

/* ---- Files of a group -------------------------------------------------------------------------------------------- */

/* `path_length` says which group. */
static void open_in_group(struct reader *reader, const struct hak_memory_groups *groups, size_t path_length,
                          const char *name) {
    static char path[HAK_GROUP_PATH_BYTES + NAME_BYTES];
    memcpy(path, groups->path, path_length);
    path[path_length] = '/';
    memcpy(path + path_length + 1, name, strlen(name) + 1);
    open_reader(reader, path);
}

static bool read_number(const struct hak_memory_groups *groups, size_t path_length, const char *name,
                        uint64_t *number) {
    struct reader reader;
    char line[NAME_BYTES];
    open_in_group(&reader, groups, path_length, name);
    bool done = next_line(&reader, line, sizeof line) && parse_number(line, number);
    close_reader(&reader);
    return done;
}

/* Memory that holds what can be read from files again, or what the kernel keeps for speed alone: it takes that back
 * before a group is out of memory. */
static uint64_t reclaimable_bytes(const struct hak_memory_groups *groups, size_t path_length) {
    static const char *const names[2][3] = {{"total_inactive_file", "total_active_file", ""},
                                            {"inactive_file", "active_file", "slab_reclaimable"}};
    struct reader reader;
    char line[2 * NAME_BYTES];
    uint64_t bytes = 0, number;
    open_in_group(&reader, groups, path_length, "memory.stat");
    while (next_line(&reader, line, sizeof line)) {
        char *rest = line;
        const char *name = next_word(&rest);
        for (int i = 0; name != NULL && i < 3; i++)
            if (strcmp(name, names[groups->version - 1][i]) == 0 && parse_number(rest, &number)) bytes += number;
    }
    close_reader(&reader);
    return bytes;
}

static uint64_t limit_of(const struct hak_memory_groups *groups, size_t path_length) {
    static const char *const names[2][2] = {{"memory.limit_in_bytes", NULL}, {"memory.max", "memory.high"}};
    uint64_t limit = LARGEST_LIMIT, number;
    for (int i = 0; i < 2 && names[groups->version - 1][i] != NULL; i++)
        if (read_number(groups, path_length, names[groups->version - 1][i], &number) && number != 0 && number < limit)
            limit = number;
    return limit;
}

/* ---- Finding groups ---------------------------------------------------------------------------------------------- */

/* The process's group by its path in the hierarchy, as /proc/self/cgroup tells it: "4:memory:/path" where version 1
 * has the controller, else "0::/path". Returns the version. */
static uint32_t find_own_group(char *group, size_t capacity) {
    struct reader reader;
    static char line[LINE_BYTES];
    uint32_t version = 0;
    open_reader(&reader, "/proc/self/cgroup");
    while (version != 1 && next_line(&reader, line, sizeof line)) {
        char *controllers = strchr(line, ':'), *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        size_t length = path == NULL ? 0 : strlen(path + 1);
        if (length == 0 || length >= capacity) continue;
        *path++ = '\0';
        uint32_t of_line = has_item(controllers + 1, "memory") ? 1 : controllers[1] == '\0' ? 2 : 0;
        if (of_line == 0) continue;
        version = of_line;
        memcpy(group, path, length + 1);
    }
    close_reader(&reader);
    return version;
}

/* A line of /proc/self/mountinfo: "35 31 0:31 ROOT POINT OPTIONS ... - TYPE SOURCE OPTIONS", where ROOT is the group
 * that is seen at POINT. True when it is a mount of the memory controller's hierarchy. */
static bool parse_mount(char *line, uint32_t version, const char **root, const char **point) {
    char *rest = line, *word;
    for (int i = 0; i < 3; i++) next_word(&rest);
    *root = next_word(&rest);
    *point = next_word(&rest);
    do word = next_word(&rest);
    while (word != NULL && strcmp(word, "-") != 0);
    const char *type = next_word(&rest), *source = next_word(&rest), *options = next_word(&rest);
    if (source == NULL || options == NULL) return false;
    return version == 2 ? strcmp(type, "cgroup2") == 0 : strcmp(type, "cgroup") == 0 && has_item(options, "memory");
}

/* The part of `group` that is below `root`. NULL when it is not below, or leads out of what can be seen. */
static const char *part_below(const char *group, const char *root) {
    size_t length = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (strncmp(group, root, length) != 0 || (group[length] != '/' && group[length] != '\0')) return NULL;
    return strstr(group + length, "/..") == NULL ? group + length : NULL;
}

static bool set_path(struct hak_memory_groups *groups, const char *point, const char *part) {
    size_t point_length = strcmp(point, "/") == 0 ? 0 : strlen(point), part_length = strlen(part);
    if (strcmp(part, "/") == 0) part_length = 0;
    if (point_length + part_length >= sizeof groups->path) return false;
    memcpy(groups->path, point, point_length);
    memcpy(groups->path + point_length, part, part_length);
    groups->path_length = point_length + part_length;
    groups->path[groups->path_length] = '\0';
    return true;
}

/* Where nearly all systems show groups: asked first, because the list of mounts can be long, and the kernel writes all
 * of it. Returns the length of the mount's path, 0 when the group is not there. */
static size_t find_usual_folder(struct hak_memory_groups *groups, const char *group) {
    static const char *const points[2] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"};
    struct reader reader;
    const char *point = points[groups->version - 1], *part = part_below(group, "/");
    if (part == NULL || !set_path(groups, point, part)) return 0;
    open_in_group(&reader, groups, groups->path_length, "cgroup.procs"); /* each group has it */
    close_reader(&reader);
    return reader.descriptor < 0 ? 0 : strlen(point);
}

/* Where the group is to be seen. In a container it may be nowhere: what is mounted then is the container's own.
 * Returns the length of the mount's path; the version is 0 when there is no mount. */
static size_t find_folder(struct hak_memory_groups *groups, const char *group) {
    struct reader reader;
    static char line[LINE_BYTES];
    const char *root, *point;
    size_t mount_length = 0;
    uint32_t version = groups->version;
    bool found = false;
    groups->version = 0;
    open_reader(&reader, "/proc/self/mountinfo");
    while (!found && next_line(&reader, line, sizeof line)) {
        if (!parse_mount(line, version, &root, &point)) continue;
        const char *part = part_below(group, root);
        if (part == NULL && groups->version != 0) continue;
        found = part != NULL;
        if (!set_path(groups, point, found ? part : "")) continue;
        mount_length = strcmp(point, "/") == 0 ? 0 : strlen(point);
        groups->version = version;
    }
    close_reader(&reader);
    return mount_length;
}

static bool read_use(const struct hak_memory_groups *groups, size_t path_length, uint64_t *used_bytes) {
    static const char *const names[2] = {"memory.usage_in_bytes", "memory.current"};
    if (!read_number(groups, path_length, names[groups->version - 1], used_bytes)) return false;
    uint64_t reclaimable = reclaimable_bytes(groups, path_length);
    *used_bytes -= reclaimable < *used_bytes ? reclaimable : *used_bytes;
    return true;
}

static void find_limits(struct hak_memory_groups *groups, size_t mount_length) {
    for (size_t length = groups->path_length; groups->limit_count < HAK_GROUP_LIMITS;) {
        struct hak_memory_use *limit = &groups->limits[groups->limit_count];
        limit->limit_bytes = limit_of(groups, length);
        if (limit->limit_bytes != LARGEST_LIMIT && read_use(groups, length, &limit->used_bytes)) groups->limit_count++;
        if (length <= mount_length) break;
        do length--;
        while (length > mount_length && groups->path[length] != '/');
    }
}

void hak_memory_groups_find(struct hak_memory_groups *groups) {
    int saved_errno = errno;
    static char group[HAK_GROUP_PATH_BYTES];
    groups->limit_count = 0;
    groups->path_length = 0;
    groups->version = find_own_group(group, sizeof group);
    if (groups->version != 0) {
        size_t mount_length = find_usual_folder(groups, group);
        if (mount_length == 0) mount_length = find_folder(groups, group);
        if (groups->version != 0) find_limits(groups, mount_length);
    }
    errno = saved_errno;
}

/* ---- Looking ----------------------------------------------------------------------------------------------------- */

static uint64_t percent_used(struct hak_memory_use use) { return use.used_bytes / (use.limit_bytes / 100 + 1); }

struct hak_memory_use hak_memory_use(const struct hak_memory_groups *groups, int64_t more_bytes) {
    struct hak_memory_use nearest = {0, 0};
    for (uint32_t i = 0; i < groups->limit_count; i++) {
        struct hak_memory_use use = groups->limits[i];
        bool is_less = more_bytes < 0 && (uint64_t)-more_bytes > use.used_bytes;
        use.used_bytes = is_less ? 0 : use.used_bytes + (uint64_t)more_bytes;
        if (nearest.limit_bytes == 0 || percent_used(use) > percent_used(nearest)) nearest = use;
    }
    return nearest;
}
