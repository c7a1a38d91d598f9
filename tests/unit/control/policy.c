/* control/policy.h: what is understood, and that whatever is damaged, or made for something else, is refused. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "control/policy.h"

static const unsigned char id[] = {0x01, 0xab, 0xff};
static const struct hak_policy_program program = {"1.2.3", id, sizeof id};
static struct hak_policy policy;

static const char good[] = "hakmem policy 1\nversion 1.2.3\nprogram 01abff\nknob decay_ms 4000\nclass 2048 64\n"
                           "evidence kept decay_ms 1000 -> 4000, odds 25\nknob held_slabs 64\n";

static const char *parse(const char *text) { return hak_policy_parse(text, &program, &policy); }

static const char *with_end(const char *text) {
    static char whole[4096];
    snprintf(whole, sizeof whole, "%send %016llx\n", text, (unsigned long long)hak_policy_sum(text, strlen(text)));
    return whole;
}

static void understood(void **state) {
    (void)state;
    hak_size_class_initialize(0);
    assert_null(parse(with_end(good)));
    assert_true(policy.has_knob[HAK_KNOB_decay_ms] && policy.knobs[HAK_KNOB_decay_ms] == 4000);
    assert_true(policy.has_knob[HAK_KNOB_held_slabs] && policy.knobs[HAK_KNOB_held_slabs] == 64);
    assert_false(policy.has_knob[HAK_KNOB_bin_bytes]);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++)
        assert_int_equal(policy.class_slots[i], hak_size_classes[i].block_bytes == 2048 ? 64 : 0);
    assert_null(parse("hakmem policy 1\nversion 1.2.3\nprogram any\nend\n")); /* by hand */
}

static void refused(void **state) {
    (void)state;
    hak_size_class_initialize(0);
    static const struct {
        const char *lines, *problem;
    } cases[] = {
        {"version 1.2.4\nprogram any\nend\n", "made for another version of hakmem"},
        {"version 1.2.3.4\nprogram any\nend\n", "made for another version of hakmem"},
        {"version 1.2.3\nprogram 01abfe\nend\n", "made for another program"},
        {"version 1.2.3\nprogram 01ab\nend\n", "made for another program"},
        {"version 1.2.3\nprogram 01abff00\nend\n", "made for another program"},
        {"version 1.2.3\nend\n", "damaged"},
        {"version 1.2.3\nprogram any\n", "damaged"},
        {"version 1.2.3\nprogram any\nend", "damaged"},
        {"version 1.2.3\nprogram any\nend\nmore\n", "damaged"},
        {"version 1.2.3\nprogram any\nend 0123456789abcdef\n", "damaged"},
        {"version 1.2.3\nprogram any\nknob decay 1\nend\n", "damaged"},
        {"version 1.2.3\nprogram any\nknob decay_ms\nend\n", "damaged"},
        {"version 1.2.3\nprogram any\nknob decay_ms x\nend\n", "damaged"},
        {"version 1.2.3\nprogram any\nknob decay_ms 9\nend\n", "damaged"},
        {"version 1.2.3\nprogram any\nknob decay_ms 3600001\nend\n", "damaged"},
        {"version 1.2.3\nprogram any\nknob decay_ms 99999999999999999999\nend\n", "damaged"},
        {"version 1.2.3\nprogram any\nclass 2049 64\nend\n", "damaged"},
        {"version 1.2.3\nprogram any\nclass 2048 3\nend\n", "damaged"},
        {"version 1.2.3\nprogram any\nclass 2048 513\nend\n", "damaged"},
        {"version 1.2.3\nprogram any\nevidence", "damaged"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, "hakmem policy 1\n%s", cases[i].lines);
        const char *problem = parse(text);
        assert_non_null(problem);
        assert_string_equal(problem, cases[i].problem);
    }
    assert_string_equal(parse(""), "not a policy");
    assert_string_equal(parse("hakmem policy 2\n"), "not a policy");
}

static void any_damage(void **state) { /* every byte that is changed, and every end that is cut off */
    (void)state;
    hak_size_class_initialize(0);
    char text[1024];
    const char *whole = with_end(good);
    size_t length = strlen(whole);
    for (size_t at = 0; at < length; at++) {
        memcpy(text, whole, length + 1);
        text[at] ^= 1;
        assert_non_null(parse(text));
        text[at] = '\0';
        assert_non_null(parse(text));
    }
}

UNIT_MAIN(cmocka_unit_test(understood), cmocka_unit_test(refused), cmocka_unit_test(any_damage))
