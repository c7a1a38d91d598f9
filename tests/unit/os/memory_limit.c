/* os/memory_limit.h over files that the test writes: each way in which systems show control groups, and files that are
 * missing, vanish, or make no sense. */
#include "unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "fake_os.h"
#include "os/memory_limit.h"

#define V2_MOUNT                                                                                                       \
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n"                                                                  \
    "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MOUNTS                                                                                                      \
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"                                     \
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 master:1 - cgroup cgroup rw,memory\n"                     \
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"

static struct hak_memory_groups groups;

static void find(const struct fake_file *files) {
    fake_os.files = files;
    memset(&groups, 0xa5, sizeof groups);
    errno = 1234;
    hak_memory_groups_find(&groups);
    assert_int_equal(errno, 1234);
    assert_int_equal(fake_os.open_count, 0);
}

static void expect_use(uint64_t limit_bytes, uint64_t used_bytes) {
    errno = 1234;
    struct hak_memory_use use = hak_memory_use(&groups, 0);
    assert_int_equal(errno, 1234);
    assert_int_equal(fake_os.open_count, 0);
    assert_int_equal(use.limit_bytes, limit_bytes);
    assert_int_equal(use.used_bytes, used_bytes);
}

/* ---- Version 2 --------------------------------------------------------------------------------------------------- */

static void version_2(void **state) {
    (void)state;
    static const struct fake_file files[] = {{"/proc/self/cgroup", "0::/user.slice/app.scope\n"},
                                             {"/proc/self/mountinfo", V2_MOUNT},
                                             {"/sys/fs/cgroup/user.slice/app.scope/memory.max", "104857600\n"},
                                             {"/sys/fs/cgroup/user.slice/app.scope/memory.high", "max\n"},
                                             {"/sys/fs/cgroup/user.slice/app.scope/memory.current", "20971520\n"},
                                             {"/sys/fs/cgroup/user.slice/memory.max", "max\n"},
                                             {NULL, NULL}};
    find(files);
    assert_int_equal(groups.version, 2);
    assert_string_equal(groups.path, "/sys/fs/cgroup/user.slice/app.scope");
    assert_int_equal(groups.limit_count, 1);
    expect_use(100 * HAK_MIB, 20 * HAK_MIB);
}

/* The group that is nearest to its limit counts, and memory.high is a limit, too. */
static void nested(void **state) {
    (void)state;
    static char inner[32] = "50000000\n";
    static const struct fake_file files[] = {{"/proc/self/cgroup", "0::/a/b/c\n"},
                                             {"/proc/self/mountinfo", V2_MOUNT},
                                             {"/sys/fs/cgroup/a/b/c/memory.max", "200000000\n"},
                                             {"/sys/fs/cgroup/a/b/c/memory.high", "100000000\n"},
                                             {"/sys/fs/cgroup/a/b/c/memory.current", inner},
                                             {"/sys/fs/cgroup/a/memory.max", "400000000\n"},
                                             {"/sys/fs/cgroup/a/memory.current", "280000000\n"},
                                             {NULL, NULL}};
    find(files);
    assert_int_equal(groups.limit_count, 2);
    expect_use(400000000, 280000000);
    strcpy(inner, "72000000\n");
    expect_use(400000000, 280000000); /* files are read once */
    find(files);
    expect_use(100000000, 72000000);
}

/* What files hold is left out. */
static void contents_of_files(void **state) {
    (void)state;
    static char current[32] = "70000000\n";
    static const struct fake_file files[] = {{"/proc/self/cgroup", "0::/a\n"},
                                             {"/proc/self/mountinfo", V2_MOUNT},
                                             {"/sys/fs/cgroup/a/memory.max", "100000000\n"},
                                             {"/sys/fs/cgroup/a/memory.current", current},
                                             {"/sys/fs/cgroup/a/memory.stat",
                                              "anon 10000000\nfile 70000000\nkernel 5\n"
                                              "inactive_file 40000000\n"
                                              "active_file 20000000\n"
                                              "slab_reclaimable 5000000\nslab 9000000\n"},
                                             {NULL, NULL}};
    find(files);
    expect_use(100000000, 5000000);
    strcpy(current, "99000000\n");
    find(files);
    expect_use(100000000, 34000000);
    strcpy(current, "130000000\n"); /* above the limit, for a moment or because it was lowered */
    find(files);
    expect_use(100000000, 65000000);
}

/* What comes later counts for all groups; which is the nearest, changes. */
static void more_and_less(void **state) {
    (void)state;
    static const struct fake_file files[] = {{"/proc/self/cgroup", "0::/a/b\n"},
                                             {"/proc/self/mountinfo", V2_MOUNT},
                                             {"/sys/fs/cgroup/a/b/memory.max", "100000000\n"},
                                             {"/sys/fs/cgroup/a/b/memory.current", "10000000\n"},
                                             {"/sys/fs/cgroup/a/memory.max", "1000000000\n"},
                                             {"/sys/fs/cgroup/a/memory.current", "500000000\n"},
                                             {NULL, NULL}};
    find(files);
    size_t calls = fake_os.file_calls;
    struct hak_memory_use use = hak_memory_use(&groups, 30000000);
    assert_true(use.limit_bytes == 1000000000 && use.used_bytes == 530000000);
    use = hak_memory_use(&groups, 80000000);
    assert_true(use.limit_bytes == 100000000 && use.used_bytes == 90000000);
    use = hak_memory_use(&groups, -20000000);
    assert_true(use.limit_bytes == 1000000000 && use.used_bytes == 480000000);
    use = hak_memory_use(&groups, -600000000);
    assert_int_equal(use.used_bytes, 0);
    assert_int_equal(fake_os.file_calls, calls);
}

/* Where groups are at the usual place, the list of mounts is not read. */
static void without_mounts(void **state) {
    (void)state;
    static const struct fake_file version_2[] = {{"/proc/self/cgroup", "0::/a\n"},
                                                 {"/sys/fs/cgroup/a/cgroup.procs", ""},
                                                 {"/sys/fs/cgroup/a/memory.max", "64000000\n"},
                                                 {"/sys/fs/cgroup/a/memory.current", "1000000\n"},
                                                 {NULL, NULL}};
    static const struct fake_file version_1[] = {{"/proc/self/cgroup", "4:memory:/\n0::/z\n"},
                                                 {"/sys/fs/cgroup/memory/cgroup.procs", ""},
                                                 {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "64000000\n"},
                                                 {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n"},
                                                 {NULL, NULL}};
    find(version_2);
    expect_use(64000000, 1000000);
    find(version_1);
    expect_use(64000000, 1000000);
}

/* ---- Version 1 --------------------------------------------------------------------------------------------------- */

static void version_1(void **state) {
    (void)state;
    static const struct fake_file files[] = {
        {"/proc/self/cgroup", "9:name=systemd:/\n5:cpu,cpuacct:/x\n4:memory:/box/1\n0::/\n"},
        {"/proc/self/mountinfo", V1_MOUNTS},
        {"/sys/fs/cgroup/memory/box/1/memory.limit_in_bytes", "64000000\n"},
        {"/sys/fs/cgroup/memory/box/1/memory.usage_in_bytes", "63000000\n"},
        {"/sys/fs/cgroup/memory/box/1/memory.stat", "inactive_file 1\nactive_file 1\nhierarchical_memory_limit 1\n"
                                                    "total_inactive_file 2000000\ntotal_active_file 1000000\n"},
        {"/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "9223372036854771712\n"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
        {NULL, NULL}};
    find(files);
    assert_int_equal(groups.version, 1);
    assert_int_equal(groups.limit_count, 1);
    expect_use(64000000, 60000000);
}

/* A container sees its own group as the root of the mount; its path from outside is nowhere to be seen. */
static void in_a_container(void **state) {
    (void)state;
    static const struct fake_file docker[] = {
        {"/proc/self/cgroup", "4:memory:/docker/0123abc\n"},
        {"/proc/self/mountinfo",
         "700 690 0:32 /docker/0123abc /sys/fs/cgroup/memory ro,nosuid master:17 - cgroup cgroup rw,memory\n"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "64000000\n"},
        {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n"},
        {NULL, NULL}};
    static const struct fake_file elsewhere[] = {
        {"/proc/self/cgroup", "4:memory:/kubepods/pod7/77\n"},
        {"/proc/self/mountinfo", "700 690 0:32 / /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory\n"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "64000000\n"},
        {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n"},
        {NULL, NULL}};
    static const struct fake_file other_root[] = {
        {"/proc/self/cgroup", "0::/../other\n"},
        {"/proc/self/mountinfo", "700 690 0:32 /pods/1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n"},
        {"/sys/fs/cgroup/memory.max", "64000000\n"},
        {"/sys/fs/cgroup/memory.current", "1000000\n"},
        {"/sys/fs/cgroup/../other/memory.max", "1\n"},
        {NULL, NULL}};
    const struct fake_file *const all[] = {docker, elsewhere, other_root};
    for (int i = 0; i < 3; i++) {
        find(all[i]);
        expect_use(64000000, 1000000);
    }
}

/* Of two mounts the one that shows the group. */
static void mounted_twice(void **state) {
    (void)state;
    static const struct fake_file files[] = {{"/proc/self/cgroup", "0::/a/b\n"},
                                             {"/proc/self/mountinfo", "1 1 0:1 /z /mnt/z rw - cgroup2 none rw\n"
                                                                      "1 1 0:1 /a /mnt/a rw - cgroup2 none rw\n"
                                                                      "1 1 0:1 / /mnt/all rw - cgroup2 none rw\n"},
                                             {"/mnt/z/memory.max", "1000000\n"},
                                             {"/mnt/a/b/memory.max", "2000000\n"},
                                             {"/mnt/a/b/memory.current", "10\n"},
                                             {"/mnt/a/memory.max", "3000000\n"},
                                             {"/mnt/a/memory.current", "30\n"},
                                             {NULL, NULL}};
    find(files);
    assert_string_equal(groups.path, "/mnt/a/b");
    assert_int_equal(groups.limit_count, 2);
    assert_int_equal(groups.limits[1].limit_bytes, 3000000);
}

/* ---- What is not there, or makes no sense ------------------------------------------------------------------------ */

static void nothing_there(void **state) {
    (void)state;
    static const struct fake_file no_mount[] = {{"/proc/self/cgroup", "0::/a\n"}, {"/proc/self/mountinfo", ""}, {0}};
    static const struct fake_file no_mounts[] = {{"/proc/self/cgroup", "0::/a\n"}, {0}};
    static const struct fake_file no_memory[] = {
        {"/proc/self/cgroup", "3:cpu:/a\n"}, {"/proc/self/mountinfo", V1_MOUNTS}, {0}};
    static const struct fake_file garbage[] = {{"/proc/self/cgroup", "\n:\n::\nabc\n0:/x\n\n0::"},
                                               {"/proc/self/mountinfo", "\n1\n1 2 3 4 5\n- - - - - - - -\n 1 2 3 - x"},
                                               {0}};
    const struct fake_file *const all[] = {NULL, no_mount, no_mounts, no_memory, garbage};
    for (int i = 0; i < 5; i++) {
        find(all[i]);
        assert_int_equal(groups.version, 0);
        expect_use(0, 0);
    }
}

static void strange_numbers(void **state) {
    (void)state;
    static char limit[64], current[64];
    static const struct fake_file files[] = {
        {"/proc/self/cgroup", "0::/\n"},
        {"/proc/self/mountinfo", V2_MOUNT},
        {"/sys/fs/cgroup/memory.max", limit},
        {"/sys/fs/cgroup/memory.current", current},
        {"/sys/fs/cgroup/memory.stat", "inactive_file\nactive_file x\n\n \nslab_r"},
        {0}};
    static const char *const none[] = {
        "", "\n", "max\n", "0\n", "-1\n", "1x\n", "99999999999999999999999\n", "x", "18446744073709551615\n"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        strcpy(limit, none[i]);
        find(files);
        assert_int_equal(groups.limit_count, 0);
    }
    strcpy(limit, "1000000"); /* without the end of the line */
    strcpy(current, "max\n");
    find(files);
    assert_int_equal(groups.limit_count, 0);
    expect_use(0, 0);
    strcpy(current, "990000\n"); /* of which the rest is not known */
    find(files);
    expect_use(1000000, 990000);
}

/* More groups than there are places for, and paths that are too long, are left out from above, or altogether. */
static void too_much(void **state) {
    (void)state;
    static char cgroup[8192], mounts[16384], path[8300], name[8400];
    static struct fake_file files[2 * HAK_GROUP_LIMITS + 16];
    size_t count = 0;
    strcpy(cgroup, "0::");
    for (int i = 0; i < HAK_GROUP_LIMITS + 4; i++) strcat(cgroup, "/d");
    snprintf(path, sizeof path, "/sys/fs/cgroup%s", cgroup + 3);
    strcat(cgroup, "\n");
    files[count++] = (struct fake_file){"/proc/self/cgroup", cgroup};
    files[count++] = (struct fake_file){"/proc/self/mountinfo", mounts};
    memset(mounts, 'x', 9000); /* a line that is longer than any buffer */
    strcpy(mounts + 9000, "\n" V2_MOUNT);
    for (int i = 0; i < HAK_GROUP_LIMITS + 4; i++) {
        snprintf(name, sizeof name, "%s/memory.max", path);
        files[count++] = (struct fake_file){strdup(name), "1000000\n"};
        snprintf(name, sizeof name, "%s/memory.current", path);
        files[count++] = (struct fake_file){strdup(name), "1000\n"};
        path[strlen(path) - 2] = '\0';
    }
    find(files);
    assert_int_equal(groups.limit_count, HAK_GROUP_LIMITS);
    memset(cgroup + 3, 'x', 5000);
    strcpy(cgroup + 5003, "\n");
    find(files);
    assert_int_equal(groups.limit_count, 0);
}

/* ---- Refusals and slices ----------------------------------------------------------------------------------------- */

static const struct fake_file some_files[] = {
    {"/proc/self/cgroup", "5:cpu:/q\n0::/a/b\n"},
    {"/proc/self/mountinfo", V2_MOUNT},
    {"/sys/fs/cgroup/a/b/memory.max", "1000000\n"},
    {"/sys/fs/cgroup/a/b/memory.current", "990000\n"},
    {"/sys/fs/cgroup/a/b/memory.stat", "inactive_file 100000\nactive_file 100000\n"},
    {"/sys/fs/cgroup/a/memory.max", "3000000\n"},
    {"/sys/fs/cgroup/a/memory.current", "1000\n"},
    {0}};

/* Each call that opens or reads is refused in turn: less is known then, and nothing that is not true. */
static void refusals(void **state) {
    (void)state;
    size_t calls = 0;
    for (size_t nth = 1; nth < 60; nth++) {
        fake_os.file_calls = 0;
        fake_os.refused_file_call = nth;
        find(some_files);
        struct hak_memory_use use = hak_memory_use(&groups, 0);
        calls = fake_os.file_calls;
        assert_int_equal(fake_os.open_count, 0);
        if (use.limit_bytes == 1000000) assert_in_range(use.used_bytes, 790000, 990000);
        else assert_true((use.limit_bytes == 3000000 && use.used_bytes == 1000) || use.limit_bytes == 0);
    }
    assert_in_range(calls, 20, 60); /* all was read in the end */
    expect_use(1000000, 790000);
}

static void slices(void **state) {
    (void)state;
    for (fake_os.read_bytes = 1; fake_os.read_bytes < 70; fake_os.read_bytes++) {
        find(some_files);
        expect_use(1000000, 790000);
    }
}

UNIT_MAIN(cmocka_unit_test(version_2), cmocka_unit_test(nested), cmocka_unit_test(contents_of_files),
          cmocka_unit_test(more_and_less), cmocka_unit_test(without_mounts), cmocka_unit_test(version_1),
          cmocka_unit_test(in_a_container), cmocka_unit_test(mounted_twice), cmocka_unit_test(nothing_there),
          cmocka_unit_test(strange_numbers), cmocka_unit_test(too_much), cmocka_unit_test(refusals),
          cmocka_unit_test(slices))
