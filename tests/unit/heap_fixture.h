/* For tests of the whole allocator over the fake OS: verified blocks, and the equations that hold at rest. Checks are made
 * with UNIT_CHECK, which ends the process: it also serves in children of a test. */
#ifndef HEAP_FIXTURE_H
#define HEAP_FIXTURE_H

#include "unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/knobs.h"
#include "fake_os.h"
#include "hakmem/hakmem.h"
#include "observe/stats.h"
#include "region/directory.h"
#include "region/mapping_cache.h"

#define UNIT_CHECK(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* A live block, filled with a pattern made of its seed. */
struct live_block {
    unsigned char *bytes;
    size_t size;
    unsigned char seed;
};

/* Large blocks are filled at both ends and here and there between. */
static inline size_t block_step(size_t i, size_t size) { return i < 256 || i + 256 >= size ? 1 : 30011; }

static inline void block_fill(struct live_block *block) {
    for (size_t i = 0; i < block->size; i += block_step(i, block->size))
        block->bytes[i] = (unsigned char)(block->seed + i);
}

/* The first `size` bytes of what block_fill wrote into a block of `filled_size`. */
static inline void block_check_part(const unsigned char *bytes, size_t size, size_t filled_size, unsigned char seed) {
    for (size_t i = 0; i < size; i += block_step(i, filled_size)) UNIT_CHECK(bytes[i] == (unsigned char)(seed + i));
}

static inline void block_check(const struct live_block *block) {
    block_check_part(block->bytes, block->size, block->size, block->seed);
    UNIT_CHECK(hak_owns(block->bytes) && hak_owns(block->bytes + block->size - 1));
    UNIT_CHECK(hak_malloc_usable_size(block->bytes) >= block->size);
}

static inline void add_mapping_bytes(uintptr_t start, size_t bytes, void *context) {
    (void)start;
    *(uint64_t *)context += bytes;
}

/* SuperSlabs that are mapped: the others are holes. */
static inline uint64_t count_mapped(void) {
    uint64_t mapped = 0;
    const struct hak_range *range;
    for (uint32_t i = 0; i < HAK_RANGE_LIMIT && (range = hak_region_range(i)) != NULL; i++)
        for (uint32_t j = 0; j < hak_region_super_slabs(range); j++)
            mapped += range->groups[j / HAK_SUPER_SLABS_PER_GROUP].mapped >> j % HAK_SUPER_SLABS_PER_GROUP & 1;
    return mapped;
}

/* T1 to T4 of observe/stats.h. */
static inline void check_equations(struct hak_snapshot *snapshot) {
    hak_snapshot_take(snapshot);
    uint64_t live = 0, cached = 0, mapping_bytes = 0;
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        const struct hak_class_stats *stats = &snapshot->classes[i];
        UNIT_CHECK(stats->live_blocks + stats->cached_blocks + stats->free_blocks ==
                   stats->slabs * hak_size_classes[i].block_count); /* T1 */
        live += stats->live_blocks;
        cached += stats->cached_blocks;
    }
    hak_directory_for_each_mapping(add_mapping_bytes, &mapping_bytes);
    const struct hak_statistics *total = &snapshot->total;
    UNIT_CHECK(snapshot->refilled_blocks - snapshot->flushed_blocks == live + cached); /* T2 */
    UNIT_CHECK(snapshot->large_allocs - snapshot->large_frees == total->large_blocks); /* T3 */
    UNIT_CHECK(count_mapped() <= total->super_slabs);
    UNIT_CHECK(count_mapped() * HAK_SUPER_SLAB_BYTES ==
               total->committed_bytes - mapping_bytes - hak_mapping_cache_bytes()); /* T4 */
    UNIT_CHECK(total->live_blocks == live + total->large_blocks);
    UNIT_CHECK(total->cached_blocks == cached);
    UNIT_CHECK(total->mapped_bytes == fake_os.mapped_bytes);
}

#endif
