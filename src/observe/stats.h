/* Statistics: a read-only view of the heap, taken by walking page map, bitmaps and bins. Costs nothing until asked for.
 *
 * At rest (no thread allocating or freeing):
 *   T1  per class: live + cached + free = slabs * blocks per slab
 *   T2  refilled_blocks - flushed_blocks = live + cached blocks of small classes
 *   T3  large_allocs - large_frees = live page runs and mappings, and blocks between guards
 *   T4  super_slabs * 2 MiB, but for those that are unmapped = committed bytes, apart from mappings in use and kept
 */
#ifndef HAK_OBSERVE_STATS_H
#define HAK_OBSERVE_STATS_H

#include "base/format.h"
#include "hakmem/hakmem.h"
#include "pool/heap.h"

struct hak_class_stats {
    uint64_t slabs, live_blocks, cached_blocks, free_blocks;
};

struct hak_snapshot {
    struct hak_statistics total;
    struct hak_class_stats classes[HAK_CLASS_LIMIT];
#define HAK_COUNTER(name, text) uint64_t name;
#include "base/counters.def"
#undef HAK_COUNTER
};

HAK_COLD void hak_snapshot_take(struct hak_snapshot *snapshot);

/* What is the same for all classes alone. Takes less of the stack. */
HAK_COLD void hak_statistics_take(struct hak_statistics *total);

/* Names of threads stand in files, which are read only `with_names`: a sandbox may kill for it. */
HAK_COLD void hak_snapshot_write_text(const struct hak_snapshot *snapshot, bool with_names, struct hak_text *out);
/* The object is left open: the caller may add members, and ends it. */
HAK_COLD void hak_snapshot_write_json(const struct hak_snapshot *snapshot, int process_id, struct hak_text *out);

/* Both end with a row for each thread that has a heap, as it is at this moment: of the first so many heaps, and how
 * many are left out. */
enum { HAK_THREAD_ROWS = 48 };

/* Text for either fits in so many bytes. */
enum { HAK_SNAPSHOT_TEXT_BYTES = 32 << 10 };

#endif
