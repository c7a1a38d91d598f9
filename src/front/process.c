#include "front/process.h"

#include <pthread.h>
#include <unistd.h>

#include "front/background.h"
#include "front/miss.h"
#include "front/service.h"
#include "front/thread.h"
#include "front/tight.h"
#include "os/os.h"
#include "region/page_policy.h"

extern char **environ;

enum { START_NONE, START_RUNNING, START_DONE };

static HAK_ATOMIC(uint32_t) start_state = START_NONE;
static struct hak_config settings;

/* Names are copied: programs that show a title in ps write over their environment. */
static char stats_file[4096], metrics_name[4096];

static const char *keep_name(const char *name, char *copy, size_t capacity) {
    if (name == NULL) return NULL;
    struct hak_text text = hak_text_in(copy, capacity);
    hak_text_add(&text, "%s", name);
    return copy;
}

static void read_settings(void) {
    char buffer[8192];
    struct hak_text messages = hak_text_in(buffer, sizeof buffer);
    settings = hak_config_parse(hak_os_is_privileged() ? NULL : environ, &messages);
    hak_page_policy_configure(settings.huge_pages, settings.prefault, settings.lazy_purge);
    for (uint32_t i = 0; i < HAK_KNOB_COUNT; i++)
        if (settings.knobs >> i & 1) hak_knob_set((enum hak_knob_number)i, settings.knob_values[i]);
    if (settings.help) hak_config_help(&settings, &messages);
    settings.stats_file = keep_name(settings.stats_file, stats_file, sizeof stats_file);
    settings.metrics_name = keep_name(settings.metrics_name, metrics_name, sizeof metrics_name);
    if (messages.length != 0) hak_os_write(STDERR_FILENO, messages.start, messages.length);
}

static void fill_bin_offsets(void) {
    for (size_t i = 0; i < sizeof hak_bin_offsets / sizeof hak_bin_offsets[0]; i++)
        hak_front_serve(i, hak_widest_of_group(hak_size_class_of(i * HAK_ALIGNMENT)));
}

_Static_assert(HAK_CLASS_LIMIT * sizeof(struct hak_bin) <= UINT16_MAX, "bin offsets fit their table");

static bool start(void) {
    hak_size_class_initialize();
    if (!hak_region_initialize()) return false;
    hak_thread_initialize();
    fill_bin_offsets(); /* last: from here on requests reach bins */
    return true;
}

bool hak_process_initialize(void) {
    /* Acquire pairs with the release below: all that start() wrote is seen. */
    uint32_t state = hak_atomic_load(&start_state, acquire);
    while (state != START_DONE) {
        state = START_NONE;
        /* Acquire for the loop's end, as above. */
        if (hak_atomic_cas(&start_state, &state, START_RUNNING, acquire, acquire)) {
            bool done = start();
            /* Release pairs with the acquire loads of start_state. */
            hak_atomic_store(&start_state, done ? START_DONE : START_NONE, release);
            return done;
        }
        if (state == START_RUNNING) {
            hak_cpu_relax();
            hak_os_yield();
        }
    }
    return true;
}

const struct hak_config *hak_process_config(void) { return &settings; }

/* ---- fork --------------------------------------------------------------------------------------------------------- */

/* hakmem has no locks to take before a fork. The child has one thread: it takes the heaps of the others apart. If the fork
 * came from a signal handler that interrupted a slow path, it leaves them: their free memory is lost to the child. */
static void in_child(void) {
    struct hak_heap *own = hak_thread_heap->number == 0 ? NULL : hak_thread_heap;
    bool others = false;
    hak_background_after_fork();
    hak_service_after_fork();
    hak_tight_after_fork();
    if (own != NULL) hak_atomic_store(&own->thread_id, hak_os_thread_id(), relaxed);
    /* Who was starting the process is not here: the next miss starts it. */
    if (hak_atomic_load(&start_state, relaxed) == START_RUNNING) hak_atomic_store(&start_state, START_NONE, relaxed);
    if (own != NULL && hak_atomic_load(&own->busy, relaxed) != 0) return;
    if (own != NULL &&
        hak_atomic_load(&own->drained, relaxed) != 0) { /* by a thread that is not here: it is torn (H5) */
        hak_thread_abandon_heap();
        own = NULL;
        others = true;
    }
    for (struct hak_heap *heap = hak_atomic_load(&hak_heaps, relaxed); heap != NULL; heap = heap->next)
        others = others || (heap != own && hak_heap_has_thread(heap));
    if (others) hak_heap_recover_after_fork(own);
}

/* ---- Before main -------------------------------------------------------------------------------------------------- */

/* The first malloc can come before there is an environment to read; the settings wait for this. */
__attribute__((constructor(101))) static void before_main(void) {
    read_settings();
    pthread_atfork(NULL, NULL, in_child);
}
