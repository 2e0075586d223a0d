/* The product of vectors with a square matrix, for product quantisation (pq.c). */
#ifndef WEIGHTMAP_COMBINE_ROWS_H
#define WEIGHTMAP_COMBINE_ROWS_H
#include "core/internal.h"

/* The template of all variants, of which the compiler makes vector code. In full:
 *
 *     for (v = 0; v < count; v++)
 *         for (i = 0; i < dims; i++)
 *             for (k = 0; k < dims; k++) sums[v][i] += vectors[v][k] * matrix[k][i];
 *
 * Each element is a chain of additions of its own, in the order of the rows, so the width of a vector changes no bit. Here the
 * loops are turned so that four rows of the matrix stay in the nearest cache while all vectors use them. */
WM_INLINE void combine_rows_body(const float *restrict matrix, const float *restrict vectors, unsigned count, uint64_t dims,
                                 float *restrict sums) {
    uint64_t k = 0;
    for (uint64_t i = 0; i < count * dims; i++) sums[i] = 0;
    for (; k + 4 <= dims; k += 4) {
        const float *restrict a = matrix + k * dims, *restrict b = a + dims, *restrict c = b + dims, *restrict d = c + dims;
        for (unsigned v = 0; v < count; v++) {
            const float *x = vectors + v * dims + k;
            float *restrict sum = sums + v * dims;
            for (uint64_t i = 0; i < dims; i++) sum[i] = sum[i] + x[0] * a[i] + x[1] * b[i] + x[2] * c[i] + x[3] * d[i];
        }
    }
    for (; k < dims; k++)
        for (unsigned v = 0; v < count; v++)
            for (uint64_t i = 0; i < dims; i++) sums[v * dims + i] += vectors[v * dims + k] * matrix[k * dims + i];
}

#endif
