#include "pool/canary.h"

#include <string.h>

#include "base/bits.h"
#include "base/check.h"
#include "base/siphash.h"
#include "os/os.h"
#include "pool/bin.h"
#include "pool/pool.h"
#include "region/region.h"

/* The last byte has what the block is from; the two before it the length of its slack, and the others a secret. */
enum { SLACK_SHIFT = 40, FROM_SHIFT = 56, FILLED = 16 /* of the slack, at most */ };

/* Const after the start: the secret numbers, what a canary tells is multiplied by, what lies in slack, and the key of
 * what lies behind large objects. None of these uses tells anything of another. */
static struct {
    uint64_t numbers[3], of_told, fill, of_large[2];
} secrets = {{1, 1, 1}, UINT64_C(0x9E3779B97F4A7C15), UINT64_C(0x8181818181818181), {0, 0}};

void hak_canary_begin(void) {
    for (uint32_t i = 0; i < 3; i++) secrets.numbers[i] = hak_os_random(HAK_RANDOM_CANARIES + i) | 1;
    for (uint32_t i = 0; i < 2; i++) secrets.of_large[i] = hak_os_random(HAK_RANDOM_LARGE + i);
    secrets.of_told = hak_os_random(HAK_RANDOM_LENGTHS) | 1;
    secrets.fill = hak_os_random(HAK_RANDOM_SLACK) | UINT64_C(0x8181818181818181);
}

typedef uint64_t __attribute__((may_alias)) canary_word;
typedef HAK_ATOMIC(uint64_t) __attribute__((may_alias)) shared_canary_word;

static canary_word *canary_of(const void *block, size_t usable) {
    return (canary_word *)(void *)((char *)(uintptr_t)block + usable);
}

/* Fast, and no one-way function: whoever has seen many canaries may find the numbers. */
HAK_INLINE uint64_t mix(const void *block) {
    uint64_t mixed = hak_folded_product((uintptr_t)block ^ secrets.numbers[0], secrets.numbers[1]);
    return hak_folded_product(mixed, secrets.numbers[2]);
}

/* What a canary tells of the block, as it lies there. */
HAK_INLINE uint64_t told_in(uint64_t canary) { return canary >> SLACK_SHIFT << SLACK_SHIFT; }

HAK_INLINE uint64_t what_to_tell(size_t slack, uint32_t from) {
    return (uint64_t)slack << SLACK_SHIFT | (uint64_t)from << FROM_SHIFT;
}

/* What a live block's canary says that the block is from, and how long its slack is. */
static uint32_t origin_in(uint64_t canary) { return (uint32_t)(canary >> FROM_SHIFT); }
static size_t slack_in(uint64_t canary) { return canary >> SLACK_SHIFT & 0xFFFF; }

/* Of a live block. The first byte is no letter and no zero: the bytes that are written behind a block by mistake are of
 * texts, most of them. The secret is another one for each slack and each origin. What the processor has to do once it
 * has read what a canary tells is little: free waits for it. */
HAK_INLINE uint64_t canary_of_mixed(uint64_t mixed, uint64_t told) {
    uint64_t secret = mixed ^ (told >> SLACK_SHIFT) * secrets.of_told;
    return secret >> (64 - SLACK_SHIFT) | 0x81 | told;
}

static uint64_t canary_for(const void *block, size_t slack, uint32_t from) {
    return canary_of_mixed(mix(block), what_to_tell(slack, from));
}

/* True when it is what a live block has. */
HAK_INLINE bool is_right(size_t usable, uint64_t found, uint64_t mixed) {
    return HAK_LIKELY(slack_in(found) <= usable) && HAK_LIKELY(found == canary_of_mixed(mixed, told_in(found)));
}

static bool is_live(const void *block, size_t usable, uint64_t found) { return is_right(usable, found, mix(block)); }

static size_t first_difference(uint64_t one, uint64_t other) {
    size_t at = 0;
    while (at < sizeof one - 1 && ((one ^ other) >> 8 * at & 0xFF) == 0) at++;
    return at;
}

/* ---- The slack --------------------------------------------------------------------------------------------------- */

typedef uint64_t __attribute__((may_alias, aligned(1))) word_anywhere;

static word_anywhere *bytes_at(const void *block, size_t at) {
    return (word_anywhere *)(void *)((char *)(uintptr_t)block + at);
}

static size_t at_most(size_t number, size_t most) { return number < most ? number : most; }

/* Whatever the slack, two words are written behind the end, and the canary over what they have of its place. */
HAK_INLINE void write_end(void *block, size_t usable, size_t slack, uint32_t from, uint64_t mixed) {
    uint64_t fill = secrets.fill;
    size_t end = usable - slack;
    *bytes_at(block, end) = fill;
    *bytes_at(block, at_most(end + sizeof fill, usable)) = fill;
    *canary_of(block, usable) = canary_of_mixed(mixed, what_to_tell(slack, from));
}

/* As blocks lie. */
typedef hak_address_pair __attribute__((aligned(HAK_ALIGNMENT))) aligned_pair;

HAK_INLINE const aligned_pair *pairs_at(const void *block, size_t at) {
    return (const aligned_pair *)(const void *)((const char *)block + at);
}

/* Words of a block, in bytes. */
enum {
    WORDS_2 = sizeof(aligned_pair),
    WORDS_4 = 2 * WORDS_2,
    WORDS_8 = 4 * WORDS_2,
    WORDS_16 = 8 * WORDS_2,
    WORDS_24 = 12 * WORDS_2,
    WORDS_32 = 16 * WORDS_2,
};

HAK_INLINE aligned_pair words_8_at(const void *block, size_t at) {
    const aligned_pair *pairs = pairs_at(block, at);
    return pairs[0] | pairs[1] | pairs[2] | pairs[3];
}

/* All is zero where the bytes are, whole pairs of words. Some are read twice, so that few branches depend on how many
 * there are: sizes come in any order, and a branch that the processor can't predict costs more than the reads. */
HAK_INLINE bool is_all_zero(const void *block, size_t bytes) {
    aligned_pair all;
    if (bytes <= WORDS_8) {
        size_t last = bytes - WORDS_2;
        all = *pairs_at(block, 0) | *pairs_at(block, at_most(WORDS_2, last)) |
              *pairs_at(block, at_most(WORDS_4, last)) | *pairs_at(block, last);
    } else {
        size_t at = 0, last = bytes - WORDS_8;
        for (all = (aligned_pair){0, 0}; at + WORDS_32 < bytes; at += WORDS_32)
            all |= words_8_at(block, at) | words_8_at(block, at + WORDS_8) | words_8_at(block, at + WORDS_16) |
                   words_8_at(block, at + WORDS_24);
        all |= words_8_at(block, at_most(at, last)) | words_8_at(block, at_most(at + WORDS_8, last)) |
               words_8_at(block, at_most(at + WORDS_16, last)) | words_8_at(block, last);
    }
    return (all[0] | all[1]) == 0;
}

/* True when the slack of a live block is as C1 says. The words reach no further than the canary; masks choose the bytes
 * of them that are slack. */
HAK_INLINE bool is_slack_whole(const void *block, size_t usable, size_t slack) {
    static const unsigned char masks[2 * FILLED] = {[0 ... FILLED - 1] = 0xFF};
    size_t end = usable - slack;
    const unsigned char *mask = masks + FILLED - at_most(slack, FILLED);
    uint64_t fill = secrets.fill, first = (*bytes_at(block, end) ^ fill) & *bytes_at(mask, 0),
             second = (*bytes_at(block, at_most(end + sizeof fill, usable)) ^ fill) & *bytes_at(mask, sizeof fill);
    return (first | second) == 0;
}

/* The first byte of the slack that isn't as it was filled, or its length. */
static HAK_COLD size_t first_in_slack(const void *block, size_t usable, uint64_t canary) {
    size_t slack = slack_in(canary), filled = at_most(slack, FILLED), at = 0;
    const unsigned char *bytes = (const unsigned char *)block + usable - slack;
    uint64_t fill = secrets.fill;
    while (at < filled && bytes[at] == (fill >> at % sizeof fill * 8 & 0xFF)) at++;
    return at == filled ? slack : at;
}

/* Of a block whose canary is right. */
static HAK_COLD _Noreturn void report_in_slack(const void *block, size_t usable, uint64_t canary,
                                               const char *function) {
    hak_misuse(HAK_MISUSE_OVERFLOW, function, block, first_in_slack(block, usable, canary), usable - slack_in(canary));
}

/* ---- Handing out ------------------------------------------------------------------------------------------------- */

static HAK_COLD _Noreturn void report_freed_write(const void *block, size_t usable) {
    const unsigned char *bytes = block;
    size_t at = 0;
    while (bytes[at] == 0) at++;
    hak_misuse(HAK_MISUSE_FREED_WRITE, "free", block, at, usable);
}

void hak_canary_look(const void *block, size_t usable) {
    if (HAK_UNLIKELY(!is_all_zero(block, usable + sizeof(canary_word)))) report_freed_write(block, usable);
}

void hak_canary_hand_out(void *block, size_t usable, size_t size, uint32_t from) {
    HAK_ASSERT(size <= usable);
    hak_canary_look(block, usable);
    write_end(block, usable, usable - size, from, mix(block));
}

void hak_canary_change(void *block, size_t usable, uint32_t from) {
    write_end(block, usable, usable - hak_canary_asked(block, usable), from, mix(block));
}

void hak_canary_shorten(void *block, size_t usable, size_t size) {
    write_end(block, usable, usable - size, origin_in(*canary_of(block, usable)), mix(block));
}

size_t hak_canary_asked(const void *block, size_t usable) {
    uint64_t found = *canary_of(block, usable);
    return is_live(block, usable, found) ? usable - slack_in(found) : usable;
}

bool hak_canary_may_be_asked(const void *block, size_t usable, size_t size) {
    uint64_t found = *canary_of(block, usable);
    size_t slack = slack_in(found);
    return HAK_LIKELY(slack == usable - size) || !is_live(block, usable, found);
}

/* ---- What is found ----------------------------------------------------------------------------------------------- */

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

void hak_canary_expect_from(const void *block, size_t usable, uint32_t by, const char *function) {
    uint64_t found = *canary_of(block, usable);
    if (HAK_UNLIKELY(origin_in(found) != by) && is_live(block, usable, found))
        hak_canary_compare_origin(block, usable - slack_in(found), origin_in(found), by, function);
}

/* How many bytes of the secret are as they are in a canary. */
static unsigned count_same(uint64_t found, uint64_t canary) {
    unsigned same = 0;
    for (unsigned i = 0; i < SLACK_SHIFT; i += 8) same += ((found ^ canary) >> i & 0xFF) == 0;
    return same;
}

/* What a canary from such a call was before it was written to: that of which most of the secret is left. Where the two
 * bytes that tell the slack are as they were, one byte of the secret proves it. Else it takes four: there are many
 * lengths to try. 0 when nothing tells. */
static HAK_COLD uint64_t former_canary(const void *block, size_t usable, uint32_t from, uint64_t found) {
    enum { PROOF = 4 };
    for (size_t slack = 0; slack <= usable; slack++) {
        uint64_t canary = canary_for(block, slack, from);
        if (count_same(found, canary) >= PROOF) return canary;
    }
    uint64_t told = slack_in(found) <= usable ? canary_for(block, slack_in(found), from) : 0;
    return told != 0 && count_same(found, told) > 0 ? told : 0;
}

/* The canary has been written to; `former` is what it was, or 0. What was written behind the block's end lies in its
 * slack or in the canary. Where nothing tells the end, the block ends where its room does. */
static HAK_COLD _Noreturn void report_written(const void *block, size_t usable, uint64_t found, uint64_t former,
                                              const char *function) {
    size_t slack = slack_in(former), at = former == 0 ? 0 : first_in_slack(block, usable, former);
    if (former != 0 && at == slack) at += first_difference(found, former);
    hak_misuse(HAK_MISUSE_OVERFLOW, function, block, at, usable - slack);
}

/* What was found is not the canary of a live block from such a call. */
static HAK_COLD _Noreturn void report_canary(const void *block, size_t usable, uint32_t from, uint64_t found) {
    const char *function = hak_canary_freed_by(from);
    if (found == 0 && !was_cleared_behind(block, usable))
        hak_misuse(HAK_MISUSE_DOUBLE_FREE, function, block, 0, usable);
    if (is_live(block, usable, found))
        hak_misuse(HAK_MISUSE_MISMATCH, function, block, origin_in(found), usable - slack_in(found));
    report_written(block, usable, found, former_canary(block, usable, from, found), function);
}

/* hak_canary_take, and whether the slack was whole just before: then nobody had taken the canary who would clear it.
 * The processor looks at it before it waits for the exchange. */
HAK_INLINE bool take_canary(void *block, size_t usable, uint32_t from, uint64_t mixed, uint64_t *found,
                            bool *is_whole) {
    shared_canary_word *canary = (shared_canary_word *)(void *)canary_of(block, usable);
    *found = hak_atomic_load(canary, relaxed);
    if (HAK_UNLIKELY(!is_right(usable, *found, mixed) || origin_in(*found) != from)) return false;
    *is_whole = is_slack_whole(block, usable, slack_in(*found));
    /* Relaxed: what the program has done with the block is its own care. */
    return hak_atomic_cas(canary, found, 0, relaxed, relaxed);
}

bool hak_canary_take(void *block, size_t usable, uint32_t from, uint64_t *found) {
    bool is_whole;
    return take_canary(block, usable, from, mix(block), found, &is_whole);
}

/* Somebody has written to the slack of a block whose canary has been taken. For who looks at the block now, it is put
 * back. */
static HAK_COLD _Noreturn void report_taken(void *block, size_t usable, uint64_t canary, const char *function) {
    *canary_of(block, usable) = canary;
    report_in_slack(block, usable, canary, function);
}

void hak_canary_take_back(void *block, size_t usable, uint32_t from) {
    uint64_t found;
    bool is_whole;
    if (HAK_UNLIKELY(!take_canary(block, usable, from, mix(block), &found, &is_whole)))
        report_canary(block, usable, from, found);
    if (HAK_UNLIKELY(!is_whole)) report_taken(block, usable, found, hak_canary_freed_by(from));
    memset(block, 0, usable + sizeof(canary_word));
}

/* What the block is from tells the byte that may have been written, so it may also be from malloc. */
static HAK_COLD _Noreturn void report_live(const void *block, size_t usable, uint64_t found, const char *function) {
    uint64_t as_told = former_canary(block, usable, origin_in(found), found);
    uint64_t as_malloc = former_canary(block, usable, HAK_FROM_MALLOC, found);
    bool is_as_told = as_told != 0 && (as_malloc == 0 || count_same(found, as_told) >= count_same(found, as_malloc));
    report_written(block, usable, found, is_as_told ? as_told : as_malloc, function);
}

bool hak_canary_is_cleared(const void *block, size_t usable) {
    return *canary_of(block, usable) == 0 && is_all_zero(block, usable + sizeof(canary_word));
}

bool hak_canary_is_live(const void *block, size_t usable, size_t *asked, const char *function) {
    uint64_t found = *canary_of(block, usable);
    if (HAK_UNLIKELY(found == 0) && !was_cleared_behind(block, usable)) return false;
    if (HAK_UNLIKELY(!is_live(block, usable, found))) report_live(block, usable, found, function);
    if (HAK_UNLIKELY(!is_slack_whole(block, usable, slack_in(found)))) report_in_slack(block, usable, found, function);
    *asked = usable - slack_in(found);
    return true;
}

/* Somebody else has freed it just now. */
static HAK_COLD _Noreturn void report_freed(const void *block, size_t usable, const char *function) {
    size_t asked;
    hak_canary_is_live(block, usable, &asked, function);
    hak_misuse(HAK_MISUSE_FREED_BLOCK, function, block, 0, usable);
}

/* Meanwhile the block is taken: who frees it at the same moment finds it free. */
void hak_canary_resize(void *block, size_t usable, size_t size, const char *function) {
    uint32_t from = origin_in(*canary_of(block, usable));
    uint64_t mixed = mix(block), found;
    bool is_whole;
    if (HAK_UNLIKELY(!take_canary(block, usable, from, mixed, &found, &is_whole)))
        report_freed(block, usable, function);
    if (HAK_UNLIKELY(!is_whole)) report_taken(block, usable, found, function);
    size_t had = usable - slack_in(found);
    if (size > had) memset((char *)block + had, 0, size - had);
    write_end(block, usable, usable - size, from, mixed);
}

/* ---- Behind large objects (C4) ----------------------------------------------------------------------------------- */

static uint64_t slack_word_for(const void *block) {
    return hak_siphash(secrets.of_large, (uintptr_t)block) | UINT64_C(0x8181818181818181);
}

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
