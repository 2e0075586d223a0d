/* Integers of checkpoints with scales and zero points of groups: the loops, compiled once for each instruction set.
 *
 *     out[o][c] = s[group[c]][o] * (q[c][o] - z[group[c]][o])
 *
 * Codes lie transposed: along outputs o (AWQ), or along columns c (GPTQ). A tile is TILE outputs of some columns.
 *
 * Where RUN columns after another are of one group and codes have at most 4 bits, an output has 16 values in that group, which are
 * computed once; and the codes of a tile are turned, so that RUN codes of an output lie together and are looked up like those of
 * lookup.h. Otherwise values are computed for a column, LANES outputs together, and halves are turned.
 *
 * A file includes lookup.h before this one. It defines, where it has registers of more than 16 bytes, TURNED as their bytes, and
 * turned, load_turned, store_turned, interleave and pair_nibbles as below: these work on each 16 bytes alone.
 */
#include "groups_value.h"

/* Registers of 16 bytes, which every x86-64 (SSE2) and arm64 (NEON) has: the elements of two in turns, elements of 1, 2, 4 or 8 bytes,
 * from the lower half or the upper one. */
#if WM_X86
#include <emmintrin.h>
typedef __m128i lane;
WM_INLINE lane load_lane(const uint8_t *from) { return _mm_loadu_si128((const __m128i *)(const void *)from); }
WM_INLINE void store_lane(uint8_t *to, lane a) { _mm_storeu_si128((__m128i *)(void *)to, a); }
WM_INLINE lane interleave_lanes(lane a, lane b, int bytes, int upper) {
    switch (bytes) {
    case 1: return upper ? _mm_unpackhi_epi8(a, b) : _mm_unpacklo_epi8(a, b);
    case 2: return upper ? _mm_unpackhi_epi16(a, b) : _mm_unpacklo_epi16(a, b);
    case 4: return upper ? _mm_unpackhi_epi32(a, b) : _mm_unpacklo_epi32(a, b);
    default: return upper ? _mm_unpackhi_epi64(a, b) : _mm_unpacklo_epi64(a, b);
    }
}
#elif WM_ARM
#include <arm_neon.h>
typedef uint8x16_t lane;
WM_INLINE lane load_lane(const uint8_t *from) { return vld1q_u8(from); }
WM_INLINE void store_lane(uint8_t *to, lane a) { vst1q_u8(to, a); }
#define INTERLEAVED(a, b, upper, kind)                                                                        \
    vreinterpretq_u8_##kind(upper ? vzip2q_##kind(vreinterpretq_##kind##_u8(a), vreinterpretq_##kind##_u8(b)) \
                                  : vzip1q_##kind(vreinterpretq_##kind##_u8(a), vreinterpretq_##kind##_u8(b)))
WM_INLINE lane interleave_lanes(lane a, lane b, int bytes, int upper) {
    switch (bytes) {
    case 1: return upper ? vzip2q_u8(a, b) : vzip1q_u8(a, b);
    case 2: return INTERLEAVED(a, b, upper, u16);
    case 4: return INTERLEAVED(a, b, upper, u32);
    default: return INTERLEAVED(a, b, upper, u64);
    }
}
#endif

#if !defined(TURNED) && (WM_X86 || WM_ARM)
#define TURNED 16
typedef lane turned;
WM_INLINE turned load_turned(const uint8_t *from) { return load_lane(from); }
WM_INLINE void store_turned(uint8_t *to, turned a) { store_lane(to, a); }
WM_INLINE turned interleave(turned a, turned b, int bytes, int upper) { return interleave_lanes(a, b, bytes, upper); }
/* The low halves of the bytes of both, or the high ones: those of a are low in the result. */
WM_INLINE turned pair_nibbles(turned a, turned b, int high) {
#if WM_X86
    const __m128i low = _mm_set1_epi8(15), upper = _mm_set1_epi8((char)0xF0);
    return high ? _mm_or_si128(_mm_and_si128(_mm_srli_epi16(a, 4), low), _mm_and_si128(b, upper))
                : _mm_or_si128(_mm_and_si128(a, low), _mm_and_si128(_mm_slli_epi16(b, 4), upper));
#else
    return high ? vsriq_n_u8(b, a, 4) : vsliq_n_u8(a, b, 4);
#endif
}
#endif

/* Codes [c, c + RUN) of the outputs of a tile by AWQ: those of output o go to the 16 bytes of slot slot_by_rows(o). */
WM_INLINE unsigned slot_by_rows(unsigned o) {
    static const uint8_t nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const unsigned byte = o / 8 * 4 + nibble[o % 8] / 2, high = nibble[o % 8] % 2;
    return (high * 16 + byte % 16) * 4 + byte / 16;
}

TARGET WM_INLINE void turn_by_rows(const uint8_t *words, uint64_t stride, uint8_t *to) {
#if defined(TURNED)
    for (int at = 0; at < TILE / 2; at += TURNED)
        for (int high = 0; high < 2; high++) {
            turned a[16], b[16];
            for (int k = 0; k < 16; k++) {
                const uint8_t *from = words + 2 * (uint64_t)k * stride + at;
                a[k] = pair_nibbles(load_turned(from), load_turned(from + stride), high);
            }
            /* The numbers of a register and of a byte in it are eight bits, which turn by one. */
            for (int i = 0; i < 16; i++) b[i] = interleave(a[i / 2], a[i / 2 + 8], 1, i % 2);
            for (int i = 0; i < 16; i++) a[i] = interleave(b[i / 2], b[i / 2 + 8], 1, i % 2);
            for (int i = 0; i < 16; i++) b[i] = interleave(a[i / 2], a[i / 2 + 8], 1, i % 2);
            for (int i = 0; i < 16; i++)
                store_turned(to + 64 * (16 * high + i) + at, interleave(b[i / 2], b[i / 2 + 8], 1, i % 2));
        }
#else
    for (int k = 0; k < 16; k++, words += 2 * stride)
        for (int at = 0; at < TILE / 2; at++) {
            const unsigned a = words[at], b = words[stride + (uint64_t)at];
            uint8_t *slot = to + 64 * (at % 16) + 16 * (at / 16) + k;
            slot[0] = (uint8_t)((a & 15) | b << 4), slot[1024] = (uint8_t)(a >> 4 | (b & 0xF0));
        }
#endif
}

/* The same of four rows of words, each word eight codes of an output. */
WM_INLINE unsigned slot_by_columns(unsigned o) { return o % 4 * (TILE / 4) + o / 4; }

TARGET WM_INLINE void turn_words(const uint8_t *words, uint64_t stride, uint8_t *to) {
#if defined(TURNED)
    for (int at = 0; at < 4 * TILE; at += TURNED) {
        turned a[4], b[4];
        for (int k = 0; k < 4; k++) a[k] = load_turned(words + (uint64_t)k * stride + at);
        for (int i = 0; i < 4; i++) b[i] = interleave(a[i / 2], a[i / 2 + 2], 4, i % 2);
        for (int i = 0; i < 4; i++) store_turned(to + 4 * TILE * i + at, interleave(b[i / 2], b[i / 2 + 2], 4, i % 2));
    }
#else
    for (int k = 0; k < 4; k++, words += stride)
        for (unsigned o = 0; o < TILE; o++) memcpy(to + 16 * slot_by_columns(o) + 4 * k, words + 4 * o, 4);
#endif
}

TARGET WM_INLINE void turn_by_columns(const uint8_t *words, uint64_t stride, int bits, uint8_t *to) {
    if (bits == 4) {
        turn_words(words, stride, to);
        return;
    }
    uint32_t wide[4][TILE];
    for (int k = 0; k < 4; k++) {
        const int bit = 8 * bits * k, shift = bit % 32;
        const uint8_t *from = words + (uint64_t)(bit / 32) * stride;
        for (int l = 0; l < TILE; l++) wide[k][l] = load_le32(from + 4 * l) >> shift;
        if (shift + 8 * bits > 32)
            for (int l = 0; l < TILE; l++) wide[k][l] |= load_le32(from + stride + 4 * l) << (32 - shift);
        for (int l = 0; l < TILE; l++) wide[k][l] = eight_nibbles(wide[k][l], bits);
    }
    turn_words((const uint8_t *)wide, sizeof *wide, to);
}

/* One of the lines of a tile's words from column c on, which may lie outside. */
WM_INLINE const uint8_t *ahead(const wm_grouped *w, uint64_t first, uint64_t c, uint64_t line) {
    if (w->packing == ALONG_ROWS) return w->words + (c + line) * (w->rows / 2) + first / 2;
    return w->words + 4 * ((c / 32 * (uint64_t)w->bits + line / 8) * w->rows + first) + line % 8 * LINE;
}

/* Columns [c, end), whole runs, each of one group, of a tile. */
TARGET WM_INLINE void decode_runs(const wm_grouped *w, uint64_t first, uint64_t c, uint64_t end, int type, int streaming) {
    enum { RUNS = 4, SLOTS = 16 * TILE };
    const uint64_t bytes = coded_bytes(type);
    uint64_t memory[(4 * 16 * TILE + RUNS * SLOTS + LINE) / 8], made = UINT64_MAX; /* the group that has tables */
    uint8_t *const tables = (uint8_t *)memory + (0 - (uintptr_t)memory) % LINE, *const codes = tables + 4 * 16 * TILE;
    uint8_t slots[TILE];
    for (unsigned o = 0; o < TILE; o++) slots[o] = (uint8_t)(w->packing == ALONG_ROWS ? slot_by_rows(o) : slot_by_columns(o));
    while (c < end) {
        const uint64_t group = w->group[c], from = group * w->rows + first, begin = c;
        if (group != made)
            make_tables(&(wm_tabled){w->values, w->scales + from, w->zeros + from, tables, TILE, 1, 16, type, 1}, type);
        made = group;
        int runs = 0;
        for (; runs < RUNS && c < end && w->group[c] == group; runs++, c += RUN) {
            if (w->packing == ALONG_ROWS)
                turn_by_rows(w->words + c * (w->rows / 2) + first / 2, w->rows / 2, codes + SLOTS * runs);
            else
                turn_by_columns(w->words + 4 * (c / 32 * (uint64_t)w->bits * w->rows + first), 4 * w->rows, w->bits,
                                codes + SLOTS * runs);
        }
        for (uint64_t o = 0; o < TILE; o++) {
            PREFETCH(ahead(w, first, c, o));
            const uint8_t *from = codes + 16 * slots[o], *table = tables + 16 * bytes * o;
            uint8_t *to = w->out + bytes * ((first + o) * w->columns + begin);
#if NIBBLES
            if (type == AS_FLOAT32) {
                const nibbles_4 t = load_nibbles_4(table);
                for (int run = 0; run < runs; run++, from += SLOTS, to += 2 * LINE) {
                    store_line(look_nibbles_4(t, from, 0), to, streaming);
                    store_line(look_nibbles_4(t, from + 8, 0), to + LINE, streaming);
                }
            } else {
                const nibbles_2 t = load_nibbles_2(table, table);
                for (int run = 0; run < runs; run++, from += SLOTS, to += LINE)
                    store_line(look_nibbles_2(t, from, 0), to, streaming);
            }
#else
            for (int run = 0; run < runs; run++, from += SLOTS, to += RUN * bytes)
                wm_look_up_some(from, 4, 0, 0, RUN, table, bytes, to);
#endif
        }
    }
}

/* The values of one column, `first` on. */
TARGET WM_INLINE void decode_column(const wm_grouped *w, uint64_t first, uint64_t c, int type, uint8_t *to) {
    const uint64_t bit = c * (uint64_t)w->bits, bytes = coded_bytes(type), from = w->group[c] * w->rows + first;
    const float *s = w->scales + from, *z = w->zeros + from;
    const uint32_t mask = (1u << w->bits) - 1;
    const unsigned shift = (unsigned)(bit % 32);
    const uint8_t *words = w->words + 4 * (bit / 32 * w->rows + first);
    for (int at = 0; at < TILE; at += LANES, words += 4 * LANES, to += bytes * LANES) {
        uint32_t q[LANES];
        float values[LANES];
        for (int l = 0; l < LANES; l++) q[l] = load_le32(words + 4 * l) >> shift;
        if (shift + (unsigned)w->bits > 32) /* the next word has the rest */
            for (int l = 0; l < LANES; l++) q[l] |= load_le32(words + 4 * w->rows + 4 * l) << (32 - shift);
        for (int l = 0; l < LANES; l++) values[l] = s[at + l] * ((float)(int32_t)(q[l] & mask) - z[at + l]);
        round_lanes(values, type, to);
    }
}

/* A tile of values to the rows of the output, from column c on. */
TARGET WM_INLINE void transpose_tile(const wm_grouped *w, const uint8_t *tile, uint64_t first, uint64_t c, int type) {
    const uint64_t bytes = coded_bytes(type);
#if WM_X86 || WM_ARM
    if (type != AS_FLOAT32) {
        for (uint64_t at = 0; at < TILE; at += 8)
            for (uint64_t k = 0; k < RUN; k += 8) {
                lane a[8], b[8];
                for (uint64_t i = 0; i < 8; i++) a[i] = load_lane(tile + 2 * (TILE * (k + i) + at));
                for (int i = 0; i < 8; i++) b[i] = interleave_lanes(a[i / 2], a[i / 2 + 4], 2, i % 2);
                for (int i = 0; i < 8; i++) a[i] = interleave_lanes(b[i / 2], b[i / 2 + 4], 2, i % 2);
                for (int i = 0; i < 8; i++)
                    store_lane(w->out + 2 * ((first + at + (uint64_t)i) * w->columns + c + k),
                               interleave_lanes(a[i / 2], a[i / 2 + 4], 2, i % 2));
            }
        return;
    }
#endif
    for (uint64_t at = 0; at < TILE; at++) {
        uint8_t *to = w->out + bytes * ((first + at) * w->columns + c);
        for (uint64_t k = 0; k < RUN; k++) memcpy(to + bytes * k, tile + bytes * (TILE * k + at), bytes);
    }
}

TARGET WM_INLINE void decode_rows(const wm_grouped *w, uint64_t begin, uint64_t end, int type) {
    uint8_t tile[4 * TILE * RUN];
    const uint64_t bytes = coded_bytes(type), whole = w->columns / RUN * RUN;
    uint64_t first = begin;
    for (; end - first >= TILE; first += TILE) {
        uint64_t done = 0;
        if (w->in_runs && w->streaming)
            decode_runs(w, first, 0, whole, type, 1), done = whole;
        else if (w->in_runs)
            decode_runs(w, first, 0, whole, type, 0), done = whole;
        else if (w->packing == ALONG_COLUMNS)
            for (; done < whole; done += RUN) {
                for (uint64_t k = 0; k < RUN; k++) decode_column(w, first, done + k, type, tile + bytes * TILE * k);
                transpose_tile(w, tile, first, done, type);
            }
        wm_grouped_one_by_one(w, first, first + TILE, done);
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
