/* SipHash-2-4 of one word (Aumasson, Bernstein: SipHash, a fast short-input PRF, 2012). Without the key, what it gives
 * for some words tells nothing of the key, nor of what it gives for others. Pure. */
#ifndef HAK_BASE_SIPHASH_H
#define HAK_BASE_SIPHASH_H

#include "base/platform.h"

HAK_INLINE uint64_t hak_rotated(uint64_t word, uint32_t bits) { return word << bits | word >> (64 - bits); }

HAK_INLINE void hak_siphash_rounds(uint64_t *v, uint32_t count) {
    for (; count > 0; count--) {
        v[0] += v[1], v[2] += v[3];
        v[1] = hak_rotated(v[1], 13) ^ v[0], v[3] = hak_rotated(v[3], 16) ^ v[2];
        v[0] = hak_rotated(v[0], 32);
        v[2] += v[1], v[0] += v[3];
        v[1] = hak_rotated(v[1], 17) ^ v[2], v[3] = hak_rotated(v[3], 21) ^ v[0];
        v[2] = hak_rotated(v[2], 32);
    }
}

HAK_INLINE uint64_t hak_siphash(const uint64_t key[2], uint64_t word) {
    enum { BYTES_SHIFT = 56 };
    uint64_t v[4] = {key[0] ^ UINT64_C(0x736f6d6570736575), key[1] ^ UINT64_C(0x646f72616e646f6d),
                     key[0] ^ UINT64_C(0x6c7967656e657261), key[1] ^ UINT64_C(0x7465646279746573)};
    uint64_t blocks[2] = {word, (uint64_t)sizeof word << BYTES_SHIFT};
    for (int i = 0; i < 2; i++) {
        v[3] ^= blocks[i];
        hak_siphash_rounds(v, 2);
        v[0] ^= blocks[i];
    }
    v[2] ^= 0xff;
    hak_siphash_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
