#include "control/measure.h"

#include <string.h>

#include "control/arithmetic.h"
#include "pool/bin.h"
#include "pool/heap.h"
#include "region/directory.h"
#include "region/mapping_cache.h"
#include "region/region.h"

enum {
    FEW_OBJECTS = 16, /* large ones in a period: they say nothing of the program */
    ANY_OBJECTS = 3,  /* further apart than two signatures of a phase: having large objects, and having none */
    NO_CHANCE = 8,    /* periods in a row are none */
};

_Static_assert((int)HAK_THREADS_PART + 1 == (int)HAK_SIGNATURE_PARTS, "a signature has these");

void hak_measure_begin(struct hak_measure *measure, bool may_ask) {
    memset(measure, 0, sizeof *measure);
    measure->may_ask = may_ask;
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

static void add_heap(const struct hak_heap *heap, struct hak_sums *sums) {
    sums->misses += hak_atomic_load(&heap->slow_paths, relaxed);
    sums->sampled_ticks += hak_atomic_load(&heap->sampled_ticks, relaxed);
    sums->samples += hak_atomic_load(&heap->sample_count, relaxed);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        sums->class_misses[i] += hak_atomic_load(&heap->class_misses[i], relaxed);
        sums->bin_bytes[i] += hak_heap_cached(heap, i) * hak_size_classes[i].block_bytes;
    }
    sums->active_heaps += hak_atomic_load(&heap->in_use, relaxed) == HAK_HEAP_IN_USE;
}

void hak_measure_sums(struct hak_measure *measure, struct hak_sums *sums, bool times) {
    memset(sums, 0, sizeof *sums);
    for (const struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) add_heap(heap, sums);
    for (uint32_t i = 0; i < HAK_LARGE_BANDS; i++)
        sums->large_bands[i] = hak_atomic_load(&hak_large_counts[i], relaxed);
    sums->given_back_bytes = hak_atomic_load(&hak_os_counters.purged_bytes, relaxed);
    sums->reused_pages = hak_atomic_load(&hak_pages_reused, relaxed);
    sums->usage = hak_os_usage(measure->may_ask);
    sums->ticks = times ? hak_ticks() : 0;
    sums->now_ms = hak_os_clock_ms();
    if (!times || measure->is_timed) return;
    measure->is_timed = true;
    measure->timed_ms = sums->now_ms;
    measure->timed_ticks = sums->ticks;
}

/* ---- A period ---------------------------------------------------------------------------------------------------- */

/* Memory that is in use: of SuperSlabs, from their words, and mappings. */
static uint64_t used_bytes(void) {
    uint64_t units = 0;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && hak_region_range(i) != NULL; i++) {
        const struct hak_range *range = hak_region_range(i);
        uint32_t count = hak_region_super_slabs(range);
        for (uint32_t k = 0; k < count; k++)
            units += HAK_UNITS_PER_SUPER_SLAB -
                     hak_bit_count(hak_units_free(hak_atomic_load(&range->super_slabs[k].free_units, relaxed)));
    }
    return units * HAK_UNIT_BYTES + hak_atomic_load(&hak_mapping_bytes, relaxed);
}

static uint64_t dirty_bytes(void) { return hak_atomic_load(&hak_dirty_units, relaxed) * HAK_UNIT_BYTES; }

static uint64_t most_of(const uint64_t *looks) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < HAK_RECENT_LOOKS; i++) most = looks[i] > most ? looks[i] : most;
    return most;
}

/* A heap that fills and empties many times in a second looks large or small, by when one looks. What it needed of late,
 * it will need again: that is its size, and what lies free up to there is not kept in vain. */
static void see_use(struct hak_measure *measure, struct hak_period *period) {
    uint32_t look = measure->looks++ % HAK_RECENT_LOOKS;
    measure->used_bytes[look] = period->used_bytes;
    measure->dirty_bytes[look] = dirty_bytes();
    measure->recent_bytes = most_of(measure->used_bytes);
    uint64_t needed = measure->recent_bytes - period->used_bytes,
             free_bytes = needed < period->kept_bytes ? needed : period->kept_bytes;
    period->used_bytes += free_bytes;
    period->kept_bytes -= free_bytes;
}

static double ns_per_tick(const struct hak_measure *measure, const struct hak_sums *now) {
    double ticks = (double)(now->ticks - measure->timed_ticks), ms = (double)(now->now_ms - measure->timed_ms);
    return ticks > 0 && ms > 0 ? ms * 1e6 / ticks : 0;
}

static uint64_t all_bin_bytes(const struct hak_sums *sums) {
    uint64_t bytes = 0;
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) bytes += sums->bin_bytes[i];
    return bytes;
}

struct hak_period hak_measure_period(struct hak_measure *measure, const struct hak_sums *from,
                                     const struct hak_sums *to) {
    uint64_t samples = to->samples - from->samples, misses = to->misses - from->misses;
    double ticks = samples == 0 ? 0 : (double)(to->sampled_ticks - from->sampled_ticks) / (double)samples;
    struct hak_period period = {
        .cpu_ns = to->usage.cpu_ns - from->usage.cpu_ns,
        .kernel_ns = to->usage.kernel_ns - from->usage.kernel_ns,
        .miss_ns = (uint64_t)(ticks * ns_per_tick(measure, to) * (double)misses),
        .kept_bytes = dirty_bytes() + hak_mapping_cache_bytes() + all_bin_bytes(to),
        .used_bytes = used_bytes(),
    };
    see_use(measure, &period);
    return period;
}

struct hak_activity hak_measure_activity(const struct hak_measure *measure, const struct hak_period *period,
                                         const struct hak_sums *from, const struct hak_sums *to) {
    struct hak_activity activity = {
        .cpu_ns = (double)period->cpu_ns,
        .miss_ns = (double)period->miss_ns,
        .kernel_ns = (double)period->kernel_ns,
        .misses = (double)(to->misses - from->misses),
        .given_back_bytes = (double)(to->given_back_bytes - from->given_back_bytes),
        .reused_bytes = (double)((to->reused_pages - from->reused_pages) * hak_os_page_bytes()),
        .kept_bytes = (double)period->kept_bytes,
        .used_bytes = (double)period->used_bytes,
        .dirty_bytes = (double)most_of(measure->dirty_bytes),
        .bin_bytes = (double)all_bin_bytes(to),
    };
    for (uint32_t i = 0; i < HAK_LARGE_BANDS; i++)
        activity.large[i] = (double)(to->large_bands[i] - from->large_bands[i]);
    return activity;
}

void hak_activity_follow(struct hak_activity *mean, const struct hak_activity *now, double part) {
#define FOLLOW(field) mean->field += part * (now->field - mean->field);
    FOLLOW(cpu_ns)
    FOLLOW(miss_ns)
    FOLLOW(kernel_ns)
    FOLLOW(misses)
    FOLLOW(given_back_bytes)
    FOLLOW(reused_bytes)
    FOLLOW(kept_bytes)
    FOLLOW(used_bytes)
    FOLLOW(dirty_bytes)
    FOLLOW(bin_bytes)
    for (uint32_t i = 0; i < HAK_LARGE_BANDS; i++) FOLLOW(large[i])
#undef FOLLOW
}

/* ---- A signature ------------------------------------------------------------------------------------------------- */

static double log_of(double count) { return hak_log2(1 + (count > 0 ? count : 0)); }

/* A program that makes some now and then has periods without one. They are another phase's where a steady flow of them
 * has stopped, or when there was none for long. */
static double without_large(struct hak_measure *measure) {
    measure->is_without_large |= measure->steady_periods >= NO_CHANCE || ++measure->quiet_periods >= NO_CHANCE;
    measure->steady_periods = 0;
    return measure->is_without_large ? 0 : HAK_SIGNATURE_UNKNOWN;
}

/* How large the large objects are, in octaves; 0 for none. How many they are in a period is up to the knobs, too: where
 * these make a program slow, it does less. */
static double large_part(struct hak_measure *measure, const struct hak_sums *from, const struct hak_sums *to) {
    double count = 0, octaves = 0;
    for (uint32_t i = 0; i < HAK_LARGE_BANDS; i++) {
        double in_band = (double)(to->large_bands[i] - from->large_bands[i]);
        count += in_band;
        octaves += in_band * i;
    }
    if (!(count > 0)) return without_large(measure);
    measure->is_without_large = false;
    measure->quiet_periods = 0;
    measure->steady_periods = count < FEW_OBJECTS ? 0 : measure->steady_periods + 1;
    return count < FEW_OBJECTS ? HAK_SIGNATURE_UNKNOWN : ANY_OBJECTS + octaves / count;
}

struct hak_signature hak_measure_signature(struct hak_measure *measure, const struct hak_sums *from,
                                           const struct hak_sums *to) {
    return (struct hak_signature){.parts = {
                                      [HAK_USED_PART] = log_of((double)measure->recent_bytes / (1 << 20)),
                                      [HAK_LARGE_PART] = large_part(measure, from, to),
                                      [HAK_THREADS_PART] = log_of((double)to->active_heaps),
                                  }};
}
