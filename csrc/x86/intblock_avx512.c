/* Decoding of quantised blocks, sixteen elements at a time (AVX-512).
 *
 * Codes of 4 bits have sixteen values, so scale * q has sixteen values in a block, which fit one register; those of 5 bits
 * fit two. An instruction that picks from one or two registers by the lowest 4 or 5 bits of each lane (VPERMPS, VPERMT2PS)
 * then does conversion and multiplication at once. What remains is to bring field j into the lowest bits of lane j: it begins
 * at bit (bits * j) % 8 of byte bits * j / 8 and lies within two bytes. So both bytes go to the lane, which is then shifted.
 */
#include "../intblock.h"

#if WM_X86
#include <immintrin.h>

#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl")
enum { LANES = 16, LOAD = 16, UNROLL = 4 };

typedef struct {
    __m512i place, shift; /* which two bytes go to each lane, and how far down they are moved */
    __m512 low, high;     /* scale * q for fields 0 to 15, and for 16 to 31; without table: the scale */
} decoder;

TARGET WM_INLINE decoder make_decoder(int bits) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i bit = _mm512_mullo_epi32(lane, _mm512_set1_epi32(bits)), byte = _mm512_srli_epi32(bit, 3);
    const __m512i both = _mm512_mullo_epi32(byte, _mm512_set1_epi32(0x0101)); /* that byte and the next; 0x80 makes 0 */
    return (decoder){.place = _mm512_add_epi32(both, _mm512_set1_epi32((int)0x80800100)),
                     .shift = _mm512_and_si512(bit, _mm512_set1_epi32(7))};
}

TARGET WM_INLINE void set_scale(decoder *d, const uint8_t *at, int scale_type, int bits) {
    const __m512 s = scale_type == WM_SCALE_FP16 ? _mm512_cvtph_ps(_mm256_set1_epi16((short)load_le16(at)))
                                                 : _mm512_set1_ps(float_of_bits(load_le32(at)));
    const __m512 up = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 down = _mm512_setr_ps(-16, -15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1);
    const __m512 four = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    d->low = bits == 4 ? _mm512_mul_ps(s, four) : bits == 5 ? _mm512_mul_ps(s, up) : s;
    d->high = bits == 5 ? _mm512_mul_ps(s, down) : s;
}

/* Sixteen values, of fields that begin with the first of these bytes. */
TARGET WM_INLINE __m512 decode(const decoder *d, __m128i bytes, int bits) {
    if (bits == 8) return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), d->low);
    const __m512i placed = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), d->place);
    const __m512i fields = _mm512_srlv_epi32(placed, d->shift);
    if (bits == 4) return _mm512_permutexvar_ps(fields, d->low);
    return _mm512_permutex2var_ps(d->low, fields, d->high);
}

/* Where sixteen values go that begin a line of the cache, or half of one. */
TARGET WM_INLINE void store(__m512 values, int half, int stream, uint8_t *out) {
    if (half) {
        const __m256i halves = _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
        if (stream)
            _mm256_stream_si256((__m256i *)(void *)out, halves);
        else
            _mm256_storeu_si256((__m256i *)(void *)out, halves);
    } else if (stream) {
        _mm512_stream_ps((float *)(void *)out, values);
    } else {
        _mm512_storeu_ps(out, values);
    }
}

/* Sixteen values for each of `groups` groups, with whole loads. Four groups in one turn: what a turn costs besides, and one
 * prefetch for each line, not for each store, are then no limit. */
TARGET WM_INLINE void decode_groups(const decoder *d, const uint8_t *codes, uint64_t groups, int bits, int half, int stream,
                                    uint8_t *out) {
    const uint64_t step = (uint64_t)(LANES / 8 * bits), size = LANES * value_bytes(half);
    for (; groups >= UNROLL; groups -= UNROLL, codes += UNROLL * step, out += UNROLL * size) {
        for (uint64_t i = 0; i < UNROLL; i++) {
            if (i * size % 64 == 0) PREFETCH(stream ? codes + i * step + WM_AHEAD : out + i * size + WM_AHEAD);
            store(decode(d, _mm_loadu_si128((const __m128i *)(codes + i * step)), bits), half, stream, out + i * size);
        }
    }
    for (uint64_t i = 0; i < groups; i++, codes += step, out += size) {
        if (i * size % 64 == 0) PREFETCH(stream ? codes + WM_AHEAD : out + WM_AHEAD);
        store(decode(d, _mm_loadu_si128((const __m128i *)codes), bits), half, stream, out);
    }
}

/* Run r, of any length, with any scale, and however near the end of the data. */
TARGET WM_INLINE void decode_one(const wm_runs *w, uint64_t r, int bits, int half, uint8_t *out) {
    const uint8_t *codes = w->codes + r * w->stride, *scales = w->scales + r * w->scale_stride;
    const uint64_t step = (uint64_t)(LANES / 8 * bits), room = (uint64_t)(w->end - codes), size = value_bytes(half);
    if (scale_is_odd(scales, w->scale_type)) {
        decode_odd(w, r, out);
        return;
    }
    decoder d = make_decoder(bits);
    set_scale(&d, scales, w->scale_type, bits);
    /* A load takes sixteen bytes, whatever the codes take: those near the end of the data are loaded with a mask. */
    const uint64_t fit = room < LOAD ? 0 : (room - LOAD) / step + 1, whole = fit < w->len / LANES ? fit : w->len / LANES;
    decode_groups(&d, codes, whole, bits, half, w->stream, out);
    codes += whole * step;
    out += whole * LANES * size;
    for (uint64_t left = w->len - whole * LANES; left;) {
        const unsigned n = left < LANES ? (unsigned)left : LANES;
        const __mmask16 bytes = (__mmask16)((1u << code_bytes(bits, n)) - 1), lanes = (__mmask16)((1u << n) - 1);
        const __m512 values = decode(&d, _mm_maskz_loadu_epi8(bytes, codes), bits);
        if (half)
            _mm256_mask_storeu_epi16(out, lanes, _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
        else
            _mm512_mask_storeu_ps(out, lanes, values);
        left -= n, codes += step, out += n * size;
    }
}

/* Up to `runs` runs that need no such care, of `len` codes; returns how many there were before an odd scale. */
TARGET WM_INLINE uint64_t decode_plain(const wm_runs *w, uint64_t runs, int bits, uint64_t len, int scale_type, int half,
                                        int stream, uint8_t *out) {
    const uint8_t *scales = w->scales, *codes = w->codes;
    const uint64_t scale_stride = w->scale_stride, stride = w->stride;
    decoder d = make_decoder(bits);
    uint64_t r = 0;
    for (; r < runs; r++, scales += scale_stride, codes += stride, out += len * value_bytes(half)) {
        if (scale_is_odd(scales, scale_type)) break;
        set_scale(&d, scales, scale_type, bits);
        decode_groups(&d, codes, len / LANES, bits, half, stream, out);
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

TARGET void intblock_x86_avx512(const wm_runs *runs, void *out) {
    DECODE_EACH_KIND(decode_runs, runs, out)
}

/* ------------------------------------------------------------------------------------------ different kinds
 * The kind of a block cannot be foretold, and a branch that is foretold wrongly takes longer than a block. So there is none:
 * all blocks are decoded by two registers of products, which for 4 bits are equal, and as float16 too, and a mask chooses. A
 * block of float16 has no scale; that of the next block is read and not used.
 */
TARGET WM_INLINE uint64_t decode_mixed(wm_mixed *blocks, int scale_type, int half, uint64_t len, uint8_t *out) {
    static const uint8_t steps[WM_KINDS] = {8, 10, 32, 0}; /* bytes of sixteen codes */
    const uint8_t scale_steps[WM_KINDS] = {(uint8_t)scale_bytes(scale_type), (uint8_t)scale_bytes(scale_type), 0, 0};
    static const __mmask16 halves[WM_KINDS] = {0, 0, 0xFFFF, 0};
    static const uint8_t one[4] = {0, 0, 0x80, 0x3F}; /* as a float */
    wm_mixed m = *blocks;
    decoder of[WM_KINDS] = {make_decoder(4), make_decoder(5), make_decoder(5)};
    set_scale(&of[WM_INT4], one, WM_SCALE_FP32, 4);
    of[WM_INT4].high = of[WM_INT4].low;
    set_scale(&of[WM_INT5], one, WM_SCALE_FP32, 5);
    set_scale(&of[WM_HALF], one, WM_SCALE_FP32, 5);
    for (uint64_t left = wm_mixed_within(&m, LOAD); left; left = --left ? left : wm_mixed_within(&m, LOAD)) {
        const int kind = wm_kind_at(m.mask, m.next);
        if (kind == WM_WRONG || scale_is_odd(m.scales, scale_type)) break;
        const __m512 s = scale_type == WM_SCALE_FP16 ? _mm512_cvtph_ps(_mm256_set1_epi16((short)load_le16(m.scales)))
                                                     : _mm512_set1_ps(float_of_bits(load_le32(m.scales)));
        decoder d = of[kind];
        d.low = _mm512_mul_ps(s, d.low), d.high = _mm512_mul_ps(s, d.high);
        for (uint64_t i = 0; i < len / LANES; i++, out += LANES * value_bytes(half)) {
            PREFETCH(out + WM_AHEAD);
            const __m512 products = decode(&d, _mm_loadu_si128((const __m128i *)(m.codes + i * steps[kind])), 5);
            const __m512 floats = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(m.codes + i * 2 * LANES)));
            store(_mm512_mask_mov_ps(products, halves[kind], floats), half, 0, out);
        }
        m.codes += len / LANES * steps[kind];
        m.scales += scale_steps[kind];
        m.next++;
    }
    const uint64_t done = m.next - blocks->next;
    *blocks = m;
    return done;
}

TARGET uint64_t mixed_x86_avx512(wm_mixed *blocks, void *out) {
    if (blocks->len % LANES) return mixed_x86_avx2(blocks, out);
    if (blocks->len == 32 && blocks->scale_type == WM_SCALE_FP16 && !blocks->half) /* the usual block */
        return decode_mixed(blocks, WM_SCALE_FP16, 0, 32, out);
    return decode_mixed(blocks, blocks->scale_type, blocks->half, blocks->len, out);
}
#endif
