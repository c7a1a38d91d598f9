/* Large objects: blocks above HAK_SMALL_MAX bytes, or with an alignment that no size class has.
 *
 * Up to a limit (knob run_limit_bytes) they are page runs: adjacent units, the lowest that are free, also across
 * SuperSlabs. Above, each has a mapping of its own, which starts at a granule and grows by remapping. When one of the
 * two is not to be had, the other serves. A run that can't grow where it is becomes a mapping.
 *
 * In the secure build large objects have guards behind them, which fault when they are touched. A mapping has a page
 * more for that. It is forbidden, as a mapping of its own, if the kernel has no guards within mappings (hak_os_guard).
 * A run has its tail, what its last unit has left behind its last page, if there are such guards. A run that is freed
 * waits before its units are used again (region/run_quarantine.h); a mapping goes back to the kernel.
 *
 * The state of a run's record says who may change the run:
 *
 *       live                    nobody is at it
 *       busy                    somebody purges what lies behind its last page
 *       claimed                 the same, and meanwhile another thread has won the run, to free it
 *       freed                   it was freed meanwhile: whoever is at it gives up its units when he is done
 *       resized                 somebody resizes it
 *       none                    somebody has won it, to free it
 *
 * Of two threads that free an object at once, or free and resize it, one wins it, and the other is told that it has
 * lost: a run by its state, a mapping by its entry in the directory. Only who has won looks at what lies behind the
 * object, or writes there. (In the other builds, which don't, who resizes a mapping doesn't win it.)
 *
 * Both are lock-free; all functions may be called from any thread, also for blocks another thread made.
 *
 * A child of fork finds memory as it was at some moment, and the thread that forked; what another thread was at stays
 * as it was left. Each function takes its steps in an order in which this does no harm, whatever the moment:
 *
 *   L1  A unit is marked as a run's head when the run is whole: it has its units, and its record says so. Before, and
 *       when the run has been freed, its record doesn't count: nothing is done to the run in a child.
 *   L2  Units that the record of a run counts (by run_pages) are the run's: not free, not another's. So a run that
 *       grows has its new units, marked, before it has the bytes, and one that shrinks has the bytes no more before its
 *       units are given up.
 *   L3  A run's memory goes back, or moves elsewhere, while somebody is at the run, and what is freed or has moved has
 *       no contents to keep: a run that somebody was at is live in the child, with the bytes that its record says.
 *       The record says that the tail is cut before it is, and not before it is mapped that it is whole: a child that
 *       finds a tail said to be cut that is not takes its pages for somebody else's, and loses that unit.
 *   L4  What the directory says of a mapping is there, all of it (D3): a mapping that grows has the pages before its
 *       entry says so, one that shrinks has an entry for what is left before pages go. A kept mapping is in one place
 *       or in nobody's.
 *       Who changes a tail's guards says before that it has some, and when they are gone that it has none. So there
 *       are no guards but where a record says so, of whoever has the units, or that of a mapping; and all over runs
 *       that wait, whose units nobody has (region/run_quarantine.h).
 *   L5  What another thread had in hand, and no record or entry has, is lost to the child: of each thread at most the
 *       object that it was making, freeing or resizing, with its old and its new place; the SuperSlabs that it was
 *       making for it; one kept mapping; one run that came out of quarantine. The block itself that another thread was
 *       in the middle of resizing is nobody's, as is one that it was freeing.
 */
#ifndef HAK_REGION_LARGE_H
#define HAK_REGION_LARGE_H

#include "region/region.h"
#include "slab/origin.h"

/* A block of `bytes`, 1..PTRDIFF_MAX, at a multiple of `alignment`, a power of two. NULL when there is no memory. With
 * `clear` all its usable bytes are zero; what the kernel has given zero is not touched for that. */
void *hak_large_alloc(size_t bytes, size_t alignment, bool clear);

/* The same, but only from the kernel or a mapping that was kept. */
void *hak_large_map(size_t bytes, size_t alignment, bool clear);

/* How many objects of each size were asked for so far, in bands of an octave: above 512 KiB and up to 1 MiB, up to 2,
 * 4, 8, 16, 32 MiB. Only of these does the knob run_limit_bytes say what they are. */
enum { HAK_LARGE_BANDS = 6, HAK_LARGE_FIRST_SHIFT = 19 };
extern HAK_ATOMIC(uint64_t) hak_large_counts[HAK_LARGE_BANDS];

/* Frees a block found by hak_region_find: a page run or mapping whose start is the block. False when another thread has
 * just freed it. */
bool hak_large_free(const struct hak_place *place);

/* What the secure build does to an object of which the caller has found the place. `open` is called by who has won the
 * object, with its place and origin: true when the object may be freed or resized, false when it is to stay as it is.
 * `close` is called when an object has other bytes, or stays after all, and before others can win it. */
struct hak_large_watch {
    bool (*open)(const struct hak_large_watch *watch, const struct hak_place *place, uint32_t origin);
    void (*close)(void *block, size_t usable);
    uint32_t from; /* the caller's */
};

/* What came of it. LOST: another thread has freed it, or is about to resize it, or has since the place was found. */
enum hak_large_outcome { HAK_LARGE_DONE, HAK_LARGE_REFUSED, HAK_LARGE_LOST, HAK_LARGE_UNOPENED };

/* hak_large_free with a watch, or NULL. */
enum hak_large_outcome hak_large_free_watched(const struct hak_place *place, const struct hak_large_watch *watch);

/* The same for those who keep units, and of one unit: a run of a unit that the caller has; and the free of a run that
 * is one, which leaves the unit to him. NULL, with nothing done, when somebody else is at the run, or its tail can't be
 * mapped again: a case for hak_large_free. */
void *hak_large_use_unit(struct hak_slab *unit, size_t bytes, bool clear);
struct hak_slab *hak_large_free_unit(const struct hak_place *place);

/* The pages behind the last one of a page run, in its last unit, if `unit` is where a run begins, and they have not
 * gone back: the first function returns their bytes, the second gives them back. Any thread may, at any time; for the
 * second it has memory in hand (region/in_hand.h). */
size_t hak_large_tail_bytes(const struct hak_range *range, uint32_t unit);
size_t hak_large_purge_tail(struct hak_range *range, uint32_t unit);

/* Unmaps these pages, purged or not, in the first range; returns the bytes. They are mapped again when the run is
 * resized or freed. */
size_t hak_large_cut_tail(struct hak_range *range, uint32_t unit);

/* Makes the block at least `bytes` large, 1..PTRDIFF_MAX, or smaller if that gives memory back, without copying: in its
 * place, or by moving its pages. Returns where it is now, or NULL, when that can't be done or copying is better. In the
 * secure build it has exactly as many then, or as before. */
void *hak_large_resize(const struct hak_place *place, size_t bytes);

/* The same with a watch, or NULL; where the block is now goes to `resized`. */
enum hak_large_outcome hak_large_resize_watched(const struct hak_place *place, size_t bytes,
                                                const struct hak_large_watch *watch, void **resized);

/* In the secure build an object says where it is from, malloc at first, and how many bytes the program may use of it:
 * exactly as many as were asked for, or more of one that is HAK_FROM_MALLOC_LEFT. What lies behind them, up to the end
 * of the last page, is its slack, of which there are HAK_CANARY_BYTES at least; it is the caller's to fill and look
 * at. */
size_t hak_large_slack_bytes(size_t usable);
uint32_t hak_large_origin(const struct hak_place *place);
void hak_large_set_origin(const struct hak_place *place, uint32_t from);

/* In a child after fork, for each run: nobody is at it any more. Writes where somebody was. */
void hak_large_recover_run(struct hak_slab *run);

#endif
