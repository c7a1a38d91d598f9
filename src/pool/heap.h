/* Heap: what one thread has of the allocator. Its bins (the front cache), the partial slabs it holds, empty slabs it
 * keeps.
 *
 * A thread gets a heap at its first miss and leaves it at its end for the next thread, its bins as they are, or blank:
 * heaps are never unmapped. Everything is the owner's, the thread that has the heap, unless tagged otherwise. What is
 * not the hit path's, a drainer may have for a while: another thread that gives back what the heap keeps
 * (pool/drain.h).
 *
 *   H1  slots[base..top) of a bin are free blocks of its class, by S2 allocated as far as their slabs know. While a
 *       drainer is at the bin, `top` may be below `base`: the bin is empty then.
 *   H2  slots[c].start[-1] is NULL, and start <= base: below `limit`, `top[-1]` may be read whether or not the bin is
 *       empty.
 *   H3  Bins of classes that are not small, the sampled ones among them, and all bins before their first use, are NULL:
 *       every hit path misses. A bin that was drained has limit == NULL until its owner opens it again: no free hits it
 *       unnoticed.
 *   H4  partial[c] links the slabs that are HELD by this heap and of class c, at most held_slabs (knob) of them.
 *   H5  Who is in a slow path of the heap has it: its owner, who set `busy` and found it not `drained`; or a drainer,
 *       who set `drained` and, after a fence in all threads, found it not `busy`. A forked child must not trust what it
 *       finds in between.
 *   H6  full[0..full_count) are slabs that the heap has announced to be full and will look at once more, after a fence:
 *       one fence for all of them, because it waits for the program's writes.
 *   H7  `drained` decides who takes a heap apart that its thread has left (HAK_HEAP_LEFT): whoever takes the heap next.
 *       It decides as well who gets one that is kept (HAK_HEAP_KEPT): the next thread, or who takes it apart. Such a
 *       heap holds no slab. One that is unused (HAK_HEAP_UNUSED) is blank, and is had by who takes it off the stack of
 *       these; a late drainer may have it, too, and does nothing to it. One whose thread a fork has lost
 *       (HAK_HEAP_ORPHANED) is as that one left it, slabs included, and is had in the same way.
 *   H8  base == slots_end: the bin is for frees only. Its blocks begin at its first slot, and malloc misses until its
 *       owner opens the bin.
 *   H9  Where heaps are many, a heap holds slabs of the classes in recent_classes, of those that were not refilled
 *       since there are so many, and full ones that were found not to be.
 *   H10 base == slots_end and limit == NULL: the bin is closed. Its owner, in a slow path, changes it; to a signal
 *       handler that interrupts him it is empty and full, so that the handler's malloc and free miss, and go without
 *       the heap (H5).
 */
#ifndef HAK_POOL_HEAP_H
#define HAK_POOL_HEAP_H

#include "base/check.h"
#include "base/counters.h"
#include "region/in_hand.h"
#include "region/region.h"

/* What hits read and write. Statistics of other threads peek at it. */
struct hak_bin {
    HAK_OWNED(void **) top;    /* one above the newest block */
    HAK_ATOMIC(void **) base;  /* lowest block; relaxed, raised by drainers */
    HAK_ATOMIC(void **) limit; /* one above the highest slot; relaxed, NULL when drained */
};

/* The slots of a bin: NULL and NULL before its first use. */
struct hak_slots {
    HAK_OWNED(void **) start;
    void **end;
};

HAK_INLINE void hak_bin_set_top(struct hak_bin *bin, void **top) { hak_owned_set(&bin->top, top); }

/* in_use of a heap: left by its thread, but not taken apart yet; kept for the next thread, with blocks in its bins;
 * torn when a fork found that somebody had it, and given up since what it held was recovered; orphaned when a fork
 * found it whole, but not its thread. */
enum {
    HAK_HEAP_UNUSED,
    HAK_HEAP_IN_USE,
    HAK_HEAP_LEFT,
    HAK_HEAP_KEPT,
    HAK_HEAP_GIVEN_UP,
    HAK_HEAP_TORN,
    HAK_HEAP_ORPHANED
};

/* Misses that move blocks; and how many of one kind in a row are no chance any more. */
enum hak_miss { HAK_MISS_FLUSH = -1, HAK_MISS_REFILL = 1 };
enum { HAK_LONG_RUN = 5 };

struct hak_partial_list {
    struct hak_slab *first;
    uint32_t count;
};

/* Bins before a drainer closed them: where their blocks began, NULL without slots, and whether they were for frees
 * only. */
struct hak_closed_bins {
    void **lowest[HAK_SMALL_CLASS_COUNT + 1];
    bool is_for_frees[HAK_SMALL_CLASS_COUNT + 1];
};

enum { HAK_EMPTY_SLABS = 4, HAK_FULL_SLABS = 8, HAK_RECENT_CLASSES = 8 };

struct hak_heap {
    struct hak_bin bins[HAK_CLASS_LIMIT]; /* first: the hit path indexes it from the heap's address */
    /* What whoever looks at all heaps reads of each. */
    _Alignas(64) HAK_ATOMIC(uint32_t) busy; /* H5: the owner is in a slow path */
    HAK_ATOMIC(uint32_t) drained;           /* H5: a drainer has the heap */
    HAK_ATOMIC(uint32_t) in_use;            /* atomic: HAK_HEAP_UNUSED ... */
    HAK_ATOMIC(uint32_t) drain_wanted;      /* relaxed: the owner is asked to drain it himself */
    HAK_ATOMIC(uint64_t) slow_paths;        /* owner; begun so far: who does not see it change sees hits at most */
    HAK_ATOMIC(uint64_t) drained_at;        /* relaxed, a drainer's: slow_paths + 1 when it was last drained; or 0 */
    struct hak_heap *next;                  /* const: the list of all heaps */
    struct hak_heap *next_taken;            /* a drainer's: the list of those that he has, */
    bool is_closed, is_drained;             /* and that he has closed its bins; and drained it */
    uint32_t number;                        /* const: 1 and up; stands in the state of slabs */
    struct hak_hand hand, large_hand;       /* owner; what it is in the middle of (region/in_hand.h) */
    struct hak_hand *outer_hand;            /* owner; while it is busy: what is to be taken up again */
    HAK_ATOMIC(struct hak_heap *) below;    /* relaxed: the next one in the stack of unused or orphaned heaps */
    struct hak_slots slots[HAK_SMALL_CLASS_COUNT + 1];
    uint16_t slot_room[HAK_SMALL_CLASS_COUNT + 1];     /* slots that a bin has memory for, of which it may have fewer */
    uint16_t growth_misses[HAK_SMALL_CLASS_COUNT + 1]; /* of a large bin, since it last grew, */
    uint16_t growth_turns[HAK_SMALL_CLASS_COUNT + 1];  /* of these, those of another kind than the one before */
    int8_t miss_run[HAK_SMALL_CLASS_COUNT + 1]; /* last misses of one kind, up to HAK_LONG_RUN, times the kind; 0 since
                                                 * hak_heap_give_up_idle */
    HAK_ATOMIC(uint32_t) class_misses[HAK_SMALL_CLASS_COUNT + 1]; /* owner; refills and flushes of a class so far */
    HAK_ATOMIC(uint64_t) sampled_ticks, sample_count;             /* owner; of slow paths whose time was taken */
    uint64_t sample_start; /* ticks at the beginning of this one; 0: its time is not taken */
    struct hak_partial_list partial[HAK_SMALL_CLASS_COUNT + 1];
    struct hak_slab *empty_slabs[HAK_EMPTY_SLABS]; /* units that are nobody else's: freed here, or taken ahead */
    uint32_t empty_count;
    uint32_t acquired_count;                        /* slabs acquired since the thread got the heap */
    bool has_acquired[HAK_SMALL_CLASS_COUNT + 1];   /* a slab of the class, since then */
    uint8_t slab_counts[HAK_SMALL_CLASS_COUNT + 1]; /* acquired less retired, 0..255; a guess: others do so, too */
    uint8_t recent_classes[HAK_RECENT_CLASSES];     /* H9; 0 for none. Round and round, */
    uint32_t recent_next;                           /* the next at this, modulo their number */
    struct hak_full_slab full[HAK_FULL_SLABS];
    uint32_t full_count;
    HAK_ATOMIC(uint32_t) thread_id;     /* relaxed: who got it last, for readers outside of the process */
    void **slots_next;                  /* memory for slots not yet given to a bin, */
    void **slots_end;                   /* const: and where it ends */
    HAK_OWNED(int64_t) unsampled_bytes; /* to the next sample, while malloc is metered; */
    uint64_t sample_interval_bytes;     /* that this was drawn from; 0 before the first draw */
    HAK_OWNED(uint64_t) metered_count;  /* calls of malloc that were counted so far, */
    HAK_OWNED(uint64_t) sampling_ns;    /* and time that samples of them have taken */
    uint64_t slots_bytes;               /* sum over the bins of slots times block size */
    uint64_t swept_misses;              /* background thread's: what it saw at its last look */
    bool swept_idle;                    /* the same: it has drained the heap since */
    bool is_inherited;                  /* its bins have slots and blocks that another thread left */
    struct hak_closed_bins closed_bins; /* a drainer's */
    void *signal_stack;                 /* made when first asked for, and kept; observe/crash.h */
    struct hak_counters counters;
};

HAK_INLINE void hak_heap_end_slow_path(struct hak_heap *heap) {
    /* Release pairs with a drainer's look at it: he sees what the slow path did. Nor will a signal handler or a forked
     * child find the flag down before that. */
    hak_hand_take_up(heap->outer_hand);
    hak_atomic_store(&heap->busy, 0, release);
}

/* H5: what lies between is invisible to signal handlers of this thread and children of its process. False when a
 * drainer has the heap: it can't be used now. */
HAK_INLINE bool hak_heap_begin_slow_path(struct hak_heap *heap) {
    hak_atomic_store(&heap->busy, 1, relaxed);
    hak_signal_fence(); /* the light side of the drainer's hak_fence_threads */
    heap->outer_hand = hak_hand_take_up(&heap->hand);
    /* Acquire pairs with the release by the last drainer, who has read slow_paths (drained_at). */
    uint32_t drained = hak_atomic_load(&heap->drained, acquire);
    hak_counter_add(&heap->slow_paths, 1);
    if (HAK_LIKELY(drained == 0)) return true;
    hak_heap_end_slow_path(heap);
    return false;
}

enum { HAK_HEAP_BYTES = 256 << 10 }; /* the record and room for the slots of its bins, touched as they are used */

/* Time stamps of misses (front/miss.c). A miss's time is taken when its number has no bit in common with the mask: all
 * ones take none. What took longer than the limit had lost the processor, and doesn't count. */
extern HAK_ATOMIC(uint64_t) hak_miss_sample_mask;
enum { HAK_MISS_MOST_TICKS = 1 << 20 };

/* Counters of threads without a heap. */
extern struct hak_counters hak_shared_counters;

/* The list of all heaps ever made, newest first; it only grows. */
extern HAK_ATOMIC(struct hak_heap *) hak_heaps;

/* Its first one. */
HAK_INLINE struct hak_heap *hak_heap_first(void) {
    /* Acquire pairs with make_heap. */
    return hak_atomic_load(&hak_heaps, acquire);
}

/* Heaps that threads have. Each birth and each end of a thread writes it. */
extern HAK_ATOMIC(uint32_t) hak_heaps_in_use;

/* The same for misses, which must not wait for who writes that: written when an eighth of them has come or gone, and by
 * the background thread. Relaxed. */
extern HAK_ATOMIC(uint32_t) hak_heaps_about;

/* In a child after fork. */
void hak_heap_set_in_use(uint32_t count);

/* Heaps above this number, but for those that rest, are many: more than two threads for each processor that the first
 * thread could run on at its first request, and more than a few. Later the program may have bound its threads. */
extern HAK_ATOMIC(uint32_t) hak_few_heaps; /* relaxed */

/* Of those in use, the ones that have not missed for a period, and are drained. Relaxed; the background thread
 * counts. */
extern HAK_ATOMIC(uint32_t) hak_heaps_resting;
void hak_heap_set_resting(uint32_t count);

/* True when what every heap holds for itself is too much memory, and rarely used: busy threads wait for processors. */
HAK_INLINE bool hak_heaps_are_many(void) {
    return hak_atomic_load(&hak_heaps_about, relaxed) >
           hak_atomic_load(&hak_few_heaps, relaxed) + hak_atomic_load(&hak_heaps_resting, relaxed);
}

/* True when `heap` is one of these. */
bool hak_heap_is_known(const void *heap);

/* Before there are heaps, by the first thread. */
void hak_heap_initialize(void);

/* A heap for the calling thread: one kept from another thread, or a blank one, or one made now. NULL when there is no
 * memory. */
struct hak_heap *hak_heap_acquire(void);

/* Leaves the heap: blocks go back to their slabs, slabs to the pool. A drainer who has the heap does it, if there is
 * one. */
void hak_heap_release(struct hak_heap *heap);

/* The same, but its bins are kept for the next thread; unless enough heaps are kept already, memory is tight, or the
 * bins may keep more than bin_budget_bytes (knob). Counts as a miss. */
void hak_heap_leave(struct hak_heap *heap);

/* Takes a heap apart that is kept; does nothing to others. */
void hak_heap_take_apart(struct hak_heap *heap);

/* The same with all heaps. */
void hak_heap_take_kept_apart(void);

/* Takes the heap for a drainer, if nobody has it. That its owner may be in a slow path is the caller's care. */
bool hak_heap_try_drain(struct hak_heap *heap);

/* Gives it back. */
void hak_heap_end_drain(struct hak_heap *heap);

/* All that follows is for who has the heap (H5). */

/* H8 */
HAK_INLINE bool hak_heap_is_for_frees(const struct hak_heap *heap, uint32_t size_class) {
    return hak_atomic_load(&heap->bins[size_class].base, relaxed) == heap->slots_end;
}

/* Where the blocks in a bin begin. */
HAK_INLINE void **hak_heap_lowest(const struct hak_heap *heap, uint32_t size_class) {
    void **base = hak_atomic_load(&heap->bins[size_class].base, relaxed);
    return HAK_UNLIKELY(base == heap->slots_end) ? hak_owned_peek(&heap->slots[size_class].start) : base;
}

/* Blocks in the bin of a class. For others a number between 0 and what fits. */
HAK_INLINE size_t hak_heap_cached(const struct hak_heap *heap, uint32_t size_class) {
    void **top = hak_owned_peek(&heap->bins[size_class].top), **lowest = hak_heap_lowest(heap, size_class);
    return top >= lowest ? (size_t)(top - lowest) : 0;
}

/* A unit kept for the next slab or page run of one; NULL when there is none. */
HAK_INLINE struct hak_slab *hak_heap_take_unit(struct hak_heap *heap) {
    return heap->empty_count > 0 ? heap->empty_slabs[--heap->empty_count] : NULL;
}

/* False when it has enough of them. Where it is true there is room for one, even if heaps become many meanwhile. */
HAK_INLINE bool hak_heap_wants_unit(const struct hak_heap *heap) {
    return heap->empty_count < (hak_heaps_are_many() ? 1 : HAK_EMPTY_SLABS);
}

/* Keeps a unit that the caller has, and that is no slab or run; there must be room. */
HAK_INLINE void hak_heap_keep_unit(struct hak_heap *heap, struct hak_slab *unit) {
    HAK_ASSERT(heap->empty_count < HAK_EMPTY_SLABS);
    heap->empty_slabs[heap->empty_count++] = unit;
}

/* Takes a bin from the hit path (H10), whatever it was: its blocks go to the bottom. Every slow path that changes a
 * bin begins with it, and ends with one of the two that follow. */
void hak_heap_close_bin(struct hak_heap *heap, uint32_t size_class);

/* Malloc and free may hit a closed bin again. */
void hak_heap_open_bin(struct hak_heap *heap, uint32_t size_class);

/* Only frees may (H8), so that a drainer knows of no malloc on its way to the topmost block. */
void hak_heap_keep_for_frees(struct hak_heap *heap, uint32_t size_class);

/* Gives what the heap keeps back: blocks in bins to their slabs; partial slabs to the pool, empty ones to the region.
 * The bins are the owner's, so this is for him, or for heaps that have none. While memory is tight the bins lose their
 * slots, too, and get no more than the first ones again. */
void hak_heap_flush(struct hak_heap *heap);

/* The same without the bins. */
void hak_heap_give_up_slabs(struct hak_heap *heap);

/* Gives back what it keeps of classes that have not missed since the last such call: blocks in bins, and slabs that
 * are empty. */
void hak_heap_give_up_idle(struct hak_heap *heap);

/* Links a slab that is HELD by the heap into its list. False when that is full (H4): then the slab is the pool's. */
bool hak_heap_hold(struct hak_heap *heap, struct hak_slab *slab);
void hak_heap_unlink(struct hak_heap *heap, struct hak_slab *slab);

/* A refill of the class may have left a slab with free blocks, and heaps are many. If it is none of recent_classes,
 * gives up the slabs of the one that has been there for longest, and takes its place (H9). */
void hak_heap_share_slabs(struct hak_heap *heap, uint32_t size_class);

/* Declares a slab full that the heap holds and that is in no list (H6). */
void hak_heap_declare_full(struct hak_heap *heap, struct hak_slab *slab);

/* The second look at slabs that were declared full: those that are not are held again. */
void hak_heap_recheck_full(struct hak_heap *heap);

/* More slots for a closed bin: at most twice as many. Blocks in it stay; but when slots are short in a heap that was
 * inherited, all its bins are emptied, once, and begin small again. FITS when a limit is reached, when a large bin
 * has not missed often enough since it last grew, or when memory is tight; TOO_LARGE when the bin has more slots than
 * it may have now. */
enum hak_bin_fit { HAK_BIN_FITS, HAK_BIN_GREW, HAK_BIN_TOO_LARGE };
enum hak_bin_fit hak_heap_grow_bin(struct hak_heap *heap, uint32_t size_class);

/* Slots that bins of a class may have, in place of what bin_most_slots and bin_most_bytes (knobs) allow; 0 for
 * those. */
extern HAK_ATOMIC(uint16_t) hak_class_slots[HAK_CLASS_LIMIT];

enum { HAK_LEAST_SLOTS = 4, HAK_CLASS_MOST_SLOTS = 512 };

/* Slots that a bin of a class may have; and what it would be by the knobs alone. */
size_t hak_heap_most_slots(uint32_t size_class);
size_t hak_heap_usual_slots(uint32_t size_class);

/* Takes the slots that a closed bin has above that, as far as there are no blocks in them. */
HAK_COLD void hak_heap_shrink_bin(struct hak_heap *heap, uint32_t size_class);

/* When the bins have more slots than the heap's share could allow any bin now, takes half of those of each open bin
 * that was earned within it, and of each other one, too, if they are above the budget; as far as there are no blocks
 * in them, and leaves what any bin may have. */
HAK_COLD void hak_heap_shrink_to_budget(struct hak_heap *heap);

/* In a child after fork: heaps of threads that are no more are orphaned: as they are, slabs included, for the next thread
 * or who takes them apart; those that somebody had (H5) are torn. Writes to these heaps alone. `own` is the heap of the thread
 * that the child has, or NULL. */
void hak_heap_leave_others_after_fork(const struct hak_heap *own);

#define HAK_COUNT(heap, name, amount)                                                                                  \
    do {                                                                                                               \
        if (HAK_LIKELY((heap) != NULL)) hak_counter_add(&(heap)->counters.name, (amount));                             \
        else hak_counter_add_shared(&hak_shared_counters.name, (amount));                                              \
    } while (0)

#endif
