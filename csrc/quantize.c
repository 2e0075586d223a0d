/* Quantisation: the division into blocks and among threads. quantize_block.h searches the scale of a block. */
#include <math.h>

#include "internal.h"

#define TARGET
#define NAME quantize_portable
#define EACH for (int k = 0; k < 16; k++)
typedef struct {
    float v[16];
} lanes;
typedef struct {
    uint32_t v[16];
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
LANES_OPERATION(lanes_min, a.v[k] < b.v[k] ? a.v[k] : b.v[k])
LANES_OPERATION(lanes_max, a.v[k] > b.v[k] ? a.v[k] : b.v[k])
static inline lanes lanes_load(const float *from) {
    lanes a;
    memcpy(a.v, from, sizeof a.v);
    return a;
}
static inline void lanes_store(float *to, lanes a) { memcpy(to, a.v, sizeof a.v); }
static inline lanes lanes_all(float value) {
    lanes a;
    EACH a.v[k] = value;
    return a;
}
static inline void lanes_transpose(const float *const rows[16], uint64_t at, float (*to)[16]) {
    EACH for (int i = 0; i < 8; i++) to[i][k] = rows[k][at + (uint64_t)i];
}
static inline lanes lanes_pick(lanes a, lanes b, lanes x, lanes y) {
    EACH y.v[k] = a.v[k] > b.v[k] ? x.v[k] : y.v[k];
    return y;
}
static inline int lanes_any(lanes a, lanes b) {
    int any = 0;
    EACH any |= a.v[k] >= b.v[k];
    return any;
}
static inline words words_all(uint32_t value) {
    words w;
    EACH w.v[k] = value;
    return w;
}
static inline words words_join(words w, lanes a, uint32_t mask, unsigned shift) {
    uint32_t bits[16];
    memcpy(bits, a.v, sizeof bits);
    EACH w.v[k] |= (bits[k] & mask) << shift;
    return w;
}
static inline void words_store(uint32_t *to, words w) { memcpy(to, w.v, sizeof w.v); }

/* One of the two numbers in each word: four lanes at a time fit into registers of any width. */
static inline void correlate_four(const int32_t value[4], const int32_t scale[4], int bits, int32_t a[4], int32_t b[4]) {
    const int32_t highest = (1 << (bits - 1)) - 1, lowest = -highest - 1, half = 1 << (14 - bits);
    for (int k = 0; k < 4; k++) {
        int32_t q = (((value[k] * scale[k] + (1 << 14)) >> 15) + half) >> (15 - bits);
        q = q < lowest ? lowest : q;
        q = q > highest ? highest : q;
        a[k] += value[k] * q;
        b[k] += q * q;
    }
}

static void correlate_lanes(const uint32_t (*y)[16], uint64_t pairs, words inverse, int bits, int clips, lanes *yq, lanes *qq) {
    for (int first = 0; first < 16; first += 4) {
        int32_t a[4] = {0}, b[4] = {0}, scale[4];
        for (int k = 0; k < 4; k++) scale[k] = (int16_t)(uint16_t)inverse.v[first + k];
        for (uint64_t i = 0; i < pairs; i++) {
            int32_t low[4], high[4];
            for (int k = 0; k < 4; k++) low[k] = (int32_t)(y[i][first + k] << 16) >> 16;
            for (int k = 0; k < 4; k++) high[k] = (int32_t)y[i][first + k] >> 16;
            correlate_four(low, scale, bits, a, b);
            correlate_four(high, scale, bits, a, b);
        }
        for (int k = 0; k < 4; k++) yq->v[first + k] = (float)a[k];
        for (int k = 0; k < 4; k++) qq->v[first + k] = (float)b[k];
    }
}

#include "quantize_block.h"

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

static void add_code(wm_quantizing *w, int row, int column, double code) {
    const double fixed = code * (1 << (15 - w->bits));
    const uint32_t half = (uint32_t)(int32_t)(fixed < 0 ? fixed - 0.5 : fixed + 0.5) & 0xFFFF;
    w->table[row][column] = half << 16 | half;
}

/* The table for short blocks: in each row a code of the grid and those between it and the next; the lowest and the highest
 * code, alone. Up to half a step beyond the highest code nothing is clipped and both signs give one error: one is there. */
static void fill_table(wm_quantizing *w) {
    const double highest = (1 << (w->bits - 1)) - 1;
    const float *positive = w->grid + 1; /* every other one */
    const int last = WM_GRID - 2;
    int below = 0; /* the last that clips nothing */
    while (below < last && (double)positive[below + 2] < highest + 0.5) below += 2;
    w->rows = 0;
    add_code(w, w->rows++, 0, highest);
    for (int sign = 1, k = 0;; k += 2) {
        if (sign > 0 && k == below) w->clips = w->rows;
        const double code = (double)positive[k], step = k < last ? pow((double)positive[k + 2] / code, 1.0 / WM_FINER) : 1;
        for (int f = 0; f < (k < last ? WM_FINER : 1); f++) add_code(w, w->rows, f, sign * code * pow(step, f));
        w->rows++;
        if (k == last && sign < 0) break;
        if (k == last) sign = -1, k = below - 2;
    }
    add_code(w, w->rows++, 0, -(highest + 1));
}

enum { ELEMENTS_PER_THREAD = 1 << 14 }; /* about half a millisecond */

/* Adds the squares of n numbers, each eighth to one of eight sums, so that compilers make vector code of any width. */
static void add_squares(const float *x, const float *y, uint64_t n, double sums[8]) {
    for (uint64_t i = 0; i + 8 <= n; i += 8)
        for (uint64_t k = 0; k < 8; k++) {
            const double d = (double)x[i + k] - (double)y[i + k];
            sums[k] += d * d;
        }
    for (uint64_t i = n - n % 8; i < n; i++) sums[i % 8] += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
}
static double sum_of(const double s[8]) { return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])); }

double wm_sum_of_squares(const float *x, uint64_t n) {
    static const float none[1024];
    double sums[8] = {0};
    for (uint64_t at = 0; at < n; at += 1024) add_squares(x + at, none, n - at < 1024 ? n - at : 1024, sums);
    return sum_of(sums);
}

/* Writes a block of float16, without a scale. What is too large for float16 becomes the largest one, not infinity. */
static double write_halves(const float *x, uint64_t n, uint8_t *out) {
    const wm_variants *v = wm_variants_in_use();
    double sums[8] = {0};
    for (uint64_t at = 0, m; at < n; at += m, out += 2 * m) {
        float back[256];
        m = n - at < 256 ? n - at : 256;
        v->narrow(x + at, m, out);
        int32_t large = 0;
        for (uint64_t i = 0; i < m; i++) large |= (int32_t)(bits_of_float(x[at + i]) & 0x7FFFFFFF) >= 0x477FF000; /* 65520 */
        for (uint64_t i = 0; large && i < m; i++)
            if ((out[2 * i + 1] & 0x7F) == 0x7C && out[2 * i] == 0) out[2 * i] = 0xFF, out[2 * i + 1]--;
        v->f16_to_f32(out, back, m, 0);
        add_squares(x + at, back, m, sums);
    }
    return sum_of(sums);
}

typedef struct {
    const float *x;
    uint64_t n, block; /* elements, also of a block */
    uint8_t *out;
    double *errors;
    wm_quantizing how;
} work;

/* Encodes blocks of n elements each. */
static void encode_blocks(const work *w, uint64_t first, uint64_t blocks, uint64_t n) {
    const float *x = w->x + first * w->block;
    uint8_t *out = w->out + first * w->how.stride;
    double *errors = w->errors ? w->errors + first : NULL;
    if (w->how.bits != 16) {
        wm_variants_in_use()->quantize(&w->how, x, blocks, n, out, errors);
        return;
    }
    for (uint64_t b = 0; b < blocks; b++) {
        const double error = write_halves(x + b * n, n, out + b * w->how.stride);
        if (errors) errors[b] = error;
    }
}

static void encode_part(void *context, int part, uint64_t begin, uint64_t end) {
    const work *w = context;
    const uint64_t left = w->n - begin * w->block, whole = w->block ? left / w->block : 1;
    const uint64_t full = whole < end - begin ? whole : end - begin;
    encode_blocks(w, begin, full, w->block);
    if (full == end - begin) return;
    /* The last block: codes past the last element are 0. */
    memset(w->out + (end - 1) * w->how.stride, 0, w->how.stride);
    encode_blocks(w, end - 1, 1, left - full * w->block);
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

int64_t wm_blocks_encode(const float *x, uint64_t n, int bits, int scale_type, uint64_t block_size, uint8_t *out,
                         uint64_t out_size, double *errors, uint64_t n_errors, int threads) {
    const int halves = bits == 16;
    const int64_t size = wm_blocks_size(halves ? 8 : bits, scale_type, block_size, n);
    if (size < 0 || (halves && !block_size)) return -2;
    const uint64_t block = block_size ? block_size : n;
    const uint64_t count = block_size ? ceil_div(n, block_size) : 1;
    const uint64_t stride = halves ? 2 * block : scale_bytes(scale_type) + code_bytes(bits, block);
    if (out_size != count * stride || (errors && n_errors != count)) return -2;
    const int64_t bad = wm_first_not_finite(x, n);
    if (bad >= 0) return bad;
    work w = {x, n, block, out, errors, {.bits = bits, .scale_type = scale_type, .stride = stride}};
    if (!halves) {
        fill_grid(w.how.grid, bits, block);
        if (bits <= 5) fill_table(&w.how);
    }
    const uint64_t least = block ? ELEMENTS_PER_THREAD / block + 1 : 1;
    wm_run_parts(encode_part, &w, count, 1, least, threads);
    return -1;
}
