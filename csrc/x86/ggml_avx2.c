/* Decodes ggml's blocks with AVX2: see ggml_blocks.h. ggml_avx2_streamed.c includes this file too. */
#include "quant/ggml.h"

#if WM_X86
#define TARGET WM_TARGET("avx2,f16c")
#if defined(STREAMED)
#define SUFFIX x86_avx2_streamed
#define STORE _mm256_stream_ps
#else
#define SUFFIX x86_avx2
#define STORE _mm256_storeu_ps
#endif
#define ODD ggml_portable
#include "x86/ggml_codes.h"

/* 255 where a bit is set. */
TARGET WM_INLINE codes where_set(uint32_t word) {
    const __m256i byte =
        _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    return _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)word), byte), bit), bit);
}
TARGET WM_INLINE codes bits(uint32_t word, int value) {
    return _mm256_and_si256(where_set(word), _mm256_set1_epi8((char)value));
}
TARGET WM_INLINE codes negate(codes c, uint32_t word) {
    const __m256i all = where_set(word);
    return _mm256_sub_epi8(_mm256_xor_si256(c, all), all);
}

TARGET WM_INLINE __m256 eight_floats(__m128i c) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(c)); }
TARGET WM_INLINE __m128i upper(__m128i c) { return _mm_unpackhi_epi64(c, c); }

TARGET WM_INLINE void products(float *out, uint64_t v, uint64_t w, float a, float b) {
    const __m128i all = _mm_set_epi64x((long long)w, (long long)v);
    _mm256_storeu_ps(out, _mm256_mul_ps(eight_floats(all), _mm256_set1_ps(a)));
    _mm256_storeu_ps(out + 8, _mm256_mul_ps(eight_floats(upper(all)), _mm256_set1_ps(b)));
}

TARGET WM_INLINE void put_half(float *out, __m128i c, float s) {
    const __m256 scale = _mm256_set1_ps(s);
    STORE(out, _mm256_mul_ps(eight_floats(c), scale));
    STORE(out + 8, _mm256_mul_ps(eight_floats(upper(c)), scale));
}
TARGET WM_INLINE void put(float *out, codes c, float s, float t) {
    put_half(out, _mm256_castsi256_si128(c), s);
    put_half(out + 16, _mm256_extracti128_si256(c, 1), t);
}

TARGET WM_INLINE void put_half_sum(float *out, __m128i c, float s, float x) {
    const __m256 scale = _mm256_set1_ps(s), offset = _mm256_set1_ps(x);
    STORE(out, _mm256_add_ps(_mm256_mul_ps(eight_floats(c), scale), offset));
    STORE(out + 8, _mm256_add_ps(_mm256_mul_ps(eight_floats(upper(c)), scale), offset));
}
TARGET WM_INLINE void put_sum(float *out, codes c, float s, float x, float t, float y) {
    put_half_sum(out, _mm256_castsi256_si128(c), s, x);
    put_half_sum(out + 16, _mm256_extracti128_si256(c, 1), t, y);
}

/* A byte stands in the upper half of a number of 16 bits: of three times it the digit is carried out, and the rest stays. */
TARGET WM_INLINE void put_trits(float *out, int step, const uint8_t *p, int n, float d) {
    const __m256 t = _mm256_setr_ps(-d, d * 0, d, 0, 0, 0, 0, 0);
    const __m256i three = _mm256_set1_epi32(3);
    const __m128i bytes = load16(p);
    __m256i c = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 8), e = _mm256_slli_epi32(_mm256_cvtepu8_epi32(upper(bytes)), 8);
    for (int k = 0; k < n; k++) {
        STORE(out + step * k, _mm256_permutevar8x32_ps(t, _mm256_mulhi_epu16(c, three)));
        STORE(out + step * k + 8, _mm256_permutevar8x32_ps(t, _mm256_mulhi_epu16(e, three)));
        c = _mm256_mullo_epi16(c, three), e = _mm256_mullo_epi16(e, three);
    }
}

#include "quant/ggml_blocks.h"

#if !defined(STREAMED)
TARGET void stream_x86_avx2(const float *values, float *out, uint64_t lines) {
    for (; lines; lines--, values += 16, out += 16) {
        _mm256_stream_ps(out, _mm256_loadu_ps(values));
        _mm256_stream_ps(out + 8, _mm256_loadu_ps(values + 8));
    }
}
#endif
#endif
