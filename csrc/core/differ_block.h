/* The comparison of two arrays of floats or of doubles: a template, compiled once for each instruction set with TARGET and NAME
 * defined before, and WIDTH, the doubles in a register. Every variant adds in the same order. */
#include "core/floats.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

enum { PIECE = 1024, ABREAST = WM_APART };

/* Adds n differences; those from n to the next multiple of ABREAST are 0. */
#if defined(__GNUC__)
typedef double doubles __attribute__((vector_size(8 * WIDTH)));
typedef int64_t bits_of_doubles __attribute__((vector_size(8 * WIDTH)));
typedef doubles unaligned __attribute__((aligned(8), may_alias));
enum { PARTS = ABREAST / WIDTH };
TARGET static void add_differences(const double *difference, uint64_t n, wm_apart *sums) {
    doubles max[PARTS], squares[PARTS];
    memcpy(max, sums->max, sizeof max), memcpy(squares, sums->squares, sizeof squares);
    for (uint64_t i = 0; i < n; i += ABREAST) {
        const unaligned *const at = (const unaligned *)(difference + i);
        for (int k = 0; k < PARTS; k++) {
            const doubles d = at[k], magnitude = (doubles)((bits_of_doubles)d & INT64_MAX);
            const bits_of_doubles more = magnitude > max[k];
            max[k] = (doubles)((more & (bits_of_doubles)magnitude) | (~more & (bits_of_doubles)max[k]));
            squares[k] += d * d;
        }
    }
    memcpy(sums->max, max, sizeof max), memcpy(sums->squares, squares, sizeof squares);
}
#else
TARGET static void add_differences(const double *difference, uint64_t n, wm_apart *sums) {
    for (uint64_t i = 0; i < n; i++) {
        const double d = difference[i], magnitude = d < 0 ? -d : d;
        if (magnitude > sums->max[i % ABREAST]) sums->max[i % ABREAST] = magnitude;
        sums->squares[i % ABREAST] += d * d;
    }
}
#endif

/* Counts elements with different bits; measures all differences, in float64. Missing elements count as 0. */
#define COMPARE(name, float_type, bits_type)                                                  \
    TARGET static void name(const uint8_t *a, const uint8_t *b, uint64_t n, wm_apart *sums) { \
        float_type x[PIECE], y[PIECE];                                                        \
        bits_type of_x[PIECE], of_y[PIECE], count = 0;                                        \
        double difference[PIECE + ABREAST];                                                   \
        memcpy(x, a, n * sizeof *x), memcpy(y, b, n * sizeof *y);                             \
        memcpy(of_x, x, n * sizeof *x), memcpy(of_y, y, n * sizeof *y);                       \
        for (uint64_t i = 0; i < n; i++) count += of_x[i] != of_y[i];                         \
        for (uint64_t i = 0; i < n; i++) difference[i] = (double)x[i] - (double)y[i];         \
        memset(difference + n, 0, ABREAST * sizeof *difference);                              \
        sums->count += count;                                                                 \
        add_differences(difference, n, sums);                                                 \
    }
COMPARE(compare_floats, float, uint32_t)
COMPARE(compare_doubles, double, uint64_t)
#undef COMPARE

TARGET void NAME(const void *a, const void *b, uint64_t n, int wide, wm_apart *sums) {
    if (wide)
        compare_doubles(a, b, n, sums);
    else
        compare_floats(a, b, n, sums);
}
