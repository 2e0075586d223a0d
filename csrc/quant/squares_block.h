/* The sum of squares of floats in float64: a template, compiled once for each instruction set with TARGET and NAME defined
 * before, and WIDTH, the doubles in a register. Every variant adds in the same order. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

TARGET double NAME(const float *x, uint64_t n) {
    enum { LANES = 32 };
    double sums[LANES] = {0};
    uint64_t i = 0;
#if defined(__GNUC__)
    typedef double doubles __attribute__((vector_size(8 * WIDTH)));
    typedef float floats __attribute__((vector_size(4 * WIDTH)));
    doubles parts[LANES / WIDTH] = {{0}};
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES / WIDTH; k++) {
            floats values;
            memcpy(&values, x + i + k * WIDTH, sizeof values);
            const doubles wide = __builtin_convertvector(values, doubles);
            parts[k] += wide * wide;
        }
    memcpy(sums, parts, sizeof sums);
#endif
    for (; i < n; i++) sums[i % LANES] += (double)x[i] * (double)x[i];
    for (int half = LANES / 2; half; half /= 2)
        for (int k = 0; k < half; k++) sums[k] += sums[k + half];
    return sums[0];
}
