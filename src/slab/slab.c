#include "slab/slab.h"

#include "base/check.h"
#include "base/counters.h"

void hak_slab_initialize(struct hak_slab *slab, uintptr_t start, uint32_t size_class, HAK_ATOMIC(uint64_t) *bits_row,
                         uint32_t state) {
    const struct hak_size_class *facts = &hak_size_classes[size_class];
    slab->start = start;
    slab->block_count = (uint16_t)facts->block_count;
    slab->bits = hak_slab_word_count(slab) <= HAK_SLAB_INLINE_WORDS ? slab->inline_bits : bits_row;
    slab->next = slab->previous = NULL;
    hak_owned_set(&slab->claimed_word, 0);
    hak_owned_set(&slab->claimed, hak_slab_word_mask(slab->block_count, 0));
    hak_owned_set(&slab->was_used, 0);
    hak_owned_set(&slab->tail_word, 1);
    hak_atomic_store(&slab->run_pages, 0, relaxed);
    hak_atomic_store(&slab->scan_word, 0, relaxed);
    hak_atomic_store(&slab->purged_pages, 0, relaxed);
    hak_atomic_store(&slab->sweeps, 0, relaxed);
    hak_atomic_store(&slab->size_class, (uint8_t)size_class, relaxed);
    /* Relaxed: the caller has the slab; whoever gets it next does so by way of hak_slab_announce_full or the partial
     * set. */
    hak_atomic_store(&slab->state, state, relaxed);
}

/* Writes `count` blocks that are neighbours, from the last one down. */
static void write_neighbours(void **out, uintptr_t last, size_t block_bytes, uint32_t count) {
    hak_address_pair pair = {last, last - block_bytes}, step = {2 * block_bytes, 2 * block_bytes};
#pragma GCC unroll 4
    for (uint32_t i = 0; i < count / 2; i++, pair -= step) ((hak_address_pair *)(void *)out)[i] = pair;
    if (count % 2 != 0) out[count - 1] = (void *)pair[0];
}

uint32_t hak_slab_forget_purged_pages(struct hak_slab *slab) {
    if (HAK_LIKELY(hak_atomic_load(&slab->purged_pages, relaxed) == 0)) return 0;
    uint64_t pages = hak_atomic_exchange(&slab->purged_pages, 0, relaxed);
    hak_counter_add_shared(&hak_slab_holes, -(uint64_t)hak_bit_count(pages));
    return hak_bit_count(pages);
}

/* The program is about to write what it gets. Blocks that were used before may lie in the cache of the processor that
 * freed them: their first lines are asked for at once. Neighbours only: others were freed at random, and are used when
 * chance will have it. */
static void prefetch_blocks(uintptr_t first, size_t block_bytes, uint32_t count) {
    enum { CACHE_LINE = 64 };
    size_t step = block_bytes;
    if (block_bytes < CACHE_LINE) {
        step = CACHE_LINE;
        count = (uint32_t)(count * block_bytes + CACHE_LINE - 1) / CACHE_LINE;
    }
#pragma GCC unroll 4
    for (uint32_t i = 0; i < count; i++, first += step) hak_prefetch_for_write((void *)first);
}

HAK_ATOMIC(uint64_t) hak_slot_secrets[2] = {1, 1};

/* A set bit, in an order that nobody foresees, and that is another one in each slab. */
static uint32_t pick_bit(uint64_t bits, uintptr_t word_start) {
    uint64_t mixed = hak_folded_product(bits ^ hak_atomic_load(&hak_slot_secrets[0], relaxed),
                                        word_start ^ hak_atomic_load(&hak_slot_secrets[1], relaxed));
    uint32_t turn = (uint32_t)(mixed * UINT64_C(0x9E3779B97F4A7C15) >> 58);
    uint64_t turned = turn == 0 ? bits : bits >> turn | bits << (64 - turn);
    return (hak_lowest_bit(turned) + turn) % 64;
}

static uint32_t take_by_chance(uint64_t *claimed, uintptr_t word_start, size_t block_bytes, void **top, uint32_t want) {
    uint32_t got = 0;
    while (*claimed != 0 && got < want) {
        uint32_t bit = pick_bit(*claimed, word_start);
        top[-1 - (ptrdiff_t)got++] = (void *)(word_start + bit * block_bytes);
        *claimed &= ~((uint64_t)1 << bit);
    }
    return got;
}

/* Takes up to `want` of the claimed blocks and writes them below `top`, the lowest last. Returns how many. */
static uint32_t take_claimed(struct hak_slab *slab, size_t block_bytes, void **top, uint32_t want) {
    uint64_t claimed = hak_owned_get(&slab->claimed);
    uintptr_t word_start = slab->start + (size_t)hak_owned_get(&slab->claimed_word) * 64 * block_bytes;
    if (HAK_SECURE) {
        uint32_t got = take_by_chance(&claimed, word_start, block_bytes, top, want);
        hak_owned_set(&slab->claimed, claimed);
        return got;
    }
    uint32_t first = hak_lowest_bit(claimed), run = hak_trailing_ones(claimed >> first), got = 0;
    if (run >= want || claimed >> first == hak_low_bits(run)) { /* neighbours: no look at the bits */
        got = run < want ? run : want;
        write_neighbours(top - got, word_start + (first + got - 1) * block_bytes, block_bytes, got);
        claimed &= ~(hak_low_bits(got) << first);
        if (hak_owned_get(&slab->was_used) != 0) prefetch_blocks(word_start + first * block_bytes, block_bytes, got);
    } else {
        for (; claimed != 0 && got < want; claimed &= claimed - 1)
            top[-1 - (ptrdiff_t)got++] = (void *)(word_start + hak_lowest_bit(claimed) * block_bytes);
    }
    hak_owned_set(&slab->claimed, claimed);
    return got;
}

static HAK_COLD void report_double_free_in_tail(const struct hak_slab *slab, uint32_t index, uint64_t freed) {
    size_t bytes = hak_size_classes[hak_atomic_load(&slab->size_class, relaxed)].block_bytes;
    const void *block = (const void *)(slab->start + (index * 64 + hak_lowest_bit(freed)) * bytes);
    hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", block, 0, bytes);
}

/* The next word of the tail becomes `claimed`. */
static void claim_from_tail(struct hak_slab *slab) {
    uint32_t index = hak_owned_get(&slab->tail_word);
    uint64_t freed = hak_atomic_load(&slab->bits[index], relaxed); /* and not handed out before */
    if (HAK_UNLIKELY(freed != 0)) report_double_free_in_tail(slab, index, freed);
    /* In this order: what is in the tail is in no bin, whenever a fork comes. */
    hak_owned_set(&slab->tail_word, (uint8_t)(index + 1));
    hak_atomic_store(&slab->scan_word, (uint8_t)index, relaxed);
    hak_owned_set(&slab->claimed_word, (uint8_t)index);
    hak_owned_set(&slab->was_used, 0);
    hak_owned_set(&slab->claimed, hak_slab_word_mask(slab->block_count, index));
}

/* Claims the first of words `index`..`end` that has free blocks; false when none has. */
static bool claim_from_bits(struct hak_slab *slab, uint32_t index, uint32_t end) {
    for (; index < end; index++) {
        if (hak_atomic_load(&slab->bits[index], relaxed) == 0) continue;
        /* Acquire pairs with hak_slab_set_bits: the last user of a block is done with it. A purger may hold some of
         * them for a moment: what was set is what the caller gets (S1). */
        uint64_t word = hak_atomic_exchange(&slab->bits[index], 0, acquire);
        if (word == 0) continue;
        hak_atomic_store(&slab->scan_word, (uint8_t)index, relaxed);
        hak_owned_set(&slab->claimed_word, (uint8_t)index);
        hak_owned_set(&slab->was_used, 1);
        hak_owned_set(&slab->claimed, word);
        return true;
    }
    return false;
}

/* Claims a word with free blocks; false when there is none. What was touched is used again before the tail is. */
static bool claim_word(struct hak_slab *slab) {
    uint32_t scan_word = hak_atomic_load(&slab->scan_word, relaxed), tail_word = hak_owned_get(&slab->tail_word);
    if (!claim_from_bits(slab, scan_word, tail_word)) {
        if (tail_word < hak_slab_word_count(slab)) claim_from_tail(slab);
        else if (!claim_from_bits(slab, 0, scan_word)) return false;
    }
    /* After the acquire: whoever purged pages of these blocks has said so before it gave them back. */
    uint32_t purged = hak_slab_forget_purged_pages(slab);
    if (HAK_UNLIKELY(purged != 0)) { /* what is used gets memory again */
        hak_count_growth(purged);
        hak_count_reuse(purged);
    }
    if (HAK_UNLIKELY(hak_atomic_load(&slab->sweeps, relaxed) != 0)) hak_atomic_store(&slab->sweeps, 0, relaxed);
    return true;
}

uint32_t hak_slab_take(struct hak_slab *slab, void **top, uint32_t want) {
    size_t block_bytes = hak_size_classes[hak_atomic_load(&slab->size_class, relaxed)].block_bytes;
    uint32_t got = 0;
    while (got < want) {
        if (hak_owned_get(&slab->claimed) == 0 && !claim_word(slab)) break;
        got += take_claimed(slab, block_bytes, top - got, want - got);
    }
    return got;
}

void hak_slab_unclaim_word(struct hak_slab *slab) {
    uint64_t claimed = hak_owned_get(&slab->claimed);
    if (claimed == 0) return;
    hak_owned_set(&slab->claimed, 0);
    hak_slab_set_bits(slab, hak_owned_get(&slab->claimed_word), claimed);
    hak_slab_scan_from(slab, hak_owned_get(&slab->claimed_word));
}

void hak_slab_unclaim(struct hak_slab *slab) {
    uint64_t claimed = hak_owned_get(&slab->claimed);
    uint32_t tail_word = hak_owned_get(&slab->tail_word), word_count = hak_slab_word_count(slab);
    hak_owned_set(&slab->claimed, 0);
    hak_owned_set(&slab->tail_word, (uint8_t)word_count);
    if (claimed != 0) hak_slab_set_bits(slab, hak_owned_get(&slab->claimed_word), claimed);
    for (uint32_t i = tail_word; i < word_count; i++)
        hak_slab_set_bits(slab, i, hak_slab_word_mask(slab->block_count, i));
}

bool hak_slab_bits_all_set(HAK_ATOMIC(uint64_t) *bits, uint32_t block_count) {
    for (uint32_t i = 0; i * 64 < block_count; i++)
        if (hak_atomic_load(&bits[i], relaxed) != hak_slab_word_mask(block_count, i)) return false;
    return true;
}

/* A word of a slab of which no block is in use. */
static uint64_t empty_word(const struct hak_slab *slab, uint32_t index) {
    return hak_slab_word_mask(slab->block_count, index) & ~hak_slab_claimed_in(slab, slab->block_count, index);
}

/* No block is free or claimed. */
static bool is_word_used_up(const struct hak_slab *slab, uint32_t index) {
    if (hak_atomic_load(&slab->bits[index], relaxed) != 0) return false;
    return index != hak_owned_peek(&slab->claimed_word) || hak_owned_peek(&slab->claimed) == 0;
}

/* Where blocks are freed in the order of their addresses, or against it, one of the two ends tells soon. */
bool hak_slab_is_empty(struct hak_slab *slab) {
    uint32_t tail_word = hak_owned_get(&slab->tail_word);
    if (is_word_used_up(slab, tail_word - 1) || is_word_used_up(slab, 0)) return false;
    for (uint32_t i = 0; i < tail_word; i++)
        if (hak_atomic_load(&slab->bits[i], relaxed) != empty_word(slab, i)) return false;
    return true;
}

bool hak_slab_claim_all(struct hak_slab *slab) {
    uint32_t tail_word = hak_owned_get(&slab->tail_word);
    for (uint32_t i = 0; i < tail_word; i++) {
        /* Acquire pairs with hak_slab_set_bits: the units are used anew, after the last user of every block. */
        uint64_t word = hak_atomic_exchange(&slab->bits[i], 0, acquire);
        if (word == empty_word(slab, i)) continue;
        /* Not empty after all: back with what was taken. seq_cst by way of hak_slab_set_bits, whose duties apply. */
        hak_slab_set_bits(slab, i, word);
        while (i-- > 0) hak_slab_set_bits(slab, i, empty_word(slab, i));
        return false;
    }
    return true;
}

uint32_t hak_slab_count_claimed(const struct hak_slab *slab, uint32_t block_count) {
    uint32_t before_tail = hak_owned_peek(&slab->tail_word) * 64u;
    return hak_bit_count(hak_owned_peek(&slab->claimed)) + (before_tail < block_count ? block_count - before_tail : 0);
}

uint32_t hak_slab_count_bits(HAK_ATOMIC(uint64_t) *bits, uint32_t block_count) {
    uint32_t count = 0;
    for (uint32_t i = 0; i * 64 < block_count; i++) count += hak_bit_count(hak_atomic_load(&bits[i], relaxed));
    return count;
}

struct hak_full_slab hak_slab_announce_full(struct hak_slab *slab, uint32_t heap) {
    HAK_ASSERT(hak_slab_count_claimed(slab, slab->block_count) == 0);
    /* What the second look needs, while the record is ours: it may become another slab's before it. */
    struct hak_full_slab full = {.slab = slab, .bits = slab->bits, .word_count = hak_slab_word_count(slab)};
    /* Release: who takes the slab over sees the holder's writes. The fence of S5 follows. */
    hak_atomic_store(&slab->state, hak_slab_state(HAK_SLAB_FULL, heap), release);
    return full;
}

bool hak_slab_take_back(const struct hak_full_slab *full, uint32_t heap, uint32_t kept_state) {
    uint32_t expected = hak_slab_state(HAK_SLAB_FULL, heap);
    for (uint32_t i = 0; i < full->word_count; i++) {
        /* S5: after the fence that followed the announcement. */
        if (hak_atomic_load(&full->bits[i], relaxed) == 0) continue;
        /* The freer of that block may take it over at this moment: one of the two wins (S4). Acquire: if it is us, the
         * slab can have come back by way of others. */
        return hak_atomic_cas(&full->slab->state, &expected, kept_state, acquire, relaxed);
    }
    return false;
}

bool hak_slab_take_over_full(struct hak_slab *slab, uint32_t heap, uint32_t *state_found) {
    /* S5: after the bits were set. */
    uint32_t state = hak_atomic_load(&slab->state, seq_cst);
    *state_found = state;
    if (HAK_LIKELY((state & HAK_SLAB_KIND_MASK) != HAK_SLAB_FULL)) return false;
    bool ours = heap != HAK_NO_HEAP && state == hak_slab_state(HAK_SLAB_FULL, heap);
    uint32_t taken = ours ? hak_slab_state(HAK_SLAB_HELD, heap) : HAK_SLAB_POOLED;
    /* Acquire pairs with the release in hak_slab_announce_full: we use the record from here on. */
    return hak_atomic_cas(&slab->state, &state, taken, acquire, relaxed);
}
