#include "front/miss.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "front/background.h"
#include "front/meter.h"
#include "front/process.h"
#include "front/routes.h"
#include "front/thread.h"
#include "front/tight.h"
#include "observe/crash.h"
#include "observe/profile_tables.h"
#include "observe/stack.h"
#include "os/os.h"
#include "pool/bin.h"
#include "pool/bin_size.h"
#include "pool/freed.h"
#include "pool/held.h"
#include "pool/holder.h"
#include "pool/pool.h"
#include "pool/purge.h"
#include "pool/quarantine.h"
#include "pool/ration.h"
#include "pool/shrink.h"
#include "region/decay.h"
#include "region/guard.h"
#include "region/large.h"
#include "region/mapping_cache.h"
#include "region/run_quarantine.h"

/* Slabs of the widest class of a group that there may be for each heap before the group is opened: 256 KiB and up. */
enum { SLABS_TO_OPEN = 4 };

/* So that no single call takes long, however large a bin is. In a long run what a call has to do besides moving blocks
 * counts for more. */
enum { MOST_BLOCKS_PER_MISS = 64, MOST_BLOCKS_IN_A_RUN = 256 };

/* Where frees go to slabs, each looks through what the bin has. */
enum { MOST_BLOCKS_TO_LOOK_THROUGH = 16 };

static HAK_COLD void *out_of_memory(void) {
    errno = ENOMEM;
    return NULL;
}

enum { RECLAIM_AGAIN_MS = 100 }; /* after a search found nothing */

/* ---- Refill and flush -------------------------------------------------------------------------------------------- */

/* Begins a slow path of the calling thread's heap. NULL when there is none to be used: the thread can't have one, or
 * somebody has it at this moment. */
static struct hak_heap *enter(void) {
    struct hak_heap *heap = hak_thread_attach();
    return HAK_LIKELY(heap != NULL) && HAK_LIKELY(hak_heap_begin_slow_path(heap)) ? heap : NULL;
}

/* The time of one miss in so many is taken: at the beginning and the end of what follows. */
static void begin_sample(struct hak_heap *heap) {
    if (HAK_UNLIKELY((hak_atomic_load(&heap->slow_paths, relaxed) & hak_atomic_load(&hak_miss_sample_mask, relaxed)) ==
                     0))
        heap->sample_start = hak_ticks();
}

/* A budget that the controller has lowered is lowered here: it tries what can be taken back. */
static HAK_COLD void take_sample(struct hak_heap *heap) {
    uint64_t ticks = hak_ticks() - heap->sample_start;
    hak_heap_shrink_to_budget(heap);
    heap->sample_start = 0;
    if (ticks > HAK_MISS_MOST_TICKS) return; /* the thread was elsewhere */
    hak_counter_add(&heap->sampled_ticks, ticks);
    hak_counter_add(&heap->sample_count, 1);
}

static void end_sample(struct hak_heap *heap) {
    if (HAK_UNLIKELY(heap->sample_start != 0)) take_sample(heap);
}

static void leave(struct hak_heap *heap) {
    enum { PATHS_PER_LOOK = 64 }; /* for who never releases memory */
    if (HAK_UNLIKELY(hak_atomic_load(&heap->drain_wanted, relaxed) != 0)) {
        hak_atomic_store(&heap->drain_wanted, 0, relaxed);
        hak_heap_flush(heap);
    }
    hak_heap_end_slow_path(heap);
    if (HAK_UNLIKELY(hak_atomic_load(&heap->slow_paths, relaxed) % PATHS_PER_LOOK == 0)) hak_decay_look_for_idle();
    hak_background_notice();
}

/* Counts a miss. True in a long run: the program only allocates, or only frees. */
static bool count_miss(struct hak_heap *heap, uint32_t size_class, enum hak_miss kind) {
    int run = heap->miss_run[size_class] * kind; /* of this kind, if it is above 0 */
    run = run < 0 ? 1 : run < HAK_LONG_RUN ? run + 1 : run;
    heap->miss_run[size_class] = (int8_t)(run * kind);
    hak_counter_add(&heap->class_misses[size_class], 1);
    return run == HAK_LONG_RUN;
}

/* How many blocks a miss moves. It leaves the bin three eighths full: where a program allocates and frees at random,
 * fewer misses follow than from anywhere else, and more of them are refills, which take less time than flushes. In a
 * long run it leaves the bin full, or empty. */
static uint32_t batch_size(const struct hak_slots *slots, enum hak_miss kind, bool is_long) {
    uint32_t all = (uint32_t)(slots->end - slots->start), left = (3 * all + 4) / 8;
    uint32_t count = is_long ? all : kind == HAK_MISS_REFILL ? left : all - left;
    uint32_t most = is_long ? MOST_BLOCKS_IN_A_RUN : MOST_BLOCKS_PER_MISS;
    if (HAK_UNLIKELY(hak_frees_directly())) most = MOST_BLOCKS_TO_LOOK_THROUGH;
    return count < most ? count : most;
}

/* What a refill may take while blocks are put between guards: no more than there are before the next one, so that the
 * miss that follows is its. What a bin hands out again without a miss isn't counted. */
static HAK_COLD uint32_t up_to_guarded(const struct hak_heap *heap, uint32_t want) {
    return heap->unguarded_count > 0 && want > heap->unguarded_count ? (uint32_t)heap->unguarded_count : want;
}

/* By now blocks of one size for all of its group cost more than slabs that are not full. */
static bool is_group_to_open(uint32_t size_class) {
    if (!hak_routes_is_closed_group(size_class)) return false;
    int32_t heaps = (int32_t)hak_atomic_load(&hak_heaps_about, relaxed);
    return hak_atomic_load(&hak_pool_slabs[size_class], relaxed) > SLABS_TO_OPEN * (heaps + (heaps == 0));
}

/* Fills a closed bin that is empty. */
static bool refill(struct hak_heap *heap, uint32_t size_class) {
    if (HAK_UNLIKELY(hak_heap_grow_bin(heap, size_class) == HAK_BIN_TOO_LARGE)) hak_heap_shrink_bin(heap, size_class);
    bool is_long = count_miss(heap, size_class, HAK_MISS_REFILL);
    void **base = heap->slots[size_class].start;
    uint32_t want = batch_size(&heap->slots[size_class], HAK_MISS_REFILL, is_long);
    if (HAK_UNLIKELY(hak_knob(guard_share) != 0)) want = up_to_guarded(heap, want);
    uint32_t got = want > 0 ? hak_pool_take(heap, size_class, base + want, want) : 0;
    if (got == 0) return false;
    heap->unguarded_count -= got;
    if (HAK_UNLIKELY(is_group_to_open(size_class))) hak_routes_open_group(size_class);
    if (got < want) memmove(base, base + (want - got), got * sizeof(void *));
    hak_bin_set_top(&heap->bins[size_class], base + got);
    HAK_COUNT(heap, refills, 1);
    HAK_COUNT(heap, refilled_blocks, got);
    return true;
}

bool hak_front_refill(uint32_t size_class) {
    struct hak_heap *heap = enter();
    if (heap == NULL) return false;
    hak_heap_close_bin(heap, size_class);
    bool filled = hak_heap_cached(heap, size_class) != 0 || refill(heap, size_class);
    hak_heap_open_bin(heap, size_class);
    leave(heap);
    return filled;
}

/* Makes room in a closed bin that is full: more slots, or the oldest blocks go back. True in a long run: the bin is
 * to be for frees only. */
static bool make_room(struct hak_heap *heap, uint32_t size_class) {
    enum hak_bin_fit fit = hak_heap_grow_bin(heap, size_class);
    if (fit == HAK_BIN_GREW) return false;
    bool is_long = count_miss(heap, size_class, HAK_MISS_FLUSH);
    uint32_t count = batch_size(&heap->slots[size_class], HAK_MISS_FLUSH, is_long);
    if (count == 0) return false;
    hak_heap_put_oldest(heap, size_class, count);
    if (HAK_UNLIKELY(fit == HAK_BIN_TOO_LARGE)) hak_heap_shrink_bin(heap, size_class);
    HAK_COUNT(heap, flushes, 1);
    return is_long;
}

/* ---- Allocation -------------------------------------------------------------------------------------------------- */

static HAK_ATOMIC(uint64_t) drained_in_vain_ms; /* 0: the last time it was of use */

/* The kernel has no more. What heaps keep free as blocks of other sizes, slabs and units is made free for all, and kept
 * mappings go back; then the caller tries again. What other threads keep takes a fence: a program that lives at its
 * limit does not wait for that each time. */
static HAK_COLD void reclaim(size_t want_bytes, bool everywhere) {
    uint64_t vain_ms = hak_atomic_load(&drained_in_vain_ms, relaxed);
    bool drains = vain_ms == 0 || hak_os_clock_ms() - vain_ms >= RECLAIM_AGAIN_MS;
    struct hak_heap *heap = enter();
    hak_purge_reclaim(heap, drains, everywhere, want_bytes);
    if (drains) hak_atomic_store(&drained_in_vain_ms, hak_os_clock_ms(), relaxed);
    if (heap != NULL) leave(heap);
}

/* When the last look behind all runs was in vain; 0: it was of use. */
static HAK_ATOMIC(uint64_t) looked_in_vain_ms;

/* After a search: true when one more is to look everywhere. */
static HAK_COLD bool looks_further(const void *block, bool *everywhere) {
    uint64_t now_ms = hak_os_clock_ms(), vain_ms = hak_atomic_load(&looked_in_vain_ms, relaxed);
    if (*everywhere) hak_atomic_store(&looked_in_vain_ms, block == NULL ? now_ms : 0, relaxed);
    if (*everywhere || block != NULL) return false;
    *everywhere = vain_ms == 0 || now_ms - vain_ms >= RECLAIM_AGAIN_MS;
    return *everywhere;
}

/* What came of it. */
static HAK_COLD void *reclaimed(void *block) {
    if (block == NULL) return out_of_memory();
    hak_atomic_store(&drained_in_vain_ms, 0, relaxed);
    return block;
}

/* Of much more than hakmem has in all, what it has free would be no great part. */
static bool may_reclaim(size_t bytes) {
    enum { GREAT_PART = 16 };
    return bytes / GREAT_PART <= hak_region_count_super_slabs() * HAK_SUPER_SLAB_BYTES + hak_mapping_cache_bytes();
}

/* The last request above a SuperSlab that was refused after all that: its units above, and below them what had changed
 * by then; and when other heaps were drained for it. While nothing more has changed, and for RECLAIM_AGAIN_MS after
 * that at most, as large a one asks the kernel only. */
static HAK_ATOMIC(uint64_t) vain_request, vain_request_ms;

static uint64_t make_request(size_t size, uint64_t changes) {
    return ((uint64_t)size + HAK_UNIT_BYTES - 1) / HAK_UNIT_BYTES << 32 | (uint32_t)changes;
}

static bool is_in_vain(size_t size) {
    uint64_t vain = hak_atomic_load(&vain_request, relaxed);
    if (HAK_LIKELY(vain == 0) || make_request(size, UINT32_MAX) < vain ||
        hak_os_clock_ms() - hak_atomic_load(&vain_request_ms, relaxed) >= RECLAIM_AGAIN_MS)
        return false;
    struct hak_heap *heap = enter();
    if (heap == NULL) return false;
    hak_heap_flush(heap); /* what was freed since shows */
    leave(heap);
    return (uint32_t)hak_purge_count_changes() == (uint32_t)vain;
}

static HAK_COLD void *alloc_large_at_last(size_t size, size_t alignment, bool clear) {
    if (!may_reclaim(size)) return out_of_memory();
    uint64_t changes = hak_purge_count_changes();
    bool everywhere = false;
    void *block;
    do {
        reclaim(size + alignment, everywhere);
        block = hak_large_alloc(size, alignment, clear);
    } while (looks_further(block, &everywhere));
    if (block == NULL && size > HAK_SUPER_SLAB_BYTES && alignment <= HAK_UNIT_BYTES) {
        hak_atomic_store(&vain_request_ms, hak_atomic_load(&drained_in_vain_ms, relaxed), relaxed);
        hak_atomic_store(&vain_request, make_request(size, changes), relaxed);
    }
    return reclaimed(block);
}

static void *serve_large(size_t size, size_t alignment, bool clear) {
    bool in_vain = HAK_UNLIKELY(is_in_vain(size));
    void *block = in_vain ? hak_large_map(size, alignment, clear) : hak_large_alloc(size, alignment, clear);
    if (HAK_LIKELY(block != NULL)) return block;
    return in_vain ? out_of_memory() : alloc_large_at_last(size, alignment, clear);
}

/* In a unit that the heap keeps, if one will do. */
static void *alloc_in_kept_unit(size_t size, size_t alignment, bool clear) {
    if (size > HAK_UNIT_BYTES - HAK_CANARY_BYTES || alignment > HAK_UNIT_BYTES) return NULL;
    struct hak_heap *heap = enter();
    if (heap == NULL) return NULL;
    struct hak_slab *unit = hak_heap_take_unit(heap);
    void *block = unit == NULL ? NULL : hak_large_use_unit(unit, size, clear);
    leave(heap);
    return block;
}

/* A large object was made, or resized to what is counted again. To be called as a last act, so that the stack begins in
 * the caller (-foptimize-sibling-calls in cmake/options.cmake); returns the block. */
static HAK_COLD void *meter_large(void *block, size_t size, struct hak_heap *heap) {
    uintptr_t addresses[HAK_PROFILE_STACK_MOST];
    size_t bytes = hak_region_find((uintptr_t)block).bytes;
    hak_profile_change_large(1, (int64_t)bytes);
    uint64_t weight = hak_meter_weigh_large(heap, size, bytes);
    if (weight == 0) return block;
    uint32_t depth = hak_profile_walk(__builtin_frame_address(0), addresses);
    hak_profile_record(block, size, 0, weight, hak_meter_moment(heap), addresses, depth);
    return block;
}

/* Of a large object that is about to be freed. */
static HAK_COLD void unmeter_large(const void *block, size_t bytes) {
    struct hak_profile_entry sampled = hak_profile_forget(block);
    hak_profile_change_large(-1, -(int64_t)bytes);
    if (sampled.site != 0) hak_profile_judge(&sampled, hak_meter_moment(hak_thread_heap));
}

/* At the end of a call that has made the heap larger, perhaps. Not in the middle of one: whoever has wrapped the
 * kernel's calls may allocate in them. */
static void look_after_growth(void) {
    if (HAK_UNLIKELY(hak_in_hand_own != 0)) return;
    hak_tight_notice();
    hak_decay_notice();
    hak_meter_notice_tracer();
}

/* The secure build's: what lies behind a large object is looked at before the object changes, or is freed by what frees
 * objects from such a call, and filled when it is in place. By who has won the object. */
static bool open_large(const struct hak_large_watch *watch, const struct hak_place *place, uint32_t origin) {
    return hak_from_without_left(origin) == watch->from &&
           hak_canary_clear((void *)place->start, place->bytes, hak_large_slack_bytes(place->bytes));
}

static void close_large(void *block, size_t usable) { hak_canary_fill(block, usable, hak_large_slack_bytes(usable)); }

/* It wasn't opened, and is as it was. */
static HAK_COLD void report_unopened(const struct hak_place *place, uint32_t from, const char *function) {
    const void *block = (const void *)place->start;
    uint32_t origin = hak_from_without_left(hak_large_origin(place));
    hak_canary_compare_origin(block, place->bytes, origin, from, function);
    hak_canary_look_behind(block, place->bytes, hak_large_slack_bytes(place->bytes), function);
}

void *hak_front_alloc_large(size_t size, size_t alignment, bool clear, const void *caller) {
    if (HAK_UNLIKELY(size > PTRDIFF_MAX) || !hak_process_initialize()) return out_of_memory();
    if (size == 0) size = 1;
    void *block = alloc_in_kept_unit(size, alignment, clear);
    if (block == NULL && (block = serve_large(size, alignment, clear)) == NULL) return NULL;
    if (HAK_SECURE) close_large(block, size);
    struct hak_heap *heap = hak_thread_attach();
    HAK_COUNT(heap, large_allocs, 1);
    if (HAK_LIKELY(heap != NULL)) hak_background_want(caller);
    look_after_growth();
    return hak_profile_is_on() ? meter_large(block, size, heap) : block;
}

/* NULL when that can't be done, or copying is better. */
static void *resize_watched(const struct hak_place *place, size_t size) {
    static const struct hak_large_watch watch = {open_large, close_large, HAK_FROM_MALLOC};
    void *resized;
    enum hak_large_outcome outcome = hak_large_resize_watched(place, size, HAK_SECURE ? &watch : NULL, &resized);
    if (HAK_UNLIKELY(outcome == HAK_LARGE_UNOPENED)) report_unopened(place, HAK_FROM_MALLOC, "realloc");
    if (HAK_UNLIKELY(outcome == HAK_LARGE_LOST))
        hak_misuse(HAK_MISUSE_FREED_BLOCK, "realloc", (void *)place->start, 0, place->bytes);
    return resized;
}

void *hak_front_resize_large(const struct hak_place *place, size_t size, const void *caller) {
    void *block = (void *)place->start;
    /* Before another thread can have the address. */
    struct hak_profile_entry sampled = hak_profile_forget(block);
    void *resized = resize_watched(place, size);
    if (resized == NULL) {
        hak_profile_take_back(block, &sampled);
        return NULL;
    }
    struct hak_heap *heap = hak_thread_attach();
    if (resized != block) {
        if (sampled.site != 0) hak_profile_judge(&sampled, hak_meter_moment(hak_thread_heap));
        hak_freed_note(heap, block, place->bytes);
    }
    if (hak_profile_is_on()) hak_profile_change_large(-1, -(int64_t)place->bytes);
    HAK_COUNT(heap, large_resizes, 1);
    if (HAK_LIKELY(heap != NULL)) hak_background_want(caller);
    hak_signal_fence();
    hak_background_notice(); /* it may be smaller now */
    look_after_growth();
    return hak_profile_is_on() ? meter_large(resized, size, heap) : resized;
}

HAK_COLD void *hak_front_resize_at_last(const struct hak_place *place, size_t size, const void *caller) {
    if (size <= place->bytes || !may_reclaim(size - place->bytes)) return out_of_memory();
    bool everywhere = false;
    void *resized;
    do {
        reclaim(size - place->bytes, everywhere);
        resized = hak_front_resize_large(place, size, caller);
    } while (looks_further(resized, &everywhere));
    return reclaimed(resized);
}

void *hak_front_stay(const struct hak_place *place, size_t size, const void *caller) {
    if (size > hak_front_room(place)) return NULL;
    if (!hak_place_is_large(place)) return hak_front_end_at((void *)place->start, size);
    size_t least = size > HAK_SMALL_MAX ? size : HAK_SMALL_MAX + 1;
    bool is_as_asked = least <= place->bytes && hak_front_resize_large(place, least, caller) != NULL && least == size;
    if (HAK_SECURE && !is_as_asked) hak_large_set_origin(place, HAK_FROM_MALLOC_LEFT);
    return (void *)place->start;
}

static void hand_out(void *block, uint32_t size_class, size_t size) {
    if (HAK_SECURE) hak_canary_hand_out(block, hak_usable_bytes(size_class), size, HAK_FROM_MALLOC);
}

static void *alloc_small(struct hak_heap *heap, uint32_t size_class, size_t size) {
    struct hak_bin *bin = &heap->bins[size_class];
    void *block = NULL;
    hak_heap_close_bin(heap, size_class);
    if (hak_heap_cached(heap, size_class) != 0 || refill(heap, size_class)) {
        void **top = hak_owned_get(&bin->top) - 1;
        block = *top;
        hak_bin_set_top(bin, top);
        hand_out(block, size_class, size);
    }
    hak_heap_open_bin(heap, size_class);
    return block;
}

/* A block that no bin has, of a small or a sampled class. */
static void *take_one(uint32_t size_class, size_t size) {
    void *block;
    if (hak_pool_take(NULL, size_class, &block + 1, 1) == 0) return NULL;
    HAK_COUNT((struct hak_heap *)NULL, refilled_blocks, 1);
    hand_out(block, size_class, size);
    return block;
}

static HAK_COLD void *take_one_at_last(uint32_t size_class, size_t size) {
    bool everywhere = false;
    void *block;
    do {
        reclaim(0, everywhere);
        block = take_one(size_class, size);
    } while (looks_further(block, &everywhere));
    return reclaimed(block);
}

/* The end of each slow path that allocates. */
static void after_alloc(struct hak_heap *heap, const void *caller) {
    leave(heap);
    hak_background_want(caller);
    look_after_growth();
}

/* A block between guards, when one is due; the stack begins with the caller's frame. NULL: it is as others are. */
static HAK_COLD void *take_guarded(size_t size, const void *frame) {
    uintptr_t addresses[HAK_STACK_MOST];
    struct hak_heap *heap = hak_thread_heap;
    uint64_t interval = hak_knob(guard_share);
    if (heap->number == 0 || size > hak_os_page_bytes()) return NULL;
    bool is_first = heap->guard_share != interval;
    if (!is_first && heap->unguarded_count > 0) return NULL;
    hak_profile_seed_once();
    heap->guard_share = interval;
    heap->unguarded_count = hak_profile_draw(interval) - 1; /* this one is counted */
    if (is_first && heap->unguarded_count > 0) return NULL;
    if (hak_guard_begin()) hak_crash_install_for_guards();
    void *block = hak_guard_alloc(size, addresses, hak_stack_walk(frame, addresses));
    if (block == NULL) {
        HAK_COUNT(heap, guards_missed, 1);
        return NULL;
    }
    HAK_COUNT(heap, large_allocs, 1);
    HAK_COUNT(heap, guarded_allocs, 1);
    return block;
}

/* A block that is sampled, by a caller with this frame; NULL when there is no memory. */
static HAK_COLD void *alloc_sampled(struct hak_heap *heap, size_t size, uint32_t size_class, uint64_t weight,
                                    const void *frame) {
    uintptr_t addresses[HAK_PROFILE_STACK_MOST];
    void *block = take_one(hak_sampled_class(size_class), size);
    if (block == NULL) return NULL;
    uint32_t depth = hak_profile_walk(frame, addresses);
    hak_profile_record(block, size, size_class, weight, hak_meter_moment(heap), addresses, depth);
    return block;
}

static void *take_of_ration(struct hak_heap *heap, uint32_t size_class, size_t size) {
    struct hak_bin *ration = &heap->bins[hak_sampled_class(size_class)];
    void **top = hak_owned_get(&ration->top) - 1, *block = *top;
    hak_bin_set_top(ration, top);
    hand_out(block, size_class, size);
    return block;
}

/* A ration of up to `most` blocks, none of which is sampled. False without one: where samples come in runs, each malloc
 * takes what it would have had, so that slabs are filled as they are elsewhere. */
static bool begin_ration(struct hak_heap *heap, uint32_t size_class, uint32_t most) {
    if (hak_atomic_load(&hak_profile_in_runs, relaxed)) return false;
    if (HAK_UNLIKELY(hak_knob(guard_share) != 0)) most = up_to_guarded(heap, most);
    hak_heap_close_bin(heap, size_class);
    uint32_t count = hak_ration_fill(heap, size_class, most);
    hak_heap_open_bin(heap, size_class);
    heap->unguarded_count -= count;
    if (HAK_UNLIKELY(is_group_to_open(size_class))) hak_routes_open_group(size_class);
    return count != 0;
}

static void *alloc_unsampled(struct hak_heap *heap, uint32_t size_class, size_t size, uint32_t most) {
    if (HAK_LIKELY(begin_ration(heap, size_class, most))) return take_of_ration(heap, size_class, size);
    void *block = alloc_small(heap, size_class, size);
    if (block != NULL) hak_meter_pass_one(heap, size_class);
    return block;
}

/* Malloc of a small size is metered, and the ration is at its end. To be called as a last act, as above. */
static HAK_COLD void *alloc_metered(size_t size, const void *caller) {
    uint32_t size_class = hak_routes_class_of(size), unsampled = 1;
    struct hak_heap *heap = enter();
    void *block = NULL;
    if (heap != NULL && hak_ration_count(heap, size_class) != 0) { /* somebody had the heap at that moment */
        block = take_of_ration(heap, size_class, size);
        after_alloc(heap, caller);
        return block;
    }
    uint64_t weight = hak_background_is_starting ? 0 : hak_meter_weigh(heap, size_class, &unsampled);
    if (weight != 0) block = alloc_sampled(heap, size, size_class, weight, __builtin_frame_address(0));
    else if (HAK_UNLIKELY(hak_knob(guard_share) != 0)) block = take_guarded(size, __builtin_frame_address(0));
    if (heap != NULL && block == NULL && weight == 0) block = alloc_unsampled(heap, size_class, size, unsampled);
    if (heap != NULL) {
        after_alloc(heap, caller);
        hak_meter_notice(heap);
    }
    if (block == NULL) block = take_one(size_class, size);
    return block != NULL ? block : take_one_at_last(size_class, size);
}

static HAK_MISS void *alloc_missed(size_t size, const void *caller) {
    if (HAK_UNLIKELY(hak_knob(guard_share) != 0)) {
        void *guarded = take_guarded(size, __builtin_frame_address(0));
        if (guarded != NULL) return guarded;
    }
    struct hak_heap *heap = enter();
    if (HAK_UNLIKELY(heap == NULL) && !hak_process_initialize()) return out_of_memory();
    uint32_t size_class = hak_routes_class_of(size);
    void *block;
    if (HAK_LIKELY(heap != NULL)) {
        begin_sample(heap);
        block = alloc_small(heap, size_class, size);
        end_sample(heap);
        after_alloc(heap, caller);
        if (HAK_LIKELY(block != NULL)) return block;
    }
    block = take_one(size_class, size);
    return HAK_LIKELY(block != NULL) ? block : take_one_at_last(size_class, size);
}

void *hak_front_alloc_miss(size_t size, const void *caller) {
    if (size > HAK_SMALL_MAX) return hak_front_alloc_large(size, HAK_ALIGNMENT, false, caller);
    uint32_t offset = hak_atomic_load(&hak_bin_offsets[hak_route_index(size)], relaxed);
    bool is_metered = offset > HAK_SMALL_CLASS_COUNT * HAK_BIN_STRIDE;
    return HAK_UNLIKELY(is_metered) ? alloc_metered(size, caller) : alloc_missed(size, caller);
}

void *hak_front_alloc_uncached(size_t size, const void *caller) {
    if (!hak_process_initialize()) return out_of_memory();
    uint32_t size_class = hak_routes_class_of(size);
    void *block = take_one(size_class, size);
    if (HAK_UNLIKELY(block == NULL)) block = take_one_at_last(size_class, size);
    if (HAK_LIKELY(hak_thread_attach() != NULL)) hak_background_want(caller);
    look_after_growth();
    return block;
}

/* ---- Free -------------------------------------------------------------------------------------------------------- */

/* What is nobody's: what is known of it. */
static HAK_COLD _Noreturn void misuse_of_nobodys(const void *block, const char *function, bool is_freeing) {
    size_t bytes = hak_guard_freed_bytes((uintptr_t)block);
    if (bytes == 0) bytes = hak_freed_bytes(block);
    if (HAK_SECURE && bytes == 0) bytes = hak_run_quarantine_bytes((uintptr_t)block);
    if (bytes == 0) hak_misuse(HAK_MISUSE_FOREIGN_POINTER, function, block, 0, 0);
    hak_misuse(is_freeing ? HAK_MISUSE_DOUBLE_FREE : HAK_MISUSE_FREED_BLOCK, function, block, 0, bytes);
}

static struct hak_place place_of(const void *block, const char *function, bool is_freeing) {
    uintptr_t address = (uintptr_t)block;
    struct hak_place place = hak_region_find(address);
    /* Of no bytes is what another thread has freed just now. */
    if (HAK_UNLIKELY(place.kind == HAK_PLACE_FOREIGN) || HAK_UNLIKELY(place.bytes == 0))
        misuse_of_nobodys(block, function, is_freeing);
    if (HAK_UNLIKELY(place.start != address))
        hak_misuse(HAK_MISUSE_INTERIOR_POINTER, function, block, address - place.start, hak_front_usable_bytes(&place));
    return place;
}

/* The thread's own heap has taken the block ahead, to hand it out. No drainer moves what it has claimed meanwhile. */
static HAK_COLD bool is_claimed_here(const struct hak_place *place) {
    struct hak_heap *heap = hak_thread_attach();
    if (heap == NULL || !hak_heap_begin_moment(heap)) return false;
    bool is_held = hak_atomic_load(&place->slab->state, relaxed) == hak_slab_state(HAK_SLAB_HELD, heap->number);
    bool is_claimed = is_held && hak_pool_has_claimed(place);
    hak_heap_end_moment(heap);
    return is_claimed;
}

/* As far as is known where frees go to slabs. */
static HAK_COLD bool is_free_small(const struct hak_place *place, const void *block) {
    return hak_heap_has_cached(hak_thread_heap, hak_plain_class(place->size_class), block) ||
           hak_pool_has_free(block, place->size_class) || is_claimed_here(place);
}

bool hak_front_is_free_nearby(const void *block, uint32_t size_class) {
    const struct hak_heap *heap = hak_thread_heap;
    bool is_settled = hak_atomic_load(&heap->busy, relaxed) == 0;
    return is_settled && hak_heap_has_newest(heap, size_class, block);
}

struct hak_place hak_front_place_of(const void *block, const char *function) {
    struct hak_place place = place_of(block, function, false);
    if (HAK_UNLIKELY(place.kind != HAK_PLACE_SMALL)) return place;
    bool is_live = HAK_SECURE ? hak_canary_is_live(block, place.bytes, &place.bytes, function)
                              : HAK_LIKELY(!hak_frees_directly()) || !is_free_small(&place, block);
    if (HAK_UNLIKELY(!is_live)) hak_misuse(HAK_MISUSE_FREED_BLOCK, function, block, 0, place.bytes);
    return place;
}

struct hak_place hak_front_place_to_resize(const void *block, const char *function) {
    struct hak_place place = hak_front_place_of(block, function);
    if (!HAK_SECURE && place.kind == HAK_PLACE_SMALL &&
        HAK_UNLIKELY(hak_front_is_free_nearby(block, hak_plain_class(place.size_class))))
        hak_misuse(HAK_MISUSE_FREED_BLOCK, function, block, 0, place.bytes);
    if (HAK_SECURE && place.kind == HAK_PLACE_SMALL)
        hak_canary_expect_from(block, hak_usable_bytes(place.size_class), HAK_FROM_MALLOC, function);
    return place;
}

/* Into the bin. False when it can't have slots. */
static bool cache_block(struct hak_heap *heap, void *block, uint32_t size_class) {
    struct hak_bin *bin = &heap->bins[size_class];
    bool is_for_frees = false;
    hak_heap_close_bin(heap, size_class);
    /* One of the newest, or of an empty bin one that was until it was flushed. */
    bool is_free = hak_heap_cached(heap, size_class) != 0 ? hak_heap_has_newest(heap, size_class, block)
                                                          : hak_pool_has_free(block, size_class);
    if (HAK_UNLIKELY(is_free))
        hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", block, 0, hak_size_classes[size_class].block_bytes);
    const struct hak_slots *slots = &heap->slots[size_class];
    if (slots->end == NULL || hak_owned_get(&bin->top) == slots->end) is_for_frees = make_room(heap, size_class);
    void **top = hak_owned_get(&bin->top);
    bool has_room = slots->end != NULL && top != slots->end;
    if (HAK_LIKELY(has_room)) {
        *top = block;
        hak_bin_set_top(bin, top + 1);
    }
    if (is_for_frees) hak_heap_keep_for_frees(heap, size_class);
    else hak_heap_open_bin(heap, size_class);
    return has_room;
}

static HAK_COLD void free_sampled(void *block, uint32_t size_class) {
    struct hak_profile_entry sampled = hak_profile_forget(block);
    if (sampled.site != 0) hak_profile_judge(&sampled, hak_meter_moment(hak_thread_heap));
    HAK_COUNT((struct hak_heap *)NULL, flushed_blocks, 1);
    hak_pool_put(NULL, size_class, &block, 1);
}

/* To its slab, past the bin: a block that either has is freed twice. `heap` may be NULL. */
static HAK_COLD void free_directly(struct hak_heap *heap, void *block, uint32_t size_class) {
    if (heap != NULL && hak_heap_has_cached(heap, size_class, block))
        hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", block, 0, hak_size_classes[size_class].block_bytes);
    HAK_COUNT(heap, flushed_blocks, 1);
    hak_pool_put(heap, size_class, &block, 1);
}

/* Of an empty bin: elsewhere the look would take as long as a good part of the miss. Before the bin is closed, because
 * the look may take another heap apart, which its thread has left. */
static void look_at_holder(const struct hak_heap *heap, const void *block, uint32_t size_class) {
    if (HAK_SECURE || hak_heap_cached(heap, size_class) != 0 || HAK_UNLIKELY(hak_frees_directly())) return;
    if (HAK_UNLIKELY(hak_holder_has(heap, size_class, block)))
        hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", block, 0, hak_size_classes[size_class].block_bytes);
}

static void free_unsampled(void *block, uint32_t size_class) {
    struct hak_heap *heap = enter();
    if (HAK_LIKELY(heap != NULL)) {
        begin_sample(heap);
        look_at_holder(heap, block, size_class);
    }
    if (HAK_UNLIKELY(heap == NULL || hak_frees_directly() || !cache_block(heap, block, size_class)))
        free_directly(heap, block, size_class);
    if (HAK_LIKELY(heap != NULL)) {
        end_sample(heap);
        if (HAK_UNLIKELY(heap->is_shrink_due)) hak_shrink_go_on(heap);
        leave(heap);
    }
}

static HAK_MISS void free_without_wait(void *block, uint32_t size_class) { free_unsampled(block, size_class); }

/* The block waits, and another one that has waited is free as in the other builds. Without the heap none waits. */
HAK_INLINE void free_to_quarantine(void *block, uint32_t size_class) {
    struct hak_heap *heap = hak_thread_attach();
    void *other = block;
    if (HAK_LIKELY(heap != NULL) && HAK_LIKELY(hak_heap_begin_moment(heap))) {
        other = hak_quarantine_exchange(heap, block, size_class);
        hak_heap_end_moment(heap);
        if (HAK_LIKELY(other == NULL) || HAK_LIKELY(hak_front_put(&heap->bins[size_class], other))) return;
    }
    free_without_wait(other, size_class);
}

static void free_small(void *block, uint32_t size_class) {
    if (HAK_UNLIKELY(size_class > HAK_SMALL_CLASS_COUNT)) free_sampled(block, size_class);
    else if (HAK_SECURE) free_to_quarantine(block, size_class);
    else free_unsampled(block, size_class);
}

static enum hak_large_outcome free_large(const struct hak_place *place, uint32_t from) {
    struct hak_large_watch watch = {open_large, close_large, from};
    bool is_unit = !HAK_SECURE && place->kind == HAK_PLACE_RUN && place->bytes <= HAK_UNIT_BYTES; /* C2 */
    bool is_kept = false;
    struct hak_heap *heap = is_unit ? enter() : NULL;
    if (heap != NULL) {
        struct hak_slab *unit = hak_heap_wants_unit(heap) ? hak_large_free_unit(place) : NULL;
        if (unit != NULL) hak_heap_keep_unit(heap, unit);
        is_kept = unit != NULL;
        leave(heap);
    }
    return is_kept ? HAK_LARGE_DONE : hak_large_free_watched(place, HAK_SECURE ? &watch : NULL);
}

/* A block between guards; the stack begins with the caller's frame. */
static HAK_COLD void free_guarded(void *block, size_t bytes, const void *frame) {
    uintptr_t addresses[HAK_STACK_MOST];
    ptrdiff_t offset;
    enum hak_guard_outcome outcome = hak_guard_free(block, addresses, hak_stack_walk(frame, addresses), &offset);
    if (outcome == HAK_GUARD_WAS_FREE) hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", block, 0, bytes);
    if (outcome == HAK_GUARD_SPOILED && offset < 0)
        hak_misuse(HAK_MISUSE_UNDERFLOW, "free", block, (size_t)-offset, bytes);
    if (outcome == HAK_GUARD_SPOILED) hak_misuse(HAK_MISUSE_OVERFLOW, "free", block, (size_t)offset - bytes, bytes);
    HAK_COUNT(hak_thread_attach(), large_frees, 1);
}

/* At the end of a call that frees: a turn of one kind. None in the middle of one: whoever has wrapped the kernel's
 * calls may free in them. */
static void take_turn(void) {
    if (HAK_UNLIKELY(hak_in_hand_own != 0)) return;
    if (HAK_UNLIKELY(hak_decay_owes())) hak_decay_pay();
    else hak_purge_notice();
}

HAK_INLINE void free_live_small(void *block, uint32_t size_class, uint32_t from) {
    if (HAK_SECURE) hak_canary_take_back(block, hak_usable_bytes(size_class), from);
    free_small(block, size_class);
    take_turn();
}

static HAK_MISS void free_any(void *block, uint32_t from) {
    if (block == NULL) return;
    uint32_t size_class = hak_front_class_of_start(block);
    if (HAK_LIKELY(size_class != HAK_CLASS_NONE)) {
        free_live_small(block, size_class, from);
        return;
    }
    struct hak_place place = place_of(block, "free", true);
    if (place.kind == HAK_PLACE_SMALL) {
        free_live_small(block, place.size_class, from);
        return;
    }
    if (HAK_UNLIKELY(place.kind == HAK_PLACE_GUARDED)) {
        HAK_WALKABLE();
        free_guarded(block, place.bytes, __builtin_frame_address(0));
        return;
    }
    if (hak_profile_is_begun()) unmeter_large(block, place.bytes);
    struct hak_heap *heap = hak_thread_attach();
    hak_freed_note(heap, block, place.bytes);
    enum hak_large_outcome outcome = free_large(&place, from);
    if (HAK_UNLIKELY(outcome == HAK_LARGE_UNOPENED)) report_unopened(&place, from, hak_canary_freed_by(from));
    if (HAK_UNLIKELY(outcome != HAK_LARGE_DONE)) hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", block, 0, place.bytes);
    HAK_COUNT(heap, large_frees, 1);
    take_turn();
    hak_signal_fence();
    hak_background_notice();
}

void hak_front_free_miss(void *block) { free_any(block, HAK_FROM_MALLOC); }

void hak_front_free_checked(void *block, uint32_t from) { free_any(block, from); }

void hak_front_change_from(void *block, uint32_t from) {
    struct hak_place place = hak_region_find((uintptr_t)block);
    if (place.start != (uintptr_t)block) return; /* a program's malloc has made it, behind a header of its own */
    if (place.kind == HAK_PLACE_SMALL) hak_canary_change(block, place.bytes, from);
    else if (hak_place_is_large(&place)) hak_large_set_origin(&place, from);
}

/* The room of a small block; 0 of another one. */
static size_t small_room_of(const void *block) {
    uint32_t size_class = hak_front_class_of_start(block);
    if (HAK_LIKELY(size_class != HAK_CLASS_NONE)) return hak_usable_bytes(size_class);
    struct hak_place place = hak_region_find((uintptr_t)block);
    return place.kind == HAK_PLACE_SMALL ? place.bytes : 0;
}

void hak_front_change_end(void *block, size_t size, bool is_fresh) {
    size_t room = small_room_of(block);
    if (HAK_UNLIKELY(room == 0)) return;
    if (size > room) size = room;
    if (is_fresh) hak_canary_shorten(block, room, size);
    else hak_canary_resize(block, room, size, "realloc");
}

static bool may_be_asked(const struct hak_place *place, size_t size) {
    if (!hak_place_is_large(place)) return hak_canary_may_be_asked((const void *)place->start, place->bytes, size);
    return size == place->bytes || hak_large_origin(place) == HAK_FROM_MALLOC_LEFT;
}

/* Whether a block is what was made for `size`. Many a `new` asks malloc for a byte where it was told none. */
static bool is_right_size(const struct hak_place *place, size_t size) {
    if (size > place->bytes) return false;
    /* One between guards has more than was asked for, if an alignment was. */
    if (place->kind == HAK_PLACE_GUARDED) return true;
    return may_be_asked(place, size) || (size == 0 && may_be_asked(place, 1));
}

void hak_front_check_size(const void *block, size_t alignment, size_t size) {
    uint32_t size_class = hak_front_class_of_start(block);
    size_t usable = hak_usable_bytes(size_class);
    struct hak_place place = {.kind = HAK_PLACE_SMALL, .start = (uintptr_t)block, .bytes = usable};
    if (HAK_UNLIKELY(size_class == HAK_CLASS_NONE)) place = hak_region_find((uintptr_t)block);
    if (block == NULL || place.start != (uintptr_t)block) return;
    if (!is_right_size(&place, size))
        hak_misuse(HAK_MISUSE_WRONG_SIZE, "free", block, size, hak_front_usable_bytes(&place));
    /* Which class the block is of tells nothing: rallocx leaves one that has room, if by chance it lies well. */
    if (!hak_is_power_of_two(alignment) || (uintptr_t)block % alignment != 0)
        hak_misuse(HAK_MISUSE_WRONG_ALIGNMENT, "free", block, alignment, hak_front_usable_bytes(&place));
}

void hak_front_free_uncached(void *block) {
    if (HAK_SECURE) { /* as all frees */
        hak_front_free_checked(block, HAK_FROM_MALLOC);
        return;
    }
    struct hak_place place = hak_region_find((uintptr_t)block);
    bool is_plain = place.kind == HAK_PLACE_SMALL && place.size_class <= HAK_SMALL_CLASS_COUNT;
    if (HAK_UNLIKELY(!is_plain)) {
        hak_front_free_miss(block);
        return;
    }
    struct hak_heap *heap = enter();
    free_directly(heap, block, place.size_class); /* which tells the start of a block from what lies in it */
    if (HAK_LIKELY(heap != NULL)) leave(heap);
    take_turn();
}

/* ---- Purging and prewarming -------------------------------------------------------------------------------------- */

void hak_front_end_waits(void) {
    struct hak_heap *heap = enter();
    hak_purge_drain(heap);
    if (heap != NULL) leave(heap);
}

size_t hak_front_purge(void) {
    struct hak_heap *heap = enter();
    size_t purged_bytes = hak_purge_all(heap);
    hak_purge_unmap();
    if (heap != NULL) leave(heap);
    return purged_bytes;
}

void hak_front_begin_round(void) {
    struct hak_heap *heap = enter();
    hak_purge_begin_round(heap);
    if (heap != NULL) leave(heap);
}

size_t hak_front_prewarm(size_t max_bytes) {
    struct hak_heap *heap = hak_thread_attach();
    if (heap == NULL) return 0;
    size_t blocks = 0;
    uint32_t last = hak_routes_class_of(max_bytes < HAK_SMALL_MAX ? max_bytes : HAK_SMALL_MAX);
    for (uint32_t i = 1; i <= last; i++) {
        if (hak_routes_class_of(hak_usable_bytes(i)) != i) continue;
        hak_front_refill(i);
        blocks += hak_heap_cached(heap, i);
    }
    return blocks;
}
