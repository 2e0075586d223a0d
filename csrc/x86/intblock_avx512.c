/* Decoding of quantised blocks, sixteen elements at a time (AVX-512): see decode_block.h.
 *
 * A code of 4 bits has sixteen values, so scale * q has sixteen values in a block, which fit one register; for 5 bits they
 * fit two. One instruction that picks from one or two registers by the lowest 4 or 5 bits of each lane (VPERMPS, VPERMT2PS)
 * then converts and multiplies. It remains to bring field j into the lowest bits of lane j: the field begins at bit
 * (bits * j) % 8 of byte bits * j / 8 and lies within two bytes, so a shuffle brings both to the lane, which is then shifted.
 */
#include "quant/intblock.h"

#if WM_X86
#include <immintrin.h>

#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl")
#define SUFFIX x86_avx512
#define NARROWER x86_avx2
#define STREAMS 1
#define DECODES_MIXED 1
#define MASKS 1
enum { LANES = 16, LOAD = 16 };
typedef __m512 vector;

typedef struct {
    __m512i place, shift; /* which two bytes go to each lane, and how far down they move */
    __m512 low, high;     /* scale * q for fields 0 to 15, and for 16 to 31; for 8 bits the scale */
} decoder;

TARGET WM_INLINE decoder make_decoder(int bits) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i bit = _mm512_mullo_epi32(lane, _mm512_set1_epi32(bits)), byte = _mm512_srli_epi32(bit, 3);
    const __m512i both = _mm512_mullo_epi32(byte, _mm512_set1_epi32(0x0101)); /* that byte and the next; 0x80 makes 0 */
    return (decoder){.place = _mm512_add_epi32(both, _mm512_set1_epi32((int)0x80800100)),
                     .shift = _mm512_and_si512(bit, _mm512_set1_epi32(7))};
}

TARGET WM_INLINE __m512 load_scale_lanes(const uint8_t *at, int scale_type) {
    return scale_type == WM_SCALE_FP16 ? _mm512_cvtph_ps(_mm256_set1_epi16((short)load_le16(at)))
                                       : _mm512_set1_ps(float_of_bits(load_le32(at)));
}

/* Every q of this many bits, times s: for fields 0 to 15, and for 16 to 31. */
TARGET WM_INLINE void fill_tables(decoder *d, __m512 s, int bits) {
    const __m512 up = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 down = _mm512_setr_ps(-16, -15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1);
    const __m512 four = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    d->low = bits == 4 ? _mm512_mul_ps(s, four) : bits == 5 ? _mm512_mul_ps(s, up) : s;
    d->high = bits == 5 ? _mm512_mul_ps(s, down) : s;
}

TARGET WM_INLINE void set_scale(decoder *d, const uint8_t *at, int scale_type, int bits) {
    fill_tables(d, load_scale_lanes(at, scale_type), bits);
}

TARGET WM_INLINE vector decode_bytes(const decoder *d, __m128i bytes, int bits) {
    if (bits == 8) return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), d->low);
    const __m512i placed = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), d->place);
    const __m512i fields = _mm512_srlv_epi32(placed, d->shift);
    if (bits == 4) return _mm512_permutexvar_ps(fields, d->low);
    return _mm512_permutex2var_ps(d->low, fields, d->high);
}

TARGET WM_INLINE vector decode(const decoder *d, const uint8_t *codes, int bits) {
    return decode_bytes(d, _mm_loadu_si128((const __m128i *)(const void *)codes), bits);
}

TARGET WM_INLINE __m256i narrow(vector values) { return _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT); }

TARGET WM_INLINE void store(vector values, int half, uint8_t *out) {
    if (half)
        _mm256_storeu_si256((__m256i *)(void *)out, narrow(values));
    else
        _mm512_storeu_ps(out, values);
}

/* Elements outside the masks are neither read nor written. */
TARGET WM_INLINE void decode_few(const decoder *d, const uint8_t *codes, unsigned n, int bits, int half, uint8_t *out) {
    const __mmask16 bytes = (__mmask16)((1u << code_bytes(bits, n)) - 1), lanes = (__mmask16)((1u << n) - 1);
    const vector values = decode_bytes(d, _mm_maskz_loadu_epi8(bytes, codes), bits);
    if (half)
        _mm256_mask_storeu_epi16(out, lanes, narrow(values));
    else
        _mm512_mask_storeu_ps(out, lanes, values);
}

/* ---------------------------------------------------------------------------------------- past the caches */
typedef struct {
    __m512i carry, turn; /* the waiting elements, first; how to rotate a vector */
    __mmask16 wait;      /* which elements wait */
} stream;

TARGET WM_INLINE stream start_stream(const uint8_t *waiting, uint64_t bytes, int half) {
    const unsigned n = (unsigned)(bytes / value_bytes(half));
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i turn = _mm512_and_si512(_mm512_sub_epi32(lane, _mm512_set1_epi32((int)n)), _mm512_set1_epi32(15));
    return (stream){
        .carry = half ? _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)waiting))
                      : _mm512_loadu_si512(waiting),
        .turn = half ? _mm512_castsi256_si512(_mm512_cvtepi32_epi16(turn)) : turn,
        .wait = (__mmask16)((1u << n) - 1),
    };
}

TARGET WM_INLINE void stream_next(stream *s, vector values, int half, uint8_t *out) {
    if (!s->wait) {
        if (half)
            _mm256_stream_si256((__m256i *)(void *)out, narrow(values));
        else
            _mm512_stream_ps((float *)(void *)out, values);
    } else if (half) {
        const __m256i turned = _mm256_permutexvar_epi16(_mm512_castsi512_si256(s->turn), narrow(values));
        const __m256i whole = _mm256_mask_mov_epi16(turned, s->wait, _mm512_castsi512_si256(s->carry));
        _mm256_stream_si256((__m256i *)(void *)out, whole);
        s->carry = _mm512_castsi256_si512(turned);
    } else {
        const __m512i turned = _mm512_permutexvar_epi32(s->turn, _mm512_castps_si512(values));
        _mm512_stream_si512((__m512i *)(void *)out, _mm512_mask_mov_epi32(turned, s->wait, s->carry));
        s->carry = turned;
    }
}

TARGET WM_INLINE void end_stream(const stream *s, int half, uint8_t *waiting) {
    if (half)
        _mm256_storeu_si256((__m256i *)(void *)waiting, _mm512_castsi512_si256(s->carry));
    else
        _mm512_storeu_si512(waiting, s->carry);
}

/* ---------------------------------------------------------------------------------------- different kinds
 * Two registers of products decode a block of any kind; for 4 bits both are equal.
 */
typedef struct {
    decoder of[WM_KINDS]; /* for a scale of 1 */
} kinds_decoder;
typedef struct {
    decoder products;
    __mmask16 halves; /* all, or none */
} kind_decoder;

TARGET WM_INLINE kinds_decoder make_kinds(void) {
    kinds_decoder d = {.of = {make_decoder(4), make_decoder(5), make_decoder(5)}};
    const __m512 one = _mm512_set1_ps(1);
    fill_tables(&d.of[WM_INT4], one, 4);
    d.of[WM_INT4].high = d.of[WM_INT4].low;
    fill_tables(&d.of[WM_INT5], one, 5);
    fill_tables(&d.of[WM_HALF], one, 5);
    return d;
}

TARGET WM_INLINE kind_decoder make_kind(const kinds_decoder *kinds, int kind, const uint8_t *scale, int scale_type) {
    static const __mmask16 halves[WM_KINDS] = {0, 0, 0xFFFF, 0};
    const __m512 s = load_scale_lanes(scale, scale_type);
    kind_decoder d = {kinds->of[kind], halves[kind]};
    d.products.low = _mm512_mul_ps(s, d.products.low), d.products.high = _mm512_mul_ps(s, d.products.high);
    return d;
}

TARGET WM_INLINE vector decode_kind(const kind_decoder *d, const uint8_t *codes, const uint8_t *halves) {
    const __m512 products = decode(&d->products, codes, 5);
    return _mm512_mask_mov_ps(products, d->halves, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)halves)));
}

#include "quant/decode_block.h"
#endif
