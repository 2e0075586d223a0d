/* Quantisation: the division into blocks. quantize_block.h searches the scale of a block. */
#include <math.h>

#include "core/internal.h"

#define TARGET
#define NAME quantize_portable
/* Sixteen lanes are parts of four where the compiler has its own vectors, which fit any CPU, and single floats elsewhere. */
#if defined(__GNUC__)
enum { PARTS = 4 };
typedef float part __attribute__((vector_size(16)));
typedef int32_t choice __attribute__((vector_size(16))); /* all bits set or none */
typedef uint32_t part_bits __attribute__((vector_size(16)));
static inline part choose(choice which, part x, part y) { return (part)((which & (choice)x) | (~which & (choice)y)); }
static inline part part_of(float value) { return (part){value, value, value, value}; }
static inline part_bits bits_of_part(part x) { return (part_bits)x; }
#else
enum { PARTS = 16 };
typedef float part;
typedef int choice;
typedef uint32_t part_bits;
static inline part choose(choice which, part x, part y) { return which ? x : y; }
static inline part part_of(float value) { return value; }
static inline part_bits bits_of_part(part x) {
    part_bits bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
#endif
#define EACH for (int k = 0; k < PARTS; k++)
typedef struct {
    part v[PARTS];
} lanes;
typedef struct {
    part_bits v[PARTS];
} words;
#define LANES_OPERATION(name, expression)        \
    static inline lanes name(lanes a, lanes b) { \
        EACH a.v[k] = expression;                \
        return a;                                \
    }
LANES_OPERATION(lanes_add, a.v[k] + b.v[k])
LANES_OPERATION(lanes_sub, a.v[k] - b.v[k])
LANES_OPERATION(lanes_mul, a.v[k] * b.v[k])
LANES_OPERATION(lanes_div, a.v[k] / b.v[k])
LANES_OPERATION(lanes_min, choose(a.v[k] < b.v[k], a.v[k], b.v[k]))
LANES_OPERATION(lanes_max, choose(a.v[k] > b.v[k], a.v[k], b.v[k]))
static inline lanes lanes_load(const float *from) {
    lanes a;
    memcpy(a.v, from, sizeof a.v);
    return a;
}
static inline void lanes_store(float *to, lanes a) { memcpy(to, a.v, sizeof a.v); }
static inline lanes lanes_all(float value) {
    lanes a;
    EACH a.v[k] = part_of(value);
    return a;
}
static inline lanes lanes_sqrt(lanes a) {
    float values[16];
    lanes_store(values, a);
    for (int k = 0; k < 16; k++) values[k] = sqrtf(values[k]);
    return lanes_load(values);
}
static inline void lanes_transpose(const float *const rows[16], uint64_t at, float (*to)[16]) {
    for (int k = 0; k < 16; k++)
        for (int i = 0; i < 8; i++) to[i][k] = rows[k][at + (uint64_t)i];
}
static inline lanes lanes_pick(lanes a, lanes b, lanes x, lanes y) {
    EACH y.v[k] = choose(a.v[k] > b.v[k], x.v[k], y.v[k]);
    return y;
}
static inline uint32_t lanes_which(lanes a, lanes b) {
    float x[16], y[16];
    uint32_t which = 0;
    lanes_store(x, a), lanes_store(y, b);
    for (int k = 0; k < 16; k++) which |= (uint32_t)(x[k] >= y[k]) << k;
    return which;
}
static inline words words_all(uint32_t value) {
    words w;
    EACH w.v[k] = (part_bits){0} + value;
    return w;
}
static inline words words_join(words w, lanes a, uint32_t mask, unsigned shift) {
    EACH w.v[k] |= (bits_of_part(a.v[k]) & mask) << shift;
    return w;
}
static inline words words_pair(lanes a, lanes b) {
    words w;
    EACH w.v[k] = (bits_of_part(a.v[k]) & 0xFFFF) | bits_of_part(b.v[k]) << 16;
    return w;
}
static inline void words_store(uint32_t *to, words w) { memcpy(to, w.v, sizeof w.v); }

/* Both sums in sixteen bits, which compilers vectorise for any CPU: products go to their upper half and to two bytes of the lower
 * one, and no sum of up to 128 parts overflows. */
static void correlate_sixteen(const uint32_t (*y)[16], uint64_t pairs, words inverse, int bits, lanes *yq, lanes *qq) {
    const int16_t highest = (int16_t)((1 << (bits - 1)) - 1), lowest = (int16_t)(-highest - 1),
                  half = (int16_t)(1 << (14 - bits));
    int16_t factor[32], upper[32] = {0};
    uint16_t high[32] = {0}, low[32] = {0}, squares[32] = {0};
    memcpy(factor, inverse.v, sizeof factor);
    for (uint64_t i = 0; i < pairs; i++) {
        int16_t value[32], q[32];
        memcpy(value, y[i], sizeof value);
        for (int k = 0; k < 32; k++) {
            /* (value * factor + 2^14) >> 15, from the halves of the product */
            const int16_t above = (int16_t)((value[k] * factor[k]) >> 16);
            const uint16_t below = (uint16_t)((uint16_t)value[k] * (uint32_t)(uint16_t)factor[k]);
            const int16_t product = (int16_t)(2 * above + (below >> 15) + (below >> 14 & 1));
            const int16_t code = (int16_t)((int16_t)(product + half) >> (15 - bits));
            const int16_t raised = code < lowest ? lowest : code;
            q[k] = raised > highest ? highest : raised;
        }
        for (int k = 0; k < 32; k++) {
            const uint16_t below = (uint16_t)((uint16_t)value[k] * (uint32_t)(uint16_t)q[k]);
            upper[k] = (int16_t)(upper[k] + ((value[k] * q[k]) >> 16));
            high[k] = (uint16_t)(high[k] + (below >> 8));
            low[k] = (uint16_t)(low[k] + (below & 255));
            squares[k] = (uint16_t)(squares[k] + (uint16_t)(q[k] * q[k]));
        }
    }
    float sums[2][16];
    for (int k = 0; k < 16; k++) {
        int32_t sum = 0;
        for (int of = 2 * k; of < 2 * k + 2; of++) sum += upper[of] * 65536 + high[of] * 256 + low[of];
        sums[0][k] = (float)sum;
        sums[1][k] = (float)(squares[2 * k] + squares[2 * k + 1]);
    }
    *yq = lanes_load(sums[0]), *qq = lanes_load(sums[1]);
}
static void correlate_lanes(const uint32_t (*y)[16], uint64_t pairs, const words inverse[2], int bits, lanes yq[2],
                            lanes qq[2]) {
    for (int k = 0; k < 2; k++) correlate_sixteen(y, pairs, inverse[k], bits, &yq[k], &qq[k]);
}

#include "quant/quantize_block.h"

/* The grid: codes, whole or not, to try for the extreme one of n elements, half of them negative. They grow geometrically from
 * 0.55 to 1.2 of the largest code. Beyond that code the element is clipped; among many elements it pays to go further, since
 * all others gain from the finer scale. */
static void fill_grid(float grid[WM_GRID], int bits, uint64_t n) {
    const int each = WM_GRID / 2;
    double reach = 1.2;
    for (uint64_t m = 256; m <= n && reach < 64; m *= 2) reach *= 1.25;
    /* The step is the root of degree each - 1 of their ratio, by Newton's method. */
    double ratio = reach / 0.55, step = 1 + ratio / each;
    for (int i = 0; i < 50; i++) {
        double power = 1;
        for (int k = 0; k < each - 2; k++) power *= step;
        step -= (power * step - ratio) / ((each - 1) * power);
    }
    double code = 0.55 * (1 << (bits - 1));
    for (int k = 0; k < each; k++, code *= step) {
        grid[2 * k] = (float)-code;
        grid[2 * k + 1] = (float)code;
    }
}

/* The range of the inverse scales that are searched for short blocks (see quantize_lanes.h), wider than the grid's. */
static void set_range(wm_quantizing *w, uint64_t n) {
    w->top = 16384 * (n < 256 ? 1.35f : 1.7f);
    w->bottom = 16384 * 0.42f;
}

int64_t wm_first_not_finite(const float *x, uint64_t n) {
    for (uint64_t i = 0; i < n;) {
        const uint64_t end = n - i < 1024 ? n : i + 1024;
        uint32_t bad = 0; /* without branches, so that compilers make vector code */
        for (uint64_t k = i; k < end; k++) bad |= 0u - (uint32_t)((bits_of_float(x[k]) & 0x7F800000) == 0x7F800000);
        for (; bad && i < end; i++)
            if (!is_finite(x[i])) return (int64_t)i;
        i = end;
    }
    return -1;
}

wm_quantizing wm_quantizing_of(int bits, int scale_type, uint64_t block, uint64_t stride) {
    wm_quantizing how = {.bits = bits, .scale_type = scale_type, .stride = stride};
    fill_grid(how.grid, bits, block);
    if (bits <= 5) set_range(&how, block);
    return how;
}

void wm_quantize_finite(const wm_quantizing *how, uint64_t block, const float *x, uint64_t n, uint8_t *out, double *errors) {
    wm_quantize_fn *const quantize = wm_variants_in_use()->quantize;
    const uint64_t full = n / block;
    quantize(how, x, NULL, full, block, out, errors);
    if (full * block == n) return;
    memset(out + full * how->stride, 0, how->stride); /* codes past the last element */
    quantize(how, x + full * block, NULL, 1, n - full * block, out + full * how->stride, errors + full);
}
