#include "pool/put.h"

#include "pool/held.h"
#include "pool/pool.h"
#include "region/heap_count.h"
#include "region/in_hand.h"

/* What all blocks of a flush have in common. */
struct batch {
    struct hak_heap *heap; /* NULL: of a thread without one */
    const struct hak_size_class *facts;
    uint32_t size_class, own_state /* of slabs that the heap holds */, keeper /* of those that were its, and full */;
};

/* The blocks that were gathered of a slab: a bit for each in `masks`, of which only words in `touched` are not 0. */
struct gathered {
    struct hak_slab *slab;
    uint64_t touched;
};

/* ---- Misuse ------------------------------------------------------------------------------------------------------ */

/* The blocks of a slab that are in `free_already`, of word `index`. */
static HAK_COLD _Noreturn void report_double_free(uintptr_t start, uint32_t index, uint64_t free_already,
                                                  size_t block_bytes) {
    size_t block = index * 64 + hak_lowest_bit(free_already);
    hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", (void *)(start + block * block_bytes), 0, block_bytes);
}

/* `index`: of the block that lies before, or around, the offset in its slab. */
static HAK_COLD _Noreturn void report_off_grid(const void *block, uintptr_t offset, uint64_t index,
                                               size_t block_bytes) {
    hak_misuse(HAK_MISUSE_INTERIOR_POINTER, "free", block, offset - index * block_bytes, block_bytes);
}

/* ---- Freeing ----------------------------------------------------------------------------------------------------- */

/* Some word of the slab's bits is all set, with what its holder has claimed: `state` is what was seen then. Gives the
 * slab up if it is empty and can be had. */
static HAK_MISS void retire_if_empty(const struct batch *batch, struct hak_slab *slab, HAK_ATOMIC(uint64_t) *bits,
                                     uint32_t state) {
    if (state == batch->own_state) {
        /* Ours, and nobody else can change that. The last one of the class stays: it will be wanted again. */
        if (batch->heap->partial[batch->size_class].count <= 1) return;
        hak_hand_note(slab);
        if (!hak_slab_is_empty(slab) || !hak_slab_claim_all(slab)) return;
        hak_heap_unlink(batch->heap, slab);
        hak_pool_retire(batch->heap, slab);
    } else if (state == HAK_SLAB_POOLED) {
        hak_pool_retire_if_empty(batch->heap, slab, bits, batch->size_class);
    }
}

/* Frees blocks of word `index` of a slab that somebody else may have. */
HAK_INLINE void put_word(const struct batch *batch, struct hak_slab *slab, uint32_t index, uint64_t mask) {
    struct hak_heap *heap = batch->heap;
    hak_hand_note(slab);
    /* All its blocks were free: those of an earlier word completed it. */
    if (HAK_UNLIKELY(hak_atomic_load(&slab->state, relaxed) == HAK_SLAB_NONE))
        report_double_free(slab->start, index, mask, batch->facts->block_bytes);
    HAK_ATOMIC(uint64_t) *bits = slab->bits; /* before the blocks are given away: afterwards the record may change */
    uint64_t before = hak_slab_set_bits(slab, index, mask);
    if (HAK_UNLIKELY((before & mask) != 0))
        report_double_free(slab->start, index, before & mask, batch->facts->block_bytes);
    uint32_t state;
    bool taken_over = hak_slab_take_over_full(slab, batch->keeper, &state);
    if (heap == NULL || state >> 2 != heap->number)
        HAK_COUNT(heap, remote_frees, (mask & (mask - 1)) == 0 ? 1 : hak_bit_count(mask));
    if (HAK_UNLIKELY(taken_over)) {
        if (batch->keeper == HAK_NO_HEAP || state != hak_slab_state(HAK_SLAB_FULL, batch->keeper)) {
            HAK_COUNT(heap, slabs_pooled, 1);
            hak_pool_share(heap, slab);
            return;
        }
        if (!hak_heap_hold(heap, slab)) return;
        state = hak_slab_state(HAK_SLAB_HELD, batch->keeper);
    }
    /* A word of ours may be complete together with claimed blocks. */
    uint64_t word = before | mask;
    if (state == batch->own_state) {
        hak_slab_scan_from(slab, index);
        uint64_t claimed = hak_slab_claimed_in(slab, batch->facts->block_count, index);
        if (HAK_UNLIKELY((claimed & mask) != 0))
            report_double_free(slab->start, index, claimed & mask, batch->facts->block_bytes);
        word |= claimed;
    }
    if (word == hak_slab_word_mask(batch->facts->block_count, index)) retire_if_empty(batch, slab, bits, state);
}

static HAK_MISS void put_elsewhere(const struct batch *batch, const struct gathered *of, uint64_t *masks) {
    for (uint64_t touched = of->touched; touched != 0; touched &= touched - 1) {
        uint32_t index = hak_lowest_bit(touched);
        uint64_t mask = masks[index];
        masks[index] = 0;
        put_word(batch, of->slab, index, mask);
    }
}

/* Frees the blocks that were gathered of a slab, and leaves masks of 0. */
HAK_INLINE void put_gathered(const struct batch *batch, const struct gathered *of, uint64_t *masks) {
    struct hak_slab *slab = of->slab;
    if (HAK_UNLIKELY(hak_atomic_load(&slab->state, relaxed) != batch->own_state)) {
        put_elsewhere(batch, of, masks);
        return;
    }
    /* Ours, and nobody else can change that. */
    uint64_t touched = of->touched, claimed = hak_owned_get(&slab->claimed);
    uint32_t claimed_word = hak_owned_get(&slab->claimed_word), tail_word = hak_owned_get(&slab->tail_word),
             last_word = (batch->facts->block_count - 1) / 64;
    bool is_complete = false;
    hak_slab_scan_from(slab, hak_lowest_bit(touched));
    do {
        uint32_t index = hak_lowest_bit(touched);
        uint64_t mask = masks[index];
        touched &= touched - 1;
        masks[index] = 0;
        uint64_t word = hak_slab_set_bits(slab, index, mask);
        if (index == claimed_word) word |= claimed;
        else if (HAK_UNLIKELY(index >= tail_word)) word = UINT64_MAX; /* none of them was handed out */
        if (HAK_UNLIKELY((word & mask) != 0))
            report_double_free(slab->start, index, word & mask, batch->facts->block_bytes);
        word |= mask;
        is_complete |= word == (index == last_word ? hak_slab_word_mask(batch->facts->block_count, index) : UINT64_MAX);
    } while (touched != 0);
    if (HAK_UNLIKELY(is_complete)) retire_if_empty(batch, slab, slab->bits, batch->own_state);
}

/* ---- Gathering --------------------------------------------------------------------------------------------------- */

/* How many of `blocks`, at most `limit`, follow each other at a distance of `step` bytes, the first at `expected`. */
HAK_INLINE uint32_t count_steps(void *const *blocks, uint32_t limit, uintptr_t expected, uintptr_t step) {
    enum { PAIRS = 8 }; /* of addresses, compared in a turn */
    uint32_t count = 0;
    hak_address_pair two = {2 * step, 2 * step}, stride = PAIRS * two, pairs[PAIRS] = {{expected, expected + step}};
#pragma GCC unroll 8
    for (uint32_t i = 1; i < PAIRS; i++) pairs[i] = pairs[i - 1] + two;
    for (; count + 2 * PAIRS <= limit; count += 2 * PAIRS) {
        const hak_address_pair *next = (const hak_address_pair *)(const void *)(blocks + count);
        hak_address_pair difference = next[0] ^ pairs[0];
#pragma GCC unroll 8
        for (uint32_t i = 1; i < PAIRS; i++) difference |= next[i] ^ pairs[i];
        if ((difference[0] | difference[1]) != 0) break;
#pragma GCC unroll 8
        for (uint32_t i = 0; i < PAIRS; i++) pairs[i] += stride;
    }
    for (expected += count * step; count < limit && (uintptr_t)blocks[count] == expected; count++) expected += step;
    return count;
}

/* The first of `count` blocks, 2 at least, is the one of bit `index` % 64 in its word. How many there are of it and of
 * neighbours in the word that follow: upwards, or, when the result is negative, downwards. A word of blocks is whole
 * turns of count_steps. */
static __attribute__((noinline)) int32_t count_neighbours(void *const *blocks, uint32_t count, uint32_t index,
                                                          const struct hak_size_class *facts) {
    uintptr_t first = (uintptr_t)blocks[0], step = facts->block_bytes;
    uint32_t down = index % 64 + 1, up = 65 - down, to_end = facts->block_count - index;
    if (up > to_end) up = to_end;
    if ((uintptr_t)blocks[1] > first) return (int32_t)count_steps(blocks, count < up ? count : up, first, step);
    return -(int32_t)count_steps(blocks, count < down ? count : down, first, -step);
}

/* The mask of the block of bit `index` % 64 in its word and of neighbours that follow; *run is how many. */
HAK_INLINE uint64_t mask_of_neighbours(void *const *blocks, void *const *end, uint32_t index,
                                       const struct hak_size_class *facts, uint32_t *run) {
    int32_t length = count_neighbours(blocks, (uint32_t)(end - blocks), index, facts);
    *run = length < 0 ? (uint32_t)-length : (uint32_t)length;
    return hak_low_bits(*run) << (length < 0 ? index % 64 + 1 - *run : index % 64);
}

/* Sets a bit of a word; true when it was set. */
HAK_INLINE bool set_bit(uint64_t *word, uint64_t bit) {
#ifdef __x86_64__
    bool was_set;
    __asm__("btsq %[bit], %[word]" : [word] "+r"(*word), "=@ccc"(was_set) : [bit] "r"(bit));
    return was_set;
#else
    uint64_t before = *word;
    *word = before | (uint64_t)1 << bit % 64;
    return (before >> bit % 64 & 1) != 0;
#endif
}

enum { LOOK_AHEAD = 8 };

/* So many blocks follow each other at the distance of neighbours. */
HAK_INLINE bool are_neighbours(uintptr_t block_bytes, void *const *blocks) {
    uintptr_t first = (uintptr_t)blocks[0], distance = (uintptr_t)blocks[1] - first;
    if (HAK_LIKELY(distance != block_bytes) && HAK_LIKELY(distance != -block_bytes)) return false;
    return (uintptr_t)blocks[LOOK_AHEAD - 1] - first == (LOOK_AHEAD - 1) * distance;
}

/* Where to look for neighbours next: not where fewer blocks are left. */
HAK_INLINE void *const *look_from(void *const *blocks, void *const *end) {
    return end - blocks > LOOK_AHEAD ? blocks : end;
}

/* Places for the slabs of a flush, each with the masks that a slab of the class needs. */
enum { MASK_WORDS = 128, LEAST_WORDS = 8, MOST_PLACES = MASK_WORDS / LEAST_WORDS }; /* on the stack */
_Static_assert(MOST_PLACES <= 32, "a bit for each place");
_Static_assert(HAK_SLAB_MAX_WORDS <= 64, "a bit for each word of a slab");

/* A power of two. */
HAK_INLINE uint32_t words_of_place(const struct hak_size_class *facts) {
    uint32_t words = (facts->block_count + 63) / 64;
    return words <= LEAST_WORDS ? LEAST_WORDS : (uint32_t)2 << hak_highest_bit(words - 1);
}

HAK_INLINE void clear_masks(uint64_t *masks, uint32_t words) {
    hak_address_pair *pairs = (hak_address_pair *)(void *)masks;
    for (uint32_t i = 0; i < words / 2; i += LEAST_WORDS / 2) {
#pragma GCC unroll 4
        for (uint32_t j = 0; j < LEAST_WORDS / 2; j++) pairs[i + j] = (hak_address_pair){0, 0};
    }
}

static HAK_MISS void put_many(const struct batch *batch, void *const *blocks, uint32_t count) {
    const struct hak_size_class *facts = batch->facts;
    const uint32_t size_class = batch->size_class;
    const uintptr_t block_bytes = facts->block_bytes, slab_bytes = facts->block_count * block_bytes;
    const uint64_t reciprocal = facts->reciprocal;
    const uint32_t unit_count = facts->unit_count, words = words_of_place(facts),
                   slab_shift = HAK_UNIT_SHIFT + hak_lowest_bit(unit_count), place_mask = MASK_WORDS / words - 1;
    uintptr_t starts[MOST_PLACES]; /* of the slabs that have places now */
    struct gathered slabs[MOST_PLACES], none, *of = &none;
    uint64_t all_masks[MASK_WORDS], *masks = all_masks, touched = 0;
    uint8_t order[MOST_PLACES]; /* in which places were opened */
    uint32_t open_places = 0 /* a bit for each */, opened = 0;
    uintptr_t start = 0;
    void *const *end = blocks + count, *const *look = look_from(blocks, end);
    while (blocks != end) {
        uintptr_t offset = (uintptr_t)*blocks - start;
        if (HAK_UNLIKELY(offset >= slab_bytes)) { /* not of the slab that the one before was of */
            of->touched = touched;
            start = (uintptr_t)*blocks >> slab_shift << slab_shift; /* as ranges are aligned, too */
            uint32_t number = (uint32_t)(start >> slab_shift), place = (number + (number >> 5)) & place_mask;
            of = &slabs[place];
            masks = &all_masks[(size_t)place * words];
            bool is_open = (open_places >> place & 1) != 0;
            if (!is_open || starts[place] != start) {
                struct hak_slab *slab = hak_put_slab_of(*blocks, size_class, unit_count, &start);
                __builtin_prefetch(&slab->bits);
                if (is_open) {
                    put_gathered(batch, of, masks);
                } else {
                    clear_masks(masks, words);
                    open_places |= (uint32_t)1 << place;
                    order[opened++] = (uint8_t)place;
                }
                starts[place] = start;
                *of = (struct gathered){slab, 0};
            }
            touched = of->touched;
            offset = (uintptr_t)*blocks - start;
            if (HAK_UNLIKELY(offset >= slab_bytes)) report_off_grid(*blocks, offset, facts->block_count, block_bytes);
        }
        uint64_t index = offset * reciprocal >> HAK_RECIPROCAL_SHIFT; /* as hak_block_index */
        if (HAK_UNLIKELY(index * block_bytes != offset)) report_off_grid(*blocks, offset, index, block_bytes);
        uint64_t mask = masks[index / 64];
        if (HAK_UNLIKELY(blocks == look)) {
            look = look_from(blocks + LOOK_AHEAD, end);
            if (are_neighbours(block_bytes, blocks)) {
                uint32_t run;
                uint64_t run_mask = mask_of_neighbours(blocks, end, (uint32_t)index, facts, &run);
                if (HAK_UNLIKELY((mask & run_mask) != 0))
                    report_double_free(start, (uint32_t)index / 64, mask & run_mask, block_bytes);
                masks[index / 64] = mask | run_mask;
                set_bit(&touched, index / 64);
                blocks += run;
                look = look_from(blocks, end);
                continue;
            }
        }
        if (HAK_UNLIKELY(set_bit(&mask, index))) hak_misuse(HAK_MISUSE_DOUBLE_FREE, "free", *blocks, 0, block_bytes);
        masks[index / 64] = mask;
        set_bit(&touched, index / 64);
        blocks++;
    }
    of->touched = touched;
    for (uint32_t i = 0; i < opened; i++) /* in the order of the flush: of empty slabs, the last one stays */
        put_gathered(batch, &slabs[order[i]], &all_masks[(size_t)order[i] * words]);
}

/* As in the hardened profile, and in a signal handler that has interrupted a slow path. */
static HAK_MISS void put_one(const struct batch *batch, void *block) {
    const struct hak_size_class *facts = batch->facts;
    uintptr_t start, block_bytes = facts->block_bytes;
    struct hak_slab *slab = hak_put_slab_of(block, batch->size_class, facts->unit_count, &start);
    uintptr_t offset = (uintptr_t)block - start;
    uint32_t index = hak_block_index((uint32_t)offset, facts->reciprocal);
    if (HAK_UNLIKELY(index * block_bytes != offset) || HAK_UNLIKELY(index >= facts->block_count))
        report_off_grid(block, offset, index < facts->block_count ? index : facts->block_count, block_bytes);
    put_word(batch, slab, index / 64, (uint64_t)1 << index % 64);
}

void hak_put_blocks(struct hak_heap *heap, uint32_t size_class, void *const *blocks, uint32_t count) {
    const uint32_t number = heap == NULL ? HAK_NO_HEAP : heap->number;
    const struct batch batch = {
        .heap = heap,
        .facts = &hak_size_classes[size_class],
        .size_class = size_class,
        .own_state = heap == NULL ? UINT32_MAX : hak_slab_state(HAK_SLAB_HELD, number),
        .keeper = hak_heaps_are_many() ? HAK_NO_HEAP : number,
    };
    if (count == 1) put_one(&batch, blocks[0]);
    else put_many(&batch, blocks, count);
}
