#include "front/requests.h"

#include <string.h>

#include "base/config.h"
#include "base/knobs.h"
#include "front/meter.h"
#include "front/process.h"
#include "front/statistics.h"
#include "observe/metrics.h"
#include "os/os.h"
#include "pool/bin_size.h"
#include "pool/purge.h"

/* One thread answers requests. */
static struct hak_snapshot answered;

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

bool hak_answer_make_room(struct hak_answer *answer, size_t bytes) {
    if (answer->text.capacity - answer->text.length > bytes) return !answer->is_lost;
    if (!answer->is_lost) answer->is_lost = !answer->send(answer->text.start, answer->text.length);
    answer->text = hak_text_in(answer->text.start, answer->text.capacity);
    return !answer->is_lost;
}

static void say_ok(struct hak_answer *answer) { hak_text_add(&answer->text, "ok\n"); }

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

static HAK_COLD void tell_stats(const char *form, struct hak_answer *answer) {
    bool is_json = strcmp(form, "json") == 0;
    if (!is_json && form[0] != '\0' && strcmp(form, "text") != 0) {
        hak_text_add(&answer->text, "error: stats takes text or json, not %s\n", form);
        return;
    }
    say_ok(answer);
    hak_answer_make_room(answer, HAK_STATISTICS_BYTES);
    if (is_json) hak_statistics_write_json(&answered, &answer->text);
    else hak_statistics_write_text(&answered, true, &answer->text);
}

static HAK_COLD void tell_metrics(const char *nothing, struct hak_answer *answer) {
    (void)nothing;
    say_ok(answer);
    hak_answer_make_room(answer, HAK_SNAPSHOT_TEXT_BYTES);
    hak_snapshot_take(&answered);
    hak_snapshot_write_metrics(&answered, &answer->text);
}

static HAK_COLD void tell_control(const char *nothing, struct hak_answer *answer) {
    (void)nothing;
    say_ok(answer);
    hak_answer_make_room(answer, HAK_REPORT_BYTES);
    hak_report_write_text(&answer->text);
}

/* ---- Purging ----------------------------------------------------------------------------------------------------- */

static void purge_all(const char *nothing, struct hak_answer *answer) {
    (void)nothing;
    size_t bytes = hak_purge_all(NULL);
    hak_purge_unmap();
    say_ok(answer);
    hak_text_add(&answer->text, "%zu.%zu MiB given back\n", bytes >> 20, (bytes >> 10 & 1023) * 10 >> 10);
}

/* ---- Knobs ------------------------------------------------------------------------------------------------------- */

static HAK_COLD void tell_knobs(const char *nothing, struct hak_answer *answer) {
    (void)nothing;
    say_ok(answer);
    for (uint32_t i = 0; i < HAK_KNOB_COUNT; i++) {
        const struct hak_knob_row *row = &hak_knob_table[i];
        hak_text_add(&answer->text, "%s = %lu (default %lu, %lu to %lu): %s\n", row->name,
                     (unsigned long)hak_knob_get((enum hak_knob_number)i), (unsigned long)row->initial,
                     (unsigned long)row->lowest, (unsigned long)row->highest, row->text);
    }
}

/* The knob and the value of KNOB=VALUE; HAK_KNOB_COUNT after an error. */
static HAK_COLD enum hak_knob_number take_assignment(const char *assignment, uint64_t *value,
                                                     struct hak_answer *answer) {
    size_t length = strcspn(assignment, "=");
    enum hak_knob_number knob = hak_knob_find(assignment, length);
    if (assignment[length] != '=') {
        hak_text_add(&answer->text, "error: expected KNOB=VALUE\n");
        return HAK_KNOB_COUNT;
    }
    if (knob == HAK_KNOB_COUNT) {
        hak_text_add(&answer->text, "error: there is no knob in %s; `knobs` lists them\n", assignment);
        return HAK_KNOB_COUNT;
    }
    const struct hak_knob_row *row = &hak_knob_table[knob];
    if (hak_config_parse_number(assignment + length + 1, value) && *value >= row->lowest && *value <= row->highest)
        return knob;
    hak_text_add(&answer->text, "error: %s: expected a number from %lu to %lu, such as 4096 or 64K\n", assignment,
                 (unsigned long)row->lowest, (unsigned long)row->highest);
    return HAK_KNOB_COUNT;
}

static HAK_COLD void set_knob(const char *assignment, struct hak_answer *answer) {
    uint64_t value;
    enum hak_knob_number knob = take_assignment(assignment, &value, answer);
    if (knob == HAK_KNOB_COUNT) return;
    unsigned long before = hak_knob_get(knob);
    hak_heap_give_knob(knob, value);
    say_ok(answer);
    hak_text_add(&answer->text, "%s: %lu -> %lu\n", hak_knob_table[knob].name, before, (unsigned long)value);
}

static HAK_COLD void try_knob(const char *assignment, struct hak_answer *answer) {
    uint64_t value, arms[HAK_ACE_ARMS];
    enum hak_knob_number knob = take_assignment(assignment, &value, answer);
    if (knob == HAK_KNOB_COUNT) return;
    const char *name = hak_knob_table[knob].name, *refusal = hak_ace_refusal(knob);
    if (refusal != NULL) {
        hak_text_add(&answer->text, "error: %s is not tried: %s\n", name, refusal);
        return;
    }
    if (value == hak_ace_chosen(knob)) {
        hak_text_add(&answer->text, "error: %s is %lu already\n", name, (unsigned long)value);
        return;
    }
    if (hak_ace_try(knob, value)) {
        say_ok(answer);
        hak_text_add(&answer->text, "`control` tells what comes of it\n");
        return;
    }
    uint32_t count = hak_ace_arms(knob, arms);
    hak_text_add(&answer->text, "error: the controller gives %s %s", name, count == 0 ? "no value" : "one of");
    for (uint32_t i = 0; i < count; i++) hak_text_add(&answer->text, " %lu", (unsigned long)arms[i]);
    hak_text_add(&answer->text, "\n");
}

/* ---- Heap profile ------------------------------------------------------------------------------------------------ */

static void add_part(const char *text, void *answer) {
    if (hak_answer_make_room(answer, strlen(text))) hak_text_add(&((struct hak_answer *)answer)->text, "%s", text);
}

static HAK_COLD void start_profile(const char *interval, bool in_runs, struct hak_answer *answer) {
    uint64_t bytes = hak_process_config()->heap_profile_interval_bytes;
    if (interval[0] != '\0' && (!hak_config_parse_number(interval, &bytes) || bytes == 0)) {
        hak_text_add(&answer->text, "error: %s: expected a number of bytes, such as 64K or 1M\n", interval);
    } else if (!(in_runs ? hak_meter_start_runs : hak_meter_start)(bytes)) {
        hak_text_add(&answer->text, "error: there is no memory for a profile\n");
    } else {
        say_ok(answer);
        hak_text_add(&answer->text, "one %s per %lu bytes\n", in_runs ? "run of samples" : "sample",
                     (unsigned long)bytes);
    }
}

/* What follows `on`; NULL when it isn't that. */
static const char *after_on(const char *what) {
    if (strncmp(what, "on", 2) != 0 || (what[2] != '\0' && what[2] != ' ')) return NULL;
    return what[2] == '\0' ? what + 2 : what + 3;
}

/* `what` is empty where nothing was said. */
static HAK_COLD void refuse(const char *expected, const char *what, struct hak_answer *answer) {
    hak_text_add(&answer->text, "error: expected %s%s%s\n", expected, what[0] == '\0' ? "" : ", not ", what);
}

/* One of the two takes samples at a time. True while it is the other one, which is told. */
static HAK_COLD bool other_is_on(bool in_runs, struct hak_answer *answer) {
    if (!hak_profile_is_on() || hak_atomic_load(&hak_profile_in_runs, relaxed) == in_runs) return false;
    hak_text_add(&answer->text, "error: %s; `%s off` ends that\n",
                 in_runs ? "the heap profile is on, and takes the samples" : "pins are on, and take the samples",
                 in_runs ? "profile" : "pins");
    return true;
}

static HAK_COLD void steer_pins(const char *what, struct hak_answer *answer) {
    if (after_on(what) != NULL) {
        if (!other_is_on(true, answer)) start_profile(after_on(what), true, answer);
    } else if (strcmp(what, "off") == 0) {
        if (other_is_on(true, answer)) return;
        hak_meter_stop();
        say_ok(answer);
    } else {
        refuse("pins on, pins on BYTES or pins off", what, answer);
    }
}

static HAK_COLD void steer_profile(const char *what, struct hak_answer *answer) {
    if (after_on(what) != NULL) {
        if (!other_is_on(false, answer)) start_profile(after_on(what), false, answer);
    } else if (strcmp(what, "off") == 0) {
        if (other_is_on(false, answer)) return;
        hak_meter_stop();
        say_ok(answer);
    } else if (strcmp(what, "dump") != 0) {
        refuse("profile on, profile on BYTES, profile off or profile dump", what, answer);
    } else if (hak_atomic_load(&hak_profile_tables, relaxed) == NULL) {
        hak_text_add(&answer->text, "error: there never was a profile; `profile on` begins one\n");
    } else {
        say_ok(answer);
        hak_profile_write_sites(add_part, answer);
    }
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static HAK_COLD void tell_requests(const char *nothing, struct hak_answer *answer);

static const struct request_kind {
    const char *name;
    const char *takes; /* empty: nothing */
    void (*carry_out)(const char *rest, struct hak_answer *answer);
    const char *text;
} request_table[] = {
    {"stats", "text|json", tell_stats, "statistics of this moment"},
    {"metrics", "", tell_metrics, "the same as OpenMetrics text"},
    {"control", "", tell_control, "the state of the controller, and its last changes with their reasons"},
    {"purge", "", purge_all, "give all free memory back to the kernel"},
    {"knobs", "", tell_knobs, "numbers that can be set, with their bounds"},
    {"set", "KNOB=VALUE", set_knob, "set one"},
    {"try", "KNOB=VALUE", try_knob, "have the controller try a value, and keep it if it is shown to be better"},
    {"profile", "on [BYTES]|off|dump", steer_profile,
     "the heap profile: begin, with so many bytes from sample to sample; stop; show"},
    {"pins", "on [BYTES]|off", steer_pins,
     "samples in runs, one per so many bytes, from which hakmem pins tells whose blocks hold pages: begin; stop"},
    {"help", "", tell_requests, "this list"},
};

enum { REQUEST_COUNT = sizeof request_table / sizeof request_table[0] };

static HAK_COLD void tell_requests(const char *nothing, struct hak_answer *answer) {
    (void)nothing;
    say_ok(answer);
    for (size_t i = 0; i < REQUEST_COUNT; i++)
        hak_text_add(&answer->text, "%s%s%s: %s\n", request_table[i].name, request_table[i].takes[0] == '\0' ? "" : " ",
                     request_table[i].takes, request_table[i].text);
}

static void carry_out(char *line, struct hak_answer *answer) {
    size_t length = strcspn(line, " ");
    char *rest = line[length] == '\0' ? line + length : line + length + 1;
    line[length] = '\0';
    for (size_t i = 0; i < REQUEST_COUNT; i++) {
        const struct request_kind *kind = &request_table[i];
        if (strcmp(kind->name, line) != 0) continue;
        if (kind->takes[0] == '\0' && rest[0] != '\0')
            hak_text_add(&answer->text, "error: %s takes nothing, not %s\n", line, rest);
        else kind->carry_out(rest, answer);
        return;
    }
    hak_text_add(&answer->text, "error: this hakmem knows no %s; `help` lists what it does\n", line);
}

void hak_request_answer(char *line, struct hak_answer *answer) {
    carry_out(line, answer);
    hak_answer_make_room(answer, sizeof "end\n");
    hak_text_add(&answer->text, "end\n");
    hak_answer_make_room(answer, answer->text.capacity);
}
