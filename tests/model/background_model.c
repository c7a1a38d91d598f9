/* The background thread: no miss goes unnoticed when it falls asleep, heaps that are made meanwhile are seen, and one begins
 * where the last one ended.
 */
#include "library.h"

static void setup(void) {
    library_start(1, 1, 3, 1);
    model_name(&hak_background_state, "background");
}
static void setup_ending(void) {
    setup();
    model_refuses_fences = true; /* they would order all */
    hak_background_state = HAK_BACKGROUND_ENDING;
}

static void miss(void) {
    hak_thread_heap = library_heaps[0];
    hak_front_refill(PAIR);
}
static void come_and_miss(void) {
    hak_thread_heap = hak_heap_acquire();
    hak_front_refill(PAIR);
}

/* There is one miss, whenever: if it slept through it, all would sleep now. */
static void fall_asleep(void) { library_background_sleep(); }

static void end_periods(void) {
    for (int i = 0; i < 2; i++) library_background_period();
}

static void check(void) { model_assert(library_check() == 0, "every block is free, or in a bin"); }
static void check_awake(void) {
    check();
    model_assert(hak_background_state == HAK_BACKGROUND_AWAKE, "a miss wakes it");
}

MODEL_HARNESS(background_sleep, setup, check_awake, fall_asleep, miss);
MODEL_HARNESS(background_sleep_new, setup, check_awake, fall_asleep, come_and_miss);
MODEL_HARNESS_BOUNDED(background_period, 1, 1, setup, check, end_periods, come_and_miss);

static void run_to_end(void) { library_background_run(); }
static void start_another(void) {
    library_background_start();
    if (fake_os.thread == NULL) return;
    hak_atomic_store(&hak_background_state, HAK_BACKGROUND_ENDING, relaxed);
    library_background_run();
}
static void check_ended(void) { model_assert(hak_background_state == HAK_BACKGROUND_ENDED, "each has ended"); }
static void check_none(void) { model_assert(hak_background_state == HAK_BACKGROUND_NONE, "none is left"); }

MODEL_HARNESS(background_again, setup_ending, check_ended, run_to_end, start_another);

static void setup_refused(void) {
    setup();
    hak_background_state = HAK_BACKGROUND_NONE;
    fake_os.refuses_threads = true;
}
static void start_in_vain(void) {
    library_background_start();
    miss();
    hak_background_want(NULL);
}
static void come_and_want(void) {
    come_and_miss();
    hak_background_want(NULL);
}
MODEL_HARNESS_BOUNDED(background_refused, 1, 1, setup_refused, check_none, start_in_vain, come_and_want);

/* The last thread that has a heap ends. Whatever the background thread does at that moment, it has ended before, and was
 * joined. */
static void leave_heap(struct hak_heap *heap) {
    hak_heap_release(heap);
    hak_background_thread_ended();
}
static void leave(void) { leave_heap(library_heaps[0]); }
static void leave_too(void) { leave_heap(library_heaps[1]); }
static void finish(void) { library_background_finish(); }

static void setup_two(void) {
    library_start(1, 1, 3, 2);
    model_name(&hak_background_state, "background");
}

MODEL_HARNESS(background_end, setup, check_none, run_to_end, leave);
MODEL_HARNESS(background_end_alone, setup, check_none, finish, leave);
MODEL_HARNESS_BOUNDED(background_end_two, 1, 1, setup_two, check_none, run_to_end, leave, leave_too);

/* One thread leaves its heap as the last; another comes, has the background thread that has ended joined, and starts one.
 * The first may take that for its own to join. */
static void come_and_start(void) {
    hak_heap_acquire();
    library_background_start();
    if (fake_os.thread != NULL) library_background_finish();
}
static void check_joined(void) {
    bool is_none = hak_background_state == HAK_BACKGROUND_NONE, is_ended = hak_background_state == HAK_BACKGROUND_ENDED;
    model_assert(is_none || (is_ended && fake_os.thread != NULL), "the first was joined");
}
static void setup_finished(void) {
    setup();
    library_background_finish();
}
MODEL_HARNESS(background_end_again, setup_finished, check_joined, leave, come_and_start);

/* The same while the background thread ends: whoever joins it, the one who waits for its end goes on. */
static void setup_without_another(void) {
    setup();
    fake_os.refuses_threads = true;
}
static void come_join_and_leave(void) {
    struct hak_heap *heap = hak_heap_acquire();
    library_background_start();
    leave_heap(heap);
}
MODEL_HARNESS_BOUNDED(background_end_taken, 1, 1, setup_without_another, check_none, run_to_end, leave,
                      come_join_and_leave);

/* A filter for all threads comes while the thread begins: before it looks at what it may do, or after that. */
static void start_and_look(void) {
    library_background_start();
    if (fake_os.thread != NULL) library_background_look();
}
static void filter_all(void) {
    hak_background_filter(true);
    fake_os_filter();
    hak_background_filter(false);
}
static void setup_none(void) {
    setup();
    hak_background_state = HAK_BACKGROUND_NONE;
}
MODEL_HARNESS(background_filtered, setup_none, NULL, start_and_look, filter_all);
MODEL_HARNESS(background_filtered_twice, setup_none, NULL, start_and_look, filter_all, filter_all);
