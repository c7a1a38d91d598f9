#include "region/large.h"

#include <string.h>

#include "base/counters.h"
#include "base/knobs.h"
#include "os/os.h"
#include "region/decay.h"
#include "region/directory.h"
#include "region/in_hand.h"
#include "region/mapping_cache.h"
#include "region/page_policy.h"
#include "region/run_quarantine.h"

/* States of a page run's record: for late readers, a slab somebody holds. */
static const uint32_t run_live = UINT32_MAX << 2 | HAK_SLAB_HELD, run_busy = (UINT32_MAX - 1) << 2 | HAK_SLAB_HELD,
                      run_freed = (UINT32_MAX - 2) << 2 | HAK_SLAB_HELD,
                      run_claimed = (UINT32_MAX - 3) << 2 | HAK_SLAB_HELD,
                      run_resized = (UINT32_MAX - 4) << 2 | HAK_SLAB_HELD;

/* ---- Allocation -------------------------------------------------------------------------------------------------- */

#define LONGEST_RUN_BYTES (64 * HAK_GIB)
#define LARGEST_RUN_ALIGNMENT HAK_GIB

/* A kept mapping up to this size is written to where the kernel refuses to make it zero; beyond, another is mapped. */
#define MOST_CLEARED_BYTES (64 * HAK_MIB)

/* Runs of at least so many bytes are moved by changing page tables, shorter ones by copying. */
#define LEAST_MOVED_BYTES (HAK_MIB / 2)

/* A run that grows by so large a part is copied, if so many times what it wants lies free and has its memory. */
enum { COPIED_GROWTH_SHARE = 2, COPIED_DIRTY_TIMES = 2 };

/* The pages of an object that has so many usable bytes. */
static size_t bytes_of_pages(size_t usable) { return hak_align_up(usable + HAK_CANARY_BYTES, hak_os_page_bytes()); }

/* And its mapping, with a page for the guard. */
static size_t bytes_of_mapping(size_t usable) {
    return bytes_of_pages(usable) + (HAK_SECURE ? hak_os_page_bytes() : 0);
}

static uint32_t units_for(size_t bytes) {
    return (uint32_t)((bytes + HAK_CANARY_BYTES + HAK_UNIT_BYTES - 1) >> HAK_UNIT_SHIFT);
}

static void set_facts_of_run(struct hak_slab *run, size_t bytes, uint32_t from) {
    if (HAK_SECURE) hak_atomic_store(&run->run_facts, bytes | (uint64_t)from << HAK_RUN_ORIGIN_SHIFT, relaxed);
}

static uint32_t origin_of_run(const struct hak_slab *run) {
    return HAK_SECURE ? (uint32_t)(hak_atomic_load(&run->run_facts, relaxed) >> HAK_RUN_ORIGIN_SHIFT) : 0;
}

static void set_bytes_of_run(struct hak_slab *run, size_t bytes) {
    hak_atomic_store(&run->run_pages, (uint32_t)(bytes_of_pages(bytes) / hak_os_page_bytes()), relaxed);
    hak_atomic_store(&run->purged_pages, 0, relaxed);
    hak_atomic_store(&run->sweeps, 0, relaxed);
}

static size_t bytes_of_run(const struct hak_slab *run) {
    return hak_atomic_load(&run->run_pages, relaxed) * hak_os_page_bytes();
}

/* What a run's record says of its tail, what lies in its last unit behind its last page, in the place where a slab's
 * says which pages were purged. CUT is said before the tail is unmapped, and until it is mapped again; GUARDED before
 * it gets guards, and until they are gone. */
enum { TAIL_MAPPED, TAIL_PURGED, TAIL_CUT, TAIL_GUARDED };

static size_t tail_bytes_of(const struct hak_slab *run) {
    size_t bytes = bytes_of_run(run);
    return hak_align_up(bytes, HAK_UNIT_BYTES) - bytes;
}

static uintptr_t tail_of(const struct hak_slab *run) {
    return hak_region_start_of(hak_region_range_of_record(run), run) + bytes_of_run(run);
}

/* The caller has the run, and its tail is whole. Where guards are refused the tail may have some, unless they are
 * gone. */
static void guard_tail(struct hak_slab *run) {
    if (!HAK_SECURE || tail_bytes_of(run) == 0) return;
    hak_atomic_store(&run->purged_pages, TAIL_GUARDED, relaxed);
    hak_signal_fence(); /* L3 */
    if (hak_page_policy_guard(hak_region_range_of_record(run), tail_of(run), tail_bytes_of(run))) return;
    if (hak_os_unguard((void *)tail_of(run), tail_bytes_of(run)))
        hak_atomic_store(&run->purged_pages, TAIL_MAPPED, relaxed);
}

/* Makes a run of units that the caller has. */
static void *begin_run(struct hak_slab *run, uint32_t units, size_t bytes) {
    set_bytes_of_run(run, bytes);
    set_facts_of_run(run, bytes, HAK_FROM_MALLOC);
    guard_tail(run);
    /* Release pairs with begin_change: who gets at the run sees its bytes. */
    hak_atomic_store(&run->state, run_live, release);
    hak_region_mark(run, units, HAK_CLASS_RUN_BODY);
    hak_signal_fence(); /* L1: the head's mark comes last */
    hak_region_mark(run, 1, HAK_CLASS_RUN_HEAD);
    return (void *)hak_region_start_of(hak_region_range_of_record(run), run);
}

static void *alloc_run(size_t bytes, size_t alignment, bool clear) {
    uint32_t units = units_for(bytes), unit_alignment = (uint32_t)((alignment + HAK_UNIT_BYTES - 1) >> HAK_UNIT_SHIFT);
    static const enum hak_unit_source sources[] = {HAK_UNITS_DIRTY, HAK_UNITS_FREE, HAK_UNITS_NEW_SUPER,
                                                   HAK_UNITS_LAST_RESORT};
    struct hak_slab *run = NULL;
    if (units > HAK_UNITS_PER_SUPER_SLAB || unit_alignment > HAK_UNITS_PER_SUPER_SLAB)
        run = hak_region_acquire_span(units, unit_alignment, clear);
    else
        for (size_t i = 0; run == NULL && i < sizeof sources / sizeof sources[0]; i++)
            run = hak_region_acquire(units, unit_alignment, sources[i], clear);
    return run == NULL ? NULL : begin_run(run, units, bytes);
}

void *hak_large_use_unit(struct hak_slab *unit, size_t bytes, bool clear) {
    void *block = begin_run(unit, 1, bytes);
    return clear ? memset(block, 0, bytes) : block;
}

static void *map_block(size_t bytes, size_t alignment) {
    void *start = hak_os_map(bytes, alignment);
    if (start == NULL) return NULL;
    if (hak_directory_set((uintptr_t)start, hak_entry_for_mapping(bytes))) {
        hak_count_growth(bytes / hak_os_page_bytes());
        hak_mapping_cache_tell_mapped(bytes);
        hak_page_policy_begin_mapping(start, bytes);
        return start;
    }
    hak_mapping_cache_give_back((uintptr_t)start, bytes);
    return NULL;
}

/* The object leaves the last page of its mapping. */
static bool has_guard_page(uint64_t entry) {
    return hak_entry_mapping_bytes(entry) > bytes_of_pages(hak_entry_usable_bytes(entry));
}

/* Before others can win the object, which has so many bytes now. */
static void close_object(const struct hak_large_watch *watch, void *start, size_t usable) {
    if (!HAK_SECURE || watch == NULL) return;
    watch->close(start, usable);
    hak_signal_fence();
}

/* Says in a mapping's entry what object it has, and guards it. Who has won it has it no longer. */
static void *begin_object(void *start, size_t usable, uint32_t from, const struct hak_large_watch *watch) {
    if (!HAK_SECURE || start == NULL) return start;
    size_t bytes = hak_entry_mapping_bytes(hak_directory_get((uintptr_t)start)), page = hak_os_page_bytes();
    uint64_t entry = hak_entry_for_object(bytes, usable, from);
    uintptr_t last = (uintptr_t)start + bytes - page;
    if (has_guard_page(entry) && !hak_os_guard((void *)last, page) && hak_page_policy_forbid(last))
        entry |= HAK_ENTRY_FORBIDDEN;
    close_object(watch, start, usable);
    hak_directory_set((uintptr_t)start, entry); /* can't fail: there is one */
    return start;
}

/* Takes the guard away from a mapping whose entry this was. Returns the bytes that it has then: if the kernel refuses,
 * the last page is none of it any more, and goes back, or is nobody's. */
static size_t end_object(uintptr_t start, uint64_t entry) {
    size_t bytes = hak_entry_mapping_bytes(entry);
    if (!HAK_SECURE || !has_guard_page(entry)) return bytes;
    size_t page = hak_os_page_bytes();
    void *last = (void *)(start + bytes - page);
    bool is_forbidden = (entry & HAK_ENTRY_FORBIDDEN) != 0,
         is_open = is_forbidden ? hak_os_commit(last, page) : hak_os_unguard(last, page);
    if (is_forbidden) hak_page_policy_count_allowed();
    if (is_open) return bytes;
    hak_os_unmap(last, page);
    return bytes - page;
}

/* In the secure build whoever touches what was freed faults, if the kernel has mapped nothing else there, and the
 * program doesn't want to keep it (mallopt). */
static bool free_mapping(uintptr_t start, uint64_t entry) {
    if (!hak_directory_replace(start, entry, HAK_ENTRY_NONE)) return false;
    size_t bytes = end_object(start, entry);
    if (HAK_SECURE && !hak_knob_is_highest(dirty_limit_bytes)) hak_mapping_cache_give_back(start, bytes);
    else hak_mapping_cache_put(start, bytes);
    hak_decay_after_release(0);
    return true;
}

static void *find_mapping(size_t bytes, size_t alignment, bool clear) {
    if (alignment > HAK_GRANULE_BYTES) return map_block(bytes, alignment);
    size_t have_bytes;
    void *kept = hak_mapping_cache_take(bytes, &have_bytes);
    if (kept == NULL) return map_block(bytes, HAK_GRANULE_BYTES);
    /* A mapping is too large to be written to before it is used. */
    if (!clear || hak_os_purge(kept, have_bytes)) return kept;
    if (have_bytes <= MOST_CLEARED_BYTES) return memset(kept, 0, have_bytes);
    free_mapping((uintptr_t)kept, hak_entry_for_mapping(have_bytes));
    return map_block(bytes, HAK_GRANULE_BYTES);
}

static void *alloc_mapping(size_t bytes, size_t alignment, bool clear) {
    return begin_object(find_mapping(bytes_of_mapping(bytes), alignment, clear), bytes, HAK_FROM_MALLOC, NULL);
}

static void *find_large(size_t bytes, size_t alignment, bool clear) {
    bool fits_run = alignment <= LARGEST_RUN_ALIGNMENT && bytes <= LONGEST_RUN_BYTES;
    bool prefers_run = fits_run && ((alignment <= HAK_SUPER_SLAB_BYTES && bytes <= hak_knob(run_limit_bytes)) ||
                                    !hak_page_policy_may_map());
    void *block = prefers_run ? alloc_run(bytes, alignment, clear) : NULL;
    if (block == NULL) block = alloc_mapping(bytes, alignment, clear);
    /* No address space or mapping left, but there may be units: at worst, all the program's memory is there, free. */
    return block == NULL && fits_run && !prefers_run ? alloc_run(bytes, alignment, clear) : block;
}

HAK_WRITTEN_BY_MANY HAK_ATOMIC(uint64_t) hak_large_counts[HAK_LARGE_BANDS];

static void count_in_band(size_t bytes) {
    size_t more = (bytes - 1) >> HAK_LARGE_FIRST_SHIFT;
    uint32_t band = more == 0 ? HAK_LARGE_BANDS : hak_highest_bit(more);
    if (band < HAK_LARGE_BANDS) hak_counter_add_shared(&hak_large_counts[band], 1);
}

/* False when the kernel would refuse the request even if hakmem gave back all that it has: then it is of no use to wait
 * for what others have in hand. */
static bool may_be_met(size_t bytes, struct hak_search *search) {
    size_t page = hak_os_page_bytes(), have = hak_atomic_load(&hak_os_counters.mapped_bytes, relaxed);
    if (bytes <= have) return true;
    size_t more = hak_align_up(bytes - have, page);
    hak_in_hand_begin(); /* whoever is refused meanwhile looks again */
    void *found = hak_os_map(more, page);
    if (found != NULL) hak_os_unmap(found, more);
    hak_in_hand_end();
    hak_search_forget_own(search);
    return found != NULL;
}

void *hak_large_alloc(size_t bytes, size_t alignment, bool clear) {
    struct hak_search search = hak_search_begin();
    void *block;
    count_in_band(bytes);
    do {
        struct hak_change change = hak_change_begin();
        block = find_large(bytes, alignment, clear);
        hak_change_end(change, false);
    } while (HAK_UNLIKELY(block == NULL) && may_be_met(bytes, &search) && hak_search_again(&search));
    return block;
}

void *hak_large_map(size_t bytes, size_t alignment, bool clear) {
    struct hak_change change = hak_change_begin();
    void *block = alloc_mapping(bytes, alignment, clear);
    hak_change_end(change, false);
    return block;
}

/* ---- Freeing ----------------------------------------------------------------------------------------------------- */

/* The caller has the run, and only its units afterwards. Returns how many. */
static uint32_t end_run(struct hak_slab *run) {
    size_t bytes = bytes_of_run(run), whole_bytes = hak_align_up(bytes, HAK_UNIT_BYTES);
    uint32_t units = (uint32_t)(whole_bytes >> HAK_UNIT_SHIFT);
    if (hak_atomic_load(&run->purged_pages, relaxed) != 0)
        hak_count_growth((whole_bytes - bytes) / hak_os_page_bytes());
    hak_atomic_store(&run->state, HAK_SLAB_NONE, relaxed);
    hak_atomic_store(&run->run_pages, 0, relaxed);
    hak_region_mark(run, units, HAK_CLASS_NONE);
    return units;
}

static bool is_cut(const struct hak_slab *run) { return hak_atomic_load(&run->purged_pages, relaxed) == TAIL_CUT; }

static bool is_guarded(const struct hak_slab *run) {
    return HAK_SECURE && hak_atomic_load(&run->purged_pages, relaxed) == TAIL_GUARDED;
}

static bool take_guards(struct hak_slab *run) {
    if (!hak_os_unguard((void *)tail_of(run), tail_bytes_of(run))) return false;
    hak_signal_fence(); /* L3 */
    hak_atomic_store(&run->purged_pages, TAIL_PURGED, relaxed);
    return true;
}

/* The caller has the run. False when its tail was cut, and the kernel doesn't map it again, or has guards that the
 * kernel doesn't take away. */
static bool restore_tail(struct hak_slab *run) {
    if (is_guarded(run)) return take_guards(run);
    if (HAK_LIKELY(!is_cut(run))) return true;
    if (hak_page_policy_map_again(tail_of(run), tail_bytes_of(run), false) != HAK_OS_MAPPED) return false;
    hak_page_policy_count_cut(-1);
    hak_atomic_store(&run->purged_pages, TAIL_PURGED, relaxed);
    return true;
}

/* The caller has the run, which has been ended, and whose tail is cut: its last unit becomes absent, or if the kernel
 * refuses even that, nobody's. */
static void give_up_last_unit(struct hak_slab *last, size_t bytes) {
    struct hak_range *range = hak_region_range_of_record(last);
    hak_page_policy_count_cut(-1);
    if (hak_os_unmap((void *)hak_region_start_of(range, last), bytes)) hak_region_release_absent(last);
}

/* The caller has the run, and gives up its units, of which this is the count; `moved` says that they have no memory any
 * more. */
static uint32_t give_up_run(struct hak_slab *run, bool moved) {
    size_t bytes = bytes_of_run(run);
    bool is_whole = restore_tail(run), was_guarded = !is_whole && is_guarded(run);
    uint32_t units = end_run(run);
    if (HAK_UNLIKELY(!is_whole)) {
        struct hak_slab *last = run + --units;
        hak_atomic_store(&last->range, hak_atomic_load(&run->range, relaxed), relaxed);
        if (was_guarded) hak_region_give_up_guarded(last);
        else give_up_last_unit(last, bytes - (size_t)units * HAK_UNIT_BYTES);
    }
    if (moved) hak_region_release_fresh(run, units);
    else if (units != 0) hak_region_release(run, units);
    return units;
}

/* The caller has the run, which was freed or has moved. In the secure build it waits, if it can. Returns how many units
 * it has given up. */
static uint32_t retire_run(struct hak_slab *run, bool moved) {
    hak_atomic_store(&run->state, HAK_SLAB_NONE, relaxed);
    bool waits = HAK_SECURE && (!is_cut(run) || restore_tail(run)) && hak_run_quarantine_put(run);
    return waits ? 0 : give_up_run(run, moved);
}

/* Gets at a run, unless somebody else is. */
static bool begin_change(struct hak_slab *run) {
    uint32_t state = run_live;
    hak_hand_note_run(run);
    /* Acquire pairs with alloc_run and end_change. */
    return hak_atomic_cas(&run->state, &state, run_busy, acquire, relaxed);
}

static void end_change(struct hak_slab *run) {
    for (uint32_t state = run_busy; state == run_busy || state == run_claimed;) {
        uint32_t then = state == run_busy ? run_live : HAK_SLAB_NONE;
        /* Release pairs with begin_change, begin_resize and win_run, or of a run that was won meanwhile, with
         * leave_to_other: what was purged was so before. Acquire pairs with free_run: the program is done with it. */
        if (hak_atomic_cas(&run->state, &state, then, release, acquire)) return;
        if (state == run_freed) retire_run(run, false);
    }
}

/* Of two threads that free a run at once, one wins it. */
static bool win_run(struct hak_slab *run) {
    for (uint32_t state = run_live;;) {
        if (state != run_live && state != run_busy) return false;
        /* Relaxed: what is no plain store hands on what end_change and end_resize have released, to leave_to_other. */
        if (hak_atomic_cas(&run->state, &state, state == run_live ? HAK_SLAB_NONE : run_claimed, relaxed, relaxed))
            return true;
    }
}

/* Who has won the run leaves it to whoever is at it, in this state. False when nobody is. */
static bool leave_to_other(struct hak_slab *run, uint32_t then) {
    /* Acquire and release pair with end_change, the first with end_resize, too (win_run). */
    uint32_t state = hak_atomic_load(&run->state, acquire);
    return state == run_claimed && hak_atomic_cas(&run->state, &state, then, release, acquire);
}

/* Nobody is at the run any more. */
static void make_live(struct hak_slab *run) {
    /* Release pairs with begin_change, begin_resize and win_run. */
    hak_atomic_store(&run->state, run_live, release);
}

/* The bytes that a run, which the caller has won, has in the secure build. */
static struct hak_place place_of_won(const struct hak_place *place) {
    struct hak_place won = *place;
    won.bytes = hak_run_usable_bytes(hak_atomic_load(&place->slab->run_facts, relaxed));
    return won;
}

/* Of an object that the caller has won. */
static enum hak_large_outcome open_object(const struct hak_large_watch *watch, const struct hak_place *found,
                                          const struct hak_place *won, uint32_t origin) {
    if (watch == NULL) return HAK_LARGE_DONE;
    if (found->bytes != won->bytes) return HAK_LARGE_LOST; /* it is another one's */
    return watch->open(watch, won, origin) ? HAK_LARGE_DONE : HAK_LARGE_UNOPENED;
}

static enum hak_large_outcome open_run(const struct hak_large_watch *watch, const struct hak_place *place) {
    if (!HAK_SECURE) return HAK_LARGE_DONE;
    struct hak_place won = place_of_won(place);
    return open_object(watch, place, &won, origin_of_run(place->slab));
}

static enum hak_large_outcome free_run(const struct hak_place *place, const struct hak_large_watch *watch) {
    struct hak_slab *run = place->slab;
    if (!win_run(run)) return HAK_LARGE_LOST;
    enum hak_large_outcome outcome = open_run(watch, place);
    if (outcome != HAK_LARGE_DONE) {
        if (!leave_to_other(run, run_busy)) make_live(run);
        return outcome;
    }
    if (leave_to_other(run, run_freed)) return outcome;
    hak_decay_after_release(retire_run(run, false));
    return outcome;
}

/* The secure build's: wins a mapping, whose entry this is before. */
static bool win_mapping(uintptr_t start, uint64_t *entry) {
    *entry = hak_directory_get(start);
    if ((*entry & HAK_ENTRY_KIND_MASK) != HAK_ENTRY_MAPPING || (*entry & HAK_ENTRY_TAKEN) != 0 ||
        !hak_directory_replace(start, *entry, *entry | HAK_ENTRY_TAKEN))
        return false;
    hak_signal_fence();
    return true;
}

/* Who has won it opens it, or leaves it. */
static enum hak_large_outcome open_mapping(const struct hak_large_watch *watch, const struct hak_place *place,
                                           uint64_t entry) {
    struct hak_place won = *place;
    won.bytes = hak_entry_usable_bytes(entry);
    enum hak_large_outcome outcome = open_object(watch, place, &won, hak_entry_origin(entry));
    if (outcome != HAK_LARGE_DONE) hak_directory_set(place->start, entry);
    return outcome;
}

static enum hak_large_outcome free_place(const struct hak_place *place, const struct hak_large_watch *watch) {
    if (place->kind == HAK_PLACE_RUN) return free_run(place, watch);
    if (!HAK_SECURE)
        return free_mapping(place->start, hak_entry_for_mapping(place->bytes)) ? HAK_LARGE_DONE : HAK_LARGE_LOST;
    uint64_t entry;
    if (!win_mapping(place->start, &entry)) return HAK_LARGE_LOST;
    enum hak_large_outcome outcome = open_mapping(watch, place, entry);
    if (outcome == HAK_LARGE_DONE) free_mapping(place->start, entry | HAK_ENTRY_TAKEN);
    return outcome;
}

struct hak_slab *hak_large_free_unit(const struct hak_place *place) {
    struct hak_slab *run = place->slab;
    uint32_t state = run_live;
    /* Acquire pairs with end_change. */
    if (!hak_atomic_cas(&run->state, &state, HAK_SLAB_NONE, acquire, relaxed)) return NULL;
    if (HAK_UNLIKELY(!restore_tail(run))) {
        /* Relaxed: nothing was changed, and what is no plain store hands on what end_change has released. */
        hak_atomic_exchange(&run->state, run_live, relaxed);
        return NULL;
    }
    end_run(run);
    return run;
}

void hak_large_recover_run(struct hak_slab *run) {
    uint32_t state = hak_atomic_load(&run->state, relaxed);
    if (state == run_busy || state == run_claimed || state == run_resized)
        hak_atomic_store(&run->state, run_live, relaxed);
    else if (state == run_freed) give_up_run(run, false);
}

size_t hak_large_tail_bytes(const struct hak_range *range, uint32_t unit) {
    const struct hak_slab *run = &range->slabs[unit];
    if (hak_atomic_load(&run->state, relaxed) != run_live ||
        hak_atomic_load(&run->purged_pages, relaxed) != TAIL_MAPPED)
        return 0;
    return tail_bytes_of(run);
}

size_t hak_large_purge_tail(struct hak_range *range, uint32_t unit) {
    struct hak_slab *run = &range->slabs[unit];
    if (hak_large_tail_bytes(range, unit) == 0 || !begin_change(run)) return 0;
    size_t tail_bytes = tail_bytes_of(run);
    bool purged = tail_bytes != 0 && !is_cut(run) && !is_guarded(run) &&
                  hak_page_policy_purge(range, tail_of(run), tail_bytes, false);
    if (purged) hak_atomic_store(&run->purged_pages, TAIL_PURGED, relaxed);
    end_change(run);
    return purged ? tail_bytes : 0;
}

size_t hak_large_cut_tail(struct hak_range *range, uint32_t unit) {
    struct hak_slab *run = &range->slabs[unit];
    if (range->number != 0 || hak_atomic_load(&run->state, relaxed) != run_live || tail_bytes_of(run) == 0 ||
        is_cut(run) || !begin_change(run))
        return 0;
    size_t tail_bytes = is_cut(run) ? 0 : tail_bytes_of(run);
    if (tail_bytes != 0) {
        uint64_t before = hak_atomic_load(&run->purged_pages, relaxed);
        hak_atomic_store(&run->purged_pages, TAIL_CUT, relaxed);
        hak_signal_fence(); /* a child of fork maps it again, or finds that it is there */
        if (!hak_page_policy_unmap(range, tail_of(run), tail_bytes)) {
            hak_atomic_store(&run->purged_pages, before, relaxed);
            tail_bytes = 0;
        } else {
            hak_page_policy_count_cut(1);
        }
    }
    end_change(run);
    return tail_bytes;
}

enum hak_large_outcome hak_large_free_watched(const struct hak_place *place, const struct hak_large_watch *watch) {
    struct hak_change change = hak_change_begin();
    enum hak_large_outcome outcome = free_place(place, watch);
    hak_change_end(change, true);
    return outcome;
}

bool hak_large_free(const struct hak_place *place) { return hak_large_free_watched(place, NULL) == HAK_LARGE_DONE; }

/* ---- Resizing ---------------------------------------------------------------------------------------------------- */

/* The entry of a mapping that is being resized: in the secure build somebody has won it. */
static uint64_t entry_while_resized(size_t bytes) {
    return hak_entry_for_mapping(bytes) | (HAK_SECURE ? HAK_ENTRY_TAKEN : 0);
}

/* A mapping has grown. */
static void count_larger(size_t have_bytes, size_t bytes) {
    if (bytes > have_bytes) hak_count_growth((bytes - have_bytes) / hak_os_page_bytes());
}

/* Gives a target back that nothing was moved to. What the kernel doesn't take serves as a mapping for another. */
static void drop_target(const struct hak_os_target *target) {
    if (!hak_os_drop_target(target) && hak_os_commit(target->start, target->bytes))
        hak_mapping_cache_give_back((uintptr_t)target->start, target->bytes);
}

/* A place to move a mapping to, for which the directory has room. */
static struct hak_os_target reserve_target(size_t bytes) {
    struct hak_os_target target = hak_os_reserve_target(bytes, HAK_GRANULE_BYTES);
    if (target.start == NULL || hak_directory_prepare((uintptr_t)target.start)) return target;
    drop_target(&target);
    target.start = NULL;
    return target;
}

/* Moves a mapping that has no entry, by changing page tables; it has one then. Or drops the target, and returns NULL.
 * The target has no entry before: while nobody knows whether it is there, another thread may have its addresses, and an
 * entry for them (D3). */
static void *move_mapping(uintptr_t start, size_t have_bytes, const struct hak_os_target *target) {
    if (!hak_os_move((void *)start, have_bytes, target)) {
        drop_target(target);
        return NULL;
    }
    hak_directory_set((uintptr_t)target->start, entry_while_resized(target->bytes)); /* there is room */
    count_larger(have_bytes, target->bytes);
    return target->start;
}

/* Who moves a run takes its memory away from where others would use it next, and they pay for page faults. A copy into
 * free memory costs less, and leaves as much behind. Not in small steps: all copies together are a few times the last
 * size. A guess: what lies free may be in pieces that are too small. */
static bool is_better_copied(size_t have_bytes, size_t bytes) {
    uint64_t dirty_bytes = hak_atomic_load(&hak_dirty_units, relaxed) * HAK_UNIT_BYTES;
    return bytes >= have_bytes + have_bytes / COPIED_GROWTH_SHARE && bytes <= hak_knob(run_limit_bytes) &&
           dirty_bytes / COPIED_DIRTY_TIMES >= bytes;
}

/* Gives a run whose neighbours are taken a mapping of its own, which then grows by changes of page tables alone. Its
 * pages first move to a mapping that is as large as the run: a mapping can be moved elsewhere and grow in one step, a
 * part of one can't. A move of other than as many bytes is one of all or nothing (hak_os_move_pages). */
static void *move_run(const struct hak_place *place, size_t bytes, const struct hak_large_watch *watch) {
    if (place->bytes < LEAST_MOVED_BYTES || is_better_copied(place->bytes, bytes) || !hak_page_policy_may_map())
        return NULL;
    /* The mapping that pages are moved away from isn't locked any more, others' blocks in it neither; and the kernel
     * counts it as if it were. What is to be moved is one mapping, or is not moved: one page tells. */
    if (HAK_UNLIKELY(hak_os_is_locked((void *)place->start))) return NULL;
    struct hak_os_target target = reserve_target(bytes_of_mapping(bytes));
    if (target.start == NULL) return NULL;
    /* With what lies behind its last page: the units are to be empty. */
    size_t have_bytes = (size_t)units_for(place->bytes) << HAK_UNIT_SHIFT;
    hak_page_policy_make_one_mapping(hak_region_range_of_record(place->slab), place->start, have_bytes);
    void *between = hak_os_move_pages((void *)place->start, have_bytes);
    if (between == NULL) {
        drop_target(&target);
        return NULL;
    }
    void *moved = move_mapping((uintptr_t)between, have_bytes, &target);
    if (moved != NULL) return begin_object(moved, bytes, origin_of_run(place->slab), watch);
    memcpy((void *)place->start, between, place->bytes);
    if (!hak_os_unmap(between, have_bytes)) hak_os_purge(between, have_bytes); /* its addresses are lost */
    return NULL;
}

static bool extend_run(struct hak_slab *run, uint32_t have, uint32_t want) {
    if (!hak_region_extend(run, have, want - have)) return false;
    struct hak_slab *tail = run + have;
    hak_atomic_store(&tail->range, hak_atomic_load(&run->range, relaxed), relaxed);
    hak_region_mark(tail, want - have, HAK_CLASS_RUN_BODY);
    return true;
}

/* An object that can't become smaller now is large enough. The secure build compares sizes: there it is to move. */
static void *left_as_it_is(const struct hak_place *place, size_t bytes) {
    return !HAK_SECURE && bytes < place->bytes ? (void *)place->start : NULL;
}

/* The run has the bytes already that it will have. */
static void shorten_run(struct hak_slab *run, uint32_t have, uint32_t want) {
    struct hak_slab *tail = run + want;
    hak_atomic_store(&tail->range, hak_atomic_load(&run->range, relaxed), relaxed);
    hak_region_mark(tail, have - want, HAK_CLASS_NONE);
    hak_region_release(tail, have - want);
    hak_decay_after_release(have - want);
}

/* Wins a run, to resize it. REFUSED: it is live, but somebody purges its tail. */
static enum hak_large_outcome begin_resize(struct hak_slab *run) {
    uint32_t state = run_live;
    hak_hand_note_run(run);
    /* Acquire pairs with alloc_run, end_change and end_resize. */
    if (hak_atomic_cas(&run->state, &state, run_resized, acquire, relaxed)) return HAK_LARGE_DONE;
    return state == run_busy ? HAK_LARGE_REFUSED : HAK_LARGE_LOST;
}

/* With so many usable bytes. */
static void end_resize(struct hak_slab *run, const struct hak_place *place, size_t bytes,
                       const struct hak_large_watch *watch) {
    close_object(watch, (void *)place->start, bytes);
    make_live(run);
}

/* Of a run that the caller has won. */
static void *resize_won_run(const struct hak_place *place, size_t bytes, const struct hak_large_watch *watch) {
    struct hak_slab *run = place->slab;
    if (bytes_of_pages(bytes) == bytes_of_pages(place->bytes)) {
        set_facts_of_run(run, bytes, origin_of_run(run));
        end_resize(run, place, bytes, watch);
        return (void *)place->start;
    }
    if (!restore_tail(run)) {
        end_resize(run, place, place->bytes, watch);
        return left_as_it_is(place, bytes);
    }
    uint32_t have = units_for(place->bytes), want = bytes > LONGEST_RUN_BYTES ? 0 : units_for(bytes);
    if (want == 0 || (want > have && !extend_run(run, have, want))) {
        void *moved = move_run(place, bytes, watch);
        if (moved != NULL) {
            retire_run(run, true);
        } else {
            guard_tail(run);
            end_resize(run, place, place->bytes, watch);
        }
        return moved;
    }
    hak_signal_fence(); /* L2: units, then bytes; or bytes, then units */
    set_bytes_of_run(run, bytes);
    set_facts_of_run(run, bytes, origin_of_run(run));
    hak_signal_fence();
    if (want < have) shorten_run(run, have, want);
    guard_tail(run);
    end_resize(run, place, bytes, watch);
    return (void *)place->start;
}

static enum hak_large_outcome resize_run(const struct hak_place *place, size_t bytes,
                                         const struct hak_large_watch *watch, void **resized) {
    if (bytes <= HAK_SMALL_MAX && watch == NULL) return HAK_LARGE_REFUSED;
    if (!HAK_SECURE && bytes_of_pages(bytes) == bytes_of_pages(place->bytes)) {
        *resized = (void *)place->start;
        return HAK_LARGE_DONE;
    }
    enum hak_large_outcome outcome = begin_resize(place->slab);
    if (outcome == HAK_LARGE_REFUSED) *resized = left_as_it_is(place, bytes);
    if (outcome != HAK_LARGE_DONE) return outcome;
    outcome = open_run(watch, place);
    if (outcome != HAK_LARGE_DONE) {
        make_live(place->slab);
    } else if (bytes <= HAK_SMALL_MAX) {
        end_resize(place->slab, place, place->bytes, watch);
    } else {
        *resized = resize_won_run(place, bytes, watch);
    }
    return outcome;
}

/* Whose addresses go back to the kernel has no entry for them before (D3); after a refusal they are the block's. */
static void shorten_mapping(uintptr_t start, size_t have_bytes, size_t bytes) {
    hak_directory_set(start, entry_while_resized(bytes));
    hak_signal_fence(); /* L4 */
    if (!hak_os_remap((void *)start, have_bytes, bytes)) hak_directory_set(start, entry_while_resized(have_bytes));
}

/* Returns where the mapping is then; NULL when it can't have as many bytes. */
static void *change_mapping(uintptr_t start, size_t have_bytes, size_t bytes) {
    if (bytes < have_bytes) {
        shorten_mapping(start, have_bytes, bytes);
        return (void *)start;
    }
    if (hak_os_remap((void *)start, have_bytes, bytes)) {
        count_larger(have_bytes, bytes);
        hak_directory_set(start, entry_while_resized(bytes)); /* can't fail: the entry exists */
        return (void *)start;
    }
    struct hak_os_target target = reserve_target(bytes);
    if (target.start == NULL) return NULL;
    hak_directory_set(start, HAK_ENTRY_NONE); /* D3 */
    void *moved = move_mapping(start, have_bytes, &target);
    if (moved == NULL) hak_directory_set(start, entry_while_resized(have_bytes));
    return moved;
}

/* The secure build's, of a mapping that the caller has won, whose entry this was before. The object may use other bytes
 * of the same pages. */
static void *resize_in_pages(const struct hak_place *place, uint64_t entry, size_t bytes,
                             const struct hak_large_watch *watch) {
    uint64_t changed = hak_entry_for_object(hak_entry_mapping_bytes(entry), bytes, hak_entry_origin(entry));
    close_object(watch, (void *)place->start, bytes);
    hak_directory_set(place->start, changed | (entry & HAK_ENTRY_FORBIDDEN));
    return (void *)place->start;
}

/* The same. The guard may be lost, so it isn't the mapping's meanwhile (D3). The object in one that can't become
 * shorter, or can't grow, is what it was. */
static void *resize_guarded(const struct hak_place *place, uint64_t entry, size_t bytes,
                            const struct hak_large_watch *watch) {
    uintptr_t start = place->start;
    hak_directory_set(start, entry_while_resized(hak_entry_mapping_bytes(entry) - hak_os_page_bytes()));
    size_t have_bytes = end_object(start, entry), want_bytes = bytes_of_mapping(bytes);
    hak_directory_set(start, entry_while_resized(have_bytes));
    void *resized = change_mapping(start, have_bytes, want_bytes), *now = resized == NULL ? (void *)start : resized;
    bool is_done = resized != NULL && hak_entry_mapping_bytes(hak_directory_get((uintptr_t)now)) == want_bytes;
    begin_object(now, is_done ? bytes : place->bytes, hak_entry_origin(entry), watch);
    return is_done ? resized : NULL;
}

static void *resize_won_mapping(const struct hak_place *place, uint64_t entry, size_t bytes,
                                const struct hak_large_watch *watch) {
    if (bytes_of_mapping(bytes) == hak_entry_mapping_bytes(entry)) return resize_in_pages(place, entry, bytes, watch);
    if (bytes > HAK_SMALL_MAX) return resize_guarded(place, entry, bytes, watch);
    resize_in_pages(place, entry, place->bytes, watch);
    return NULL;
}

static enum hak_large_outcome resize_mapping(const struct hak_place *place, size_t bytes,
                                             const struct hak_large_watch *watch, void **resized) {
    if (!HAK_SECURE) {
        size_t want_bytes = bytes_of_mapping(bytes);
        if (want_bytes == place->bytes) *resized = (void *)place->start;
        else if (bytes > HAK_SMALL_MAX) *resized = change_mapping(place->start, place->bytes, want_bytes);
        return HAK_LARGE_DONE;
    }
    uint64_t entry;
    if (!win_mapping(place->start, &entry)) return HAK_LARGE_LOST;
    enum hak_large_outcome outcome = open_mapping(watch, place, entry);
    if (outcome == HAK_LARGE_DONE) *resized = resize_won_mapping(place, entry, bytes, watch);
    return outcome;
}

enum hak_large_outcome hak_large_resize_watched(const struct hak_place *place, size_t bytes,
                                                const struct hak_large_watch *watch, void **resized) {
    struct hak_change change = hak_change_begin();
    *resized = NULL;
    enum hak_large_outcome outcome = place->kind == HAK_PLACE_RUN ? resize_run(place, bytes, watch, resized)
                                                                  : resize_mapping(place, bytes, watch, resized);
    hak_change_end(change, true);
    if (outcome == HAK_LARGE_DONE && *resized == NULL) outcome = HAK_LARGE_REFUSED;
    return outcome;
}

void *hak_large_resize(const struct hak_place *place, size_t bytes) {
    void *resized;
    hak_large_resize_watched(place, bytes, NULL, &resized);
    return resized;
}

/* ---- What the secure build knows of an object -------------------------------------------------------------------- */

size_t hak_large_slack_bytes(size_t usable) { return bytes_of_pages(usable) - usable; }

uint32_t hak_large_origin(const struct hak_place *place) {
    return place->kind == HAK_PLACE_RUN ? origin_of_run(place->slab)
                                        : hak_entry_origin(hak_directory_get(place->start));
}

void hak_large_set_origin(const struct hak_place *place, uint32_t from) {
    const uint64_t in_entry = (uint64_t)0xFF << HAK_ENTRY_ORIGIN_SHIFT;
    if (place->kind == HAK_PLACE_RUN) {
        set_facts_of_run(place->slab, hak_run_usable_bytes(hak_atomic_load(&place->slab->run_facts, relaxed)), from);
        return;
    }
    uint64_t entry = hak_directory_get(place->start);
    hak_directory_replace(place->start, entry, (entry & ~in_entry) | (uint64_t)from << HAK_ENTRY_ORIGIN_SHIFT);
}
