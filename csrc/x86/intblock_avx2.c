/* Decoding of quantised blocks, eight elements at a time (AVX2), and rounding to float16 (F16C): see decode_block.h.
 *
 * Field j of eight begins at bit (bits * j) % 8 of byte bits * j / 8 and lies within two bytes. A shuffle brings both bytes to
 * lane j. Shifting the lane up until the field's sign is its highest bit, and down again, leaves q, to convert and multiply.
 */
#include "quant/intblock.h"

#if WM_X86
#include <immintrin.h>

#define TARGET WM_TARGET("avx2,f16c")
#define SUFFIX x86_avx2
#define STREAMS 1
#define DECODES_MIXED 1
enum { LANES = 8, LOAD = 8 };
typedef __m256 vector;

typedef struct {
    __m256i place, shift; /* which two bytes go to each lane, and how far up they move */
    __m256 scale;
} decoder;

TARGET WM_INLINE decoder make_decoder(int bits) {
    const __m256i bit = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(bits));
    const __m256i byte = _mm256_srli_epi32(bit, 3);
    const __m256i both = _mm256_mullo_epi32(byte, _mm256_set1_epi32(0x0101)); /* that byte and the next; 0x80 makes 0 */
    return (decoder){.place = _mm256_add_epi32(both, _mm256_set1_epi32((int)0x80800100)),
                     .shift = _mm256_sub_epi32(_mm256_set1_epi32(32 - bits), _mm256_and_si256(bit, _mm256_set1_epi32(7)))};
}

TARGET WM_INLINE void set_scale(decoder *d, const uint8_t *at, int scale_type, int bits) {
    d->scale = scale_type == WM_SCALE_FP16 ? _mm256_cvtph_ps(_mm_set1_epi16((short)load_le16(at)))
                                           : _mm256_set1_ps(float_of_bits(load_le32(at)));
}

TARGET WM_INLINE vector decode(const decoder *d, const uint8_t *codes, int bits) {
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)codes);
    __m256i q;
    if (bits == 8) {
        q = _mm256_cvtepi8_epi32(bytes);
    } else {
        const __m256i placed = _mm256_shuffle_epi8(_mm256_broadcastq_epi64(bytes), d->place);
        q = _mm256_srai_epi32(_mm256_sllv_epi32(placed, d->shift), 32 - bits);
    }
    return _mm256_mul_ps(_mm256_cvtepi32_ps(q), d->scale);
}

TARGET WM_INLINE __m128i narrow(vector values) { return _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT); }

TARGET WM_INLINE void store(vector values, int half, uint8_t *out) {
    if (half)
        _mm_storeu_si128((__m128i *)(void *)out, narrow(values));
    else
        _mm256_storeu_ps((float *)(void *)out, values);
}

/* ---------------------------------------------------------------------------------------- past the caches */
typedef struct {
    __m256i carry, turn, wait; /* the waiting elements, first; how to rotate a vector; all ones where elements wait */
    uint64_t bytes;            /* how many bytes wait */
} stream;

TARGET WM_INLINE stream start_stream(const uint8_t *waiting, uint64_t bytes, int half) {
    uint8_t turn[32], wait[32];
    const uint64_t size = half ? 16 : 32;
    for (uint64_t i = 0; i < 32; i++) wait[i] = i < bytes ? 0xFF : 0, turn[i] = (uint8_t)((i - bytes) % size);
    if (!half) /* count floats, not bytes */
        for (uint64_t i = 0; i < 8; i++) turn[4 * i] /= 4, turn[4 * i + 1] = turn[4 * i + 2] = turn[4 * i + 3] = 0;
    return (stream){
        .carry = half ? _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)waiting))
                      : _mm256_loadu_si256((const __m256i *)(const void *)waiting),
        .turn = _mm256_loadu_si256((const __m256i *)(const void *)turn),
        .wait = _mm256_loadu_si256((const __m256i *)(const void *)wait),
        .bytes = bytes,
    };
}

TARGET WM_INLINE void stream_next(stream *s, vector values, int half, uint8_t *out) {
    if (!s->bytes) {
        if (half)
            _mm_stream_si128((__m128i *)(void *)out, narrow(values));
        else
            _mm256_stream_ps((float *)(void *)out, values);
    } else if (half) {
        const __m128i turned = _mm_shuffle_epi8(narrow(values), _mm256_castsi256_si128(s->turn));
        const __m128i carry = _mm256_castsi256_si128(s->carry), wait = _mm256_castsi256_si128(s->wait);
        _mm_stream_si128((__m128i *)(void *)out, _mm_blendv_epi8(turned, carry, wait));
        s->carry = _mm256_castsi128_si256(turned);
    } else {
        const __m256 turned = _mm256_permutevar8x32_ps(values, s->turn), carry = _mm256_castsi256_ps(s->carry);
        _mm256_stream_ps((float *)(void *)out, _mm256_blendv_ps(turned, carry, _mm256_castsi256_ps(s->wait)));
        s->carry = _mm256_castps_si256(turned);
    }
}

TARGET WM_INLINE void end_stream(const stream *s, int half, uint8_t *waiting) {
    if (half)
        _mm_storeu_si128((__m128i *)(void *)waiting, _mm256_castsi256_si128(s->carry));
    else
        _mm256_storeu_si256((__m256i *)(void *)waiting, s->carry);
}

/* ---------------------------------------------------------------------------------------- different kinds */
typedef struct {
    __m256i place, up, down;
    __m256 scale, halves; /* all ones, or zero */
} kind_decoder;
typedef struct {
    kind_decoder of[WM_KINDS];
} kinds_decoder;

TARGET WM_INLINE kinds_decoder make_kinds(void) {
    const decoder four = make_decoder(4), five = make_decoder(5);
    const __m256 none = _mm256_setzero_ps(), all = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    return (kinds_decoder){{{four.place, four.shift, _mm256_set1_epi32(28), none, none},
                            {five.place, five.shift, _mm256_set1_epi32(27), none, none},
                            {five.place, five.shift, _mm256_set1_epi32(27), none, all}}};
}

TARGET WM_INLINE kind_decoder make_kind(const kinds_decoder *kinds, int kind, const uint8_t *scale, int scale_type) {
    decoder one;
    set_scale(&one, scale, scale_type, 0);
    kind_decoder d = kinds->of[kind];
    d.scale = one.scale;
    return d;
}

TARGET WM_INLINE vector decode_kind(const kind_decoder *d, const uint8_t *codes, const uint8_t *halves) {
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)codes);
    const __m256i placed = _mm256_shuffle_epi8(_mm256_broadcastq_epi64(bytes), d->place);
    const __m256i q = _mm256_srav_epi32(_mm256_sllv_epi32(placed, d->up), d->down);
    const __m256 products = _mm256_mul_ps(_mm256_cvtepi32_ps(q), d->scale);
    return _mm256_blendv_ps(products, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)halves)), d->halves);
}

#include "quant/decode_block.h"

TARGET void narrow_x86_avx2(const float *values, uint64_t n, uint8_t *out) {
    for (; n >= LANES; n -= LANES, values += LANES, out += 2 * LANES)
        _mm_storeu_si128((__m128i *)(void *)out, narrow(_mm256_loadu_ps(values)));
    narrow_portable(values, n, out);
}
#endif
