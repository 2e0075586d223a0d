/* Sums of rows, eight elements at a time (AVX2): the plain bodies, compiled for it. Without fused multiply-add, which would
 * round once where the definition rounds twice. */
#include "../rows.h"

#if WM_X86
WM_TARGET("avx2") void add_rows_x86_avx2(const uint8_t *const *rows, unsigned count, uint64_t dims, float *sum) {
    add_rows_body(rows, count, dims, sum);
}

WM_TARGET("avx2") void combine_rows_x86_avx2(const float *matrix, const float *x, uint64_t dims, float *sum) {
    combine_rows_body(matrix, x, dims, sum);
}
#endif
