/* The search for the scale of a block: a template, compiled once for each instruction set with TARGET and NAME defined before.
 *
 * For a scale s every element x gets the code q nearest to x / s within range, and the error is the sum of (x - s q)^2:
 *
 *     for (each scale s on the grid)
 *         for (error = 0, i = 0; i < n; i++) error += square(x[i] - s * clamp(round(x[i] / s), lowest, highest));
 *     take the scale of least error
 *
 * For fixed codes the best scale is s = sum(x q) / sum(q q), with the error sum(x x) - sum(x q)^2 / sum(q q). Codes change in
 * steps as s changes, so the error has many local minima. Hence the search:
 *   1. A grid of scales that map the element of largest magnitude to about the largest code or beyond, with both signs, since
 *      there is one more negative code than positive ones.
 *   2. The best scale in each lane is refined twice: codes for the scale, scale for the codes.
 *   3. The scales are rounded to their stored type. A few plain ones join (the extreme element exactly at the lowest and at
 *      the highest code; the neighbours of the best). The least error, computed with the stored scale, wins.
 *
 * Each of sixteen lanes tries its own scale, over the elements one after another. So the order of additions, and with it every
 * bit of the result, does not depend on the width of registers. Sums are in float32 over at most CHUNK elements and in float64
 * beyond. Nothing may be contracted into a fused multiply-add.
 *
 * There are many short blocks of int4 and int5: quantize_lanes.h searches all scales for sixteen of them at once, in fixed point.
 * It leaves to this search the blocks whose scale must be exact in its last bits, or is beyond fixed point.
 */
#include <float.h>

#include "quant/intblock.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

enum { LANES = 16, CHUNK = 256, SAMPLE = 1 << 16, GRID = WM_GRID / LANES };

/* n elements, `stride` apart. Multiplied by the power of two `unit` the largest comes near 1, so that no square overflows or
 * vanishes. */
typedef struct {
    wm_window *from;
    uint64_t n, stride;
    float unit;
    float lowest, highest; /* the codes */
} series;

/* Element `at`, and those behind it up to the next multiple of CHUNK. */
static inline const float *element_at(wm_window *from, uint64_t at) {
    if (at - from->first >= from->count) from->fill(from, at);
    return from->x + (at - from->first);
}

/* Loads elements [at, at + CHUNK), or as many as there are, times the unit; returns how many. */
TARGET static inline uint64_t load_chunk(const series *s, uint64_t at, float y[CHUNK]) {
    const uint64_t n = s->n - at < CHUNK ? s->n - at : CHUNK;
    const float *const x = element_at(s->from, at * s->stride);
    if (s->stride == 1)
        for (uint64_t i = 0; i < n; i++) y[i] = x[i] * s->unit;
    else
        for (uint64_t i = 0; i < n; i++) y[i] = *element_at(s->from, (at + i) * s->stride) * s->unit;
    return n;
}

/* The nearest integer, ties to even, within range: adding 1.5 * 2^23 rounds, since floats from 2^23 on have no fraction. */
static inline float nearest(float v, float lowest, float highest) {
    const float magic = 0x1.8p23f;
    v = v < lowest ? lowest : v;
    v = v > highest ? highest : v;
    return (v + magic) - magic;
}

/* For each of sixteen inverse scales, or for `groups` times as many: sum(y q) and sum(q q). */
TARGET static void correlate(const series *s, int groups, const float *inverse, double *yq, double *qq) {
    float y[CHUNK];
    for (int k = 0; k < groups * LANES; k++) yq[k] = qq[k] = 0;
    for (uint64_t at = 0, n; at < s->n; at += n) {
        n = load_chunk(s, at, y);
        for (int g = 0; g < groups * LANES; g += LANES) {
            float a[LANES] = {0}, b[LANES] = {0};
            for (uint64_t i = 0; i < n; i++)
                for (int k = 0; k < LANES; k++) {
                    const float q = nearest(y[i] * inverse[g + k], s->lowest, s->highest);
                    a[k] += y[i] * q;
                    b[k] += q * q;
                }
            for (int k = 0; k < LANES; k++) yq[g + k] += (double)a[k], qq[g + k] += (double)b[k];
        }
    }
}

/* For each of sixteen scales: sum (y - s q)^2. A scale of 0 makes every code 0. */
TARGET static void measure(const series *s, const float scale[LANES], double error[LANES]) {
    float y[CHUNK], inverse[LANES]; /* differs from a division only at ties, where it matters least */
    for (int k = 0; k < LANES; k++) error[k] = 0, inverse[k] = scale[k] != 0 ? 1 / scale[k] : 0;
    for (uint64_t at = 0, n; at < s->n; at += n) {
        float e[LANES] = {0};
        n = load_chunk(s, at, y);
        for (uint64_t i = 0; i < n; i++)
            for (int k = 0; k < LANES; k++) {
                const float d = y[i] - scale[k] * nearest(y[i] * inverse[k], s->lowest, s->highest);
                e[k] += d * d;
            }
        for (int k = 0; k < LANES; k++) error[k] += (double)e[k];
    }
}

/* The scale as it is stored: one that is too large becomes the largest finite one. */
static inline float stored(double scale, int scale_type) {
    const float limit = scale_type == WM_SCALE_FP16 ? 65504.0f : FLT_MAX;
    const float s = scale > (double)limit ? limit : scale < -(double)limit ? -limit : (float)scale;
    if (scale_type != WM_SCALE_FP16) return s;
    const float rounded = widen_half(narrow_float(s));
    return rounded > limit ? limit : rounded < -limit ? -limit : rounded;
}

/* The stored scale that is next in magnitude, upwards or downwards. */
static inline float neighbour(float scale, int up, int scale_type) {
    if (scale_type == WM_SCALE_FP16) {
        const uint32_t half = narrow_float(scale), magnitude = half & 0x7FFF;
        if (up ? magnitude == 0x7BFF : magnitude == 0) return scale;
        return widen_half(up ? half + 1 : half - 1);
    }
    const uint32_t bits = bits_of_float(scale), magnitude = bits & 0x7FFFFFFF;
    if (up ? magnitude == 0x7F7FFFFF : magnitude == 0) return scale;
    return float_of_bits(up ? bits + 1 : bits - 1);
}

static inline uint32_t magnitude_of(float value) { return bits_of_float(value) & 0x7FFFFFFF; }

/* The first element of largest magnitude, with its sign; 0 without elements. */
TARGET static float extreme_of(const series *s) {
    float y[CHUNK], extreme = 0;
    for (uint64_t at = 0, n; at < s->n; at += n) {
        uint32_t max = 0;
        n = load_chunk(s, at, y);
        for (uint64_t i = 0; i < n; i++) max = magnitude_of(y[i]) > max ? magnitude_of(y[i]) : max;
        for (uint64_t i = 0; max > magnitude_of(extreme); i++)
            if (magnitude_of(y[i]) == max) extreme = y[i];
    }
    return extreme;
}

/* The stored scale of least error that the search finds for n finite elements; 0 if all of them are 0. */
TARGET static float search_scale(wm_window *from, uint64_t n, const wm_quantizing *w) {
    const int bits = w->bits, scale_type = w->scale_type;
    series all = {from, n, 1, 1, -(float)(1 << (bits - 1)), (float)((1 << (bits - 1)) - 1)};
    const float extreme = extreme_of(&all);
    if (extreme == 0) return 0;
    /* 2^(126 - exponent) brings the extreme element to between 1/2 and 1, or as near as a float does. */
    const int exponent = (int)(bits_of_float(extreme) >> 23 & 255), field = 253 - exponent;
    const float unit = float_of_bits((uint32_t)(field < 1 ? 1 : field > 254 ? 254 : field) << 23);
    all.unit = unit;
    series some = all; /* the grid is tried on a sample */
    if (n > SAMPLE) some.stride = n / SAMPLE, some.n = n / some.stride;

    float grid[WM_GRID], inverse[LANES], scale[LANES], best = 0;
    double yq[WM_GRID], qq[WM_GRID], gain[LANES], error[LANES], min = -1;
    for (int k = 0; k < LANES; k++) gain[k] = -1, inverse[k] = 0;
    const float of_one = 1 / (extreme * unit);
    for (int k = 0; k < WM_GRID; k++) grid[k] = w->grid[k] * of_one;
    correlate(&some, GRID, grid, yq, qq);
    for (int g = 0; g < WM_GRID; g++) {
        const int k = g % LANES;
        const double value = qq[g] > 0 ? yq[g] * yq[g] / qq[g] : 0;
        if (value > gain[k]) gain[k] = value, inverse[k] = yq[g] != 0 ? (float)(qq[g] / yq[g]) : grid[g];
    }
    correlate(&all, 1, inverse, yq, qq);
    for (int k = 0; k < LANES; k++) inverse[k] = yq[k] != 0 ? (float)(qq[k] / yq[k]) : inverse[k];
    correlate(&all, 1, inverse, yq, qq);
    for (int k = 0; k < LANES; k++) scale[k] = stored(qq[k] > 0 ? yq[k] / qq[k] / (double)unit : 0, scale_type);

    for (int round = 0; round < 2; round++) {
        float scaled[LANES];
        for (int k = 0; k < LANES; k++) scaled[k] = scale[k] * unit;
        measure(&all, scaled, error);
        for (int k = 0; k < LANES; k++)
            if (min < 0 || error[k] < min) min = error[k], best = scale[k];
        for (int k = 0; k < LANES; k++) scale[k] = best; /* for the second round */
        scale[0] = stored((double)extreme / (double)all.lowest, scale_type);
        scale[1] = stored((double)extreme / (double)all.highest, scale_type);
        scale[2] = neighbour(best, 1, scale_type);
        scale[3] = neighbour(best, 0, scale_type);
        scale[4] = neighbour(scale[0], 1, scale_type);
        scale[5] = neighbour(scale[1], 1, scale_type);
    }
    return best;
}

/* Writes n codes, packed; returns the sum of (x - scale * q)^2, with the product in float32 as decoding computes it. */
TARGET static double write_codes(const float *x, uint64_t n, float scale, int bits, uint8_t *out) {
    const float lowest = -(float)(1 << (bits - 1)), highest = (float)((1 << (bits - 1)) - 1);
    double error = 0;
    for (uint64_t at = 0; at < n; at += CHUNK, out += CHUNK / 8 * bits) {
        const uint64_t part = n - at < CHUNK ? n - at : CHUNK;
        float q[CHUNK] = {0};
        double d[8] = {0};
        if (scale != 0)
            for (uint64_t i = 0; i < part; i++) q[i] = nearest(x[at + i] / scale, lowest, highest);
        for (uint64_t i = 0; i < part; i++) {
            const double difference = (double)x[at + i] - (double)(scale * q[i]);
            d[i % 8] += difference * difference;
        }
        error += ((d[0] + d[1]) + (d[2] + d[3])) + ((d[4] + d[5]) + (d[6] + d[7]));
        for (uint64_t i = 0; i < part; i += 8) {
            uint64_t word = 0;
            for (unsigned k = 0; k < 8; k++)
                word |= ((uint64_t)(int64_t)(int32_t)q[i + k] & (((uint64_t)1 << bits) - 1)) << (k * (unsigned)bits);
            const uint64_t bytes = code_bytes(bits, part - i < 8 ? part - i : 8);
            for (unsigned k = 0; k < bytes; k++) out[i / 8 * (uint64_t)bits + k] = (uint8_t)(word >> 8 * k);
        }
    }
    return error;
}

#include "quant/quantize_lanes.h"

TARGET static void put_scale(uint8_t *out, float scale, int scale_type) {
    const uint32_t raw = scale_type == WM_SCALE_FP16 ? narrow_float(scale) : bits_of_float(scale);
    for (unsigned i = 0; i < scale_bytes(scale_type); i++) out[i] = (uint8_t)(raw >> 8 * i);
}

/* Writes the scale of a block after a search for sixteen; with a scale of 0, searches and writes all of the block. */
TARGET WM_INLINE void finish_block(const wm_quantizing *w, const float *x, uint64_t n, float scale, double sum, uint8_t *out,
                                   double *error) {
    if (scale == 0) {
        wm_window all = {x, 0, n, NULL};
        scale = search_scale(&all, n, w);
        sum = write_codes(x, n, scale, w->bits, out + scale_bytes(w->scale_type));
    }
    put_scale(out, scale, w->scale_type);
    *error = sum;
}

TARGET void NAME(const wm_quantizing *w, const float *x, const uint32_t *which, uint64_t blocks, uint64_t n, uint8_t *out,
                 double *errors) {
    if (w->window) put_scale(out, search_scale(w->window, n, w), w->scale_type);
    if (w->scale) *errors = write_codes(x, n, *w->scale, w->bits, out);
    if (w->window || w->scale) return;
    const int lanes_fit = w->bits <= 5 && n % 8 == 0 && n <= MAX_BLOCK;
    uint64_t next = 0;
    for (; !lanes_fit && next < blocks; next++) {
        const uint64_t b = which ? which[next] : next;
        finish_block(w, x + b * n, n, 0, 0, out + b * w->stride, errors + b);
    }
    sixteen s[GROUPS];
    search searches[GROUPS];
    parked p = {.count = 0};
    while (next < blocks || p.count) {
        const int again = p.count >= GROUPS * LANES || next == blocks;
        const uint64_t all = again ? p.count : blocks - next, count = all < GROUPS * LANES ? all : GROUPS * LANES;
        const int groups = (int)ceil_div(count, LANES);
        uint64_t at[GROUPS * LANES];
        if (again) p.count -= count;
        for (uint64_t k = 0; k < count; k++) at[k] = again ? p.at[p.count + k] : which ? which[next + k] : next + k;
        if (!again) next += count;
        float scales[GROUPS][LANES], sums[GROUPS][LANES];
        for (int g = 0; g < groups; g++) {
            const uint64_t first = (uint64_t)g * LANES;
            s[g].n = n, s[g].bits = w->bits;
            load_sixteen(&s[g], x, at + first, count - first < LANES ? count - first : LANES);
        }
        for (int g = 0; g < groups; g++) {
            const uint64_t first = (uint64_t)g * LANES;
            prepare_search(&searches[g], &s[g], count - first < LANES ? count - first : LANES);
            if (again)
                resume_search(&searches[g], &p, p.count + first);
            else
                begin_search(&searches[g], w);
        }
        search_groups(searches, groups, w, next < blocks ? PARK_BELOW : 0);
        for (int g = 0; g < groups; g++) {
            const uint64_t first = (uint64_t)g * LANES;
            end_search(&searches[g], w, scales[g]);
            if (searches[g].going) park_search(&p, &searches[g], at + first, scales[g]);
            write_sixteen(&s[g], w, scales[g], at + first, count - first < LANES ? count - first : LANES,
                          out + scale_bytes(w->scale_type), sums[g]);
        }
        for (uint64_t k = 0; k < count; k++)
            finish_block(w, x + at[k] * n, n, scales[k / LANES][k % LANES], (double)sums[k / LANES][k % LANES],
                         out + at[k] * w->stride, errors + at[k]);
    }
}
