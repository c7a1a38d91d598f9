#include "region/mapping_cache.h"

#include "base/counters.h"
#include "base/knobs.h"
#include "base/memory.h"
#include "os/os.h"
#include "region/allowance.h"
#include "region/directory.h"
#include "region/in_hand.h"
#include "region/owed.h"
#include "region/region.h"

HAK_WRITTEN_BY_MANY static HAK_ATOMIC(uint64_t) places[HAK_KEPT_MAPPINGS];
const void *const hak_kept_mappings = places;
HAK_WRITTEN_BY_MANY static HAK_ATOMIC(uint64_t) kept_bytes;
HAK_WRITTEN_BY_MANY HAK_ATOMIC(uint64_t) hak_mappings_owed;
static HAK_ATOMIC(uint32_t) oldest; /* a place to push out of next; a clock's hand */

static uint64_t word_of(uintptr_t start, size_t bytes) {
    return (uint64_t)(start >> HAK_GRANULE_SHIFT) << HAK_KEPT_PAGE_BITS | bytes / hak_os_page_bytes();
}
static size_t bytes_of(uint64_t word) { return hak_kept_pages(word) * hak_os_page_bytes(); }

static bool keep_at(uint32_t place, uint64_t word) {
    uint64_t none = 0;
    if (hak_atomic_load(&places[place], relaxed) != 0) return false;
    hak_atomic_fetch_add(&kept_bytes, bytes_of(word), relaxed);
    /* Release pairs with take_place: the last user is done with the mapping. */
    if (hak_atomic_cas(&places[place], &none, word, release, relaxed)) return true;
    hak_atomic_fetch_sub(&kept_bytes, bytes_of(word), relaxed);
    return false;
}

static bool keep(uintptr_t start, size_t bytes) {
    for (uint32_t i = 0; i < HAK_KEPT_MAPPINGS; i++)
        if (keep_at(i, word_of(start, bytes))) return true;
    return false;
}

static bool take_place(uint32_t place, uint64_t word) {
    /* Acquire pairs with keep_at. */
    if (word == 0 || !hak_atomic_cas(&places[place], &word, 0, acquire, relaxed)) return false;
    hak_atomic_fetch_sub(&kept_bytes, bytes_of(word), relaxed);
    return true;
}

bool hak_mapping_cache_give_back(uintptr_t start, size_t bytes) {
    if (hak_os_unmap((void *)start, bytes)) return true;
    hak_os_purge((void *)start, bytes);
    keep(start, bytes);
    return false;
}

/* Gives back what was in a place, or if that is more than `most_bytes`, whole pages, so much of its end. Returns the
 * bytes. */
static size_t give_back_taken(uint32_t place, uint64_t word, size_t most_bytes) {
    uintptr_t start = hak_kept_start(word);
    size_t have = bytes_of(word), bytes = have < most_bytes ? have : most_bytes, left = have - bytes;
    if (left == 0) return hak_mapping_cache_give_back(start, have) ? have : 0;
    bool is_shorter = hak_os_unmap((void *)(start + left), bytes);
    word = word_of(start, is_shorter ? left : have) | (word & HAK_KEPT_AGED);
    if (!keep_at(place, word) && !keep(start, bytes_of(word))) hak_mapping_cache_give_back(start, bytes_of(word));
    return is_shorter ? bytes : 0;
}

static size_t give_back_place(uint32_t place, uint64_t word, size_t most_bytes) {
    if (word == 0) return 0;
    hak_in_hand_begin();
    if (!take_place(place, word)) {
        hak_in_hand_keep();
        return 0;
    }
    size_t bytes = give_back_taken(place, word, most_bytes);
    hak_in_hand_end();
    return bytes;
}

/* Gives back what the hand points at, or of its end so many bytes. Returns the bytes. */
static size_t push_out(size_t most_bytes) {
    uint32_t place = hak_atomic_fetch_add(&oldest, 1, relaxed) % HAK_KEPT_MAPPINGS;
    uint64_t word = hak_atomic_load(&places[place], relaxed);
    return give_back_place(place, word, most_bytes);
}

/* How much of what is kept has to go before `bytes` more can be; no more than these are. */
static size_t too_many_bytes(size_t bytes, uint64_t limit) {
    uint64_t kept = hak_atomic_load(&kept_bytes, relaxed) + bytes;
    return kept <= limit ? 0 : hak_align_up(kept - limit < bytes ? kept - limit : bytes, hak_os_page_bytes());
}

/* How much may be kept at most, and that as far as it may stay while the program sleeps. */
static uint64_t limit_bytes(void) {
    uint64_t limit = hak_atomic_load(&hak_memory_is_tight, relaxed) ? 0 : hak_knob(mapping_cache_bytes);
    if (limit <= HAK_SMALL_CACHE_BYTES || hak_knob_is_highest(mapping_cache_bytes)) return limit;
    uint64_t heap =
        hak_region_count_super_slabs() * HAK_SUPER_SLAB_BYTES + hak_atomic_load(&hak_mapping_bytes, relaxed);
    uint64_t share = heap / 4 > HAK_SMALL_CACHE_BYTES ? heap / 4 : HAK_SMALL_CACHE_BYTES;
    if (share > hak_memory_most_free_bytes()) share = hak_memory_most_free_bytes();
    return share < limit ? share : limit;
}

static uint64_t may_stay_bytes(void) {
    uint64_t limit = limit_bytes(), allowed = hak_allowance_bytes();
    return !hak_is_paid() && allowed < limit ? allowed : limit;
}

/* Pages of mappings that went back for want of an allowance, the last ones. Relaxed guesses. */
enum { GIVEN_MAPPINGS = 16 };
static HAK_ATOMIC(uint64_t) given_pages[GIVEN_MAPPINGS];
static HAK_ATOMIC(uint32_t) next_given;

static void note_given(size_t bytes) {
    uint32_t place = hak_atomic_load(&next_given, relaxed);
    hak_atomic_store(&given_pages[place % GIVEN_MAPPINGS], bytes / hak_os_page_bytes(), relaxed);
    hak_atomic_store(&next_given, place + 1, relaxed);
    hak_allowance_gave(bytes);
}

void hak_mapping_cache_tell_mapped(size_t bytes) {
    size_t pages = bytes / hak_os_page_bytes();
    for (uint32_t i = 0; i < GIVEN_MAPPINGS; i++) {
        uint64_t given = hak_atomic_load(&given_pages[i], relaxed);
        if (given < pages || given > pages + pages / 4) continue;
        hak_atomic_store(&given_pages[i], 0, relaxed);
        hak_count_reuse(pages);
        return;
    }
}

uint64_t hak_mapping_cache_free_bytes(void) {
    return hak_atomic_load(&hak_dirty_units, relaxed) * HAK_UNIT_BYTES + hak_mapping_cache_bytes();
}

void hak_mapping_cache_put(uintptr_t start, size_t bytes) {
    uint64_t limit = limit_bytes();
    /* What realloc has moved out of a run is asked for no more: objects of its size are runs. */
    if (bytes > limit || bytes <= hak_knob(run_limit_bytes)) {
        hak_mapping_cache_give_back(start, bytes);
        return;
    }
    if (!hak_is_paid()) hak_allowance_look(hak_mapping_cache_free_bytes() + bytes);
    uint64_t allowed = may_stay_bytes();
    size_t given_bytes = 0, too_many;
    for (uint32_t i = 0; bytes <= allowed && i < HAK_KEPT_MAPPINGS && given_bytes < bytes; i++) {
        if ((too_many = too_many_bytes(bytes, allowed)) == 0) break;
        given_bytes += push_out(too_many);
    }
    if (too_many_bytes(bytes, allowed) == 0 && keep(start, bytes)) return;
    if (hak_mapping_cache_give_back(start, bytes) && allowed < limit) note_given(bytes);
}

/* The place of the smallest mapping of at least `bytes`; HAK_KEPT_MAPPINGS when there is none of at most
 * `most_bytes`. */
static uint32_t best_place(size_t bytes, size_t most_bytes, uint64_t *word) {
    uint32_t best = HAK_KEPT_MAPPINGS;
    size_t best_bytes = most_bytes;
    for (uint32_t i = 0; i < HAK_KEPT_MAPPINGS; i++) {
        uint64_t candidate = hak_atomic_load(&places[i], relaxed);
        if (candidate == 0 || bytes_of(candidate) < bytes || bytes_of(candidate) > best_bytes) continue;
        best = i;
        best_bytes = bytes_of(candidate);
        *word = candidate;
    }
    return best;
}

void *hak_mapping_cache_take(size_t bytes, size_t *have_bytes) {
    uint64_t word = 0;
    uint64_t kept = hak_atomic_load(&kept_bytes, relaxed);
    if (kept == 0) return NULL;
    uint32_t place = best_place(bytes, bytes + bytes / 4, &word);
    bool over_limit = kept > limit_bytes(); /* the kernel refuses to take memory: any will do */
    if (place == HAK_KEPT_MAPPINGS && over_limit) place = best_place(0, SIZE_MAX, &word);
    if (place == HAK_KEPT_MAPPINGS || !take_place(place, word)) return NULL;
    uintptr_t start = hak_kept_start(word);
    size_t have = bytes_of(word);
    if (have < bytes || have > bytes + bytes / 4 || (HAK_SECURE && have != bytes)) { /* behind the object lies little */
        if (!hak_os_remap((void *)start, have, bytes)) {
            hak_mapping_cache_give_back(start, have);
            return NULL;
        }
        have = bytes;
    }
    *have_bytes = have;
    if (hak_directory_set(start, hak_entry_for_mapping(have))) return (void *)start;
    hak_mapping_cache_give_back(start, have);
    return NULL;
}

uint64_t hak_mapping_cache_age(void) {
    uint64_t owed = 0, idle_bytes = 0;
    if (hak_atomic_load(&kept_bytes, relaxed) == 0) return 0;
    for (uint32_t i = 0; i < HAK_KEPT_MAPPINGS; i++) {
        uint64_t word = hak_atomic_load(&places[i], relaxed);
        /* Relaxed: a change of the word as it lies there hands on what keep_at has released. */
        if ((word & HAK_KEPT_AGED) == 0) {
            if (word != 0) hak_atomic_cas(&places[i], &word, word | HAK_KEPT_AGED, relaxed, relaxed);
            continue;
        }
        owed |= (uint64_t)1 << i;
        idle_bytes += bytes_of(word);
    }
    if (owed != 0) hak_atomic_fetch_or(&hak_mappings_owed, owed, relaxed);
    return idle_bytes;
}

void hak_mapping_cache_owe_all(void) {
    hak_mapping_cache_age();
    hak_mapping_cache_age();
}

size_t hak_mapping_cache_pay(size_t most_bytes) {
    size_t bytes = 0;
    uint64_t owed = hak_atomic_load(&hak_mappings_owed, relaxed);
    while (owed != 0 && bytes < most_bytes) {
        uint32_t place = hak_lowest_bit(owed);
        uint64_t word = hak_atomic_load(&places[place], relaxed);
        /* What was kept there since is not owed. */
        size_t paid = (word & HAK_KEPT_AGED) == 0 ? 0 : give_back_place(place, word, most_bytes - bytes);
        bytes += paid;
        if (paid != 0 && paid < bytes_of(word)) break;
        hak_atomic_fetch_and(&hak_mappings_owed, ~((uint64_t)1 << place), relaxed);
        owed &= owed - 1;
    }
    return bytes;
}

size_t hak_mapping_cache_purge(void) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < HAK_KEPT_MAPPINGS; i++)
        bytes += give_back_place(i, hak_atomic_load(&places[i], relaxed), SIZE_MAX);
    return bytes;
}

void hak_mapping_cache_recover_after_fork(void) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < HAK_KEPT_MAPPINGS; i++) bytes += bytes_of(hak_atomic_load(&places[i], relaxed));
    hak_atomic_store(&kept_bytes, bytes, relaxed);
}

size_t hak_mapping_cache_bytes(void) { return hak_atomic_load(&kept_bytes, relaxed); }

bool hak_mapping_cache_find(uintptr_t address, uintptr_t *start, size_t *bytes) {
    for (uint32_t i = 0; i < HAK_KEPT_MAPPINGS; i++) {
        uint64_t word = hak_atomic_load(&places[i], relaxed);
        if (word == 0 || address - hak_kept_start(word) >= bytes_of(word)) continue;
        *start = hak_kept_start(word);
        *bytes = bytes_of(word);
        return true;
    }
    return false;
}
