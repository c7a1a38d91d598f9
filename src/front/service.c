#include "front/service.h"

#include <string.h>

#include "base/knobs.h"
#include "front/process.h"
#include "front/requests.h"
#include "front/statistics.h"
#include "front/thread.h"
#include "observe/metrics.h"
#include "os/channel.h"
#include "os/os.h"

enum { SERVICE_NONE, SERVICE_STARTING, SERVICE_OPEN, SERVICE_REFUSED, SERVICE_ENDING };

enum { MOST_ANSWER_MS = 5000, IN_USE_MS = 60000, ANSWER_BYTES = HAK_STATISTICS_BYTES + 1024 };

static HAK_ATOMIC(uint32_t) service_state;
static HAK_ATOMIC(uint64_t) last_request_ms; /* or when it was wished for */
static uintptr_t service_thread;             /* of the background thread */

/* Of the service. */
static struct {
    char line[HAK_REQUEST_BYTES]; /* the request that is coming in */
    size_t line_length;           /* more than fits: it is too long */
    char answer[ANSWER_BYTES];
    uint64_t answer_deadline_ms;
    uint64_t metrics_ms; /* when they were written */
    struct hak_snapshot snapshot;
    char path[4096];
    bool is_filtered; /* by more than when it began: it does no more */
} service;

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static bool send_part(const char *text, size_t length) {
    return hak_os_channel_send(text, length, service.answer_deadline_ms);
}

/* Cuts the first word off `line`, and returns what follows its blank; NULL for nothing. */
static char *cut_word(char *line) {
    size_t length = strcspn(line, " ");
    if (line[length] == '\0') return NULL;
    line[length] = '\0';
    return line + length + 1;
}

/* A line is a word that whoever asks has made up, by which he knows the answer; the number of filters that he sees this
 * thread's system calls to be under; and the request. */
static void answer_line(void) {
    struct hak_answer answer = {.text = hak_text_in(service.answer, sizeof service.answer), .send = send_part};
    char *number = cut_word(service.line), *request = number == NULL ? NULL : cut_word(number);
    uint64_t filters;
    if (request == NULL || !hak_config_parse_number(number, &filters)) return;
    service.is_filtered = !hak_os_channel_has_filters(filters);
    if (service.is_filtered) return;
    service.answer_deadline_ms = hak_os_clock_ms() + MOST_ANSWER_MS;
    hak_text_add(&answer.text, "%s ", service.line);
    hak_request_answer(request, &answer);
    if (answer.is_lost) hak_os_channel_drop(); /* the next one finds an empty pipe */
    hak_atomic_store(&last_request_ms, hak_os_clock_ms(), relaxed);
}

static void take_char(char c) {
    if (c != '\n') {
        if (service.line_length < sizeof service.line - 1) service.line[service.line_length] = c;
        if (service.line_length < sizeof service.line) service.line_length++;
        return;
    }
    bool fits = service.line_length < sizeof service.line;
    service.line[fits ? service.line_length : 0] = '\0';
    service.line_length = 0;
    if (fits) answer_line();
}

/* ---- Metrics ----------------------------------------------------------------------------------------------------- */

static bool has_metrics(void) { return hak_process_config()->metrics_file != 0; }

/* How long until metrics are to be written; 0: now, if ever. */
static uint64_t metrics_wait_ms(void) {
    uint64_t passed_ms = hak_os_clock_ms() - service.metrics_ms, period_ms = hak_knob(metrics_ms);
    return !has_metrics() || passed_ms >= period_ms ? 0 : period_ms - passed_ms;
}

static void write_metrics(void) {
    struct hak_text path = hak_text_in(service.path, sizeof service.path),
                    text = hak_text_in(service.answer, sizeof service.answer);
    hak_config_add_path(&path, hak_config_file(hak_process_config()->metrics_file), hak_os_process_id());
    hak_snapshot_take(&service.snapshot);
    hak_snapshot_write_metrics(&service.snapshot, &text);
    if (!path.truncated) hak_os_replace_file(path.start, text.start, text.length);
    service.metrics_ms = hak_os_clock_ms();
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

static bool is_serving(void) { return hak_atomic_load(&service_state, relaxed) == SERVICE_OPEN; }

static HAK_COLD void serve(void) {
    char buffer[HAK_REQUEST_BYTES];
    if (has_metrics()) write_metrics();
    while (is_serving()) {
        size_t length = hak_os_channel_receive(buffer, sizeof buffer, metrics_wait_ms());
        if (!is_serving() || !hak_os_channel_may_answer()) break;
        for (size_t i = 0; i < length && !service.is_filtered; i++) take_char(buffer[i]);
        if (service.is_filtered) break;
        if (has_metrics() && metrics_wait_ms() == 0) write_metrics();
    }
    while (is_serving() && hak_os_may_wait()) hak_os_wait(&service_state, SERVICE_OPEN, 0);
}

static HAK_COLD void run_service(void) {
    hak_thread_refuse_heap();
    service.line_length = 0;
    service.is_filtered = false;
    bool opened = hak_os_channel_open(has_metrics());
    hak_atomic_store(&service_state, opened ? SERVICE_OPEN : SERVICE_REFUSED, relaxed);
    hak_os_wake(&service_state);
    if (opened) serve();
}

bool hak_service_is_wanted(void) {
    const struct hak_config *config = hak_process_config();
    return config->ctl == 1 || (config->ctl != 0 && config->metrics_file != 0);
}

bool hak_service_is_asked(void) {
    return hak_atomic_load(&hak_channel_wish, relaxed) == HAK_CHANNEL_WISHED && hak_process_config()->ctl != 0;
}

bool hak_service_is_in_use(void) {
    uint64_t last_ms = hak_atomic_load(&last_request_ms, relaxed);
    return is_serving() && last_ms != 0 && hak_os_clock_ms() - last_ms < IN_USE_MS;
}

static bool is_allowed(bool is_filtered) {
    if (hak_process_config()->ctl == 0 || hak_os_is_privileged()) return false;
    return hak_service_is_wanted() || !is_filtered;
}

static void join_service(void) {
    hak_os_join_thread(service_thread);
    hak_atomic_store(&service_state, SERVICE_NONE, relaxed);
}

void hak_service_start(bool is_filtered) {
    if (hak_service_is_asked()) hak_atomic_store(&last_request_ms, hak_os_clock_ms(), relaxed);
    hak_atomic_store(&hak_channel_wish, HAK_CHANNEL_NO_WISH, relaxed);
    if (!is_allowed(is_filtered) || !hak_os_channel_make()) return;
    hak_atomic_store(&service_state, SERVICE_STARTING, relaxed);
    if (!hak_os_start_thread(run_service, &service_thread)) {
        hak_atomic_store(&service_state, SERVICE_NONE, relaxed);
        return;
    }
    while (hak_atomic_load(&service_state, relaxed) == SERVICE_STARTING)
        hak_os_wait(&service_state, SERVICE_STARTING, 0);
    if (hak_atomic_load(&service_state, relaxed) == SERVICE_REFUSED) join_service();
}

void hak_service_stop(void) {
    if (is_serving()) {
        hak_atomic_store(&service_state, SERVICE_ENDING, relaxed);
        hak_os_wake(&service_state);
        hak_os_channel_interrupt();
        join_service();
    }
    hak_os_channel_end();
}

void hak_service_after_fork(void) {
    hak_atomic_store(&service_state, SERVICE_NONE, relaxed);
    hak_atomic_store(&hak_channel_wish, HAK_CHANNEL_NO_WISH, relaxed);
    hak_atomic_store(&last_request_ms, 0, relaxed);
}
