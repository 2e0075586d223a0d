/* What the sums of rows (rowsum.c), product quantisation (pq.c) and their variants share. */
#ifndef WEIGHTMAP_ROWS_H
#define WEIGHTMAP_ROWS_H
#include "internal.h"

static inline float load_f32(const uint8_t *p) {
    const uint32_t bits = load_le32(p);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The bodies of the variants, which the compiler makes vector code of. Every element is a chain of additions of its own, in
 * the order of the rows, so that the width of a vector changes no bit. */
WM_INLINE void add_rows_body(const uint8_t *const *rows, unsigned count, uint64_t dims, float *restrict sum) {
    if (count == WM_ROWS_TOGETHER) {
        const uint8_t *restrict a = rows[0], *restrict b = rows[1], *restrict c = rows[2], *restrict d = rows[3];
        for (uint64_t i = 0; i < dims; i++)
            sum[i] = sum[i] + load_f32(a + 4 * i) + load_f32(b + 4 * i) + load_f32(c + 4 * i) + load_f32(d + 4 * i);
        return;
    }
    for (unsigned k = 0; k < count; k++) {
        const uint8_t *restrict row = rows[k];
        for (uint64_t i = 0; i < dims; i++) sum[i] += load_f32(row + 4 * i);
    }
}

/* `sum` begins as 0, and the rows of a square matrix are added, each times its element of x. */
WM_INLINE void combine_rows_body(const float *restrict matrix, const float *restrict x, uint64_t dims, float *restrict sum) {
    uint64_t k = 0;
    for (uint64_t i = 0; i < dims; i++) sum[i] = 0;
    for (; k + 4 <= dims; k += 4) {
        const float *restrict a = matrix + k * dims, *restrict b = a + dims, *restrict c = b + dims, *restrict d = c + dims;
        for (uint64_t i = 0; i < dims; i++)
            sum[i] = sum[i] + x[k] * a[i] + x[k + 1] * b[i] + x[k + 2] * c[i] + x[k + 3] * d[i];
    }
    for (; k < dims; k++)
        for (uint64_t i = 0; i < dims; i++) sum[i] += x[k] * matrix[k * dims + i];
}

#endif
