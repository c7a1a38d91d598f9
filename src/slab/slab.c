#include "slab/slab.h"

#include "base/check.h"
#include "base/counters.h"

void hak_slab_initialize(struct hak_slab *slab, uintptr_t start, uint32_t size_class, HAK_ATOMIC(uint64_t) *bits_row,
                         uint32_t state) {
    const struct hak_size_class *facts = &hak_size_classes[size_class];
    slab->start = start;
    slab->block_count = (uint16_t)facts->block_count;
    slab->word_count = (uint8_t)((facts->block_count + 63) / 64);
    slab->bits = slab->word_count <= HAK_SLAB_INLINE_WORDS ? slab->inline_bits : bits_row;
    slab->next = slab->previous = NULL;
    slab->claimed_word = 0;
    hak_owned_set(&slab->claimed, hak_slab_word_mask(slab->block_count, 0));
    hak_atomic_store(&slab->run_pages, 0, relaxed);
    hak_atomic_store(&slab->scan_word, 0, relaxed);
    hak_atomic_store(&slab->purged_pages, 0, relaxed);
    hak_atomic_store(&slab->sweeps, 0, relaxed);
    hak_atomic_store(&slab->size_class, (uint8_t)size_class, relaxed);
    /* Word 0 is claimed from the start: a slab of at most 64 blocks needs no write to the line of its bits. Release: a
     * purger who still takes the units for the slab they were, and claims some of these bits, sees in the page map that
     * they are not. */
    for (uint32_t i = 1; i < slab->word_count; i++)
        hak_atomic_store(&slab->bits[i], hak_slab_word_mask(slab->block_count, i), release);
    /* Relaxed: the caller has the slab; whoever gets it next does so by way of hak_slab_announce_full or the partial set. */
    hak_atomic_store(&slab->state, state, relaxed);
}

/* Writes the blocks of `mask` below `top`, the lowest last. */
static void write_blocks(const struct hak_slab *slab, size_t block_bytes, uint64_t mask, void **top) {
    uint32_t first = hak_lowest_bit(mask), count = hak_bit_count(mask);
    uintptr_t word_start = slab->start + (size_t)slab->claimed_word * 64 * block_bytes;
    if (mask >> first == hak_low_bits(count)) { /* neighbours: no look at the bits */
        uintptr_t block = word_start + first * block_bytes;
        for (uint32_t i = 1; i <= count; i++, block += block_bytes) *(top - i) = (void *)block;
        return;
    }
    for (; mask != 0; mask &= mask - 1) *--top = (void *)(word_start + hak_lowest_bit(mask) * block_bytes);
}

/* Blocks of the slab are about to be used, or the slab is about to be something else: what was purged of it gets memory again. */
static void forget_purged_pages(struct hak_slab *slab) {
    uint64_t pages = hak_atomic_load(&slab->purged_pages, relaxed);
    if (HAK_LIKELY(pages == 0)) return;
    hak_atomic_store(&slab->purged_pages, 0, relaxed);
    hak_count_growth(hak_bit_count(pages));
}

/* Claims the next word that has free blocks; false when none has. */
static bool claim_word(struct hak_slab *slab) {
    uint32_t index = hak_atomic_load(&slab->scan_word, relaxed);
    for (uint32_t step = 0; step < slab->word_count; step++, index++) {
        if (index >= slab->word_count) index = 0;
        if (hak_atomic_load(&slab->bits[index], relaxed) == 0) continue;
        /* Acquire pairs with hak_slab_set_bits: the last user of a block is done with it. A purger may hold some of them
         * for a moment: what was set is what the caller gets (S1). */
        uint64_t word = hak_atomic_exchange(&slab->bits[index], 0, acquire);
        if (word == 0) continue;
        slab->claimed_word = (uint8_t)index;
        hak_owned_set(&slab->claimed, word);
        hak_atomic_store(&slab->scan_word, (uint8_t)index, relaxed);
        /* After the acquire: whoever purged pages of these blocks has said so before it gave them back. */
        forget_purged_pages(slab);
        if (HAK_UNLIKELY(hak_atomic_load(&slab->sweeps, relaxed) != 0)) hak_atomic_store(&slab->sweeps, 0, relaxed);
        return true;
    }
    return false;
}

uint32_t hak_slab_take(struct hak_slab *slab, void **top, uint32_t want) {
    size_t block_bytes = hak_size_classes[hak_atomic_load(&slab->size_class, relaxed)].block_bytes;
    uint32_t got = 0;
    while (got < want) {
        uint64_t claimed = hak_owned_get(&slab->claimed);
        if (claimed == 0) {
            if (!claim_word(slab)) break;
            continue;
        }
        uint64_t mask = hak_take_low_bits(claimed, want - got);
        hak_owned_set(&slab->claimed, claimed & ~mask);
        write_blocks(slab, block_bytes, mask, top - got);
        got += hak_bit_count(mask);
    }
    return got;
}

void hak_slab_unclaim(struct hak_slab *slab) {
    uint64_t claimed = hak_owned_get(&slab->claimed);
    if (claimed == 0) return;
    hak_owned_set(&slab->claimed, 0);
    hak_slab_set_bits(slab, slab->claimed_word, claimed);
}

bool hak_slab_bits_all_set(HAK_ATOMIC(uint64_t) *bits, uint32_t block_count, uint32_t claimed_word, uint64_t claimed) {
    for (uint32_t i = 0; i * 64 < block_count; i++) {
        uint64_t word = hak_atomic_load(&bits[i], relaxed);
        if (i == claimed_word) word |= claimed;
        if (word != hak_slab_word_mask(block_count, i)) return false;
    }
    return true;
}

bool hak_slab_claim_all(struct hak_slab *slab) {
    HAK_ASSERT(hak_owned_get(&slab->claimed) == 0);
    for (uint32_t i = 0; i < slab->word_count; i++) {
        uint64_t all = hak_slab_word_mask(slab->block_count, i);
        /* Acquire pairs with hak_slab_set_bits: the units are used anew, after the last user of every block. */
        uint64_t word = hak_atomic_exchange(&slab->bits[i], 0, acquire);
        if (word == all) continue;
        /* Not empty after all: back with what was taken. seq_cst by way of hak_slab_set_bits, whose duties apply. */
        hak_slab_set_bits(slab, i, word);
        while (i-- > 0) hak_slab_set_bits(slab, i, hak_slab_word_mask(slab->block_count, i));
        return false;
    }
    forget_purged_pages(slab);
    return true;
}

uint32_t hak_slab_count_bits(HAK_ATOMIC(uint64_t) *bits, uint32_t block_count) {
    uint32_t count = 0;
    for (uint32_t i = 0; i * 64 < block_count; i++) count += hak_bit_count(hak_atomic_load(&bits[i], relaxed));
    return count;
}

struct hak_full_slab hak_slab_announce_full(struct hak_slab *slab, uint32_t heap) {
    HAK_ASSERT(hak_owned_get(&slab->claimed) == 0);
    /* What the second look needs, while the record is ours: it may become another slab's before it. */
    struct hak_full_slab full = {.slab = slab, .bits = slab->bits, .word_count = slab->word_count};
    /* Release: who takes the slab over sees the holder's writes. The fence of S5 follows. */
    hak_atomic_store(&slab->state, hak_slab_state(HAK_SLAB_FULL, heap), release);
    return full;
}

bool hak_slab_take_back(const struct hak_full_slab *full, uint32_t heap, uint32_t kept_state) {
    uint32_t expected = hak_slab_state(HAK_SLAB_FULL, heap);
    for (uint32_t i = 0; i < full->word_count; i++) {
        /* S5: after the fence that followed the announcement. */
        if (hak_atomic_load(&full->bits[i], relaxed) == 0) continue;
        /* The freer of that block may take it over at this moment: one of the two wins (S4). Acquire: if it is us, the slab
         * can have come back by way of others. */
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
