/* base/config.h: what each setting takes, what it refuses and says, and what the help lists. */
#include "unit.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/config.h"

static char buffer[16384];
static struct hak_text messages;

static struct hak_config parse(const char *first, const char *second) {
    char *environment[] = {(char *)(uintptr_t)first, (char *)(uintptr_t)second, NULL};
    messages = hak_text_in(buffer, sizeof buffer);
    return hak_config_parse(environment, &messages);
}

static void expect_defaults(const struct hak_config *config) {
#define HAK_OPTION(field, name, kind, fallback, help) assert_true(config->field == (uint64_t)(fallback));
#include "base/config.def"
#undef HAK_OPTION
    assert_null(config->stats_file);
    assert_null(config->heap_profile_file);
}

static void defaults(void **state) {
    (void)state;
    messages = hak_text_in(buffer, sizeof buffer);
    struct hak_config config = hak_config_parse(NULL, &messages);
    expect_defaults(&config);
    config = parse("PATH=/bin", "HAKMEMORY=1");
    expect_defaults(&config);
    assert_string_equal(messages.start, "");
}

static void accepted(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } numbers[] = {
        {"HAKMEM_HEAP_PROFILE_INTERVAL=1", 1},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=007", 7},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=64K", 65536},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=3M", 3 << 20},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=2G", (uint64_t)2 << 30},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=17179869183G", UINT64_C(17179869183) << 30},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=18446744073709551600", UINT64_C(18446744073709551600)},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct hak_config config = parse(numbers[i].text, NULL);
        assert_string_equal(messages.start, "");
        assert_true(config.heap_profile_interval_bytes == numbers[i].bytes);
    }
    assert_int_equal(parse("HAKMEM_HELP=1", NULL).help, 1);
    assert_int_equal(parse("HAKMEM_HELP=0", NULL).help, 0);
    assert_int_equal(parse("HAKMEM_THP=off", NULL).huge_pages, 0);
    assert_int_equal(parse("HAKMEM_THP=auto", NULL).huge_pages, 1);
    assert_int_equal(parse("HAKMEM_THP=on", NULL).huge_pages, 2);
    assert_int_equal(parse("HAKMEM_CTL=0", NULL).ctl, 0);
    assert_int_equal(parse("HAKMEM_CTL=1", NULL).ctl, 1);
    assert_int_equal(parse("HAKMEM_CTL=auto", NULL).ctl, HAK_CHOICE_AUTO);
    struct hak_config with_file = parse("HAKMEM_METRICS_FILE=/x/%p.prom", NULL);
    assert_string_equal(hak_config_file(with_file.metrics_file), "/x/%p.prom");
    assert_int_equal(parse("HAKMEM_STATS_SIGNAL=HUP", NULL).stats_signal, SIGHUP);
    assert_int_equal(parse("HAKMEM_STATS_SIGNAL=USR1", NULL).stats_signal, SIGUSR1);
    assert_int_equal(parse("HAKMEM_STATS_SIGNAL=USR2", NULL).stats_signal, SIGUSR2);
    assert_int_equal(parse("HAKMEM_STATS_SIGNAL=35", NULL).stats_signal, 35);
    assert_int_equal(parse("HAKMEM_STATS_SIGNAL=64", NULL).stats_signal, 64);
    assert_int_equal(parse("HAKMEM_STATS=text", NULL).stats, HAK_STATS_TEXT);
    struct hak_config knobs = parse("HAKMEM_KNOBS=decay_ms=10:mapping_cache_bytes=1M", NULL);
    assert_string_equal(messages.start, "");
    assert_int_equal(knobs.knobs, 1 << HAK_KNOB_decay_ms | 1 << HAK_KNOB_mapping_cache_bytes);
    assert_int_equal(knobs.knob_values[HAK_KNOB_decay_ms], 10);
    assert_int_equal(knobs.knob_values[HAK_KNOB_mapping_cache_bytes], 1 << 20);
    assert_int_equal(parse("HAKMEM_ACE_ENABLED=0", NULL).ace, 0);
    assert_int_equal(parse("HAKMEM_ACE_FAST_MS=10", NULL).ace_fast_ms, 10);
    assert_int_equal(parse("HAKMEM_ACE_SLOW_MS=3600000", NULL).ace_slow_ms, 3600000);
    assert_int_equal(parse("HAKMEM_GOAL=latency", NULL).goal, HAK_GOAL_LATENCY);
    assert_int_equal(parse("HAKMEM_GOAL=balanced", NULL).goal, HAK_GOAL_BALANCED);
    assert_int_equal(parse("HAKMEM_PROFILE=balanced", NULL).profile, 0);
    assert_int_equal(parse("HAKMEM_PROFILE=speed", NULL).profile, 1);
    assert_string_equal(hak_config_file(parse("HAKMEM_POLICY=/a", NULL).policy), "/a");
    assert_int_equal(parse("HAKMEM_HEAP_PROFILE=1", NULL).heap_profile, 1);
    assert_int_equal(parse("HAKMEM_HEAP_PROFILE=0", NULL).heap_profile, 0);
    assert_int_equal(parse("HAKMEM_PINS=1", NULL).pins, 1);
    assert_int_equal(parse("HAKMEM_HEAP_PROFILE_INTERVAL=64K", NULL).heap_profile_interval_bytes, 65536);
    assert_string_equal(parse("HAKMEM_HEAP_PROFILE=1:a%p", NULL).heap_profile_file, "a%p");
    static const struct {
        const char *text;
        uint64_t share;
    } experiments[] = {
        {"HAKMEM_EXPERIMENT=decay:5%:decay_ms=50", 500},
        {"HAKMEM_EXPERIMENT=a:100%:decay_ms=50:held_slabs=4", 10000},
        {"HAKMEM_EXPERIMENT=A-b_c.9:0.01%:decay_ms=50", 1},
        {"HAKMEM_EXPERIMENT=a:0.5%:decay_ms=50", 50},
        {"HAKMEM_EXPERIMENT=a:12.25%:decay_ms=50", 1225},
        {"HAKMEM_EXPERIMENT=a:007%:decay_ms=50", 700},
        {"HAKMEM_EXPERIMENT=abcdefghijklmnopqrstuvwxyz012345:50.0%:decay_ms=50", 5000},
    };
    for (size_t i = 0; i < sizeof experiments / sizeof experiments[0]; i++) {
        struct hak_config config = parse(experiments[i].text, "HAKMEM_KNOBS=decay_ms=70");
        assert_string_equal(messages.start, "");
        assert_true(config.experiment_share == experiments[i].share);
        assert_true(config.experiment_values[HAK_KNOB_decay_ms] == 50);
        assert_true(config.knob_values[HAK_KNOB_decay_ms] == 70);
        assert_true(config.experiment_knobs >> HAK_KNOB_decay_ms & 1);
        assert_string_equal(hak_config_file(config.experiment), strchr(experiments[i].text, '=') + 1);
    }
    assert_int_equal(parse("HAKMEM_GUARD=0", NULL).guard, 0);
    assert_int_equal(parse("HAKMEM_GUARD=1", NULL).guard, 5000);
    assert_int_equal(parse("HAKMEM_GUARD=1/1", NULL).guard, 1);
    assert_int_equal(parse("HAKMEM_GUARD=1/20000", NULL).guard, 20000);
    struct hak_config config = parse("HAKMEM_STATS=json:/a:b%p", "HAKMEM_HELP=1");
    assert_string_equal(messages.start, "");
    assert_int_equal(config.stats, HAK_STATS_JSON);
    assert_string_equal(config.stats_file, "/a:b%p");
    assert_int_equal(config.help, 1);
}

static void names_of_former_times(void **state) {
    (void)state;
    assert_int_equal(parse("HAKMEM_PROFILE=MIXED_TINYV3_C7_SAFE", NULL).profile,
                     parse("HAKMEM_PROFILE=speed", NULL).profile);
    assert_int_equal(parse("HAKMEM_PROFILE=MIXED_TINYV3_C7_BALANCED", NULL).profile, 0);
    assert_int_equal(parse("HAKMEM_PROFILE=C6_HEAVY_LEGACY_POOLV1", NULL).profile,
                     parse("HAKMEM_PROFILE=mid-heavy", NULL).profile);
    assert_string_equal(messages.start, "");
    assert_int_equal(parse("HAKMEM_PROF=1", "HAKMEM_PROF_INTERVAL=64K").heap_profile, 1);
    assert_int_equal(parse("HAKMEM_PROF=1", "HAKMEM_PROF_INTERVAL=64K").heap_profile_interval_bytes, 65536);
    /* The name of today wins, whatever comes first; if it is set to something. */
    assert_int_equal(parse("HAKMEM_PROF=1", "HAKMEM_HEAP_PROFILE=0").heap_profile, 0);
    assert_int_equal(parse("HAKMEM_HEAP_PROFILE=0", "HAKMEM_PROF=1").heap_profile, 0);
    assert_int_equal(parse("HAKMEM_HEAP_PROFILE=", "HAKMEM_PROF=1").heap_profile, 1);
    assert_string_equal(messages.start, "");
    parse("HAKMEM_PROF=2", NULL);
    assert_string_equal(messages.start, "hakmem: setting HAKMEM_PROF=2 ignored: expected 0, 1 or 1:FILE\n");
}

/* Help tells of those that are set, and nothing else does. */
static void settings_of_former_times(void **state) {
    (void)state;
    static const char *const all[] = {
#define HAK_FORMER(name, now, text) name "=1",
#include "base/former.def"
#undef HAK_FORMER
        NULL};
    messages = hak_text_in(buffer, sizeof buffer);
    struct hak_config config = hak_config_parse((char *const *)(uintptr_t)all, &messages);
    assert_string_equal(messages.start, "");
    hak_config_help(&config, &messages);
#define HAK_FORMER(name, now, text)                                                                                    \
    assert_non_null(strstr(messages.start, "hakmem: " name " is of a former version; its work is done by " text "\n"));
#include "base/former.def"
#undef HAK_FORMER
    config = parse("HAKMEM_HELP=1", "HAKMEM_SS_PREFAULT=1");
    hak_config_help(&config, &messages);
    assert_non_null(strstr(messages.start, "hakmem: HAKMEM_SS_PREFAULT is of a former version; "));
    assert_null(strstr(messages.start, "HAKMEM_PREWARM"));
}

static void last_one_counts(void **state) {
    (void)state;
    assert_int_equal(
        parse("HAKMEM_HEAP_PROFILE_INTERVAL=1", "HAKMEM_HEAP_PROFILE_INTERVAL=2").heap_profile_interval_bytes, 2);
    assert_int_equal(
        parse("HAKMEM_HEAP_PROFILE_INTERVAL=1", "HAKMEM_HEAP_PROFILE_INTERVAL=x").heap_profile_interval_bytes, 1);
    assert_null(parse("HAKMEM_STATS=json:file", "HAKMEM_STATS=json").stats_file);
    struct hak_config config = parse("HAKMEM_KNOBS=decay_ms=50", "HAKMEM_KNOBS=decay_ms=60:held_slabs=0");
    assert_int_equal(config.knobs, 1 << HAK_KNOB_decay_ms);
    assert_int_equal(config.knob_values[HAK_KNOB_decay_ms], 50);
}

/* As the list of settings shows them; and what an unset variable of a script leaves. */
static void nothing(void **state) {
    (void)state;
    static const char *const values[][2] = {
        {"HAKMEM_STATS=json:file", "HAKMEM_STATS=off"},
        {"HAKMEM_STATS_SIGNAL=USR1", "HAKMEM_STATS_SIGNAL=none"},
        {"HAKMEM_KNOBS=decay_ms=50", "HAKMEM_KNOBS=none"},
        {"HAKMEM_METRICS_FILE=file", "HAKMEM_METRICS_FILE=none"},
        {"HAKMEM_POLICY=file", "HAKMEM_POLICY=none"},
        {"HAKMEM_EXPERIMENT=a:5%:decay_ms=50", "HAKMEM_EXPERIMENT=none"},
        {"HAKMEM_CTL=", "HAKMEM_STATS="},
        {"HAKMEM_KNOBS=", "HAKMEM_METRICS_FILE="},
        {"HAKMEM_HEAP_PROFILE=", "HAKMEM_PROFILE="},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=", "HAKMEM_STATS_SIGNAL="},
        {"HAKMEM_THP=", "HAKMEM_HELP="},
    };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        struct hak_config config = parse(values[i][0], values[i][1]);
        assert_string_equal(messages.start, "");
        expect_defaults(&config);
    }
    assert_int_equal(parse("HAKMEM_CTL=1", "HAKMEM_CTL=").ctl, 1);
}

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"HAKMEM_SEED=x", "a number"},
        {"HAKMEM_GUARD=2", "0, 1, or 1/N with N from 1 to 1000000000"},
        {"HAKMEM_GUARD=0/5", "0, 1, or 1/N with N from 1 to 1000000000"},
        {"HAKMEM_GUARD=1/", "0, 1, or 1/N with N from 1 to 1000000000"},
        {"HAKMEM_GUARD=1/5K", "0, 1, or 1/N with N from 1 to 1000000000"},
        {"HAKMEM_GUARD=1/0", "0, 1, or 1/N with N from 1 to 1000000000"},
        {"HAKMEM_GUARD=1/1000000001", "0, 1, or 1/N with N from 1 to 1000000000"},
        {"HAKMEM_HELP", "0 or 1"},
        {"HAKMEM_HELP=2", "0 or 1"},
        {"HAKMEM_HELP=10", "0 or 1"},
        {"HAKMEM_HELP=yes", "0 or 1"},
        {"HAKMEM_THP", "off, auto or on"},
        {"HAKMEM_THP=1", "off, auto or on"},
        {"HAKMEM_THP=offs", "off, auto or on"},
        {"HAKMEM_HEAP_PROFILE_INTERVAL", "a number of bytes above 0, such as 4096 or 64K"},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=0", "a number of bytes above 0, such as 4096 or 64K"},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=0K", "a number of bytes above 0, such as 4096 or 64K"},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=K", "a number of bytes above 0, such as 4096 or 64K"},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=-1", "a number of bytes above 0, such as 4096 or 64K"},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=+1", "a number of bytes above 0, such as 4096 or 64K"},
        {"HAKMEM_HEAP_PROFILE_INTERVAL= 1", "a number of bytes above 0, such as 4096 or 64K"},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=1 ", "a number of bytes above 0, such as 4096 or 64K"},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=0x10", "a number of bytes above 0, such as 4096 or 64K"},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=1.5K", "a number of bytes above 0, such as 4096 or 64K"},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=64k", "a number of bytes above 0, such as 4096 or 64K"},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=64KB", "a number of bytes above 0, such as 4096 or 64K"},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=17179869184G", "a number of bytes above 0, such as 4096 or 64K"},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=18446744073709551616", "a number of bytes above 0, such as 4096 or 64K"},
        {"HAKMEM_HEAP_PROFILE_INTERVAL=99999999999999999999999", "a number of bytes above 0, such as 4096 or 64K"},
        {"HAKMEM_STATS", "off, text[:FILE] or json[:FILE]"},
        {"HAKMEM_STATS=1", "off, text[:FILE] or json[:FILE]"},
        {"HAKMEM_STATS=JSON", "off, text[:FILE] or json[:FILE]"},
        {"HAKMEM_STATS=yaml", "off, text[:FILE] or json[:FILE]"},
        {"HAKMEM_STATS=jsonl", "off, text[:FILE] or json[:FILE]"},
        {"HAKMEM_STATS=json:", "off, text[:FILE] or json[:FILE]"},
        {"HAKMEM_STATS=:file", "off, text[:FILE] or json[:FILE]"},
        {"HAKMEM_CTL=2", "0, 1 or auto"},
        {"HAKMEM_CTL=on", "0, 1 or auto"},
        {"HAKMEM_STATS_SIGNAL", "none, HUP, USR1, USR2 or 35 to 64"},
        {"HAKMEM_STATS_SIGNAL=SIGUSR1", "none, HUP, USR1, USR2 or 35 to 64"},
        {"HAKMEM_STATS_SIGNAL=usr1", "none, HUP, USR1, USR2 or 35 to 64"},
        {"HAKMEM_STATS_SIGNAL=KILL", "none, HUP, USR1, USR2 or 35 to 64"},
        {"HAKMEM_STATS_SIGNAL=0", "none, HUP, USR1, USR2 or 35 to 64"},
        {"HAKMEM_STATS_SIGNAL=34", "none, HUP, USR1, USR2 or 35 to 64"},
        {"HAKMEM_STATS_SIGNAL=65", "none, HUP, USR1, USR2 or 35 to 64"},
        {"HAKMEM_KNOBS", "none, or NAME=NUMBER[:NAME=NUMBER...] of knobs, within their bounds"},
        {"HAKMEM_KNOBS=decay_ms", "none, or NAME=NUMBER[:NAME=NUMBER...] of knobs, within their bounds"
                                  "; decay_ms takes 10 to 3600000"},
        {"HAKMEM_KNOBS=decay_ms=", "none, or NAME=NUMBER[:NAME=NUMBER...] of knobs, within their bounds"
                                   "; decay_ms takes 10 to 3600000"},
        {"HAKMEM_KNOBS=decay_m=100", "none, or NAME=NUMBER[:NAME=NUMBER...] of knobs, within their bounds"
                                     "; there is no knob decay_m"},
        {"HAKMEM_KNOBS=decay_ms=9", "none, or NAME=NUMBER[:NAME=NUMBER...] of knobs, within their bounds"
                                    "; decay_ms takes 10 to 3600000"},
        {"HAKMEM_KNOBS=decay_ms=3600001", "none, or NAME=NUMBER[:NAME=NUMBER...] of knobs, within their bounds"
                                          "; decay_ms takes 10 to 3600000"},
        {"HAKMEM_KNOBS=decay_ms=10:held_slabs=4:nosuch=1",
         "none, or NAME=NUMBER[:NAME=NUMBER...] of knobs, within their bounds"
         "; there is no knob nosuch"},
        {"HAKMEM_KNOBS=decay_ms=10:", "none, or NAME=NUMBER[:NAME=NUMBER...] of knobs, within their bounds"},
        {"HAKMEM_KNOBS=decay_ms=10::held_slabs=4",
         "none, or NAME=NUMBER[:NAME=NUMBER...] of knobs, within their bounds"},
        {"HAKMEM_KNOBS=:decay_ms=10", "none, or NAME=NUMBER[:NAME=NUMBER...] of knobs, within their bounds"},
        {"HAKMEM_KNOBS=decay_ms=10,held_slabs=4", "none, or NAME=NUMBER[:NAME=NUMBER...] of knobs, within their bounds"
                                                  "; decay_ms takes 10 to 3600000"},
        {"HAKMEM_KNOBS=decay_ms=100000000000000000000000000000",
         "none, or NAME=NUMBER[:NAME=NUMBER...] of knobs, within their bounds"
         "; decay_ms takes 10 to 3600000"},
        {"HAKMEM_ACE_FAST_MS=9", "a number of milliseconds, 10 to 3600000"},
        {"HAKMEM_ACE_FAST_MS=3600001", "a number of milliseconds, 10 to 3600000"},
        {"HAKMEM_ACE_SLOW_MS=1K", "a number of milliseconds, 10 to 3600000"},
        {"HAKMEM_GOAL=fast", "profile, balanced, speed, memory or latency"},
        {"HAKMEM_PROFILE=mid_heavy", "balanced, speed, lean, mid-heavy, hardened"},
        {"HAKMEM_HEAP_PROFILE", "0, 1 or 1:FILE"},
        {"HAKMEM_HEAP_PROFILE=2", "0, 1 or 1:FILE"},
        {"HAKMEM_HEAP_PROFILE=10", "0, 1 or 1:FILE"},
        {"HAKMEM_HEAP_PROFILE=1:", "0, 1 or 1:FILE"},
        {"HAKMEM_HEAP_PROFILE=0:file", "0, 1 or 1:FILE"},
    };
    static const char *const experiments[] = {
        "a",
        "a:",
        "a:5",
        "a:5%",
        "a:5%:",
        ":5%:decay_ms=50",
        "a:5:decay_ms=50",
        "a::decay_ms=50",
        "a:%:decay_ms=50",
        "a:0%:decay_ms=50",
        "a:0.00%:decay_ms=50",
        "a:100.01%:decay_ms=50",
        "a:101%:decay_ms=50",
        "a:.5%:decay_ms=50",
        "a:5.%:decay_ms=50",
        "a:0.001%:decay_ms=50",
        "a:5.5.5%:decay_ms=50",
        "a:-5%:decay_ms=50",
        "a:5%%:decay_ms=50",
        "a:5% :decay_ms=50",
        "a:5%:decay_ms=9",
        "a:5%:nosuch=1",
        "a:5%:decay_ms=50:",
        "a:5%decay_ms=50",
        "a b:5%:decay_ms=50",
        "a\"b:5%:decay_ms=50",
        "\xc3\xa4:5%:decay_ms=50",
        "abcdefghijklmnopqrstuvwxyz0123456:5%:decay_ms=50",
        "a:99999999999999999999999999%:decay_ms=50",
    };
    for (size_t i = 0; i < sizeof experiments / sizeof experiments[0]; i++) {
        char variable[128], expected[256];
        snprintf(variable, sizeof variable, "HAKMEM_EXPERIMENT=%s", experiments[i]);
        struct hak_config config = parse(variable, NULL);
        snprintf(expected, sizeof expected,
                 "hakmem: setting %s ignored: expected "
                 "none, or NAME:SHARE%%:KNOB=NUMBER[:KNOB=NUMBER...], SHARE from 0.01 to 100\n",
                 variable);
        assert_string_equal(messages.start, expected);
        expect_defaults(&config);
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char expected[256];
        struct hak_config config = parse(cases[i].text, NULL);
        snprintf(expected, sizeof expected, "hakmem: setting %s ignored: expected %s\n", cases[i].text,
                 cases[i].expected);
        assert_string_equal(messages.start, expected);
        expect_defaults(&config);
    }
}

static void unknown(void **state) {
    (void)state;
    static const char *const names[] = {"HAKMEM_", "HAKMEM_=1", "HAKMEM_HELPS=1", "HAKMEM_HEL=1", "HAKMEM_help=1"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char expected[256];
        struct hak_config config = parse(names[i], NULL);
        snprintf(expected, sizeof expected, "hakmem: unknown setting %s ignored (HAKMEM_HELP=1 lists all)\n", names[i]);
        assert_string_equal(messages.start, expected);
        expect_defaults(&config);
    }
}

static void one_line_each(void **state) {
    (void)state;
    struct hak_config config = parse("HAKMEM_FIRST=1", "HAKMEM_STATS=2");
    size_t lines = 0;
    for (size_t i = 0; i < messages.length; i++) lines += messages.start[i] == '\n';
    assert_int_equal(lines, 2);
    expect_defaults(&config);
}

static void help_lists_all(void **state) {
    (void)state;
    struct hak_config config = parse("HAKMEM_KNOBS=decay_ms=70", "HAKMEM_STATS=json:out.json");
    hak_knob_give(HAK_KNOB_decay_ms, 50); /* by an experiment */
    hak_config_help(&config, &messages);
    assert_false(messages.truncated);
    size_t lines = 2; /* the headings */
#define HAK_OPTION(field, name, kind, fallback, help)                                                                  \
    assert_non_null(strstr(messages.start, "  " name));                                                                \
    assert_non_null(strstr(messages.start, "): " help "\n"));                                                          \
    lines++;
#include "base/config.def"
#undef HAK_OPTION
#define HAK_KNOB(name, initial, lowest, highest, text)                                                                 \
    assert_non_null(strstr(messages.start, "  " #name " "));                                                           \
    assert_non_null(strstr(messages.start, "): " text "\n"));                                                          \
    lines++;
#include "base/knobs.def"
#undef HAK_KNOB
    for (size_t i = 0; i < messages.length; i++) lines -= messages.start[i] == '\n';
    assert_int_equal(lines, 0);
    assert_non_null(strstr(messages.start, "HAKMEM_HEAP_PROFILE_INTERVAL = 524288 (default 524288): "));
    assert_non_null(strstr(messages.start, "HAKMEM_KNOBS                 = as below (default none): "));
    assert_non_null(strstr(messages.start, "decay_ms            = 50 (default 1000, 10 to 3600000): "));
    assert_non_null(strstr(messages.start, "held_slabs          = 16 (default 16, 1 to 4096): "));
    assert_non_null(strstr(messages.start, "HAKMEM_STATS_SIGNAL          = none (default none): "));
    assert_non_null(strstr(messages.start, "HAKMEM_STATS                 = json:out.json (default off): "));
    assert_non_null(strstr(messages.start, "HAKMEM_CTL                   = auto (default auto): "));
    assert_non_null(strstr(messages.start, "HAKMEM_METRICS_FILE          = none (default none): "));
    assert_non_null(strstr(messages.start, "HAKMEM_EXPERIMENT            = none (default none): "));
    assert_non_null(strstr(messages.start, "HAKMEM_HELP                  = 0 (default 0): "));
}

static uint64_t seed_of(const char *first, const char *second) {
    char *environment[] = {(char *)(uintptr_t)first, (char *)(uintptr_t)second, NULL};
    return hak_config_seed(environment);
}

/* The seed is found alone, as it is among all settings. */
static void seed_alone(void **state) {
    (void)state;
    static const char *const values[] = {"HAKMEM_SEED=7", "HAKMEM_SEED=2K", "HAKMEM_SEED=0", "HAKMEM_SEED=",
                                         "HAKMEM_SEED=x", "HAKMEM_SEEDS=7", "HAKMEM_SEED",   "SEED=7"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        assert_true(seed_of("PATH=/bin", values[i]) == parse("PATH=/bin", values[i]).seed);
    assert_true(seed_of("HAKMEM_SEED=7", "HAKMEM_SEED=8") == parse("HAKMEM_SEED=7", "HAKMEM_SEED=8").seed);
    assert_true(seed_of("HAKMEM_SEED=7", "HAKMEM_SEED=x") == 7);
    assert_true(hak_config_seed(NULL) == 0);
}

static void paths(void **state) {
    (void)state;
    struct hak_text path = hak_text_in(buffer, sizeof buffer);
    hak_config_add_path(&path, "%p/a%pb%%p%", 12);
    assert_string_equal(path.start, "12/a12b%12%");
}

UNIT_MAIN(cmocka_unit_test(paths), cmocka_unit_test(seed_alone), cmocka_unit_test(defaults), cmocka_unit_test(accepted),
          cmocka_unit_test(names_of_former_times), cmocka_unit_test(settings_of_former_times),
          cmocka_unit_test(last_one_counts), cmocka_unit_test(nothing), cmocka_unit_test(refused),
          cmocka_unit_test(unknown), cmocka_unit_test(one_line_each), cmocka_unit_test(help_lists_all))
