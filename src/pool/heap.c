#include "pool/heap.h"

#include <string.h>

#include "base/knobs.h"
#include "base/memory.h"
#include "os/os.h"
#include "pool/bin.h"
#include "pool/bin_size.h"
#include "pool/held.h"
#include "pool/quarantine.h"
#include "pool/shrink.h"
#include "pool/vacant.h"
#include "region/decay.h"
#include "region/generation.h"
#include "region/heap_count.h"
#include "region/in_hand.h"

HAK_WRITTEN_BY_MANY struct hak_counters hak_shared_counters;
HAK_ATOMIC(struct hak_heap *) hak_heaps;

HAK_WRITTEN_BY_MANY static HAK_ATOMIC(uint32_t) heap_count; /* numbers given so far */

/* The last ones made, each by its number modulo their number. */
enum { LAST_HEAPS = 256 };
static HAK_ATOMIC(struct hak_heap *) last_heaps[LAST_HEAPS];

HAK_ATOMIC(uint64_t) hak_miss_sample_mask = UINT64_MAX;

/* ---- Making, acquiring ------------------------------------------------------------------------------------------- */

/* What it knows of a thread that has left it. */
static void forget_thread(struct hak_heap *heap) {
    heap->acquired_count = 0;
    memset(heap->has_acquired, 0, sizeof heap->has_acquired);
    hak_atomic_store(&heap->drain_wanted, 0, relaxed);
    heap->small_bins_bytes = 0;
    heap->next_to_shrink = 0;
}

static void make_blank(struct hak_heap *heap) {
    hak_heap_blank_bins(heap);
    forget_thread(heap);
}

/* G3. The thread has it from now on: whoever sees that sees of which generation it is. */
static void set_in_use(struct hak_heap *heap, uint32_t generation) {
    hak_atomic_store(&heap->generation, generation, relaxed);
    /* Release pairs with hak_heap_leave_dead_after_fork. */
    hak_atomic_store(&heap->in_use, HAK_HEAP_IN_USE, release);
}

static struct hak_heap *make_heap(uint32_t generation) {
    size_t bytes = hak_align_up(HAK_HEAP_BYTES, hak_os_page_bytes());
    struct hak_heap *heap = hak_os_map(bytes, hak_os_page_bytes());
    if (heap == NULL) return NULL;
    hak_os_refuse_huge_pages(heap, bytes); /* many of them would be one */
    heap->slots_end = (void **)(void *)((char *)heap + HAK_HEAP_BYTES);
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++)
        heap->bins[i].grid_reciprocal = hak_size_classes[i].grid_reciprocal;
    make_blank(heap);
    heap->number = hak_atomic_fetch_add(&heap_count, 1, relaxed) + 1;
    set_in_use(heap, generation);
    struct hak_heap *first = hak_atomic_load(&hak_heaps, relaxed);
    do {
        heap->next = first;
        /* Release pairs with hak_heap_first: readers of the list see the record. */
    } while (!hak_atomic_cas(&hak_heaps, &first, heap, release, relaxed));
    /* Release pairs with hak_heap_of_number. */
    hak_atomic_store(&last_heaps[heap->number % LAST_HEAPS], heap, release);
    return heap;
}

struct hak_heap *hak_heap_of_number(uint32_t number) {
    /* Acquire pairs with make_heap. */
    struct hak_heap *heap = hak_atomic_load(&last_heaps[number % LAST_HEAPS], acquire);
    return heap != NULL && heap->number == number ? heap : NULL;
}

bool hak_heap_is_known(const void *heap) {
    const struct hak_heap *known = hak_heap_first();
    while (known != NULL && known != heap) known = known->next;
    return known != NULL;
}

/* For the next thread; the caller has made the heap blank. */
static void put_unused(struct hak_heap *heap) {
    hak_atomic_store(&heap->in_use, HAK_HEAP_UNUSED, relaxed);
    hak_vacant_put_unused(heap);
}

static struct hak_heap *take_unused(uint32_t generation) {
    struct hak_heap *heap = hak_vacant_take_unused();
    if (heap != NULL) set_in_use(heap, generation);
    return heap;
}

/* With the bins and slabs of the thread that it had. */
static struct hak_heap *take_orphaned(uint32_t generation) {
    struct hak_heap *heap = hak_vacant_take_orphaned();
    if (heap == NULL) return NULL;
    heap->out_bytes = 0; /* told in leave_after_fork */
    forget_thread(heap);
    heap->is_inherited = true;
    set_in_use(heap, generation);
    return heap;
}

/* True when the heap is kept; the caller has it. */
static bool is_kept(const struct hak_heap *heap) {
    /* Acquire pairs with hak_heap_leave: nothing that is kept is touched before. */
    return hak_atomic_load(&heap->in_use, acquire) == HAK_HEAP_KEPT;
}

static struct hak_heap *take_any_kept(uint32_t generation) {
    for (uint32_t i = 0; i < HAK_MOST_KEPT_HEAPS; i++) {
        struct hak_heap *heap = hak_vacant_kept(i);
        if (heap == NULL || !hak_heap_try_drain(heap)) continue;
        bool is_ours = is_kept(heap);
        if (is_ours) {
            set_in_use(heap, generation);
            hak_vacant_remove_kept(heap);
        }
        hak_heap_end_drain(heap);
        if (is_ours) return heap;
    }
    return NULL;
}

struct hak_heap *hak_heap_acquire(void) {
    uint32_t generation = hak_generation_enter();
    if (generation == 0) return NULL;
    /* First: in a child after fork it tells that a heap may have been in nobody's hands but the parent's. */
    hak_heap_count_change(1);
    struct hak_heap *heap = take_any_kept(generation);
    if (heap == NULL) heap = take_orphaned(generation);
    if (heap == NULL) heap = take_unused(generation);
    if (heap == NULL) heap = make_heap(generation);
    if (heap == NULL) hak_heap_count_change(-1);
    return heap;
}

/* ---- Giving back what it keeps ----------------------------------------------------------------------------------- */

void hak_heap_give_up_idle(struct hak_heap *heap, uint32_t refilled_class) {
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        if (i == refilled_class) continue;
        bool is_idle = heap->miss_run[i] == 0;
        heap->miss_run[i] = 0;
        if (!is_idle) continue;
        hak_heap_flush_bin(heap, i);
        hak_heap_give_up_empty_slabs(heap, i);
    }
}

void hak_heap_flush(struct hak_heap *heap) {
    if (HAK_SECURE) hak_quarantine_empty(heap);
    if (hak_atomic_load(&hak_memory_is_tight, relaxed)) hak_heap_give_up_bins(heap);
    else hak_heap_flush_bins(heap);
    hak_heap_give_up_slabs(heap);
    hak_decay_after_release(0);
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
    hak_shrink_tell(heap);
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
    hak_heap_count_change(-1);
    leave_behind(heap);
}

/* One at least, and no more than threads will be left but for one: where all of them end, few will follow. */
static bool are_enough_kept(void) {
    uint32_t kept = hak_vacant_count_kept();
    return kept > 0 && (kept >= HAK_MOST_KEPT_HEAPS || kept + 1 >= hak_atomic_load(&hak_heaps_in_use, relaxed));
}

static bool is_worth_keeping(const struct hak_heap *heap) {
    return !are_enough_kept() && !hak_atomic_load(&hak_memory_is_tight, relaxed) &&
           hak_atomic_load(&heap->drain_wanted, relaxed) == 0 && heap->slots_bytes <= hak_knob(bin_budget_bytes);
}

/* Of large blocks a few are much memory, and whether the next thread wants some, nobody knows. */
static void give_up_large_blocks(struct hak_heap *heap) {
    enum { MOST_KEPT_BYTES = 4096 };
    for (uint32_t c = hak_class_of_block(MOST_KEPT_BYTES) + 1; c <= HAK_SMALL_CLASS_COUNT; c++) {
        if (heap->slots[c].end == NULL) continue; /* without a look at the bin */
        hak_heap_flush_bin(heap, c);
        hak_heap_shrink_to(heap, c, hak_heap_shrunk_slots(c));
    }
}

void hak_heap_leave(struct hak_heap *heap) {
    if (!is_worth_keeping(heap) || !hak_heap_begin_slow_path(heap)) {
        hak_heap_release(heap);
        return;
    }
    give_up_large_blocks(heap);
    hak_heap_give_up_slabs(heap);
    hak_decay_after_release(0);
    hak_shrink_tell(heap);
    forget_thread(heap);
    heap->is_inherited = true;
    hak_heap_end_slow_path(heap);
    if (!hak_vacant_put_kept(heap)) {
        hak_heap_release(heap);
        return;
    }
    hak_heap_count_change(-1);
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
    if (is_kept(heap)) {
        hak_atomic_store(&heap->in_use, HAK_HEAP_LEFT, relaxed);
        hak_vacant_remove_kept(heap);
    }
    hak_heap_end_drain(heap);
    hak_in_hand_end();
}

void hak_heap_take_kept_apart(void) {
    for (uint32_t i = 0; i < HAK_MOST_KEPT_HEAPS; i++) {
        struct hak_heap *heap = hak_vacant_kept(i);
        if (heap != NULL) hak_heap_take_apart(heap);
    }
    while (HAK_UNLIKELY(hak_vacant_has_orphaned())) {
        hak_in_hand_begin();
        struct hak_heap *heap = hak_vacant_take_orphaned();
        if (heap != NULL) {
            heap->out_bytes = 0; /* told in leave_after_fork */
            leave_behind(heap);
        }
        hak_in_hand_end();
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
    hak_atomic_store(&heap->is_copied, 1, relaxed);
    if (in_use == HAK_HEAP_UNUSED) { /* somebody was about to put it there, or had just taken it, perhaps */
        hak_atomic_store(&heap->drained, 0, relaxed);
        hak_vacant_put_unused(heap);
        return;
    }
    /* Without a write to it: that would copy another page of it. */
    if (in_use != HAK_HEAP_ORPHANED) hak_shrink_add(NULL, heap->out_bytes);
    uint32_t left = is_torn(heap) ? HAK_HEAP_TORN : HAK_HEAP_ORPHANED;
    hak_atomic_store(&heap->in_use, left, relaxed);
    if (left == HAK_HEAP_ORPHANED) hak_vacant_put_orphaned(heap);
}

void hak_heap_leave_others_after_fork(const struct hak_heap *own) {
    hak_vacant_forget_all();
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next)
        if (heap != own) leave_after_fork(heap);
    hak_heap_set_in_use(own != NULL);
}

bool hak_heap_leave_dead_after_fork(struct hak_heap *heap, bool is_idle) {
    /* Acquire pairs with set_in_use. */
    bool is_in_use = hak_atomic_load(&heap->in_use, acquire) == HAK_HEAP_IN_USE;
    if (hak_atomic_load(&heap->generation, relaxed) > hak_atomic_load(&hak_generation, relaxed)) return false;
    hak_atomic_store(&heap->is_copied, 1, relaxed); /* kept and unused ones, too */
    if (!is_in_use) return false;
    bool is_whole = is_idle && !is_torn(heap);
    hak_atomic_store(&heap->in_use, is_whole ? HAK_HEAP_ORPHANED : HAK_HEAP_GIVEN_UP, relaxed);
    hak_shrink_add(NULL, heap->out_bytes);
    if (is_whole) hak_vacant_put_orphaned(heap);
    hak_heap_count_change(-1);
    return true;
}

void hak_heap_note_copies_after_fork(const struct hak_heap *own) {
    for (struct hak_heap *heap = hak_heap_first(); heap != NULL; heap = heap->next) {
        bool is_born_here =
            hak_atomic_load(&heap->generation, relaxed) > hak_atomic_load(&hak_generation, relaxed); /* G3 */
        if (heap != own && !is_born_here) hak_atomic_store(&heap->is_copied, 1, relaxed);
    }
}
