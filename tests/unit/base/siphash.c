/* base/siphash.h: as its authors' reference, and as different for keys and words that differ in a bit. */
#include "unit.h"

#include "base/siphash.h"

static const uint64_t key[2] = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};

static void reference(void **state) {
    (void)state;
    assert_true(hak_siphash(key, UINT64_C(0x0706050403020100)) == UINT64_C(0x93f5f5799a932462));
}

static uint32_t different(uint64_t a, uint64_t b) { return (uint32_t)__builtin_popcountll(a ^ b); }

static void every_bit_counts(void **state) {
    (void)state;
    for (uint32_t bit = 0; bit < 64; bit++) {
        uint64_t flip = (uint64_t)1 << bit, of_zero = hak_siphash(key, 0), first[2] = {key[0] ^ flip, key[1]},
                 second[2] = {key[0], key[1] ^ flip};
        assert_in_range(different(of_zero, hak_siphash(key, flip)), 10, 54);
        assert_in_range(different(of_zero, hak_siphash(first, 0)), 10, 54);
        assert_in_range(different(of_zero, hak_siphash(second, 0)), 10, 54);
    }
}

UNIT_MAIN(cmocka_unit_test(reference), cmocka_unit_test(every_bit_counts))
