#include "pool/sparing.h"

#include "base/counters.h"
#include "base/memory.h"
#include "pool/bin.h"
#include "pool/partial_set.h"
#include "pool/pool.h"
#include "region/allowance.h"

enum {
    SPARED_BYTES = 32 << 20, /* in slabs; of less there is little to copy */
    BYTES_PER_CALL = 256,    /* a sixteenth of a page */
    SPARSE_SHARE = 8,
    FREE_SHARE = 16,
    SPARSE_LOOKS = 32, /* at slabs, for one of them: a few microseconds */
};

void hak_sparing_begin(struct hak_heap *heap) {
    uint64_t bytes = hak_atomic_load(&hak_slab_bytes, relaxed), calls = bytes / BYTES_PER_CALL;
    if (bytes < SPARED_BYTES || hak_atomic_load(&hak_memory_is_tight, relaxed)) return;
    heap->sparing_calls = calls < UINT32_MAX ? (uint32_t)calls : UINT32_MAX;
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        heap->sparing_units[i] = UINT32_MAX;
        if (heap->slots[i].end == NULL) continue;
        hak_heap_close_bin(heap, i);
        hak_heap_keep_for_frees(heap, i);
    }
}

void *hak_sparing_take(struct hak_heap *heap, uint32_t size_class) {
    void *block;
    heap->sparing_calls--;
    if (hak_pool_take(heap, size_class, &block + 1, 1) == 0) {
        heap->sparing_calls = 0;
        return NULL;
    }
    HAK_COUNT(heap, refills, 1);
    HAK_COUNT(heap, refilled_blocks, 1);
    return block;
}

static struct hak_slab *find_sparse(struct hak_heap *heap, uint32_t size_class) {
    uint32_t count = hak_size_classes[size_class].block_count;
    for (uint32_t looks = 0; looks < SPARSE_LOOKS; looks++) {
        struct hak_slab *slab = hak_partial_set_take_below(size_class, &heap->sparing_units[size_class]);
        if (slab == NULL || hak_slab_count_bits(slab->bits, count) >= count / SPARSE_SHARE) return slab;
        hak_pool_share(heap, slab);
    }
    return NULL;
}

static bool may_grow(void) {
    return hak_allowance_free_in_slabs() < hak_atomic_load(&hak_slab_bytes, relaxed) / FREE_SHARE &&
           !hak_atomic_load(&hak_memory_is_tight, relaxed);
}

struct hak_slab *hak_sparing_choose(struct hak_heap *heap, uint32_t size_class) {
    struct hak_slab *slab = find_sparse(heap, size_class);
    return slab != NULL || may_grow() ? slab : hak_partial_set_take(size_class);
}
