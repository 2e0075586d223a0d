/* Values of codes by tables, and the decoding of groups, compiled for AVX-512. */
#include "quant/groups_value.h"

#if WM_X86
#include <immintrin.h>

/* Loops become code for whole registers: by default compilers take half of one. */
#define FEATURES "avx512f,avx512bw,avx512dq,avx512vl"
#if defined(__clang__)
#define TARGET WM_TARGET(FEATURES) __attribute__((min_vector_width(512)))
#else
#define TARGET WM_TARGET(FEATURES ",prefer-vector-width=512")
#endif
#define SUFFIX x86_avx512
#define NIBBLES 1
#define BYTES 1

TARGET WM_INLINE void round_halves(const float *values, uint8_t *to) {
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtps_ph(_mm512_loadu_ps(values), _MM_FROUND_TO_NEAREST_INT));
}

typedef __m512i line, nibbles_2, nibbles_4;

TARGET WM_INLINE void store_line(line values, uint8_t *out, int streaming) {
    if (streaming)
        _mm512_stream_si512((__m512i *)(void *)out, values);
    else
        _mm512_storeu_si512(out, values);
}

TARGET WM_INLINE nibbles_2 load_nibbles_2(const uint8_t *first, const uint8_t *second) {
    const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)first);
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), _mm256_loadu_si256((const __m256i *)(const void *)second), 1);
}

/* A byte becomes two words, the code of each in the lowest bits; bit 4 says which table. */
TARGET WM_INLINE line look_nibbles_2(nibbles_2 t, const uint8_t *codes, int high_first, int tables) {
    const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)codes));
    const __m512i low = _mm512_or_si512(both, _mm512_slli_epi32(both, 12));
    const __m512i high = _mm512_or_si512(_mm512_srli_epi32(both, 4), _mm512_slli_epi32(both, 16));
    const __m512i table = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
    const __m512i at = _mm512_ternarylogic_epi32(high_first ? high : low, _mm512_set1_epi16(15), table, 0xEA); /* a & b | c */
    return _mm512_permutexvar_epi16(at, t);
}

TARGET WM_INLINE nibbles_4 load_nibbles_4(const uint8_t *table) { return _mm512_loadu_si512(table); }

/* The same with two doublewords, of which the lowest four bits count. */
TARGET WM_INLINE line look_nibbles_4(nibbles_4 t, const uint8_t *codes, int high_first) {
    const __m512i both = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)(const void *)codes));
    const __m512i low = _mm512_or_si512(both, _mm512_slli_epi64(both, 28));
    const __m512i high = _mm512_or_si512(_mm512_srli_epi64(both, 4), _mm512_slli_epi64(both, 32));
    return _mm512_permutexvar_epi32(high_first ? high : low, t);
}

typedef struct {
    __m512i part[8];
} bytes_2;

TARGET WM_INLINE bytes_2 load_bytes_2(const uint8_t *table, int bits) {
    bytes_2 t;
    for (int i = 0; i < 1 << bits >> 5; i++) t.part[i] = _mm512_loadu_si512(table + LINE * i);
    return t;
}

TARGET WM_INLINE line look_32(const bytes_2 *t, const uint8_t *codes, int bits) {
    const __m512i at = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)codes));
    __m512i quarter[4];
    for (int i = 0; i < 1 << bits >> 6; i++) quarter[i] = _mm512_permutex2var_epi16(t->part[2 * i], at, t->part[2 * i + 1]);
    if (bits == 6) return quarter[0];
    const __mmask32 second = _mm512_movepi16_mask(_mm512_slli_epi16(at, 9)),
                    last = _mm512_movepi16_mask(_mm512_slli_epi16(at, 8));
    const __m512i low = _mm512_mask_blend_epi16(second, quarter[0], quarter[1]);
    return _mm512_mask_blend_epi16(last, low, _mm512_mask_blend_epi16(second, quarter[2], quarter[3]));
}

TARGET WM_INLINE void look_up_lines(const wm_looked *w, const uint8_t *table, uint64_t c, uint64_t n, int bits, int streaming) {
    const uint8_t *codes = w->codes + c;
    uint8_t *out = w->out + 2 * c;
    const bytes_2 t = load_bytes_2(table, bits);
    const uint64_t ahead = ahead_of(w);
    for (uint64_t r = 0; r < w->rows; r++, codes += w->codes_apart, out += w->out_apart)
        for (uint64_t i = 0; i + 32 <= n; i += 32) {
            PREFETCH(codes + i + ahead);
            store_line(look_32(&t, codes + i, bits), out + 2 * i, streaming);
        }
}

TARGET WM_INLINE uint64_t look_bytes_2(const wm_looked *w, uint64_t b, const uint8_t *table, uint64_t c, uint64_t n,
                                       int streaming) {
    if (n < 32) return 0;
    w->bits == 6 ? look_up_lines(w, table, c, n, 6, streaming) : look_up_lines(w, table, c, n, 8, streaming);
    return n / 32 * 32;
}

#define TURNED 64
typedef __m512i turned;
TARGET WM_INLINE turned load_turned(const uint8_t *from) { return _mm512_loadu_si512(from); }
TARGET WM_INLINE void store_turned(uint8_t *to, turned a) { _mm512_storeu_si512(to, a); }
TARGET WM_INLINE turned interleave(turned a, turned b, int bytes, int upper) {
    if (bytes == 1) return upper ? _mm512_unpackhi_epi8(a, b) : _mm512_unpacklo_epi8(a, b);
    return upper ? _mm512_unpackhi_epi32(a, b) : _mm512_unpacklo_epi32(a, b);
}
TARGET WM_INLINE turned pair_nibbles(turned a, turned b, int high) {
    const __m512i low = _mm512_set1_epi8(15); /* whose bits choose the first, else the second */
    return high ? _mm512_ternarylogic_epi32(_mm512_srli_epi16(a, 4), b, low, 0xE4)
                : _mm512_ternarylogic_epi32(a, _mm512_slli_epi16(b, 4), low, 0xE4);
}

#include "quant/coded_lanes.h"

#include "quant/lookup.h"

#include "quant/groups.h"
#endif
