/* Decodes whole blocks of ggml's types. Each instruction set, and the portable C, includes this file once.
 *
 * Every type is decoded alike: 32 small integers at a time come out of packed bits, or out of a code book, and each becomes
 * scale * code, or scale * code + offset, in float32. One scale serves 16 elements or more.
 *
 * A file defines before it includes this one:
 *
 *   TARGET, SUFFIX               the instructions that functions may use, and the end of their names
 *   ODD                          decodes a block whose scales are NaN or infinite; if not defined, this file does
 *   codes                        32 bytes, and functions that make them:
 *     load32(p)                    the 32 bytes at p
 *     nibbles(p)                   the 16 bytes at p: first all low halves, then all high halves
 *     nibbles8(p)                  the same for 8 bytes, then for the next 8
 *     of_words(a, b, c, d)         four times 8 bytes, the lowest bits first
 *     bits(word, value)            `value` where a bit of the 32 is set, else 0; where BOOKS is not defined
 *     field(c, shift, mask)        c >> shift & mask, or with a negative shift c << -shift & mask
 *     plus(c, n), add(a, b)        sums, modulo 256
 *     negate(c, word)              -c where a bit of the 32 is set
 *     lookup(table, c)             table[c] of 16 bytes, for c < 16
 *   STREAMED                     if defined, stores bypass the caches, and `out` begins where a line of 64 bytes does
 *   BOOKS                        optional: 16 floats in a register (`book`), and functions that this file else defines:
 *     line(from, s, x)             s * i + x, for sixteen i that begin with `from`
 *     scaled(table, s)             s * table[i], for 16 signed bytes
 *     put_nibbles(out, p, t)       t[low half] of 16 bytes, then t[high half]
 *     put_pairs(out, p, t, u)      t[low half] of 32 bytes, then u[high half]
 *     put_fives(out, p, high, t, u)  put_nibbles, but u where a bit of `high` is set: u goes on where t ends
 *     put_quarters(out, p, s, x)   out[32 * k + i] = s[j] * c + x[j], c the bits 2k and 2k + 1 of p[i], j = 2k + i / 16; 32 bytes
 *   half_at(p)                   the float16 at p
 *   products(out, v, w, a, b)    out[i] = a * signed byte i of the word v, out[8 + i] = b * signed byte i of w
 *   put(out, c, s, t)            out[i] = s * c[i] for i < 16, t * c[i] for 16 <= i < 32, of signed bytes
 *   put_sum(out, c, s, x, t, y)  the same, + x and + y
 *   put_trits(out, step, p, n, d)  out[step * k + i] = d * t, i < 16, k < n; t is -1, 0 or 1: digit k of p[i] less 1. A byte is a
 *                                number in base 3 as a fraction of 256: three times it is the digit, and what is left
 *
 * `shift`, `mask`, `value` and `n` are constants once loops are unrolled.
 */
#include "quant/ggml.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

#define JOIN_NAMES(a, b) a##b
#define JOIN(a, b) JOIN_NAMES(a, b)
#define DECODER(name) TARGET WM_INLINE void decode_##name(const uint8_t *b, float *out)

#if !defined(BOOKS)
typedef struct {
    const int8_t *table; /* NULL: 0, 1, 2, ... */
    float s, x;
} book;
TARGET WM_INLINE book line(int from, float s, float x) { return (book){NULL, s, x}; }
TARGET WM_INLINE book scaled(const int8_t *table, float s) { return (book){table, s, 0}; }
TARGET WM_INLINE void put_by(float *out, codes c, book t) {
    if (t.table)
        put(out, lookup(t.table, c), t.s, t.s);
    else
        put_sum(out, c, t.s, t.x, t.s, t.x);
}
TARGET WM_INLINE void put_nibbles(float *out, const uint8_t *p, book t) { put_by(out, nibbles(p), t); }
TARGET WM_INLINE void put_pairs(float *out, const uint8_t *p, book t, book u) {
    const codes both = load32(p);
    put_by(out, field(both, 0, 15), t);
    put_by(out + 32, field(both, 4, 15), u);
}
TARGET WM_INLINE void put_fives(float *out, const uint8_t *p, uint32_t high, book t, book u) {
    const codes all = add(nibbles(p), bits(high, 16));
    if (t.table)
        put(out, plus(all, t.table[0]), t.s, t.s);
    else
        put_sum(out, all, t.s, t.x, t.s, t.x);
}
TARGET WM_INLINE void put_quarters(float *out, const uint8_t *p, const float s[8], const float x[8]) {
    const codes q = load32(p);
    for (int k = 0; k < 8; k += 2) put_sum(out + 16 * k, field(q, k, 3), s[k], x[k], s[k + 1], x[k + 1]);
}
#endif

/* ---------------------------------------------------------------------------------------- blocks of 32 elements */
static const int8_t less_8[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

DECODER(q4_0) { put_nibbles(out, b + 2, scaled(less_8, half_at(b))); }

DECODER(q4_1) { put_nibbles(out, b + 4, line(0, half_at(b), half_at(b + 2))); }

static const int8_t less_16[16] = {-16, -15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1};
static const int8_t counted[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

DECODER(q5_0) {
    const float d = half_at(b);
    put_fives(out, b + 6, load_le32(b + 2), scaled(less_16, d), scaled(counted, d));
}

DECODER(q5_1) {
    const float d = half_at(b), m = half_at(b + 2);
    put_fives(out, b + 8, load_le32(b + 4), line(0, d, m), line(16, d, m));
}

DECODER(q8_0) {
    const float d = half_at(b);
    put(out, load32(b + 2), d, d);
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/* Twice the eight magnitudes of E2M1, with either sign. */
static const int8_t fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

DECODER(iq4_nl) { put_nibbles(out, b + 2, scaled(iq4_values, half_at(b))); }

/* The scale is a power of two, 2^(e - 127), halved. */
DECODER(mxfp4) {
    const float d = float_of_bits(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23);
    put_nibbles(out, b + 1, scaled(fp4_values, d));
}

/* The scale of a quarter of the block: E4M3 without a sign, halved; 0x7F stands for 0. */
static inline float nvfp4_scale(uint8_t e4m3) {
    const int exponent = e4m3 >> 3 & 15, fraction = e4m3 & 7;
    if (e4m3 == 0x7F) return 0;
    if (exponent == 0) return (float)fraction * 0x1p-10f;
    return float_of_bits((uint32_t)(exponent + 119) << 23 | (uint32_t)fraction << 20);
}

DECODER(nvfp4) {
    for (int i = 0; i < 2; i++)
        put(out + 32 * i, lookup(fp4_values, nibbles8(b + 4 + 16 * i)), nvfp4_scale(b[2 * i]), nvfp4_scale(b[2 * i + 1]));
}

/* --------------------------------------------------------------------------------- q2_k to q6_k: scales of scales */
/* A word of eight equal bytes. */
#define BYTES(value) ((uint64_t)(value) * 0x0101010101010101)

/* Subtracts 32 from each byte, which is below 64; no byte borrows from the next. */
static inline uint64_t less_32(uint64_t bytes) { return ((bytes | BYTES(128)) - BYTES(32)) ^ BYTES(128); }

DECODER(q2_k) {
    float s[16], m[16];
    const float d = half_at(b + 80), min = -half_at(b + 82);
    const uint64_t first = load_le64(b), second = load_le64(b + 8);
    products(s, first & BYTES(15), second & BYTES(15), d, d);
    products(m, first >> 4 & BYTES(15), second >> 4 & BYTES(15), min, min);
    put_quarters(out, b + 16, s, m);
    put_quarters(out + 128, b + 48, s + 8, m + 8);
}

/* The 16 scales are 6-bit numbers less 32: first the low four bits of all, then the high two. */
DECODER(q3_k) {
    float s[16];
    const float d = half_at(b + 108);
    const uint64_t low = load_le64(b + 96), top = load_le32(b + 104), top2 = top | top >> 2 << 32;
    const uint64_t first = (low & BYTES(15)) | (top2 & BYTES(3)) << 4;
    const uint64_t second = (low >> 4 & BYTES(15)) | (top2 >> 4 & BYTES(3)) << 4;
    products(s, less_32(first), less_32(second), d, d);
    const codes high = load32(b);
    for (int i = 0; i < 2; i++) {
        const codes q = load32(b + 32 + 32 * i);
        for (int k = 0; k < 4; k++) {
            const int g = 8 * i + 2 * k;
            put(out + 16 * g, plus(add(field(q, 2 * k, 3), field(high, 4 * i + k - 2, 4)), -4), s[g], s[g + 1]);
        }
    }
}

/* Multiplies eight 6-bit scales and eight 6-bit offsets by the block's two numbers; the offsets become negative. */
TARGET WM_INLINE void k_scales(const uint8_t *b, float out[16]) {
    const uint64_t s = load_le32(b + 4), m = load_le32(b + 8), last = load_le32(b + 12);
    const uint64_t s2 = (last & 0x0F0F0F0F) | (s >> 2 & 0x30303030), m2 = (last >> 4 & 0x0F0F0F0F) | (m >> 2 & 0x30303030);
    products(out, (s & 0x3F3F3F3F) | s2 << 32, (m & 0x3F3F3F3F) | m2 << 32, half_at(b), -half_at(b + 2));
}

DECODER(q4_k) {
    float s[16];
    k_scales(b, s);
    for (int i = 0; i < 4; i++)
        put_pairs(out + 64 * i, b + 16 + 32 * i, line(0, s[2 * i], s[8 + 2 * i]), line(0, s[2 * i + 1], s[9 + 2 * i]));
}

DECODER(q5_k) {
    float s[16];
    k_scales(b, s);
    const codes high = load32(b + 16);
    for (int i = 0; i < 4; i++, out += 64) {
        const codes q = load32(b + 48 + 32 * i);
        const codes first = add(field(q, 0, 15), field(high, 2 * i - 4, 16));
        const codes second = add(field(q, 4, 15), field(high, 2 * i - 3, 16));
        put_sum(out, first, s[2 * i], s[8 + 2 * i], s[2 * i], s[8 + 2 * i]);
        put_sum(out + 32, second, s[2 * i + 1], s[9 + 2 * i], s[2 * i + 1], s[9 + 2 * i]);
    }
}

DECODER(q6_k) {
    float s[16];
    const float d = half_at(b + 208);
    products(s, load_le64(b + 192), load_le64(b + 200), d, d);
    for (int i = 0; i < 2; i++) {
        const codes high = load32(b + 128 + 32 * i);
        for (int k = 0; k < 4; k++) {
            const int g = 8 * i + 2 * k;
            const codes low = field(load32(b + 64 * i + 32 * (k % 2)), k / 2 * 4, 15);
            put(out + 16 * g, plus(add(low, field(high, 2 * k - 4, 48)), -32), s[g], s[g + 1]);
        }
    }
}

DECODER(iq4_xs) {
    float s[16];
    const float d = half_at(b);
    const uint64_t low = load_le32(b + 4), high = load_le16(b + 2);
    uint64_t six = 0;
    for (int i = 0; i < 8; i++) six |= ((low >> 4 * i & 15) | (high >> 2 * i & 3) << 4) << 8 * i;
    products(s, less_32(six), 0, d, d);
    for (int i = 0; i < 8; i++) put_nibbles(out + 32 * i, b + 8 + 16 * i, scaled(iq4_values, s[i]));
}

/* -------------------------------------------------------------------------------------------------- three values */
DECODER(tq1_0) {
    const float d = half_at(b + 52);
    uint8_t last[16]; /* of four bytes, times 1, 3, 9 and 27: four digits of each are the first digits of these */
    for (int i = 0; i < 16; i++) last[i] = (uint8_t)(b[48 + i % 4] * (i < 8 ? i < 4 ? 1 : 3 : i < 12 ? 9 : 27));
    put_trits(out, 32, b, 5, d);
    put_trits(out + 16, 32, b + 16, 5, d);
    put_trits(out + 160, 16, b + 32, 5, d);
    put_trits(out + 240, 16, last, 1, d);
}

DECODER(tq2_0) {
    const float d = half_at(b + 64);
    for (int i = 0; i < 2; i++) {
        const codes q = load32(b + 32 * i);
        for (int k = 0; k < 4; k++, out += 32) put(out, plus(field(q, 2 * k, 3), -1), d, d);
    }
}

/* --------------------------------------------------------------------------------------------- codes of one or two bits */
/* d where a bit is set, else -d. */
DECODER(q1_0) {
    const float d = half_at(b);
    const codes ones = of_words(BYTES(1), BYTES(1), BYTES(1), BYTES(1));
    for (int i = 0; i < 4; i++) put(out + 32 * i, negate(ones, ~load_le32(b + 2 + 4 * i)), d, d);
}

/* Eight numbers of two bits, the lowest first: one in a byte. */
static inline uint64_t eight_twos(const uint8_t *p) {
    uint64_t w = load_le16(p);
    w = (w | w << 24) & 0x000000FF000000FF;
    w = (w | w << 12) & 0x000F000F000F000F;
    return (w | w << 6) & BYTES(3);
}

DECODER(q2_0) {
    const float d = half_at(b);
    for (const uint8_t *q = b + 2; q < b + 18; q += 8, out += 32)
        put(out, plus(of_words(eight_twos(q), eight_twos(q + 2), eight_twos(q + 4), eight_twos(q + 6)), -1), d, d);
}

/* --------------------------------------------------------------------------------------------------- code books */
static inline uint64_t eight(const uint8_t (*grid)[8], unsigned i) { return load_le64(grid[i]); }
static inline uint64_t twice_four(const uint8_t (*grid)[4], unsigned i, unsigned k) {
    return load_le32(grid[i]) | (uint64_t)load_le32(grid[k]) << 32;
}
/* Expands four times seven signs to eight: an even number of each eight is negative, which gives the eighth. */
static inline uint32_t even_signs(uint32_t w) {
    w = (w & 0x7F) | (w << 1 & 0x7F00) | (w << 2 & 0x7F0000) | (w << 3 & 0x7F000000);
    uint32_t odd = w ^ w >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return w | (odd & 0x01010101) << 7;
}

DECODER(iq2_xxs) {
    const float d = half_at(b);
    for (int i = 0; i < 8; i++) {
        const uint8_t *q = b + 2 + 8 * i;
        const uint32_t w = load_le32(q + 4);
        const float s = d * (0.5f + (float)(int)(w >> 28)) * 0.25f;
        const uint8_t (*const grid)[8] = wm_ggml_grids.iq2_xxs;
        put(out + 32 * i,
            negate(of_words(eight(grid, q[0]), eight(grid, q[1]), eight(grid, q[2]), eight(grid, q[3])),
                   even_signs(w & 0x0FFFFFFF)),
            s, s);
    }
}

/* d * (0.5 + s) * 0.25 of the two scales in each of eight bytes: first of all low halves. It is exact. */
TARGET WM_INLINE void iq2_scales(const uint8_t *p, float d, float out[16]) {
    const uint64_t both = load_le64(p);
    products(out, 2 * (both & BYTES(15)) | BYTES(1), 2 * (both >> 4 & BYTES(15)) | BYTES(1), d * 0.125f, d * 0.125f);
}

DECODER(iq2_xs) {
    float s[16];
    iq2_scales(b + 66, half_at(b), s);
    for (int i = 0; i < 8; i++) {
        const uint64_t w = load_le64(b + 2 + 8 * i); /* four times nine bits of a number and seven signs */
        const uint8_t (*const grid)[8] = wm_ggml_grids.iq2_xs;
        const uint32_t signs = (uint32_t)((w >> 9 & 0x7F) | (w >> 18 & 0x3F80) | (w >> 27 & 0x1FC000) | (w >> 36 & 0xFE00000));
        put(out + 32 * i,
            negate(of_words(eight(grid, w & 511), eight(grid, w >> 16 & 511), eight(grid, w >> 32 & 511),
                            eight(grid, w >> 48 & 511)),
                   even_signs(signs)),
            s[i], s[8 + i]);
    }
}

DECODER(iq2_s) {
    float s[16];
    iq2_scales(b + 74, half_at(b), s);
    for (int i = 0; i < 8; i++) {
        const uint8_t *q = b + 2 + 4 * i;
        const unsigned high = (unsigned)b[66 + i] << 8;
        const uint8_t (*const grid)[8] = wm_ggml_grids.iq2_s;
        put(out + 32 * i,
            negate(of_words(eight(grid, q[0] | (high & 0x300)), eight(grid, q[1] | (high >> 2 & 0x300)),
                            eight(grid, q[2] | (high >> 4 & 0x300)), eight(grid, q[3] | (high >> 6 & 0x300))),
                   load_le32(b + 34 + 4 * i)),
            s[i], s[8 + i]);
    }
}

DECODER(iq3_xxs) {
    const float d = half_at(b);
    for (int i = 0; i < 8; i++) {
        const uint8_t *q = b + 2 + 8 * i;
        const uint32_t w = load_le32(b + 66 + 4 * i);
        const float s = d * (0.5f + (float)(int)(w >> 28)) * 0.5f;
        const uint8_t (*const grid)[4] = wm_ggml_grids.iq3_xxs;
        put(out + 32 * i,
            negate(of_words(twice_four(grid, q[0], q[1]), twice_four(grid, q[2], q[3]), twice_four(grid, q[4], q[5]),
                            twice_four(grid, q[6], q[7])),
                   even_signs(w & 0x0FFFFFFF)),
            s, s);
    }
}

/* Number k of the eight in a group: a byte, and its bit in the group's byte of ninth bits. */
static inline unsigned nine_bits(const uint8_t *q, unsigned high, int k) { return q[k] | (high << (8 - k) & 256); }

DECODER(iq3_s) {
    const float d = half_at(b);
    for (int i = 0; i < 8; i++) {
        const uint8_t *q = b + 2 + 8 * i;
        const unsigned high = b[66 + i];
        const float s = d * (float)(1 + 2 * (b[106 + i / 2] >> i % 2 * 4 & 15));
        const uint8_t (*const grid)[4] = wm_ggml_grids.iq3_s;
        put(out + 32 * i,
            negate(of_words(twice_four(grid, nine_bits(q, high, 0), nine_bits(q, high, 1)),
                            twice_four(grid, nine_bits(q, high, 2), nine_bits(q, high, 3)),
                            twice_four(grid, nine_bits(q, high, 4), nine_bits(q, high, 5)),
                            twice_four(grid, nine_bits(q, high, 6), nine_bits(q, high, 7))),
                   load_le32(b + 74 + 4 * i)),
            s, s);
    }
}

/* Values of the book, -1, 0 and 1, with an eighth added, or in the second half of the book subtracted. All is done in eighths:
 * that is exact. A number has eight bits and four more, of which the last is the half. */
TARGET WM_INLINE uint64_t iq1_point(uint8_t low, unsigned high) { return load_le64(wm_ggml_grids.iq1[low | high]); }

DECODER(iq1_s) {
    const float d = half_at(b) * 0.125f;
    for (int i = 0; i < 8; i++) {
        const uint8_t *q = b + 2 + 4 * i;
        const unsigned high = load_le16(b + 34 + 2 * i);
        const float s = d * (float)(int)((high >> 11 & 14) | 1);
        const codes c = of_words(iq1_point(q[0], high << 8 & 0x700), iq1_point(q[1], high << 5 & 0x700),
                                 iq1_point(q[2], high << 2 & 0x700), iq1_point(q[3], high >> 1 & 0x700));
        put(out + 32 * i, plus(c, high & 0x8000 ? -2 : 0), s, s);
    }
}

/* Four numbers of three bits, of each of two numbers of 16 bits: one in a byte. */
static inline uint64_t four_threes(uint32_t w) {
    const uint64_t spread = (w & 0xFFFF) | (uint64_t)(w >> 16) << 32;
    return (spread & 0x0000000700000007) | (spread << 5 & 0x0000070000000700) | (spread << 10 & 0x0007000000070000) |
           (spread << 15 & 0x0700000007000000);
}

DECODER(iq1_m) {
    float s[16];
    const float d = widen_half(iq1_m_scale(b)) * 0.125f;
    products(s, 2 * four_threes(load_le32(b + 48)) | BYTES(1), 2 * four_threes(load_le32(b + 52)) | BYTES(1), d, d);
    for (int i = 0; i < 8; i++) {
        const uint8_t *q = b + 4 * i;
        const unsigned first = b[32 + 2 * i], second = b[33 + 2 * i];
        put(out + 32 * i,
            of_words(iq1_point(q[0], first << 8 & 0xF00), iq1_point(q[1], first << 4 & 0xF00),
                     iq1_point(q[2], second << 8 & 0xF00), iq1_point(q[3], second << 4 & 0xF00)),
            s[2 * i], s[2 * i + 1]);
    }
}

/* ------------------------------------------------------------------------------------------------------ all types */
/* The CPU prefetches input that is read in order, but not lines that are only stored to. Prefetching the sixteen lines of a block
 * of 256 elements at once would make the input wait: up to a sixth slower. */
#if defined(STREAMED)
#define PREFETCH_BLOCK(elements, bytes) \
    for (int i = 0; i < bytes; i += 64) PREFETCH(b + i + WM_AHEAD)
#else
#define PREFETCH_BLOCK(elements, bytes)          \
    if (storing == WM_FETCHED && elements < 256) \
        for (int i = 0; i < elements; i += 16) PREFETCH(out + i + WM_AHEAD / 4)
#endif
#if defined(ODD)
#define DECODE(name, number, finite) \
    if (finite)                      \
        decode_##name(b, out);       \
    else                             \
        ODD(number, b, 1, out, WM_CACHED)
#else
#define DECODE(name, number, finite) decode_##name(b, out)
#endif
#define CASE(name, number, elements, bytes, finite)   \
    case number:                                      \
        for (; n; n--, b += bytes, out += elements) { \
            PREFETCH_BLOCK(elements, bytes);          \
            DECODE(name, number, finite);             \
        }                                             \
        break;

TARGET void JOIN(ggml_, SUFFIX)(int type, const uint8_t *b, uint64_t n, float *out, int storing) {
    switch (type) { WM_GGML_TYPES(CASE) }
}
