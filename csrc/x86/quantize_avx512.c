/* The search for scales, compiled for AVX-512: sixteen lanes are one register. */
#include "core/internal.h"

#if WM_X86
#include <immintrin.h>
#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl")
#define NAME quantize_x86_avx512

typedef __m512 lanes;
typedef __m512i words;
TARGET WM_INLINE lanes lanes_load(const float *from) { return _mm512_loadu_ps(from); }
TARGET WM_INLINE void lanes_store(float *to, lanes a) { _mm512_storeu_ps(to, a); }
TARGET WM_INLINE lanes lanes_all(float value) { return _mm512_set1_ps(value); }
TARGET WM_INLINE lanes lanes_add(lanes a, lanes b) { return _mm512_add_ps(a, b); }
TARGET WM_INLINE lanes lanes_sub(lanes a, lanes b) { return _mm512_sub_ps(a, b); }
TARGET WM_INLINE lanes lanes_mul(lanes a, lanes b) { return _mm512_mul_ps(a, b); }
TARGET WM_INLINE lanes lanes_div(lanes a, lanes b) { return _mm512_div_ps(a, b); }
TARGET WM_INLINE lanes lanes_sqrt(lanes a) { return _mm512_sqrt_ps(a); }
TARGET WM_INLINE lanes lanes_min(lanes a, lanes b) { return _mm512_min_ps(a, b); }
TARGET WM_INLINE lanes lanes_max(lanes a, lanes b) { return _mm512_max_ps(a, b); }
#include "x86/transpose_avx2.h"
TARGET WM_INLINE void lanes_transpose(const float *const rows[16], uint64_t at, float (*to)[16]) {
    transpose_eight(rows, at, to[0]);
    transpose_eight(rows + 8, at, to[0] + 8);
}
TARGET WM_INLINE lanes lanes_pick(lanes a, lanes b, lanes x, lanes y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
}
TARGET WM_INLINE uint32_t lanes_which(lanes a, lanes b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
TARGET WM_INLINE words words_all(uint32_t value) { return _mm512_set1_epi32((int)value); }
TARGET WM_INLINE words words_join(words w, lanes a, uint32_t mask, unsigned shift) {
    const __m512i field = _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int)mask));
    return _mm512_or_si512(w, _mm512_sll_epi32(field, _mm_cvtsi32_si128((int)shift)));
}
TARGET WM_INLINE words words_pair(lanes a, lanes b) {
    return _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_castps_si512(a), _mm512_slli_epi32(_mm512_castps_si512(b), 16));
}
TARGET WM_INLINE void words_store(uint32_t *to, words w) { _mm512_storeu_si512(to, w); }

TARGET WM_INLINE void correlate_lanes(const uint32_t (*y)[16], uint64_t pairs, const words inverse[2], int bits, lanes yq[2],
                                      lanes qq[2]) {
    /* The sum of a rounded product and itself saturates where a code is clamped. */
    const __m512i half = _mm512_set1_epi16((int16_t)(1 << (15 - bits)));
    const __m128i shift = _mm_cvtsi32_si128(16 - bits);
    __m512i a[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()}, b[2] = {a[0], a[0]};
#pragma GCC unroll 2
    for (uint64_t i = 0; i < pairs; i++) {
        const __m512i values = _mm512_loadu_si512(y[i]);
        for (int k = 0; k < 2; k++) {
            const __m512i product = _mm512_mulhrs_epi16(values, inverse[k]);
            const __m512i q = _mm512_sra_epi16(_mm512_adds_epi16(product, _mm512_add_epi16(product, half)), shift);
            a[k] = _mm512_add_epi32(a[k], _mm512_madd_epi16(values, q));
            b[k] = _mm512_add_epi32(b[k], _mm512_madd_epi16(q, q));
        }
    }
    for (int k = 0; k < 2; k++) yq[k] = _mm512_cvtepi32_ps(a[k]), qq[k] = _mm512_cvtepi32_ps(b[k]);
}

#include "quant/quantize_block.h"
#endif
