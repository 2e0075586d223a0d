/* The product with a square matrix, which product quantisation (pq.c) has in variants. */
#ifndef WEIGHTMAP_ROWS_H
#define WEIGHTMAP_ROWS_H
#include "internal.h"

/* The body of the variants, which the compiler makes vector code of. Every element is a chain of additions of its own, in the
 * order of the rows, so that the width of a vector changes no bit.
 *
 * Products of `count` vectors with a square matrix: the rows of the matrix are added, each times its element of the vector. Four
 * rows of the matrix stay in the nearest cache while they are used for all vectors. */
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
