/* Decodes ggml's blocks: the walk over blocks, the destination of the output, and the portable decoder.
 *
 * A variant decodes whole blocks (wm_ggml_fn). This file does the rest for all variants: ranges that begin or end within a block,
 * output as float16, and stores that bypass the caches if the output begins within a line.
 */
#include "quant/ggml.h"

/* ------------------------------------------------------------------------------------------------- portable C */
#define TARGET
#define SUFFIX portable

typedef struct {
    uint8_t at[32];
} codes;

#define EACH(value)                                          \
    codes r;                                                 \
    for (int i = 0; i < 32; i++) r.at[i] = (uint8_t)(value); \
    return r

static inline codes load32(const uint8_t *p) { EACH(p[i]); }
static inline codes nibbles(const uint8_t *p) { EACH(i < 16 ? p[i] & 15 : p[i - 16] >> 4); }
static inline codes nibbles8(const uint8_t *p) { EACH(p[i / 16 * 8 + i % 8] >> (i % 16 / 8 * 4) & 15); }
static inline codes of_words(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    const uint64_t words[4] = {a, b, c, d};
    EACH(words[i / 8] >> i % 8 * 8);
}
static inline codes bits(uint32_t word, int value) { EACH(word >> i & 1 ? value : 0); }
static inline codes field(codes c, int shift, int mask) {
    if (shift < 0) {
        EACH(c.at[i] << -shift & mask);
    }
    EACH(c.at[i] >> shift & mask);
}
static inline codes plus(codes c, int n) { EACH(c.at[i] + n); }
static inline codes add(codes a, codes b) { EACH(a.at[i] + b.at[i]); }
static inline codes negate(codes c, uint32_t word) { EACH(word >> i & 1 ? -c.at[i] : c.at[i]); }
static inline codes lookup(const int8_t *table, codes c) { EACH(table[c.at[i]]); }
static inline float half_at(const uint8_t *p) { return widen_half(load_le16(p)); }

/* Gives every NaN the same bits on every CPU. */
static inline float number(float value) { return value != value ? float_of_bits(0x7FC00000) : value; }

static inline void products(float *out, uint64_t v, uint64_t w, float a, float b) {
    for (int i = 0; i < 8; i++) out[i] = a * (float)(int8_t)(v >> 8 * i), out[8 + i] = b * (float)(int8_t)(w >> 8 * i);
}
static inline void put(float *out, codes c, float s, float t) {
    for (int i = 0; i < 16; i++) out[i] = number(s * (float)(int8_t)c.at[i]);
    for (int i = 16; i < 32; i++) out[i] = number(t * (float)(int8_t)c.at[i]);
}
static inline void put_sum(float *out, codes c, float s, float x, float t, float y) {
    for (int i = 0; i < 16; i++) out[i] = number(s * (float)(int8_t)c.at[i] + x);
    for (int i = 16; i < 32; i++) out[i] = number(t * (float)(int8_t)c.at[i] + y);
}

static inline void put_trits(float *out, int step, const uint8_t *p, int n, float d) {
    uint8_t remaining[16];
    memcpy(remaining, p, sizeof remaining);
    for (int k = 0; k < n; k++)
        for (int i = 0; i < 16; i++) {
            const int thrice = 3 * remaining[i];
            out[step * k + i] = number(d * (float)((thrice >> 8) - 1));
            remaining[i] = (uint8_t)thrice;
        }
}

#include "quant/ggml_blocks.h"

/* Portable C has no stores that bypass the caches. */
void ggml_streamed_portable(int type, const uint8_t *b, uint64_t n, float *out, int storing) {
    ggml_portable(type, b, n, out, WM_CACHED);
}

void stream_portable(const float *values, float *out, uint64_t lines) { memcpy(out, values, lines * 64); }

/* ------------------------------------------------------------------------------------------------------ output */
enum {
    LINE = 16,   /* floats */
    CHUNK = 512, /* floats decoded before they are moved on: they stay in the first-level cache */
    ELEMENTS_A_THREAD = 1 << 20
};

/* The destination of floats. `room` returns where to write the next ones and how many fit; `took` accepts the written floats.
 *
 *   float32      written straight to the output
 *   float16      written to `values`, then rounded into the output
 *   streaming    whole blocks from the beginning of a line on straight to the output, past the caches. Others are written to
 *                `values` and moved on as whole lines: `values` is aligned to a line, and floats that do not fill one wait at its
 *                beginning
 */
typedef struct {
    uint8_t *out; /* place of the next value to move on; when streaming, the beginning of its line */
    int half, storing;
    unsigned waiting; /* floats in `values`; when streaming, less than a line */
    unsigned foreign; /* floats of the first line that lie before the output */
    float *values;
} sink;

static int streams(const sink *s) { return s->storing == WM_STREAMED; }

static void open_sink(sink *s) {
    if (!streams(s)) return;
    s->foreign = s->waiting = (unsigned)((uintptr_t)s->out / sizeof(float) % LINE);
    s->out -= s->foreign * sizeof(float);
}

static float *room(const sink *s, uint64_t *free) {
    *free = CHUNK;
    if (s->half || streams(s)) return s->values + s->waiting;
    *free = UINT64_MAX;
    return (float *)(void *)s->out;
}

static void took(sink *s, uint64_t n) {
    if (s->half) {
        wm_variants_in_use()->narrow(s->values, n, s->out);
        s->out += 2 * n;
        return;
    }
    if (!streams(s)) {
        s->out += n * sizeof(float);
        return;
    }
    const unsigned all = s->waiting + (unsigned)n;
    s->waiting = all % LINE;
    if (all < LINE) return;
    const float *from = s->values;
    unsigned lines = all / LINE;
    if (s->foreign) { /* the first line begins before the output */
        memcpy(s->out + s->foreign * sizeof(float), from + s->foreign, (LINE - s->foreign) * sizeof(float));
        s->foreign = 0, s->out += LINE * sizeof(float), from += LINE, lines--;
    }
    wm_variants_in_use()->stream(from, (float *)(void *)s->out, lines);
    s->out += lines * LINE * sizeof(float);
    memcpy(s->values, from + lines * LINE, s->waiting * sizeof(float));
}

static void close_sink(const sink *s) {
    if (!streams(s)) return;
    memcpy(s->out + s->foreign * sizeof(float), s->values + s->foreign, (s->waiting - s->foreign) * sizeof(float));
    const wm_sink done = {.storing = WM_STREAMED};
    wm_sink_done(&done);
}

/* ------------------------------------------------------------------------------------------------ entry points */
typedef struct {
    int elements, bytes;
} block_size;

static block_size size_of(int type) {
    switch (type) {
#define SIZE(name, number, elements, bytes, finite) \
    case number: return (block_size){elements, bytes};
        WM_GGML_TYPES(SIZE)
#undef SIZE
    default: return (block_size){0, 0};
    }
}

int wm_ggml_elements(int type) { return size_of(type).elements; }
int wm_ggml_bytes(int type) { return size_of(type).bytes; }

typedef struct {
    const uint8_t *data;
    int type;
    block_size block;
    uint64_t first; /* the first element wanted */
    uint8_t *out;
    int half, storing;
} work;

static void decode_part(void *context, int part, uint64_t begin, uint64_t end) {
    const work *w = context;
    const uint64_t elements = (uint64_t)w->block.elements, bytes = (uint64_t)w->block.bytes;
#if defined(__GNUC__)
    __attribute__((aligned(64)))
#endif
    float values[LINE + CHUNK];
    sink s = {.out = w->out + begin * value_bytes(w->half), .half = w->half, .storing = w->storing, .values = values};
    open_sink(&s);
    for (uint64_t at = w->first + begin, stop = w->first + end, n; at < stop; at += n) {
        const uint64_t offset = at % elements, remaining = stop - at;
        const uint8_t *const b = w->data + at / elements * bytes;
        uint64_t free;
        float *const to = room(&s, &free);
        if (offset || remaining < elements) { /* a part of a block */
            float whole[WM_GGML_MOST];
            n = remaining < elements - offset ? remaining : elements - offset;
            wm_variants_in_use()->ggml(w->type, b, 1, whole, WM_CACHED);
            memcpy(to, whole + offset, n * sizeof *to);
        } else if (streams(&s) && !s.waiting) {
            n = remaining / elements * elements;
            wm_variants_in_use()->ggml_streamed(w->type, b, remaining / elements, (float *)(void *)s.out, WM_STREAMED);
            s.out += n * sizeof(float);
            continue;
        } else {
            const uint64_t blocks = (remaining < free ? remaining : free) / elements;
            for (uint64_t k = 0; streams(&s) && k < blocks * bytes; k += 64) PREFETCH(b + 2 * WM_AHEAD + k);
            wm_variants_in_use()->ggml(w->type, b, blocks, to, streams(&s) ? WM_CACHED : w->storing);
            n = blocks * elements;
        }
        took(&s, n);
    }
    close_sink(&s);
}

int wm_ggml_decode(const uint8_t *data, uint64_t size, int type, uint64_t n, uint64_t first, void *out, uint64_t count,
                   int half, int threads) {
    const block_size block = size_of(type);
    if (!block.elements || n % (uint64_t)block.elements || n > (uint64_t)1 << 56) return -1;
    if (size != n / (uint64_t)block.elements * (uint64_t)block.bytes || first > n || count > n - first) return -1;
    if (count == 0) return 0;
    if (wm_overlap(data, size, out, count * value_bytes(half))) return -2;
    work w = {.data = data, .type = type, .block = block, .first = first, .out = out, .half = half};
    w.storing =
        half ? WM_CACHED : wm_how_to_store(count / (uint64_t)block.elements * (uint64_t)block.bytes, count * sizeof(float));
    wm_run_parts(decode_part, &w, count, 1024, ELEMENTS_A_THREAD, threads); /* parts of whole pages */
    return 0;
}
