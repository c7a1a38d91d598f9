#include "observe/stats.h"

#include <string.h>

#include "base/memory.h"
#include "os/inspect.h"
#include "os/os.h"
#include "pool/bin.h"
#include "region/directory.h"
#include "region/mapping_cache.h"

/* ---- Taking a snapshot ------------------------------------------------------------------------------------------- */

static void add_counters(struct hak_snapshot *snapshot, const struct hak_counters *counters) {
#define HAK_COUNTER(name, text) snapshot->name += hak_atomic_load(&counters->name, relaxed);
#include "base/counters.def"
#undef HAK_COUNTER
}

static void count_range(struct hak_snapshot *snapshot, struct hak_range *range) {
    uint32_t units = hak_region_super_slabs(range) * HAK_UNITS_PER_SUPER_SLAB;
    for (uint32_t unit = 0; unit < units;) {
        uint32_t size_class = hak_atomic_load(&range->page_map[unit], relaxed);
        struct hak_slab *record = &range->slabs[unit];
        if (size_class == HAK_CLASS_RUN_HEAD) {
            uint64_t run_pages = hak_atomic_load(&record->run_pages, relaxed);
            snapshot->total.large_blocks++;
            snapshot->total.large_bytes += run_pages * hak_os_page_bytes();
        }
        if (size_class == HAK_CLASS_NONE || size_class > HAK_SLAB_CLASS_COUNT) {
            unit++;
            continue;
        }
        uint32_t block_count = hak_size_classes[size_class].block_count;
        struct hak_class_stats *stats = &snapshot->classes[hak_plain_class(size_class)];
        stats->slabs++;
        stats->free_blocks += hak_slab_count_bits(hak_region_bits_of(range, record, size_class), block_count) +
                              hak_slab_count_claimed(record, block_count);
        unit += hak_size_classes[size_class].unit_count;
    }
}

static void add_mapping(uintptr_t start, size_t bytes, void *context) {
    struct hak_snapshot *snapshot = context;
    (void)start;
    snapshot->total.large_blocks++;
    snapshot->total.large_bytes += bytes;
    snapshot->total.committed_bytes += bytes;
}

void hak_snapshot_take(struct hak_snapshot *snapshot) {
    memset(snapshot, 0, sizeof *snapshot);
    struct hak_statistics *total = &snapshot->total;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && hak_region_range(i) != NULL; i++)
        count_range(snapshot, hak_region_range(i));
    add_counters(snapshot, &hak_shared_counters);
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        total->heaps++;
        add_counters(snapshot, &heap->counters);
        for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++)
            snapshot->classes[i].cached_blocks +=
                hak_heap_cached(heap, i) + hak_heap_cached(heap, hak_sampled_class(i));
    }
    struct hak_region_sums sums = hak_region_sums();
    total->super_slabs = sums.super_slabs;
    total->committed_bytes = sums.committed_bytes + hak_mapping_cache_bytes();
    total->metadata_bytes = sums.metadata_bytes + total->heaps * HAK_HEAP_BYTES;
    hak_directory_for_each_mapping(add_mapping, snapshot);
    total->live_blocks = total->large_blocks;
    total->live_bytes = total->large_bytes;
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        struct hak_class_stats *stats = &snapshot->classes[i];
        uint64_t capacity = stats->slabs * hak_size_classes[i].block_count, bytes = hak_size_classes[i].block_bytes;
        uint64_t not_live = stats->free_blocks + stats->cached_blocks;
        stats->live_blocks = capacity > not_live ? capacity - not_live : 0;
        total->slabs += stats->slabs;
        total->live_blocks += stats->live_blocks;
        total->live_bytes += stats->live_blocks * bytes;
        total->cached_blocks += stats->cached_blocks;
        total->cached_bytes += stats->cached_blocks * bytes;
        total->free_bytes += stats->free_blocks * bytes;
    }
    total->mapped_bytes = hak_atomic_load(&hak_os_counters.mapped_bytes, relaxed);
    total->purged_bytes = hak_atomic_load(&hak_os_counters.purged_bytes, relaxed);
    total->system_calls = hak_atomic_load(&hak_os_counters.system_calls, relaxed);
    total->remote_frees = snapshot->remote_frees;
    total->memory_limit_bytes = hak_atomic_load(&hak_memory_limit_bytes, relaxed);
    total->tight_count = hak_atomic_load(&hak_memory_tight_count, relaxed);
    uint64_t taken = snapshot->refilled_blocks + snapshot->large_allocs;
    snapshot->allocations = taken > total->cached_blocks ? taken - total->cached_blocks : 0;
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

/* What is told of a thread, beside its name. */
#define THREAD_COUNTERS(row) row(refills) row(flushes) row(remote_frees) row(large_allocs) row(large_frees)

static uint64_t cached_bytes_of(const struct hak_heap *heap) {
    uint64_t bytes = 0;
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++)
        bytes += hak_heap_cached(heap, i) * hak_size_classes[i].block_bytes;
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
    hak_text_add(out, "{\"hakmem\": \"%s\", \"pid\": %d, \"allocations\": %lu", hak_version(), process_id,
                 (unsigned long)snapshot->allocations);
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
