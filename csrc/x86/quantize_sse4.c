/* The search for scales, compiled for SSE4: sixteen lanes are four registers. */
#include "core/internal.h"

#if WM_X86
#include <smmintrin.h>
#define TARGET WM_TARGET("sse4.1")
#define NAME quantize_x86_sse4
#define EACH for (int r = 0; r < 4; r++)

typedef struct {
    __m128 v[4];
} lanes;
typedef struct {
    __m128i v[4];
} words;
#define FOUR(name, intrinsic)                       \
    TARGET WM_INLINE lanes name(lanes a, lanes b) { \
        EACH a.v[r] = intrinsic(a.v[r], b.v[r]);    \
        return a;                                   \
    }
FOUR(lanes_add, _mm_add_ps)
FOUR(lanes_sub, _mm_sub_ps)
FOUR(lanes_mul, _mm_mul_ps)
FOUR(lanes_div, _mm_div_ps)
FOUR(lanes_min, _mm_min_ps)
FOUR(lanes_max, _mm_max_ps)
TARGET WM_INLINE lanes lanes_sqrt(lanes a) {
    EACH a.v[r] = _mm_sqrt_ps(a.v[r]);
    return a;
}
TARGET WM_INLINE lanes lanes_load(const float *from) {
    lanes a;
    EACH a.v[r] = _mm_loadu_ps(from + 4 * r);
    return a;
}
TARGET WM_INLINE void lanes_store(float *to, lanes a) { EACH _mm_storeu_ps(to + 4 * r, a.v[r]); }
TARGET WM_INLINE lanes lanes_all(float value) {
    lanes a;
    EACH a.v[r] = _mm_set1_ps(value);
    return a;
}
TARGET WM_INLINE lanes lanes_pick(lanes a, lanes b, lanes x, lanes y) {
    EACH y.v[r] = _mm_blendv_ps(y.v[r], x.v[r], _mm_cmpgt_ps(a.v[r], b.v[r]));
    return y;
}
TARGET WM_INLINE uint32_t lanes_which(lanes a, lanes b) {
    uint32_t which = 0;
    EACH which |= (uint32_t)_mm_movemask_ps(_mm_cmpge_ps(a.v[r], b.v[r])) << 4 * r;
    return which;
}
TARGET WM_INLINE void lanes_transpose(const float *const rows[16], uint64_t at, float (*to)[16]) {
    for (int k = 0; k < 16; k += 4)
        for (int i = 0; i < 8; i += 4) {
            __m128 v[4];
            EACH v[r] = _mm_loadu_ps(rows[k + r] + at + i);
            _MM_TRANSPOSE4_PS(v[0], v[1], v[2], v[3]);
            EACH _mm_storeu_ps(to[i + r] + k, v[r]);
        }
}
TARGET WM_INLINE words words_all(uint32_t value) {
    words w;
    EACH w.v[r] = _mm_set1_epi32((int)value);
    return w;
}
TARGET WM_INLINE words words_join(words w, lanes a, uint32_t mask, unsigned shift) {
    const __m128i fields = _mm_set1_epi32((int)mask), by = _mm_cvtsi32_si128((int)shift);
    EACH w.v[r] = _mm_or_si128(w.v[r], _mm_sll_epi32(_mm_and_si128(_mm_castps_si128(a.v[r]), fields), by));
    return w;
}
TARGET WM_INLINE words words_pair(lanes a, lanes b) {
    words w;
    EACH w.v[r] = _mm_blend_epi16(_mm_castps_si128(a.v[r]), _mm_slli_epi32(_mm_castps_si128(b.v[r]), 16), 0xAA);
    return w;
}
TARGET WM_INLINE void words_store(uint32_t *to, words w) { EACH _mm_storeu_si128((__m128i *)to + r, w.v[r]); }

TARGET WM_INLINE void correlate_lanes(const uint32_t (*y)[16], uint64_t pairs, const words inverse[2], int bits, lanes yq[2],
                                      lanes qq[2]) {
    /* The sum of a rounded product and itself saturates where a code is clamped. */
    const __m128i half = _mm_set1_epi16((int16_t)(1 << (15 - bits))), shift = _mm_cvtsi32_si128(16 - bits);
    EACH {
        __m128i a[2] = {_mm_setzero_si128(), _mm_setzero_si128()}, b[2] = {a[0], a[0]};
        for (uint64_t i = 0; i < pairs; i++) {
            const __m128i values = _mm_loadu_si128((const __m128i *)y[i] + r);
            for (int k = 0; k < 2; k++) {
                const __m128i product = _mm_mulhrs_epi16(values, inverse[k].v[r]);
                const __m128i q = _mm_sra_epi16(_mm_adds_epi16(product, _mm_add_epi16(product, half)), shift);
                a[k] = _mm_add_epi32(a[k], _mm_madd_epi16(values, q));
                b[k] = _mm_add_epi32(b[k], _mm_madd_epi16(q, q));
            }
        }
        for (int k = 0; k < 2; k++) yq[k].v[r] = _mm_cvtepi32_ps(a[k]), qq[k].v[r] = _mm_cvtepi32_ps(b[k]);
    }
}

#include "quant/quantize_block.h"
#endif
