/* The sum of squares of floats in float64. It is finite when all floats are: the largest is 3.4e38, and float64 reaches to
 * 1.8e308. Sums of every LANES-th element do not wait for one another.
 */
#include "core/internal.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

double wm_sum_of_squares(const float *x, uint64_t n) {
    enum { LANES = 32 };
    double sums[LANES] = {0};
    uint64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) sums[k] += (double)x[i + k] * (double)x[i + k];
    for (; i < n; i++) sums[i % LANES] += (double)x[i] * (double)x[i];
    for (int half = LANES / 2; half; half /= 2)
        for (int k = 0; k < half; k++) sums[k] += sums[k + half];
    return sums[0];
}
