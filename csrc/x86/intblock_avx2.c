/* Decoding of quantised blocks, eight elements at a time (AVX2), and rounding to float16 (F16C).
 *
 * Field j of eight begins at bit (bits * j) % 8 of byte bits * j / 8 and lies within two bytes. So both bytes go to lane j;
 * shifting the lane up until the field's sign is its highest bit, and down again, leaves q, which is converted and multiplied.
 */
#include "../intblock.h"

#if WM_X86
#include <immintrin.h>

#define TARGET WM_TARGET("avx2,f16c")
enum { LANES = 8, LOAD = 8, UNROLL = 4 };

typedef struct {
    __m256i place, shift; /* which two bytes go to each lane, and how far up they are moved */
} decoder;

TARGET WM_INLINE decoder make_decoder(int bits) {
    const __m256i bit = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(bits));
    const __m256i byte = _mm256_srli_epi32(bit, 3);
    const __m256i both = _mm256_mullo_epi32(byte, _mm256_set1_epi32(0x0101)); /* that byte and the next; 0x80 makes 0 */
    return (decoder){_mm256_add_epi32(both, _mm256_set1_epi32((int)0x80800100)),
                     _mm256_sub_epi32(_mm256_set1_epi32(32 - bits), _mm256_and_si256(bit, _mm256_set1_epi32(7)))};
}

/* Eight values, of fields that begin with the first of these eight bytes. */
TARGET WM_INLINE __m256 decode(const decoder *d, __m128i bytes, __m256 scale, int bits) {
    __m256i q;
    if (bits == 8) {
        q = _mm256_cvtepi8_epi32(bytes);
    } else {
        const __m256i placed = _mm256_shuffle_epi8(_mm256_broadcastq_epi64(bytes), d->place);
        q = _mm256_srai_epi32(_mm256_sllv_epi32(placed, d->shift), 32 - bits);
    }
    return _mm256_mul_ps(_mm256_cvtepi32_ps(q), scale);
}

TARGET WM_INLINE __m256 load_scale_lanes(const uint8_t *at, int scale_type) {
    return scale_type == WM_SCALE_FP16 ? _mm256_cvtph_ps(_mm_set1_epi16((short)load_le16(at)))
                                       : _mm256_set1_ps(float_of_bits(load_le32(at)));
}

/* Where eight values go. */
TARGET WM_INLINE void store(__m256 values, int half, int stream, uint8_t *out) {
    if (half) {
        const __m128i halves = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
        if (stream)
            _mm_stream_si128((__m128i *)(void *)out, halves);
        else
            _mm_storeu_si128((__m128i *)(void *)out, halves);
    } else if (stream) {
        _mm256_stream_ps((float *)(void *)out, values);
    } else {
        _mm256_storeu_ps((float *)(void *)out, values);
    }
}

/* Eight values for each of `groups` groups, with whole loads. Four groups in one turn: what a turn costs besides, and one
 * prefetch for each line, not for each store, are then no limit. */
TARGET WM_INLINE void decode_groups(const decoder *d, __m256 scale, const uint8_t *codes, uint64_t groups, int bits, int half,
                                    int stream, uint8_t *out) {
    const uint64_t step = (uint64_t)bits, size = LANES * value_bytes(half);
    for (; groups >= UNROLL; groups -= UNROLL, codes += UNROLL * step, out += UNROLL * size) {
        for (uint64_t i = 0; i < UNROLL; i++) {
            if (i * size % 64 == 0) PREFETCH(stream ? codes + i * step + WM_AHEAD : out + i * size + WM_AHEAD);
            store(decode(d, _mm_loadl_epi64((const __m128i *)(codes + i * step)), scale, bits), half, stream, out + i * size);
        }
    }
    for (uint64_t i = 0; i < groups; i++, codes += step, out += size) {
        if (i * size % 64 == 0) PREFETCH(stream ? codes + WM_AHEAD : out + WM_AHEAD);
        store(decode(d, _mm_loadl_epi64((const __m128i *)codes), scale, bits), half, stream, out);
    }
}

/* Run r, of any length, with any scale, and however near the end of the data. */
TARGET WM_INLINE void decode_one(const wm_runs *w, uint64_t r, int bits, int half, uint8_t *out) {
    const uint8_t *codes = w->codes + r * w->stride, *scales = w->scales + r * w->scale_stride;
    const uint64_t step = (uint64_t)(bits), room = (uint64_t)(w->end - codes), size = value_bytes(half);
    if (scale_is_odd(scales, w->scale_type)) {
        decode_odd(w, r, out);
        return;
    }
    const decoder d = make_decoder(bits);
    const __m256 scale = load_scale_lanes(scales, w->scale_type);
    /* A load takes eight bytes, whatever the codes take: those near the end of the data are copied first. */
    const uint64_t fit = room < LOAD ? 0 : (room - LOAD) / step + 1, whole = fit < w->len / LANES ? fit : w->len / LANES;
    decode_groups(&d, scale, codes, whole, bits, half, w->stream, out);
    codes += whole * step;
    out += whole * LANES * size;
    for (uint64_t left = w->len - whole * LANES; left;) {
        const uint64_t n = left < LANES ? left : LANES;
        uint8_t bytes[LOAD] = {0}, values[LANES * sizeof(float)];
        memcpy(bytes, codes, code_bytes(bits, n));
        store(decode(&d, _mm_loadl_epi64((const __m128i *)bytes), scale, bits), half, 0, values);
        memcpy(out, values, n * size);
        left -= n, codes += step, out += n * size;
    }
}

/* Up to `runs` runs that need no such care, of `len` codes; returns how many there were before an odd scale. */
TARGET WM_INLINE uint64_t decode_plain(const wm_runs *w, uint64_t runs, int bits, uint64_t len, int scale_type, int half,
                                        int stream, uint8_t *out) {
    const uint8_t *scales = w->scales, *codes = w->codes;
    const uint64_t scale_stride = w->scale_stride, stride = w->stride;
    const decoder d = make_decoder(bits);
    uint64_t r = 0;
    for (; r < runs; r++, scales += scale_stride, codes += stride, out += len * value_bytes(half)) {
        if (scale_is_odd(scales, scale_type)) break;
        decode_groups(&d, load_scale_lanes(scales, scale_type), codes, len / LANES, bits, half, stream, out);
    }
    return r;
}

TARGET WM_INLINE void decode_runs(const wm_runs *runs, int bits, int half, uint8_t *out) {
    for (wm_runs w = *runs; w.runs;) {
        uint64_t plain = w.len % LANES ? 0 : wm_runs_within(&w, LOAD);
        const int usual = plain && w.scale_type == WM_SCALE_FP16 && !w.stream;
        if (usual && w.len == 32) /* the usual blocks */
            plain = decode_plain(&w, plain, bits, 32, WM_SCALE_FP16, half, 0, out);
        else if (usual && w.len == 64)
            plain = decode_plain(&w, plain, bits, 64, WM_SCALE_FP16, half, 0, out);
        else if (plain)
            plain = decode_plain(&w, plain, bits, w.len, w.scale_type, half, w.stream, out);
        wm_runs_skip(&w, plain, &out);
        if (w.runs) { /* one that is odd, or near the end */
            decode_one(&w, 0, bits, half, out);
            wm_runs_skip(&w, 1, &out);
        }
    }
}

TARGET void intblock_x86_avx2(const wm_runs *runs, void *out) {
    DECODE_EACH_KIND(decode_runs, runs, out)
}

/* ------------------------------------------------------------------------------------------ different kinds
 * As in intblock_avx512.c: every block is decoded as integers and as float16, without a branch, and a mask chooses.
 */
TARGET WM_INLINE uint64_t decode_mixed(wm_mixed *blocks, int scale_type, int half, uint64_t len, uint8_t *out) {
    static const uint8_t steps[WM_KINDS] = {4, 5, 16, 0}; /* bytes of eight codes */
    const uint8_t scale_steps[WM_KINDS] = {(uint8_t)scale_bytes(scale_type), (uint8_t)scale_bytes(scale_type), 0, 0};
    wm_mixed m = *blocks;
    const decoder of[WM_KINDS] = {make_decoder(4), make_decoder(5), make_decoder(5)};
    const __m256i down[WM_KINDS] = {_mm256_set1_epi32(28), _mm256_set1_epi32(27)};
    const __m256 halves[WM_KINDS] = {[WM_HALF] = _mm256_castsi256_ps(_mm256_set1_epi32(-1))};
    for (uint64_t left = wm_mixed_within(&m, LOAD); left; left = --left ? left : wm_mixed_within(&m, LOAD)) {
        const int kind = wm_kind_at(m.mask, m.next);
        if (kind == WM_WRONG || scale_is_odd(m.scales, scale_type)) break;
        const __m256 scale = load_scale_lanes(m.scales, scale_type);
        for (uint64_t i = 0; i < len / LANES; i++, out += LANES * value_bytes(half)) {
            PREFETCH(out + WM_AHEAD);
            const __m128i bytes = _mm_loadl_epi64((const __m128i *)(m.codes + i * steps[kind]));
            const __m256i placed = _mm256_shuffle_epi8(_mm256_broadcastq_epi64(bytes), of[kind].place);
            const __m256i q = _mm256_srav_epi32(_mm256_sllv_epi32(placed, of[kind].shift), down[kind]);
            const __m256 products = _mm256_mul_ps(_mm256_cvtepi32_ps(q), scale);
            const __m256 floats = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(m.codes + i * 2 * LANES)));
            store(_mm256_blendv_ps(products, floats, halves[kind]), half, 0, out);
        }
        m.codes += len / LANES * steps[kind];
        m.scales += scale_steps[kind];
        m.next++;
    }
    const uint64_t done = m.next - blocks->next;
    *blocks = m;
    return done;
}

TARGET uint64_t mixed_x86_avx2(wm_mixed *blocks, void *out) {
    if (blocks->len == 32 && blocks->scale_type == WM_SCALE_FP16 && !blocks->half) /* the usual block */
        return decode_mixed(blocks, WM_SCALE_FP16, 0, 32, out);
    return decode_mixed(blocks, blocks->scale_type, blocks->half, blocks->len, out);
}

TARGET void narrow_x86_avx2(const float *values, uint64_t n, uint8_t *out) {
    for (; n >= LANES; n -= LANES, values += LANES, out += 2 * LANES)
        _mm_storeu_si128((__m128i *)out, _mm256_cvtps_ph(_mm256_loadu_ps(values), _MM_FROUND_TO_NEAREST_INT));
    narrow_portable(values, n, out);
}
#endif
