/* A slab between its holder and those who free into it: S1, S2, S4 and S5 of slab.h.
 *
 * The slab has two blocks. A block's memory is written by whoever has the block, and a field of the record by whoever has
 * the slab; both are plain, so an order that is too weak shows as a data race.
 */
#include "checker.h"
#include "slab/slab.h"

enum { BLOCKS = 2, HOLDER = 1 };

static struct hak_slab slab;
static uint64_t blocks[BLOCKS][2];
static uint32_t finder_count, claimer_count; /* plain too */

/* All blocks allocated, the slab held by the holder's heap. */
static void setup(void) {
    hak_size_classes[1] = (struct hak_size_class){sizeof(blocks[0]), BLOCKS, 1, 1u << 28, 1u << 28};
    hak_slab_initialize(&slab, (uintptr_t)blocks, 1, NULL, hak_slab_state(HAK_SLAB_HELD, HOLDER));
    hak_atomic_store(&slab.bits[0], 0, relaxed);
    slab.claimed = 0;
    finder_count = claimer_count = 0;
    model_name(&slab.state, "state");
    model_name(&slab.bits[0], "bits");
}

/* What only who has the slab may do. */
static void use_slab(void) {
    void *taken[BLOCKS];
    finder_count++;
    slab.next = NULL;
    uint32_t count = hak_slab_take(&slab, taken + BLOCKS, BLOCKS);
    for (uint32_t i = 0; i < count; i++) *(uint64_t *)taken[BLOCKS - 1 - i] = 7;
}

/* True: it was full. */
static bool declare_full(void) {
    struct hak_full_slab full = hak_slab_announce_full(&slab, HOLDER);
    hak_atomic_fence(seq_cst);
    return !hak_slab_take_back(&full, HOLDER, hak_slab_state(HAK_SLAB_HELD, HOLDER));
}

static void hold(void) {
    slab.next = &slab;
    if (!declare_full()) use_slab();
}

static void put_back(uint32_t index) {
    blocks[index][0]++;
    model_assert((hak_slab_set_bits(&slab, 0, 1u << index) & 1u << index) == 0, "the block was allocated");
    uint32_t state;
    if (hak_slab_take_over_full(&slab, HAK_NO_HEAP, &state)) use_slab();
}

static void free_first(void) { put_back(0); }
static void free_second(void) { put_back(1); }

static void check_found(void) {
    uint32_t kind = hak_atomic_load(&slab.state, relaxed) & HAK_SLAB_KIND_MASK;
    model_assert(finder_count <= 1, "one thread has the slab");
    model_assert(finder_count == 1, "a slab with free blocks was found");
    model_assert(kind != HAK_SLAB_FULL, "a slab that somebody has is not full");
}

MODEL_HARNESS(slab_full, setup, check_found, hold, free_first);
MODEL_HARNESS(slab_full_two, setup, check_found, hold, free_first, free_second);

/* The slab comes back: who frees the first block gives it to the pool, the holder gets it from there, fills and declares it
 * again. Who frees the second may have looked at the state when it was full for the first time. */
static HAK_ATOMIC(uint32_t) pooled;

static void setup_again(void) {
    setup();
    pooled = 0;
}

static void hold_again(void) {
    slab.next = &slab;
    if (!declare_full()) return;
    if (!hak_atomic_load(&pooled, acquire)) return;
    void *taken[BLOCKS];
    hak_slab_take(&slab, taken + BLOCKS, BLOCKS);
    slab.next = NULL;
    declare_full();
}

static void free_to_pool(void) {
    uint32_t state;
    hak_slab_set_bits(&slab, 0, 1);
    if (hak_slab_take_over_full(&slab, HAK_NO_HEAP, &state)) hak_atomic_store(&pooled, 1, release);
}

static void free_late(void) {
    uint32_t state;
    hak_slab_set_bits(&slab, 0, 2);
    if (hak_slab_take_over_full(&slab, HAK_NO_HEAP, &state)) slab.next = NULL;
}

MODEL_HARNESS(slab_full_again, setup_again, NULL, hold_again, free_to_pool, free_late);

/* Threads without a heap declare slabs full in one name: who looks for the second time at a slab that was full may take it back
 * as another slab, which another thread made of it and declared full. */
static void setup_shared(void) {
    setup();
    hak_size_classes[2] = hak_size_classes[1];
    slab.state = HAK_SLAB_POOLED;
}

static void hold_shared(void) {
    struct hak_full_slab full = hak_slab_announce_full(&slab, HAK_NO_HEAP);
    hak_atomic_fence(seq_cst);
    if (hak_slab_take_back(&full, HAK_NO_HEAP, HAK_SLAB_POOLED)) use_slab();
}

static void free_all_and_renew(void) {
    uint32_t state;
    void *taken[BLOCKS];
    hak_slab_set_bits(&slab, 0, 3);
    if (!hak_slab_take_over_full(&slab, HAK_NO_HEAP, &state) || !hak_slab_claim_all(&slab)) return;
    hak_slab_initialize(&slab, (uintptr_t)blocks, 2, NULL, HAK_SLAB_POOLED);
    hak_slab_take(&slab, taken + BLOCKS, BLOCKS);
    hold_shared();
}

MODEL_HARNESS(slab_full_renewed, setup_shared, NULL, hold_shared, free_all_and_renew);

/* S2: of those who put back the last blocks, one gets the units. */
static void claim(uint32_t index) {
    blocks[index][0]++;
    hak_slab_set_bits(&slab, 0, 1u << index);
    if (hak_slab_bits_all_set(slab.bits, BLOCKS) && hak_slab_claim_all(&slab)) {
        claimer_count++;
        for (uint32_t i = 0; i < BLOCKS; i++) blocks[i][0] = 7;
    }
}

static void claim_first(void) { claim(0); }
static void claim_second(void) { claim(1); }

static void check_claimed(void) {
    model_assert(claimer_count <= 1, "one thread claims the slab");
    model_assert(hak_slab_count_bits(slab.bits, BLOCKS) == (claimer_count == 1 ? 0 : BLOCKS), "no bit is lost");
}

MODEL_HARNESS(slab_claim, setup, check_claimed, claim_first, claim_second);
