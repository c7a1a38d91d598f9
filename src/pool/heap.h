/* Heap: what one thread has of the allocator, and its life cycle. Bins, the front cache (pool/bin.h); the partial slabs
 * it holds, and empty units it keeps (pool/held.h).
 *
 * A thread gets a heap at its first miss and leaves it at its end for the next thread, its bins as they are, or blank:
 * heaps are never unmapped. Everything is the owner's, the thread that has the heap, unless tagged otherwise. What is
 * not the hit path's, a drainer may have for a while: another thread that gives back what the heap keeps
 * (pool/drain.h).
 *
 *   H5  Who is in a slow path of the heap has it: its owner, who set `busy` and found it not `drained`; or a drainer,
 *       who set `drained` and, after a fence in all threads, found it not `busy`. A forked child must not trust what it
 *       finds in between.
 *   H7  `drained` decides who takes a heap apart that its thread has left (HAK_HEAP_LEFT): whoever takes the heap next.
 *       It decides as well who gets one that is kept (HAK_HEAP_KEPT): the next thread, or who takes it apart. Such a
 *       heap holds no slab. One that is unused (HAK_HEAP_UNUSED) is blank, and is had by who takes it off the stack of
 *       these (pool/vacant.h); a late drainer may have it, too, and does nothing to it. One whose thread a fork has
 *       lost (HAK_HEAP_ORPHANED) is as that one left it, slabs included, and is had in the same way.
 *
 * H1 to H3, H8 and H10 are of bins, H4, H6 and H9 of slabs.
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
    uint32_t grid_reciprocal;  /* const: of the class; 0 where no free hits */
};

_Static_assert(sizeof(struct hak_bin) == HAK_BIN_STRIDE, "the page map says where a bin is");

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
    void **lowest[HAK_SLAB_CLASS_COUNT + 1];
    bool is_for_frees[HAK_SLAB_CLASS_COUNT + 1];
};

enum { HAK_EMPTY_SLABS = 4, HAK_FULL_SLABS = 8, HAK_RECENT_CLASSES = 8, HAK_FREED_KNOWN = 16 };

/* A large object that was freed (pool/freed.h). */
struct hak_freed {
    HAK_ATOMIC(uintptr_t) start;
    HAK_ATOMIC(size_t) bytes;
    HAK_ATOMIC(uint64_t) when_ms; /* hak_os_clock_ms; 0 while there was one heap only */
};

/* In groups by who writes them. */
struct hak_heap {
    /* Hits: the owner moves `top`; drainers raise `base`, and take `limit` away. First: a hit indexes it from the
     * heap's address. */
    struct hak_bin bins[HAK_CLASS_LIMIT];

    /* Who has the heap: its owner and others, each of whom looks at what the other one writes. A line, which whoever
     * looks at all heaps reads of each. */
    _Alignas(64) HAK_ATOMIC(uint32_t) busy; /* owner; H5: he is in a slow path */
    HAK_ATOMIC(uint32_t) drained;           /* H5: a drainer has the heap */
    HAK_ATOMIC(uint32_t) in_use;            /* who has it (H7): HAK_HEAP_UNUSED ... */
    HAK_ATOMIC(uint32_t) drain_wanted;      /* relaxed, anybody; the owner is asked to drain it himself */
    HAK_ATOMIC(uint64_t) slow_paths;        /* owner; begun so far: who does not see it change sees hits at most */
    HAK_ATOMIC(uint64_t) drained_at;        /* relaxed, a drainer; slow_paths + 1 when it was last drained; or 0 */
    HAK_ATOMIC(struct hak_heap *) below;    /* relaxed, who has it: the next one in a stack (pool/vacant.h) */
    struct hak_heap *next;                  /* const: the list of all heaps */
    void **slots_end;                       /* const: where memory for slots ends */
    uint32_t number;                        /* const: 1 and up; stands in the state of slabs */
    HAK_ATOMIC(uint32_t) is_copied;         /* relaxed: by a fork, and it was not the forking thread's */

    /* The owner, in slow paths, or a drainer, who has it in his place (H5). */
    struct hak_hand hand, large_hand;                  /* what it is in the middle of (region/in_hand.h) */
    struct hak_hand *outer_hand;                       /* while it is busy: what is to be taken up again */
    struct hak_slots slots[HAK_SLAB_CLASS_COUNT + 1];  /* with the rations' (pool/ration.h) */
    uint16_t slot_room[HAK_SMALL_CLASS_COUNT + 1];     /* slots that a bin has memory for, of which it may have fewer */
    uint16_t growth_misses[HAK_SMALL_CLASS_COUNT + 1]; /* of a large bin, since it last grew, */
    uint16_t growth_turns[HAK_SMALL_CLASS_COUNT + 1];  /* of these, those of another kind than the one before */
    int8_t miss_run[HAK_SMALL_CLASS_COUNT + 1]; /* last misses of one kind, up to HAK_LONG_RUN, times the kind; 0 since
                                                 * hak_heap_give_up_idle, but for the class that it was called for */
    HAK_ATOMIC(uint32_t) class_misses[HAK_SMALL_CLASS_COUNT + 1]; /* refills and flushes of a class so far */
    HAK_ATOMIC(uint64_t) sampled_ticks, sample_count;             /* of slow paths whose time was taken */
    uint64_t sample_start; /* ticks at the beginning of this one; 0: its time is not taken */
    struct hak_partial_list partial[HAK_SMALL_CLASS_COUNT + 1];
    struct hak_slab *empty_slabs[HAK_EMPTY_SLABS]; /* units that are nobody else's: freed here, or taken ahead */
    uint32_t empty_count;
    uint32_t acquired_count;                      /* slabs acquired since the thread got the heap */
    bool has_acquired[HAK_SMALL_CLASS_COUNT + 1]; /* a slab of the class, since then */
    uint8_t recent_classes[HAK_RECENT_CLASSES];   /* H9; 0 for none. Round and round, */
    uint32_t recent_next;                         /* the next at this, modulo their number */
    struct hak_full_slab full[HAK_FULL_SLABS];
    uint32_t full_count;
    struct hak_freed freed[HAK_FREED_KNOWN]; /* round and round, */
    HAK_ATOMIC(uint32_t) freed_next;         /* the next at this, modulo their number */
    HAK_ATOMIC(uint32_t) thread_id;          /* relaxed: who got it last, for readers outside of the process */
    HAK_ATOMIC(uint32_t) generation;         /* G3 of region/generation.h; written before it is in use */
    bool is_inherited;                       /* its bins have slots and blocks that another thread left */
    bool is_shrink_due;                      /* a round of pool/shrink.h, or the next part of one; */
    uint8_t next_to_shrink;                  /* the class whose bin is emptied next, or 0; */
    int64_t small_bins_bytes;     /* that slabs hand out to it before bins grow again (pool/shrink.h); 0: they may; */
    int64_t small_bins_put_bytes; /* or that they get back from it */
    uint32_t growths;             /* pool/shrink.c's, at the last round's end */
    void **slots_next;            /* memory for slots not yet given to a bin */
    int64_t out_bytes;            /* that slabs have handed out to it, less what they got back, and not told yet; */
    HAK_OWNED(int64_t) out_blocks[HAK_SMALL_CLASS_COUNT + 1]; /* the same in blocks of a class, since it was made */
    uint64_t slots_bytes;                                     /* sum over the bins of slots times block size */
    int64_t unsampled_bytes[HAK_SMALL_CLASS_COUNT + 1]; /* to the next sample of a class, while malloc is metered; */
    uint16_t
        run_slots[HAK_SMALL_CLASS_COUNT + 1]; /* the slot that was drawn of its stratum (P6 in observe/profile.h) */
    uint64_t sample_interval_bytes;           /* that these were drawn from; 0 before the first draw, */
    bool samples_in_runs;                     /* and whether they came in runs; */
    uint64_t tenant;                          /* how many threads had it before, and this one */
    HAK_OWNED(uint64_t) metered[HAK_SMALL_CLASS_COUNT + 1]; /* blocks of a class that were handed out while malloc was
                                                             * metered, with those in rations; [0]: large objects */
    uint8_t small_rations[HAK_SMALL_CLASS_COUNT + 1];       /* in a row (pool/ration.c) */
    int64_t unlooked_bytes;                                 /* to the next look at how much is live (front/meter.h) */
    int64_t unguarded_count;    /* allocations to the next one between guards, and how many there were */
    uint64_t guard_share;       /* on average when that was drawn; 0 before the first draw */
    void *signal_stack;         /* made when first asked for, and kept; observe/crash.h */
    HAK_OWNED(void **) waiting; /* the secure build's, as well: places of pool/quarantine.h; */
    uint64_t waits;             /* how many have begun, */
    HAK_OWNED(uint16_t) waiting_count[HAK_SMALL_CLASS_COUNT + 1]; /* and how many of a class go on */
    struct hak_counters counters;

    /* The background thread, at its looks at all heaps. */
    _Alignas(64) uint64_t swept_misses; /* what it saw at its last look */
    bool swept_idle;                    /* it has drained the heap since */

    /* A drainer, who needs no word of the owner's for it. */
    bool is_closed, is_drained;  /* he has closed its bins; and drained it */
    struct hak_heap *next_taken; /* the list of those that he has */
    struct hak_closed_bins closed_bins;
};

/* By its offset in a heap (HAK_BIN_STRIDE). */
HAK_INLINE struct hak_bin *hak_bin_at(struct hak_heap *heap, size_t offset) {
    return (struct hak_bin *)(void *)((char *)heap + offset);
}

_Static_assert(offsetof(struct hak_heap, busy) % 64 == 0, "no hit shares a line with what others write,");
_Static_assert(offsetof(struct hak_heap, hand) - offsetof(struct hak_heap, busy) <= 64, "which is one line,");
_Static_assert(offsetof(struct hak_heap, swept_misses) % 64 == 0, "and what they write at their looks is in others");

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

/* The same for a moment, in which nothing but what the heap itself has in memory is touched, and no bin: no slow path
 * that counts or has a hand. */
HAK_INLINE void hak_heap_end_moment(struct hak_heap *heap) {
    /* Release as in hak_heap_end_slow_path. */
    hak_atomic_store(&heap->busy, 0, release);
}
HAK_INLINE bool hak_heap_begin_moment(struct hak_heap *heap) {
    hak_atomic_store(&heap->busy, 1, relaxed);
    hak_signal_fence(); /* the light side of the drainer's hak_fence_threads */
    /* Acquire as in hak_heap_begin_slow_path. */
    if (HAK_LIKELY(hak_atomic_load(&heap->drained, acquire) == 0)) return true;
    hak_heap_end_moment(heap);
    return false;
}

enum { HAK_HEAP_BYTES = 256 << 10 }; /* the record and room for the slots of its bins, touched as they are used */

/* Time stamps of misses (front/miss.c). A miss's time is taken when its number has no bit in common with the mask: all
 * ones take none. What took longer than the limit had lost the processor, and doesn't count. */
extern HAK_ATOMIC(uint64_t) hak_miss_sample_mask;
enum { HAK_MISS_MOST_TICKS = 1 << 20 };

/* Counters of threads without a heap. Written by many. */
extern struct hak_counters hak_shared_counters;

/* The list of all heaps ever made, newest first; it only grows. */
extern HAK_ATOMIC(struct hak_heap *) hak_heaps;

/* Its first one. */
HAK_INLINE struct hak_heap *hak_heap_first(void) {
    /* Acquire pairs with make_heap. */
    return hak_atomic_load(&hak_heaps, acquire);
}

/* True when `heap` is one of these. */
bool hak_heap_is_known(const void *heap);

/* The one of this number, if it is among the last that were made; or NULL. */
struct hak_heap *hak_heap_of_number(uint32_t number);

/* A heap for the calling thread: one kept from another thread, or a blank one, or one made now. NULL when there is no
 * memory. */
struct hak_heap *hak_heap_acquire(void);

/* Leaves the heap: blocks go back to their slabs, slabs to the pool. A drainer who has the heap does it, if there is
 * one. */
void hak_heap_release(struct hak_heap *heap);

/* The same, but its bins of blocks up to 4 KiB are kept for the next thread; unless enough heaps are kept already,
 * memory is tight, or the bins may keep more than bin_budget_bytes (knob). Counts as a miss. */
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

/* Gives what the heap keeps back: blocks in bins and in quarantine to their slabs; partial slabs to the pool, empty
 * ones to the region. The bins are the owner's, so this is for him, or for heaps that have none. While memory is tight
 * the bins lose their slots, too, and get no more than the first ones again. */
void hak_heap_flush(struct hak_heap *heap);

/* Gives back what it keeps of classes that have not missed since the last such call: blocks in bins, and slabs that
 * are empty. Not of the class that is being refilled. */
void hak_heap_give_up_idle(struct hak_heap *heap, uint32_t refilled_class);

/* In a child after fork: heaps of threads that are no more are orphaned: as they are, slabs included, for the next
 * thread or who takes them apart; those that somebody had (H5) are torn. Writes to these heaps alone. `own` is the heap
 * of the thread that the child has, or NULL. */
void hak_heap_leave_others_after_fork(const struct hak_heap *own);

/* The same for one heap, while threads of the child use others (region/generation.h): where it is not of a thread that
 * is no more, or was in nobody's use, it does nothing and returns false. A torn one, or one that isn't `is_idle`, is
 * given up at once. */
bool hak_heap_leave_dead_after_fork(struct hak_heap *heap, bool is_idle);

/* In a child after fork that does neither: that other threads' heaps are copies (is_copied). */
void hak_heap_note_copies_after_fork(const struct hak_heap *own);

#define HAK_COUNT(heap, name, amount)                                                                                  \
    do {                                                                                                               \
        if (HAK_LIKELY((heap) != NULL)) hak_counter_add(&(heap)->counters.name, (amount));                             \
        else hak_counter_add_shared(&hak_shared_counters.name, (amount));                                              \
    } while (0)

#endif
