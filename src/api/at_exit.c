/* What settings ask for at the beginning and at the end of the process: reports of crashes, statistics. */
#include <unistd.h>

#include "front/process.h"
#include "front/thread.h"
#include "observe/crash.h"
#include "observe/stats.h"
#include "os/os.h"

/* ---- Crashes -------------------------------------------------------------------------------------------------------- */

/* After the settings have been read, and before all else that may crash. */
__attribute__((constructor(102))) static void catch_crashes(void) {
    if (!hak_process_config()->crash) return;
    struct hak_heap *heap = hak_process_initialize() ? hak_thread_attach() : NULL;
    if (heap != NULL) hak_crash_enter_thread(heap);
    hak_crash_install();
}

/* ---- Statistics ------------------------------------------------------------------------------------------------------ */

/* `pattern` with %p replaced by the process id. */
static void add_path(struct hak_text *path, const char *pattern, int process_id) {
    for (; *pattern != '\0'; pattern++) {
        if (pattern[0] == '%' && pattern[1] == 'p') {
            hak_text_add(path, "%d", process_id);
            pattern++;
        } else {
            hak_text_add(path, "%c", *pattern);
        }
    }
}

/* Programs close standard error before they end (GNU's tools do): the one of the start is kept. */
static int kept_stderr = -1;

__attribute__((constructor)) static void keep_stderr(void) {
    const struct hak_config *config = hak_process_config();
    if (hak_process_initialize() && config->stats != HAK_STATS_OFF && config->stats_file == NULL)
        kept_stderr = hak_os_duplicate(STDERR_FILENO);
}

static void write_stats(const struct hak_config *config) {
    char buffer[HAK_SNAPSHOT_TEXT_BYTES], path_buffer[4096];
    struct hak_text text = hak_text_in(buffer, sizeof buffer), path = hak_text_in(path_buffer, sizeof path_buffer);
    struct hak_snapshot snapshot;
    int process_id = hak_os_process_id(), descriptor = kept_stderr;
    hak_snapshot_take(&snapshot);
    if (config->stats == HAK_STATS_JSON) hak_snapshot_write_json(&snapshot, process_id, &text);
    else hak_snapshot_write_text(&snapshot, &text);
    if (config->stats_file != NULL) {
        add_path(&path, config->stats_file, process_id);
        descriptor = path.truncated ? -1 : hak_os_create_file(path.start);
        if (descriptor < 0) {
            text.length = 0;
            hak_text_add(&text, "hakmem: can't write statistics to %s\n", path.start);
            hak_os_write(STDERR_FILENO, text.start, text.length);
            return;
        }
    }
    hak_os_write(descriptor, text.start, text.length);
    hak_os_close(descriptor);
}

__attribute__((destructor)) static void at_exit(void) {
    const struct hak_config *config = hak_process_config();
    if (config->stats != HAK_STATS_OFF) write_stats(config);
}
