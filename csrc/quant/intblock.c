/* Decoding of quantised blocks: the walk over blocks, and the loop over one in plain C. intblock.h says how they lie.
 *
 * A variant decodes runs of codes, one scale each (wm_intblock_fn). wm_decode_range finds the blocks that a range of elements
 * touches, for all variants.
 *
 * The bits of a result must not depend on the CPU. A product of finite numbers does not, but infinity times zero is a
 * negative NaN on x86 and a positive one on arm64. So a NaN in the result is always 0x7FC00000: every variant leaves runs
 * whose scale is NaN or infinite to the portable one, which sees to that.
 */
#include "quant/intblock.h"

enum {
    CHUNK = 2048,               /* elements in the buffer: 8 KiB */
    ELEMENTS_A_THREAD = 1 << 20 /* 4 MiB of float32 */
};

/* ------------------------------------------------------------------------------------------------ one run */
static inline float product(float scale, int32_t q) {
    const float value = scale * (float)q;
    return value != value ? float_of_bits(0x7FC00000) : value;
}

/* Codes [from, from + n) of a stream, with any scale: the plain loop. */
static void decode_any(float scale, const uint8_t *codes, uint64_t from, uint64_t n, int bits, float *out) {
    for (uint64_t i = 0; i < n; i++) out[i] = product(scale, code_at(codes, from + i, bits));
}

/* Two int4 for each byte: compilers make vector code of it. */
static void decode_int4(float scale, const uint8_t *codes, uint64_t n, float *out) {
    for (uint64_t i = 0; i < n / 2; i++) {
        out[2 * i] = scale * (float)(((codes[i] & 15) ^ 8) - 8);
        out[2 * i + 1] = scale * (float)((codes[i] >> 4 ^ 8) - 8);
    }
    if (n % 2) out[n - 1] = scale * (float)code_at(codes, n - 1, 4);
}

/* Eight int5 for each five bytes. */
static void decode_int5(float scale, const uint8_t *codes, uint64_t n, float *out) {
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8, codes += 5) {
        const uint32_t low = load_le32(codes); /* fields 0 to 5 and two bits of field 6 */
        for (unsigned k = 0; k < 6; k++) out[i + k] = scale * (float)(int32_t)(((low >> 5 * k & 31) ^ 16) - 16);
        const uint32_t high = low >> 30 | (uint32_t)codes[4] << 2;
        for (unsigned k = 6; k < 8; k++) out[i + k] = scale * (float)(int32_t)(((high >> 5 * (k - 6) & 31) ^ 16) - 16);
    }
    for (uint64_t k = 0; i < n; i++, k++) out[i] = scale * (float)code_at(codes, k, 5);
}

static void decode_floats(float scale, const uint8_t *codes, uint64_t n, int bits, float *out) {
    if (!is_finite(scale))
        decode_any(scale, codes, 0, n, bits, out);
    else if (bits == 4)
        decode_int4(scale, codes, n, out);
    else if (bits == 5)
        decode_int5(scale, codes, n, out);
    else
        for (uint64_t i = 0; i < n; i++) out[i] = scale * (float)(int8_t)codes[i];
}

static void decode_halves(float scale, const uint8_t *codes, uint64_t n, int bits, uint8_t *out) {
    float values[CHUNK];
    for (uint64_t part; n; n -= part, codes += code_bytes(bits, CHUNK), out += 2 * part) {
        part = n < CHUNK ? n : CHUNK;
        decode_floats(scale, codes, part, bits, values);
        narrow_portable(values, part, out);
    }
}

void intblock_portable(const wm_runs *w, void *out) {
    uint8_t *to = out;
    for (uint64_t r = 0; r < w->runs; r++, to += w->len * value_bytes(w->half)) {
        const uint8_t *codes = w->codes + r * w->stride;
        const float scale = load_scale(w->scales + r * w->scale_stride, w->scale_type);
        if (w->half)
            decode_halves(scale, codes, w->len, w->bits, to);
        else
            decode_floats(scale, codes, w->len, w->bits, (float *)(void *)to);
    }
}

/* -------------------------------------------------------------------------------------------------- output */
void narrow_portable(const float *values, uint64_t n, uint8_t *out) {
    for (uint64_t i = 0; i < n; i++) {
        const uint16_t half = narrow_float(values[i]);
#if WM_BIG_ENDIAN
        out[2 * i] = (uint8_t)half, out[2 * i + 1] = (uint8_t)(half >> 8);
#else
        memcpy(out + 2 * i, &half, 2);
#endif
    }
}

void wm_sink_put(wm_sink *sink, const float *values, uint64_t n) {
    if (sink->half)
        wm_variants_in_use()->narrow(values, n, sink->next);
    else
        memcpy(sink->next, values, n * sizeof *values);
    sink->next += n * value_bytes(sink->half);
}

/* ---------------------------------------------------------------------------------------------------- runs */
void wm_decode_runs(wm_sink *sink, const wm_runs *runs) {
    wm_runs w = *runs;
    w.half = sink->half, w.storing = sink->storing;
    wm_variants_in_use()->intblock(&w, sink->next);
    sink->next += w.runs * w.len * value_bytes(w.half);
}

/* In turn: the rest of a block, whole blocks, the beginning of one. */
void wm_decode_range(wm_sink *sink, const wm_runs *runs, uint64_t at, uint64_t stop) {
    while (at < stop) {
        const uint64_t block = at / runs->len, offset = at % runs->len, remaining = stop - at;
        wm_runs part = *runs;
        part.scales += block * runs->scale_stride;
        part.codes += block * runs->stride;
        uint64_t n = remaining < runs->len - offset ? remaining : runs->len - offset;
        if (offset == 0 && remaining >= runs->len) {
            part.runs = remaining / runs->len;
            wm_decode_runs(sink, &part);
            n = part.runs * runs->len;
        } else if (offset % 8) { /* up to the next code that begins on a byte */
            float values[8];
            n = n < 8 - offset % 8 ? n : 8 - offset % 8;
            decode_any(load_scale(part.scales, runs->scale_type), part.codes, offset, n, runs->bits, values);
            wm_sink_put(sink, values, n);
        } else {
            part.codes += code_bytes(runs->bits, offset);
            part.runs = 1, part.len = n;
            wm_decode_runs(sink, &part);
        }
        at += n;
    }
}

void wm_sink_done(const wm_sink *sink) { end_streaming(sink->storing == WM_STREAMED); }

/* ------------------------------------------------------------------------------------------- entry points */
int64_t wm_blocks_size(int bits, int scale_type, uint64_t block_size, uint64_t n) {
    const uint64_t max = (uint64_t)1 << 56;
    if ((bits != 4 && bits != 5 && bits != 8) || (scale_type != WM_SCALE_FP32 && scale_type != WM_SCALE_FP16)) return -1;
    if (n > max || (block_size && !block_is_legal(bits, block_size))) return -1;
    const uint64_t scale = scale_bytes(scale_type);
    if (block_size == 0) return (int64_t)(scale + code_bytes(bits, n));
    return (int64_t)(ceil_div(n, block_size) * (scale + code_bytes(bits, block_size)));
}

typedef struct {
    wm_runs runs;
    uint64_t first; /* the first element to decode */
    uint8_t *out;
    int half, storing;
} work;

static void decode_part(void *context, int number, uint64_t begin, uint64_t end) {
    const work *w = context;
    wm_sink sink = {w->out + begin * value_bytes(w->half), w->half, w->storing};
    wm_decode_range(&sink, &w->runs, w->first + begin, w->first + end);
    wm_sink_done(&sink);
}

int wm_blocks_decode(const uint8_t *data, uint64_t size, int bits, int scale_type, uint64_t block_size, uint64_t n,
                     uint64_t first, void *out, uint64_t count, int half, int threads) {
    const int64_t expected = wm_blocks_size(bits, scale_type, block_size, n);
    if (expected < 0 || (uint64_t)expected != size || first > n || count > n - first) return -1;
    if (count == 0) return 0;
    if (wm_overlap(data, size, out, count * value_bytes(half))) return -2;
    const uint64_t block = block_size ? block_size : n, scale = scale_bytes(scale_type);
    const uint64_t stride = scale + code_bytes(bits, block);
    work w = {.runs = {.scales = data,
                       .codes = data + scale,
                       .end = data + size,
                       .scale_stride = stride,
                       .stride = stride,
                       .len = block,
                       .scale_type = scale_type,
                       .bits = bits},
              .first = first,
              .out = out,
              .half = half,
              .storing = wm_how_to_store(code_bytes(bits, count), count * value_bytes(half))};
    wm_run_parts(decode_part, &w, count, 1024, ELEMENTS_A_THREAD, threads); /* parts of whole pages */
    return 0;
}
