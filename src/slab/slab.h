/* Slab: a run of units cut into blocks of one size class, described out of band.
 *
 * The record of a slab is a bitmap with one bit per block, set while the block is free. Nobody has to own a slab to
 * free into it or to take from it:
 *
 *   S1  Whoever clears a bit has that block: hands it out, keeps it in a bin, or purges its pages. Whoever sets it
 *       again must have had it. A set bit that is set again is a double free.
 *   S2  A block in a bin counts as allocated. So a slab whose bits are all set has no block anywhere, and whoever has
 *       cleared all of them has the slab.
 *   S3  bits above block_count are never set.
 *
 * What has an owner is the duty to look at a slab again, once it has free blocks. `state` says who has it:
 *
 *       NONE                    not a slab; its units are the region's, or kept by a heap for its next slab
 *       HELD by heap h          in h's list of partial slabs, which h looks through when a bin runs empty
 *       POOLED                  in the pool's set of partial slabs, or in the hands of whoever took it out just now
 *       FULL, last held by h    nobody looks at it: whoever sets a bit in it must find it a place
 *
 *   S4  Only a change from FULL can be made by somebody who does not have the slab, and only by compare-and-swap: the
 *       winner has it then. All other changes are made by who has it.
 *   S5  No wake-up is lost. Who sets bits looks at the state afterwards; who announces that a slab is FULL looks at
 *       the bits afterwards; both in sequentially consistent order, so at least one of them sees the other.
 *   S6  Records are never unmapped. Somebody late may look at the record of a slab that has become another slab: he
 *       has no block of it any more, so all he can do by S4 is to find a place for a slab that is FULL, which does no
 *       harm.
 *   S7  The holder claims a word of bits at a time, and keeps in `claimed` what it has not yet put into a bin: an
 *       atomic operation waits for all writes before it, and a program that is given memory writes a lot. Of a slab
 *       that was made for it, the holder has claimed all words from the start; those from `tail_word` on are still
 *       complete, their bits 0. Claimed blocks count as allocated, like those in bins. Nothing is claimed when the
 *       slab changes hands; the bits of a record that is no slab are 0.
 *   S8  No empty slab is overlooked in the pool. Who completes a word of bits, and sees that the slab is POOLED, looks
 *       afterwards whether all words are complete and the slab is in the set; who puts a slab there looks at its bits
 *       afterwards; both after a sequentially consistent fence, so the last one of them sees what the others did.
 */
#ifndef HAK_SLAB_SLAB_H
#define HAK_SLAB_SLAB_H

#include "base/atomic.h"
#include "base/bits.h"
#include "slab/size_class.h"

/* State: the kind in the low two bits, the heap's number above. */
enum { HAK_SLAB_NONE = 0, HAK_SLAB_POOLED = 1, HAK_SLAB_HELD = 2, HAK_SLAB_FULL = 3, HAK_SLAB_KIND_MASK = 3 };

#define HAK_NO_HEAP 0u /* number of no heap: for threads without one */

HAK_INLINE uint32_t hak_slab_state(uint32_t kind, uint32_t heap) { return heap << 2 | kind; }

enum { HAK_SLAB_INLINE_WORDS = 6, HAK_SLAB_MAX_WORDS = HAK_SLAB_MAX_BLOCKS / 64 };

struct hak_slab {
    /* The holder's line. Const from acquisition to retirement, unless tagged otherwise. */
    uintptr_t start;                   /* address of block 0 */
    HAK_OWNED(uint64_t) claimed;       /* holder: free blocks of word claimed_word that it has claimed ahead (S7) */
    struct hak_slab *next, *previous;  /* holder: its list of partial slabs */
    HAK_ATOMIC(uint64_t) purged_pages; /* hint: pages from the start that hold nothing; cleared by every claim */
    uint16_t block_count;
    HAK_ATOMIC(uint8_t) scan_word;   /* hint: where the holder claims next; below it, it has freed nothing */
    HAK_ATOMIC(uint8_t) size_class;  /* relaxed: late readers check it against what they hold */
    HAK_OWNED(uint8_t) claimed_word; /* holder: the word it claimed last */
    HAK_OWNED(uint8_t) was_used;    /* holder: its blocks were in use before, and may be in another processor's cache */
    HAK_OWNED(uint8_t) tail_word;   /* holder: words from here on it has claimed all along (S7) */
    HAK_ATOMIC(uint8_t) range;      /* relaxed: number of the region's range the units lie in */
    HAK_ATOMIC(uint8_t) sweeps;     /* hint: sweeps by the background thread since the last claim, up to 2 */
    HAK_ATOMIC(uint64_t) run_facts; /* relaxed: of a page run of the secure build; region/large.h */

    /* What others need who free: apart from what the holder writes at every refill. */
    _Alignas(64) HAK_ATOMIC(uint64_t) *bits; /* const: S1-S3; inline_bits, or a row of the range's table */
    HAK_ATOMIC(uint32_t) state;              /* atomic, S4 */
    HAK_ATOMIC(uint32_t) run_pages;          /* relaxed: of a page run; 0 for a small slab */
    HAK_ATOMIC(uint64_t) inline_bits[HAK_SLAB_INLINE_WORDS];
};

/* The facts of a run: what the program may use of it, and where it is from (slab/origin.h). */
enum { HAK_RUN_ORIGIN_SHIFT = 56 };
HAK_INLINE size_t hak_run_usable_bytes(uint64_t facts) { return facts & hak_low_bits(HAK_RUN_ORIGIN_SHIFT); }

_Static_assert(offsetof(struct hak_slab, bits) == 64, "the holder has a line of its own, and freers the other");
_Static_assert(sizeof(struct hak_slab) == 128, "two cache lines a unit of 64 KiB: 0.2 %");

HAK_INLINE uint32_t hak_slab_word_count(const struct hak_slab *slab) { return (slab->block_count + 63u) / 64; }

/* Valid bits of word `index` (S3). */
HAK_INLINE uint64_t hak_slab_word_mask(uint32_t block_count, uint32_t index) {
    uint32_t before = index * 64;
    return hak_low_bits(block_count - before < 64 ? block_count - before : 64);
}

/* Makes the record describe a slab of `size_class` at `start` with all blocks free, claimed for the caller (S7), in
 * `state`. The caller has the units. `bits_row` is used by classes of more than 384 blocks. Keeps `range`. */
void hak_slab_initialize(struct hak_slab *slab, uintptr_t start, uint32_t size_class, HAK_ATOMIC(uint64_t) *bits_row,
                         uint32_t state);

/* Of the secure build: by what free blocks are picked that nobody is to foresee. Others in each process. */
extern HAK_ATOMIC(uint64_t) hak_slot_secrets[2];

/* Takes up to `want` free blocks, and writes them below `top`: top[-1] has the first, which within a word is the
 * lowest, or in the secure build any. Returns how many. The caller has the slab. Fewer than `want` means that none was
 * left. */
uint32_t hak_slab_take(struct hak_slab *slab, void **top, uint32_t want);

/* Tells that the holder has freed blocks of word `index`: the next claim looks there first, so that what was touched is
 * used again before what was not. */
HAK_INLINE void hak_slab_scan_from(struct hak_slab *slab, uint32_t index) {
    if (index < hak_atomic_load(&slab->scan_word, relaxed)) hak_atomic_store(&slab->scan_word, (uint8_t)index, relaxed);
}

/* Sets the bits of claimed blocks again (S7). To be called before the slab changes hands. */
void hak_slab_unclaim(struct hak_slab *slab);

/* How many pages were purged and hold nothing: they are not known any more. For who has claimed all, or some that are
 * to be used. */
uint32_t hak_slab_forget_purged_pages(struct hak_slab *slab);

/* Gives back the claimed blocks of the word that is being taken from. */
void hak_slab_unclaim_word(struct hak_slab *slab);

/* True when all `block_count` bits are set, at this moment. Takes what it needs by value, for callers that have put
 * back their last block and may not read the record any more. */
bool hak_slab_bits_all_set(HAK_ATOMIC(uint64_t) *bits, uint32_t block_count);

/* True when all blocks are free or claimed, at this moment. The caller has the slab. */
bool hak_slab_is_empty(struct hak_slab *slab);

/* Claims what is left of an empty slab: true, and by S2 its units are the caller's too, who has the slab. False, with
 * all bits as they were, when a block was not free. */
bool hak_slab_claim_all(struct hak_slab *slab);

/* The claimed blocks of word `index` of a slab of `block_count`. The caller has the slab; anybody else sees them in
 * motion. */
HAK_INLINE uint64_t hak_slab_claimed_in(const struct hak_slab *slab, uint32_t block_count, uint32_t index) {
    if (index == hak_owned_peek(&slab->claimed_word)) return hak_owned_peek(&slab->claimed);
    return index < hak_owned_peek(&slab->tail_word) ? 0 : hak_slab_word_mask(block_count, index);
}

/* Blocks that the holder has claimed and not yet taken; for anybody, who sees them in motion. */
uint32_t hak_slab_count_claimed(const struct hak_slab *slab, uint32_t block_count);

/* Set bits now. */
uint32_t hak_slab_count_bits(HAK_ATOMIC(uint64_t) *bits, uint32_t block_count);

/* FULL protocol, holder's side, in two halves with a sequentially consistent fence between them, which may serve many
 * slabs. First the holder announces that the slab is full in the name of `heap`, and has it no more. */
struct hak_full_slab {
    struct hak_slab *slab;
    HAK_ATOMIC(uint64_t) *bits;
    uint32_t word_count;
};
struct hak_full_slab hak_slab_announce_full(struct hak_slab *slab, uint32_t heap);

/* Then it looks whether a block was freed meanwhile by somebody who did not see the announcement. True: so it may be,
 * and the caller has the slab again, in `kept_state`. */
bool hak_slab_take_back(const struct hak_full_slab *full, uint32_t heap, uint32_t kept_state);

/* FULL protocol, freer's side: after setting bits. True when the slab was full: the caller has it now, in the state
 * POOLED, or HELD by `heap` if that heap was its last holder. *state_found is the state that was seen. */
bool hak_slab_take_over_full(struct hak_slab *slab, uint32_t heap, uint32_t *state_found);

/* Sets `mask` in word `index`: the blocks are free. Returns the word as it was: bits of `mask` set in it are double
 * frees. */
HAK_INLINE uint64_t hak_slab_set_bits(struct hak_slab *slab, uint32_t index, uint64_t mask) {
    /* Release: what was done with the blocks happens before hak_slab_take hands them out again. Sequentially consistent
     * for S5, with the fence after hak_slab_announce_full. */
    return hak_atomic_fetch_or(&slab->bits[index], mask, seq_cst);
}

#endif
