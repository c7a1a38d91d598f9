/* What settings ask for at the beginning and at the end of the process: reports of crashes, the service, statistics,
 * the heap profile. And the secure build's last look at freed blocks. */
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "front/background.h"
#include "front/miss.h"
#include "front/process.h"
#include "front/service.h"
#include "front/statistics.h"
#include "front/thread.h"
#include "observe/crash.h"
#include "observe/profile.h"
#include "os/os.h"
#include "os/signals.h"

/* ---- Crashes ----------------------------------------------------------------------------------------------------- */

/* After the settings have been read, and before all else that may crash. */
__attribute__((constructor(102))) static void catch_crashes(void) {
    if (hak_process_config()->guard != 0) hak_crash_install_for_guards();
    if (!hak_process_config()->crash) return;
    struct hak_heap *heap = hak_process_initialize() ? hak_thread_attach() : NULL;
    if (heap != NULL) hak_crash_enter_thread(heap);
    hak_crash_install();
}

/* ---- The service ------------------------------------------------------------------------------------------------- */

/* By the last constructor here: what this library needs is initialised by now. */
__attribute__((constructor)) static void start_service(void) {
    if (hak_service_is_wanted() && hak_process_initialize()) hak_background_want(NULL);
}

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

/* What they are written with. One thread does it at a time, and so it needs little of a stack, which may be a signal
 * handler's. */
static struct {
    struct hak_snapshot snapshot;
    char text[HAK_STATISTICS_BYTES];
    char path[4096];
} stats;

/* The process that writes them now; 0, or one that a parent has left behind: nobody does. */
static HAK_ATOMIC(uint32_t) stats_writer;

static bool begin_stats(void) {
    uint32_t process = (uint32_t)hak_os_process_id(), other = hak_atomic_load(&stats_writer, relaxed);
    /* Acquire pairs with end_stats. */
    return other != process && hak_atomic_cas(&stats_writer, &other, process, acquire, relaxed);
}

static void end_stats(void) {
    /* Release pairs with begin_stats: the next one may write where this one has. */
    hak_atomic_store(&stats_writer, 0, release);
}

/* Says in `line`, whose text goes, that what a setting has asked for is lost. */
static void say_lost(const char *what, const char *path, struct hak_text *line) {
    line->length = 0;
    hak_text_add(line, "hakmem: can't write %s to %s\n", what, path);
    hak_os_write_line(line->start, line->length);
}

/* Creates what a setting names, for `what`: the path is made in `path`. When that can't be, says so, and returns -1. */
static int create_named(const char *name, const char *what, struct hak_text *path, struct hak_text *line) {
    hak_config_add_path(path, name, hak_os_process_id());
    int descriptor = path->truncated ? -1 : hak_os_create_file(path->start);
    if (descriptor >= 0) return descriptor;
    say_lost(what, path->start, line);
    return -1;
}

static void write_stats(const struct hak_config *config) {
    struct hak_text text = hak_text_in(stats.text, sizeof stats.text),
                    path = hak_text_in(stats.path, sizeof stats.path);
    int descriptor = hak_os_kept_stderr();
    if (config->stats == HAK_STATS_JSON) hak_statistics_write_json(&stats.snapshot, &text);
    else hak_statistics_write_text(&stats.snapshot, true, &text);
    if (config->stats_file != NULL) {
        descriptor = create_named(config->stats_file, "statistics", &path, &text);
        if (descriptor < 0) return;
    }
    bool written = hak_os_write_quietly(descriptor, text.start, text.length);
    if (config->stats_file == NULL) return;
    hak_os_close(descriptor);
    if (!written) say_lost("statistics", path.start, &text);
}

/* One that comes while statistics are being written is forgotten. */
static void at_signal(void) {
    if (!begin_stats()) return;
    write_stats(hak_process_config());
    end_stats();
}

__attribute__((constructor)) static void prepare_output(void) {
    static const char handled[] =
        "hakmem: setting HAKMEM_STATS_SIGNAL ignored: the signal has a handler, or is ignored\n";
    const struct hak_config *config = hak_process_config();
    bool has_stats = config->stats != HAK_STATS_OFF || config->stats_signal != 0;
    if (!hak_process_initialize() || (!has_stats && config->heap_profile == 0)) return;
    /* Programs close standard error before they end (GNU's tools do). But whoever waits for its end does not wait for
     * a daemon. */
    hak_os_keep_stderr();
    pthread_atfork(NULL, NULL, hak_os_drop_stderr);
    if (config->stats_signal != 0 && !hak_os_on_signal((int)config->stats_signal, at_signal))
        hak_os_write_quietly(STDERR_FILENO, handled, sizeof handled - 1);
}

static void write_stats_at_exit(void) {
    const struct hak_config *config = hak_process_config();
    uint32_t tries_left = 1000; /* another thread may be at it, or hang in it */
    if (config->stats == HAK_STATS_OFF) return;
    for (; !begin_stats(); hak_os_yield())
        if (tries_left-- == 0) return;
    write_stats(config);
}

/* ---- Heap profile ------------------------------------------------------------------------------------------------ */

static void write_profile_at_exit(void) {
    const struct hak_config *config = hak_process_config();
    const char *name = config->heap_profile_file == NULL ? "hakmem.%p.prof" : config->heap_profile_file;
    char path_buffer[4096], line_buffer[4096 + 64];
    struct hak_text path = hak_text_in(path_buffer, sizeof path_buffer),
                    line = hak_text_in(line_buffer, sizeof line_buffer);
    if (config->heap_profile == 0) return;
    int descriptor = create_named(name, "the heap profile", &path, &line);
    if (descriptor < 0) return;
    int error = hak_profile_write(descriptor);
    hak_os_close(descriptor);
    if (error == EIO) say_lost("the heap profile", path.start, &line);
}

__attribute__((destructor)) static void at_exit(void) {
    write_stats_at_exit();
    write_profile_at_exit();
    if (HAK_SECURE) hak_front_end_waits(); /* last: what it finds ends the program */
}
