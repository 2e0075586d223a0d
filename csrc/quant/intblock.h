/* Quantised blocks: how they lie, how many bytes they take, and one code out of a stream.
 *
 *   a block    [scale][codes]      value = scale * q, one multiplication of float32
 *   a code     q in two's complement of 4, 5 or 8 bits, back to back, the first in the lowest bits of byte 0
 *
 * So of two int4 the first is the low nibble, eight int5 take five bytes, and an int8 is a byte:
 *
 *     int5    byte 0      byte 1      byte 2      byte 3      byte 4
 *             11100000    32222211    44443333    66555554    77777666       (highest bit first)
 */
#ifndef WEIGHTMAP_INTBLOCK_H
#define WEIGHTMAP_INTBLOCK_H
#include "core/floats.h"

enum { WM_SCALE_FP32 = 0, WM_SCALE_FP16 = 1 }; /* as AMB numbers them */

/* Bytes of a decoded value. */
static inline uint64_t value_bytes(int half) { return half ? 2 : 4; }
static inline uint64_t scale_bytes(int scale_type) { return scale_type == WM_SCALE_FP16 ? 2 : 4; }
/* Bytes of n codes; n is at most 2^58. */
static inline uint64_t code_bytes(int bits, uint64_t n) { return (n * (uint64_t)bits + 7) / 8; }
/* Whether blocks of `size` codes are legal: each must end with a whole byte. */
static inline int block_is_legal(int bits, uint64_t size) {
    return size > 0 && size <= (uint64_t)1 << 32 && (bits != 4 || size % 2 == 0) && (bits != 5 || size % 8 == 0);
}

/* Code number k of a stream, k below 2^58. Reads only the bytes that hold it. */
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

/* Whether a scale is neither NaN nor infinite. Variants leave runs of other scales to intblock_portable. */
static inline int scale_is_finite(const uint8_t *p, int scale_type) {
    return scale_type == WM_SCALE_FP16 ? (load_le16(p) & 0x7C00) != 0x7C00 : (load_le32(p) & 0x7F800000) != 0x7F800000;
}
/* Counts the runs that have `load` bytes of data behind their codes. */
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

/* The kinds of blocks in an adaptive tensor, as the two bits in its mask number them. */
enum { WM_INT4 = 0, WM_INT5 = 1, WM_HALF = 2, WM_WRONG = 3, WM_KINDS = 4 };
static inline int wm_kind_at(const uint8_t *mask, uint64_t block) { return mask[block / 4] >> 2 * (block % 4) & 3; }
/* How many blocks of any kinds a variant may decode that reads up to `load` >= 4 bytes behind the codes of the longest kind,
 * and a scale also for a block without one. */
static inline uint64_t wm_mixed_within(const wm_mixed *m, uint64_t load) {
    if (m->codes > m->end || m->scales > m->scales_end || (uint64_t)(m->end - m->codes) < load) return 0;
    const uint64_t codes = ((uint64_t)(m->end - m->codes) - load) / (2 * m->len), remaining = m->last - m->next;
    const uint64_t scales = (uint64_t)(m->scales_end - m->scales) / scale_bytes(m->scale_type);
    const uint64_t fit = codes < scales ? codes : scales;
    return fit < remaining ? fit : remaining;
}

/* The output of one thread: where its next element goes, and as what. */
typedef struct {
    uint8_t *next;
    int half;    /* float16, not float32 */
    int storing; /* WM_CACHED or another */
} wm_sink;
/* Decodes the runs to the sink; see wm_intblock_fn. */
void wm_decode_runs(wm_sink *sink, const wm_runs *runs);
/* Decodes elements [at, stop) of these runs, which hold that many. */
void wm_decode_range(wm_sink *sink, const wm_runs *runs, uint64_t at, uint64_t stop);
/* Makes stores past the caches visible to other threads. */
void wm_sink_done(const wm_sink *sink);
/* Stores n float32 to the sink. */
void wm_sink_put(wm_sink *sink, const float *values, uint64_t n);

#endif
