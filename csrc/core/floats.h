/* Floats as bits, and the conversions between float16 and float32 one value at a time.
 *
 *              sign  exponent (bias)  fraction
 *   float16       1        5   (15)         10
 *   bfloat16      1        8  (127)          7
 *   float32       1        8  (127)         23
 */
#ifndef WEIGHTMAP_FLOATS_H
#define WEIGHTMAP_FLOATS_H
#include "core/internal.h"

static inline float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline uint32_t bits_of_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}
static inline int is_finite(float f) { return (bits_of_float(f) & 0x7F800000) != 0x7F800000; }

/* The bits of a float16 as those of a float32, exactly. With branches it would read
 *
 *     exponent 0     a multiple of 2^-24, which float32 holds as an ordinary number: magnitude * 2^-24
 *     exponent 31    infinity or NaN: exponent 255; a NaN keeps its bits and becomes quiet (bit 22)
 *     others         exponent and fraction move up by 13, and the exponent, whose bias was 15, grows by 112
 *
 * CPUs' own instructions and IEEE 754 make a NaN quiet too. Masks in place of branches let compilers make vector code. */
static inline uint32_t widen_half_bits(uint32_t half) {
    const int32_t magnitude = (int32_t)(half & 0x7FFF);
    const uint32_t special = 0u - (uint32_t)(magnitude >= 0x7C00), nan = 0u - (uint32_t)(magnitude > 0x7C00);
    const uint32_t small = 0u - (uint32_t)(magnitude < 0x0400);           /* all ones, or zero */
    const uint32_t multiple = bits_of_float((float)magnitude * 0x1p-24f); /* exact in every mode: no operand is subnormal */
    const uint32_t moved = ((uint32_t)magnitude << 13) + (112u << 23) + (special & (112u << 23));
    return (small & multiple) | (~small & (moved | (nan & (1u << 22)))) | (half & 0x8000) << 16;
}
static inline float widen_half(uint32_t half) { return float_of_bits(widen_half_bits(half)); }

/* float32 to float16: the nearest, ties to even; infinity from 65520 on; a NaN becomes quiet and keeps its sign and the
 * upper bits of its fraction. */
static inline uint16_t narrow_float(float value) {
    const uint32_t bits = bits_of_float(value), magnitude = bits & 0x7FFFFFFF, sign = bits >> 16 & 0x8000;
    /* Adding half of what is cut off, or a little less when the last bit kept is 0, makes the carry round. */
    uint32_t rounded = (magnitude - (112u << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13;
    rounded = magnitude >= 0x477FF000 ? 0x7C00 : rounded;
    rounded = magnitude > 0x7F800000 ? (0x7E00 | (magnitude >> 13 & 0x3FF)) : rounded;
    /* Below 2^-14 halves are multiples of 2^-24: so are the last places of floats from 0.5 to 1. */
    const uint32_t tiny = bits_of_float(float_of_bits(magnitude < 0x38800000 ? magnitude : 0) + 0.5f) - 0x3F000000;
    return (uint16_t)(sign | (magnitude < 0x38800000 ? tiny : rounded));
}

/* The sum of eight parts, in the order in which vectors add theirs. */
static inline double sum_of_eight(const double *sums) {
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

#endif
