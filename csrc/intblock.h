/* What the files about quantised blocks share: float16 as bits, sizes of codes, one code out of a stream.
 *
 *   data of a block    [scale][codes]      value = scale * q, one multiplication of float32
 *   q                  two's complement of 4, 5 or 8 bits, back to back, the first one in the lowest bits of byte 0
 *
 * So of two int4 the first one is the low nibble, eight int5 take five bytes, and an int8 is a byte.
 */
#ifndef WEIGHTMAP_INTBLOCK_H
#define WEIGHTMAP_INTBLOCK_H
#include "internal.h"

enum { WM_SCALE_FP32 = 0, WM_SCALE_FP16 = 1 }; /* the codes that AMB has for them */

/* Bytes of a decoded value. */
static inline uint64_t value_bytes(int half) { return half ? 2 : 4; }
static inline uint64_t scale_bytes(int scale_type) { return scale_type == WM_SCALE_FP16 ? 2 : 4; }
/* Bytes of n codes; n is at most 2^58. */
static inline uint64_t code_bytes(int bits, uint64_t n) { return (n * (uint64_t)bits + 7) / 8; }
/* Whether blocks of so many codes of so many bits are legal: each then ends with a whole byte. */
static inline int block_is_legal(int bits, uint64_t size) {
    return size > 0 && size <= (uint64_t)1 << 32 && (bits != 4 || size % 2 == 0) && (bits != 5 || size % 8 == 0);
}

static inline float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline uint32_t bits_of_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}
static inline int is_finite(float f) { return (bits_of_float(f) & 0x7F800000) != 0x7F800000; }

/* The bits of a float16 to those of a float32, exactly; a NaN keeps sign and fraction and becomes quiet. Masks and no choices,
 * so that compilers make vector code of a loop over it. */
static inline uint32_t widen_half_bits(uint32_t half) {
    const int32_t magnitude = (int32_t)(half & 0x7FFF);
    const uint32_t special = 0u - (uint32_t)(magnitude >= 0x7C00), nan = 0u - (uint32_t)(magnitude > 0x7C00);
    const uint32_t small = 0u - (uint32_t)(magnitude < 0x0400);           /* all ones, or zero */
    const uint32_t multiple = bits_of_float((float)magnitude * 0x1p-24f); /* exact in every mode: no operand is subnormal */
    const uint32_t moved = ((uint32_t)magnitude << 13) + (112u << 23) + (special & (112u << 23));
    return (small & multiple) | (~small & (moved | (nan & (1u << 22)))) | (half & 0x8000) << 16;
}
static inline float widen_half(uint32_t half) { return float_of_bits(widen_half_bits(half)); }

/* float32 to float16, the nearest, of two equally near ones the even one, infinity from 65520 on; a NaN becomes quiet and
 * keeps its sign and the upper bits of its fraction. */
static inline uint16_t narrow_float(float value) {
    const uint32_t bits = bits_of_float(value), magnitude = bits & 0x7FFFFFFF, sign = bits >> 16 & 0x8000;
    /* Adding half of what is cut off, or a little less when the last bit kept is 0, makes the carry round. */
    uint32_t rounded = (magnitude - (112u << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13;
    rounded = magnitude >= 0x477FF000 ? 0x7C00 : rounded;
    rounded = magnitude > 0x7F800000 ? (0x7E00 | (magnitude >> 13 & 0x3FF)) : rounded;
    /* Below 2^-14 halves are multiples of 2^-24: so are the last places of floats from 0.5 to 1. */
    const uint32_t tiny = bits_of_float(float_of_bits(magnitude < 0x38800000 ? magnitude : 0) + 0.5f) - 0x3F000000;
    return (uint16_t)(sign | (magnitude < 0x38800000 ? tiny : rounded));
}

/* Code number k of a stream, k below 2^58; reads only bytes that hold it. */
static inline int32_t code_at(const uint8_t *codes, uint64_t k, int bits) {
    const uint64_t bit = k * (uint64_t)bits;
    const uint8_t *p = codes + bit / 8;
    const unsigned shift = (unsigned)(bit % 8);
    uint32_t window = p[0];
    if (shift + (unsigned)bits > 8) window |= (uint32_t)p[1] << 8;
    const int32_t sign = 1 << (bits - 1), field = (int32_t)(window >> shift) & (2 * sign - 1);
    return (field ^ sign) - sign;
}

/* The scale of a block at any address. */
static inline float load_scale(const uint8_t *p, int scale_type) {
    return scale_type == WM_SCALE_FP16 ? widen_half(load_le16(p)) : float_of_bits(load_le32(p));
}

/* Whether a scale is neither NaN nor infinite. Variants leave runs with other scales to the plain way. */
static inline int scale_is_finite(const uint8_t *p, int scale_type) {
    return scale_type == WM_SCALE_FP16 ? (load_le16(p) & 0x7C00) != 0x7C00 : (load_le32(p) & 0x7F800000) != 0x7F800000;
}
/* How many of the runs end, with their codes, `load` bytes before the end of the data or earlier. */
static inline uint64_t wm_runs_within(const wm_runs *w, uint64_t load) {
    const uint64_t room = (uint64_t)(w->end - w->codes), need = code_bytes(w->bits, w->len) + load;
    if (room < need) return 0;
    if (w->stride == 0 || w->runs == 1) return w->runs;
    const uint64_t fit = (room - need) / w->stride + 1;
    return fit < w->runs ? fit : w->runs;
}
/* Steps over n runs, and over their output. */
static inline void wm_runs_skip(wm_runs *w, uint64_t n, uint8_t **out) {
    w->scales += n * w->scale_stride, w->codes += n * w->stride, w->runs -= n;
    *out += n * w->len * value_bytes(w->half);
}

/* The kinds of blocks in an adaptive tensor, by the two bits of its mask. */
enum { WM_INT4 = 0, WM_INT5 = 1, WM_HALF = 2, WM_WRONG = 3, WM_KINDS = 4 };
static inline int wm_kind_at(const uint8_t *mask, uint64_t block) { return mask[block / 4] >> 2 * (block % 4) & 3; }
/* How many of the blocks a variant may decode, whatever their kinds, if it reads up to `load` >= 4 bytes behind the codes of
 * the longest kind, and the place of a scale for a block that has none. */
static inline uint64_t wm_mixed_within(const wm_mixed *m, uint64_t load) {
    if (m->codes > m->end || m->scales > m->scales_end || (uint64_t)(m->end - m->codes) < load) return 0;
    const uint64_t codes = ((uint64_t)(m->end - m->codes) - load) / (2 * m->len), left = m->last - m->next;
    const uint64_t scales = (uint64_t)(m->scales_end - m->scales) / scale_bytes(m->scale_type);
    const uint64_t fit = codes < scales ? codes : scales;
    return fit < left ? fit : left;
}

/* Output, in the units of one thread: where the next element goes and how. */
typedef struct {
    uint8_t *next;
    int half;   /* float16, not float32 */
    int stream; /* store past the caches */
} wm_sink;
/* Decodes to the sink; see wm_intblock_fn. */
void wm_decode_runs(wm_sink *sink, const wm_runs *runs);
/* Decodes elements [at, stop) of what these runs hold, of which there are enough. */
void wm_decode_range(wm_sink *sink, const wm_runs *runs, uint64_t at, uint64_t stop);
/* Makes what was stored past the caches visible to others. */
void wm_sink_done(const wm_sink *sink);
/* Whether two pieces of memory overlap. */
static inline int wm_overlap(const void *a, uint64_t a_size, const void *b, uint64_t b_size) {
    const uint64_t first = (uint64_t)(uintptr_t)a, second = (uint64_t)(uintptr_t)b;
    return a_size && b_size && first < second + b_size && second < first + a_size;
}
/* Moves n float32 to the sink. */
void wm_sink_put(wm_sink *sink, const float *values, uint64_t n);

#endif
