/* front/background.h: when the thread is wanted, what it gives back, and that it sleeps then. The fake kernel does not run it; the
 * test does, and acts as the program's threads where it waits. */
#include "heap_fixture.h"

#include "allowance.h"
#include "floating.h"

#include "front/background.h"
#include "base/knobs.h"
#include "control/ace.h"
#include "control/report.h"
#include "front/front.h"
#include "front/miss.h"
#include "front/process.h"
#include "os/channel.h"
#include "pool/bin.h"
#include "pool/heap.h"
#include "pool/purge.h"
#include "region/decay.h"
#include "region/heap_count.h"

enum { BLOCKS = 40000, BYTES = 1000 };

static void *blocks[BLOCKS];

static void fill(int count) {
    for (int i = 0; i < count; i++) {
        blocks[i] = hak_malloc(BYTES);
        assert_non_null(blocks[i]);
    }
}
static void empty(int count, int every) {
    for (int i = 0; i < count; i++)
        if (every == 0 || i % every != 0) {
            hak_free(blocks[i]);
            blocks[i] = NULL;
        }
}

static uint32_t thread_state(void) { return hak_atomic_load(&hak_background_state, relaxed); }

static void not_for_a_small_program(void **state) {
    (void)state;
    assert_non_null(hak_heap_acquire()); /* a second thread's */
    fill(5000);                          /* less than 8 MiB */
    empty(5000, 0);
    assert_null(fake_os.thread);
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE);
}

static void with_two_threads(void **state) {
    (void)state;
    assert_non_null(hak_heap_acquire());
    fill(10000);
    assert_non_null(fake_os.thread);
    assert_int_equal(thread_state(), HAK_BACKGROUND_AWAKE);
}

/* Objects with mappings of their own count. */
static void with_mappings_only(void **state) {
    (void)state;
    assert_non_null(hak_heap_acquire());
    hak_free(hak_malloc(40 * HAK_MIB)); /* which is kept */
    hak_free(hak_malloc(100000));
    assert_non_null(fake_os.thread);
}

/* Libc's own allocations start none: it may hold a lock that pthread_create needs. */
static void not_for_libc(void **state) {
    (void)state;
    static const char libc, program;
    fake_os.library_code = &libc;
    assert_non_null(hak_heap_acquire());
    for (int i = 0; i < 40000; i++) assert_non_null(hak_front_alloc_miss(BYTES, &libc));
    for (int i = 0; i < 100; i++) assert_non_null(hak_front_alloc_large(100000, HAK_ALIGNMENT, i % 2 != 0, &libc));
    assert_null(fake_os.thread);
    assert_non_null(hak_front_alloc_large(100000, HAK_ALIGNMENT, false, &program));
    assert_non_null(fake_os.thread);
}

/* Nor any call where the program wraps malloc: it may hold a lock that libc's calls wait for. But if somebody asks. */
static void set_background(uint64_t value) {
    ((struct hak_config *)(uintptr_t)hak_process_config())->background = value;
}

static void not_for_a_wrapper(void **state) {
    (void)state;
    fake_os.is_malloc_wrapped = true;
    hak_background_begin();
    assert_non_null(hak_heap_acquire());
    fill(BLOCKS);
    assert_null(fake_os.thread);
    empty(BLOCKS, 0);
    assert_in_range(hak_atomic_load(&hak_dirty_units, relaxed), 0, 8);
    hak_atomic_store(&hak_channel_wish, HAK_CHANNEL_WISHED, relaxed);
    fill(BLOCKS);
    assert_null(fake_os.thread);
    set_background(1);
    fill(BLOCKS);
    assert_non_null(fake_os.thread);
}

/* A child of vfork starts none, and its parent does. */
static void not_with_borrowed_memory(void **state) {
    (void)state;
    hak_background_begin();
    fake_os.processes_away++;
    assert_non_null(hak_heap_acquire());
    fill(10000);
    assert_null(fake_os.thread);
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE);
    fake_os.processes_away--;
    fill(10000);
    assert_non_null(fake_os.thread);
}

/* However large it is. */
static void not_with_one_thread(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) fill(BLOCKS); /* 200 MB */
    assert_null(fake_os.thread);
    struct hak_heap *second = hak_heap_acquire();
    hak_heap_release(second);
    fill(BLOCKS);
    assert_null(fake_os.thread);
    hak_heap_acquire();
    fill(BLOCKS);
    assert_non_null(fake_os.thread);
}

static void asked_for(void **state) {
    (void)state;
    set_background(1);
    fill(5000);
    assert_null(fake_os.thread);
    fill(10000);
    assert_non_null(fake_os.thread);
}

static void never(void **state) {
    (void)state;
    set_background(0);
    hak_atomic_store(&hak_channel_wish, HAK_CHANNEL_WISHED, relaxed);
    hak_heap_acquire();
    for (int i = 0; i < 5; i++) fill(BLOCKS);
    assert_null(fake_os.thread);
}

static void miss(void) {
    for (int i = 0; i < 4; i++) {
        fill(2000);
        empty(2000, 0);
    }
}

/* Periods that the controller has measured. */
static size_t count_points(void) {
    static char buffer[HAK_REPORT_BYTES];
    struct hak_text text = hak_text_in(buffer, sizeof buffer);
    size_t count = 0;
    hak_report_write_json(&text);
    for (const char *at = buffer; (at = strstr(at, "\"cost_ppm\"")) != NULL; at++) count++;
    return count;
}

static void pass_a_second(void) {
    fake_os.clock_ms += 1000;
    fake_os.usage.cpu_ns += 1000000000;
}

/* A program with one thread: its own misses do the controller's steps, when they are due. None of them takes the
 * processor's time stamp. */
static void one_thread_learns(void **state) {
    (void)state;
    fill(2000);
    miss();
    pass_a_second();
    miss();
    pass_a_second();
    miss();
    assert_int_equal(count_points(), 0); /* too small */
    for (int i = 0; i < 10000; i++) hak_malloc(BYTES);
    miss();
    assert_null(fake_os.thread);
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE);
    assert_int_equal(count_points(), 0); /* not due */
    pass_a_second();
    miss();
    assert_int_equal(count_points(), 1);
    miss();
    assert_int_equal(count_points(), 1);
    /* Neither who has its place, nor who has forbidden the thread. */
    hak_atomic_store(&hak_background_state, HAK_BACKGROUND_TAKEN, relaxed);
    pass_a_second();
    miss();
    hak_atomic_store(&hak_background_state, HAK_BACKGROUND_NONE, relaxed);
    set_background(0);
    miss();
    assert_int_equal(count_points(), 1);
    set_background(HAK_CHOICE_AUTO);
    miss();
    assert_int_equal(count_points(), 2);
    assert_int_equal(hak_atomic_load(&hak_miss_sample_mask, relaxed), UINT64_MAX);
}

/* What was tried before the program had threads is put back, where hakmem's can't begin and decide on it. */
static void nothing_stays_on_trial_without_the_thread(void **state) {
    (void)state;
    for (int i = 0; i < 20000; i++) hak_malloc(BYTES);
    uint64_t before = hak_knob(decay_ms);
    for (int period = 0; period < 200 && hak_knob(decay_ms) == before; period++) {
        pass_a_second();
        hak_count_reuse(400000);
        hak_counter_add_shared(&hak_os_counters.purged_bytes, 400000 * UINT64_C(4096));
        miss();
    }
    assert_true(hak_knob(decay_ms) != before);
    fake_os.refuses_threads = true;
    assert_non_null(hak_heap_acquire());
    for (int period = 0; period < 3; period++) {
        pass_a_second();
        miss();
    }
    assert_null(fake_os.thread);
    assert_int_equal(hak_knob(decay_ms), before);
}

/* What is computed in a miss neither meets the program's traps nor leaves flags in its registers. */
static void leaves_floating_alone(void **state) {
    (void)state;
    for (int i = 0; i < 20000; i++) hak_malloc(BYTES);
    for (int period = 0; period < 5; period++) {
        pass_a_second();
        unit_trap_floating();
        miss();
        unit_expect_trapped_floating();
    }
    assert_in_range(count_points(), 3, 5);
}

static uint64_t purged_bytes(void) { return hak_atomic_load(&hak_os_counters.purged_bytes, relaxed); }

/* Nor does it leave holes: each miss looks at a little of the heap, and gives back no more than that has. */
static void one_thread_gives_holes_back(void **state) {
    (void)state;
    allow_free_memory_of_programs();
    static void *light[1000];
    fill(BLOCKS); /* 40 MB */
    uint64_t before = purged_bytes();
    empty(BLOCKS, 20);
    hak_purge_reclaim(hak_thread_heap, false, false, SIZE_MAX / 2); /* bins are empty, units are free */
    for (int second = 0; second < 10; second++) {
        fake_os.clock_ms += 1000;
        for (int i = 0; i < 20; i++) {
            uint64_t at_call = purged_bytes();
            for (int k = 0; k < 1000; k++) {
                light[k] = hak_malloc(4000);
                assert_in_range(purged_bytes() - at_call, 0, 2 * HAK_TURN_BYTES + HAK_SUPER_SLAB_BYTES);
                at_call = purged_bytes();
            }
            for (int k = 0; k < 1000; k++) hak_free(light[k]);
        }
    }
    assert_null(fake_os.thread);
    /* A 20th of the blocks is left, one in four or five pages. */
    assert_in_range(purged_bytes() - before, 20 * HAK_MIB, 64 * HAK_MIB);
}

/* From outside, of a process of any size. */
static void wished_for(void **state) {
    (void)state;
    fill(10);
    assert_null(fake_os.thread);
    hak_atomic_store(&hak_channel_wish, HAK_CHANNEL_WISHED, relaxed);
    fill(1000);
    assert_non_null(fake_os.thread);
}

static void with_small_ranges(void **state) {
    (void)state;
    fake_os.window_room = HAK_PAGE_MAP_BYTES + (4 << 20); /* of one SuperSlab */
    assert_non_null(hak_heap_acquire());
    fill(10000);
    assert_non_null(hak_region_range(3));
    assert_non_null(fake_os.thread);
}

static void refused(void **state) {
    (void)state;
    fake_os.refuses_threads = true;
    assert_non_null(hak_heap_acquire());
    fill(10000);
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE);
    assert_false(hak_is_paid());
    fake_os.refuses_threads = false;
    fill(100);
    assert_null(fake_os.thread); /* not asked again at once, */
    for (int i = 0; i < 200 && fake_os.thread == NULL; i++) {
        fill(BLOCKS);
        empty(BLOCKS, 0);
    }
    assert_non_null(fake_os.thread); /* but one day */
}

/* Started by a thread with other rights than the first one's, it ends at once, is joined, and comes again one day. */
static void foreign(void **state) {
    (void)state;
    fake_os.is_filtered = false;
    fake_os.is_foreign = true;
    assert_non_null(hak_heap_acquire());
    fill(10000);
    assert_non_null(fake_os.thread);
    struct hak_heap *heap = hak_thread_heap;
    fake_os.waits = 0;
    fake_os.thread();
    hak_thread_heap = heap;
    assert_int_equal(fake_os.waits, 0);
    assert_null(fake_os.service);
    assert_int_equal(thread_state(), HAK_BACKGROUND_ENDED);
    assert_false(hak_is_paid());
    fake_os.thread = NULL;
    fake_os.is_filtered = true;
    fake_os.is_foreign = false;
    fill(10000);
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE);
    assert_null(fake_os.thread);
    for (int i = 0; i < 200 && fake_os.thread == NULL; i++) {
        fill(BLOCKS);
        empty(BLOCKS, 0);
    }
    assert_non_null(fake_os.thread);
}

/* Where no thread can sleep it ends, and none comes again. */
static void cannot_sleep(void **state) {
    (void)state;
    assert_non_null(hak_heap_acquire());
    fill(10000);
    assert_non_null(fake_os.thread);
    struct hak_heap *heap = hak_thread_heap;
    fake_os.refuses_waits = true;
    fake_os.thread();
    hak_thread_heap = heap;
    assert_int_equal(fake_os.waits, 1);
    assert_int_equal(thread_state(), HAK_BACKGROUND_ENDED);
    fake_os.thread = NULL;
    for (int i = 0; i < 200; i++) {
        fill(BLOCKS);
        empty(BLOCKS, 0);
    }
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE);
    assert_null(fake_os.thread);
}

/* It has none, and nobody believes that it has. */
static void in_a_forked_child(void **state) {
    (void)state;
    assert_non_null(hak_heap_acquire());
    fill(10000);
    assert_true(hak_is_paid());
    hak_background_after_fork();
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE);
}

/* ---- What it does ------------------------------------------------------------------------------------------------ */

static size_t periods, periods_at_sleep, most_periods;
static uint64_t mask_at_sleep; /* of misses that are timed: what the controller asks for while it measures */
static void (*program)(void);  /* in each period */
static struct hak_heap *programs_heap;

/* One thread is both: the program's has a heap. */
static void wait_for_it(void) {
    hak_thread_heap = programs_heap;
    if (thread_state() == HAK_BACKGROUND_AWAKE) assert_true(fake_os.waited_us >= 334000);
    if (thread_state() == HAK_BACKGROUND_ASLEEP) {
        periods_at_sleep = periods;
        mask_at_sleep = hak_atomic_load(&hak_miss_sample_mask, relaxed);
    }
    if (thread_state() == HAK_BACKGROUND_ASLEEP || ++periods > most_periods)
        hak_atomic_store(&hak_background_state, HAK_BACKGROUND_ENDING, relaxed);
    else if (program != NULL) program();
}

static void run(size_t most, void (*what)(void)) {
    periods = periods_at_sleep = 0;
    most_periods = most;
    program = what;
    programs_heap = hak_thread_heap;
    fake_os.at_wait = wait_for_it;
    fake_os.thread();
    hak_thread_heap = programs_heap;
    fake_os.at_wait = NULL;
    assert_int_equal(thread_state(), HAK_BACKGROUND_ENDED);
}

/* Whatever releases memory wakes it. */
static void *released;
static void free_it(void) { hak_free(released); }
static void shrink_it(void) { released = hak_realloc(released, HAK_MIB); }
static void shrink_it_to_little(void) { released = hak_realloc(released, 100); }

static void wakes(void **state) {
    (void)state;
    static void (*const ways[])(void) = {free_it, shrink_it, shrink_it_to_little};
    static const size_t sizes[] = {16000, 3 * HAK_MIB, 30 * HAK_MIB, 40 * HAK_MIB};
    hak_heap_acquire();
    fill(BLOCKS);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        for (size_t size = 0; size < sizeof sizes / sizeof sizes[0]; size++) {
            if (ways[i] == shrink_it && sizes[size] <= HAK_MIB) continue;
            released = hak_malloc(sizes[size]);
            hak_heap_flush_bins(hak_thread_heap); /* no free hits */
            hak_atomic_store(&hak_background_state, HAK_BACKGROUND_ASLEEP, relaxed);
            ways[i]();
            assert_int_equal(thread_state(), HAK_BACKGROUND_AWAKE);
        }
}

/* ---- When it ends ------------------------------------------------------------------------------------------------ */

static void leave_program(void) {
    if (periods == 3) hak_heap_release(hak_heap_first()); /* the newest: not the program's */
}

/* One thread is left, which makes no call any more. */
static void ends_alone(void **state) {
    (void)state;
    fill(1);
    hak_heap_acquire();
    fill(BLOCKS);
    empty(BLOCKS, 100);
    run(100, leave_program);
    assert_int_equal(periods, 4);
    assert_true(fake_os.waited_us <= 1000000);
    assert_int_equal(hak_atomic_load(&hak_dirty_units, relaxed), 0);
    assert_true(hak_purge() <= HAK_SMALL_CLASS_COUNT * fake_os.page_bytes);
    fake_os.thread = NULL;
    fake_os.thread_lingers = true;
    fill(BLOCKS);
    assert_int_equal(thread_state(), HAK_BACKGROUND_ENDED); /* nobody waits for it */
    fake_os.thread_lingers = false;
    fill(BLOCKS);
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE);
    assert_int_equal(fake_os.joins, 1);
    assert_null(fake_os.thread);
    hak_heap_acquire();
    fill(BLOCKS);
    assert_non_null(fake_os.thread); /* another one */
}

static void leave_and_free(void) {
    if (periods == 3) hak_heap_release(hak_heap_first());
    if (periods == 4) empty(BLOCKS, BLOCKS + 1);
}

/* The one that is left frees until the thread ends, and makes no call any more. */
static void ends_beside_frees(void **state) {
    (void)state;
    fill(1);
    hak_heap_acquire();
    fill(BLOCKS);
    run(100, leave_and_free);
    assert_int_equal(periods, 4);
    assert_int_equal(hak_atomic_load(&hak_dirty_units, relaxed), 0);
}

/* Where mallopt has said that nothing goes back. */
static void keeps_what_is_kept(void **state) {
    (void)state;
    fill(1);
    hak_heap_acquire();
    fill(BLOCKS);
    empty(BLOCKS, 100);
    hak_knob_set(HAK_KNOB_decay_ms, hak_knob_table[HAK_KNOB_decay_ms].highest);
    run(100, leave_program);
    assert_int_equal(hak_atomic_load(&hak_os_counters.purged_bytes, relaxed), 0);
}

/* It runs on while the program's last thread waits for it. */
static void end_meanwhile(void) {
    assert_int_equal(thread_state(), HAK_BACKGROUND_ENDING);
    fake_os.at_wait = NULL;
    fake_os.thread();
    hak_thread_heap = programs_heap;
}

/* The last thread that leaves its heap joins it, whether it runs, or has ended by itself. */
static void joined_by_the_last(void **state) {
    (void)state;
    programs_heap = hak_thread_heap;
    struct hak_heap *second = hak_heap_acquire();
    fake_os.thread_id = 1;
    fill(BLOCKS);
    hak_heap_release(second);
    fake_os.thread_id = 2;
    hak_background_thread_ended(); /* not the last, nor the one that has started it */
    fake_os.thread_id = 0;
    assert_int_equal(thread_state(), HAK_BACKGROUND_AWAKE);
    hak_atomic_store(&hak_heaps_in_use, 0, relaxed);
    fake_os.at_wait = end_meanwhile;
    hak_background_thread_ended();
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE);
    assert_int_equal(fake_os.joins, 1);
    hak_atomic_store(&hak_background_state, HAK_BACKGROUND_ENDED, relaxed);
    hak_background_thread_ended();
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE);
    assert_int_equal(fake_os.joins, 2);
    hak_background_thread_ended(); /* there is none */
    assert_int_equal(fake_os.joins, 2);
    hak_atomic_store(&hak_heaps_in_use, 1, relaxed);
}

/* Of a thread whose rights are not known to be the process's. */
static void ends_with_its_starter(void **state) {
    (void)state;
    programs_heap = hak_thread_heap;
    assert_non_null(hak_heap_acquire());
    fill(BLOCKS);
    assert_int_equal(thread_state(), HAK_BACKGROUND_AWAKE);
    fake_os.at_wait = end_meanwhile;
    hak_background_thread_ended(); /* not the last */
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE);
    assert_int_equal(fake_os.joins, 1);
}

static void come_and_go(void) {
    static struct hak_heap *other;
    if (other == NULL) other = hak_heap_acquire();
    else {
        hak_heap_release(other);
        other = NULL;
    }
}

/* Where threads come and go, it stays; periods may be long. */
static void stays(void **state) {
    (void)state;
    hak_knob_set(HAK_KNOB_decay_ms, 3600000);
    fill(1);
    struct hak_heap *second = hak_heap_acquire();
    fill(BLOCKS);
    hak_heap_release(second);
    run(50, come_and_go);
    assert_int_equal(periods, 51);
}

static void one_misses(void) { fill(1); }

/* Who has asked for it has it although he has one thread. It sleeps, too. */
static void stays_when_asked_for(void **state) {
    (void)state;
    set_background(1);
    fill(BLOCKS);
    run(20, one_misses);
    assert_int_equal(periods, 21);
}

static struct hak_snapshot snapshot;

static void all_goes_back(void **state) {
    (void)state;
    hak_heap_acquire();
    fill(BLOCKS);
    void *mapping = hak_malloc(5 * HAK_MIB);
    assert_non_null(fake_os.thread);
    empty(BLOCKS, 100);
    hak_free(mapping);
    run(100, NULL);
    assert_in_range(periods_at_sleep, 2, 6);
    assert_int_equal(fake_os.waited_us, 0); /* no wake-up */
    assert_int_equal(mask_at_sleep, UINT64_MAX);
    assert_int_equal(hak_atomic_load(&hak_dirty_units, relaxed), 0);
    assert_int_equal(hak_mapping_cache_bytes(), 0);
    check_equations(&snapshot);
    assert_true(snapshot.total.cached_blocks <= HAK_SMALL_CLASS_COUNT);
    /* Nothing is left: a purge finds but its own heap's last blocks. */
    assert_true(hak_purge() <= HAK_SMALL_CLASS_COUNT * fake_os.page_bytes);
}

static void free_a_few(void) { /* misses, but next to no memory */
    fill(2000);
    empty(2000, 0);
}

static uint64_t mask_in_period;

static void free_a_few_measured(void) {
    free_a_few();
    mask_in_period = hak_atomic_load(&hak_miss_sample_mask, relaxed);
}

static uint32_t most_resting;

static void count_resting(void) {
    free_a_few();
    if (hak_atomic_load(&hak_heaps_resting, relaxed) > most_resting)
        most_resting = hak_atomic_load(&hak_heaps_resting, relaxed);
    if (periods > 3) assert_false(hak_heaps_are_many());
}

/* Threads that sleep make no many. */
static void heaps_rest(void **state) {
    (void)state;
    fake_os.processors = 1;
    fill(1);
    for (int i = 0; i < 5; i++) hak_heap_acquire();
    fill(10000);
    assert_true(hak_heaps_are_many());
    run(6, count_resting);
    assert_int_equal(most_resting, 5);
    assert_int_equal(hak_atomic_load(&hak_heaps_resting, relaxed), 0); /* nobody counts them any more */
    assert_true(hak_heaps_are_many());
}

static void busy_makes_no_calls(void **state) {
    (void)state;
    hak_heap_acquire();
    fill(BLOCKS);
    empty(BLOCKS, 0);
    assert_non_null(fake_os.thread);
    hak_purge();
    for (int i = 0; i < 100; i++) free_a_few();
    fake_os_forget();
    run(20, free_a_few_measured);
    assert_int_equal(periods_at_sleep, 0);
    assert_int_not_equal(mask_in_period, UINT64_MAX);
    assert_int_equal(hak_atomic_load(&hak_miss_sample_mask, relaxed), UINT64_MAX); /* nobody measures any more */
    assert_int_equal(fake_os.call_count[FAKE_ANY], 0);
}

/* ---- What a period costs in a large heap --------------------------------------------------------------------------- */

enum { LARGE_HEAP_SUPER_SLABS = 3000, LARGE_BLOCK = 32768 };

static uint32_t most_looked_at, all_looked_at, periods_with_a_look;

/* SuperSlabs with a slab that was looked at; forgets it, so that it is seen next time, too. */
static uint32_t looked_at(void) {
    struct hak_range *range = hak_region_range(0);
    uint32_t count = 0;
    for (uint32_t i = 0; i < hak_region_super_slabs(range); i++) {
        bool is_seen = false;
        for (uint32_t unit = 0; unit < HAK_UNITS_PER_SUPER_SLAB; unit++) {
            struct hak_slab *slab = &range->slabs[i * HAK_UNITS_PER_SUPER_SLAB + unit];
            is_seen |= hak_atomic_load(&slab->sweeps, relaxed) != 0;
            hak_atomic_store(&slab->sweeps, 0, relaxed);
        }
        count += is_seen;
    }
    return count;
}

static void count_looks(void) {
    uint32_t count = looked_at();
    if (count > most_looked_at) most_looked_at = count;
    all_looked_at += count;
    periods_with_a_look += count != 0;
}

static void count_looks_and_miss(void) {
    count_looks();
    free_a_few();
}

static void make_large_heap(void) {
    hak_heap_acquire();
    for (uint32_t i = 0; i < LARGE_HEAP_SUPER_SLABS * (HAK_SUPER_SLAB_BYTES / LARGE_BLOCK); i++)
        assert_non_null(hak_malloc(LARGE_BLOCK));
    assert_non_null(fake_os.thread);
    assert_in_range(hak_region_sums().super_slabs, LARGE_HEAP_SUPER_SLABS, LARGE_HEAP_SUPER_SLABS + 100);
    looked_at();
}

/* A program that misses now and then: a part of the heap in each period, and in time all of it. */
static void sweeps_by_turns(void **state) {
    (void)state;
    make_large_heap();
    run(24, count_looks_and_miss);
    assert_in_range(most_looked_at, 1, 256);
    assert_true(all_looked_at >= LARGE_HEAP_SUPER_SLABS);
}

/* One that rests: all of it some times, by larger turns, and then nothing more. */
static void sweeps_no_more(void **state) {
    (void)state;
    make_large_heap();
    run(100, count_looks);
    assert_in_range(most_looked_at, 1, 1024);
    assert_in_range(all_looked_at, 2 * LARGE_HEAP_SUPER_SLABS, 5 * LARGE_HEAP_SUPER_SLABS);
    assert_in_range(periods_at_sleep, all_looked_at / 1024, all_looked_at / 1024 + 4);
}

/* ---- One thread that works in bursts ----------------------------------------------------------------------------- */

enum { BURST_BLOCKS = 10000 }; /* 10 MB, less than may stay where no thread can begin */

static void work_in_bursts(void) {
    for (int i = 0; i < 4; i++) {
        fill(BURST_BLOCKS);
        empty(BURST_BLOCKS, 0);
    }
}

static uint64_t free_units(void) { return hak_atomic_load(&hak_dirty_units, relaxed); }

static void begin_in_bursts(void) {
    hak_background_watch();
    work_in_bursts();
    assert_non_null(fake_os.thread);
}

static uint64_t rest_began_ms, units_at_rest;

static void rest(void) {
    assert_int_equal(free_units(), units_at_rest);
    fake_os.clock_ms += fake_os.waited_us / 1000;
}

/* All stays for eight seconds, as there may be another burst; then all goes back, and the thread with it. */
static void gives_back_after_bursts(void **state) {
    (void)state;
    begin_in_bursts();
    units_at_rest = free_units();
    rest_began_ms = fake_os.clock_ms;
    assert_true(units_at_rest > 8 * HAK_MIB / HAK_UNIT_BYTES);
    run(100, rest);
    assert_in_range(fake_os.clock_ms - rest_began_ms, 8000, 9500);
    assert_int_equal(free_units(), 0);
    fake_os.thread = NULL;
    for (int i = 0; i < 100; i++) {
        fill(500);
        empty(500, 0);
    }
    assert_null(fake_os.thread); /* little work is no burst */
    work_in_bursts();
    assert_non_null(fake_os.thread);
}

/* Between them it does a little. */
static void burst_after_seven_seconds(void) {
    fake_os.clock_ms += fake_os.waited_us / 1000;
    if (periods % 7 == 0) work_in_bursts();
    fill(300);
    empty(300, 0);
}

static void stays_between_bursts(void **state) {
    (void)state;
    begin_in_bursts();
    uint64_t before = purged_bytes();
    run(100, burst_after_seven_seconds);
    assert_true(periods > 100);
    assert_in_range(purged_bytes() - before, 0, HAK_MIB);
}

static void end_it(void) {
    if (thread_state() != HAK_BACKGROUND_ENDING) return;
    hak_background_pay(false);
    hak_atomic_store(&hak_background_state, HAK_BACKGROUND_ENDED, relaxed);
}

/* Nobody says so in a child that the system call has made. */
static void pays_for_its_own_process(void **state) {
    (void)state;
    static uint64_t page[8];
    fake_os.wiped = page;
    hak_generation_watch();
    begin_in_bursts();
    assert_true(hak_is_paid());
    memset(page, 0, sizeof page); /* as the kernel does in a child */
    assert_false(hak_is_paid());
}

/* The thread ends when it is asked, and its memory stays as it is. */
static void yield(enum hak_yield why) {
    fake_os.at_wait = end_it;
    hak_background_yield(why);
    fake_os.at_wait = NULL;
    fake_os.thread = NULL;
}

/* Before the program asks for what a process with two threads can't have. */
static void yields(void **state) {
    (void)state;
    hak_background_yield(HAK_YIELD); /* there is none */
    begin_in_bursts();
    yield(HAK_YIELD);
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE); /* joined */
    fake_os.clock_ms += 10000;
    begin_in_bursts();
    yield(HAK_YIELD_FOR_GOOD);
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE);
    fake_os.clock_ms += 10000;
    work_in_bursts();
    assert_null(fake_os.thread);
}

/* Who asks the kernel in each burst has no thread in each of them: what may stay is what stays without one. A child has
 * not asked. */
static void is_alone_for_a_while(void **state) {
    (void)state;
    begin_in_bursts();
    yield(HAK_YIELD);
    fake_os.clock_ms += 9000;
    work_in_bursts();
    assert_null(fake_os.thread);
    assert_in_range(free_units(), 8 * HAK_MIB / HAK_UNIT_BYTES, 17 * HAK_MIB / HAK_UNIT_BYTES);
    fake_os.clock_ms += 1001;
    work_in_bursts();
    assert_non_null(fake_os.thread);
    yield(HAK_YIELD);
    work_in_bursts();
    assert_null(fake_os.thread);
    hak_background_after_fork();
    work_in_bursts();
    assert_non_null(fake_os.thread);
}

/* Handlers of fork that follow hakmem's work in bursts, too. */
static void none_begins_before_a_fork(void **state) {
    (void)state;
    hak_background_watch();
    hak_background_yield(HAK_YIELD_TO_FORK); /* there is none */
    work_in_bursts();
    assert_null(fake_os.thread);
    hak_background_forked();
    work_in_bursts();
    assert_non_null(fake_os.thread);
}

static void take_time(void) {
    static uint32_t purges;
    fake_os.clock_ms += ++purges % 64 == 0;
}

static void run_to_its_end(void) {
    if (thread_state() != HAK_BACKGROUND_ENDING) return;
    fake_os.at_wait = NULL;
    fake_os.thread();
}

/* A fork waits for some of what is free to go back. The rest does in the program's own calls. */
static void does_not_wait_for_long(void **state) {
    (void)state;
    begin_in_bursts();
    fill(BLOCKS);
    empty(BLOCKS, 8); /* each second page is a hole */
    fake_os.at_purge = take_time;
    fake_os.at_wait = run_to_its_end;
    uint64_t before_ms = fake_os.clock_ms, before = purged_bytes();
    hak_background_yield(HAK_YIELD);
    fake_os.at_purge = NULL;
    assert_int_equal(thread_state(), HAK_BACKGROUND_NONE);
    assert_in_range(fake_os.clock_ms - before_ms, 20, 25);
    uint64_t at_once = purged_bytes() - before;
    assert_in_range(at_once, 4 * HAK_MIB, 12 * HAK_MIB);
    for (int i = 0; i < BLOCKS; i += 80) hak_free(blocks[i]);
    assert_true(purged_bytes() - before > at_once + 4 * HAK_MIB);
}

static void let_a_second_pass(void) { fake_os.clock_ms += 1000; }

/* It may be in a function of the program's that waits for a lock of the fork's (pthread_atfork). */
static void does_not_wait_for_a_thread_that_waits_for_it(void **state) {
    (void)state;
    begin_in_bursts();
    fake_os.at_wait = let_a_second_pass;
    uint64_t before_ms = fake_os.clock_ms;
    hak_background_yield(HAK_YIELD_TO_FORK);
    fake_os.at_wait = NULL;
    assert_int_equal(fake_os.clock_ms - before_ms, 1000);
    assert_int_equal(thread_state(), HAK_BACKGROUND_ENDING);
    end_it();
}

static uint32_t bursts_meanwhile;
static void go_on(void) {
    fake_os.at_purge = NULL;
    hak_thread_heap = programs_heap;
    assert_true(++bursts_meanwhile < 1000);
    fill(2000);
    empty(2000, 0);
    fake_os.at_purge = go_on;
}

/* A program that goes on when the thread has begun to give back: it doesn't lose what it frees from then on, again and
 * again. */
static void gives_back_what_there_was(void **state) {
    (void)state;
    begin_in_bursts();
    units_at_rest = free_units();
    bursts_meanwhile = 0;
    fake_os.at_purge = go_on;
    run(100, rest);
    fake_os.at_purge = NULL;
    assert_in_range(bursts_meanwhile, 1, 999);
}

/* A program that asks it to end while it gives back at a rest waits for the moment that is left. */
static void ask_it_after_a_while(void) {
    static uint32_t purges;
    fake_os.clock_ms++;
    if (++purges == 3) hak_atomic_store(&hak_background_state, HAK_BACKGROUND_ENDING, relaxed);
}
static void stops_giving_back(void **state) {
    (void)state;
    begin_in_bursts();
    fill(BLOCKS);
    empty(BLOCKS, 0);
    uint64_t before = units_at_rest = free_units();
    fake_os.at_purge = ask_it_after_a_while;
    run(100, rest);
    fake_os.at_purge = NULL;
    assert_in_range(free_units(), before / 16, before);
}

static void ask_it_to_end(void) { hak_atomic_store(&hak_background_state, HAK_BACKGROUND_ENDING, relaxed); }

/* What was asked of a thread that had ended by itself is not asked of the next one: it ends with the program's last
 * thread, and all that is free stays. */
static void yields_once(void **state) {
    (void)state;
    begin_in_bursts();
    yield(HAK_YIELD_FOR_GOOD);
    hak_heap_acquire(); /* a thread of the program's */
    work_in_bursts();
    assert_non_null(fake_os.thread);
    uint64_t before = free_units();
    assert_true(before > 8 * HAK_MIB / HAK_UNIT_BYTES);
    run(1, ask_it_to_end);
    assert_int_equal(free_units(), before);
}

/* Nor in a handler of a signal that has come while the thread is being started: it would wait for itself. */
static void does_not_yield_while_it_starts(void **state) {
    (void)state;
    begin_in_bursts();
    hak_background_is_starting = true;
    hak_background_yield(HAK_YIELD);
    hak_background_is_starting = false;
    assert_int_equal(thread_state(), HAK_BACKGROUND_AWAKE);
}

/* A program with threads of its own has given up being alone. */
static void does_not_yield_to_threads(void **state) {
    (void)state;
    begin_in_bursts();
    hak_heap_acquire();
    hak_background_yield(HAK_YIELD_FOR_GOOD);
    assert_int_equal(thread_state(), HAK_BACKGROUND_AWAKE);
}

/* What may stay: little where the thread could come, a larger part of it where it couldn't. */
static void keeps_little_without_it(void **state) {
    (void)state;
    work_in_bursts();
    assert_null(fake_os.thread); /* nobody watches */
    assert_true(free_units() > 8 * HAK_MIB / HAK_UNIT_BYTES);
    for (int i = 0; i < 3; i++) {
        fill(BLOCKS); /* 40 MB */
        empty(BLOCKS, 0);
    }
    assert_in_range(free_units(), 0, 17 * HAK_MIB / HAK_UNIT_BYTES);
    fake_os.began_filtered = true;
    hak_background_watch();
    work_in_bursts();
    assert_null(fake_os.thread);
    fake_os.began_filtered = false;
    fake_os.refuses_threads = true;
    hak_background_watch();
    work_in_bursts();
    assert_null(fake_os.thread);
    assert_in_range(free_units(), 8 * HAK_MIB / HAK_UNIT_BYTES, 17 * HAK_MIB / HAK_UNIT_BYTES);
}

static void keeps_next_to_nothing_before_it(void **state) {
    (void)state;
    hak_background_watch();
    fill(BURST_BLOCKS);
    empty(BURST_BLOCKS, 0);
    assert_null(fake_os.thread);
    assert_in_range(free_units(), 0, HAK_MIB / HAK_UNIT_BYTES + 8);
    /* Used again, but for libc, which begins none. */
    static const char libc;
    static void *large[100];
    fake_os.library_code = &libc;
    for (int times = 0; times < 4; times++) {
        for (int i = 0; i < 100; i++)
            assert_non_null(large[i] = hak_front_alloc_large(100000, HAK_ALIGNMENT, false, &libc));
        for (int i = 0; i < 100; i++) hak_free(large[i]);
    }
    assert_null(fake_os.thread);
    assert_in_range(free_units(), 0, HAK_MIB / HAK_UNIT_BYTES + 8);
}

static void kernel_refuses(void **state) {
    (void)state;
    hak_heap_acquire();
    fill(BLOCKS);
    empty(BLOCKS, 100);
    for (int i = 0; i < BLOCKS; i += 100) memset(blocks[i], i % 251, BYTES);
    fake_os.fences_left = 0;
    fake_os_refuse(FAKE_ANY, 1, SIZE_MAX);
    run(100, NULL);
    fake_os_refuse_nothing();
    assert_in_range(periods_at_sleep, 2, 6); /* it does not try for ever */
    assert_true(fake_os.waited_us > 0);      /* a miss may go unnoticed */
    fake_os.fences_left = SIZE_MAX;
    for (int i = 0; i < BLOCKS; i += 100)
        for (int at = 0; at < BYTES; at++) assert_int_equal(((unsigned char *)blocks[i])[at], i % 251);
    check_equations(&snapshot);
    assert_true(hak_purge() > 0);
}

static void woken(void **state) {
    (void)state;
    hak_atomic_store(&hak_background_state, HAK_BACKGROUND_ASLEEP, relaxed);
    fill(1);
    assert_int_equal(thread_state(), HAK_BACKGROUND_AWAKE);
    assert_int_equal(fake_os.wakes, 1);
    hak_atomic_store(&hak_background_state, HAK_BACKGROUND_ASLEEP, relaxed);
    hak_free(hak_malloc(3 * HAK_MIB)); /* large objects count */
    assert_int_equal(fake_os.wakes, 2);
}

UNIT_MAIN(cmocka_unit_test(not_for_a_small_program), cmocka_unit_test(with_two_threads),
          cmocka_unit_test(with_mappings_only), cmocka_unit_test(not_with_one_thread), cmocka_unit_test(asked_for),
          cmocka_unit_test(never), cmocka_unit_test(not_for_libc), cmocka_unit_test(not_for_a_wrapper),
          cmocka_unit_test(not_with_borrowed_memory), cmocka_unit_test(one_thread_learns),
          cmocka_unit_test(nothing_stays_on_trial_without_the_thread), cmocka_unit_test(leaves_floating_alone),
          cmocka_unit_test(one_thread_gives_holes_back), cmocka_unit_test(wished_for), cmocka_unit_test(ends_alone),
          cmocka_unit_test(ends_beside_frees), cmocka_unit_test(keeps_what_is_kept),
          cmocka_unit_test(joined_by_the_last), cmocka_unit_test(ends_with_its_starter), cmocka_unit_test(stays),
          cmocka_unit_test(stays_when_asked_for), cmocka_unit_test(with_small_ranges), cmocka_unit_test(refused),
          cmocka_unit_test(foreign), cmocka_unit_test(cannot_sleep), cmocka_unit_test(wakes),
          cmocka_unit_test(in_a_forked_child), cmocka_unit_test(all_goes_back), cmocka_unit_test(heaps_rest),
          cmocka_unit_test(busy_makes_no_calls), cmocka_unit_test(sweeps_by_turns), cmocka_unit_test(sweeps_no_more),
          cmocka_unit_test(kernel_refuses), cmocka_unit_test(woken), cmocka_unit_test(gives_back_after_bursts),
          cmocka_unit_test(stays_between_bursts), cmocka_unit_test(pays_for_its_own_process), cmocka_unit_test(yields),
          cmocka_unit_test(yields_once), cmocka_unit_test(is_alone_for_a_while),
          cmocka_unit_test(none_begins_before_a_fork), cmocka_unit_test(does_not_wait_for_long),
          cmocka_unit_test(does_not_wait_for_a_thread_that_waits_for_it), cmocka_unit_test(stops_giving_back),
          cmocka_unit_test(gives_back_what_there_was), cmocka_unit_test(does_not_yield_while_it_starts),
          cmocka_unit_test(does_not_yield_to_threads), cmocka_unit_test(keeps_little_without_it),
          cmocka_unit_test(keeps_next_to_nothing_before_it))
