#include "pool/pool.h"

#include "base/check.h"
#include "base/knobs.h"
#include "pool/canary.h"
#include "pool/held.h"
#include "pool/partial_set.h"
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

static uint32_t number_of(const struct hak_heap *heap) { return heap == NULL ? HAK_NO_HEAP : heap->number; }

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

/* ---- Putting blocks back ----------------------------------------------------------------------------------------- */

/* Blocks of one word of a slab's bits, gathered so that one atomic operation frees them all. */
struct put_group {
    uintptr_t key; /* the address of the slab's record plus the number of the word; 0 for none */
    uint64_t mask;
};

enum { PUT_GROUPS = 64, PUT_BUCKETS = 32 };

/* Records lie at multiples of their size, so that a key tells both. */
_Static_assert(HAK_SLAB_MAX_WORDS <= sizeof(struct hak_slab), "a word's number is less than the alignment of records");
static struct hak_slab *slab_of_group(const struct put_group *group) {
    return (struct hak_slab *)hak_align_down(group->key, sizeof(struct hak_slab));
}
static uint32_t word_of_group(const struct put_group *group) { return group->key % sizeof(struct hak_slab); }

/* Some word of the slab's bits is, or may be, all set: `state` is what was seen then. Gives the slab up if it is empty
 * and can be had. */
static void retire_if_empty(struct hak_heap *heap, struct hak_slab *slab, HAK_ATOMIC(uint64_t) *bits,
                            uint32_t size_class, uint32_t state) {
    if (heap != NULL && state == hak_slab_state(HAK_SLAB_HELD, heap->number)) {
        /* Ours, and nobody else can change that. The last one of the class stays: it will be wanted again. */
        if (heap->partial[size_class].count <= 1) return;
        if (!hak_slab_is_empty(slab) || !hak_slab_claim_all(slab)) return;
        hak_heap_unlink(heap, slab);
        hak_pool_retire(heap, slab);
    } else if (state == HAK_SLAB_POOLED) {
        hak_pool_retire_if_empty(heap, slab, bits, size_class);
    }
}

static HAK_COLD void report_double_free(const struct put_group *group, uint32_t size_class, uint64_t free_already) {
    size_t index = word_of_group(group) * 64 + hak_lowest_bit(free_already),
           bytes = hak_size_classes[size_class].block_bytes;
    hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", (void *)(slab_of_group(group)->start + index * bytes), 0, bytes);
}

/* `keeper`: the number of the heap if it may hold what it finds to be its own. */
static void put_group(struct hak_heap *heap, uint32_t size_class, const struct put_group *group, uint32_t keeper) {
    struct hak_slab *slab = slab_of_group(group);
    uint32_t index = word_of_group(group);
    hak_hand_note(slab);
    /* All its blocks were free: those of an earlier group of the same word completed it. */
    if (HAK_UNLIKELY(hak_atomic_load(&slab->state, relaxed) == HAK_SLAB_NONE))
        report_double_free(group, size_class, group->mask);
    HAK_ATOMIC(uint64_t) *bits = slab->bits; /* before the blocks are given away: afterwards the record may change */
    uint64_t before = hak_slab_set_bits(slab, index, group->mask);
    if (HAK_UNLIKELY((before & group->mask) != 0)) report_double_free(group, size_class, before & group->mask);
    uint32_t state;
    bool taken_over = hak_slab_take_over_full(slab, keeper, &state);
    if (heap == NULL || state >> 2 != heap->number) HAK_COUNT(heap, remote_frees, hak_bit_count(group->mask));
    if (HAK_UNLIKELY(taken_over)) {
        if (keeper == HAK_NO_HEAP || state != hak_slab_state(HAK_SLAB_FULL, keeper)) {
            HAK_COUNT(heap, slabs_pooled, 1);
            hak_pool_share(heap, slab);
            return;
        }
        if (!hak_heap_hold(heap, slab)) return;
        state = hak_slab_state(HAK_SLAB_HELD, keeper);
    }
    /* A word of ours may be complete together with claimed blocks. */
    uint64_t word = before | group->mask;
    if (state == hak_slab_state(HAK_SLAB_HELD, number_of(heap))) {
        hak_slab_scan_from(slab, index);
        uint64_t claimed = hak_slab_claimed_in(slab, slab->block_count, index);
        if (HAK_UNLIKELY((claimed & group->mask) != 0)) report_double_free(group, size_class, claimed & group->mask);
        word |= claimed;
    }
    if (word == hak_slab_word_mask(hak_size_classes[size_class].block_count, index))
        retire_if_empty(heap, slab, bits, size_class, state);
}

/* The record of the slab of a block that is said to be of the class, and where the slab starts. */
HAK_INLINE struct hak_slab *slab_of(const void *block, uint32_t size_class, uint32_t unit_count, uintptr_t *start) {
    uintptr_t address = (uintptr_t)block;
    struct hak_range *range = hak_region_range(0);
    /* A further range may lie near the first one. */
    if (HAK_UNLIKELY((address - range->start) >> HAK_UNIT_SHIFT >= hak_atomic_load(&hak_window.units, relaxed))) {
        range = hak_region_range_of(address);
        if (range == NULL) hak_misuse(HAK_MISUSE_FOREIGN_POINTER, "free", block, 0, 0);
    }
    uintptr_t unit = (address - range->start) >> HAK_UNIT_SHIFT;
    /* A block freed twice may have left its slab for good, and the slab its class. */
    if (HAK_UNLIKELY(hak_page_map_class(range, unit) != size_class))
        hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", block, 0, hak_size_classes[size_class].block_bytes);
    unit &= ~((uintptr_t)unit_count - 1);
    *start = range->start + (unit << HAK_UNIT_SHIFT);
    return &range->slabs[unit];
}

bool hak_pool_has_free(const void *block, uint32_t size_class) {
    const struct hak_size_class *facts = &hak_size_classes[size_class];
    uintptr_t start;
    const struct hak_slab *slab = slab_of(block, size_class, facts->unit_count, &start);
    uint32_t index = hak_block_index((uint32_t)((uintptr_t)block - start), facts->reciprocal);
    return index < facts->block_count && (hak_atomic_load(&slab->bits[index / 64], relaxed) >> index % 64 & 1) != 0;
}

uint32_t hak_pool_state_of(const void *block, uint32_t size_class) {
    uintptr_t start;
    const struct hak_slab *slab = slab_of(block, size_class, hak_size_classes[size_class].unit_count, &start);
    return hak_atomic_load(&slab->state, relaxed);
}

bool hak_pool_has_claimed(const struct hak_place *place) {
    const struct hak_size_class *facts = &hak_size_classes[place->size_class];
    uint32_t index = hak_block_index((uint32_t)(place->start - place->slab->start), facts->reciprocal);
    return (hak_slab_claimed_in(place->slab, facts->block_count, index / 64) >> index % 64 & 1) != 0;
}

/* How many of `blocks`, at most `limit`, follow each other at a distance of `step` bytes, the first at `expected`. */
HAK_INLINE uint32_t count_steps(void *const *blocks, uint32_t limit, uintptr_t expected, uintptr_t step) {
    enum { PAIRS = 8 }; /* of addresses, compared in a turn */
    uint32_t count = 0;
    hak_address_pair two = {2 * step, 2 * step}, stride = PAIRS * two, pairs[PAIRS] = {{expected, expected + step}};
#pragma GCC unroll 8
    for (uint32_t i = 1; i < PAIRS; i++) pairs[i] = pairs[i - 1] + two;
    for (; count + 2 * PAIRS <= limit; count += 2 * PAIRS) {
        const hak_address_pair *next = (const hak_address_pair *)(const void *)(blocks + count);
        hak_address_pair difference = next[0] ^ pairs[0];
#pragma GCC unroll 8
        for (uint32_t i = 1; i < PAIRS; i++) difference |= next[i] ^ pairs[i];
        if ((difference[0] | difference[1]) != 0) break;
#pragma GCC unroll 8
        for (uint32_t i = 0; i < PAIRS; i++) pairs[i] += stride;
    }
    for (expected += count * step; count < limit && (uintptr_t)blocks[count] == expected; count++) expected += step;
    return count;
}

/* The first of `count` blocks, 2 at least, is the one of bit `index` % 64 in its word. How many there are of it and of
 * neighbours in the word that follow: upwards, or, when the result is negative, downwards. A word of blocks is whole
 * turns of count_steps. */
static __attribute__((noinline)) int32_t count_neighbours(void *const *blocks, uint32_t count, uint32_t index,
                                                          const struct hak_size_class *facts) {
    uintptr_t first = (uintptr_t)blocks[0], step = facts->block_bytes;
    uint32_t down = index % 64 + 1, up = 65 - down, to_end = facts->block_count - index;
    if (up > to_end) up = to_end;
    if ((uintptr_t)blocks[1] > first) return (int32_t)count_steps(blocks, count < up ? count : up, first, step);
    return -(int32_t)count_steps(blocks, count < down ? count : down, first, -step);
}

/* Gathers first and frees then. Blocks that come in any order cost no branch that can't be predicted; those that were
 * handed out together often come back together, up or down, and then cost a comparison each. Returns how many of
 * `count` it has put: all, or those of PUT_GROUPS words. */
static uint32_t put_batch(struct hak_heap *heap, uint32_t size_class, void *const *blocks, uint32_t count) {
    const struct hak_size_class *facts = &hak_size_classes[size_class];
    const uintptr_t block_bytes = facts->block_bytes, slab_bytes = facts->block_count * block_bytes;
    struct put_group groups[PUT_GROUPS + 1];
    uint8_t latest[PUT_BUCKETS] = {0}; /* of the groups whose keys have this hash */
    uint32_t group_count = 0, i = 0;
    groups[0].key = 0;
    for (; i < count && group_count < PUT_GROUPS; i++) {
        uintptr_t start, slab = (uintptr_t)slab_of(blocks[i], size_class, facts->unit_count, &start);
        uintptr_t offset = (uintptr_t)blocks[i] - start;
        uint32_t index = hak_block_index((uint32_t)offset, facts->reciprocal);
        if (HAK_UNLIKELY(index * block_bytes != offset || offset >= slab_bytes))
            hak_misuse(HAK_MISUSE_INTERIOR_POINTER, "free", blocks[i], offset - index * block_bytes, block_bytes);
        uintptr_t key = slab + index / 64;
        uint8_t *bucket = &latest[(key / sizeof(struct hak_slab) * 5 + key) % PUT_BUCKETS];
        if (groups[*bucket].key != key) {
            __builtin_prefetch(&((const struct hak_slab *)slab)->bits);
            *bucket = (uint8_t)++group_count;
            groups[group_count] = (struct put_group){.key = key, .mask = 0};
        }
        struct put_group *group = &groups[*bucket];
        uint64_t mask = (uint64_t)1 << index % 64;
        if (i + 1 < count) {
            uintptr_t distance = (uintptr_t)blocks[i + 1] - (uintptr_t)blocks[i];
            if (distance == block_bytes || distance == -block_bytes) {
                int32_t run = count_neighbours(blocks + i, count - i, index, facts);
                uint32_t length = run < 0 ? (uint32_t)-run : (uint32_t)run;
                mask = hak_low_bits(length) << (run < 0 ? index % 64 + 1 - length : index % 64);
                i += length - 1;
            }
        }
        if (HAK_UNLIKELY((group->mask & mask) != 0)) report_double_free(group, size_class, group->mask & mask);
        group->mask |= mask;
    }
    uint32_t keeper = hak_heaps_are_many() ? HAK_NO_HEAP : number_of(heap);
    for (uint32_t g = 1; g <= group_count; g++) put_group(heap, size_class, &groups[g], keeper);
    return i;
}

static void put_all(struct hak_heap *heap, uint32_t size_class, void *const *blocks, uint32_t count) {
    while (count > 0) {
        uint32_t put = put_batch(heap, size_class, blocks, count);
        blocks += put, count -= put;
    }
}

/* A slab that is full has memory in hand: the first block puts it into the pool. */
static HAK_COLD void put_without_heap(uint32_t size_class, void *const *blocks, uint32_t count) {
    struct hak_hand *outer = hak_in_hand_begin_without();
    put_all(NULL, size_class, blocks, count);
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
    put_all(heap, size_class, blocks, count);
    count_out(heap, size_class, -(int64_t)count);
    hak_shrink_count(heap, -bytes);
}
