#include "pool/canary.h"

#include <string.h>

#include "base/bits.h"
#include "base/check.h"
#include "os/os.h"
#include "pool/bin.h"
#include "pool/pool.h"
#include "region/region.h"

enum { FROM_SHIFT = 56 }; /* the last byte has what the block is from */

static uint64_t canary_secret = 1; /* const after the start */

void hak_canary_begin(void) { canary_secret = hak_os_random(HAK_RANDOM_CANARIES) | 1; }

typedef uint64_t __attribute__((may_alias)) canary_word;
typedef HAK_ATOMIC(uint64_t) __attribute__((may_alias)) shared_canary_word;

static canary_word *canary_of(const void *block, size_t usable) {
    return (canary_word *)(void *)((char *)(uintptr_t)block + usable);
}

/* Of a live block. The first byte is no letter and no zero: the bytes that are written behind a block by mistake are of
 * texts, most of them. All bytes but the last are others for each origin, which that one tells. */
static uint64_t canary_for(const void *block, uint32_t from) {
    uint64_t mixed = (((uintptr_t)block + from) ^ canary_secret) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ mixed >> 29) * canary_secret;
    mixed = (mixed ^ mixed >> 32) >> (64 - FROM_SHIFT);
    return mixed | 0x81 | (uint64_t)from << FROM_SHIFT;
}

/* What a live block's canary says that the block is from. */
static uint32_t origin_in(uint64_t canary) { return (uint32_t)(canary >> FROM_SHIFT); }

static size_t first_difference(uint64_t one, uint64_t other) {
    size_t at = 0;
    while (at < sizeof one - 1 && ((one ^ other) >> 8 * at & 0xFF) == 0) at++;
    return at;
}

/* As blocks lie. */
typedef hak_address_pair __attribute__((aligned(HAK_ALIGNMENT))) aligned_pair;

/* All is zero where the bytes are, taken by cache lines as far as they go, and by pairs of words. */
HAK_INLINE bool is_all_zero(const void *block, size_t bytes) {
    const aligned_pair *pairs = block, *end = pairs + bytes / sizeof *pairs;
    aligned_pair all = {0, 0};
    for (; pairs + 4 <= end; pairs += 4) all |= pairs[0] | pairs[1] | pairs[2] | pairs[3];
    for (; pairs != end; pairs++) all |= *pairs;
    return (all[0] | all[1]) == 0;
}

static HAK_COLD _Noreturn void report_freed_write(const void *block, size_t usable) {
    const unsigned char *bytes = block;
    size_t at = 0;
    while (bytes[at] == 0) at++;
    hak_misuse(HAK_MISUSE_FREED_WRITE, "free", block, at, usable);
}

void hak_canary_look(const void *block, size_t usable) {
    if (HAK_UNLIKELY(!is_all_zero(block, usable + sizeof(canary_word)))) report_freed_write(block, usable);
}

void hak_canary_hand_out(void *block, size_t usable, uint32_t from) {
    hak_canary_look(block, usable);
    *canary_of(block, usable) = canary_for(block, from);
}

void hak_canary_change(void *block, size_t usable, uint32_t from) {
    *canary_of(block, usable) = canary_for(block, from);
}

/* A free block is its slab's, or some heap keeps it, unless somebody has it in hand at this moment. */
static bool is_free_somewhere(const struct hak_place *place, const void *block) {
    return hak_heap_that_keeps(place->size_class, block) != NULL || hak_pool_has_claimed(place) ||
           hak_pool_has_free(block, place->size_class);
}

/* Whether a block whose canary is zero is live: zeros were written behind its end, and nobody keeps it. Who frees it at
 * this moment is given time. */
static HAK_COLD bool was_cleared_behind(const void *block, size_t usable) {
    enum { LOOKS = 100, WAIT_US = 1000 };
    static HAK_ATOMIC(uint32_t) never_woken;
    for (int i = 0; i < LOOKS; i++) {
        struct hak_place place = hak_region_find((uintptr_t)block);
        if (place.kind != HAK_PLACE_SMALL || is_free_somewhere(&place, block) || *canary_of(block, usable) != 0)
            return false;
        hak_os_wait(&never_woken, 0, WAIT_US);
    }
    return true;
}

static const char *const freed_by[] = {
    [HAK_FROM_MALLOC] = "free", [HAK_FROM_NEW] = "delete", [HAK_FROM_NEW_ARRAY] = "delete[]"};

const char *hak_canary_freed_by(uint32_t from) { return freed_by[from % (1u << HAK_FROM_BITS)]; }

void hak_canary_compare_origin(const void *block, size_t usable, uint32_t from, uint32_t by, const char *function) {
    if (HAK_UNLIKELY(from != by)) hak_misuse(HAK_MISUSE_MISMATCH, function, block, from, usable);
}

/* What was found is not the canary of a live block from such a call. */
static HAK_COLD _Noreturn void report_canary(const void *block, size_t usable, uint32_t from, uint64_t found) {
    const char *function = hak_canary_freed_by(from);
    if (found == 0 && !was_cleared_behind(block, usable))
        hak_misuse(HAK_MISUSE_DOUBLE_FREE, function, block, 0, usable);
    if (found == canary_for(block, origin_in(found)))
        hak_misuse(HAK_MISUSE_MISMATCH, function, block, origin_in(found), usable);
    hak_misuse(HAK_MISUSE_OVERFLOW, function, block, first_difference(found, canary_for(block, from)), usable);
}

bool hak_canary_take(void *block, size_t usable, uint32_t from, uint64_t *found) {
    *found = canary_for(block, from);
    /* Relaxed: what the program has done with the block is its own care. */
    return hak_atomic_cas((shared_canary_word *)(void *)canary_of(block, usable), found, 0, relaxed, relaxed);
}

void hak_canary_take_back(void *block, size_t usable, uint32_t from) {
    uint64_t found;
    if (HAK_UNLIKELY(!hak_canary_take(block, usable, from, &found))) report_canary(block, usable, from, found);
    memset(block, 0, usable + sizeof(canary_word));
}

/* What the block is from tells the byte that may have been written, so it may also be from malloc. */
static HAK_COLD _Noreturn void report_live(const void *block, size_t usable, uint64_t found, const char *function) {
    size_t as_told = first_difference(found, canary_for(block, origin_in(found)));
    size_t as_malloc = first_difference(found, canary_for(block, HAK_FROM_MALLOC));
    hak_misuse(HAK_MISUSE_OVERFLOW, function, block, as_told > as_malloc ? as_told : as_malloc, usable);
}

bool hak_canary_is_cleared(const void *block, size_t usable) {
    return *canary_of(block, usable) == 0 && is_all_zero(block, usable + sizeof(canary_word));
}

bool hak_canary_is_free(const void *block, size_t usable, const char *function) {
    uint64_t found = *canary_of(block, usable);
    if (found == 0 && !was_cleared_behind(block, usable)) return true;
    if (found != canary_for(block, origin_in(found))) report_live(block, usable, found, function);
    return false;
}

/* ---- Behind large objects (C4) ----------------------------------------------------------------------------------- */

static uint64_t slack_word_for(const void *block) { return canary_for(block, 0) | UINT64_C(0x8181818181818181); }

/* What lies `at` bytes behind the block's beginning: the word's bytes by turns. */
static unsigned char slack_byte(uint64_t word, size_t at) { return (unsigned char)(word >> at % sizeof word * 8); }

/* The bytes up to the first word. */
static size_t bytes_to_word(size_t usable, size_t slack) {
    size_t bytes = hak_align_up(usable, sizeof(canary_word)) - usable;
    return bytes < slack ? bytes : slack;
}

void hak_canary_fill(void *block, size_t usable, size_t slack) {
    uint64_t word = slack_word_for(block);
    unsigned char *bytes = block;
    size_t at = usable, end = usable + slack, words = usable + bytes_to_word(usable, slack);
    for (; at < words; at++) bytes[at] = slack_byte(word, at);
    for (; at < end; at += sizeof word) *canary_of(block, at) = word;
}

static HAK_COLD _Noreturn void report_slack(const void *block, size_t usable, uint64_t word, const char *function) {
    const unsigned char *bytes = block;
    size_t at = usable;
    while (bytes[at] == slack_byte(word, at)) at++;
    hak_misuse(HAK_MISUSE_OVERFLOW, function, block, at - usable, usable);
}

/* True when it is as it was filled. */
static bool is_filled(const void *block, size_t usable, size_t slack) {
    uint64_t word = slack_word_for(block), difference = 0;
    const unsigned char *bytes = block;
    size_t at = usable, end = usable + slack, words = usable + bytes_to_word(usable, slack);
    for (; at < words; at++) difference |= bytes[at] ^ slack_byte(word, at);
    for (; at < end; at += sizeof word) difference |= *canary_of(block, at) ^ word;
    return difference == 0;
}

/* The rest of the page that the object ends in is zero, and what follows is as it was filled. */
static HAK_COLD bool is_cleared_by_kernel(const void *block, size_t usable, size_t slack) {
    const unsigned char *bytes = block;
    size_t page_end = hak_align_up((uintptr_t)block + usable, hak_os_page_bytes()) - (uintptr_t)block, at = usable;
    if (page_end == usable || page_end > usable + slack) return false;
    while (at < page_end && bytes[at] == 0) at++;
    return at == page_end && is_filled(block, page_end, usable + slack - page_end);
}

/* As C4 says. */
static bool is_whole_behind(const void *block, size_t usable, size_t slack) {
    return HAK_LIKELY(is_filled(block, usable, slack)) || is_cleared_by_kernel(block, usable, slack);
}

void hak_canary_look_behind(const void *block, size_t usable, size_t slack, const char *function) {
    if (HAK_UNLIKELY(!is_whole_behind(block, usable, slack)))
        report_slack(block, usable, slack_word_for(block), function);
}

bool hak_canary_clear(void *block, size_t usable, size_t slack) {
    if (HAK_UNLIKELY(!is_whole_behind(block, usable, slack))) return false;
    memset((char *)block + usable, 0, slack);
    return true;
}
