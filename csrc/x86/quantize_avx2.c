/* The search for scales, compiled for AVX2: sixteen lanes are two registers. */
#include "core/internal.h"

#if WM_X86
#include <immintrin.h>
#define TARGET WM_TARGET("avx2")
#define NAME quantize_x86_avx2

typedef struct {
    __m256 low, high;
} lanes;
typedef struct {
    __m256i low, high;
} words;
#define BOTH(name, intrinsic) \
    TARGET WM_INLINE lanes name(lanes a, lanes b) { return (lanes){intrinsic(a.low, b.low), intrinsic(a.high, b.high)}; }
BOTH(lanes_add, _mm256_add_ps)
BOTH(lanes_sub, _mm256_sub_ps)
BOTH(lanes_mul, _mm256_mul_ps)
BOTH(lanes_div, _mm256_div_ps)
BOTH(lanes_min, _mm256_min_ps)
BOTH(lanes_max, _mm256_max_ps)
TARGET WM_INLINE lanes lanes_sqrt(lanes a) { return (lanes){_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }
TARGET WM_INLINE lanes lanes_load(const float *from) { return (lanes){_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
TARGET WM_INLINE void lanes_store(float *to, lanes a) { _mm256_storeu_ps(to, a.low), _mm256_storeu_ps(to + 8, a.high); }
TARGET WM_INLINE lanes lanes_all(float value) { return (lanes){_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
#include "x86/transpose_avx2.h"
TARGET WM_INLINE void lanes_transpose(const float *const rows[16], uint64_t at, float (*to)[16]) {
    transpose_eight(rows, at, to[0]);
    transpose_eight(rows + 8, at, to[0] + 8);
}
TARGET WM_INLINE lanes lanes_pick(lanes a, lanes b, lanes x, lanes y) {
    return (lanes){_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_GT_OQ)),
                   _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_GT_OQ))};
}
TARGET WM_INLINE uint32_t lanes_which(lanes a, lanes b) {
    return (uint32_t)(_mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ)) |
                      _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ)) << 8);
}
TARGET WM_INLINE words words_all(uint32_t value) {
    return (words){_mm256_set1_epi32((int)value), _mm256_set1_epi32((int)value)};
}
TARGET WM_INLINE words words_join(words w, lanes a, uint32_t mask, unsigned shift) {
    const __m256i fields = _mm256_set1_epi32((int)mask);
    const __m128i by = _mm_cvtsi32_si128((int)shift);
    w.low = _mm256_or_si256(w.low, _mm256_sll_epi32(_mm256_and_si256(_mm256_castps_si256(a.low), fields), by));
    w.high = _mm256_or_si256(w.high, _mm256_sll_epi32(_mm256_and_si256(_mm256_castps_si256(a.high), fields), by));
    return w;
}
TARGET WM_INLINE __m256i pair_eight(__m256 a, __m256 b) {
    return _mm256_blend_epi16(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_castps_si256(b), 16), 0xAA);
}
TARGET WM_INLINE words words_pair(lanes a, lanes b) { return (words){pair_eight(a.low, b.low), pair_eight(a.high, b.high)}; }
TARGET WM_INLINE void words_store(uint32_t *to, words w) {
    _mm256_storeu_si256((__m256i *)to, w.low), _mm256_storeu_si256((__m256i *)to + 1, w.high);
}

/* The sums of eight lanes, for two inverse scales. */
TARGET WM_INLINE void correlate_eight(const uint32_t *y, uint64_t pairs, __m256i first, __m256i second, int bits,
                                      __m256i sums[4]) {
    /* The sum of a rounded product and itself saturates where a code is clamped. */
    const __m256i half = _mm256_set1_epi16((int16_t)(1 << (15 - bits))), inverse[2] = {first, second};
    const __m128i shift = _mm_cvtsi32_si128(16 - bits);
    for (int k = 0; k < 4; k++) sums[k] = _mm256_setzero_si256();
#pragma GCC unroll 2
    for (uint64_t i = 0; i < pairs; i++) {
        const __m256i values = _mm256_loadu_si256((const __m256i *)(y + 16 * i));
        for (int k = 0; k < 2; k++) {
            const __m256i product = _mm256_mulhrs_epi16(values, inverse[k]);
            const __m256i q = _mm256_sra_epi16(_mm256_adds_epi16(product, _mm256_add_epi16(product, half)), shift);
            sums[k] = _mm256_add_epi32(sums[k], _mm256_madd_epi16(values, q));
            sums[k + 2] = _mm256_add_epi32(sums[k + 2], _mm256_madd_epi16(q, q));
        }
    }
}
TARGET WM_INLINE void correlate_lanes(const uint32_t (*y)[16], uint64_t pairs, const words inverse[2], int bits, lanes yq[2],
                                      lanes qq[2]) {
    __m256i low[4], high[4];
    correlate_eight(y[0], pairs, inverse[0].low, inverse[1].low, bits, low);
    correlate_eight(y[0] + 8, pairs, inverse[0].high, inverse[1].high, bits, high);
    for (int k = 0; k < 2; k++) {
        yq[k] = (lanes){_mm256_cvtepi32_ps(low[k]), _mm256_cvtepi32_ps(high[k])};
        qq[k] = (lanes){_mm256_cvtepi32_ps(low[k + 2]), _mm256_cvtepi32_ps(high[k + 2])};
    }
}

#include "quant/quantize_block.h"
#endif
