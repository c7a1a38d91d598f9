#include "pool/pool.h"

#include "base/check.h"
#include "pool/partial_set.h"
#include "region/page_policy.h"

static uint32_t number_of(const struct hak_heap *heap) { return heap == NULL ? HAK_NO_HEAP : heap->number; }

/* ---- Acquiring and retiring slabs -------------------------------------------------------------------------------- */

enum {
    AHEAD_AFTER = 256,    /* slabs acquired: in a heap of 16 MiB, units taken ahead are few */
    FEW_DIRTY_UNITS = 16, /* 1 MiB */
};

/* Units for a slab from the region. Single ones are taken several at a time once the heap has acquired a few: taking is an
 * atomic operation, and those wait for the program's writes. The others are kept as empty slabs. */
static struct hak_slab *units_for_slab(struct hak_heap *heap, uint32_t units, enum hak_unit_source source) {
    if (heap != NULL && units == 1 && heap->acquired_count >= AHEAD_AFTER && source != HAK_UNITS_NEW_SUPER) {
        struct hak_slab *first = hak_region_acquire(HAK_EMPTY_SLABS, 1, source, false);
        if (first != NULL) {
            for (uint32_t i = HAK_EMPTY_SLABS; --i > 0;) {
                struct hak_slab *slab = first + i;
                hak_atomic_store(&slab->range, hak_atomic_load(&first->range, relaxed), relaxed);
                heap->empty_slabs[heap->empty_count++] = slab;
            }
            return first;
        }
    }
    return hak_region_acquire(units, units, source, false);
}

/* A class of which the heap has had no slab may stay small, and would keep the memory of a whole dirty unit from others: it gets
 * a fresh one, of which it touches what it needs. Not when dirty ones abound. */
static struct hak_slab *units_for_first_slab(const struct hak_heap *heap, uint32_t size_class) {
    uint32_t units = hak_size_classes[size_class].unit_count;
    if (heap == NULL || heap->has_acquired[size_class]) return NULL;
    if (hak_atomic_load(&hak_dirty_units, relaxed) >= FEW_DIRTY_UNITS) return NULL;
    return hak_region_acquire(units, units, HAK_UNITS_FRESH, false);
}

/* A slab of the class with free blocks, which the caller has, in the state HELD by its heap, or POOLED without a heap. */
static struct hak_slab *acquire_slab(struct hak_heap *heap, uint32_t size_class) {
    uint32_t units = hak_size_classes[size_class].unit_count;
    uint32_t state = heap == NULL ? HAK_SLAB_POOLED : hak_slab_state(HAK_SLAB_HELD, heap->number);
    struct hak_slab *slab = hak_partial_set_take(size_class);
    if (slab != NULL) {
        HAK_COUNT(heap, slabs_pool_partial, 1);
        /* Relaxed: we have it, and who takes it over later gets it by way of hak_slab_announce_full. */
        hak_atomic_store(&slab->state, state, relaxed);
        return slab;
    }
    if ((slab = units_for_first_slab(heap, size_class)) != NULL) {
        HAK_COUNT(heap, slabs_fresh, 1);
    } else if (heap != NULL && units == 1 && heap->empty_count > 0) {
        slab = heap->empty_slabs[--heap->empty_count];
        HAK_COUNT(heap, slabs_own_empty, 1);
    } else if ((slab = units_for_slab(heap, units, HAK_UNITS_DIRTY)) != NULL) {
        HAK_COUNT(heap, slabs_pool_empty, 1);
    } else if ((slab = units_for_slab(heap, units, HAK_UNITS_FREE)) != NULL) {
        HAK_COUNT(heap, slabs_fresh, 1);
    } else if ((slab = units_for_slab(heap, units, HAK_UNITS_NEW_SUPER)) != NULL) {
        HAK_COUNT(heap, slabs_super, 1);
    } else if ((slab = units_for_slab(heap, units, HAK_UNITS_LAST_RESORT)) != NULL) {
        HAK_COUNT(heap, slabs_fresh, 1);
    } else {
        return NULL;
    }
    if (heap != NULL) {
        heap->acquired_count++;
        heap->has_acquired[size_class] = true;
        if (heap->slab_counts[size_class] < UINT8_MAX) heap->slab_counts[size_class]++;
    }
    struct hak_range *range = hak_region_range_of_record(slab);
    hak_slab_initialize(slab, hak_region_start_of(range, slab), size_class,
                        range->bit_rows[hak_region_unit_of(range, slab)], state);
    hak_region_mark(slab, units, size_class, size_class);
    return slab;
}

void hak_pool_retire(struct hak_heap *heap, struct hak_slab *slab) {
    uint32_t size_class = hak_atomic_load(&slab->size_class, relaxed), units = hak_size_classes[size_class].unit_count;
    HAK_COUNT(heap, slabs_retired, 1);
    if (heap != NULL && heap->slab_counts[size_class] > 0) heap->slab_counts[size_class]--;
    hak_region_mark(slab, units, HAK_CLASS_NONE, HAK_CLASS_NONE);
    hak_atomic_store(&slab->state, HAK_SLAB_NONE, relaxed);
    if (heap != NULL && units == 1 && heap->empty_count < HAK_EMPTY_SLABS) {
        heap->empty_slabs[heap->empty_count++] = slab;
        return;
    }
    hak_region_release(slab, units);
    hak_page_policy_after_release();
}

/* ---- Taking blocks ------------------------------------------------------------------------------------------------ */

static uint32_t take_without_heap(uint32_t size_class, void **top, uint32_t want) {
    for (;;) {
        struct hak_slab *slab = acquire_slab(NULL, size_class);
        if (slab == NULL) return 0;
        uint32_t got = hak_slab_take(slab, top, want);
        hak_slab_unclaim(slab);
        if (got < want) {
            struct hak_full_slab full = hak_slab_announce_full(slab, HAK_NO_HEAP);
            /* S5: between the announcement and the second look. */
            hak_atomic_fence(seq_cst);
            if (hak_slab_take_back(&full, HAK_NO_HEAP, HAK_SLAB_POOLED)) hak_partial_set_add(slab);
        } else {
            hak_partial_set_add(slab);
        }
        if (got > 0) return got;
    }
}

uint32_t hak_pool_take(struct hak_heap *heap, uint32_t size_class, void **top, uint32_t want) {
    if (HAK_UNLIKELY(heap == NULL)) return take_without_heap(size_class, top, want);
    uint32_t got = 0;
    for (;;) {
        struct hak_slab *slab = heap->partial[size_class].first;
        if (slab == NULL) {
            if (got > 0) return got;
            slab = acquire_slab(heap, size_class);
            if (slab == NULL) return 0;
            hak_heap_hold(heap, slab);
        }
        got += hak_slab_take(slab, top - got, want - got);
        if (got == want) return got;
        hak_heap_unlink(heap, slab);
        hak_heap_declare_full(heap, slab);
    }
}

/* ---- Putting blocks back ------------------------------------------------------------------------------------------ */

/* Blocks of one word of a slab's bits, gathered so that one atomic operation frees them all. */
struct put_group {
    struct hak_slab *slab;
    uint64_t mask;
    uint32_t word;
};

enum { PUT_GROUPS = 8 }; /* a power of two */

/* Some word of the slab's bits is, or may be, all set: `state` is what was seen then. Gives the slab up if it is empty and
 * can be had. If it is not ours, the record may be another slab's by now: nothing is believed that is not claimed first. */
static void retire_if_empty(struct hak_heap *heap, struct hak_slab *slab, HAK_ATOMIC(uint64_t) *bits,
                            uint32_t size_class, uint32_t state) {
    uint32_t block_count = hak_size_classes[size_class].block_count;
    if (heap != NULL && state == hak_slab_state(HAK_SLAB_HELD, heap->number)) {
        /* Ours, and nobody else can change that. The last one of the class stays: it will be wanted again. */
        if (heap->partial[size_class].count <= 1) return;
        if (!hak_slab_bits_all_set(bits, block_count, slab->claimed_word, hak_owned_get(&slab->claimed))) return;
        hak_slab_unclaim(slab);
        if (!hak_slab_claim_all(slab)) return;
        hak_heap_unlink(heap, slab);
        hak_pool_retire(heap, slab);
    } else if (state == HAK_SLAB_POOLED && hak_slab_bits_all_set(bits, block_count, 0, 0) &&
               hak_partial_set_remove(slab, size_class)) {
        if (hak_slab_claim_all(slab)) hak_pool_retire(heap, slab);
        else hak_partial_set_add(slab);
    }
}

static HAK_COLD void report_double_free(const struct put_group *group, uint32_t size_class, uint64_t free_already) {
    size_t index = group->word * 64 + hak_lowest_bit(free_already), bytes = hak_size_classes[size_class].block_bytes;
    hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", (void *)(group->slab->start + index * bytes), 0, bytes);
}

static void put_group(struct hak_heap *heap, uint32_t size_class, const struct put_group *group) {
    struct hak_slab *slab = group->slab;
    HAK_ATOMIC(uint64_t) *bits = slab->bits; /* before the blocks are given away: afterwards the record may change */
    uint64_t before = hak_slab_set_bits(slab, group->word, group->mask);
    if (HAK_UNLIKELY((before & group->mask) != 0)) report_double_free(group, size_class, before & group->mask);
    uint32_t state;
    if (HAK_UNLIKELY(hak_slab_take_over_full(slab, number_of(heap), &state))) {
        bool ours = heap != NULL && state == hak_slab_state(HAK_SLAB_FULL, heap->number);
        state = ours ? hak_slab_state(HAK_SLAB_HELD, heap->number) : HAK_SLAB_POOLED;
        if (ours) {
            hak_heap_hold(heap, slab);
            if (hak_atomic_load(&slab->state, relaxed) != state) state = HAK_SLAB_POOLED; /* the list was full */
        } else {
            HAK_COUNT(heap, slabs_pooled, 1);
            hak_partial_set_add(slab);
        }
    }
    if (state >> 2 != number_of(heap) || heap == NULL) HAK_COUNT(heap, remote_frees, hak_bit_count(group->mask));
    /* A word of ours may be complete together with claimed blocks. */
    uint64_t word = before | group->mask;
    if (state == hak_slab_state(HAK_SLAB_HELD, number_of(heap))) {
        hak_slab_scan_from(slab, group->word);
        uint64_t claimed = slab->claimed_word == group->word ? hak_owned_get(&slab->claimed) : 0;
        if (HAK_UNLIKELY((claimed & group->mask) != 0)) report_double_free(group, size_class, claimed & group->mask);
        word |= claimed;
    }
    if (word == hak_slab_word_mask(hak_size_classes[size_class].block_count, group->word))
        retire_if_empty(heap, slab, bits, size_class, state);
}

/* The record of the slab of a block that is said to be of the class. */
static struct hak_slab *slab_of(const void *block, uint32_t size_class) {
    uintptr_t address = (uintptr_t)block;
    struct hak_range *range = hak_region_range(0);
    if (HAK_UNLIKELY(address - range->start >= (size_t)range->super_slab_limit * HAK_SUPER_SLAB_BYTES)) {
        range = hak_region_range_of(address);
        if (range == NULL) hak_misuse(HAK_MISUSE_FOREIGN_POINTER, "free", block, 0, 0);
    }
    uint32_t unit = (uint32_t)((address - range->start) >> HAK_UNIT_SHIFT);
    const struct hak_size_class *facts = &hak_size_classes[size_class];
    /* A block freed twice may have left its slab for good, and the slab its class. */
    if (HAK_UNLIKELY(hak_atomic_load(&range->page_map[unit], relaxed) != size_class))
        hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", block, 0, facts->block_bytes);
    return &range->slabs[unit & ~(facts->unit_count - 1)];
}

void hak_pool_put(struct hak_heap *heap, uint32_t size_class, void *const *blocks, uint32_t count) {
    const struct hak_size_class facts = hak_size_classes[size_class];
    const uintptr_t slab_bytes = (uintptr_t)facts.unit_count << HAK_UNIT_SHIFT;
    struct put_group groups[PUT_GROUPS] = {{NULL, 0, 0}}, *group = &groups[0];
    struct hak_slab *slab = NULL;
    uintptr_t slab_start = UINTPTR_MAX; /* no block is in this slab */
    for (uint32_t i = 0; i < count; i++) {
        uintptr_t offset = (uintptr_t)blocks[i] - slab_start;
        if (HAK_UNLIKELY(offset >= slab_bytes)) { /* not in the slab of the block before */
            slab = slab_of(blocks[i], size_class);
            slab_start = slab->start;
            offset = (uintptr_t)blocks[i] - slab_start;
        }
        uint32_t index = hak_block_index((uint32_t)offset, facts.reciprocal), word = index / 64;
        if (HAK_UNLIKELY(index * facts.block_bytes != offset || index >= facts.block_count))
            hak_misuse(HAK_MISUSE_INTERIOR_POINTER, "free", blocks[i], offset - index * facts.block_bytes,
                       facts.block_bytes);
        if (group->slab != slab || group->word != word) {
            group = &groups[((uintptr_t)slab / sizeof *slab + word) % PUT_GROUPS];
            if (group->slab != slab || group->word != word) {
                if (group->slab != NULL) put_group(heap, size_class, group);
                *group = (struct put_group){.slab = slab, .mask = 0, .word = word};
            }
        }
        uint64_t bit = (uint64_t)1 << (index % 64);
        if (HAK_UNLIKELY((group->mask & bit) != 0))
            hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", blocks[i], 0, facts.block_bytes);
        group->mask |= bit;
    }
    for (uint32_t i = 0; i < PUT_GROUPS; i++)
        if (groups[i].slab != NULL) put_group(heap, size_class, &groups[i]);
}
