#include "pool/pool.h"

#include "base/check.h"
#include "base/knobs.h"
#include "pool/canary.h"
#include "pool/held.h"
#include "pool/partial_set.h"
#include "pool/put.h"
#include "pool/quarantine.h"
#include "pool/ration.h"
#include "pool/shrink.h"
#include "os/os.h"
#include "region/decay.h"
#include "region/heap_count.h"
#include "region/in_hand.h"
#include "region/page_policy.h"

HAK_WRITTEN_BY_MANY HAK_ATOMIC(int64_t) hak_pool_out_blocks[HAK_SMALL_CLASS_COUNT + 1];
HAK_WRITTEN_BY_MANY HAK_ATOMIC(int32_t) hak_pool_slabs[HAK_SMALL_CLASS_COUNT + 1];

/* Nobody asks for other classes, and threads that are born and end would wait for each other here. */
static void count_slabs(uint32_t size_class, int32_t by) {
    bool is_in_group = size_class > HAK_SINGLE_CLASS_COUNT && size_class <= HAK_SMALL_CLASS_COUNT;
    if (!is_in_group || hak_widest_of_group(size_class) != size_class) return;
    hak_atomic_fetch_add(&hak_pool_slabs[size_class], by, relaxed);
}

/* ---- Acquiring and retiring slabs -------------------------------------------------------------------------------- */

enum {
    AHEAD_AFTER = 256,    /* slabs acquired: in a heap of 16 MiB, units taken ahead are few */
    FEW_DIRTY_UNITS = 16, /* 1 MiB */
    NOT_SMALL = 8,        /* SuperSlabs a heap: 16 MiB */
};

/* Units for a slab from the region. Single ones are taken several at a time once the heap has acquired a few: taking is
 * an atomic operation, and those wait for the program's writes. The others are kept as empty slabs. Not where heaps are
 * many. In the secure build they are zero (C2 of pool/canary.h). */
static struct hak_slab *units_for_slab(struct hak_heap *heap, uint32_t units, enum hak_unit_source source) {
    if (heap != NULL && units == 1 && heap->acquired_count >= AHEAD_AFTER && !hak_heaps_are_many() &&
        source != HAK_UNITS_NEW_SUPER) {
        struct hak_slab *first = hak_region_acquire(HAK_EMPTY_SLABS, 1, source, HAK_SECURE);
        if (first != NULL) {
            for (uint32_t i = HAK_EMPTY_SLABS; --i > 0;) {
                struct hak_slab *slab = first + i;
                hak_atomic_store(&slab->range, hak_atomic_load(&first->range, relaxed), relaxed);
                hak_heap_keep_unit(heap, slab);
            }
            return first;
        }
    }
    return hak_region_acquire(units, units, source, HAK_SECURE);
}

/* The heap, by its part of all SuperSlabs. */
static bool is_small(void) {
    return hak_region_super_slabs(hak_region_range(0)) < NOT_SMALL * hak_atomic_load(&hak_heaps_about, relaxed);
}

/* Units that were used before: the heap has kept one, or they are the pool's. NULL stays NULL. */
static struct hak_slab *own_unit(struct hak_heap *heap, struct hak_slab *slab) {
    if (slab != NULL) HAK_COUNT(heap, slabs_own_empty, 1);
    return slab;
}
static struct hak_slab *units_of_pool(struct hak_heap *heap, struct hak_slab *slab) {
    if (slab != NULL) HAK_COUNT(heap, slabs_pool_empty, 1);
    return slab;
}

/* Units that were a slab of the class: a small heap, whose slabs are hardly filled, touches the same pages of them
 * again. Other units are touched where the slab before wasn't, until all of the heap has memory. */
static struct hak_slab *former_units(struct hak_heap *heap, uint32_t size_class) {
    if (heap == NULL || !is_small()) return NULL;
    bool is_single = hak_size_classes[size_class].unit_count == 1;
    struct hak_slab *slab = own_unit(heap, is_single ? hak_heap_take_former(heap, size_class) : NULL);
    return slab != NULL ? slab : units_of_pool(heap, hak_region_acquire_former(size_class, HAK_SECURE));
}

/* A class of which the heap has had no slab may stay small, and would keep the memory of a whole dirty unit from
 * others: it gets a fresh one, of which it touches what it needs. Not when dirty ones abound. */
static struct hak_slab *units_for_first_slab(const struct hak_heap *heap, uint32_t size_class) {
    uint32_t units = hak_size_classes[size_class].unit_count;
    if (heap == NULL || heap->has_acquired[size_class]) return NULL;
    if (hak_atomic_load(&hak_dirty_units, relaxed) >= FEW_DIRTY_UNITS) return NULL;
    return hak_region_acquire(units, units, HAK_UNITS_FRESH, HAK_SECURE); /* some may have gone back lazily */
}

/* Units that were a slab before: their memory is there. */
static struct hak_slab *used_units(struct hak_heap *heap, uint32_t units) {
    struct hak_slab *slab = own_unit(heap, heap != NULL && units == 1 ? hak_heap_take_unit(heap) : NULL);
    return slab != NULL ? slab : units_of_pool(heap, units_for_slab(heap, units, HAK_UNITS_DIRTY));
}

static struct hak_slab *unused_units(struct hak_heap *heap, uint32_t size_class, uint32_t units) {
    struct hak_slab *slab = units_for_slab(heap, units, HAK_UNITS_FREE);
    /* Before the heap grows, what former phases and threads have kept serves this one: first what lies in classes that
     * have not missed since the heap last grew. One that grows little finds few of those, and gives up the others, too.
     * A small heap would soon want them back. */
    if (slab == NULL && heap != NULL) {
        for (int passes = is_small() ? 1 : 2; passes > 0; passes--) {
            hak_heap_give_up_idle(heap, size_class);
            hak_heap_take_kept_apart();
            if ((slab = used_units(heap, units)) != NULL) return slab;
        }
    }
    if (slab == NULL && (slab = units_for_slab(heap, units, HAK_UNITS_NEW_SUPER)) != NULL) {
        HAK_COUNT(heap, slabs_super, 1);
        return slab;
    }
    if (slab == NULL) slab = units_for_slab(heap, units, HAK_UNITS_LAST_RESORT);
    if (slab != NULL) HAK_COUNT(heap, slabs_fresh, 1);
    return slab;
}

static uint64_t bytes_of_slab(uint32_t size_class) {
    return (uint64_t)hak_size_classes[size_class].block_bytes * hak_size_classes[size_class].block_count;
}

/* Guards of the secure build: what lies behind a slab's blocks faults, if the kernel has guards within mappings. There
 * are some only where the page map shows a slab: a child of fork that finds units as nobody's can use them. */
static uintptr_t guard_behind(struct hak_slab *slab, uint32_t units) {
    uintptr_t start = hak_region_start_of(hak_region_range_of_record(slab), slab);
    return start + units * HAK_UNIT_BYTES - hak_slab_guard_bytes();
}

static void guard_slab(struct hak_slab *slab, uint32_t units) {
    size_t bytes = hak_slab_guard_bytes();
    if (bytes != 0) hak_page_policy_guard(hak_region_range_of_record(slab), guard_behind(slab, units), bytes);
}

/* False when the kernel refuses. */
static bool unguard_slab(struct hak_slab *slab, uint32_t units) {
    size_t bytes = hak_slab_guard_bytes();
    return bytes == 0 || hak_os_unguard((void *)guard_behind(slab, units), bytes);
}

/* A slab of the class with free blocks, which the caller has, in the state HELD by its heap, or POOLED without a heap.
 * NULL when none was found. */
static struct hak_slab *find_slab(struct hak_heap *heap, uint32_t size_class) {
    uint32_t units = hak_size_classes[size_class].unit_count;
    uint32_t state = heap == NULL ? HAK_SLAB_POOLED : hak_slab_state(HAK_SLAB_HELD, heap->number);
    struct hak_slab *slab = hak_partial_set_take(size_class);
    if (slab != NULL) {
        HAK_COUNT(heap, slabs_pool_partial, 1);
        /* Relaxed: we have it, and who takes it over later gets it by way of hak_slab_announce_full. */
        hak_atomic_store(&slab->state, state, relaxed);
        return slab;
    }
    slab = former_units(heap, size_class);
    if (slab == NULL && (slab = units_for_first_slab(heap, size_class)) != NULL) HAK_COUNT(heap, slabs_fresh, 1);
    if (slab == NULL && (slab = used_units(heap, units)) == NULL) slab = unused_units(heap, size_class, units);
    if (slab == NULL) return NULL;
    if (heap != NULL) {
        heap->acquired_count++;
        heap->has_acquired[size_class] = true;
    }
    count_slabs(size_class, 1);
    struct hak_range *range = hak_region_range_of_record(slab);
    hak_slab_initialize(slab, hak_region_start_of(range, slab), size_class,
                        range->bit_rows[hak_region_unit_of(range, slab)], state);
    hak_region_mark(slab, units, size_class);
    guard_slab(slab, units);
    hak_counter_add_shared(&hak_slab_bytes, bytes_of_slab(size_class));
    return slab;
}

/* Of a slab that is given up, whose holes went back before: what is left of it does, too, where nobody would do it
 * while the program sleeps. False when there are none, or it has memory still. */
static bool purge_retired(struct hak_slab *slab, uint32_t units) {
    uint32_t purged = hak_slab_forget_purged_pages(slab);
    if (HAK_LIKELY(purged == 0)) return false;
    size_t bytes = units * HAK_UNIT_BYTES;
    uintptr_t start = hak_region_start_of(hak_region_range_of_record(slab), slab);
    if (!hak_is_paid() && !hak_knob_is_highest(dirty_limit_bytes)) {
        hak_in_hand_begin();
        bool is_purged = hak_region_purge_pages(start, bytes);
        hak_in_hand_keep();
        hak_decay_gave(is_purged ? bytes - purged * hak_os_page_bytes() : 0);
        if (is_purged) return true;
    }
    hak_count_growth(purged);
    return false;
}

/* Of a slab whose guard the kernel doesn't take away all units but the last one are free. */
static HAK_COLD void give_up_guarded(struct hak_slab *slab, uint32_t units) {
    struct hak_slab *last = slab + units - 1;
    hak_slab_forget_purged_pages(slab);
    hak_atomic_store(&last->range, hak_atomic_load(&slab->range, relaxed), relaxed);
    hak_region_give_up_guarded(last);
    if (units > 1) hak_region_release(slab, units - 1);
}

void hak_pool_retire(struct hak_heap *heap, struct hak_slab *slab) {
    uint32_t size_class = hak_atomic_load(&slab->size_class, relaxed), units = hak_size_classes[size_class].unit_count;
    HAK_COUNT(heap, slabs_retired, 1);
    count_slabs(size_class, -1);
    hak_counter_add_shared(&hak_slab_bytes, -bytes_of_slab(size_class));
    bool is_open = unguard_slab(slab, units);
    hak_region_mark(slab, units, HAK_CLASS_NONE);
    hak_atomic_store(&slab->state, HAK_SLAB_NONE, relaxed);
    if (HAK_UNLIKELY(!is_open)) {
        give_up_guarded(slab, units);
        return;
    }
    if (HAK_UNLIKELY(purge_retired(slab, units))) {
        hak_region_note_given(slab, units);
        hak_region_release_fresh(slab, units);
        return;
    }
    if (heap != NULL && units == 1 && hak_heap_wants_unit(heap)) {
        hak_heap_keep_unit(heap, slab);
        return;
    }
    hak_region_release(slab, units);
    hak_decay_after_release(units);
}

void hak_pool_retire_if_empty(struct hak_heap *heap, struct hak_slab *slab, HAK_ATOMIC(uint64_t) *bits,
                              uint32_t size_class) {
    for (bool is_ours = false; !is_ours;) {
        /* S8: between what the caller did, or what was set again below, and the look. */
        hak_atomic_fence(seq_cst);
        if (!hak_slab_bits_all_set(bits, hak_size_classes[size_class].block_count)) return;
        hak_in_hand_begin(); /* all its blocks but the last one may be free for long */
        if (!hak_partial_set_remove(slab, size_class)) {
            hak_in_hand_keep();
            return;
        }
        is_ours = hak_slab_claim_all(slab);
        if (is_ours) hak_pool_retire(heap, slab);
        else hak_partial_set_add(slab);
        hak_in_hand_end();
    }
}

void hak_pool_share(struct hak_heap *heap, struct hak_slab *slab) {
    HAK_ATOMIC(uint64_t) *bits = slab->bits;
    uint32_t size_class = hak_atomic_load(&slab->size_class, relaxed);
    hak_atomic_store(&slab->state, HAK_SLAB_POOLED, relaxed); /* the partial set hands it on */
    hak_partial_set_add(slab);
    hak_pool_retire_if_empty(heap, slab, bits, size_class);
}

/* ---- Taking blocks ----------------------------------------------------------------------------------------------- */

/* Others do not find what the slab has left, until it is back in the pool. */
static uint32_t take_without_heap(uint32_t size_class, void **top, uint32_t want) {
    struct hak_search search = hak_search_begin();
    for (;;) {
        struct hak_hand *outer = hak_in_hand_begin_without();
        struct hak_slab *slab = find_slab(NULL, size_class);
        if (slab == NULL) {
            hak_in_hand_keep_without(outer);
            if (hak_search_again(&search)) continue;
            return 0;
        }
        uint32_t got = hak_slab_take(slab, top, want);
        hak_slab_unclaim(slab);
        if (got < want) {
            struct hak_full_slab full = hak_slab_announce_full(slab, HAK_NO_HEAP);
            /* S5: between the announcement and the second look. */
            hak_atomic_fence(seq_cst);
            if (hak_slab_take_back(&full, HAK_NO_HEAP, HAK_SLAB_POOLED)) hak_pool_share(NULL, slab);
        } else {
            hak_pool_share(NULL, slab);
        }
        hak_in_hand_end_without(outer);
        if (got > 0) return got;
    }
}

/* A slab that the heap holds, in its list: NULL when there is no memory. */
static struct hak_slab *acquire_slab(struct hak_heap *heap, uint32_t size_class) {
    struct hak_search search = hak_search_begin();
    struct hak_slab *slab;
    do slab = find_slab(heap, size_class);
    while (HAK_UNLIKELY(slab == NULL) && hak_search_again(&search));
    if (HAK_LIKELY(slab != NULL)) hak_heap_hold(heap, slab);
    else hak_heap_recheck_full(heap); /* one of its own, perhaps, into which another thread has freed */
    return heap->partial[size_class].first;
}

static uint32_t take_with_heap(struct hak_heap *heap, uint32_t size_class, void **top, uint32_t want) {
    uint32_t got = 0;
    for (;;) {
        struct hak_slab *slab = heap->partial[size_class].first;
        if (slab == NULL) {
            if (got > 0) return got;
            slab = acquire_slab(heap, size_class);
            if (slab == NULL) return 0;
        }
        got += hak_slab_take(slab, top - got, want - got);
        if (got == want) {
            if (HAK_UNLIKELY(hak_heaps_are_many())) hak_heap_share_slabs(heap, size_class);
            return got;
        }
        hak_heap_unlink(heap, slab);
        hak_heap_declare_full(heap, slab);
    }
}

static void count_out(struct hak_heap *heap, uint32_t size_class, int64_t count) {
    uint32_t plain = hak_plain_class(size_class);
    if (heap == NULL) hak_atomic_fetch_add(&hak_pool_out_blocks[plain], count, relaxed);
    else hak_owned_set(&heap->out_blocks[plain], hak_owned_get(&heap->out_blocks[plain]) + count);
}

static bool is_drained_now(const struct hak_heap *heap) { return hak_atomic_load(&heap->drained, relaxed) != 0; }

bool hak_pool_count_live(int64_t live[HAK_SMALL_CLASS_COUNT + 1]) {
    bool is_sure = true;
    for (uint32_t i = 0; i <= HAK_SMALL_CLASS_COUNT; i++) live[i] = hak_atomic_load(&hak_pool_out_blocks[i], relaxed);
    for (const struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        is_sure &= !is_drained_now(heap);
        for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
            size_t waiting = HAK_SECURE ? hak_quarantine_count(heap, i) : 0;
            live[i] += hak_owned_peek(&heap->out_blocks[i]);
            live[i] -= (int64_t)(hak_heap_cached(heap, i) + hak_ration_count(heap, i) + waiting);
        }
        is_sure &= !is_drained_now(heap);
    }
    return is_sure;
}

uint32_t hak_pool_take(struct hak_heap *heap, uint32_t size_class, void **top, uint32_t want) {
    int64_t block_bytes = hak_size_classes[size_class].block_bytes;
    if (HAK_UNLIKELY(heap == NULL)) {
        uint32_t got = take_without_heap(size_class, top, want);
        count_out(NULL, size_class, got);
        hak_shrink_add(NULL, got * block_bytes);
        return got;
    }
    uint32_t got = take_with_heap(heap, size_class, top, want);
    count_out(heap, size_class, got);
    hak_shrink_count(heap, got * block_bytes);
    return got;
}

/* ---- Questions --------------------------------------------------------------------------------------------------- */

bool hak_pool_has_free(const void *block, uint32_t size_class) {
    const struct hak_size_class *facts = &hak_size_classes[size_class];
    uintptr_t start;
    const struct hak_slab *slab = hak_put_slab_of(block, size_class, facts->unit_count, &start);
    uint32_t index = hak_block_index((uint32_t)((uintptr_t)block - start), facts->reciprocal);
    return index < facts->block_count && (hak_atomic_load(&slab->bits[index / 64], relaxed) >> index % 64 & 1) != 0;
}

uint32_t hak_pool_state_of(const void *block, uint32_t size_class) {
    uintptr_t start;
    const struct hak_slab *slab = hak_put_slab_of(block, size_class, hak_size_classes[size_class].unit_count, &start);
    return hak_atomic_load(&slab->state, relaxed);
}

bool hak_pool_has_claimed(const struct hak_place *place) {
    const struct hak_size_class *facts = &hak_size_classes[place->size_class];
    uint32_t index = hak_block_index((uint32_t)(place->start - place->slab->start), facts->reciprocal);
    return (hak_slab_claimed_in(place->slab, facts->block_count, index / 64) >> index % 64 & 1) != 0;
}

/* ---- Putting blocks back ----------------------------------------------------------------------------------------- */

/* A slab that is full has memory in hand: the first block puts it into the pool. */
static HAK_COLD void put_without_heap(uint32_t size_class, void *const *blocks, uint32_t count) {
    struct hak_hand *outer = hak_in_hand_begin_without();
    hak_put_blocks(NULL, size_class, blocks, count);
    hak_in_hand_end_without(outer);
}

void hak_pool_put(struct hak_heap *heap, uint32_t size_class, void *const *blocks, uint32_t count) {
    for (uint32_t i = 0; HAK_SECURE && i < count; i++) hak_canary_look(blocks[i], hak_usable_bytes(size_class));
    int64_t bytes = (int64_t)count * hak_size_classes[size_class].block_bytes;
    if (HAK_UNLIKELY(heap == NULL)) {
        put_without_heap(size_class, blocks, count);
        count_out(NULL, size_class, -(int64_t)count);
        hak_shrink_add(NULL, -bytes);
        return;
    }
    hak_put_blocks(heap, size_class, blocks, count);
    count_out(heap, size_class, -(int64_t)count);
    hak_shrink_count(heap, -bytes);
}
