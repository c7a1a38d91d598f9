/* front/follow.h: which file is followed, what is said of one that isn't, and what wins over it. */
#include "heap_fixture.h"

#include <errno.h>

#include "base/version.h"
#include "control/policy.h"
#include "front/follow.h"
#include "pool/bin_size.h"

#define ID "01020304"
#define USERS "/home/me/.config/hakmem/policies/" ID
#define CONFIGURED "/my/settings/hakmem/policies/" ID
#define SYSTEMS "/etc/hakmem/policies/" ID
#define POLICY(program, lines) "hakmem policy 1\nversion " HAK_VERSION_TEXT "\nprogram " program "\n" lines "end\n"

static char home[] = "HOME=/home/me", configuration[] = "XDG_CONFIG_HOME=/my/settings",
            relative[] = "XDG_CONFIG_HOME=settings", empty[] = "XDG_CONFIG_HOME=", no_home[] = "HOME=";

static char opened[1024], said[8192];
static bool is_followed;

static void note(const char *path) { strcat(strcat(opened, path), "\n"); }

/* Of these variables and files, what is opened and said. */
static void follow_explained(const char *setting, char *const *variables, const struct fake_file *files,
                             bool explains) {
    struct hak_text messages = hak_text_in(said, sizeof said);
    opened[0] = '\0';
    fake_os.files = files;
    fake_os.at_open = note;
    is_followed = hak_follow_policy(setting, variables, explains, &messages);
    assert_int_equal(fake_os.open_count, 0);
}

static void follow(const char *setting, char *const *variables, const struct fake_file *files) {
    follow_explained(setting, variables, files, false);
}

#define VARIABLES(...)                                                                                                 \
    (char *[]) { __VA_ARGS__, NULL }
#define FILES(...)                                                                                                     \
    (struct fake_file[]) {                                                                                             \
        __VA_ARGS__, { NULL, NULL }                                                                                    \
    }

static void a_file_by_name(void **state) {
    (void)state;
    follow("my.policy", VARIABLES(home), FILES({"my.policy", POLICY(ID, "knob decay_ms 4000\nclass 2048 64\n")}));
    assert_true(is_followed);
    assert_string_equal(said, "");
    assert_string_equal(opened, "my.policy\n");
    assert_int_equal(hak_knob(decay_ms), 4000);
    assert_true(hak_knob_is_given(HAK_KNOB_decay_ms));
    assert_false(hak_knob_is_given(HAK_KNOB_held_slabs));
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++)
        assert_int_equal(hak_atomic_load(&hak_class_slots[i], relaxed),
                         hak_size_classes[i].block_bytes == 2048 ? 64 : 0);
    follow("absent", VARIABLES(home), NULL);
    assert_false(is_followed);
    assert_string_equal(said, "hakmem: setting HAKMEM_POLICY=absent ignored: can't be read\n");
    follow("other", VARIABLES(home), FILES({"other", POLICY("00", "")}));
    assert_false(is_followed);
    assert_string_equal(said, "hakmem: setting HAKMEM_POLICY=other ignored: made for another program\n");
}

static void found_by_build_id(void **state) {
    (void)state;
    const struct fake_file *all =
        FILES({USERS, POLICY(ID, "knob decay_ms 10\n")}, {CONFIGURED, POLICY("any", "knob decay_ms 20\n")},
              {SYSTEMS, POLICY(ID, "knob decay_ms 30\n")});
    static const struct {
        char *variables[3];
        uint64_t decay_ms;
        const char *opened;
    } cases[] = {
        {{home}, 10, USERS "\n"},
        {{home, configuration}, 20, CONFIGURED "\n"},
        {{configuration}, 20, CONFIGURED "\n"},
        {{home, relative}, 10, USERS "\n"},
        {{empty, home}, 10, USERS "\n"},
        {{no_home}, 30, SYSTEMS "\n"},
        {{NULL}, 30, SYSTEMS "\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        follow("auto", cases[i].variables, all);
        assert_true(is_followed);
        assert_string_equal(said, "");
        assert_string_equal(opened, cases[i].opened);
        assert_int_equal(hak_knob(decay_ms), cases[i].decay_ms);
    }
    follow_explained("auto", VARIABLES(home), all, true);
    assert_string_equal(said, "hakmem: policy " USERS " is followed\n");
}

static void none_is_found(void **state) {
    (void)state;
    follow("auto", VARIABLES(home), NULL);
    assert_false(is_followed);
    assert_string_equal(said, "");
    assert_string_equal(opened, USERS "\n" SYSTEMS "\n");
    follow_explained("auto", VARIABLES(home), NULL, true);
    assert_string_equal(said, "hakmem: HAKMEM_POLICY=auto: there is no policy for build id " ID "\n");
}

static void a_refused_one_is_passed_over(void **state) {
    (void)state;
    static char large[HAK_POLICY_BYTES + 2];
    memset(large, 'x', sizeof large - 1);
    follow("auto", VARIABLES(home), FILES({USERS, large}, {SYSTEMS, POLICY(ID, "knob decay_ms 30\n")}));
    assert_true(is_followed);
    assert_string_equal(said, "hakmem: policy " USERS " ignored: too large\n");
    assert_int_equal(hak_knob(decay_ms), 30);
    follow("auto", VARIABLES(home), FILES({USERS, POLICY(ID, "knob decay_ms 1\n")}, {SYSTEMS, POLICY("00", "")}));
    assert_false(is_followed);
    assert_string_equal(said, "hakmem: policy " USERS " ignored: damaged\n"
                              "hakmem: policy " SYSTEMS " ignored: made for another program\n");
    assert_int_equal(hak_knob(decay_ms), 30);
    follow("my.policy", VARIABLES(home), FILES({"my.policy", large}));
    assert_string_equal(said, "hakmem: setting HAKMEM_POLICY=my.policy ignored: too large\n");
}

static void as_large_as_can_be(void **state) {
    (void)state;
    static const char begin[] =
        "hakmem policy 1\nversion " HAK_VERSION_TEXT "\nprogram any\nknob decay_ms 40\nevidence ",
                      end[] = "\nend\n";
    static char large[HAK_POLICY_BYTES + 1];
    memset(large, 'x', sizeof large - 1);
    memcpy(large, begin, sizeof begin - 1);
    memcpy(large + sizeof large - sizeof end, end, sizeof end);
    follow("auto", VARIABLES(home), FILES({USERS, large}));
    assert_true(is_followed);
    assert_int_equal(hak_knob(decay_ms), 40);
}

/* Said only to who asks. */
static void one_out_of_reach(void **state) {
    (void)state;
    for (int explains = 0; explains < 2; explains++) {
        fake_os.absence = EACCES;
        follow_explained("auto", VARIABLES(home), NULL, explains == 1);
        fake_os.absence = 0;
        assert_false(is_followed);
        assert_string_equal(said, explains == 0 ? ""
                                                : "hakmem: policy " USERS " ignored: can't be read\n"
                                                  "hakmem: policy " SYSTEMS " ignored: can't be read\n"
                                                  "hakmem: HAKMEM_POLICY=auto: there is no policy for build id " ID
                                                  "\n");
    }
}

static void a_program_without_build_id(void **state) {
    (void)state;
    fake_os.build_id_bytes = 0;
    follow("auto", VARIABLES(home), FILES({"/home/me/.config/hakmem/policies/", POLICY("any", "")}));
    assert_false(is_followed);
    assert_string_equal(opened, "");
    assert_string_equal(said, "");
    follow_explained("auto", VARIABLES(home), NULL, true);
    assert_string_equal(said, "hakmem: HAKMEM_POLICY=auto: the program has no build id\n");
    fake_os.build_id_bytes = sizeof fake_os.build_id;
}

static void a_path_that_is_too_long(void **state) {
    (void)state;
    static char variable[5000] = "HOME=/";
    memset(variable + 6, 'x', sizeof variable - 7);
    follow("auto", VARIABLES(variable), FILES({SYSTEMS, POLICY(ID, "")}));
    assert_true(is_followed);
    assert_string_equal(opened, SYSTEMS "\n");
}

/* Three knobs have settings of their own. */
static void settings_win(void **state) {
    (void)state;
    const struct fake_file *file = FILES({"p", POLICY("any", "knob huge_page_mode 2\nknob prefault_mode 1\n")});
    hak_knob_set(HAK_KNOB_huge_page_mode, 0);
    follow("p", VARIABLES(home), file);
    assert_int_equal(hak_knob(huge_page_mode), 0);
    assert_false(hak_knob_is_given(HAK_KNOB_huge_page_mode));
    assert_int_equal(hak_knob(prefault_mode), 1);
    hak_knob_set(HAK_KNOB_huge_page_mode, 1);
    follow("p", VARIABLES(home), file);
    assert_int_equal(hak_knob(huge_page_mode), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_by_name),
        cmocka_unit_test(found_by_build_id),
        cmocka_unit_test(none_is_found),
        cmocka_unit_test(a_refused_one_is_passed_over),
        cmocka_unit_test(as_large_as_can_be),
        cmocka_unit_test(one_out_of_reach),
        cmocka_unit_test(a_program_without_build_id),
        cmocka_unit_test(a_path_that_is_too_long),
        cmocka_unit_test(settings_win),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
