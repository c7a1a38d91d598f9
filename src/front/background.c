#include "front/background.h"

#include "base/knobs.h"
#include "control/ace.h"
#include "front/meter.h"
#include "front/process.h"
#include "front/service.h"
#include "front/thread.h"
#include "front/tight.h"
#include "os/os.h"
#include "pool/drain.h"
#include "pool/purge.h"
#include "region/mapping_cache.h"
#include "region/page_policy.h"

HAK_ATOMIC(uint32_t) hak_background_state;

enum {
    LEAST_PERIOD_MS = 334,      /* three wake-ups a second */
    LEAST_SUPER_SLABS = 4,      /* of a process with several threads */
    LEAST_SUPER_SLABS_ONE = 32, /* of one with one */
    MISSES_AFTER_REFUSAL = 1 << 16,
    FEW_MISSES = 1000,            /* in a period: what the program does costs more than a purge */
    BUSY_SWEEP_SUPER_SLABS = 256, /* 512 MiB in a period: some ms of time where there is nothing to do */
    PERIODS_TO_PURGE_ALL = 2,
    PERIODS_TO_SLEEP = 4,
    RECHECK_US = 10000000, /* where the kernel has no fences in all threads, a miss may go unnoticed */
};

/* Batches: while the program is busy, nothing less is worth a system call; when it rests, nothing less than the second. */
static const uint64_t busy_batch_bytes = 8 << 20, idle_batch_bytes = 64 << 10;

static HAK_ATOMIC(uint32_t) misses_to_skip; /* after a refusal */

/* Of the background thread. */
static uint64_t misses_seen;  /* by all heaps, at the last look */
static uint32_t idle_periods; /* without a miss */

/* ---- Looking ------------------------------------------------------------------------------------------------------- */

/* All that a heap's thread has done but for hits. */
static uint64_t misses_of(const struct hak_heap *heap) {
    return hak_atomic_load(&heap->slow_paths, relaxed) + hak_atomic_load(&heap->counters.large_allocs, relaxed) +
           hak_atomic_load(&heap->counters.large_frees, relaxed);
}

static uint64_t count_misses(void) {
    uint64_t misses = 0;
    for (const struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) misses += misses_of(heap);
    return misses;
}

/* Drains heaps whose threads have not missed for a period, once. */
static void drain_idle_heaps(void) {
    uint32_t resting = 0;
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        uint64_t misses = misses_of(heap);
        if (misses != heap->swept_misses) {
            heap->swept_misses = misses;
            heap->swept_idle = false;
        } else if (!heap->swept_idle) {
            heap->swept_idle = true;
            hak_heap_drain(heap);
        }
        resting += heap->swept_idle && hak_atomic_load(&heap->in_use, relaxed) == HAK_HEAP_IN_USE;
    }
    hak_atomic_store(&hak_heaps_resting, resting, relaxed);
}

/* The end of a period. False when there is nothing to wait for. */
static bool end_period(void) {
    uint64_t misses = count_misses(), recent = misses - misses_seen;
    misses_seen = misses;
    idle_periods = recent == 0 ? idle_periods + 1 : 0;
    /* A program that has one thread may rely on which descriptor is the lowest free one. It looks itself, as it grows. */
    if (hak_atomic_load(&hak_heaps_in_use, relaxed) > 1) hak_tight_check();
    if (hak_atomic_load(&hak_memory_is_tight, relaxed)) {
        hak_purge_all(NULL);
        return idle_periods < PERIODS_TO_SLEEP;
    }
    uint64_t least_bytes = recent < FEW_MISSES ? idle_batch_bytes : busy_batch_bytes;
    drain_idle_heaps();
    hak_purge_sweep(least_bytes, recent < FEW_MISSES ? UINT32_MAX : BUSY_SWEEP_SUPER_SLABS);
    if (idle_periods >= PERIODS_TO_PURGE_ALL) {
        hak_region_purge_units(UINT64_MAX, true);
        hak_mapping_cache_purge();
    } else {
        hak_page_policy_end_period(least_bytes);
    }
    return idle_periods < PERIODS_TO_SLEEP;
}

/* ---- Sleeping ------------------------------------------------------------------------------------------------------ */

static void sleep_until_miss(void) {
    uint32_t awake = HAK_BACKGROUND_AWAKE;
    if (!hak_atomic_cas(&hak_background_state, &awake, HAK_BACKGROUND_ASLEEP, relaxed, relaxed)) return;
    /* Either we see that somebody missed, or he sees that we sleep. */
    bool fenced = hak_fence_threads();
    if (count_misses() == misses_seen)
        hak_os_wait(&hak_background_state, HAK_BACKGROUND_ASLEEP, fenced ? 0 : RECHECK_US);
    uint32_t asleep = HAK_BACKGROUND_ASLEEP;
    hak_atomic_cas(&hak_background_state, &asleep, HAK_BACKGROUND_AWAKE, relaxed, relaxed);
}

void hak_background_wake(void) {
    uint32_t asleep = HAK_BACKGROUND_ASLEEP;
    if (hak_atomic_cas(&hak_background_state, &asleep, HAK_BACKGROUND_AWAKE, relaxed, relaxed))
        hak_os_wake(&hak_background_state);
}

void hak_background_nudge(void) {
    hak_background_wake();
    hak_os_wake(&hak_background_state);
}

/* ---- Beginning and ending ------------------------------------------------------------------------------------------ */

static bool is_ending(void) { return hak_atomic_load(&hak_background_state, relaxed) == HAK_BACKGROUND_ENDING; }

/* Waits, and opens and closes the windows of the heap profile meanwhile. */
static void wait_and_meter(uint64_t wait_ms) {
    uint64_t left_us = wait_ms * 1000, now_us = hak_os_clock_ns() / 1000;
    while (!is_ending()) {
        uint64_t step_us = hak_meter_step(now_us), before_us = now_us;
        hak_os_wait(&hak_background_state, HAK_BACKGROUND_AWAKE, step_us < left_us ? step_us : left_us);
        if (step_us >= left_us) return;
        now_us = hak_os_clock_ns() / 1000;
        if (now_us - before_us >= left_us) return;
        left_us -= now_us - before_us;
    }
}

static void run_background(void) {
    uint64_t waited_ms = 0;   /* of this period */
    hak_thread_refuse_heap(); /* or it would wait for itself to end */
    hak_service_start();
    misses_seen = count_misses();
    idle_periods = 0;
    while (!is_ending()) {
        uint64_t period_ms = hak_knob(decay_ms) < LEAST_PERIOD_MS ? LEAST_PERIOD_MS : hak_knob(decay_ms);
        uint64_t wait_ms = hak_ace_wait_ms(period_ms);
        wait_and_meter(wait_ms);
        if (is_ending()) break;
        hak_ace_step();
        waited_ms += wait_ms;
        if (waited_ms < period_ms) continue;
        waited_ms = 0;
        if (end_period()) continue;
        hak_ace_rest();
        hak_meter_rest();
        sleep_until_miss();
    }
    hak_service_stop();
    hak_ace_rest();
    hak_meter_without_thread();
    hak_atomic_store(&hak_heaps_resting, 0, relaxed);
    hak_atomic_store(&hak_page_policy_has_background, 0, relaxed);
    /* Release pairs with hak_background_start: the next such thread has what is this one's. */
    hak_atomic_store(&hak_background_state, HAK_BACKGROUND_NONE, release);
}

static bool has_super_slabs(uint32_t least) {
    uint32_t count = 0;
    for (uint32_t i = 0; count < least && i < HAK_RANGE_LIMIT; i++) {
        const struct hak_range *range = hak_region_range(i);
        if (range == NULL) return false;
        count += hak_atomic_load(&range->super_slab_count, relaxed);
    }
    return count >= least;
}

static bool is_due(void) {
    if (hak_process_config()->background == 0) return false;
    uint32_t skip = hak_atomic_load(&misses_to_skip, relaxed);
    if (skip > 0) {
        hak_atomic_store(&misses_to_skip, skip - 1, relaxed);
        return false;
    }
    if (hak_service_is_wanted() || hak_meter_wants_thread()) return true;
    bool alone = hak_atomic_load(&hak_heaps_in_use, relaxed) < 2;
    return has_super_slabs(alone ? LEAST_SUPER_SLABS_ONE : LEAST_SUPER_SLABS);
}

static void start_thread(void) {
    uint32_t none = HAK_BACKGROUND_NONE;
    /* Acquire pairs with the end of run_background. */
    if (!hak_atomic_cas(&hak_background_state, &none, HAK_BACKGROUND_AWAKE, acquire, relaxed)) return;
    hak_atomic_store(&hak_page_policy_has_background, 1, relaxed);
    if (hak_os_start_thread(run_background, NULL)) return;
    hak_atomic_store(&misses_to_skip, MISSES_AFTER_REFUSAL, relaxed);
    hak_atomic_store(&hak_page_policy_has_background, 0, relaxed);
    hak_atomic_store(&hak_background_state, HAK_BACKGROUND_NONE, relaxed);
}

void hak_background_start(void) {
    if (is_due()) start_thread();
}

void hak_background_thread_ended(void) {
    if (hak_atomic_load(&hak_heaps_in_use, relaxed) != 0) return;
    uint32_t state = hak_atomic_load(&hak_background_state, relaxed);
    while (state == HAK_BACKGROUND_AWAKE || state == HAK_BACKGROUND_ASLEEP)
        if (hak_atomic_cas(&hak_background_state, &state, HAK_BACKGROUND_ENDING, relaxed, relaxed)) {
            hak_os_wake(&hak_background_state);
            return;
        }
}

void hak_background_after_fork(void) {
    hak_atomic_store(&hak_heaps_resting, 0, relaxed);
    hak_atomic_store(&hak_background_state, HAK_BACKGROUND_NONE, relaxed);
    hak_atomic_store(&hak_page_policy_has_background, 0, relaxed);
    hak_atomic_store(&misses_to_skip, 0, relaxed);
    hak_meter_without_thread();
}
