/* Quantises to ggml's blocks. Each instruction set, and the portable C, defines TARGET and NAME and includes this file.
 *
 * q4_0 to q8_0 have one formula each and give the bytes of gguf-py and ggml. mxfp4 and iq4_nl have one scale and a table of
 * values: a few scales are tried. q2_k to q6_k have scales of scales, which can be chosen in many ways; this search minimises
 * the squared error:
 *   1. For each group of 16 or 32 elements, sixteen lanes try a scale each: elements give codes, codes give the scale (and the
 *      minimum) of least squares. All lanes are refined, and the best result of any round wins.
 *   2. The scales of all groups are rounded to multiples of a float16; the multiples next to each are tried too. Then the
 *      float16 is fitted to all codes, and the neighbours are tried again.
 * Each lane sums element after element, so the bytes do not depend on the width of registers.
 */
#include "quant/ggml.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

enum { LANES = 16, GROUPS = 16 };

/* ---------------------------------------------------------------------------------------------- q4_0 to q8_0 */
static inline void put16(uint8_t *out, uint16_t value) { out[0] = (uint8_t)value, out[1] = (uint8_t)(value >> 8); }
static inline float clamp(float v, float min, float max) {
    v = v < min ? min : v; /* two steps: compilers make vector code of them */
    return v > max ? max : v;
}
/* Clamps to the range of float16. */
static inline float in_half(float v) { return clamp(v, -65504, 65504); }
/* 1 / d; 0 if d is 0, or so small that its inverse overflows. */
static inline float inverse_of(float d) {
    const float inverse = d != 0 ? 1 / d : 0;
    return is_finite(inverse) ? inverse : 0;
}

/* Four bits of codes 0 to 15 and 16 to 31 in a byte; before these, of five bits, the fifth ones. */
static inline void pack(const uint32_t q[32], int bits, uint8_t *out) {
    uint32_t high = 0;
    for (int i = 0; bits == 5 && i < 32; i++) high |= (q[i] >> 4) << i;
    for (int i = 0; bits == 5 && i < 4; i++) *out++ = (uint8_t)(high >> 8 * i);
    uint32_t pairs[16]; /* step by step, which compilers vectorise */
    uint8_t octets[16];
    for (int i = 0; i < 16; i++) pairs[i] = (q[i] & 15) | q[i + 16] << 4;
    for (int i = 0; i < 16; i++) octets[i] = (uint8_t)pairs[i];
    memcpy(out, octets, sizeof octets);
}

/* Compares magnitudes as integers, which compilers vectorise. */
TARGET WM_INLINE uint32_t largest_magnitude(const float *x) {
    uint32_t max = 0;
    for (int i = 0; i < 32; i++) {
        const uint32_t magnitude = bits_of_float(x[i]) & 0x7FFFFFFF;
        max = magnitude > max ? magnitude : max;
    }
    return max;
}

/* Integers in the order of floats, and back; -0 comes before 0. */
static inline int32_t ordered(int32_t bits) { return bits ^ (int32_t)((uint32_t)(bits >> 31) >> 1); }

/* Compares integers, which compilers vectorise. */
TARGET WM_INLINE void ends_of(const float *x, float *smallest, float *largest) {
    int32_t low = INT32_MAX, high = INT32_MIN;
    for (int i = 0; i < 32; i++) {
        const int32_t at = ordered((int32_t)bits_of_float(x[i]));
        low = at < low ? at : low, high = at > high ? at : high;
    }
    *smallest = float_of_bits((uint32_t)ordered(low)), *largest = float_of_bits((uint32_t)ordered(high));
}

/* d * (q - half): the element of largest magnitude, of equals the first, gets code 0. */
TARGET WM_INLINE void quantize_signed(const float *x, int bits, uint8_t *out) {
    const float half = (float)(1 << (bits - 1));
    float smallest, largest;
    uint32_t q[32];
    int first = 0;
    ends_of(x, &smallest, &largest);
    while (largest == -smallest && x[first] != smallest && x[first] != largest) first++;
    const float peak = largest == -smallest ? x[first] : largest > -smallest ? largest : smallest;
    const float d = in_half(peak / -half), inverse = inverse_of(d);
    for (int i = 0; i < 32; i++) q[i] = (uint32_t)(int)clamp(x[i] * inverse + (half + 0.5f), 0, 2 * half - 1);
    put16(out, narrow_float(d));
    pack(q, bits, out + 2);
}

/* d * q + m: the smallest element gets code 0, the largest one the largest code. */
TARGET WM_INLINE void quantize_range(const float *x, int bits, uint8_t *out) {
    const float max = (float)((1 << bits) - 1);
    float min, largest;
    uint32_t q[32];
    ends_of(x, &min, &largest);
    if (min == 0) { /* the first zero counts, whatever its sign */
        int first = 0;
        while (x[first] != 0) first++;
        largest = largest == 0 ? x[first] : largest, min = x[first];
    }
    min = in_half(min);
    const float d = clamp((largest - min) / max, 0, 65504), inverse = inverse_of(d);
    for (int i = 0; i < 32; i++) q[i] = (uint32_t)(int)clamp((x[i] - min) * inverse + 0.5f, 0, max);
    put16(out, narrow_float(d));
    put16(out + 2, narrow_float(min));
    pack(q, bits, out + 4);
}

/* Rounds halves away from zero. */
TARGET static void quantize_q8_0(const float *x, uint8_t *out) {
    const float d = in_half(float_of_bits(largest_magnitude(x)) / 127), inverse = inverse_of(d);
    int8_t q[32];
    put16(out, narrow_float(d));
    for (int i = 0; i < 32; i++) {
        const uint32_t v = bits_of_float(x[i] * inverse), magnitude = v & 0x7FFFFFFF;
        const float a = float_of_bits(magnitude < 0x42FE0000 ? magnitude : 0x42FE0000); /* at most 127 */
        const int whole = (int)a, rounded = whole + (a - (float)whole >= 0.5f), sign = -(int)(v >> 31);
        q[i] = (int8_t)((rounded ^ sign) - sign);
    }
    memcpy(out + 2, q, 32);
}

/* ------------------------------------------------------------------------------------------------------- mxfp4 */
/* Twice the magnitude of E2M1 that is nearest to a / 2, the smaller one of two. */
static inline float twice_fp4(float a) {
    static const float between[7] = {0.5f, 1.5f, 2.5f, 3.5f, 5, 7, 10}, step[7] = {1, 1, 1, 1, 2, 2, 4};
    float value = 0;
    for (int k = 0; k < 7; k++) value += a > between[k] ? step[k] : 0;
    return value;
}

/* Two powers of two are tried: with the first the largest element may be clipped from below 8 to 6, which is the choice of
 * gguf-py; with the second none is. */
TARGET static void quantize_mxfp4(const float *x, uint8_t *out) {
    const uint32_t max = largest_magnitude(x);
    memset(out, 0, 17);
    const int first = max >> 23 > 2 ? (int)(max >> 23) - 2 : 0;
    float result[32];
    double min = -1;
    for (int e = first; e < first + 2 && e < 253; e++) { /* from 253 on, code 7 is infinite */
        const double d = (double)float_of_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23), inverse = 1 / d;
        float code[32];
        double error = 0;
        for (int i = 0; i < 32; i++) {
            const double magnitude = (double)(x[i] < 0 ? -x[i] : x[i]);
            const float scaled = (float)(magnitude * inverse);
            code[i] = twice_fp4(scaled);
            const double difference = magnitude - d * (double)code[i];
            error += difference * difference;
        }
        if (min < 0 || error < min) min = error, out[0] = (uint8_t)e, memcpy(result, code, sizeof result);
    }
    for (int i = 0; i < 32; i++) {
        static const uint8_t code_of[13] = {0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7};
        const uint8_t code = code_of[(int)result[i]];
        out[1 + i % 16] |= (uint8_t)((x[i] < 0 && code ? code | 8 : code) << i / 16 * 4);
    }
}

/* ----------------------------------------------------------------------------------------------- q2_k to q6_k */
/* The integer nearest to a float of a magnitude below 2^22, as a float. */
static inline float whole(float v) { return (v + 12582912.0f) - 12582912.0f; }

/* Multiplies n elements by a power of two that brings the largest near 1, so that no square overflows or vanishes; returns it. */
TARGET WM_INLINE float unit_of(const float *x, int n, float *y) {
    uint32_t max = 0;
    for (int i = 0; i < n; i++) {
        const uint32_t magnitude = bits_of_float(x[i]) & 0x7FFFFFFF;
        max = magnitude > max ? magnitude : max;
    }
    const int field = max ? 253 - (int)(max >> 23) : 127;
    const float unit = float_of_bits((uint32_t)(field < 1 ? 1 : field > 254 ? 254 : field) << 23);
    for (int i = 0; i < n; i++) y[i] = x[i] * unit;
    return unit;
}

/* A way to quantise a super-block: its scale d and minimum `min`, in units, and the numbers of each group. */
typedef struct {
    uint16_t d_bits, least_bits;
    float d, min;
    float scale[GROUPS], minimum[GROUPS]; /* the best of each group: value = scale * q - minimum */
    float s[GROUPS], m[GROUPS];           /* the integers it gets: value = d * s * q - min * m */
    double error;
} plan;

/* Stores the bits of the float16 nearest to value / unit, finite, and 0 for 0 alone; returns its value times unit. */
static inline float stored(double value, float unit, uint16_t *bits) {
    const double v = value / (double)unit;
    *bits = narrow_float(v > 65504 ? 65504.0f : v < -65504 ? -65504.0f : (float)v);
    if (value != 0 && (*bits & 0x7FFF) == 0) *bits |= 1;
    return widen_half(*bits) * unit;
}

/* Computes the squared error of n elements for sixteen pairs (scale, offset): value = scale * q - offset. */
TARGET static void errors_of(const float *y, int n, const float scale[LANES], const float offset[LANES], float lowest,
                             float highest, float error[LANES]) {
    float inverse[LANES], sum[LANES] = {0}; /* compilers would store to `error` after each element */
    for (int k = 0; k < LANES; k++) inverse[k] = 1 / (scale[k] != 0 ? scale[k] : 1);
    for (int k = 0; k < LANES; k++) inverse[k] = scale[k] != 0 && is_finite(inverse[k]) ? inverse[k] : 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < LANES; k++) {
            const float q = whole(clamp((y[i] + offset[k]) * inverse[k], lowest, highest));
            const float e = y[i] - (scale[k] * q - offset[k]);
            sum[k] += e * e;
        }
    memcpy(error, sum, sizeof sum);
}

/* Computes the codes of n elements for a scale and an offset. */
TARGET static void codes_of(const float *y, int n, float scale, float offset, float lowest, float highest, float *q) {
    float inverse = scale != 0 ? 1 / scale : 0;
    inverse = is_finite(inverse) ? inverse : 0;
    for (int i = 0; i < n; i++) q[i] = whole(clamp((y[i] + offset) * inverse, lowest, highest));
}

/* The index of the largest of sixteen numbers, the first one of equals. */
TARGET static int largest_of(const float v[LANES]) {
    int best = 0;
    for (int k = 1; k < LANES; k++) best = v[k] > v[best] ? k : best;
    return best;
}

/* Signed codes: the scale of least squares for 16 elements. The first tries give the largest element the code -(from + step * k)
 * for k < 16. */
TARGET WM_INLINE float scale_of_16(const float *y, float lowest, float highest, float from, float step) {
    float extreme = 0, inverse[LANES], best = 0, gain = 0;
    for (int i = 0; i < 16; i++) extreme = (y[i] < 0 ? -y[i] : y[i]) > (extreme < 0 ? -extreme : extreme) ? y[i] : extreme;
    if (extreme == 0) return 0;
    const float by_extreme = -1 / extreme;
    for (int k = 0; k < LANES; k++) inverse[k] = (from + step * (float)k) * by_extreme;
    for (int round = 0; round < 2; round++) {
        float yq[LANES] = {0}, qq[LANES] = {0}, result[LANES];
        for (int i = 0; i < 16; i++)
            for (int k = 0; k < LANES; k++) {
                const float q = whole(clamp(y[i] * inverse[k], lowest, highest));
                yq[k] += y[i] * q;
                qq[k] += q * q;
            }
        for (int k = 0; k < LANES; k++) result[k] = yq[k] * yq[k] / (qq[k] > 0 ? qq[k] : 1);
        const int k = largest_of(result);
        if (result[k] > gain) gain = result[k], best = yq[k] / qq[k];
        for (int j = 0; j < LANES; j++) inverse[j] = yq[j] != 0 ? qq[j] / yq[j] : inverse[j];
    }
    return best;
}

/* Codes 0 to `highest`: scale and minimum of least squares for n elements; the minimum is not negative. The first tries give the
 * largest element the code from + step * k for k < 16. For codes with the sums q1 and qq (of squares), and with yq and y1 of the
 * elements, scale and minimum are (n yq - y1 q1) / det and (q1 yq - qq y1) / det. */
TARGET WM_INLINE void fit(const float *y, int n, float highest, float from, float step, float *scale, float *minimum) {
    float min = 0, max = y[0], inverse[LANES], offset[LANES], y1 = 0, best = -1;
    for (int i = 0; i < n; i++) {
        min = y[i] < min ? y[i] : min;
        max = y[i] > max ? y[i] : max;
        y1 += y[i];
    }
    *scale = 0, *minimum = -min;
    if (!(max > min)) return;
    const float by_range = 1 / (max - min);
    if (!is_finite(by_range)) return;
    for (int k = 0; k < LANES; k++) offset[k] = -min, inverse[k] = (from + step * (float)k) * by_range;
    for (int round = 0; round < 3; round++) {
        float q1[LANES] = {0}, qq[LANES] = {0}, yq[LANES] = {0}, s[LANES], m[LANES], gain[LANES];
        for (int i = 0; i < n; i++)
            for (int k = 0; k < LANES; k++) {
                const float q = whole(clamp((y[i] + offset[k]) * inverse[k], 0, highest));
                q1[k] += q;
                qq[k] += q * q;
                yq[k] += y[i] * q;
            }
        for (int k = 0; k < LANES; k++) {
            const float det = (float)n * qq[k] - q1[k] * q1[k], by_det = 1 / (det > 0 ? det : 1); /* whole numbers, exact */
            const float slope = ((float)n * yq[k] - y1 * q1[k]) * by_det, shift = (q1[k] * yq[k] - qq[k] * y1) * by_det;
            const int plain = !(det > 0) || shift < 0;
            m[k] = plain ? 0 : shift;
            s[k] = plain ? yq[k] / (qq[k] > 0 ? qq[k] : 1) : slope;
            const float loss = s[k] * s[k] * qq[k] + (float)n * m[k] * m[k]; /* the loss of the squares is the gain */
            gain[k] = s[k] > 0 ? 2 * (s[k] * yq[k] - m[k] * y1 + s[k] * m[k] * q1[k]) - loss : -1;
        }
        const int k = largest_of(gain);
        if (gain[k] > best) best = gain[k], *scale = s[k], *minimum = m[k];
        for (int j = 0; j < LANES; j++) {
            inverse[j] = s[j] > 0 ? 1 / s[j] : inverse[j];
            offset[j] = s[j] > 0 ? m[j] : offset[j];
        }
    }
}

/* Gives each group the integers of least error near its best scale and minimum, for the plan's d and min; sums the error. */
TARGET static void round_groups(plan *p, const float *y, int groups, int n, float lowest, float highest, float s_least,
                                float s_most, float m_most) {
    const float by_d = p->d != 0 ? 1 / p->d : 0, by_least = p->min != 0 ? 1 / p->min : 0;
    p->error = 0;
    for (int g = 0; g < groups; g++) {
        float s[LANES], m[LANES], scale[LANES], offset[LANES], error[LANES];
        const float wish = whole(clamp(p->scale[g] * by_d, s_least, s_most));
        const float base = whole(clamp(p->minimum[g] * by_least, 0, m_most));
        for (int k = 0; k < LANES; k++) { /* three scales by five minimums; or seven scales */
            s[k] = clamp(wish + (float)(m_most > 0 ? k % 3 - 1 : k % 7 - 3), s_least, s_most);
            m[k] = m_most > 0 ? clamp(base + (float)(k / 3 % 5 - 2), 0, m_most) : 0;
            scale[k] = p->d * s[k], offset[k] = p->min * m[k];
        }
        errors_of(y + g * n, n, scale, offset, lowest, highest, error);
        int best = 0;
        for (int k = 1; k < LANES; k++)
            if (error[k] < error[best]) best = k;
        p->s[g] = s[best], p->m[g] = m[best];
        p->error += (double)error[best];
    }
}

/* Fits d and min to all codes of a plan by least squares; returns 0 if there is no such fit. */
TARGET static int refit(const plan *p, const float *y, int groups, int n, float lowest, float highest, double *d, double *min) {
    double aa = 0, ab = 0, bb = 0, ay = 0, by = 0;
    for (int g = 0; g < groups; g++) {
        float q[32], q1 = 0, qq = 0, yq = 0, y1 = 0;
        codes_of(y + g * n, n, p->d * p->s[g], p->min * p->m[g], lowest, highest, q);
        for (int i = 0; i < n; i++) q1 += q[i], qq += q[i] * q[i], yq += y[g * n + i] * q[i], y1 += y[g * n + i];
        const double s = (double)p->s[g], m = (double)p->m[g];
        aa += s * s * (double)qq, ab -= s * m * (double)q1, bb += m * m * n, ay += s * (double)yq, by -= m * (double)y1;
    }
    const double det = aa * bb - ab * ab;
    if (det > 0 && bb > 0) {
        *d = (ay * bb - by * ab) / det, *min = (by * aa - ay * ab) / det;
        if (*min >= 0) return 1;
    }
    *d = aa > 0 ? ay / aa : 0, *min = 0;
    return aa > 0;
}

/* The best of plans that begin with these values of d, refined. */
TARGET static plan best_plan(const plan *wishes, const double *starts, int count, double min, const float *y, float unit,
                             int groups, int n, float lowest, float highest, float s_least, float s_most, float m_most) {
    plan best = *wishes;
    best.error = -1;
    for (int start = 0; start < count; start++) {
        double d = starts[start], offset = min;
        for (int round = 0; round < 2; round++) {
            plan p = *wishes;
            p.d = stored(d, unit, &p.d_bits), p.min = stored(offset, unit, &p.least_bits);
            round_groups(&p, y, groups, n, lowest, highest, s_least, s_most, m_most);
            if (best.error < 0 || p.error < best.error) best = p;
            if (!refit(&p, y, groups, n, lowest, highest, &d, &offset)) break;
        }
    }
    return best;
}

/* The plan of a super-block of sixteen groups with signed codes and scales; its d is 0 for zeros alone. */
TARGET WM_INLINE plan plan_signed(const float *y, float unit, float lowest, float highest, float from, float step,
                                  float s_least, float s_most) {
    float extreme = 0;
    plan p = {.error = 0};
    for (int g = 0; g < 16; g++) {
        const float s = p.scale[g] = scale_of_16(y + 16 * g, lowest, highest, from, step);
        extreme = (s < 0 ? -s : s) > (extreme < 0 ? -extreme : extreme) ? s : extreme;
    }
    if (extreme == 0) return p;
    const double starts[2] = {(double)extreme / (double)s_least, (double)extreme / (double)s_most};
    return best_plan(&p, starts, 2, 0, y, unit, 16, 16, lowest, highest, s_least, s_most, 0);
}

/* The plan of a super-block of groups of n elements with minimums; its d and min are 0 for zeros alone. */
TARGET WM_INLINE plan plan_range(const float *y, float unit, int n, float highest, float from, float step, float s_most) {
    float scale = 0, minimum = 0;
    plan p = {.error = 0};
    for (int g = 0; g < 256 / n; g++) {
        fit(y + n * g, n, highest, from, step, &p.scale[g], &p.minimum[g]);
        scale = p.scale[g] > scale ? p.scale[g] : scale, minimum = p.minimum[g] > minimum ? p.minimum[g] : minimum;
    }
    if (scale == 0 && minimum == 0) return p;
    const double start = (double)scale / (double)s_most;
    return best_plan(&p, &start, 1, (double)minimum / (double)s_most, y, unit, 256 / n, n, 0, highest, 0, s_most, s_most);
}

/* The codes of a plan, plus `more`. */
TARGET static void write_codes(const plan *p, const float *y, int n, float lowest, float highest, int more, uint8_t q[256]) {
    float codes[32];
    for (int g = 0; g < 256 / n; g++) {
        codes_of(y + n * g, n, p->d * p->s[g], p->min * p->m[g], lowest, highest, codes);
        for (int i = 0; i < n; i++) q[n * g + i] = (uint8_t)((int)codes[i] + more);
    }
}

/* Two bits of 256 codes, from bit `shift` on, as q2_k to q6_k store them: in each half, four times 32 codes side by side. */
static void put_quarters_of(const uint8_t q[256], int shift, uint8_t *out) {
    for (int i = 0; i < 256; i++) out[i / 128 * 32 + i % 32] |= (uint8_t)((q[i] >> shift & 3) << i % 128 / 32 * 2);
}

TARGET static void quantize_q2_k(const float *x, uint8_t *out) {
    float y[256];
    uint8_t q[256];
    const float unit = unit_of(x, 256, y);
    const plan p = plan_range(y, unit, 16, 3, 2.2f, 0.12f, 15);
    memset(out, 0, 84);
    put16(out + 80, p.d_bits);
    put16(out + 82, p.least_bits);
    for (int g = 0; g < 16; g++) out[g] = (uint8_t)((int)p.s[g] | (int)p.m[g] << 4);
    write_codes(&p, y, 16, 0, 3, 0, q);
    put_quarters_of(q, 0, out + 16);
}

TARGET static void quantize_q3_k(const float *x, uint8_t *out) {
    float y[256];
    uint8_t q[256];
    const float unit = unit_of(x, 256, y);
    const plan p = plan_signed(y, unit, -4, 3, 2.6f, 0.16f, -32, 31);
    memset(out, 0, 110);
    if (p.d_bits == 0) return;
    put16(out + 108, p.d_bits);
    for (int g = 0; g < 16; g++) {
        const int s = (int)p.s[g] + 32;
        out[96 + g % 8] |= (uint8_t)((s & 15) << g / 8 * 4);
        out[104 + g % 4] |= (uint8_t)((s >> 4) << g / 4 * 2);
    }
    write_codes(&p, y, 16, -4, 3, 4, q);
    put_quarters_of(q, 0, out + 32);
    for (int i = 0; i < 256; i++) out[i % 32] |= (uint8_t)((q[i] >> 2) << i / 32);
}

TARGET static void quantize_q6_k(const float *x, uint8_t *out) {
    float y[256];
    uint8_t q[256];
    const float unit = unit_of(x, 256, y);
    const plan p = plan_signed(y, unit, -32, 31, 30.6f, 0.16f, -128, 127);
    memset(out, 0, 210);
    if (p.d_bits == 0) return;
    for (int g = 0; g < 16; g++) out[192 + g] = (uint8_t)(int)p.s[g];
    put16(out + 208, p.d_bits);
    write_codes(&p, y, 16, -32, 31, 32, q);
    for (int i = 0; i < 256; i++) out[i / 128 * 64 + i % 64] |= (uint8_t)((q[i] & 15) << i % 128 / 64 * 4);
    put_quarters_of(q, 4, out + 128);
}

/* The scales and minimums of q4_k and q5_k: six bits each. */
static void put_six(const plan *p, uint8_t *out) {
    for (int g = 0; g < 8; g++) {
        const int s = (int)p->s[g], m = (int)p->m[g], k = g % 4;
        if (g < 4) {
            out[k] |= (uint8_t)s, out[4 + k] |= (uint8_t)m;
        } else {
            out[k] |= (uint8_t)(s >> 4 << 6), out[4 + k] |= (uint8_t)(m >> 4 << 6);
            out[8 + k] = (uint8_t)((s & 15) | (m & 15) << 4);
        }
    }
}

TARGET WM_INLINE void quantize_45_k(const float *x, int bits, uint8_t *out) {
    const float highest = bits == 4 ? 15 : 31;
    float y[256];
    uint8_t q[256];
    const float unit = unit_of(x, 256, y);
    const plan p = plan_range(y, unit, 32, highest, bits == 4 ? 13.0f : 28.5f, 0.2f, 63);
    uint8_t *const high = out + 16, *const low = bits == 4 ? high : high + 32;
    memset(out, 0, bits == 4 ? 144 : 176);
    put16(out, p.d_bits);
    put16(out + 2, p.least_bits);
    put_six(&p, out + 4);
    write_codes(&p, y, 32, 0, highest, 0, q);
    for (int i = 0; i < 256; i++) {
        low[i / 64 * 32 + i % 32] |= (uint8_t)((q[i] & 15) << i / 32 % 2 * 4);
        if (bits == 5) high[i % 32] |= (uint8_t)(q[i] >> 4 << i / 32);
    }
}
TARGET static void quantize_q4_k(const float *x, uint8_t *out) { quantize_45_k(x, 4, out); }
TARGET static void quantize_q5_k(const float *x, uint8_t *out) { quantize_45_k(x, 5, out); }

/* ------------------------------------------------------------------------------------------------------ iq4_nl */
static const float iq4_steps[15] = {23, 21, 18, 16, 14, 13, 12, 11, 12, 12, 13, 15, 16, 20, 24};
static const float iq4_between[15] = {-115.5f, -93.5f, -74, -57, -42, -28.5f, -16, -4.5f, 7, 19, 31.5f, 45.5f, 61, 79, 101};
/* The value of the table that is nearest to v, the lower one of two. */
static inline float iq4_nearest(float v) {
    float value = -127;
    for (int k = 0; k < 15; k++) value += v > iq4_between[k] ? iq4_steps[k] : 0;
    return value;
}

TARGET static void quantize_iq4_nl(const float *x, uint8_t *out) {
    float y[32], extreme = 0, best = 0;
    double min = 0; /* the error of a scale of 0, which tiny elements get */
    const float unit = unit_of(x, 32, y);
    memset(out, 0, 2);
    for (int i = 0; i < 32; i++) min += (double)y[i] * (double)y[i];
    for (int i = 0; i < 32; i++) extreme = (y[i] < 0 ? -y[i] : y[i]) > (extreme < 0 ? -extreme : extreme) ? y[i] : extreme;
    const float by_extreme = extreme != 0 ? 1 / extreme : 0;
    for (int sign = 0; sign < 2 && extreme != 0; sign++) { /* the largest element may get the lowest value, or the highest */
        float inverse[LANES], d[LANES] = {0}, best_gain = 0, result = 0;
        for (int k = 0; k < LANES; k++) inverse[k] = (sign ? 105.0f + (float)k : -119.0f - (float)k) * by_extreme;
        for (int round = 0; round < 3; round++) {
            float yv[LANES] = {0}, vv[LANES] = {0}, gain[LANES];
            for (int i = 0; i < 32; i++)
                for (int k = 0; k < LANES; k++) {
                    const float v = iq4_nearest(y[i] * inverse[k]);
                    yv[k] += y[i] * v;
                    vv[k] += v * v;
                }
            for (int k = 0; k < LANES; k++) gain[k] = yv[k] * yv[k] / vv[k], d[k] = yv[k] / vv[k];
            const int k = largest_of(gain);
            if (gain[k] > best_gain) best_gain = gain[k], result = d[k];
            for (int j = 0; j < LANES; j++) inverse[j] = d[j] != 0 ? 1 / d[j] : inverse[j];
        }
        uint16_t bits;
        const float scale = stored((double)result, unit, &bits);
        const float by_scale = scale != 0 && is_finite(1 / scale) ? 1 / scale : 0;
        double error = 0;
        for (int i = 0; i < 32; i++) {
            const float e = y[i] - scale * iq4_nearest(y[i] * by_scale);
            error += (double)e * (double)e;
        }
        if (error < min) min = error, best = by_scale, put16(out, bits);
    }
    memset(out + 2, 0, 16);
    for (int i = 0; i < 32; i++) {
        int code = 0;
        for (int k = 0; k < 15; k++) code += y[i] * best > iq4_between[k];
        out[2 + i % 16] |= (uint8_t)(code << i / 16 * 4);
    }
}

/* -------------------------------------------------------------------------------------------------- all types */
TARGET void NAME(int type, const float *x, uint64_t n, uint8_t *out) {
    switch (type) {
    case WM_GGML_q4_0:
        for (; n; n--, x += 32, out += 18) quantize_signed(x, 4, out);
        break;
    case WM_GGML_q5_0:
        for (; n; n--, x += 32, out += 22) quantize_signed(x, 5, out);
        break;
    case WM_GGML_q4_1:
        for (; n; n--, x += 32, out += 20) quantize_range(x, 4, out);
        break;
    case WM_GGML_q5_1:
        for (; n; n--, x += 32, out += 24) quantize_range(x, 5, out);
        break;
    case WM_GGML_q8_0:
        for (; n; n--, x += 32, out += 34) quantize_q8_0(x, out);
        break;
    case WM_GGML_q2_k:
        for (; n; n--, x += 256, out += 84) quantize_q2_k(x, out);
        break;
    case WM_GGML_q3_k:
        for (; n; n--, x += 256, out += 110) quantize_q3_k(x, out);
        break;
    case WM_GGML_q4_k:
        for (; n; n--, x += 256, out += 144) quantize_q4_k(x, out);
        break;
    case WM_GGML_q5_k:
        for (; n; n--, x += 256, out += 176) quantize_q5_k(x, out);
        break;
    case WM_GGML_q6_k:
        for (; n; n--, x += 256, out += 210) quantize_q6_k(x, out);
        break;
    case WM_GGML_iq4_nl:
        for (; n; n--, x += 32, out += 18) quantize_iq4_nl(x, out);
        break;
    case WM_GGML_mxfp4:
        for (; n; n--, x += 32, out += 17) quantize_mxfp4(x, out);
        break;
    default: break;
    }
}
