/* Arithmetic of the controller: logarithms, powers and roots of doubles, without libm, which a malloc must not bring
 * along. Pure; exact to some 1e-9, which is far below the noise of what is measured. docs/decisions/0040 says why
 * doubles. */
#ifndef HAK_CONTROL_ARITHMETIC_H
#define HAK_CONTROL_ARITHMETIC_H

#include <string.h>

#include "base/platform.h"

/* Between two bounds; `low` for what is no number. */
HAK_INLINE double hak_clamp(double value, double low, double high) {
    return !(value > low) ? low : value < high ? value : high;
}

/* Of a positive normal number. */
HAK_INLINE double hak_log2(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023;
    bits = (bits & (((uint64_t)1 << 52) - 1)) | (uint64_t)1023 << 52;
    double mantissa;
    memcpy(&mantissa, &bits, sizeof mantissa);
    if (mantissa > 1.4142135623730951) {
        mantissa /= 2;
        exponent++;
    }
    double ratio = (mantissa - 1) / (mantissa + 1), square = ratio * ratio, term = ratio, sum = 0;
    for (int i = 1; i < 16; i += 2, term *= square) sum += term / i;
    return exponent + sum * 2.8853900817779268; /* 2 / ln 2 */
}

HAK_INLINE double hak_exp2(double power) {
    power = hak_clamp(power, -1000, 1000);
    int whole = (int)power;
    if (power < whole) whole--;
    double x = (power - whole) * 0.6931471805599453, term = 1, sum = 1; /* ln 2 */
    for (int i = 1; i < 16; i++) sum += term *= x / i;
    uint64_t bits = (uint64_t)(whole + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return sum * scale;
}

HAK_INLINE double hak_square_root(double value) {
    if (!(value > 1e-300)) return 0;
    double guess = hak_exp2(hak_log2(value) / 2);
    return (guess + value / guess) / 2;
}

/* The next of a sequence of numbers that looks random: splitmix64. */
HAK_INLINE uint64_t hak_next_random(uint64_t *state) {
    uint64_t mixed = *state += 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBu;
    return mixed ^ mixed >> 31;
}

#endif
