/* observe/metrics.h: that all figures are there, each with what the format wants before it, and that they fit at their largest. The
 * laboratory's tests have them read by a parser of somebody else's. */
#include "heap_fixture.h"

#include "base/experiment.h"
#include "observe/metrics.h"

static struct hak_snapshot snapshot;
static char buffer[HAK_SNAPSHOT_TEXT_BYTES];

static const char *write_it(void) {
    struct hak_text text = hak_text_in(buffer, sizeof buffer);
    hak_snapshot_write_metrics(&snapshot, &text);
    assert_false(text.truncated);
    assert_string_equal(buffer + text.length - 6, "# EOF\n");
    return buffer;
}

static void says_all(void **state) {
    (void)state;
    hak_size_class_initialize(0);
#define HAK_TOTAL(field, kind, text) snapshot.total.field = 1000 + offsetof(struct hak_statistics, field);
#include "observe/totals.def"
#undef HAK_TOTAL
#define HAK_COUNTER(name, text) snapshot.name = 2000 + offsetof(struct hak_snapshot, name);
#include "base/counters.def"
#undef HAK_COUNTER
    const char *said = write_it();
    char line[200];
#define HAK_TOTAL(field, kind, text)                                                                                   \
    snprintf(line, sizeof line, "\nhakmem_%s%s %zu\n", #field, #kind[0] == 'c' ? "_total" : "",                        \
             1000 + offsetof(struct hak_statistics, field));                                                           \
    assert_non_null(strstr(said, line));                                                                               \
    assert_non_null(strstr(said, "\n# HELP hakmem_" #field " " text "\n"));                                            \
    assert_non_null(strstr(said, "\n# TYPE hakmem_" #field " " #kind "\n"));
#include "observe/totals.def"
#undef HAK_TOTAL
#define HAK_COUNTER(name, text)                                                                                        \
    snprintf(line, sizeof line, "\nhakmem_%s_total %zu\n", #name, 2000 + offsetof(struct hak_snapshot, name));         \
    assert_non_null(strstr(said, line));
#include "base/counters.def"
#undef HAK_COUNTER
    assert_non_null(strstr(said, "# UNIT hakmem_live_bytes bytes\n"));
    assert_null(strstr(said, "# UNIT hakmem_live_blocks"));
}

static void classes(void **state) {
    (void)state;
    hak_size_class_initialize(0);
    memset(&snapshot, 0, sizeof snapshot);
    snapshot.classes[2] = (struct hak_class_stats){3, 10, 20, 30};
    const char *said = write_it();
    assert_non_null(strstr(said, "\nhakmem_class_slabs{size=\"32\"} 3\n# TYPE hakmem_class_blocks gauge\n"));
    assert_non_null(strstr(said, "\nhakmem_class_blocks{size=\"32\",state=\"live\"} 10\n"));
    assert_non_null(strstr(said, "\nhakmem_class_blocks{size=\"32\",state=\"cached\"} 20\n"));
    assert_non_null(strstr(said, "\nhakmem_class_blocks{size=\"32\",state=\"free\"} 30\n# EOF\n"));
}

static void fits(void **state) {
    (void)state;
    hak_size_class_initialize(0);
    memset(&snapshot, 0xff, sizeof snapshot);
    assert_non_null(strstr(write_it(), "hakmem_heaps 18446744073709551615\n"));
}

static void says_the_arm(void **state) {
    (void)state;
    assert_null(strstr(write_it(), "experiment"));
    hak_experiment = (struct hak_experiment){.name = "decay", .is_treated = true};
    assert_non_null(strstr(write_it(), "\n# TYPE hakmem_experiment info\n"));
    assert_non_null(strstr(buffer, "\nhakmem_experiment_info{name=\"decay\",arm=\"treatment\"} 1\n"));
    hak_experiment.is_treated = false;
    assert_non_null(strstr(write_it(), "\nhakmem_experiment_info{name=\"decay\",arm=\"control\"} 1\n"));
    hak_experiment.name[0] = '\0';
}

UNIT_MAIN(cmocka_unit_test(says_the_arm), cmocka_unit_test(says_all), cmocka_unit_test(classes), cmocka_unit_test(fits))
