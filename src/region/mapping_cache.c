#include "region/mapping_cache.h"

#include "base/knobs.h"
#include "os/os.h"
#include "region/directory.h"
#include "region/page_policy.h"
#include "region/region.h"

#define SMALL_CACHE_BYTES (64 * HAK_MIB)

static HAK_ATOMIC(uint64_t) places[HAK_KEPT_MAPPINGS];
const void *const hak_kept_mappings = places;
static HAK_ATOMIC(uint64_t) kept_bytes;
static HAK_ATOMIC(uint32_t) oldest; /* a place to push out of next; a clock's hand */

static uint64_t word_of(uintptr_t start, size_t bytes) {
    return (uint64_t)(start >> HAK_GRANULE_SHIFT) << HAK_KEPT_PAGE_BITS | bytes / hak_os_page_bytes();
}
static size_t bytes_of(uint64_t word) { return hak_kept_pages(word) * hak_os_page_bytes(); }

static bool keep(uintptr_t start, size_t bytes) {
    for (uint32_t i = 0; i < HAK_KEPT_MAPPINGS; i++) {
        uint64_t none = 0;
        if (hak_atomic_load(&places[i], relaxed) != 0) continue;
        hak_atomic_fetch_add(&kept_bytes, bytes, relaxed);
        /* Release pairs with take_place: the last user is done with the mapping. */
        if (hak_atomic_cas(&places[i], &none, word_of(start, bytes), release, relaxed)) return true;
        hak_atomic_fetch_sub(&kept_bytes, bytes, relaxed);
    }
    return false;
}

static bool take_place(uint32_t place, uint64_t word) {
    /* Acquire pairs with keep. */
    if (word == 0 || !hak_atomic_cas(&places[place], &word, 0, acquire, relaxed)) return false;
    hak_atomic_fetch_sub(&kept_bytes, bytes_of(word), relaxed);
    return true;
}

/* Gives a mapping back; if the kernel refuses, keeps it, and if there is no place for it, its memory at least goes. */
static bool give_back(uintptr_t start, size_t bytes) {
    if (hak_os_unmap((void *)start, bytes)) return true;
    hak_os_purge((void *)start, bytes);
    keep(start, bytes);
    return false;
}

/* Gives back what the hand points at. */
static void push_out(void) {
    uint32_t place = hak_atomic_fetch_add(&oldest, 1, relaxed) % HAK_KEPT_MAPPINGS;
    uint64_t word = hak_atomic_load(&places[place], relaxed);
    if (take_place(place, word)) give_back(hak_kept_start(word), bytes_of(word));
}

static uint64_t limit_bytes(void) {
    uint64_t limit = hak_atomic_load(&hak_memory_is_tight, relaxed) ? 0 : hak_knob(mapping_cache_bytes);
    if (limit <= SMALL_CACHE_BYTES) return limit;
    uint64_t heap = hak_region_sums().committed_bytes + hak_atomic_load(&hak_mapping_bytes, relaxed);
    uint64_t share = heap / 4 > SMALL_CACHE_BYTES ? heap / 4 : SMALL_CACHE_BYTES;
    return share < limit ? share : limit;
}

void hak_mapping_cache_put(uintptr_t start, size_t bytes) {
    uint64_t limit = limit_bytes();
    /* What realloc has moved out of a run is asked for no more: objects of its size are runs. */
    if (bytes > limit || bytes <= hak_knob(run_limit_bytes)) {
        give_back(start, bytes);
        return;
    }
    for (uint32_t i = 0; i < HAK_KEPT_MAPPINGS && hak_atomic_load(&kept_bytes, relaxed) + bytes > limit; i++)
        push_out();
    if (hak_atomic_load(&kept_bytes, relaxed) + bytes > limit || !keep(start, bytes)) give_back(start, bytes);
}

/* The place of the smallest mapping of at least `bytes`; HAK_KEPT_MAPPINGS when there is none of at most `most_bytes`. */
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

void *hak_mapping_cache_take(size_t bytes) {
    uint64_t word = 0;
    uint64_t kept = hak_atomic_load(&kept_bytes, relaxed);
    if (kept == 0) return NULL;
    uint32_t place = best_place(bytes, bytes + bytes / 4, &word);
    bool over_limit = kept > limit_bytes(); /* the kernel refuses to take memory: any will do */
    if (place == HAK_KEPT_MAPPINGS && over_limit) place = best_place(0, SIZE_MAX, &word);
    if (place == HAK_KEPT_MAPPINGS || !take_place(place, word)) return NULL;
    uintptr_t start = hak_kept_start(word);
    size_t have = bytes_of(word);
    if (have < bytes || have > bytes + bytes / 4) {
        if (!hak_os_remap((void *)start, have, bytes, NULL)) {
            give_back(start, have);
            return NULL;
        }
        have = bytes;
    }
    if (hak_directory_set(start, hak_entry_for_mapping(have))) return (void *)start;
    give_back(start, have);
    return NULL;
}

size_t hak_mapping_cache_age(void) {
    size_t bytes = 0;
    if (hak_atomic_load(&kept_bytes, relaxed) == 0) return 0;
    for (uint32_t i = 0; i < HAK_KEPT_MAPPINGS; i++) {
        uint64_t word = hak_atomic_load(&places[i], relaxed);
        /* Relaxed: a change of the word as it lies there hands on what keep has released. */
        if ((word & HAK_KEPT_AGED) == 0 && word != 0)
            hak_atomic_cas(&places[i], &word, word | HAK_KEPT_AGED, relaxed, relaxed);
        else if (take_place(i, word) && give_back(hak_kept_start(word), bytes_of(word))) bytes += bytes_of(word);
    }
    return bytes;
}

size_t hak_mapping_cache_purge(void) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < HAK_KEPT_MAPPINGS; i++) {
        uint64_t word = hak_atomic_load(&places[i], relaxed);
        if (take_place(i, word) && give_back(hak_kept_start(word), bytes_of(word))) bytes += bytes_of(word);
    }
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
