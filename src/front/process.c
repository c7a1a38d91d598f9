#include "front/process.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/experiment.h"
#include "base/profile.h"
#include "control/ace.h"
#include "front/background.h"
#include "front/follow.h"
#include "front/meter.h"
#include "front/miss.h"
#include "front/routes.h"
#include "front/service.h"
#include "front/thread.h"
#include "front/tight.h"
#include "observe/landmarks.h"
#include "observe/profile.h"
#include "os/libc.h"
#include "os/modules.h"
#include "os/os.h"
#include "pool/bin_size.h"
#include "pool/canary.h"
#include "pool/fork.h"
#include "pool/quarantine.h"
#include "region/generation.h"
#include "region/heap_count.h"
#include "region/in_hand.h"
#include "region/page_policy.h"

extern char **environ;

enum { START_NONE, START_DONE };

static HAK_ATOMIC(uintptr_t) start_state = START_NONE; /* or who is at it: hak_thread_identity */
static struct hak_config settings;
static bool are_settings_read;

/* Names are copied: programs that show a title in ps write over their environment. */
static char stats_file[4096], metrics_file[4096], heap_profile_file[4096];

static const char *keep_name(const char *name, char *copy, size_t capacity) {
    if (name == NULL) return NULL;
    struct hak_text text = hak_text_in(copy, capacity);
    hak_text_add(&text, "%s", name);
    return copy;
}

static void give_knobs(uint64_t knobs, const uint64_t *values) {
    for (uint32_t i = 0; i < HAK_KNOB_COUNT; i++)
        if (knobs >> i & 1) hak_heap_give_knob((enum hak_knob_number)i, values[i]);
}

static void take_part(struct hak_text *messages) {
    char host[HAK_OS_HOST_NAME_BYTES], name[HAK_EXPERIMENT_NAME_BYTES + 1] = {0};
    const char *text = hak_config_file(settings.experiment);
    if (!hak_os_host_name(host)) {
        hak_text_add(messages, "hakmem: setting HAKMEM_EXPERIMENT=%s ignored: the host has no name\n", text);
        return;
    }
    memcpy(name, text, strcspn(text, ":"));
    memcpy(hak_experiment.name, name, sizeof name);
    hak_experiment.is_treated = hak_experiment_treats(name, host, settings.experiment_share);
    if (hak_experiment.is_treated) give_knobs(settings.experiment_knobs, settings.experiment_values);
    if (settings.help) hak_text_add(messages, "hakmem: experiment %s: %s is in %s\n", name, host, hak_experiment_arm());
}

static void set_knobs(struct hak_text *messages) {
    enum hak_goal goal = hak_profile_apply(settings.profile);
    hak_page_policy_configure(settings.huge_pages, settings.prefault, settings.lazy_purge);
    bool is_pinned = settings.policy != 0 &&
                     hak_follow_policy(hak_config_file(settings.policy), environ, settings.help != 0, messages);
    hak_ace_configure(&(struct hak_ace_settings){
        .is_enabled = settings.ace != 0,
        .is_pinned = is_pinned,
        .may_ask = settings.background == 1 || settings.ctl == 1 || settings.goal != HAK_GOAL_OF_PROFILE,
        .goal = settings.goal == HAK_GOAL_OF_PROFILE ? goal : (enum hak_goal)settings.goal,
        .profile = settings.profile,
        .fast_ms = settings.ace_fast_ms,
        .slow_ms = settings.ace_slow_ms,
    });
    if (settings.guard != 0) hak_knob_give(HAK_KNOB_guard_share, settings.guard);
    /* Last: by hand, whatever a policy says; and what is tried on some hosts, whatever all have. */
    give_knobs(settings.knobs, settings.knob_values);
    if (settings.experiment != 0) take_part(messages);
}

/* Whole lines, and one that says that there are more. */
static void end_early(struct hak_text *messages) {
    static const char more[] = "hakmem: and more\n";
    size_t length = messages->length;
    while (length > 0 && (messages->start[length - 1] != '\n' || length + sizeof more > messages->capacity)) length--;
    memcpy(messages->start + length, more, sizeof more);
    messages->length = length + sizeof more - 1;
}

/* While standard error is surely where the user looks, and nothing is lost yet. */
static void check_metrics_file(struct hak_text *messages) {
    char buffer[4096];
    struct hak_text path = hak_text_in(buffer, sizeof buffer);
    if (settings.metrics_file == 0 || settings.ctl == 0) return;
    hak_config_add_path(&path, hak_config_file(settings.metrics_file), hak_os_process_id());
    if (!path.truncated && hak_os_may_replace(path.start)) return;
    hak_text_add(messages, "hakmem: can't write metrics to %s\n", path.start);
}

static void use_seed(void) {
    hak_profile_seed(settings.seed);
    if (HAK_SECURE && hak_process_initialize()) hak_quarantine_seed(settings.seed);
}

/* Two copies of hakmem may be preloaded: one by a container's image, say, and one by `hakmem run`. The first one has
 * the process's malloc, and the settings are for it: the other would write what little it has seen into the same
 * files. */
static bool is_another_copys(void) {
    return hak_os_is_behind((const void *)(uintptr_t)hak_process_initialize, "hakmem", HAK_LANDMARKS_NOTE);
}

static void read_settings(void) {
    char buffer[8192];
    int saved_errno = errno;
    struct hak_text messages = hak_text_in(buffer, sizeof buffer);
    settings = hak_config_parse(hak_os_is_privileged() || is_another_copys() ? NULL : environ, &messages);
    are_settings_read = true;
    set_knobs(&messages);
    if (settings.seed != 0) use_seed();
    if (settings.help) hak_config_help(&settings, &messages);
    settings.stats_file = keep_name(settings.stats_file, stats_file, sizeof stats_file);
    settings.heap_profile_file = keep_name(settings.heap_profile_file, heap_profile_file, sizeof heap_profile_file);
    settings.metrics_file =
        (uintptr_t)keep_name(hak_config_file(settings.metrics_file), metrics_file, sizeof metrics_file);
    check_metrics_file(&messages);
    uint64_t interval = settings.heap_profile_interval_bytes;
    if ((settings.pins && !hak_meter_start_runs(interval)) ||
        (!settings.pins && settings.heap_profile != 0 && !hak_meter_start(interval)))
        hak_text_add(&messages, "hakmem: no memory for the heap profile\n");
    if (messages.truncated) end_early(&messages);
    if (messages.length != 0) hak_os_write_quietly(STDERR_FILENO, messages.start, messages.length);
    errno = saved_errno;
}

bool hak_process_keeps_deepbind(void) {
    if (are_settings_read) return settings.deepbind != 0;
    const char *value = hak_os_is_privileged() ? NULL : hak_config_variable(environ, "HAKMEM_DEEPBIND");
    return value != NULL && strcmp(value, "1") == 0;
}

static bool start(void) {
    hak_size_class_initialize(HAK_SECURE ? hak_os_page_bytes() : 0);
    hak_os_seed_random(hak_config_seed(hak_os_is_privileged() ? NULL : environ));
    if (!hak_region_initialize()) return false;
    hak_heap_count_initialize();
    if (HAK_SECURE) {
        hak_canary_begin();
        hak_quarantine_begin();
    }
    hak_routes_initialize(); /* last: from here on requests reach bins */
    return true;
}

bool hak_process_initialize(void) {
    /* Acquire pairs with the release below: all that start() wrote is seen. */
    uintptr_t state = hak_atomic_load(&start_state, acquire);
    if (HAK_LIKELY(state == START_DONE)) return true;
    uintptr_t self = hak_thread_identity();
    while (state != START_DONE) {
        if (state == self) return false; /* a signal handler has interrupted the start: it can't wait for its end */
        state = START_NONE;
        /* Acquire for the loop's end, as above. */
        if (hak_atomic_cas(&start_state, &state, self, acquire, acquire)) {
            bool done = start();
            /* Release pairs with the acquire loads of start_state. */
            hak_atomic_store(&start_state, done ? START_DONE : START_NONE, release);
            return done;
        }
        if (state != START_DONE && state != self) {
            hak_cpu_relax();
            hak_os_yield();
        }
    }
    return true;
}

const struct hak_config *hak_process_config(void) { return &settings; }

/* ---- fork -------------------------------------------------------------------------------------------------------- */

/* The calling thread goes on in the middle of something: the fork came from a signal handler. */
static bool is_interrupted(const struct hak_heap *own) {
    return hak_in_hand_own != 0 || hak_thread_is_between_heaps() ||
           (own != NULL &&
            (hak_atomic_load(&own->busy, relaxed) != 0 || hak_atomic_load(&own->large_hand.is_in_use, relaxed) != 0));
}

/* The calling thread's heap, unless it was drained by a thread that is not here: then it is torn (H5). */
static struct hak_heap *keep_own(struct hak_heap *own) {
    if (own == NULL || hak_atomic_load(&own->drained, relaxed) == 0) return own;
    hak_thread_abandon_heap();
    return NULL;
}

/* A program with one thread forks alone: some look for threads then, and Python warns of them. */
static HAK_COLD void before_fork(void) {
    if (!is_interrupted(hak_thread_heap->number == 0 ? NULL : hak_thread_heap)) hak_background_yield(HAK_YIELD_TO_FORK);
}

/* hakmem has no locks to take before a fork. The child has one thread: the heaps of the others are orphaned, and what
 * they were in the middle of is recovered. If the fork came from a signal handler that interrupted a slow path, a
 * change of a large object, or the birth or end of the thread's heap, the child leaves all that, for it will go on with
 * it: the free memory of others is lost to it. A heap that is nobody's yet, or no more, may be counted then. So it is
 * where another library's handler, which was called before, has started threads: these use it already. */
static HAK_COLD void in_child(void) {
    hak_background_forked();
    if (hak_generation_is_settled()) return;
    struct hak_heap *own = hak_thread_heap->number == 0 ? NULL : hak_thread_heap;
    bool is_alone = hak_generation_begin();
    uint32_t in_hand_count = hak_in_hand_count();
    hak_service_after_fork();
    hak_ace_after_fork();
    hak_tight_after_fork();
    hak_page_policy_after_fork();
    hak_thread_after_fork();
    if (own != NULL) hak_atomic_store(&own->thread_id, hak_os_thread_id(), relaxed);
    /* Who was starting the process is not here: the next miss starts it. */
    uintptr_t state = hak_atomic_load(&start_state, relaxed);
    if (state != START_DONE && state != hak_thread_identity()) hak_atomic_store(&start_state, START_NONE, relaxed);
    if (is_alone) hak_in_hand_recover_after_fork();
    if (is_interrupted(own)) {
        hak_heap_note_copies_after_fork(own);
        if (is_alone) hak_heap_set_in_use(own != NULL || hak_thread_is_between_heaps());
    } else if (is_alone) {
        hak_fork_recover(keep_own(own), in_hand_count);
    } else {
        hak_fork_leave_dead(keep_own(own));
    }
    if (hak_profile_is_begun() && settings.seed == 0) hak_profile_seed_child();
    hak_background_after_fork(); /* last: from here on it can begin */
    hak_generation_end();
}

/* ---- Before main ------------------------------------------------------------------------------------------------- */

/* The first malloc can come before there is an environment to read; the settings wait for this. What has to be asked
 * of the kernel is asked now: a sandbox that the program enters later may kill for it. */
__attribute__((constructor(101))) static void before_main(void) {
    hak_process_initialize(); /* without memory, the first malloc tries again */
    if (hak_thread_heap->number != 0) hak_atomic_store(&hak_thread_heap->thread_id, hak_os_thread_id(), relaxed);
    hak_background_begin(); /* before a setting lets its thread begin, in a thread of an earlier constructor's */
    hak_os_modules_begin(); /* before a setting has stacks walked */
    read_settings();
    hak_tight_begin();
    hak_thread_initialize(); /* now, and not while the program is making a key, perhaps with a lock */
    hak_generation_watch();
    pthread_atfork(before_fork, hak_background_forked, in_child);
}
