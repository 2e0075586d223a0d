/* Decodes ggml's blocks with AVX-512: see ggml_blocks.h. */
#include "quant/ggml.h"

#if WM_X86
#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl,f16c")
#define SUFFIX x86_avx512
#define ODD ggml_portable
#include "x86/ggml_codes.h"

TARGET WM_INLINE codes negate(codes c, uint32_t word) { return _mm256_mask_sub_epi8(c, word, _mm256_setzero_si256(), c); }

TARGET WM_INLINE __m512 sixteen_floats(__m128i c) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(c)); }

/* VPERMPS picks one of sixteen floats for each lane by the lane's lowest four bits. That needs no mask and replaces conversion,
 * multiplication and addition. */
#define BOOKS
typedef __m512 book;
TARGET WM_INLINE book line(int from, float s, float x) {
    const __m512 i =
        _mm512_add_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_ps((float)from));
    return _mm512_add_ps(_mm512_mul_ps(i, _mm512_set1_ps(s)), _mm512_set1_ps(x));
}
TARGET WM_INLINE book scaled(const int8_t *table, float s) {
    return _mm512_mul_ps(sixteen_floats(load16((const uint8_t *)table)), _mm512_set1_ps(s));
}
TARGET WM_INLINE void put_nibbles(float *out, const uint8_t *p, book t) {
    const __m512i both = _mm512_cvtepu8_epi32(load16(p));
    _mm512_storeu_ps(out, _mm512_permutexvar_ps(both, t));
    _mm512_storeu_ps(out + 16, _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), t));
}
TARGET WM_INLINE void put_pairs(float *out, const uint8_t *p, book t, book u) {
    const __m512i first = _mm512_cvtepu8_epi32(load16(p)), second = _mm512_cvtepu8_epi32(load16(p + 16));
    _mm512_storeu_ps(out, _mm512_permutexvar_ps(first, t));
    _mm512_storeu_ps(out + 16, _mm512_permutexvar_ps(second, t));
    _mm512_storeu_ps(out + 32, _mm512_permutexvar_ps(_mm512_srli_epi32(first, 4), u));
    _mm512_storeu_ps(out + 48, _mm512_permutexvar_ps(_mm512_srli_epi32(second, 4), u));
}
TARGET WM_INLINE void put_fives(float *out, const uint8_t *p, uint32_t high, book t, book u) {
    const __m512i both = _mm512_cvtepu8_epi32(load16(p)), upper = _mm512_srli_epi32(both, 4);
    const __m512 first = _mm512_permutexvar_ps(both, t), second = _mm512_permutexvar_ps(upper, t);
    _mm512_storeu_ps(out, _mm512_mask_permutexvar_ps(first, (__mmask16)high, both, u));
    _mm512_storeu_ps(out + 16, _mm512_mask_permutexvar_ps(second, (__mmask16)(high >> 16), upper, u));
}
TARGET WM_INLINE void put_quarters(float *out, const uint8_t *p, const float s[8], const float x[8]) {
    const __m512 i = _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
    const __m512i first = _mm512_cvtepu8_epi32(load16(p)), second = _mm512_cvtepu8_epi32(load16(p + 16));
    for (unsigned k = 0; k < 8; k += 2) {
        const __m512 t = _mm512_add_ps(_mm512_mul_ps(i, _mm512_set1_ps(s[k])), _mm512_set1_ps(x[k]));
        const __m512 u = _mm512_add_ps(_mm512_mul_ps(i, _mm512_set1_ps(s[k + 1])), _mm512_set1_ps(x[k + 1]));
        _mm512_storeu_ps(out + 16 * k, _mm512_permutexvar_ps(_mm512_srli_epi32(first, k), t));
        _mm512_storeu_ps(out + 16 * k + 16, _mm512_permutexvar_ps(_mm512_srli_epi32(second, k), u));
    }
}

TARGET WM_INLINE void products(float *out, uint64_t v, uint64_t w, float a, float b) {
    const __m512 factors = _mm512_insertf32x8(_mm512_set1_ps(a), _mm256_set1_ps(b), 1);
    _mm512_storeu_ps(out, _mm512_mul_ps(sixteen_floats(_mm_set_epi64x((long long)w, (long long)v)), factors));
}
TARGET WM_INLINE void put(float *out, codes c, float s, float t) {
    _mm512_storeu_ps(out, _mm512_mul_ps(sixteen_floats(_mm256_castsi256_si128(c)), _mm512_set1_ps(s)));
    _mm512_storeu_ps(out + 16, _mm512_mul_ps(sixteen_floats(_mm256_extracti128_si256(c, 1)), _mm512_set1_ps(t)));
}
TARGET WM_INLINE void put_sum(float *out, codes c, float s, float x, float t, float y) {
    const __m512 first = _mm512_mul_ps(sixteen_floats(_mm256_castsi256_si128(c)), _mm512_set1_ps(s));
    const __m512 second = _mm512_mul_ps(sixteen_floats(_mm256_extracti128_si256(c, 1)), _mm512_set1_ps(t));
    _mm512_storeu_ps(out, _mm512_add_ps(first, _mm512_set1_ps(x)));
    _mm512_storeu_ps(out + 16, _mm512_add_ps(second, _mm512_set1_ps(y)));
}

/* A byte stands in the upper half of a number of 16 bits: of three times it the digit is carried out, and the rest stays. */
TARGET WM_INLINE void put_trits(float *out, int step, const uint8_t *p, int n, float d) {
    static const int8_t values[16] = {-1, 0, 1};
    const book t = scaled(values, d);
    const __m512i three = _mm512_set1_epi32(3);
    __m512i c = _mm512_slli_epi32(_mm512_cvtepu8_epi32(load16(p)), 8);
    for (int k = 0; k < n; k++, c = _mm512_mullo_epi16(c, three))
        _mm512_storeu_ps(out + step * k, _mm512_permutexvar_ps(_mm512_mulhi_epu16(c, three), t));
}

#include "quant/ggml_blocks.h"

TARGET void stream_x86_avx512(const float *values, float *out, uint64_t lines) {
    for (; lines; lines--, values += 16, out += 16) _mm512_stream_ps(out, _mm512_loadu_ps(values));
}
#endif
