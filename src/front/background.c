#include "front/background.h"

#include "base/floating.h"
#include "base/knobs.h"
#include "base/memory.h"
#include "control/ace.h"
#include "front/meter.h"
#include "front/process.h"
#include "front/service.h"
#include "front/thread.h"
#include "front/tight.h"
#include "os/libc.h"
#include "os/os.h"
#include "pool/drain.h"
#include "pool/purge.h"
#include "region/allowance.h"
#include "region/decay.h"
#include "region/generation.h"
#include "region/heap_count.h"
#include "region/mapping_cache.h"

HAK_ATOMIC(uint32_t) hak_background_state;

enum {
    LEAST_PERIOD_MS = 334, /* three wake-ups a second */
    MOST_WAIT_MS = 1000,   /* until it looks whether the program is alone again */
    LOOKS_ALONE =
        2, /* in a row, to end: programs that begin and end threads all the time don't begin and end this one */
    REST_MS = 8000,        /* without a miss, to end in a program with one thread that works in bursts */
    ALONE_MS = 10000,      /* after it was ended amid bursts, until it may begin again in a program with one thread */
    BURST_BYTES = 2 << 20, /* used again since the last rest, to begin in one */
    SMALL_ALLOWANCE_BYTES = 1 << 20, /* that may stay for ever in a program with one thread; */
    MOST_ALONE_BYTES = 16 << 20,     /* where no thread may give it back, and when it is ended amid bursts */
    MISSES_AFTER_REFUSAL = 1 << 16,
    FEW_MISSES = 1000,             /* in a period: what the program does costs more than a purge */
    SWEEP_SUPER_SLABS = 256,       /* at most, in a period: 512 MiB, less than a ms where there is nothing to do; */
    IDLE_SWEEP_SUPER_SLABS = 1024, /* and in one without a miss */
    SWEEPS_OF_ALL = 3,             /* after the last miss: heaps are drained a period later, and a hole goes back at
                                    * the second look at it */
    PERIODS_TO_PURGE_ALL = 2,
    PERIODS_TO_SLEEP = 4,
    RECHECK_US = 10000000, /* where the fence was refused, a miss may go unnoticed */
    MISSES_PER_LOOK = 16,  /* of a program without the thread, at the clock */
    MOST_YIELD_MS = 20,    /* that it waits for memory to go back before a fork */
    UNITS_AT_ONCE = 512,   /* 32 MiB */
    MOST_END_MS = 10000,   /* that the program's last thread waits for hakmem's to end */
    MOST_FORK_MS = 1000,   /* the same before a fork, which goes on beside it if need be */
};

/* Batches: while the program is busy, nothing less is worth a system call; when it rests, nothing less than the
 * second. */
static const uint64_t busy_batch_bytes = 8 << 20, idle_batch_bytes = 64 << 10;

static HAK_ATOMIC(uint32_t) misses_to_skip; /* after a refusal */

/* Of the background thread. */
static uint64_t misses_seen;   /* by all heaps, at the last look */
static uint32_t idle_periods;  /* without a miss */
static uint64_t left_to_sweep; /* looks at a SuperSlab, until all had SWEEPS_OF_ALL of them since the last miss */

/* Of who has the thread's place, where there is no thread. */
static HAK_ATOMIC(uint32_t) misses_to_look;
static uint64_t next_step_ms, next_holes_ms; /* 0: at once */
static uint64_t alone_batch_bytes;

static HAK_ATOMIC(int) own_process; /* that the thread is to be of; 0 before main */

/* The thread of the program's that hakmem's ends with: the one that has started it, until it is known that its rights
 * are the whole process's. 0: none. */
static HAK_ATOMIC(uint32_t) starter;

/* How many calls are being made that may put a filter on all threads, and whether the thread begins: a filter that
 * kills must not come before it has looked at what it may do. */
static HAK_ATOMIC(uint32_t) filter_calls, is_beginning;

__thread bool hak_background_is_starting;

/* Of who makes the thread end before the program has rested: with how much free it may leave the heap. */
static HAK_ATOMIC(uint64_t) may_leave_bytes = UINT64_MAX;

static uintptr_t ended_thread; /* of the thread until it is ENDED; then of who joins it */
static uint32_t ended_id;      /* its number, as above */

/* Before main, then const. Who calls malloc may hold a lock of the wrapper's, and libc's pthread_create calls the
 * wrapper: no thread begins unless a setting asks for it. */
static bool is_malloc_wrapped;

/* ---- Who wants it ------------------------------------------------------------------------------------------------ */

/* Of the program's own threads, those that have asked for memory. */
static bool has_threads(void) { return hak_atomic_load(&hak_heaps_in_use, relaxed) > 1; }

/* Somebody has asked for the thread for as long as the process lives. */
static bool is_always_wanted(void) {
    return hak_process_config()->background == 1 || hak_service_is_wanted() || hak_profile_is_on();
}

/* The program with one thread says what it asks the kernel for (hak_background_yield). */
static HAK_ATOMIC(bool) may_begin_alone;

/* A program that forks or changes its user in each burst would begin and end a thread each time. 0: never so far. */
static HAK_ATOMIC(uint64_t) alone_until_ms;

/* Handlers of fork run, and may work in bursts. */
static HAK_ATOMIC(bool) is_forking;

static bool may_watch_alone(void) {
    if (!hak_atomic_load(&may_begin_alone, relaxed) || hak_atomic_load(&is_forking, relaxed)) return false;
    uint64_t until_ms = hak_atomic_load(&alone_until_ms, relaxed);
    return until_ms == 0 || hak_os_clock_ms() >= until_ms;
}

/* hak_pages_reused when the program rested last: all that was free had gone back. */
static HAK_ATOMIC(uint64_t) reused_at_rest;

/* Since it rested last, the program has used memory again that had gone back. It may have the thread, and doesn't keep
 * all that is free (mallopt). */
static bool works_in_bursts(void) {
    uint64_t pages = hak_atomic_load(&hak_pages_reused, relaxed) - hak_atomic_load(&reused_at_rest, relaxed);
    if (pages * hak_os_page_bytes() < BURST_BYTES || hak_knob_is_highest(dirty_limit_bytes)) return false;
    return has_threads() || may_watch_alone();
}

/* It takes new ones to begin the thread again. */
static void forget_bursts(void) {
    hak_atomic_store(&reused_at_rest, hak_atomic_load(&hak_pages_reused, relaxed), relaxed);
}

/* True as long as the thread has a reason to stay. */
static bool is_wanted(void) { return has_threads() || is_always_wanted() || hak_service_is_in_use(); }

/* ---- Looking ----------------------------------------------------------------------------------------------------- */

/* All that a heap's thread has done but for hits. */
static uint64_t misses_of(const struct hak_heap *heap) {
    return hak_atomic_load(&heap->slow_paths, relaxed) + hak_atomic_load(&heap->counters.large_allocs, relaxed) +
           hak_atomic_load(&heap->counters.large_frees, relaxed) +
           hak_atomic_load(&heap->counters.large_resizes, relaxed);
}

static uint64_t count_misses(void) {
    uint64_t misses = 0;
    for (const struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) misses += misses_of(heap);
    return misses;
}

/* Drains heaps whose threads have not missed for a period, once. */
static void drain_idle_heaps(void) {
    uint32_t resting = 0;
    struct hak_drain drain = {.first_taken = NULL};
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        uint64_t misses = misses_of(heap);
        if (misses != heap->swept_misses) {
            heap->swept_misses = misses;
            heap->swept_idle = false;
        } else if (!heap->swept_idle) {
            heap->swept_idle = true;
            hak_heap_begin_drain(heap, &drain);
        }
        resting += heap->swept_idle && hak_atomic_load(&heap->in_use, relaxed) == HAK_HEAP_IN_USE;
    }
    hak_heap_drain_taken(&drain);
    hak_heap_end_drains(&drain);
    hak_heap_set_resting(resting);
}

/* The next part of the heap; nothing where nothing can have become free. */
static void sweep(uint64_t least_bytes, uint32_t most_super_slabs) {
    uint64_t all = hak_region_count_super_slabs(), count = most_super_slabs;
    if (left_to_sweep > SWEEPS_OF_ALL * all) left_to_sweep = SWEEPS_OF_ALL * all;
    if (count > all) count = all;
    if (count > left_to_sweep) count = left_to_sweep;
    left_to_sweep -= count;
    hak_purge_sweep(least_bytes, (uint32_t)count);
}

/* The end of a period. False when there is nothing to wait for. */
static bool end_period(void) {
    uint64_t misses = count_misses(), recent = misses - misses_seen;
    misses_seen = misses;
    idle_periods = recent == 0 ? idle_periods + 1 : 0;
    hak_tight_check();
    if (hak_atomic_load(&hak_memory_is_tight, relaxed)) {
        hak_purge_all(NULL);
        return idle_periods < PERIODS_TO_SLEEP;
    }
    uint64_t least_bytes = recent < FEW_MISSES ? idle_batch_bytes : busy_batch_bytes;
    drain_idle_heaps();
    if (recent != 0) left_to_sweep = UINT64_MAX;
    sweep(least_bytes, recent == 0 ? IDLE_SWEEP_SUPER_SLABS : SWEEP_SUPER_SLABS);
    if (idle_periods >= PERIODS_TO_PURGE_ALL) {
        hak_region_purge_units(UINT64_MAX, true);
        hak_mapping_cache_purge();
    } else {
        hak_decay_end_period(least_bytes);
    }
    return idle_periods < PERIODS_TO_SLEEP || left_to_sweep != 0;
}

/* ---- Sleeping ---------------------------------------------------------------------------------------------------- */

static void sleep_until_miss(void) {
    uint32_t awake = HAK_BACKGROUND_AWAKE;
    if (!hak_atomic_cas(&hak_background_state, &awake, HAK_BACKGROUND_ASLEEP, relaxed, relaxed)) return;
    /* Either we see that somebody missed, or he sees that we sleep. */
    bool fenced = hak_fence_threads();
    if (count_misses() == misses_seen)
        hak_os_wait(&hak_background_state, HAK_BACKGROUND_ASLEEP,
                    fenced && (has_threads() || is_always_wanted()) ? 0 : RECHECK_US);
    uint32_t asleep = HAK_BACKGROUND_ASLEEP;
    hak_atomic_cas(&hak_background_state, &asleep, HAK_BACKGROUND_AWAKE, relaxed, relaxed);
}

void hak_background_wake(void) {
    uint32_t asleep = HAK_BACKGROUND_ASLEEP;
    if (hak_atomic_cas(&hak_background_state, &asleep, HAK_BACKGROUND_AWAKE, relaxed, relaxed))
        hak_os_wake(&hak_background_state);
}

/* ---- Beginning and ending ---------------------------------------------------------------------------------------- */

static bool is_ending(void) { return hak_atomic_load(&hak_background_state, relaxed) == HAK_BACKGROUND_ENDING; }

/* Whether the thread goes on giving back: until `end_ms`, or with 0, until the program asks for its end. */
static bool has_time(uint64_t end_ms) { return end_ms == 0 ? !is_ending() : hak_os_clock_ms() < end_ms; }

/* What the time is enough for, whole units first: as many as there are now, for the program may go on meanwhile. The
 * round goes on in the program's own calls (pool/purge.h). */
static void give_back_until(uint64_t end_ms) {
    size_t bytes = 0, given = 0, found = 1;
    hak_purge_begin_round(NULL);
    hak_mapping_cache_purge();
    uint64_t most = hak_atomic_load(&hak_dirty_units, relaxed) * HAK_UNIT_BYTES;
    for (; found != 0 && given < most && has_time(end_ms); given += found)
        found = hak_region_purge_units(UNITS_AT_ONCE, true);
    while (has_time(end_ms) && !hak_purge_turn(&bytes)) {
    }
}

/* The thread that is left may sleep for ever: what lies free goes back first, but where the program keeps it
 * (mallopt). */
static void leave_nothing_free(void) {
    if (!hak_knob_is_highest(decay_ms)) {
        give_back_until(0);
        if (!is_ending()) hak_purge_all(NULL); /* little is left */
    }
    forget_bursts();
}

/* The program is to be alone now, and may never miss again. */
static void leave_little_free(void) {
    uint64_t bytes = hak_atomic_exchange(&may_leave_bytes, UINT64_MAX, relaxed);
    if (bytes == UINT64_MAX) return;
    bool is_much = hak_mapping_cache_free_bytes() + hak_allowance_free_in_slabs() > bytes;
    bool may_give = !hak_knob_is_highest(decay_ms);
    if (may_give && bytes == 0) hak_purge_all(NULL);
    else if (may_give && is_much) give_back_until(hak_os_clock_ms() + MOST_YIELD_MS);
    forget_bursts();
}

/* The last that the thread does, whyever it ends. */
static void finish(void) {
    hak_service_stop();
    hak_ace_rest();
    hak_atomic_store(&hak_heaps_resting, 0, relaxed);
    hak_background_pay(false);
    ended_thread = hak_os_this_thread();
    ended_id = hak_os_thread_id();
    /* Release pairs with take_ended. */
    hak_atomic_store(&hak_background_state, HAK_BACKGROUND_ENDED, release);
    hak_os_wake(&hak_background_state);
}

static uint64_t period_ms(void) { return hak_knob(decay_ms) < LEAST_PERIOD_MS ? LEAST_PERIOD_MS : hak_knob(decay_ms); }

static void end_beginning(void) {
    hak_atomic_store(&is_beginning, false, relaxed);
    hak_os_wake(&is_beginning);
}

static void run_background(void) {
    uint64_t waited_ms = 0;   /* of this period */
    uint32_t looks_alone = 0; /* in a row */
    uint64_t misses_then = 0, missed_ms = 0;
    bool serves = false;
    enum hak_os_settled settled = hak_os_settle_thread();
    end_beginning();
    hak_floating_begin();     /* not the starter's */
    hak_thread_refuse_heap(); /* or it would wait for itself to end */
    if (settled == HAK_OS_FOREIGN) {
        hak_atomic_store(&misses_to_skip, MISSES_AFTER_REFUSAL, relaxed);
        finish();
        return;
    }
    if (settled != HAK_OS_FILTERED) hak_atomic_store(&starter, 0, relaxed);
    misses_seen = count_misses();
    idle_periods = 0;
    left_to_sweep = UINT64_MAX;
    while (!is_ending()) {
        if (!serves && (is_wanted() || hak_service_is_asked())) {
            hak_service_start(settled != HAK_OS_SETTLED);
            serves = true;
        }
        uint64_t wait_ms = hak_ace_wait_ms(period_ms() < MOST_WAIT_MS ? period_ms() : MOST_WAIT_MS);
        if (!is_ending()) hak_os_wait(&hak_background_state, HAK_BACKGROUND_AWAKE, wait_ms * 1000);
        if (is_ending() || !hak_os_may_wait()) break;
        looks_alone = is_wanted() ? 0 : looks_alone + 1;
        uint64_t misses = count_misses(), now_ms = hak_os_clock_ms();
        bool rests = looks_alone != 0 && misses == misses_then;
        if (!rests) missed_ms = now_ms;
        misses_then = misses;
        if (works_in_bursts() ? now_ms - missed_ms >= REST_MS : looks_alone >= LOOKS_ALONE) {
            leave_nothing_free();
            break;
        }
        if (rests) hak_ace_rest();
        else hak_ace_step(looks_alone == 0);
        waited_ms += wait_ms;
        if (waited_ms < period_ms() || (looks_alone != 0 && waited_ms < REST_MS)) continue;
        waited_ms = 0;
        hak_meter_notice_tracer();
        if (end_period()) continue;
        hak_ace_rest();
        sleep_until_miss();
    }
    leave_little_free();
    finish();
}

/* True when there is a thread that has ended, and the caller is the one to join it. */
static bool take_ended(void) {
    uint32_t ended = HAK_BACKGROUND_ENDED;
    /* Acquire pairs with the end of run_background. */
    return hak_atomic_cas(&hak_background_state, &ended, HAK_BACKGROUND_TAKEN, acquire, relaxed);
}

/* Gives the place back: after the thread was joined, or with `state` ENDED, because it can't be yet. */
static void leave_ended(uint32_t state) {
    /* Release pairs with take_ended and stand_in: the next such thread has what was this one's. */
    hak_atomic_store(&hak_background_state, state, release);
}

/* Who misses doesn't wait: the next miss tries again. */
static void try_to_join(void) {
    if (hak_atomic_load(&hak_background_state, relaxed) != HAK_BACKGROUND_ENDED) return;
    if (take_ended()) leave_ended(hak_os_try_join_thread(ended_thread) ? HAK_BACKGROUND_NONE : HAK_BACKGROUND_ENDED);
}

/* Memory enough to be worth the thread: SuperSlabs, and objects with mappings of their own, kept ones included. */
static bool is_large(void) {
    enum { LEAST_BYTES = 8 << 20 };
    uint64_t bytes = hak_region_count_super_slabs() * HAK_SUPER_SLAB_BYTES;
    return bytes + hak_atomic_load(&hak_mapping_bytes, relaxed) + hak_mapping_cache_bytes() >= LEAST_BYTES;
}

/* What may stay, as far as this changes it. */
static void bound_allowance(bool may_begin) {
    uint64_t bytes = may_begin ? SMALL_ALLOWANCE_BYTES : MOST_ALONE_BYTES;
    uint64_t told = hak_atomic_load(&hak_allowance_limit_bytes, relaxed);
    if (HAK_UNLIKELY(told != bytes && told != HAK_ALLOWANCE_OF_ALL))
        hak_atomic_store(&hak_allowance_limit_bytes, bytes, relaxed);
}

static bool is_due(void) {
    uint64_t setting = hak_process_config()->background;
    bool is_asked_from_outside = hak_service_is_asked();
    bool is_set = setting == 1 || hak_service_is_wanted(), is_allowed = setting != 0 && (is_set || !is_malloc_wrapped);
    uint32_t skip = hak_atomic_load(&misses_to_skip, relaxed);
    bool may_begin = is_allowed && skip == 0 && (is_set || has_threads() || may_watch_alone());
    bound_allowance(may_begin);
    if (!is_allowed || !(is_set || has_threads() || is_asked_from_outside || works_in_bursts())) return false;
    if (skip > 0) {
        hak_atomic_store(&misses_to_skip, skip - 1, relaxed);
        return false;
    }
    return hak_service_is_wanted() || is_asked_from_outside || works_in_bursts() || is_large();
}

/* Takes the place of a thread that is not there. */
static bool stand_in(uint32_t state) {
    uint32_t none = HAK_BACKGROUND_NONE;
    /* Acquire pairs with leave_ended. */
    return hak_atomic_cas(&hak_background_state, &none, state, acquire, relaxed);
}

/* A child of vfork has its parent's memory for a while, but a thread that it starts is its own, and ends with it. */
static bool is_borrowed(void) {
    int process = hak_atomic_load(&own_process, relaxed);
    return process != 0 && process != hak_os_process_id();
}

/* Seq_cst, to pair with hak_background_filter: one of the two sees the other. */
static bool may_begin_now(void) {
    hak_atomic_store(&is_beginning, true, seq_cst);
    return hak_atomic_load(&filter_calls, seq_cst) == 0;
}

static void start_thread(void) {
    if (!hak_os_may_wait() || is_borrowed()) return;
    hak_background_is_starting = true; /* before others see the state: a handler of a signal may make a fork here */
    bool stands_in = stand_in(HAK_BACKGROUND_AWAKE), started = false;
    if (stands_in && may_begin_now()) {
        hak_background_pay(true);
        hak_atomic_store(&may_leave_bytes, UINT64_MAX, relaxed); /* of a thread that had ended before it was asked */
        hak_atomic_store(&starter, hak_os_thread_id(), relaxed);
        started = hak_os_start_thread(run_background, NULL);
    }
    hak_background_is_starting = false;
    if (started || !stands_in) return;
    end_beginning();
    hak_atomic_store(&misses_to_skip, MISSES_AFTER_REFUSAL, relaxed);
    hak_background_pay(false);
    hak_atomic_store(&hak_background_state, HAK_BACKGROUND_NONE, relaxed);
}

/* A program that comes back from a rest has not been measured meanwhile. One that has several threads by now, and none
 * of hakmem's, is measured no more. A program may forbid itself the time stamps that slow paths are timed by
 * (PR_SET_TSC, strict seccomp): in it these are not. */
static void step_alone(uint64_t now_ms) {
    if (now_ms < next_step_ms) return;
    bool is_alone = !has_threads();
    struct hak_floating programs = hak_floating_begin();
    if (!is_alone || now_ms - next_step_ms > MOST_WAIT_MS) hak_ace_rest();
    if (is_alone) hak_ace_step(false);
    hak_floating_end(programs);
    next_step_ms = now_ms + hak_ace_wait_ms(MOST_WAIT_MS);
}

/* One SuperSlab at a time, so that no miss takes long, and each once in a period. */
static void sweep_alone(uint64_t now_ms) {
    if (now_ms >= next_holes_ms) {
        uint64_t misses = count_misses(), all = hak_region_count_super_slabs();
        alone_batch_bytes = misses - misses_seen < FEW_MISSES ? idle_batch_bytes : busy_batch_bytes;
        misses_seen = misses;
        left_to_sweep = all < SWEEP_SUPER_SLABS ? all : SWEEP_SUPER_SLABS;
        next_holes_ms = now_ms + period_ms();
    }
    sweep(alone_batch_bytes, 1);
}

/* In a child of fork, a thread that hakmem's handler doesn't know of yet (G3 in region/generation.h). */
static bool is_ahead(void) {
    const struct hak_heap *heap = hak_thread_attach();
    return heap != NULL && hak_atomic_load(&heap->generation, relaxed) > hak_atomic_load(&hak_generation, relaxed);
}

/* What the thread does for a program with several is done for one with one thread, or for one in which it can't begin,
 * by the program's own misses, bit by bit. */
static void act_alone(void) {
    if (hak_process_config()->background == 0) return;
    uint32_t left = hak_atomic_load(&misses_to_look, relaxed);
    hak_atomic_store(&misses_to_look, left == 0 ? MISSES_PER_LOOK : left - 1, relaxed);
    if (left > 0 || is_ahead() || !is_large() || !stand_in(HAK_BACKGROUND_TAKEN)) return;
    uint64_t now_ms = hak_os_clock_ms();
    step_alone(now_ms);
    sweep_alone(now_ms);
    leave_ended(HAK_BACKGROUND_NONE);
}

void hak_background_start(const void *caller) {
    try_to_join();
    if (is_due() && !hak_os_is_library_code(caller)) start_thread();
    else act_alone();
}

/* A child that was made without libc: nobody has said that it has no such thread. */
static bool is_unknown_child(void) { return hak_generation_now() != hak_atomic_load(&hak_generation, relaxed); }

/* Makes the thread end, and waits until its work is done; not for ever: where the kernel empties no page in a child, it
 * may be none of this process. */
static void end_thread(uint64_t most_ms) {
    if (is_unknown_child()) return;
    uint32_t state = hak_atomic_load(&hak_background_state, relaxed);
    while (state == HAK_BACKGROUND_AWAKE || state == HAK_BACKGROUND_ASLEEP) {
        if (!hak_atomic_cas(&hak_background_state, &state, HAK_BACKGROUND_ENDING, relaxed, relaxed)) continue;
        hak_os_wake(&hak_background_state);
        uint64_t start_ms = hak_os_clock_ms(), passed_ms = 0;
        while (hak_atomic_load(&hak_background_state, relaxed) == HAK_BACKGROUND_ENDING && passed_ms < most_ms) {
            hak_os_wait(&hak_background_state, HAK_BACKGROUND_ENDING, (most_ms - passed_ms) * 1000);
            passed_ms = hak_os_clock_ms() - start_ms;
        }
        return;
    }
}

/* True when the caller was the one to join it. */
static bool end_and_join(uint64_t most_ms) {
    end_thread(most_ms);
    if (!take_ended()) return false;
    hak_os_join_thread(ended_thread);
    leave_ended(HAK_BACKGROUND_NONE);
    return true;
}

/* The filter that hakmem's thread is under may be the caller's only: where it goes on, the process can't have another
 * one for all threads. */
static bool is_starter(void) {
    uint32_t thread = hak_atomic_load(&starter, relaxed);
    return thread != 0 && thread == hak_os_thread_id();
}

/* Where another thread of the program's is doing the same, or has a heap by now, that one joins it (B2). */
void hak_background_thread_ended(void) {
    if (hak_atomic_load(&hak_heaps_in_use, relaxed) != 0 && !is_starter()) return;
    end_and_join(MOST_END_MS);
}

void hak_background_watch(void) { hak_atomic_store(&may_begin_alone, !hak_os_began_filtered(), relaxed); }

/* What a program has free stays for the next burst, unless it is more than stays without the thread, or there will be
 * none any more. */
void hak_background_yield(enum hak_yield why) {
    if (why == HAK_YIELD_TO_FORK) hak_atomic_store(&is_forking, true, relaxed);
    /* Who is under a filter by now makes no system call here. A child of vfork asks for itself. */
    bool is_first = why == HAK_YIELD_FOR_GOOD && hak_atomic_load(&may_begin_alone, relaxed);
    if (is_first && (!is_borrowed() || is_unknown_child())) hak_atomic_store(&may_begin_alone, false, relaxed);
    uint32_t state = hak_atomic_load(&hak_background_state, relaxed);
    if (state == HAK_BACKGROUND_NONE || hak_background_is_starting) return;
    if (has_threads() || is_always_wanted() || hak_service_is_in_use() || is_borrowed()) return;
    hak_atomic_store(&may_leave_bytes, why == HAK_YIELD_FOR_GOOD ? 0 : MOST_ALONE_BYTES, relaxed);
    if (state != HAK_BACKGROUND_ENDED) hak_atomic_store(&alone_until_ms, hak_os_clock_ms() + ALONE_MS, relaxed);
    if (end_and_join(why == HAK_YIELD_TO_FORK ? MOST_FORK_MS : MOST_END_MS)) hak_os_wait_until_gone(ended_id);
}

void hak_background_filter(bool begins) {
    if (!begins) {
        /* None in a child that a handler has forked in the middle of the call. */
        uint32_t calls = hak_atomic_load(&filter_calls, relaxed);
        while (calls != 0 && !hak_atomic_cas(&filter_calls, &calls, calls - 1, relaxed, relaxed)) {
        }
        return;
    }
    /* Seq_cst: pairs with may_begin_now. */
    hak_atomic_fetch_add(&filter_calls, 1, seq_cst);
    uint64_t start_ms = hak_os_clock_ms(), passed_ms = 0;
    /* Seq_cst: pairs with may_begin_now. */
    while (hak_atomic_load(&is_beginning, seq_cst) && !hak_background_is_starting && passed_ms < MOST_END_MS) {
        hak_os_wait(&is_beginning, true, (MOST_END_MS - passed_ms) * 1000);
        passed_ms = hak_os_clock_ms() - start_ms;
    }
}

void hak_background_forked(void) { hak_atomic_store(&is_forking, false, relaxed); }

static void note_process(int process) { hak_atomic_store(&own_process, process, relaxed); }

void hak_background_begin(void) {
    note_process(hak_os_process_id());
    hak_os_find_library_code();
    is_malloc_wrapped = hak_os_is_malloc_wrapped((const void *)(uintptr_t)hak_background_begin);
}

void hak_background_after_fork(void) {
    hak_atomic_store(&alone_until_ms, 0, relaxed);
    hak_atomic_store(&hak_heaps_resting, 0, relaxed);
    hak_atomic_store(&misses_to_skip, 0, relaxed);
    hak_atomic_store(&filter_calls, 0, relaxed);
    hak_atomic_store(&is_beginning, false, relaxed);
    next_step_ms = next_holes_ms = 0;
    hak_atomic_store(&hak_background_state, HAK_BACKGROUND_NONE, relaxed);
    note_process((int)hak_os_thread_id()); /* a child's first thread has its number; until here it is borrowed */
}
