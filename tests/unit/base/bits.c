/* base/bits.h against the plainest way to compute the same. */
#include "unit.h"

#include "base/bits.h"

static void rounding(void **state) {
    (void)state;
    for (size_t alignment = 1; alignment <= 4096; alignment *= 2) {
        for (size_t value = 0; value < 10000; value += 7) {
            assert_int_equal(hak_align_down(value, alignment), value / alignment * alignment);
            assert_int_equal(hak_align_up(value, alignment), (value + alignment - 1) / alignment * alignment);
        }
    }
    assert_true(hak_align_down(SIZE_MAX, 4096) == SIZE_MAX - 4095);
    assert_true(hak_align_up(SIZE_MAX - 4095, 4096) == SIZE_MAX - 4095);
}

static void powers_of_two(void **state) {
    (void)state;
    assert_false(hak_is_power_of_two(0));
    for (uint32_t i = 0; i < 64; i++) {
        size_t power = (size_t)1 << i;
        assert_true(hak_is_power_of_two(power));
        assert_int_equal(hak_is_power_of_two(power + 1), i == 0);
        assert_int_equal(hak_is_power_of_two(power - 1), i == 1);
        assert_int_equal(hak_lowest_bit(power), i);
        assert_int_equal(hak_highest_bit(power), i);
        assert_int_equal(hak_highest_bit(power | 1), i);
        assert_int_equal(hak_lowest_bit(power | (uint64_t)1 << 63), i);
    }
}

static void low_bits(void **state) {
    (void)state;
    uint64_t expected = 0;
    for (uint32_t i = 0; i < 64; i++) {
        assert_true(hak_low_bits(i) == expected);
        assert_int_equal(hak_bit_count(expected), i);
        expected = expected << 1 | 1;
    }
    assert_true(hak_low_bits(64) == UINT64_MAX);
}

static void trailing_ones(void **state) {
    (void)state;
    uint64_t random = 1;
    for (uint32_t count = 0; count < 64; count++) {
        uint64_t above = unit_random(&random) << count << 1; /* bit `count` is clear */
        assert_int_equal(hak_trailing_ones(above | hak_low_bits(count)), count);
        assert_int_equal(hak_trailing_ones(hak_low_bits(count)), count);
    }
    assert_int_equal(hak_trailing_ones(UINT64_MAX), 64);
}

static uint32_t plain_find_run(uint32_t word, uint32_t count, uint32_t alignment) {
    for (uint32_t at = 0; at + count <= 32; at += alignment) {
        uint64_t run = hak_low_bits(count) << at;
        if ((word & run) == run) return at;
    }
    return 32;
}

static void bit_runs(void **state) {
    (void)state;
    uint64_t random = 2;
    for (int round = 0; round < 2000; round++) {
        uint32_t word = (uint32_t)unit_random(&random);
        if (round % 4 == 1) word |= (uint32_t)unit_random(&random);
        if (round % 4 == 2) word |= (uint32_t)unit_random(&random) | (uint32_t)unit_random(&random);
        if (round % 4 == 3) word = (uint32_t)(hak_low_bits(round / 4 % 33) << round / 132 % 32);
        for (uint32_t count = 1; count <= 32; count++)
            for (uint32_t alignment = 1; alignment <= 32; alignment *= 2)
                assert_int_equal(hak_find_bit_run(word, count, alignment), plain_find_run(word, count, alignment));
    }
    assert_int_equal(hak_find_bit_run(UINT32_MAX, 32, 32), 0);
    assert_int_equal(hak_find_bit_run(0, 1, 1), 32);
}

UNIT_MAIN(cmocka_unit_test(rounding), cmocka_unit_test(powers_of_two), cmocka_unit_test(low_bits),
          cmocka_unit_test(trailing_ones), cmocka_unit_test(bit_runs))
