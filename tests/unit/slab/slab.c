/* slab/slab.h: taking, freeing and claiming blocks, and the FULL protocol, in every class. A slab is a value: no block is
 * ever touched here, and its memory need not exist. */
#include "unit.h"

#include <string.h>

#include "fake_os.h"
#include "slab/slab.h"

enum { HEAP = 7, OTHER_HEAP = 9 };

static const uintptr_t start = (uintptr_t)0x123 << HAK_UNIT_SHIFT;
static struct hak_slab slab;
static HAK_ATOMIC(uint64_t) bits_row[HAK_SLAB_MAX_WORDS];
static void *blocks[HAK_SLAB_MAX_BLOCKS];
static const struct hak_size_class *facts;

static void make_slab(uint32_t size_class) {
    hak_size_class_initialize(0);
    facts = &hak_size_classes[size_class];
    memset((void *)&slab, 0, sizeof slab); /* bits are 0 while it is none (S7) */
    memset((void *)bits_row, 0, sizeof bits_row);
    hak_slab_initialize(&slab, start, size_class, bits_row, hak_slab_state(HAK_SLAB_HELD, HEAP));
}

static void *block(size_t index) { return (void *)(start + index * facts->block_bytes); }

/* Takes into blocks[0..], the first one to use first. */
static uint32_t take(uint32_t want) {
    static void *stack[HAK_SLAB_MAX_BLOCKS];
    void **top = stack + HAK_SLAB_MAX_BLOCKS;
    uint32_t got = hak_slab_take(&slab, top, want);
    for (uint32_t i = 0; i < got; i++) blocks[i] = top[-1 - (ptrdiff_t)i];
    return got;
}

static bool put(uint32_t index) {
    uint64_t bit = (uint64_t)1 << (index % 64);
    return (hak_slab_set_bits(&slab, index / 64, bit) & bit) == 0;
}

static uint32_t count_free(void) {
    return hak_slab_count_bits(slab.bits, slab.block_count) + hak_slab_count_claimed(&slab, slab.block_count);
}

static void new_slabs_are_free(void **state) {
    (void)state;
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        make_slab(i);
        assert_int_equal(slab.block_count, facts->block_count);
        assert_int_equal(count_free(), facts->block_count);
        assert_true(hak_slab_is_empty(&slab));
        assert_int_equal(hak_slab_count_bits(slab.bits, slab.block_count), 0); /* all of them are claimed */
        assert_ptr_equal(slab.bits, slab.block_count > HAK_SLAB_INLINE_WORDS * 64 ? bits_row : slab.inline_bits);
        hak_slab_unclaim(&slab);
        assert_int_equal(hak_slab_count_claimed(&slab, slab.block_count), 0);
        assert_true(hak_slab_is_empty(&slab));
        assert_true(hak_slab_bits_all_set(slab.bits, slab.block_count));
        for (uint32_t word = 0; word < hak_slab_word_count(&slab); word++) /* S3 */
            assert_true(hak_atomic_load(&slab.bits[word], relaxed) == hak_slab_word_mask(slab.block_count, word));
    }
}

/* All at once, lowest first, from the first block to the last one that fits; the next take finds none. */
static void all_blocks_in_order(void **state) {
    (void)state;
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        make_slab(i);
        assert_int_equal(take(HAK_SLAB_MAX_BLOCKS), slab.block_count);
        for (uint32_t b = 0; b < slab.block_count; b++) assert_ptr_equal(blocks[b], block(b));
        assert_true((uintptr_t)block(slab.block_count) <= start + facts->unit_count * HAK_UNIT_BYTES);
        assert_int_equal(count_free(), 0);
        assert_int_equal(take(1), 0);
    }
}

static void some_blocks_at_a_time(void **state) {
    (void)state;
    static const uint32_t wants[] = {1, 2, 7, 63, 64, 65, 100};
    for (size_t w = 0; w < sizeof wants / sizeof wants[0]; w++) {
        make_slab(1);
        for (uint32_t at = 0; at < slab.block_count; at += wants[w]) {
            uint32_t left = slab.block_count - at;
            assert_int_equal(count_free(), left);
            assert_int_equal(take(wants[w]), wants[w] < left ? wants[w] : left);
            assert_ptr_equal(blocks[0], block(at));
        }
    }
}

/* What was freed into a word comes back lowest first, whatever the order of the frees. */
static void freed_blocks_in_order(void **state) {
    (void)state;
    make_slab(hak_size_class_of(1024));
    take(64);
    static const uint32_t freed[] = {40, 3, 63, 0, 17};
    static const uint32_t expected[] = {0, 3, 17, 40, 63};
    for (int i = 0; i < 5; i++) assert_true(put(freed[i]));
    assert_int_equal(take(64), 5);
    for (int i = 0; i < 5; i++) assert_ptr_equal(blocks[i], block(expected[i]));
}

/* Any blocks of a word, any number wanted: the lowest ones, in order. */
static void any_blocks_of_a_word(void **state) {
    (void)state;
    uint64_t random = 5;
    for (uint32_t round = 0; round < 3000; round++) {
        uint64_t freed = unit_random(&random);
        if (round % 3 == 0) freed &= unit_random(&random);
        if (round % 3 == 1) freed |= unit_random(&random) | unit_random(&random);
        if (round % 3 == 2) freed = hak_low_bits(1 + round / 3 % 64) << round / 192 % 64;
        make_slab(hak_size_class_of(1024));
        take(64);
        hak_slab_set_bits(&slab, 0, freed);
        while (freed != 0) {
            uint32_t want = 1 + unit_random(&random) % 64, left = hak_bit_count(freed);
            uint32_t got = take(want);
            assert_int_equal(got, want < left ? want : left);
            for (uint32_t i = 0; i < got; i++, freed &= freed - 1)
                assert_ptr_equal(blocks[i], block(hak_lowest_bit(freed)));
        }
        assert_int_equal(count_free(), 0);
    }
}

/* The scan goes on where it was and comes round to words below. */
static void words_below_are_found(void **state) {
    (void)state;
    make_slab(1);
    take(64 * 20 + 1);
    for (uint32_t i = 0; i < 3; i++) put(i * 64 + 5);
    uint32_t left = slab.block_count - (64 * 20 + 1);
    assert_int_equal(take(HAK_SLAB_MAX_BLOCKS), left + 3);
    assert_ptr_equal(blocks[0], block(64 * 20 + 1));
    for (uint32_t i = 0; i < 3; i++) assert_ptr_equal(blocks[left + i], block(i * 64 + 5));
}

static void freeing_twice_shows(void **state) {
    (void)state;
    make_slab(hak_size_class_of(64));
    take(100);
    assert_true(put(99));
    assert_false(put(99));
    assert_true(put(98));
}

/* Part of a slab was used, and is unclaimed: what was taken stays so. */
static void unclaiming(void **state) {
    (void)state;
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        for (uint32_t taken = 0; taken <= hak_size_classes[i].block_count; taken += 1 + taken / 2) {
            make_slab(i);
            if (taken > slab.block_count) continue;
            take(taken);
            assert_int_equal(hak_slab_is_empty(&slab), taken == 0);
            assert_int_equal(hak_slab_claim_all(&slab), taken == 0);
            if (taken == 0) continue;
            for (uint32_t word = 0; word < hak_slab_word_count(&slab); word++) {
                uint64_t mask = hak_slab_word_mask(slab.block_count, word);
                uint64_t used = taken <= word * 64 ? 0 : hak_low_bits(taken - word * 64) & mask;
                assert_true(hak_slab_claimed_in(&slab, slab.block_count, word) == (mask & ~used));
            }
            hak_slab_unclaim(&slab);
            assert_int_equal(count_free(), slab.block_count - taken);
            assert_int_equal(hak_slab_count_bits(slab.bits, slab.block_count), slab.block_count - taken);
            for (uint32_t b = 0; b < taken; b++) assert_true(put(b));
            assert_true(hak_slab_bits_all_set(slab.bits, slab.block_count));
        }
    }
}

static void take_next(void *unused) {
    (void)unused;
    take(1);
}

/* A block that was not handed out is freed: its bit can't tell, but the claim of its word does. */
static void freeing_what_is_claimed_shows(void **state) {
    (void)state;
    make_slab(hak_size_class_of(64));
    take(64);
    assert_true(put(100));
    const struct fake_report *report = fake_os_catch(take_next, NULL);
    assert_non_null(report);
    assert_int_equal(report->kind, HAK_MISUSE_DOUBLE_FREE);
    assert_int_equal(report->address, (uintptr_t)block(100));
    assert_int_equal(report->size, 64);
}

static void a_claim_forgets_what_purgers_saw(void **state) {
    (void)state;
    make_slab(1);
    take(64); /* the word that was claimed */
    hak_atomic_store(&slab.purged_pages, 0xff, relaxed);
    hak_atomic_store(&slab.sweeps, 2, relaxed);
    take(1);
    assert_int_equal(hak_atomic_load(&slab.purged_pages, relaxed), 0);
    assert_int_equal(hak_atomic_load(&slab.sweeps, relaxed), 0);
}

static void claiming_all(void **state) {
    (void)state;
    for (uint32_t i = 1; i <= HAK_SMALL_CLASS_COUNT; i++) {
        make_slab(i);
        hak_slab_unclaim(&slab);
        uint32_t last = slab.block_count - 1u;
        for (uint32_t missing = 0; missing <= last; missing += last / 3 + 1) { /* one block is not free */
            hak_atomic_fetch_and(&slab.bits[missing / 64], ~((uint64_t)1 << (missing % 64)), relaxed);
            assert_false(hak_slab_bits_all_set(slab.bits, slab.block_count));
            assert_false(hak_slab_claim_all(&slab));
            assert_int_equal(count_free(), last);
            assert_true(put(missing));
        }
        assert_true(hak_slab_claim_all(&slab));
        assert_int_equal(count_free(), 0);
        make_slab(i); /* as it is from the start, or with one block gone and come back */
        if (i % 2) take(1), put(0);
        assert_true(hak_slab_claim_all(&slab));
        assert_int_equal(hak_slab_count_bits(slab.bits, slab.block_count), 0);
    }
}

/* ---- The FULL protocol -------------------------------------------------------------------------------------------- */

static void expect_state(uint32_t kind, uint32_t heap) {
    assert_int_equal(hak_atomic_load(&slab.state, relaxed), hak_slab_state(kind, heap));
}

/* Announces and looks again, with `freed_meanwhile` (none when negative) in between. */
static bool is_back(uint32_t heap, uint32_t kept_state, int freed_meanwhile) {
    struct hak_full_slab full = hak_slab_announce_full(&slab, heap);
    expect_state(HAK_SLAB_FULL, heap);
    if (freed_meanwhile >= 0) put((uint32_t)freed_meanwhile);
    return hak_slab_take_back(&full, heap, kept_state);
}

static void full_slabs(void **state) {
    (void)state;
    uint32_t found, held = hak_slab_state(HAK_SLAB_HELD, HEAP);
    make_slab(hak_size_class_of(32768));
    assert_int_equal(take(8), 8);
    assert_false(hak_slab_take_over_full(&slab, OTHER_HEAP, &found)); /* it is not full */
    assert_int_equal(found, held);

    assert_true(is_back(HEAP, held, 5)); /* a block was freed between the two looks */
    expect_state(HAK_SLAB_HELD, HEAP);
    take(1);

    assert_false(is_back(HEAP, held, -1));
    put(0);
    assert_true(hak_slab_take_over_full(&slab, HEAP, &found)); /* back to its last holder */
    assert_int_equal(found, hak_slab_state(HAK_SLAB_FULL, HEAP));
    expect_state(HAK_SLAB_HELD, HEAP);
    assert_false(hak_slab_take_over_full(&slab, HEAP, &found));
    take(8);

    assert_false(is_back(HEAP, held, -1));
    put(3);
    assert_true(hak_slab_take_over_full(&slab, OTHER_HEAP, &found)); /* to the pool */
    expect_state(HAK_SLAB_POOLED, 0);
    take(8);

    assert_false(is_back(HAK_NO_HEAP, HAK_SLAB_POOLED, -1));
    put(3);
    assert_true(hak_slab_take_over_full(&slab, HAK_NO_HEAP, &found));
    expect_state(HAK_SLAB_POOLED, 0);
    take(8);
    assert_true(is_back(HAK_NO_HEAP, HAK_SLAB_POOLED, 1));
    expect_state(HAK_SLAB_POOLED, 0);
}

/* The second look is at every word. */
static void full_slabs_of_many_words(void **state) {
    (void)state;
    uint32_t held = hak_slab_state(HAK_SLAB_HELD, HEAP);
    for (uint32_t word = 0; word < HAK_SLAB_MAX_WORDS; word += 9) {
        make_slab(1);
        take(HAK_SLAB_MAX_BLOCKS);
        assert_true(is_back(HEAP, held, (int)(word * 64 + word % 64)));
        expect_state(HAK_SLAB_HELD, HEAP);
        assert_int_equal(take(2), 1);
    }
}

/* Of a holder that looks again and a freer, one gets the slab. */
static void full_slabs_once(void **state) {
    (void)state;
    uint32_t found, held = hak_slab_state(HAK_SLAB_HELD, HEAP);
    make_slab(hak_size_class_of(32768));
    take(8);
    struct hak_full_slab full = hak_slab_announce_full(&slab, HEAP);
    put(2);
    assert_true(hak_slab_take_over_full(&slab, OTHER_HEAP, &found));
    assert_false(hak_slab_take_back(&full, HEAP, held));
    expect_state(HAK_SLAB_POOLED, 0);
}

UNIT_MAIN(cmocka_unit_test(new_slabs_are_free), cmocka_unit_test(all_blocks_in_order),
          cmocka_unit_test(some_blocks_at_a_time), cmocka_unit_test(freed_blocks_in_order),
          cmocka_unit_test(any_blocks_of_a_word), cmocka_unit_test(words_below_are_found),
          cmocka_unit_test(freeing_twice_shows), cmocka_unit_test(unclaiming),
          cmocka_unit_test(freeing_what_is_claimed_shows), cmocka_unit_test(a_claim_forgets_what_purgers_saw),
          cmocka_unit_test(claiming_all), cmocka_unit_test(full_slabs), cmocka_unit_test(full_slabs_of_many_words),
          cmocka_unit_test(full_slabs_once))
