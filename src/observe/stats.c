#include "observe/stats.h"

#include <string.h>

#include "base/experiment.h"
#include "base/memory.h"
#include "os/inspect.h"
#include "os/os.h"
#include "pool/bin.h"
#include "pool/quarantine.h"
#include "pool/ration.h"
#include "region/directory.h"
#include "region/guard.h"
#include "region/mapping_cache.h"

/* ---- Counting ---------------------------------------------------------------------------------------------------- */

/* What is added up: little, for it lies on the stack of whoever asks. */
struct counted {
    struct hak_statistics *total;
    struct hak_class_stats *classes;                /* or NULL */
    int64_t live_blocks[HAK_SMALL_CLASS_COUNT + 1]; /* by class; below 0 where one changed meanwhile */
};

static void add_to_class(struct counted *counted, uint32_t size_class, uint64_t slabs, uint64_t free_blocks,
                         uint64_t cached_blocks) {
    uint64_t bytes = hak_size_classes[size_class].block_bytes;
    counted->total->slabs += slabs;
    counted->total->free_bytes += free_blocks * bytes;
    counted->total->cached_blocks += cached_blocks;
    counted->total->cached_bytes += cached_blocks * bytes;
    counted->live_blocks[size_class] +=
        (int64_t)(slabs * hak_size_classes[size_class].block_count - free_blocks - cached_blocks);
    if (counted->classes == NULL) return;
    counted->classes[size_class].slabs += slabs;
    counted->classes[size_class].free_blocks += free_blocks;
    counted->classes[size_class].cached_blocks += cached_blocks;
}

static void count_range(struct counted *counted, struct hak_range *range) {
    uint32_t units = hak_region_super_slabs(range) * HAK_UNITS_PER_SUPER_SLAB;
    for (uint32_t unit = 0; unit < units;) {
        uint32_t size_class = hak_page_map_class(range, unit);
        struct hak_slab *record = &range->slabs[unit];
        if (size_class == HAK_CLASS_RUN_HEAD) {
            uint64_t run_pages = hak_atomic_load(&record->run_pages, relaxed);
            counted->total->large_blocks++;
            counted->total->large_bytes += run_pages * hak_os_page_bytes();
        }
        if (size_class == HAK_CLASS_NONE || size_class > HAK_SLAB_CLASS_COUNT) {
            unit++;
            continue;
        }
        uint32_t block_count = hak_size_classes[size_class].block_count,
                 free_blocks = hak_slab_count_bits(hak_region_bits_of(range, record, size_class), block_count) +
                               hak_slab_count_claimed(record, block_count);
        add_to_class(counted, hak_plain_class(size_class), 1, free_blocks, 0);
        unit += hak_size_classes[size_class].unit_count;
    }
}

static void add_mapping(uintptr_t start, size_t bytes, void *context) {
    struct hak_statistics *total = context;
    (void)start;
    total->large_blocks++;
    total->large_bytes += bytes;
    total->committed_bytes += bytes;
}

static void count(struct counted *counted) {
    struct hak_statistics *total = counted->total;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && hak_region_range(i) != NULL; i++)
        count_range(counted, hak_region_range(i));
    total->remote_frees = hak_atomic_load(&hak_shared_counters.remote_frees, relaxed);
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        total->heaps++;
        total->remote_frees += hak_atomic_load(&heap->counters.remote_frees, relaxed);
        for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
            size_t waiting = HAK_SECURE ? hak_quarantine_count(heap, i) : 0;
            add_to_class(counted, i, 0, 0, hak_heap_cached(heap, i) + hak_ration_count(heap, i) + waiting);
        }
    }
    struct hak_region_sums region = hak_region_sums();
    total->super_slabs = region.super_slabs;
    total->committed_bytes = region.committed_bytes + hak_mapping_cache_bytes();
    total->metadata_bytes = region.metadata_bytes + total->heaps * HAK_HEAP_BYTES;
    hak_directory_for_each_mapping(add_mapping, total);
    total->large_blocks += hak_atomic_load(&hak_guard_live_blocks, relaxed);
    total->large_bytes += hak_atomic_load(&hak_guard_live_bytes, relaxed);
    total->live_blocks = total->large_blocks;
    total->live_bytes = total->large_bytes;
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        uint64_t live = counted->live_blocks[i] > 0 ? (uint64_t)counted->live_blocks[i] : 0;
        total->live_blocks += live;
        total->live_bytes += live * hak_size_classes[i].block_bytes;
        if (counted->classes != NULL) counted->classes[i].live_blocks = live;
    }
    total->mapped_bytes = hak_atomic_load(&hak_os_counters.mapped_bytes, relaxed);
    total->purged_bytes = hak_atomic_load(&hak_os_counters.purged_bytes, relaxed);
    total->system_calls = hak_atomic_load(&hak_os_counters.system_calls, relaxed);
    total->memory_limit_bytes = hak_atomic_load(&hak_memory_limit_bytes, relaxed);
    total->tight_count = hak_atomic_load(&hak_memory_tight_count, relaxed);
}

void hak_statistics_take(struct hak_statistics *total) {
    struct counted counted = {.total = total};
    memset(total, 0, sizeof *total);
    count(&counted);
}

static void add_counters(struct hak_snapshot *snapshot, const struct hak_counters *counters) {
#define HAK_COUNTER(name, text) snapshot->name += hak_atomic_load(&counters->name, relaxed);
#include "base/counters.def"
#undef HAK_COUNTER
}

void hak_snapshot_take(struct hak_snapshot *snapshot) {
    struct hak_statistics *total = &snapshot->total;
    struct counted counted = {.total = total, .classes = snapshot->classes};
    memset(snapshot, 0, sizeof *snapshot);
    count(&counted);
    add_counters(snapshot, &hak_shared_counters);
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next)
        add_counters(snapshot, &heap->counters);
    total->remote_frees = snapshot->remote_frees;
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

/* What is told of a thread, beside its name. */
#define THREAD_COUNTERS(row) row(refills) row(flushes) row(remote_frees) row(large_allocs) row(large_frees)

static uint64_t cached_bytes_of(const struct hak_heap *heap) {
    uint64_t bytes = 0;
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++)
        bytes += (hak_heap_cached(heap, i) + hak_ration_count(heap, i)) * hak_size_classes[i].block_bytes;
    return bytes;
}

/* Names are what programs make them: nothing is left in them that would end a string or a line. */
static void name_of(const struct hak_heap *heap, char name[HAK_THREAD_NAME_BYTES]) {
    hak_os_thread_name((int)hak_atomic_load(&heap->thread_id, relaxed), name);
    for (; *name != '\0'; name++)
        if (*name < ' ' || *name > '~' || *name == '"' || *name == '\\') *name = '?';
}

/* Calls `write_row` for the first HAK_THREAD_ROWS threads; returns how many more there are. */
static uint32_t for_each_thread(void (*write_row)(const struct hak_heap *heap, const char *name, struct hak_text *out),
                                bool with_names, struct hak_text *out) {
    uint32_t count = 0;
    char name[HAK_THREAD_NAME_BYTES] = "";
    for (const struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        if (hak_atomic_load(&heap->in_use, relaxed) != HAK_HEAP_IN_USE || count++ >= HAK_THREAD_ROWS) continue;
        if (with_names) name_of(heap, name);
        write_row(heap, name, out);
    }
    return count > HAK_THREAD_ROWS ? count - HAK_THREAD_ROWS : 0;
}

static void write_text_row(const struct hak_heap *heap, const char *name, struct hak_text *out) {
    hak_text_add(out, "  %8u %-15s %8u %12lu", hak_atomic_load(&heap->thread_id, relaxed), name, heap->number,
                 (unsigned long)cached_bytes_of(heap));
#define ROW(counter) hak_text_add(out, " %12lu", (unsigned long)hak_atomic_load(&heap->counters.counter, relaxed));
    THREAD_COUNTERS(ROW)
#undef ROW
    hak_text_add(out, "\n");
}

static void write_json_row(const struct hak_heap *heap, const char *name, struct hak_text *out) {
    bool is_first = out->start[out->length - 1] == '[';
    hak_text_add(out, "%s\n  {\"id\": %u, \"name\": \"%s\", \"heap\": %u, \"cached_bytes\": %lu", is_first ? "" : ",",
                 hak_atomic_load(&heap->thread_id, relaxed), name, heap->number, (unsigned long)cached_bytes_of(heap));
#define ROW(counter)                                                                                                   \
    hak_text_add(out, ", \"" #counter "\": %lu", (unsigned long)hak_atomic_load(&heap->counters.counter, relaxed));
    THREAD_COUNTERS(ROW)
#undef ROW
    hak_text_add(out, "}");
}

/* ---- Writing it -------------------------------------------------------------------------------------------------- */

void hak_snapshot_write_text(const struct hak_snapshot *snapshot, bool with_names, struct hak_text *out) {
    hak_text_add(out, "hakmem %s statistics\n", hak_version());
    if (hak_experiment.name[0] != '\0')
        hak_text_add(out, "  %-20s %16s  arm of the host in the experiment %s\n", "experiment", hak_experiment_arm(),
                     hak_experiment.name);
#define HAK_TOTAL(field, kind, text) hak_text_add(out, "  %-20s %16lu\n", #field, (unsigned long)snapshot->total.field);
#include "observe/totals.def"
#undef HAK_TOTAL
#define HAK_COUNTER(name, text) hak_text_add(out, "  %-20s %16lu  %s\n", #name, (unsigned long)snapshot->name, text);
#include "base/counters.def"
#undef HAK_COUNTER
    hak_text_add(out, "  %8s %8s %12s %12s %12s\n", "class", "slabs", "live", "cached", "free");
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        const struct hak_class_stats *stats = &snapshot->classes[i];
        if (stats->slabs == 0) continue;
        hak_text_add(out, "  %8u %8lu %12lu %12lu %12lu\n", hak_size_classes[i].block_bytes,
                     (unsigned long)stats->slabs, (unsigned long)stats->live_blocks,
                     (unsigned long)stats->cached_blocks, (unsigned long)stats->free_blocks);
    }
    hak_text_add(out, "  %8s %-15s %8s %12s", "thread", "name", "heap", "cached bytes");
#define ROW(counter) hak_text_add(out, " %12s", #counter);
    THREAD_COUNTERS(ROW)
#undef ROW
    hak_text_add(out, "\n");
    uint32_t left_out = for_each_thread(write_text_row, with_names, out);
    if (left_out > 0) hak_text_add(out, "  and %u threads more\n", left_out);
}

void hak_snapshot_write_json(const struct hak_snapshot *snapshot, int process_id, struct hak_text *out) {
    hak_text_add(out, "{\"hakmem\": \"%s\", \"pid\": %d", hak_version(), process_id);
    if (hak_experiment.name[0] != '\0')
        hak_text_add(out, ",\n \"experiment\": {\"name\": \"%s\", \"arm\": \"%s\"}", hak_experiment.name,
                     hak_experiment_arm());
#define HAK_TOTAL(field, kind, text) hak_text_add(out, ",\n \"%s\": %lu", #field, (unsigned long)snapshot->total.field);
#include "observe/totals.def"
#undef HAK_TOTAL
#define HAK_COUNTER(name, text) hak_text_add(out, ",\n \"%s\": %lu", #name, (unsigned long)snapshot->name);
#include "base/counters.def"
#undef HAK_COUNTER
    hak_text_add(out, ",\n \"classes\": [");
    const char *separator = "";
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        const struct hak_class_stats *stats = &snapshot->classes[i];
        if (stats->slabs == 0) continue;
        hak_text_add(out, "%s\n  {\"block_bytes\": %u, \"slabs\": %lu, \"live\": %lu, \"cached\": %lu, \"free\": %lu}",
                     separator, hak_size_classes[i].block_bytes, (unsigned long)stats->slabs,
                     (unsigned long)stats->live_blocks, (unsigned long)stats->cached_blocks,
                     (unsigned long)stats->free_blocks);
        separator = ",";
    }
    hak_text_add(out, "],\n \"threads\": [");
    uint32_t left_out = for_each_thread(write_json_row, true, out);
    hak_text_add(out, "],\n \"threads_left_out\": %u", left_out);
}
