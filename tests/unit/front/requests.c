/* front/requests.h: every request, what it refuses, and that answers longer than the text arrive whole. */
#include "heap_fixture.h"

#include "allowance.h"

#include "base/knobs.h"
#include "control/ace.h"
#include "front/meter.h"
#include "front/requests.h"
#include "front/statistics.h"
#include "pool/bin_size.h"

static char got[1 << 17], buffer[HAK_STATISTICS_BYTES + 1024];
static size_t got_length, sends, sends_left;

static bool keep(const char *text, size_t length) {
    if (sends_left-- == 0) return false;
    sends++;
    memcpy(got + got_length, text, length);
    got[got_length += length] = '\0';
    return true;
}

static struct hak_answer make_answer(size_t capacity) {
    got_length = sends = 0;
    got[0] = '\0';
    return (struct hak_answer){.text = hak_text_in(buffer, capacity), .send = keep};
}

static const char *ask(const char *request) {
    char line[HAK_REQUEST_BYTES];
    sends_left = 100;
    struct hak_answer answer = make_answer(sizeof buffer);
    snprintf(line, sizeof line, "%s", request);
    hak_request_answer(line, &answer);
    assert_false(answer.is_lost);
    assert_string_equal(got + got_length - 4, "end\n");
    return got;
}

static void refused(void **state) {
    (void)state;
    static const char *const requests[] = {"",
                                           " ",
                                           "nothing",
                                           "stats xml",
                                           "stats text json",
                                           "purge now",
                                           "metrics x",
                                           "help me",
                                           "set",
                                           "set decay_ms",
                                           "set =1",
                                           "set no=1",
                                           "set decay=1",
                                           "set decay_ms=",
                                           "set decay_ms=x",
                                           "set decay_ms=9",
                                           "set decay_ms=3600001",
                                           "set decay_ms=-1",
                                           "set decay_ms=100 ",
                                           "set  decay_ms=100",
                                           "set decay_ms=99999999999999999999",
                                           "try",
                                           "try decay_ms",
                                           "try no=1",
                                           "try decay_ms=9",
                                           "try decay_ms=4K",
                                           "profile",
                                           "profile once",
                                           "profile onward",
                                           "profile on 0",
                                           "profile on 1 2",
                                           "profile dump",
                                           "pins",
                                           "pins on 0",
                                           "pins once",
                                           "STATS"};
    struct hak_knobs before = hak_knobs;
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        const char *said = ask(requests[i]);
        assert_true(strncmp(said, "error: ", 7) == 0);
        assert_ptr_equal(strchr(said, '\n') + 5, said + got_length); /* one line, and "end" */
    }
    assert_memory_equal(&before, &hak_knobs, sizeof before);
}

static void statistics(void **state) {
    (void)state;
    void *block = hak_malloc(100);
    assert_non_null(strstr(ask("stats"), "ok\nhakmem "));
    assert_non_null(strstr(ask("stats text"), "\n  live_blocks "));
    assert_non_null(strstr(ask("stats json"), "ok\n{\"hakmem\": "));
    assert_non_null(strstr(ask("metrics"), "\nhakmem_live_blocks 1\n"));
    hak_free(block);
}

static void purging(void **state) {
    (void)state;
    allow_free_memory();
    static void *blocks[10000];
    for (int i = 0; i < 10000; i++) blocks[i] = hak_malloc(1000);
    for (int i = 0; i < 10000; i++) hak_free(blocks[i]);
    size_t mib = 0, tenths = 10;
    fake_os_forget();
    assert_int_equal(sscanf(ask("purge"), "ok\n%zu.%zu MiB given back\n", &mib, &tenths), 2);
    assert_true(mib >= 8 && tenths < 10 && fake_os.call_count[FAKE_PURGE] > 0);
    check_equations(&(struct hak_snapshot){.refills = 0});
}

static void knobs(void **state) {
    (void)state;
    assert_string_equal(ask("set decay_ms=2K"), "ok\ndecay_ms: 1000 -> 2048\nend\n");
    assert_int_equal(hak_knob(decay_ms), 2048);
    assert_string_equal(ask("set decay_ms=10"), "ok\ndecay_ms: 2048 -> 10\nend\n");
    assert_string_equal(ask("set dirty_limit_bytes=1024G"),
                        "ok\ndirty_limit_bytes: 1073741824 -> 1099511627776\nend\n");
    hak_atomic_store(&hak_class_slots[5], 64, relaxed); /* by a policy, or the controller */
    ask("set decay_ms=10");
    assert_int_equal(hak_atomic_load(&hak_class_slots[5], relaxed), 64);
    ask("set bin_bytes=4096");
    assert_int_equal(hak_atomic_load(&hak_class_slots[5], relaxed), 0);
    const char *all = ask("knobs");
#define HAK_KNOB(name, initial, lowest, highest, text) assert_non_null(strstr(all, "\n" #name " = "));
#include "base/knobs.def"
#undef HAK_KNOB
    assert_non_null(strstr(all, "\ndecay_ms = 10 (default 1000, 10 to 3600000): how long "));
}

static void trials(void **state) {
    (void)state;
    hak_ace_configure(&(struct hak_ace_settings){.is_enabled = false});
    assert_string_equal(ask("try decay_ms=4000"),
                        "error: decay_ms is not tried: the controller is off: HAKMEM_ACE_ENABLED=0\nend\n");
    hak_ace_configure(&(struct hak_ace_settings){.is_enabled = true, .is_pinned = true});
    assert_non_null(strstr(ask("try decay_ms=4000"), "error: decay_ms is not tried: a policy says where the knobs"));
    hak_ace_configure(&(struct hak_ace_settings){.is_enabled = true, .fast_ms = 500, .slow_ms = 30000});
    assert_string_equal(ask("try decay_ms=4000"), "ok\n`control` tells what comes of it\nend\n");
    assert_string_equal(ask("try decay_ms=4001"),
                        "error: the controller gives decay_ms one of 250 1000 4000 16000\nend\n");
    assert_string_equal(ask("try bin_bytes=1536"), "error: the controller gives bin_bytes no value\nend\n");
    assert_int_equal(hak_knob(decay_ms), 1000); /* the background thread does it */
    assert_string_equal(ask("try decay_ms=1000"), "error: decay_ms is 1000 already\nend\n");
    hak_knob_set(HAK_KNOB_decay_ms, 4000); /* on trial */
    assert_string_equal(ask("try decay_ms=1000"), "error: decay_ms is 1000 already\nend\n");
    assert_string_equal(ask("try decay_ms=4000"), "ok\n`control` tells what comes of it\nend\n");
    hak_knob_give(HAK_KNOB_decay_ms, 250);
    assert_non_null(strstr(ask("try decay_ms=4000"), "error: decay_ms is not tried: it was given its value by hand"));
}

static void profile(void **state) {
    (void)state;
    assert_string_equal(ask("profile on 1K"), "ok\none sample per 1024 bytes\nend\n");
    assert_string_equal(ask("profile on 1"), "ok\none sample per 1 bytes\nend\n");
    void *block = hak_malloc(100);
    const char *said = ask("profile dump");
    assert_non_null(strstr(said, "ok\nhakmem heap profile 3\n"));
    assert_non_null(strstr(said, "\nsite "));
    assert_non_null(strstr(said, "\nmaps\nend\n"));
    assert_string_equal(ask("profile off"), "ok\nend\n");
    assert_false(hak_profile_is_on());
    hak_free(block);
    assert_non_null(strstr(ask("profile dump"), "\nsite ")); /* what there was stays */
    struct hak_answer answer = make_answer(sizeof buffer);
    sends_left = 0;
    hak_request_answer((char[]){"profile dump"}, &answer);
    assert_true(answer.is_lost);
}

/* Whether a word was said or not, the answer has no hole where it would stand. */
static void what_is_expected(void **state) {
    (void)state;
    assert_string_equal(ask("profile"),
                        "error: expected profile on, profile on BYTES, profile off or profile dump\nend\n");
    assert_string_equal(ask("profile once"),
                        "error: expected profile on, profile on BYTES, profile off or profile dump, not once\nend\n");
    assert_string_equal(ask("pins"), "error: expected pins on, pins on BYTES or pins off\nend\n");
    assert_string_equal(ask("pins once"), "error: expected pins on, pins on BYTES or pins off, not once\nend\n");
}

static void pins(void **state) {
    (void)state;
    assert_string_equal(ask("pins on 1K"), "ok\none run of samples per 1024 bytes\nend\n");
    assert_true(hak_profile_is_on() && hak_profile_runs_of(16).are_on);
    static const char pins_are_on[] = "error: pins are on, and take the samples; `pins off` ends that\nend\n";
    assert_string_equal(ask("profile on"), pins_are_on);
    assert_string_equal(ask("profile off"), pins_are_on);
    assert_true(hak_profile_is_on() && hak_profile_runs_of(16).are_on);
    assert_string_equal(ask("pins on 2K"), "ok\none run of samples per 2048 bytes\nend\n");
    assert_string_equal(ask("pins off"), "ok\nend\n");
    assert_false(hak_profile_is_on());
    assert_string_equal(ask("profile on 1K"), "ok\none sample per 1024 bytes\nend\n");
    assert_false(hak_profile_runs_of(16).are_on);
    static const char profile_is_on[] =
        "error: the heap profile is on, and takes the samples; `profile off` ends that\nend\n";
    assert_string_equal(ask("pins on"), profile_is_on);
    assert_string_equal(ask("pins off"), profile_is_on);
    assert_true(hak_profile_is_on() && !hak_profile_runs_of(16).are_on);
    hak_meter_stop();
}

/* Whatever the knobs are, at every moment. */
static void any_knobs(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t lowest, highest;
    } table[] = {
#define HAK_KNOB(name, initial, lowest, highest, text) {#name, lowest, highest},
#include "base/knobs.def"
#undef HAK_KNOB
    };
    static struct live_block blocks[3000];
    uint64_t random = 3;
    struct hak_snapshot snapshot;
    for (int round = 0; round < 60000; round++) {
        struct live_block *block = &blocks[unit_random(&random) % 3000];
        uint64_t pick = unit_random(&random);
        if (block->bytes != NULL) {
            block_check(block);
            hak_free(block->bytes);
        }
        block->size = pick % 100 == 0 ? 1 + pick % (3 * HAK_MIB) : 1 + (pick >> 20) % ((uint64_t)16 << (pick % 12));
        block->bytes = hak_malloc(block->size);
        block->seed = (unsigned char)round;
        UNIT_CHECK(block->bytes != NULL);
        block_fill(block);
        if (round % 50 != 0) continue;
        char request[100];
        size_t i = unit_random(&random) % (sizeof table / sizeof table[0]);
        snprintf(request, sizeof request, "set %s=%lu", table[i].name,
                 (unsigned long)(pick % 2 == 0 ? table[i].lowest : table[i].highest));
        assert_true(strncmp(ask(request), "ok\n", 3) == 0);
        fake_os.clock_ms += 100;
    }
    check_equations(&snapshot);
    for (int i = 0; i < 3000; i++) hak_free(blocks[i].bytes);
    ask("purge");
    check_equations(&snapshot);
}

static void help_lists_all(void **state) {
    (void)state;
    const char *said = ask("help");
    static const char *const names[] = {
        "stats text|json: ", "metrics: ", "purge: ", "knobs: ", "set KNOB=VALUE: ", "try KNOB=VALUE: ", "help: "};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) assert_non_null(strstr(said, names[i]));
}

static void in_pieces(void **state) {
    (void)state;
    static char piece[100];
    sends_left = 1000;
    struct hak_answer answer = make_answer(256);
    memset(piece, 'x', sizeof piece - 1);
    for (int i = 0; i < 100; i++) {
        assert_true(hak_answer_make_room(&answer, sizeof piece));
        hak_text_add(&answer.text, "%s", piece);
    }
    assert_false(answer.text.truncated);
    assert_true(hak_answer_make_room(&answer, 256));
    assert_int_equal(got_length, 100 * (sizeof piece - 1));
    assert_true(sends > 30);
}

static void nobody_listens(void **state) {
    (void)state;
    char line[] = "help";
    sends_left = 0;
    struct hak_answer answer = make_answer(256);
    hak_request_answer(line, &answer);
    assert_true(answer.is_lost);
    assert_false(hak_answer_make_room(&answer, 10));
    assert_int_equal(sends, 0);
}

UNIT_MAIN(cmocka_unit_test(refused), cmocka_unit_test(statistics), cmocka_unit_test(purging), cmocka_unit_test(knobs),
          cmocka_unit_test(trials), cmocka_unit_test(profile), cmocka_unit_test(what_is_expected),
          cmocka_unit_test(pins), cmocka_unit_test(any_knobs), cmocka_unit_test(help_lists_all),
          cmocka_unit_test(in_pieces), cmocka_unit_test(nobody_listens))
