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
static void check_ended(void) { model_assert(hak_background_state == HAK_BACKGROUND_NONE, "each has ended"); }

MODEL_HARNESS(background_again, setup_ending, check_ended, run_to_end, start_another);

static void setup_refused(void) {
    setup();
    hak_background_state = HAK_BACKGROUND_NONE;
    fake_os.refuses_threads = true;
}
static void start_in_vain(void) {
    library_background_start();
    miss();
    hak_background_want();
}
static void come_and_want(void) {
    come_and_miss();
    hak_background_want();
}
MODEL_HARNESS_BOUNDED(background_refused, 1, 1, setup_refused, check_ended, start_in_vain, come_and_want);

/* The last thread that has a heap ends, or comes back. */
static void leave(void) {
    hak_heap_release(library_heaps[0]);
    hak_background_thread_ended();
}
MODEL_HARNESS(background_end, setup, check_ended, run_to_end, leave);
