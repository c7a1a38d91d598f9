#include "front/meter.h"

#include "front/process.h"
#include "front/routes.h"
#include "observe/profile_tables.h"
#include "pool/ration.h"
#include "region/heap_count.h"

/* M2. A look reads two bins of each class in each heap: of many threads each looks more rarely. */
enum { LOOK_BYTES = 64 << 10, LOOK_SHARE = 128, HEAPS_PER_LOOK = 8 };

HAK_ATOMIC(bool) hak_meter_is_traced;
static HAK_ATOMIC(bool) is_for_tracer; /* the profile was switched on because there is one */

/* ---- On and off -------------------------------------------------------------------------------------------------- */

static bool start_metering(uint64_t interval_bytes, bool in_runs) {
    if (!hak_process_initialize()) return false;
    hak_atomic_store(&hak_profile_in_runs, in_runs, relaxed);
    if (!hak_profile_begin(interval_bytes == 0 ? 1 : interval_bytes)) return false;
    hak_routes_meter(true);
    return true;
}

bool hak_meter_start(uint64_t interval_bytes) {
    hak_atomic_store(&is_for_tracer, false, relaxed);
    return start_metering(interval_bytes, false);
}

bool hak_meter_start_runs(uint64_t interval_bytes) {
    hak_atomic_store(&is_for_tracer, false, relaxed);
    return start_metering(interval_bytes, true);
}

static void stop_metering(void) {
    hak_profile_end();
    if (!hak_process_initialize()) return;
    hak_routes_meter(false);
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next)
        hak_atomic_store(&heap->drain_wanted, 1, relaxed);
}

void hak_meter_stop(void) {
    stop_metering();
    hak_atomic_store(&hak_meter_is_traced, false, relaxed); /* if there is a tracer, the next look begins anew */
}

void hak_meter_follow_tracer(void) {
    uint64_t interval_bytes = hak_process_config()->heap_profile_interval_bytes;
    if (interval_bytes == 0) return; /* settings are not read yet */
    bool is_watched = hak_probes_are_watched(), was_watched = !is_watched;
    if (!hak_atomic_cas(&hak_meter_is_traced, &was_watched, is_watched, relaxed, relaxed)) return;
    if (is_watched && !hak_profile_is_on()) {
        hak_atomic_store(&is_for_tracer, true, relaxed);
        start_metering(interval_bytes, false);
    } else if (!is_watched && hak_atomic_load(&is_for_tracer, relaxed)) {
        hak_atomic_store(&is_for_tracer, false, relaxed);
        stop_metering();
    }
}

/* ---- Counts and samples ------------------------------------------------------------------------------------------ */

#define NOT_DRAWN (INT64_MIN / 2)

/* Bytes to the next sample of a class, or in a run, less than 0: into it. What was drawn from another interval is drawn
 * anew when it is first asked for. */
static int64_t unsampled_bytes(struct hak_heap *heap, uint32_t size_class, const struct hak_profile_runs *runs) {
    if (heap->sample_interval_bytes != runs->interval_bytes || heap->samples_in_runs != runs->are_on) {
        for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) heap->unsampled_bytes[i] = NOT_DRAWN;
        heap->sample_interval_bytes = runs->interval_bytes;
        heap->samples_in_runs = runs->are_on;
    }
    int64_t unsampled = heap->unsampled_bytes[size_class];
    if (unsampled > NOT_DRAWN / 2) return unsampled; /* it isn't NOT_DRAWN, nor what a ration has added to that */
    return heap->unsampled_bytes[size_class] = runs->are_on ? hak_profile_begin_runs(runs, &heap->run_slots[size_class])
                                                            : hak_profile_draw(runs->interval_bytes);
}

/* Past a sample. */
static void move_on(struct hak_heap *heap, uint32_t size_class, const struct hak_profile_runs *runs, uint64_t bytes) {
    int64_t left = heap->unsampled_bytes[size_class] - (int64_t)bytes;
    if (runs->are_on) left = hak_profile_next_run(runs, left, &heap->run_slots[size_class]);
    else left = hak_profile_draw(runs->interval_bytes);
    heap->unsampled_bytes[size_class] = left;
}

/* A block of the class, or with 0 a large object. */
static void count_one(struct hak_heap *heap, uint32_t size_class, uint64_t bytes) {
    if (heap == NULL) {
        hak_profile_count(size_class);
        return;
    }
    hak_owned_set(&heap->metered[size_class], hak_owned_get(&heap->metered[size_class]) + 1);
    heap->unlooked_bytes -= (int64_t)bytes;
}

static uint64_t weight_in(const struct hak_profile_runs *runs, uint64_t bytes) {
    return runs->are_on ? hak_profile_run_weight(runs) : hak_profile_weight(bytes, runs->interval_bytes);
}

/* For a thread without a heap: by chance alone. */
static bool is_sample_due(const struct hak_profile_runs *runs, uint64_t bytes) {
    if (runs->are_on) return hak_profile_random() % runs->slot_count == 0;
    return (uint64_t)hak_profile_draw(runs->interval_bytes) <= bytes;
}

/* How many blocks begin before the run, or end before the sample. */
static uint64_t blocks_before(const struct hak_profile_runs *runs, int64_t unsampled, uint64_t bytes) {
    if (unsampled <= 0) return 0;
    return runs->are_on ? ((uint64_t)unsampled + bytes - 1) / bytes : ((uint64_t)unsampled - 1) / bytes;
}

uint64_t hak_meter_weigh(struct hak_heap *heap, uint32_t size_class, uint32_t *unsampled) {
    uint64_t bytes = hak_size_classes[size_class].block_bytes;
    struct hak_profile_runs runs = hak_profile_runs_of(bytes);
    *unsampled = 1;
    if (heap == NULL) count_one(NULL, size_class, bytes);
    if (runs.interval_bytes == 0) return 0; /* switched off just now */
    if (heap == NULL) return is_sample_due(&runs, bytes) ? weight_in(&runs, bytes) : 0;
    uint64_t blocks = blocks_before(&runs, unsampled_bytes(heap, size_class, &runs), bytes);
    *unsampled = blocks < UINT32_MAX ? (uint32_t)blocks : UINT32_MAX;
    if (blocks != 0) return 0;
    move_on(heap, size_class, &runs, bytes);
    count_one(heap, size_class, bytes);
    return weight_in(&runs, bytes);
}

void hak_meter_pass_one(struct hak_heap *heap, uint32_t size_class) {
    uint64_t bytes = hak_size_classes[size_class].block_bytes;
    count_one(heap, size_class, bytes);
    heap->unsampled_bytes[size_class] -= (int64_t)bytes;
}

uint64_t hak_meter_weigh_large(struct hak_heap *heap, size_t size, size_t bytes) {
    uint64_t interval = hak_atomic_load(&hak_profile_interval, relaxed);
    count_one(heap, 0, size);
    hak_profile_count_large(size, bytes);
    if (heap != NULL) hak_meter_notice(heap);
    if (interval == 0 || (uint64_t)hak_profile_draw(interval) > size) return 0;
    return hak_profile_weight(size, interval);
}

/* ---- What is live ------------------------------------------------------------------------------------------------ */

/* Far below the peak the next look may be as far away as the threads can come together. */
static HAK_COLD void look_at_live(struct hak_heap *heap) {
    struct hak_profile_heights heights = hak_profile_look();
    uint64_t threads = hak_atomic_load(&hak_heaps_about, relaxed), least = heights.peak_bytes / LOOK_SHARE;
    uint64_t below = (heights.peak_bytes - heights.live_bytes) / (threads + (threads == 0));
    uint64_t cheap = LOOK_BYTES * (1 + threads / HEAPS_PER_LOOK);
    if (least < cheap) least = cheap;
    heap->unlooked_bytes = (int64_t)(below > least ? below : least);
}

void hak_meter_notice(struct hak_heap *heap) {
    if (HAK_UNLIKELY(heap->unlooked_bytes < 0)) look_at_live(heap);
}

uint64_t hak_meter_moment(const struct hak_heap *heap) {
    enum { COUNT_BITS = 40 };
    uint64_t turns = hak_atomic_load(&hak_routes_turns, relaxed);
    if (heap == NULL || heap->number == 0 || turns % 2 == 0) return 0;
    uint64_t count = (turns + heap->tenant) * HAK_PROFILE_TEMPORARY + hak_owned_get(&heap->metered[0]);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++)
        count += hak_owned_get(&heap->metered[i]) - hak_ration_count(heap, i);
    return (uint64_t)heap->number << COUNT_BITS | (count & (((uint64_t)1 << COUNT_BITS) - 1));
}
