/* front/service.h: when it is allowed, how requests come in and answers go out, the metrics file, and its end. The fake kernel does
 * not run it; the test does, where the background thread waits for it to begin. */
#include "heap_fixture.h"

#include <unistd.h>

#include "base/config.h"
#include "front/process.h"
#include "front/service.h"
#include "os/channel.h"

static size_t waits, most_waits;

static void settings(uint64_t ctl, const char *metrics_file) {
    struct hak_config *config = (struct hak_config *)(uintptr_t)hak_process_config();
    config->ctl = ctl;
    config->metrics_file = (uintptr_t)metrics_file;
}

/* Of the service: time passes, and the program ends. */
static void in_service(void) {
    fake_os.clock_ms += fake_os.channel_wait_ms;
    if (++waits > most_waits) hak_service_stop();
}

/* Of the background thread, for the service to begin. */
static void run_service(void) {
    fake_os.at_wait = in_service;
    fake_os.service();
}

static void run(const char *const *requests, size_t most) {
    fake_os.is_filtered = false;
    fake_os.has_channel = true;
    fake_os.clock_ms = 1000000;
    fake_os.requests = requests;
    fake_os.at_wait = run_service;
    waits = 0;
    most_waits = most;
    hak_service_start(fake_os.is_filtered);
    assert_int_equal(fake_os.joins, 1);
}

static bool starts(void) {
    fake_os.service = NULL;
    fake_os.has_channel = false;
    fake_os.at_wait = run_service;
    hak_service_start(fake_os.is_filtered);
    return fake_os.service != NULL;
}

static void allowed(void **state) {
    (void)state;
    settings(HAK_CHOICE_AUTO, NULL);
    assert_false(hak_service_is_wanted());
    assert_false(starts()); /* filtered */
    fake_os.is_filtered = false;
    assert_true(starts());
    settings(0, "file");
    assert_false(hak_service_is_wanted());
    assert_false(starts());
    fake_os.is_filtered = true;
    settings(1, NULL);
    assert_true(hak_service_is_wanted());
    assert_true(starts());
    settings(HAK_CHOICE_AUTO, "file");
    assert_true(hak_service_is_wanted());
    assert_true(starts());
    fake_os.is_privileged = true;
    assert_false(starts());
}

static void refused(void **state) {
    (void)state;
    settings(1, NULL);
    assert_true(starts()); /* the kernel has no channel: it has ended, and was joined */
    assert_int_equal(fake_os.joins, 1);
    hak_service_stop(); /* nothing to be done */
    assert_int_equal(fake_os.interrupts, 0);
    fake_os.refuses_threads = true;
    assert_false(starts());
    fake_os.refuses_threads = false;
    fake_os.refuses_table = true;
    assert_false(starts());
    fake_os.refuses_table = false;
    assert_true(starts());
}

static void answers(void **state) {
    (void)state;
    static const char *const requests[] = {"a 0 set decay_ms=50\nb 0 se",
                                           "t decay_ms=",
                                           "60\n",
                                           "\n\n",
                                           "word\n",
                                           "d knobs\n",
                                           "e 0\n",
                                           "c 0 nonsense\n",
                                           NULL};
    settings(1, NULL);
    run(requests, 10);
    assert_string_equal(fake_os.output, "a ok\ndecay_ms: 1000 -> 50\nend\nb ok\ndecay_ms: 50 -> 60\nend\n"
                                        "c error: this hakmem knows no nonsense; `help` lists what it does\nend\n");
    assert_int_equal(fake_os.channel_wait_ms, 0); /* it wakes for requests only */
    assert_int_equal(fake_os.interrupts, 1);
    assert_int_equal(fake_os.drops, 0);
}

static void too_long(void **state) {
    (void)state;
    static char piece[201];
    memset(piece, 'x', 200);
    const char *const requests[] = {"a 0 set decay_ms=", piece, piece, "\n", "b 0 set decay_ms=70\n", NULL};
    settings(1, NULL);
    run(requests, 10);
    assert_string_equal(fake_os.output, "b ok\ndecay_ms: 1000 -> 70\nend\n");
}

static void nobody_listens(void **state) {
    (void)state;
    static const char *const requests[] = {"a 0 knobs\n", NULL};
    settings(1, NULL);
    fake_os.send_bytes = 10;
    run(requests, 3);
    assert_int_equal(fake_os.output_length, 10);
    assert_int_equal(fake_os.drops, 1);
}

/* A sandbox has come: nothing is read, answered or written any more; it waits to be ended. */
static void filtered_later(void **state) {
    (void)state;
    static const char *const requests[] = {"a 0 knobs\n", "b 0 knobs\n", NULL};
    settings(1, "metrics");
    fake_os.may_answer = false;
    run(requests, 5);
    assert_null(strstr(fake_os.output, "a ok"));
    assert_int_equal(waits, 6);
    assert_ptr_equal(fake_os.requests, &requests[1]);
    assert_ptr_equal(strstr(fake_os.output, "# EOF"), strstr(fake_os.output, "# EOF\n")); /* the first, only */
    assert_string_equal(strstr(fake_os.output, "# EOF"), "# EOF\n");
}

/* Who asks sees a filter that wasn't there: the same, although nobody watches. */
static void filtered_as_seen(void **state) {
    (void)state;
    static const char *const requests[] = {"a 0 set decay_ms=50\nb 1 knobs\nc 0 knobs\n", "d 0 knobs\n", NULL};
    settings(1, NULL);
    run(requests, 5);
    assert_false(fake_os.watches);
    assert_string_equal(fake_os.output, "a ok\ndecay_ms: 1000 -> 50\nend\n");
    assert_ptr_equal(fake_os.requests, &requests[1]);
}

/* Somebody outside wishes for it: it may begin, and the wish is granted. It is in use for a minute after the last
 * request. */
static void wished(void **state) {
    (void)state;
    settings(HAK_CHOICE_AUTO, NULL);
    assert_false(hak_service_is_asked());
    hak_atomic_store(&hak_channel_wish, HAK_CHANNEL_WISHED, relaxed);
    assert_true(hak_service_is_asked());
    settings(0, NULL);
    assert_false(hak_service_is_asked());
    settings(HAK_CHOICE_AUTO, NULL);
    run(NULL, 3);
    assert_false(hak_service_is_asked());
    assert_false(hak_service_is_in_use()); /* it has ended */
    hak_atomic_store(&hak_channel_wish, HAK_CHANNEL_WISHED, relaxed);
    hak_service_after_fork();
    assert_false(hak_service_is_asked());
}

static bool in_use_after[2];

static void look_at_use(void) {
    fake_os.clock_ms += 59999;
    in_use_after[0] = hak_service_is_in_use();
    fake_os.clock_ms += 2;
    in_use_after[1] = hak_service_is_in_use();
    hak_service_stop();
}

static void run_once(void) {
    fake_os.at_wait = look_at_use;
    fake_os.service();
}

static void in_use(void **state) {
    (void)state;
    settings(HAK_CHOICE_AUTO, NULL);
    fake_os.is_filtered = false;
    fake_os.has_channel = true;
    fake_os.clock_ms = 1000000;
    fake_os.at_wait = run_once;
    hak_atomic_store(&hak_channel_wish, HAK_CHANNEL_WISHED, relaxed);
    hak_service_start(fake_os.is_filtered);
    assert_true(in_use_after[0]);
    assert_false(in_use_after[1]);
}

static size_t count(const char *text, const char *word) {
    size_t found = 0;
    for (; (text = strstr(text, word)) != NULL; text++) found++;
    return found;
}

static void metrics(void **state) {
    (void)state;
    char path[64];
    settings(HAK_CHOICE_AUTO, "dir/%p.prom");
    run(NULL, 3);
    snprintf(path, sizeof path, "dir/%d.prom", (int)getpid());
    assert_string_equal(fake_os.replaced_path, path);
    assert_int_equal(count(fake_os.output, "# EOF\n"), 4); /* at once, and after each period */
    assert_int_equal(fake_os.clock_ms, 1000000 + 4 * 10000);
}

static void metrics_refused(void **state) {
    (void)state;
    settings(1, "dir/file");
    fake_os.refuses_files = true;
    run(NULL, 3);
    assert_string_equal(fake_os.output, "");
    assert_int_equal(fake_os.clock_ms, 1000000 + 4 * 10000); /* and not in a hurry */
}

UNIT_MAIN(cmocka_unit_test(allowed), cmocka_unit_test(refused), cmocka_unit_test(answers), cmocka_unit_test(too_long),
          cmocka_unit_test(nobody_listens), cmocka_unit_test(filtered_later), cmocka_unit_test(filtered_as_seen),
          cmocka_unit_test(wished), cmocka_unit_test(in_use), cmocka_unit_test(metrics),
          cmocka_unit_test(metrics_refused))
