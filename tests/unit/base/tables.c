/* The tables of settings, knobs and counters: that each row explains itself, and that knobs start within their bounds. */
#include "unit.h"

#include <string.h>

#include "base/config.h"
#include "base/counters.h"
#include "base/knobs.h"
#include "base/profile.h"

static bool explains(const char *text) {
    size_t length = strlen(text);
    return length >= 10 && strchr(text, '\n') == NULL && text[length - 1] != '.';
}

static bool ends_with_any(const char *name, const char *const *endings) {
    for (; *endings != NULL; endings++) {
        size_t length = strlen(name), ending = strlen(*endings);
        if (length > ending && strcmp(name + length - ending, *endings) == 0) return true;
    }
    return false;
}

static void options(void **state) {
    (void)state;
    char names[4096] = " ";
#define HAK_OPTION(field, name, kind, fallback, help)                                                                  \
    assert_true(strncmp(name, "HAKMEM_", 7) == 0);                                                                     \
    assert_true(explains(help));                                                                                       \
    assert_null(strstr(names, " " name " "));                                                                          \
    strcat(names, name " ");
#include "base/config.def"
#undef HAK_OPTION
}

static void knobs(void **state) {
    (void)state;
    static const char *const units[] = {"_bytes", "_ns", "_ms", "_count", "_slots", "_slabs", "_share", "_mode", NULL};
#define HAK_KNOB(name, initial, lowest, highest, text)                                                                 \
    assert_true(hak_knob(name) == (uint64_t)(initial));                                                                \
    assert_in_range(initial, lowest, highest);                                                                         \
    assert_true(explains(text));                                                                                       \
    assert_true(ends_with_any(#name, units));
#include "base/knobs.def"
#undef HAK_KNOB
}

static void profiles(void **state) {
    (void)state;
    char names[256] = "";
    for (uint64_t profile = 0; hak_profile_names[profile] != NULL; profile++) {
        if (profile > 0) strcat(names, ", ");
        strcat(names, hak_profile_names[profile]);
        assert_non_null(hak_profile_aliases[profile]);
        for (uint32_t i = 0; i < HAK_KNOB_COUNT; i++) hak_knob_set((enum hak_knob_number)i, hak_knob_table[i].initial);
        hak_profile_apply(profile);
        bool differs = false;
        for (uint32_t i = 0; i < HAK_KNOB_COUNT; i++) {
            assert_true(hak_knob_get((enum hak_knob_number)i) >= hak_knob_table[i].lowest &&
                        hak_knob_get((enum hak_knob_number)i) <= hak_knob_table[i].highest);
            differs = differs || hak_knob_get((enum hak_knob_number)i) != hak_knob_table[i].initial;
        }
        assert_true(differs == (profile > 0));
        assert_true(hak_knob(huge_page_mode) == 1 && hak_knob(prefault_mode) == 0 && hak_knob(lazy_purge_mode) == 0);
    }
    assert_string_equal(names, HAK_PROFILE_NAMES);
#define HAK_PROFILE(name, alias, goal, values, help) assert_true(explains(help));
#include "base/profile.def"
#undef HAK_PROFILE
}

static void counters(void **state) {
    (void)state;
    static struct hak_counters counters;
    size_t count = 0;
#define HAK_COUNTER(name, text)                                                                                        \
    assert_true(explains(text));                                                                                       \
    hak_counter_add(&counters.name, 5);                                                                                \
    hak_counter_add_shared(&counters.name, 2);                                                                         \
    assert_int_equal(hak_atomic_load(&counters.name, relaxed), 7);                                                     \
    count++;
#include "base/counters.def"
#undef HAK_COUNTER
    assert_int_equal(sizeof counters, count * sizeof(uint64_t));
}

UNIT_MAIN(cmocka_unit_test(options), cmocka_unit_test(knobs), cmocka_unit_test(profiles), cmocka_unit_test(counters))
