/* Integers as numbers and as sets of bits. All pure. */
#ifndef HAK_BASE_BITS_H
#define HAK_BASE_BITS_H

#include "base/platform.h"

#define HAK_MIB ((size_t)1 << 20)
#define HAK_GIB ((size_t)1 << 30)

HAK_INLINE bool hak_is_power_of_two(size_t value) { return value != 0 && (value & (value - 1)) == 0; }

/* `alignment` is a power of two. Rounding up wraps around above SIZE_MAX - alignment: callers bound `value` first. */
HAK_INLINE size_t hak_align_down(size_t value, size_t alignment) { return value & ~(alignment - 1); }
HAK_INLINE size_t hak_align_up(size_t value, size_t alignment) {
    return hak_align_down(value + alignment - 1, alignment);
}

/* Position of the lowest and of the highest set bit; value is not 0. */
HAK_INLINE uint32_t hak_lowest_bit(uint64_t value) { return (uint32_t)__builtin_ctzll(value); }
HAK_INLINE uint32_t hak_highest_bit(uint64_t value) { return 63 - (uint32_t)__builtin_clzll(value); }
HAK_INLINE uint32_t hak_bit_count(uint64_t value) { return (uint32_t)__builtin_popcountll(value); }

/* The `count` lowest bits set; count is 0..64. */
HAK_INLINE uint64_t hak_low_bits(uint32_t count) { return count >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << count) - 1; }

/* How many bits are set from the lowest one up, before the first that is clear. */
HAK_INLINE uint32_t hak_trailing_ones(uint64_t value) { return value == UINT64_MAX ? 64 : hak_lowest_bit(~value); }

/* First position of `count` adjacent set bits, at a multiple of `alignment` (a power of two <= 32), or 32 when there is
 * none. count is 1..32. Doubling as in Hacker's Delight 6-2: after the loop a bit is set where a run of `count`
 * begins. */
HAK_INLINE uint32_t hak_find_bit_run(uint32_t word, uint32_t count, uint32_t alignment) {
    static const uint32_t aligned_positions[6] = {0xffffffff, 0x55555555, 0x11111111, 0x01010101, 0x00010001, 0x1};
    uint32_t have = 1;
    while (have < count && word != 0) {
        uint32_t step = have < count - have ? have : count - have;
        word &= word >> step;
        have += step;
    }
    word &= aligned_positions[hak_lowest_bit(alignment)];
    return word == 0 ? 32 : hak_lowest_bit(word);
}

/* Two addresses, anywhere in memory, which processors add, compare and store at once. */
typedef uintptr_t hak_address_pair
    __attribute__((vector_size(2 * sizeof(uintptr_t)), aligned(sizeof(void *)), may_alias));

/* The halves of the product, each bit of which depends on most bits of both factors (as wyhash does, Wang Yi 2019). */
HAK_INLINE uint64_t hak_folded_product(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

#endif
