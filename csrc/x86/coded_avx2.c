/* Values of codes by tables, and the decoding of groups, compiled for AVX2 and F16C. */
#include "quant/groups_value.h"

#if WM_X86
#include <immintrin.h>
#include <math.h>

#define TARGET WM_TARGET("avx2,f16c")
#define SUFFIX x86_avx2
#define NIBBLES 1
#define BYTES 1

TARGET WM_INLINE void round_halves(const float *values, uint8_t *to) {
    for (int l = 0; l < LANES; l += 8)
        _mm_storeu_si128((__m128i *)(void *)(to + 2 * l),
                         _mm256_cvtps_ph(_mm256_loadu_ps(values + l), _MM_FROUND_TO_NEAREST_INT));
}

typedef struct {
    __m256i first, last;
} line;

TARGET WM_INLINE void store_line(line values, uint8_t *out, int streaming) {
    __m256i *to = (__m256i *)(void *)out;
    if (streaming)
        _mm256_stream_si256(to, values.first), _mm256_stream_si256(to + 1, values.last);
    else
        _mm256_storeu_si256(to, values.first), _mm256_storeu_si256(to + 1, values.last);
}

typedef struct {
    __m256i low, high; /* bytes of the halves: a table in each lane */
} nibbles_2;

TARGET WM_INLINE nibbles_2 load_nibbles_2(const uint8_t *first, const uint8_t *second) {
    const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)first);
    const __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)second), mask = _mm256_set1_epi16(0xFF);
    const __m256i low = _mm256_packus_epi16(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
    const __m256i high = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
    return (nibbles_2){_mm256_permute4x64_epi64(low, 0xD8), _mm256_permute4x64_epi64(high, 0xD8)};
}

/* A byte becomes a word, and its codes the bytes of it. A register has four lines of 8 codes, 0 and 2, 1 and 3, so that values lie in
 * order as soon as their bytes are interleaved; with two tables 0 and 1, 2 and 3. */
TARGET WM_INLINE line look_nibbles_2(nibbles_2 t, const uint8_t *codes, int high_first, int tables) {
    const __m256i one = _mm256_setr_epi8(0, -1, 1, -1, 2, -1, 3, -1, 8, -1, 9, -1, 10, -1, 11, -1, /* */
                                         4, -1, 5, -1, 6, -1, 7, -1, 12, -1, 13, -1, 14, -1, 15, -1);
    const __m256i two = _mm256_setr_epi8(0, -1, 1, -1, 2, -1, 3, -1, 4, -1, 5, -1, 6, -1, 7, -1, /* */
                                         8, -1, 9, -1, 10, -1, 11, -1, 12, -1, 13, -1, 14, -1, 15, -1);
    const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)codes));
    const __m256i wide = _mm256_shuffle_epi8(both, tables == 1 ? one : two);
    const __m256i first = high_first ? _mm256_srli_epi16(wide, 4) : wide;
    const __m256i at =
        _mm256_and_si256(_mm256_or_si256(first, _mm256_slli_epi16(wide, high_first ? 8 : 4)), _mm256_set1_epi8(15));
    const __m256i below = _mm256_shuffle_epi8(t.low, at), above = _mm256_shuffle_epi8(t.high, at);
    const __m256i a = _mm256_unpacklo_epi8(below, above), b = _mm256_unpackhi_epi8(below, above);
    if (tables == 1) return (line){a, b};
    return (line){_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31)};
}

typedef struct {
    __m256i low, high; /* codes below 8, and from 8 on */
} nibbles_4;

TARGET WM_INLINE nibbles_4 load_nibbles_4(const uint8_t *table) {
    const __m256i *from = (const __m256i *)(const void *)table;
    return (nibbles_4){_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
}

TARGET WM_INLINE __m256i look_eight(nibbles_4 t, uint32_t codes, int high_first) {
    const __m256i low = _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0), high = _mm256_set_epi32(24, 28, 16, 20, 8, 12, 0, 4);
    const __m256i at = _mm256_srlv_epi32(_mm256_set1_epi32((int)codes), high_first ? high : low);
    return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(_mm256_permutevar8x32_epi32(t.low, at)),
                                                _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(t.high, at)),
                                                _mm256_castsi256_ps(_mm256_slli_epi32(at, 28))));
}

TARGET WM_INLINE line look_nibbles_4(nibbles_4 t, const uint8_t *codes, int high_first) {
    return (line){look_eight(t, load_le32(codes), high_first), look_eight(t, load_le32(codes + 4), high_first)};
}

/* Sixteen numbers, less z and times s, as halves. A float8 number of E4M3 is a float16 with a shorter exponent, whose bias is less by
 * 8: s makes up for that, so the product is rounded once. */
TARGET WM_INLINE __m256i scale_16(__m128i codes, __m256 s, __m256 z, int numbers, int type) {
    __m256 a, b;
    if (numbers == WM_E4M3) {
        const __m256i halves =
            _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7), _mm256_set1_epi16((short)0xBF80));
        a = _mm256_cvtph_ps(_mm256_castsi256_si128(halves)), b = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
    } else {
        a = _mm256_sub_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), z);
        b = _mm256_sub_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8))), z);
    }
    a = _mm256_mul_ps(a, s), b = _mm256_mul_ps(b, s);
    if (type == AS_FLOAT16)
        return _mm256_set_m128i(_mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
    const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7FFF);
    __m256i x = _mm256_castps_si256(a), y = _mm256_castps_si256(b); /* narrow_to_bfloat16; there is no NaN */
    x = _mm256_add_epi32(_mm256_add_epi32(x, half), _mm256_and_si256(_mm256_srli_epi32(x, 16), one));
    y = _mm256_add_epi32(_mm256_add_epi32(y, half), _mm256_and_si256(_mm256_srli_epi32(y, 16), one));
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_srli_epi32(x, 16), _mm256_srli_epi32(y, 16)), 0xD8);
}

TARGET WM_INLINE void scale_codes(const uint8_t *codes, uint64_t n, float scale, float zero, const uint8_t *table, int numbers,
                                  int type, uint8_t *out, int streaming) {
    const __m256 s = _mm256_set1_ps(scale), z = _mm256_set1_ps(zero);
    const __m256i nan = _mm256_set1_epi8(0x7F);
    uint64_t i = 0;
    for (; i + 32 <= n; i += 32, codes += 32, out += LINE) {
        const __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)codes);
        if (numbers == WM_E4M3 && _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_and_si256(c, nan), nan)))
            wm_look_up_some(codes, 8, 0, 0, 32, table, 2, out);
        else
            store_line((line){scale_16(_mm256_castsi256_si128(c), s, z, numbers, type),
                              scale_16(_mm256_extracti128_si256(c, 1), s, z, numbers, type)},
                       out, streaming);
    }
}

/* Numbers of E4M3 times s as bfloat16, of which the table's eighth is normal, and twice as large 14 times over is not infinite: numbers
 * have the bits that the table gives to those of the two smallest exponents, and a larger exponent. A normal product and its rounding
 * are the same in every binade. */
TARGET WM_INLINE void shift_exponents(nibbles_2 t, const uint8_t *codes, int lines, uint64_t ahead, const uint8_t *table,
                                      uint8_t *out, int streaming) {
    const __m256i min = _mm256_set1_epi8(8), exponent = _mm256_set1_epi8(0x78), nan = _mm256_set1_epi8(0x7F);
    __m256i c[4], max = _mm256_setzero_si256();
    for (int i = 0; i < lines; i++) {
        if (i % 2 == 0) PREFETCH(codes + 32 * i + ahead);
        c[i] = _mm256_permute4x64_epi64(_mm256_loadu_si256((const __m256i *)(const void *)(codes + 32 * i)), 0xD8);
        max = _mm256_max_epu8(max, _mm256_and_si256(c[i], nan));
    }
    if (_mm256_movemask_epi8(_mm256_cmpeq_epi8(max, nan))) {
        wm_look_up_some(codes, 8, 0, 0, 32 * (uint64_t)lines, table, 2, out);
        return;
    }
    for (int i = 0; i < lines; i++, out += LINE) {
        const __m256i above = _mm256_subs_epu8(_mm256_and_si256(c[i], exponent), min), none = _mm256_setzero_si256();
        const __m256i at = _mm256_sub_epi8(_mm256_and_si256(c[i], nan), above);
        const __m256i low = _mm256_shuffle_epi8(t.low, at);
        const __m256i high = _mm256_xor_si256(_mm256_shuffle_epi8(t.high, at), _mm256_andnot_si256(nan, c[i]));
        const __m256i a = _mm256_slli_epi16(_mm256_unpacklo_epi8(above, none), 4);
        const __m256i b = _mm256_slli_epi16(_mm256_unpackhi_epi8(above, none), 4);
        store_line(
            (line){_mm256_add_epi16(_mm256_unpacklo_epi8(low, high), a), _mm256_add_epi16(_mm256_unpackhi_epi8(low, high), b)},
            out, streaming);
    }
}

TARGET WM_INLINE uint64_t look_bytes_2(const wm_looked *w, uint64_t b, const uint8_t *table, uint64_t c, uint64_t n,
                                       int streaming) {
    if (w->numbers == WM_ANY_NUMBERS || (w->numbers == WM_E4M3 && w->zeros)) return 0;
    const int type = w->type, shifts = w->numbers == WM_E4M3 && type == AS_BFLOAT16;
    const unsigned exponent = load_le16(table + 2 * 8) >> 7 & 255;
    const uint64_t at = table_of(w, b);
    const float s = w->scales[at] * (w->numbers == WM_E4M3 ? 256 : 1), z = w->zeros ? w->zeros[at] : 0;
    if (shifts ? exponent < 2 || exponent + 14 > 253 : !is_finite(s) || !is_finite(z)) return 0;
    const nibbles_2 t = load_nibbles_2(table, table);
    const uint64_t ahead = ahead_of(w);
    const uint8_t *codes = w->codes + c;
    uint8_t *out = w->out + 2 * c;
    for (uint64_t r = 0; r < w->rows; r++, codes += w->codes_apart, out += w->out_apart) {
        uint64_t i = 0;
        if (w->numbers == WM_E4M3 && type == AS_FLOAT16) {
            scale_codes(codes, n, s, z, table, WM_E4M3, AS_FLOAT16, out, streaming);
        } else if (!shifts) {
            type == AS_FLOAT16 ? scale_codes(codes, n, s, z, table, WM_INTEGERS, AS_FLOAT16, out, streaming)
                               : scale_codes(codes, n, s, z, table, WM_INTEGERS, AS_BFLOAT16, out, streaming);
        } else {
            for (; i + 128 <= n; i += 128) shift_exponents(t, codes + i, 4, ahead, table, out + 2 * i, streaming);
            for (; i + 32 <= n; i += 32) shift_exponents(t, codes + i, 1, ahead, table, out + 2 * i, streaming);
        }
    }
    return n / 32 * 32;
}

#define TURNED 32
typedef __m256i turned;
TARGET WM_INLINE turned load_turned(const uint8_t *from) { return _mm256_loadu_si256((const __m256i *)(const void *)from); }
TARGET WM_INLINE void store_turned(uint8_t *to, turned a) { _mm256_storeu_si256((__m256i *)(void *)to, a); }
TARGET WM_INLINE turned interleave(turned a, turned b, int bytes, int upper) {
    if (bytes == 1) return upper ? _mm256_unpackhi_epi8(a, b) : _mm256_unpacklo_epi8(a, b);
    return upper ? _mm256_unpackhi_epi32(a, b) : _mm256_unpacklo_epi32(a, b);
}
TARGET WM_INLINE turned pair_nibbles(turned a, turned b, int high) {
    const __m256i low = _mm256_set1_epi8(15), upper = _mm256_set1_epi8((char)0xF0);
    return high ? _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), low), _mm256_and_si256(b, upper))
                : _mm256_or_si256(_mm256_and_si256(a, low), _mm256_and_si256(_mm256_slli_epi16(b, 4), upper));
}

#include "quant/coded_lanes.h"

#include "quant/lookup.h"

#include "quant/groups.h"
#endif
