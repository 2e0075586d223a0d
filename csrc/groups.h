/* Integers of checkpoints with scales and zero points of groups: the loops, compiled once for each instruction set.
 *
 *     out[o][c] = s[group[c]][o] * (q[c][o] - z[group[c]][o])
 *
 * Codes lie transposed: along outputs o (AWQ), or along columns c (GPTQ). A tile is TILE outputs of ACROSS columns. One column of it
 * is PLANES times LANES codes, a word each, of which all lanes need the same bits: of AWQ, a word has one output of each plane.
 * Rounded values go to a buffer of the first-level cache, and from there, transposed, to the rows of the output.
 *
 * A file includes coded_lanes.h before this one.
 */
#include "groups_value.h"

/* Eight halves in a register, which every x86-64 (SSE2) and arm64 (NEON) has: those of two registers in turns, by ones, twos or fours,
 * from the lower half or the upper one. */
#if WM_X86
#include <emmintrin.h>
typedef __m128i eight_halves;
WM_INLINE eight_halves load_eight(const uint8_t *from) { return _mm_loadu_si128((const __m128i *)(const void *)from); }
WM_INLINE void store_eight(uint8_t *to, eight_halves h) { _mm_storeu_si128((__m128i *)(void *)to, h); }
WM_INLINE eight_halves ones(eight_halves a, eight_halves b, int upper) {
    return upper ? _mm_unpackhi_epi16(a, b) : _mm_unpacklo_epi16(a, b);
}
WM_INLINE eight_halves twos(eight_halves a, eight_halves b, int upper) {
    return upper ? _mm_unpackhi_epi32(a, b) : _mm_unpacklo_epi32(a, b);
}
WM_INLINE eight_halves fours(eight_halves a, eight_halves b, int upper) {
    return upper ? _mm_unpackhi_epi64(a, b) : _mm_unpacklo_epi64(a, b);
}
#elif WM_ARM
#include <arm_neon.h>
typedef uint16x8_t eight_halves;
WM_INLINE eight_halves load_eight(const uint8_t *from) { return vreinterpretq_u16_u8(vld1q_u8(from)); }
WM_INLINE void store_eight(uint8_t *to, eight_halves h) { vst1q_u8(to, vreinterpretq_u8_u16(h)); }
WM_INLINE eight_halves ones(eight_halves a, eight_halves b, int upper) { return upper ? vzip2q_u16(a, b) : vzip1q_u16(a, b); }
WM_INLINE eight_halves twos(eight_halves a, eight_halves b, int upper) {
    const uint32x4_t x = vreinterpretq_u32_u16(a), y = vreinterpretq_u32_u16(b);
    return vreinterpretq_u16_u32(upper ? vzip2q_u32(x, y) : vzip1q_u32(x, y));
}
WM_INLINE eight_halves fours(eight_halves a, eight_halves b, int upper) {
    const uint64x2_t x = vreinterpretq_u64_u16(a), y = vreinterpretq_u64_u16(b);
    return vreinterpretq_u16_u64(upper ? vzip2q_u64(x, y) : vzip1q_u64(x, y));
}
#endif

/* The codes of one column, `first` on. */
TARGET WM_INLINE void decode_column(const wm_grouped *w, uint64_t first, uint64_t c, const float *s, const float *z, int type,
                                    uint8_t *to) {
    const uint64_t bit = c * (uint64_t)w->bits, bytes = type == AS_FLOAT32 ? 4 : 2;
    const uint32_t mask = (1u << w->bits) - 1;
    for (int j = 0; j < PLANES; j++) {
        const int at = LANES * j;
        const uint8_t *words = w->words;
        words +=
            w->packing == ALONG_ROWS ? 4 * (c * (w->rows / 8) + first / 8) : 4 * (bit / 32 * w->rows + first + (uint64_t)at);
        const unsigned shift = w->packing == ALONG_ROWS ? 4 * (unsigned)j : (unsigned)(bit % 32);
        uint32_t q[LANES];
        float values[LANES];
        for (int l = 0; l < LANES; l++) q[l] = load_le32(words + 4 * l) >> shift;
        if (shift + (unsigned)w->bits > 32) /* of 3 bits, the next word has the rest */
            for (int l = 0; l < LANES; l++) q[l] |= load_le32(words + 4 * w->rows + 4 * l) << (32 - shift);
        for (int l = 0; l < LANES; l++) values[l] = s[at + l] * ((float)(int32_t)(q[l] & mask) - z[at + l]);
        round_lanes(values, type, to + bytes * (uint64_t)at);
    }
}

/* The row of the output that has lane `at` of a tile. */
TARGET WM_INLINE uint64_t row_at(const wm_grouped *w, uint64_t first, int at) {
    if (w->packing != ALONG_ROWS) return first + (uint64_t)at;
    return first + 8 * (uint64_t)(at % LANES) + output_of_nibble[at / LANES];
}

/* A tile to the rows of the output, from column c on. */
TARGET WM_INLINE void transpose_tile(const wm_grouped *w, const uint8_t *tile, uint64_t first, uint64_t c, int type) {
    const uint64_t bytes = type == AS_FLOAT32 ? 4 : 2;
#if WM_X86 || WM_ARM
    if (type != AS_FLOAT32) {
        for (int at = 0; at < TILE; at += 8)
            for (int k = 0; k < ACROSS; k += 8) {
                eight_halves a[8], b[8];
                for (int i = 0; i < 8; i++) a[i] = load_eight(tile + 2 * (TILE * (k + i) + at));
                for (int i = 0; i < 8; i++) b[i] = ones(a[i / 2 * 2], a[i / 2 * 2 + 1], i % 2);
                for (int i = 0; i < 8; i++) a[i] = twos(b[i / 4 * 4 + i / 2 % 2], b[i / 4 * 4 + 2 + i / 2 % 2], i % 2);
                for (int i = 0; i < 8; i++) b[i] = fours(a[i / 2], a[4 + i / 2], i % 2);
                for (int i = 0; i < 8; i++)
                    store_eight(w->out + 2 * (row_at(w, first, at + i) * w->columns + c + (uint64_t)k), b[i]);
            }
        return;
    }
#endif
    for (int at = 0; at < TILE; at++) {
        uint8_t *to = w->out + bytes * (row_at(w, first, at) * w->columns + c);
        for (int k = 0; k < ACROSS; k++) memcpy(to + bytes * (uint64_t)k, tile + bytes * (uint64_t)(TILE * k + at), bytes);
    }
}

TARGET WM_INLINE void decode_rows(const wm_grouped *w, uint64_t begin, uint64_t end, int type) {
    uint8_t tile[4 * TILE * ACROSS];
    float scales[TILE], zeros[TILE]; /* in the order of lanes */
    const uint64_t bytes = type == AS_FLOAT32 ? 4 : 2, whole = w->columns / ACROSS * ACROSS;
    uint64_t first = begin;
    for (; end - first >= TILE; first += TILE) {
        uint64_t filled = UINT64_MAX; /* the group that they are of */
        for (uint64_t c = 0; c < whole; c += ACROSS) {
            for (uint64_t k = 0; k < ACROSS; k++) {
                const uint64_t group = w->group[c + k];
                const float *s = w->scales + group * w->rows + first, *z = w->zeros + group * w->rows + first;
                if (w->packing == ALONG_ROWS) {
                    for (int at = 0; filled != group && at < TILE; at++) {
                        const uint64_t from = row_at(w, 0, at);
                        scales[at] = s[from], zeros[at] = z[from];
                    }
                    filled = group, s = scales, z = zeros;
                }
                decode_column(w, first, c + k, s, z, type, tile + bytes * TILE * k);
            }
            transpose_tile(w, tile, first, c, type);
        }
        wm_grouped_one_by_one(w, first, first + TILE, whole);
    }
    wm_grouped_one_by_one(w, first, end, 0);
}

TARGET void JOIN(groups_, SUFFIX)(const wm_grouped *w, uint64_t begin, uint64_t end) {
    switch (w->type) {
    case AS_FLOAT16: decode_rows(w, begin, end, AS_FLOAT16); break;
    case AS_BFLOAT16: decode_rows(w, begin, end, AS_BFLOAT16); break;
    default: decode_rows(w, begin, end, AS_FLOAT32);
    }
}
