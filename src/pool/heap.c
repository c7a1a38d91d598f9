#include "pool/heap.h"

#include <string.h>

#include "base/knobs.h"
#include "os/os.h"
#include "pool/partial_set.h"
#include "pool/pool.h"
#include "region/in_hand.h"
#include "region/large.h"
#include "region/mapping_cache.h"
#include "region/page_policy.h"

enum { BYTES_PER_MISS = 4096, TURNING_SHARES = 4, MOST_KEPT_HEAPS = 8, FEW_HEAPS = 4, HEAPS_PER_PROCESSOR = 2 };

HAK_WRITTEN_BY_MANY struct hak_counters hak_shared_counters;
HAK_ATOMIC(struct hak_heap *) hak_heaps;
HAK_WRITTEN_BY_MANY HAK_ATOMIC(uint32_t) hak_heaps_in_use; /* at the birth and end of each thread */
HAK_ATOMIC(uint32_t) hak_heaps_about;
HAK_ATOMIC(uint32_t) hak_few_heaps;
HAK_ATOMIC(uint32_t) hak_heaps_resting;

HAK_WRITTEN_BY_MANY static HAK_ATOMIC(uint32_t) heap_count; /* numbers given so far */

/* Blank heaps that nobody has, a stack: the topmost one, and in the bits that its address has no use for, how many were
 * put there so far. Who puts one there, and who takes one, looks at no other heap. */
HAK_WRITTEN_BY_MANY static HAK_ATOMIC(uint64_t) unused_heaps;

/* The same of those whose threads a fork has lost. The child puts them there while it is alone, and nobody later; and if
 * the fork came from a signal handler that has interrupted who takes one, it puts none there. So none is put back while
 * a thread takes it, and the number doesn't matter here. */
static HAK_ATOMIC(uint64_t) orphaned_heaps;
enum { HEAP_SHIFT = 12, HEAP_BITS = 57 - HEAP_SHIFT }; /* at the start of a page; below the largest address there is */

/* H7: where kept heaps are found. */
HAK_WRITTEN_BY_MANY static HAK_ATOMIC(struct hak_heap *) kept_heaps[MOST_KEPT_HEAPS];

HAK_ATOMIC(uint16_t) hak_class_slots[HAK_CLASS_LIMIT];
HAK_ATOMIC(uint64_t) hak_miss_sample_mask = UINT64_MAX;

_Static_assert(sizeof(struct hak_heap) < HAK_HEAP_BYTES / 4, "slots are the larger part");

/* ---- Making, acquiring, releasing -------------------------------------------------------------------------------- */

/* Empty bins without slots, which begin small again. */
static void blank_bins(struct hak_heap *heap) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        if (heap->slots[i].start == NULL) continue; /* H3 */
        hak_bin_set_top(&heap->bins[i], NULL);
        hak_signal_fence(); /* no handler finds a block above no base */
        hak_atomic_store(&heap->bins[i].base, NULL, relaxed);
        hak_atomic_store(&heap->bins[i].limit, NULL, relaxed);
        heap->growth_misses[i] = heap->growth_turns[i] = 0;
        heap->slot_room[i] = 0;
        heap->slots[i].end = NULL;
        hak_owned_set(&heap->slots[i].start, NULL);
    }
    heap->slots_next = (void **)(void *)(heap + 1);
    heap->slots_bytes = 0;
    heap->is_inherited = false;
}

/* What it knows of a thread that has left it. */
static void forget_thread(struct hak_heap *heap) {
    heap->acquired_count = 0;
    memset(heap->has_acquired, 0, sizeof heap->has_acquired);
    memset(heap->slab_counts, 0, sizeof heap->slab_counts);
    hak_atomic_store(&heap->drain_wanted, 0, relaxed);
}

void hak_heap_initialize(void) {
    uint32_t few = HEAPS_PER_PROCESSOR * hak_os_processor_count();
    hak_atomic_store(&hak_few_heaps, few > FEW_HEAPS ? few : FEW_HEAPS, relaxed);
}

static void change_in_use(int32_t by) {
    uint32_t count = hak_atomic_fetch_add(&hak_heaps_in_use, (uint32_t)by, relaxed) + (uint32_t)by,
             about = hak_atomic_load(&hak_heaps_about, relaxed),
             difference = about < count ? count - about : about - count;
    if (difference * 8 >= count) hak_atomic_store(&hak_heaps_about, count, relaxed);
}

void hak_heap_set_in_use(uint32_t count) {
    hak_atomic_store(&hak_heaps_in_use, count, relaxed);
    hak_atomic_store(&hak_heaps_about, count, relaxed);
}

void hak_heap_set_resting(uint32_t count) {
    hak_atomic_store(&hak_heaps_resting, count, relaxed);
    hak_atomic_store(&hak_heaps_about, hak_atomic_load(&hak_heaps_in_use, relaxed), relaxed);
}

static void make_blank(struct hak_heap *heap) {
    blank_bins(heap);
    forget_thread(heap);
}

static struct hak_heap *make_heap(void) {
    size_t bytes = hak_align_up(HAK_HEAP_BYTES, hak_os_page_bytes());
    struct hak_heap *heap = hak_os_map(bytes, hak_os_page_bytes());
    if (heap == NULL) return NULL;
    hak_os_refuse_huge_pages(heap, bytes); /* many of them would be one */
    heap->slots_end = (void **)(void *)((char *)heap + HAK_HEAP_BYTES);
    make_blank(heap);
    heap->number = hak_atomic_fetch_add(&heap_count, 1, relaxed) + 1;
    hak_atomic_store(&heap->in_use, HAK_HEAP_IN_USE, relaxed);
    struct hak_heap *first = hak_atomic_load(&hak_heaps, relaxed);
    do {
        heap->next = first;
        /* Release pairs with hak_heap_first: readers of the list see the record. */
    } while (!hak_atomic_cas(&hak_heaps, &first, heap, release, relaxed));
    return heap;
}

bool hak_heap_is_known(const void *heap) {
    const struct hak_heap *known = hak_heap_first();
    while (known != NULL && known != heap) known = known->next;
    return known != NULL;
}

static struct hak_heap *topmost(uint64_t stack) {
    return (struct hak_heap *)(uintptr_t)((stack & hak_low_bits(HEAP_BITS)) << HEAP_SHIFT);
}

static uint64_t with_topmost(uint64_t stack, const struct hak_heap *heap) {
    return (stack & ~hak_low_bits(HEAP_BITS)) | (uintptr_t)heap >> HEAP_SHIFT;
}

static void push(HAK_ATOMIC(uint64_t) *heaps, struct hak_heap *heap) {
    uint64_t stack = hak_atomic_load(heaps, relaxed), pushed;
    do {
        hak_atomic_store(&heap->below, topmost(stack), relaxed);
        pushed = with_topmost(stack, heap) + ((uint64_t)1 << HEAP_BITS);
        /* Release pairs with pop. */
    } while (!hak_atomic_cas(heaps, &stack, pushed, release, relaxed));
}

static struct hak_heap *pop(HAK_ATOMIC(uint64_t) *heaps) {
    for (;;) {
        /* Acquire pairs with push: what is below, and how the heap was left. */
        uint64_t stack = hak_atomic_load(heaps, acquire);
        struct hak_heap *heap = topmost(stack);
        if (heap == NULL) return NULL;
        const struct hak_heap *below = hak_atomic_load(&heap->below, relaxed);
        /* Where others have taken this one and put it back meanwhile, their number tells: what is there is what was
         * loaded. */
        if (hak_atomic_cas(heaps, &stack, with_topmost(stack, below), relaxed, relaxed)) return heap;
    }
}

/* For the next thread; the caller has made the heap blank. */
static void put_unused(struct hak_heap *heap) {
    hak_atomic_store(&heap->in_use, HAK_HEAP_UNUSED, relaxed);
    push(&unused_heaps, heap);
}

static struct hak_heap *take_unused(void) {
    struct hak_heap *heap = pop(&unused_heaps);
    if (heap != NULL) hak_atomic_store(&heap->in_use, HAK_HEAP_IN_USE, relaxed);
    return heap;
}

/* With the bins and slabs of the thread that it had. */
static struct hak_heap *take_orphaned(void) {
    struct hak_heap *heap = pop(&orphaned_heaps);
    if (heap == NULL) return NULL;
    forget_thread(heap);
    heap->is_inherited = true;
    hak_atomic_store(&heap->in_use, HAK_HEAP_IN_USE, relaxed);
    return heap;
}

/* The `i`th of those that may be kept, or NULL. */
static struct hak_heap *kept_heap(uint32_t i) {
    /* Acquire pairs with put_kept. */
    return hak_atomic_load(&kept_heaps[i], acquire);
}

static uint32_t count_kept(void) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < MOST_KEPT_HEAPS; i++) count += hak_atomic_load(&kept_heaps[i], relaxed) != NULL;
    return count;
}

/* Before the heap is kept. False when as many are as may be. */
static bool put_kept(struct hak_heap *heap) {
    for (uint32_t i = 0; i < MOST_KEPT_HEAPS; i++) {
        struct hak_heap *nobody = NULL;
        /* Release pairs with kept_heap: the record is seen. */
        if (hak_atomic_cas(&kept_heaps[i], &nobody, heap, release, relaxed)) return true;
    }
    return false;
}

/* True when the heap is kept: then it is `in_use` from now on. The caller has it. */
static bool take_kept(struct hak_heap *heap, uint32_t in_use) {
    /* Acquire pairs with hak_heap_leave: nothing that is kept is touched before. */
    if (hak_atomic_load(&heap->in_use, acquire) != HAK_HEAP_KEPT) return false;
    hak_atomic_store(&heap->in_use, in_use, relaxed);
    for (uint32_t i = 0; i < MOST_KEPT_HEAPS; i++)
        if (hak_atomic_load(&kept_heaps[i], relaxed) == heap) hak_atomic_store(&kept_heaps[i], NULL, relaxed);
    return true;
}

static struct hak_heap *take_any_kept(void) {
    for (uint32_t i = 0; i < MOST_KEPT_HEAPS; i++) {
        struct hak_heap *heap = kept_heap(i);
        if (heap == NULL || !hak_heap_try_drain(heap)) continue;
        bool is_ours = take_kept(heap, HAK_HEAP_IN_USE);
        hak_heap_end_drain(heap);
        if (is_ours) return heap;
    }
    return NULL;
}

struct hak_heap *hak_heap_acquire(void) {
    /* First: in a child after fork it tells that a heap may have been in nobody's hands but the parent's. */
    change_in_use(1);
    struct hak_heap *heap = take_any_kept();
    if (heap == NULL) heap = take_orphaned();
    if (heap == NULL) heap = take_unused();
    if (heap == NULL) heap = make_heap();
    if (heap == NULL) change_in_use(-1);
    return heap;
}

void hak_heap_close_bin(struct hak_heap *heap, uint32_t size_class) {
    struct hak_bin *bin = &heap->bins[size_class];
    void **start = hak_owned_get(&heap->slots[size_class].start), **lowest = hak_heap_lowest(heap, size_class);
    if (start == NULL) return; /* H3 */
    hak_atomic_store(&bin->limit, NULL, relaxed);
    hak_atomic_store(&bin->base, heap->slots_end, relaxed); /* no slot is above */
    hak_signal_fence();                                     /* from here on no handler hits it */
    if (HAK_LIKELY(lowest == start)) return;
    void **top = hak_owned_get(&bin->top);
    size_t count = top > lowest ? (size_t)(top - lowest) : 0;
    memmove(start, lowest, count * sizeof(void *));
    hak_bin_set_top(bin, start + count);
}

void hak_heap_open_bin(struct hak_heap *heap, uint32_t size_class) {
    const struct hak_slots *slots = &heap->slots[size_class];
    hak_signal_fence(); /* a handler that hits finds the bin closed, or whole */
    hak_atomic_store(&heap->bins[size_class].base, hak_owned_get(&slots->start), relaxed);
    hak_atomic_store(&heap->bins[size_class].limit, slots->end, relaxed);
}

void hak_heap_keep_for_frees(struct hak_heap *heap, uint32_t size_class) {
    hak_signal_fence(); /* as above */
    hak_atomic_store(&heap->bins[size_class].base, heap->slots_end, relaxed);
    hak_atomic_store(&heap->bins[size_class].limit, heap->slots[size_class].end, relaxed);
}

/* Leaves a bin open, for frees only, drained or closed, as it was. */
static void flush_bin(struct hak_heap *heap, uint32_t size_class) {
    struct hak_bin *bin = &heap->bins[size_class];
    if (hak_heap_cached(heap, size_class) == 0) return;
    void **base = hak_atomic_load(&bin->base, relaxed), **limit = hak_atomic_load(&bin->limit, relaxed);
    hak_heap_close_bin(heap, size_class);
    void **start = hak_owned_get(&heap->slots[size_class].start);
    uint32_t count = (uint32_t)hak_heap_cached(heap, size_class);
    hak_bin_set_top(bin, start);
    hak_pool_put(heap, size_class, start, count);
    HAK_COUNT(heap, flushed_blocks, count);
    hak_signal_fence(); /* a handler that hits finds the bin closed, or empty */
    if (base != heap->slots_end) hak_atomic_store(&bin->base, start, relaxed);
    hak_atomic_store(&bin->limit, limit, relaxed);
}

static void flush_bins(struct hak_heap *heap) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) flush_bin(heap, i);
}

static void give_up_empty_slabs(struct hak_heap *heap, uint32_t size_class) {
    struct hak_slab *next;
    for (struct hak_slab *slab = heap->partial[size_class].first; slab != NULL; slab = next) {
        next = slab->next;
        if (!hak_slab_is_empty(slab) || !hak_slab_claim_all(slab)) continue;
        hak_heap_unlink(heap, slab);
        hak_pool_retire(heap, slab);
    }
}

void hak_heap_give_up_idle(struct hak_heap *heap) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        bool is_idle = heap->miss_run[i] == 0;
        heap->miss_run[i] = 0;
        if (!is_idle) continue;
        flush_bin(heap, i);
        give_up_empty_slabs(heap, i);
    }
}

/* A slab of the heap that is in no list, and of which the heap has claimed nothing. */
static void give_to_pool(struct hak_heap *heap, struct hak_slab *slab) {
    HAK_COUNT(heap, slabs_pooled, 1);
    hak_pool_share(heap, slab);
}

/* To the region or the pool. */
static void give_up_slabs(struct hak_heap *heap, uint32_t size_class) {
    struct hak_slab *slab;
    while ((slab = heap->partial[size_class].first) != NULL) {
        hak_heap_unlink(heap, slab);
        if (hak_slab_is_empty(slab) && hak_slab_claim_all(slab)) {
            hak_pool_retire(heap, slab);
            continue;
        }
        hak_slab_unclaim(slab);
        give_to_pool(heap, slab);
    }
}

void hak_heap_share_slabs(struct hak_heap *heap, uint32_t size_class) {
    for (uint32_t i = 0; i < HAK_RECENT_CLASSES; i++)
        if (heap->recent_classes[i] == size_class) return;
    uint8_t *recent = &heap->recent_classes[heap->recent_next++ % HAK_RECENT_CLASSES];
    if (*recent != 0) give_up_slabs(heap, *recent);
    *recent = (uint8_t)size_class;
}

void hak_heap_give_up_slabs(struct hak_heap *heap) {
    hak_heap_recheck_full(heap);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) give_up_slabs(heap, i);
    struct hak_slab *unit;
    while ((unit = hak_heap_take_unit(heap)) != NULL) hak_region_release(unit, 1);
}

/* No free hits a bin any more, not even in a signal handler. */
static void shut_bins(struct hak_heap *heap) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) hak_atomic_store(&heap->bins[i].limit, NULL, relaxed);
    hak_signal_fence();
}

/* Blocks and slots. */
static void give_up_bins(struct hak_heap *heap) {
    shut_bins(heap);
    flush_bins(heap);
    blank_bins(heap);
}

void hak_heap_flush(struct hak_heap *heap) {
    if (hak_atomic_load(&hak_memory_is_tight, relaxed)) give_up_bins(heap);
    else flush_bins(heap);
    hak_heap_give_up_slabs(heap);
    hak_page_policy_after_release();
}

/* ---- H7: leaving, and draining ----------------------------------------------------------------------------------- */

bool hak_heap_try_drain(struct hak_heap *heap) {
    uint32_t nobody = 0;
    /* Acquire pairs with hak_heap_end_drain. */
    return hak_atomic_load(&heap->drained, relaxed) == 0 &&
           hak_atomic_cas(&heap->drained, &nobody, 1, acquire, relaxed);
}

/* Takes a heap apart that its thread has left; the caller has it. */
static void finish_release(struct hak_heap *heap) {
    /* Acquire pairs with hak_heap_release. */
    if (hak_atomic_load(&heap->in_use, acquire) != HAK_HEAP_LEFT) return;
    hak_in_hand_begin();
    hak_heap_flush(heap);
    hak_in_hand_end();
    make_blank(heap);
    put_unused(heap);
}

void hak_heap_end_drain(struct hak_heap *heap) {
    do {
        finish_release(heap);
        /* Release pairs with hak_heap_try_drain and hak_heap_begin_slow_path. */
        hak_atomic_store(&heap->drained, 0, release);
        /* Pairs with the fence in hak_heap_release: either we see that the heap was left, or who left it that it is
         * free. */
        hak_atomic_fence(seq_cst);
    } while (hak_atomic_load(&heap->in_use, relaxed) == HAK_HEAP_LEFT && hak_heap_try_drain(heap));
}

static void leave_behind(struct hak_heap *heap) {
    /* Release pairs with finish_release: it sees all that the thread did. */
    hak_atomic_store(&heap->in_use, HAK_HEAP_LEFT, release);
    /* Pairs with the fence in hak_heap_end_drain. */
    hak_atomic_fence(seq_cst);
    if (hak_heap_try_drain(heap)) hak_heap_end_drain(heap);
}

void hak_heap_release(struct hak_heap *heap) {
    change_in_use(-1);
    leave_behind(heap);
}

/* One at least, and no more than threads will be left but for one: where all of them end, few will follow. */
static bool are_enough_kept(void) {
    uint32_t kept = count_kept();
    return kept > 0 && (kept >= MOST_KEPT_HEAPS || kept + 1 >= hak_atomic_load(&hak_heaps_in_use, relaxed));
}

static bool is_worth_keeping(const struct hak_heap *heap) {
    return !are_enough_kept() && !hak_atomic_load(&hak_memory_is_tight, relaxed) &&
           hak_atomic_load(&heap->drain_wanted, relaxed) == 0 && heap->slots_bytes <= hak_knob(bin_budget_bytes);
}

void hak_heap_leave(struct hak_heap *heap) {
    if (!is_worth_keeping(heap) || !hak_heap_begin_slow_path(heap)) {
        hak_heap_release(heap);
        return;
    }
    hak_heap_give_up_slabs(heap);
    hak_page_policy_after_release();
    forget_thread(heap);
    heap->is_inherited = true;
    hak_heap_end_slow_path(heap);
    if (!put_kept(heap)) {
        hak_heap_release(heap);
        return;
    }
    change_in_use(-1);
    /* Release pairs with take_kept: who has the heap next sees all that the thread did. */
    hak_atomic_store(&heap->in_use, HAK_HEAP_KEPT, release);
}

void hak_heap_take_apart(struct hak_heap *heap) {
    if (hak_atomic_load(&heap->in_use, relaxed) != HAK_HEAP_KEPT) return;
    hak_in_hand_begin();
    if (!hak_heap_try_drain(heap)) {
        hak_in_hand_keep();
        return;
    }
    take_kept(heap, HAK_HEAP_LEFT);
    hak_heap_end_drain(heap);
    hak_in_hand_end();
}

void hak_heap_take_kept_apart(void) {
    for (uint32_t i = 0; i < MOST_KEPT_HEAPS; i++) {
        struct hak_heap *heap = kept_heap(i);
        if (heap != NULL) hak_heap_take_apart(heap);
    }
    while (HAK_UNLIKELY(topmost(hak_atomic_load(&orphaned_heaps, relaxed)) != NULL)) {
        hak_in_hand_begin();
        struct hak_heap *heap = pop(&orphaned_heaps);
        if (heap != NULL) leave_behind(heap);
        hak_in_hand_end();
    }
}

/* ---- Partial slabs ----------------------------------------------------------------------------------------------- */

/* H4 */
static bool list_is_sound(const struct hak_heap *heap, uint32_t size_class) {
    uint32_t count = 0;
    const struct hak_slab *previous = NULL;
    for (const struct hak_slab *slab = heap->partial[size_class].first; slab != NULL;
         previous = slab, slab = slab->next) {
        if (slab->previous != previous || hak_atomic_load(&slab->size_class, relaxed) != size_class) return false;
        if (hak_atomic_load(&slab->state, relaxed) != hak_slab_state(HAK_SLAB_HELD, heap->number)) return false;
        count++;
    }
    return count == heap->partial[size_class].count;
}

bool hak_heap_hold(struct hak_heap *heap, struct hak_slab *slab) {
    struct hak_partial_list *list = &heap->partial[hak_atomic_load(&slab->size_class, relaxed)];
    if (list->count >= hak_knob(held_slabs)) {
        give_to_pool(heap, slab);
        return false;
    }
    hak_slab_scan_from(slab, 0); /* others may have freed anywhere */
    slab->previous = NULL;
    slab->next = list->first;
    if (list->first != NULL) list->first->previous = slab;
    hak_signal_fence(); /* a forked child can follow the list */
    list->first = slab;
    list->count++;
    HAK_WALK(list_is_sound(heap, hak_atomic_load(&slab->size_class, relaxed)));
    return true;
}

void hak_heap_unlink(struct hak_heap *heap, struct hak_slab *slab) {
    struct hak_partial_list *list = &heap->partial[hak_atomic_load(&slab->size_class, relaxed)];
    hak_hand_note(slab);
    if (slab->previous != NULL) slab->previous->next = slab->next;
    else list->first = slab->next;
    if (slab->next != NULL) slab->next->previous = slab->previous;
    list->count--;
    hak_signal_fence(); /* out of the list before others get it */
    HAK_WALK(list_is_sound(heap, hak_atomic_load(&slab->size_class, relaxed)));
}

void hak_heap_recheck_full(struct hak_heap *heap) {
    if (heap->full_count == 0) return;
    /* S5: between the announcements and the second looks; pairs with the set bits, then the look at the state, of a
     * freer. */
    hak_atomic_fence(seq_cst);
    while (heap->full_count > 0) {
        const struct hak_full_slab *full = &heap->full[--heap->full_count];
        if (hak_slab_take_back(full, heap->number, hak_slab_state(HAK_SLAB_HELD, heap->number)))
            hak_heap_hold(heap, full->slab);
    }
}

void hak_heap_declare_full(struct hak_heap *heap, struct hak_slab *slab) {
    heap->full[heap->full_count++] = hak_slab_announce_full(slab, heap->number);
    if (heap->full_count == HAK_FULL_SLABS) hak_heap_recheck_full(heap);
}

/* ---- Bins -------------------------------------------------------------------------------------------------------- */

size_t hak_heap_usual_slots(uint32_t size_class) {
    size_t most = hak_knob(bin_most_bytes) / hak_size_classes[size_class].block_bytes;
    if (most > hak_knob(bin_most_slots)) most = hak_knob(bin_most_slots);
    return most < HAK_LEAST_SLOTS ? HAK_LEAST_SLOTS : most; /* every class can keep something */
}

size_t hak_heap_most_slots(uint32_t size_class) {
    size_t own = hak_atomic_load(&hak_class_slots[size_class], relaxed);
    return own != 0 ? own : hak_heap_usual_slots(size_class);
}

/* Without a division: every miss asks. */
static enum hak_bin_fit fit_of(uint32_t size_class, size_t slots) {
    size_t own = hak_atomic_load(&hak_class_slots[size_class], relaxed),
           bytes = slots * hak_size_classes[size_class].block_bytes;
    if (HAK_UNLIKELY(own != 0)) return slots < own ? HAK_BIN_GREW : slots == own ? HAK_BIN_FITS : HAK_BIN_TOO_LARGE;
    if (slots < HAK_LEAST_SLOTS || (bytes < hak_knob(bin_most_bytes) && slots < hak_knob(bin_most_slots)))
        return HAK_BIN_GREW;
    bool is_above = bytes > hak_knob(bin_most_bytes) || slots > hak_knob(bin_most_slots);
    return is_above && slots > HAK_LEAST_SLOTS ? HAK_BIN_TOO_LARGE : HAK_BIN_FITS;
}

/* What the slots of all bins may keep in a large heap: the threads' part of it. */
static uint64_t share_bytes(void) {
    uint64_t super_slabs = hak_region_super_slabs(hak_region_range(0));
    uint64_t threads = hak_atomic_load(&hak_heaps_about, relaxed);
    return super_slabs * HAK_SUPER_SLAB_BYTES / hak_knob(bin_budget_share) / (threads + (threads == 0));
}

/* What the slots of a thread's bins may keep, for a bin that has missed. Some times the share where refills and flushes
 * take turns: the program allocates and frees at random, and has less to do with slabs the more it keeps. Where it
 * allocates for long, and then frees for long, misses are hardly fewer. */
static uint64_t allowed_bytes(const struct hak_heap *heap, uint32_t size_class) {
    bool takes_turns = heap->growth_turns[size_class] * 4u > heap->growth_misses[size_class];
    return takes_turns ? TURNING_SHARES * share_bytes() : share_bytes();
}

static bool is_turn(const struct hak_heap *heap, uint32_t size_class) {
    bool is_refill = hak_heap_cached(heap, size_class) == 0;
    return is_refill ? heap->miss_run[size_class] < 0 : heap->miss_run[size_class] > 0;
}

/* A large bin has missed. Of very many misses the early ones count less. */
static void count_growth_miss(struct hak_heap *heap, uint32_t size_class) {
    if (heap->growth_misses[size_class] == UINT16_MAX) {
        heap->growth_misses[size_class] /= 2;
        heap->growth_turns[size_class] /= 2;
    }
    heap->growth_misses[size_class]++;
    heap->growth_turns[size_class] += is_turn(heap, size_class);
}

/* What a bin gets at any miss. */
static size_t quick_slots(uint32_t size_class) {
    size_t quick = hak_knob(bin_quick_bytes) / hak_size_classes[size_class].block_bytes;
    return quick < HAK_LEAST_SLOTS ? HAK_LEAST_SLOTS : quick;
}

/* How many of `want` slots, above the `have` that it has, a bin gets for this miss, where nothing is said about its
 * class: large ones by a miss for every 4 KiB more that it keeps then, within the thread's share of the heap. */
static size_t slots_earned(struct hak_heap *heap, uint32_t size_class, size_t have, size_t want) {
    size_t quick = quick_slots(size_class);
    if (want <= quick) return want;
    count_growth_miss(heap, size_class);
    size_t misses = heap->growth_misses[size_class],
           more_bytes = (want - have) * hak_size_classes[size_class].block_bytes;
    if (have != 0 && misses * BYTES_PER_MISS >= more_bytes &&
        heap->slots_bytes + more_bytes <= allowed_bytes(heap, size_class))
        return want;
    return quick;
}

/* Slots are short in a heap whose bins are another thread's: all begin small again. */
static HAK_COLD enum hak_bin_fit grow_anew(struct hak_heap *heap, uint32_t size_class) {
    give_up_bins(heap);
    return hak_heap_grow_bin(heap, size_class);
}

enum hak_bin_fit hak_heap_grow_bin(struct hak_heap *heap, uint32_t size_class) {
    struct hak_bin *bin = &heap->bins[size_class];
    struct hak_slots *slots = &heap->slots[size_class];
    size_t have = (size_t)(slots->end - slots->start);
    enum hak_bin_fit fit = fit_of(size_class, have);
    if (HAK_LIKELY(fit != HAK_BIN_GREW)) return fit;
    size_t block_bytes = hak_size_classes[size_class].block_bytes, most = hak_heap_most_slots(size_class);
    size_t want = have == 0 ? hak_knob(bin_first_slots) : 2 * have;
    if (want > most) want = most;
    if (hak_atomic_load(&hak_class_slots[size_class], relaxed) == 0) want = slots_earned(heap, size_class, have, want);
    if (want <= have || (have != 0 && hak_atomic_load(&hak_memory_is_tight, relaxed))) return HAK_BIN_FITS;
    uint64_t all_bytes = heap->slots_bytes + (want - have) * block_bytes;
    if (all_bytes > hak_knob(bin_budget_bytes) && all_bytes > allowed_bytes(heap, size_class)) {
        if (heap->is_inherited) return grow_anew(heap, size_class);
        if (have != 0) return HAK_BIN_FITS;
        want = HAK_LEAST_SLOTS;
    }
    if (want > heap->slot_room[size_class]) {
        /* What the first slots of all others may need stays. */
        size_t others = have == 0 ? 0 : HAK_CLASS_LIMIT * (hak_knob(bin_first_slots) + 1);
        if ((size_t)(heap->slots_end - heap->slots_next) < want + 1 + others)
            return heap->is_inherited ? grow_anew(heap, size_class) : HAK_BIN_FITS;
        void **base = heap->slots_next + 1; /* H2 */
        base[-1] = NULL;
        size_t filled = hak_heap_cached(heap, size_class);
        if (filled > 0) memcpy(base, hak_owned_get(&slots->start), filled * sizeof(void *));
        heap->slots_next = base + want;
        heap->slot_room[size_class] = (uint16_t)want;
        hak_owned_set(&slots->start, base);
        hak_atomic_store(&bin->base, heap->slots_end, relaxed); /* it had none: it is closed from now on, */
        hak_signal_fence();
        hak_bin_set_top(bin, base + filled); /* before it has a top */
    }
    slots->end = hak_owned_get(&slots->start) + want;
    heap->slots_bytes += (want - have) * block_bytes;
    heap->growth_misses[size_class] = heap->growth_turns[size_class] = 0;
    HAK_COUNT(heap, bin_growths, 1);
    return HAK_BIN_GREW;
}

/* As far as there are no blocks in them. */
static void take_slots(struct hak_heap *heap, uint32_t size_class, size_t want) {
    const struct hak_slots *slots = &heap->slots[size_class];
    size_t have = (size_t)(slots->end - slots->start), filled = hak_heap_cached(heap, size_class);
    if (want < filled) want = filled;
    if (want >= have) return;
    heap->slots[size_class].end = hak_owned_get(&slots->start) + want;
    heap->slots_bytes -= (have - want) * hak_size_classes[size_class].block_bytes;
}

void hak_heap_shrink_bin(struct hak_heap *heap, uint32_t size_class) {
    take_slots(heap, size_class, hak_heap_most_slots(size_class));
}

void hak_heap_shrink_to_budget(struct hak_heap *heap) {
    if (heap->slots_bytes <= TURNING_SHARES * share_bytes()) return;
    bool is_within = heap->slots_bytes <= hak_knob(bin_budget_bytes); /* but for bins that were earned */
    for (uint32_t c = 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        const struct hak_slots *slots = &heap->slots[c];
        size_t have = (size_t)(slots->end - slots->start), least = HAK_LEAST_SLOTS;
        if (is_within) least = hak_atomic_load(&hak_class_slots[c], relaxed) == 0 ? quick_slots(c) : have;
        if (hak_atomic_load(&heap->bins[c].limit, relaxed) != slots->end || have <= least) continue;
        hak_atomic_store(&heap->bins[c].limit, NULL, relaxed);
        hak_signal_fence(); /* no free hits it in a handler; a malloc that does, leaves fewer blocks */
        take_slots(heap, c, have / 2 > least ? have / 2 : least);
        hak_signal_fence();
        hak_atomic_store(&heap->bins[c].limit, slots->end, relaxed);
    }
}

/* ---- fork -------------------------------------------------------------------------------------------------------- */

/* Somebody had it, and left it in whatever state (H5). */
static bool is_torn(const struct hak_heap *heap) {
    return hak_atomic_load(&heap->busy, relaxed) != 0 || hak_atomic_load(&heap->drained, relaxed) != 0;
}

/* The heap of a thread that is no more, or of nobody. */
static void leave_after_fork(struct hak_heap *heap) {
    uint32_t in_use = hak_atomic_load(&heap->in_use, relaxed);
    if (in_use == HAK_HEAP_GIVEN_UP) return;
    if (in_use == HAK_HEAP_UNUSED) { /* somebody was about to put it there, or had just taken it, perhaps */
        hak_atomic_store(&heap->drained, 0, relaxed);
        push(&unused_heaps, heap);
        return;
    }
    uint32_t left = is_torn(heap) ? HAK_HEAP_TORN : HAK_HEAP_ORPHANED;
    hak_atomic_store(&heap->in_use, left, relaxed);
    if (left == HAK_HEAP_ORPHANED) push(&orphaned_heaps, heap);
}

void hak_heap_leave_others_after_fork(const struct hak_heap *own) {
    hak_atomic_store(&unused_heaps, 0, relaxed);
    hak_atomic_store(&orphaned_heaps, 0, relaxed);
    for (uint32_t i = 0; i < MOST_KEPT_HEAPS; i++) hak_atomic_store(&kept_heaps[i], NULL, relaxed);
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next)
        if (heap != own) leave_after_fork(heap);
    hak_heap_set_in_use(own != NULL);
}
