#include "inside.h"

#ifndef FUZZ_OUTSIDE

#include <stdio.h>

#include "base/knobs.h"
#include "base/memory.h"
#include "front/thread.h"
#include "observe/stats.h"
#include "os/os.h"
#include "pool/drain.h"
#include "pool/purge.h"
#include "region/decay.h"
#include "region/directory.h"
#include "region/large.h"
#include "region/mapping_cache.h"
#include "region/region.h"

void inside_look(struct inside_sums *sums) {
    static struct hak_snapshot snapshot;
    hak_snapshot_take(&snapshot);
    const struct hak_statistics *total = &snapshot.total;
    uint64_t small_blocks = total->live_blocks - total->large_blocks + total->cached_blocks;
    sums->live_blocks = total->live_blocks;
    sums->live_bytes = total->live_bytes;
    sums->heaps = total->heaps;
    sums->super_slabs = total->super_slabs;
    sums->mapped_bytes = total->mapped_bytes;
    sums->broken = NULL;
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        const struct hak_class_stats *stats = &snapshot.classes[i];
        if (stats->live_blocks + stats->cached_blocks + stats->free_blocks !=
            stats->slabs * hak_size_classes[i].block_count)
            sums->broken = "T1";
    }
    if (snapshot.refilled_blocks - snapshot.flushed_blocks != small_blocks) sums->broken = "T2";
    if (snapshot.large_allocs - snapshot.large_frees != total->large_blocks) sums->broken = "T3";
    snprintf(sums->figures, sizeof sums->figures,
             "refilled %lu - flushed %lu, live %lu, large %lu, cached %lu; large allocs %lu - frees %lu",
             (unsigned long)snapshot.refilled_blocks, (unsigned long)snapshot.flushed_blocks,
             (unsigned long)total->live_blocks, (unsigned long)total->large_blocks, (unsigned long)total->cached_blocks,
             (unsigned long)snapshot.large_allocs, (unsigned long)snapshot.large_frees);
}

/* The secure build's blocks have slack and canaries; of large objects whole pages count, with their guards. */
size_t inside_counted_bytes(const void *block, size_t usable) {
    struct hak_place place = hak_region_find((uintptr_t)block);
    if (!HAK_SECURE || place.kind == HAK_PLACE_GUARDED) return usable;
    if (place.kind == HAK_PLACE_SMALL) return place.bytes + HAK_CANARY_BYTES;
    if (place.kind == HAK_PLACE_RUN) return usable + hak_large_slack_bytes(usable);
    return hak_entry_mapping_bytes(hak_directory_get(place.start));
}

/* Of bytes, 1 GiB: what may be kept is memory of the machine's, which is not ours alone. */
enum { MOST_KNOB = 1 << 30 };

void inside_set_knob(unsigned knob, unsigned value) {
    knob %= HAK_KNOB_COUNT;
    const struct hak_knob_row *row = &hak_knob_table[knob];
    uint64_t highest = row->highest < MOST_KNOB ? row->highest : MOST_KNOB,
             between = row->initial / 4 < row->lowest ? row->lowest : row->initial / 4;
    /* Memory that is populated ahead is touched: the machine's is not ours alone. */
    if (knob == HAK_KNOB_prefault_mode || knob == HAK_KNOB_metrics_ms) return;
    hak_knob_set((enum hak_knob_number)knob, value % 4 == 0   ? row->initial
                                             : value % 4 == 1 ? row->lowest
                                             : value % 4 == 2 ? highest
                                                              : between);
}

void inside_reset(void) {
    for (unsigned i = 0; i < HAK_KNOB_COUNT; i++) inside_set_knob(i, 0);
    inside_set_tight(0);
    hak_profile_stop();
}

void inside_set_tight(int is_tight) { hak_atomic_store(&hak_memory_is_tight, is_tight != 0, relaxed); }

void inside_profile(unsigned what, size_t interval) {
    if (what == 0) hak_profile_stop();
    else if (what == 1) (void)hak_profile_save("/dev/null");
    else (void)hak_profile_start(interval);
}

void inside_be_background(void) { hak_thread_refuse_heap(); }

void inside_background_step(unsigned part) {
    struct hak_drain drain = {.first_taken = NULL};
    switch (part % 8) {
    case 0:
    case 1:
        hak_heap_drain_others(NULL, &drain);
        hak_heap_end_drains(&drain);
        break;
    case 2:
    case 3: hak_purge_sweep(0, UINT32_MAX); break;
    case 4: hak_purge_sweep(64 << 10, 2); break;
    case 5: hak_decay_end_period(0); break;
    case 6: hak_region_purge_units(UINT64_MAX, true); break;
    default: hak_mapping_cache_age(); break;
    }
}

#else

void inside_look(struct inside_sums *sums) { *sums = (struct inside_sums){0}; }
size_t inside_counted_bytes(const void *block, size_t usable) { return (void)block, usable; }
void inside_set_knob(unsigned knob, unsigned value) { (void)knob, (void)value; }
void inside_reset(void) {}
void inside_set_tight(int is_tight) { (void)is_tight; }
void inside_profile(unsigned what, size_t interval) { (void)what, (void)interval; }
void inside_be_background(void) {}
void inside_background_step(unsigned part) { (void)part; }

#endif
