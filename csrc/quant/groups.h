/* Integers of checkpoints with scales and zero points of groups: the loops, compiled once for each instruction set.
 *
 *     out[o][c] = s[group[c]][o] * (q[c][o] - z[group[c]][o])
 *
 * Codes lie transposed: along outputs o (AWQ), or along columns c (GPTQ). A tile is TILE outputs of some columns.
 *
 * Where RUN successive columns belong to one group and codes have at most 4 bits, an output has 16 values in that group, which
 * are computed once; and the codes of a tile are turned, so that RUN codes of an output lie together and are looked up like those
 * of lookup.h. Otherwise values are computed column by column, and squares of them are turned.
 *
 * A core writes to memory at its own pace, and waits when it has stored too many lines at once. So up to RUNS runs, a batch, are looked
 * up in STEPS steps, ROWS outputs each, and after each output some of the turning of the next batch is done, and its table is made:
 *
 *     lines of words     AHEAD columns behind run r + 1 are prefetched; AWQ's, whose distance lets them meet in few places of a cache,
 *                        are read once, COPIED columns behind it, and lie together from then on
 *     run r + 1          the first half of its turning
 *     run r              the other half: an output has 16 bytes of codes
 *     a batch before it  is looked up
 *
 * A file includes lookup.h before this one. It defines, where it has registers of more than 16 bytes, TURNED as their bytes, and
 * turned, load_turned, store_turned, interleave and pair_nibbles as below: these work on each 16 bytes alone.
 */
#include "quant/groups_value.h"

/* Registers of 16 bytes, which every x86-64 (SSE2) and arm64 (NEON) has: the elements of two in turns, elements of 1, 2, 4 or 8 bytes,
 * from the lower half or the upper one. */
#if WM_X86
#include <emmintrin.h>
typedef __m128i lane;
WM_INLINE lane load_lane(const uint8_t *from) { return _mm_loadu_si128((const __m128i *)(const void *)from); }
WM_INLINE void store_lane(uint8_t *to, lane a, int streaming) {
    streaming ? _mm_stream_si128((__m128i *)(void *)to, a) : _mm_storeu_si128((__m128i *)(void *)to, a);
}
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
WM_INLINE void store_lane(uint8_t *to, lane a, int streaming) { vst1q_u8(to, a); }
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
#else
typedef struct {
    uint8_t byte[16];
} lane;
WM_INLINE lane load_lane(const uint8_t *from) {
    lane a;
    memcpy(&a, from, sizeof a);
    return a;
}
WM_INLINE void store_lane(uint8_t *to, lane a, int streaming) { memcpy(to, &a, sizeof a); }
WM_INLINE lane interleave_lanes(lane a, lane b, int bytes, int upper) {
    lane result;
    for (int i = 0; i < 16; i++) result.byte[i] = (i / bytes % 2 ? b : a).byte[8 * upper + i / (2 * bytes) * bytes + i % bytes];
    return result;
}
#endif

#if !defined(TURNED)
#define TURNED 16
typedef lane turned;
WM_INLINE turned load_turned(const uint8_t *from) { return load_lane(from); }
WM_INLINE void store_turned(uint8_t *to, turned a) { store_lane(to, a, 0); }
WM_INLINE turned interleave(turned a, turned b, int bytes, int upper) { return interleave_lanes(a, b, bytes, upper); }
/* The low halves of the bytes of both, or the high ones: those of a are low in the result. */
WM_INLINE turned pair_nibbles(turned a, turned b, int high) {
#if WM_X86
    const __m128i low = _mm_set1_epi8(15), upper = _mm_set1_epi8((char)0xF0);
    return high ? _mm_or_si128(_mm_and_si128(_mm_srli_epi16(a, 4), low), _mm_and_si128(b, upper))
                : _mm_or_si128(_mm_and_si128(a, low), _mm_and_si128(_mm_slli_epi16(b, 4), upper));
#elif WM_ARM
    return high ? vsriq_n_u8(b, a, 4) : vsliq_n_u8(a, b, 4);
#else
    for (int i = 0; i < 16; i++)
        a.byte[i] = (uint8_t)(high ? a.byte[i] >> 4 | (b.byte[i] & 0xF0) : (a.byte[i] & 15) | b.byte[i] << 4);
    return a;
#endif
}
#endif

/* The turning of a run has PARTS parts, each of PIECES pieces, of which the first half belongs to the first half of the work. */
enum { RUNS = 4, PARTS = 4, STEPS = RUNS * PARTS, ROWS = TILE / STEPS, PIECES = 2 * TILE / TURNED };
enum { SLOTS = 16 * TILE /* bytes of the codes of a run */, COPIED = 8, AHEAD = 40 /* columns */ };

/* Two rounds of interleaving: register k has element number i, and so register i element number k. */
TARGET WM_INLINE void interleave_four(const turned a[4], int bytes, uint8_t *to, uint64_t distance) {
    turned b[4];
    for (int i = 0; i < 4; i++) b[i] = interleave(a[i / 2], a[i / 2 + 2], bytes, i % 2);
    for (uint64_t i = 0; i < 4; i++) store_turned(to + distance * i, interleave(b[i / 2], b[i / 2 + 2], bytes, i % 2));
}

/* The 32 codes of output o by AWQ go to the 16 bytes of slot slot_by_rows(o). */
WM_INLINE unsigned slot_by_rows(unsigned o) {
    static const uint8_t nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const unsigned byte = o / 8 * 4 + nibble[o % 8] / 2, high = nibble[o % 8] % 2;
    return (high * 16 + byte % 16) * 4 + byte / 16;
}

/* Codes of two columns become bytes, 64 of low nibbles and 64 of high ones. Then 16 x 16 bytes are transposed: 4 x 4 of them in the
 * first half of the work, of which each part reads 8 columns, and then as words 4 x 4 times. */
TARGET WM_INLINE void begin_by_rows(const uint8_t *columns, uint64_t part, uint64_t at, int high, uint8_t *half) {
    const uint8_t *from = columns + at;
    turned a[4];
    for (int k = 0; k < 4; k++, from += TILE) a[k] = pair_nibbles(load_turned(from), load_turned(from + TILE / 2), high);
    interleave_four(a, 1, half + TILE * part + TILE / 2 * (uint64_t)high + at, 4 * TILE);
}

TARGET WM_INLINE void end_by_rows(const uint8_t *half, uint64_t part, uint64_t at, int high, uint8_t *to) {
    turned a[4];
    for (int k = 0; k < 4; k++) a[k] = load_turned(half + TILE * (4 * part + (uint64_t)k) + TILE / 2 * (uint64_t)high + at);
    interleave_four(a, 4, to + 64 * (16 * (uint64_t)high + 4 * part) + at, 64);
}

/* The same of four rows of words, each word eight codes of an output. */
WM_INLINE unsigned slot_by_columns(unsigned o) { return o % 4 * (TILE / 4) + o / 4; }

/* Words of fewer bits are widened first: a row in each part. */
TARGET WM_INLINE void begin_by_columns(const uint8_t *words, uint64_t stride, int bits, uint64_t part, uint64_t at,
                                       uint8_t *half) {
    const unsigned bit = 8 * (unsigned)bits * (unsigned)part, shift = bit % 32;
    const uint8_t *from = words + bit / 32 * stride + 4 * at;
    uint32_t wide[TURNED];
    for (int l = 0; l < TURNED; l++) wide[l] = load_le32(from + 4 * l) >> shift;
    if (shift + 8 * (unsigned)bits > 32)
        for (int l = 0; l < TURNED; l++) wide[l] |= load_le32(from + stride + 4 * l) << (32 - shift);
    for (int l = 0; l < TURNED; l++) wide[l] = eight_nibbles(wide[l], bits);
    memcpy(half + 4 * (TILE * part + at), wide, sizeof wide);
}

TARGET WM_INLINE void end_by_columns(const uint8_t *words, uint64_t stride, uint64_t part, uint64_t at, uint8_t *to) {
    turned a[4];
    for (uint64_t k = 0; k < 4; k++) a[k] = load_turned(words + k * stride + TILE * part + at);
    interleave_four(a, 4, to + TILE * part + at, 4 * TILE);
}

WM_INLINE const uint8_t *words_at(const wm_grouped *w, uint64_t first, uint64_t c) {
    if (w->packing == ALONG_ROWS) return w->words + c * (w->rows / 2) + first / 2;
    return w->words + 4 * (c / 32 * (uint64_t)w->bits * w->rows + first);
}

/* Copies the codes of column c to one of 2 * COPIED places. */
TARGET WM_INLINE void copy_column(const wm_grouped *w, uint64_t first, uint64_t c, uint8_t *columns) {
    const uint8_t *from = w->words + c * (w->rows / 2) + first / 2;
    for (uint64_t at = 0; at < TILE / 2; at += TURNED)
        store_turned(columns + TILE / 2 * (c % (2 * COPIED)) + at, load_turned(from + at));
}

/* A piece of the turning of the run from column c on, in the first half of the work or in the other one. */
TARGET WM_INLINE void begin_turning(const wm_grouped *w, uint64_t first, uint64_t c, uint64_t part, uint64_t piece,
                                    const uint8_t *columns, uint8_t *halves) {
    uint8_t *half = halves + SLOTS * (c / RUN % 2);
    if (w->packing == ALONG_ROWS && piece % 2)
        begin_by_rows(columns + 4 * TILE * (part % 2), part, piece / 2 * TURNED, 1, half);
    else if (w->packing == ALONG_ROWS)
        begin_by_rows(columns + 4 * TILE * (part % 2), part, piece / 2 * TURNED, 0, half);
    else if (w->bits < 4)
        begin_by_columns(words_at(w, first, c), 4 * w->rows, w->bits, part, piece * TURNED, half);
}

TARGET WM_INLINE void end_turning(const wm_grouped *w, uint64_t first, uint64_t c, uint64_t part, uint64_t piece,
                                  const uint8_t *halves, uint8_t *to) {
    const uint8_t *half = halves + SLOTS * (c / RUN % 2);
    if (w->packing == ALONG_ROWS)
        end_by_rows(half, part, piece / 2 * TURNED, (int)(piece % 2), to);
    else if (w->bits < 4)
        end_by_columns(half, 4 * TILE, part, piece * TURNED, to);
    else
        end_by_columns(words_at(w, first, c), 4 * w->rows, part, piece * TURNED, to);
}

/* Runs of one group that are decoded together, from column c on. */
typedef struct {
    uint64_t c, runs, group;
} batch;

WM_INLINE batch batch_from(const wm_grouped *w, uint64_t c, uint64_t end) {
    batch b = {c, 0, c < end ? w->group[c] : 0};
    for (; b.runs < RUNS && c < end && w->group[c] == b.group; b.runs++) c += RUN;
    return b;
}

/* A piece of turning a batch: its run has begun before, and the next one begins, up to column `end`. */
TARGET WM_INLINE void turn(const wm_grouped *w, uint64_t first, batch b, uint64_t end, uint64_t step, uint64_t piece,
                           const uint8_t *columns, uint8_t *halves, uint8_t *codes) {
    const uint64_t run = step / PARTS, part = step % PARTS, c = b.c + RUN * run;
    if (run >= b.runs) return;
    if (piece >= PIECES / 2)
        end_turning(w, first, c, part, piece - PIECES / 2, halves, codes + SLOTS * run);
    else if (c + RUN < end)
        begin_turning(w, first, c + RUN, part, piece, columns, halves);
}

/* Looks up `runs` runs of an output. */
TARGET WM_INLINE void look_up_runs(const uint8_t *codes, uint64_t runs, const uint8_t *table, int type, int streaming,
                                   uint8_t *to) {
#if NIBBLES
    if (type == AS_FLOAT32) {
        const nibbles_4 t = load_nibbles_4(table);
        for (uint64_t run = 0; run < runs; run++, codes += SLOTS, to += 2 * LINE) {
            store_line(look_nibbles_4(t, codes, 0), to, streaming);
            store_line(look_nibbles_4(t, codes + 8, 0), to + LINE, streaming);
        }
    } else {
        const nibbles_2 t = load_nibbles_2(table, table);
        for (uint64_t run = 0; run < runs; run++, codes += SLOTS, to += LINE)
            store_line(look_nibbles_2(t, codes, 0, 1), to, streaming);
    }
#else
    for (uint64_t run = 0; run < runs; run++, codes += SLOTS, to += RUN * coded_bytes(type))
        wm_look_up_some(codes, 4, 0, 0, RUN, table, coded_bytes(type), to);
#endif
}

/* Columns [0, end), whole runs, each of one group, of a tile. */
TARGET WM_INLINE void decode_runs(const wm_grouped *grouped, uint64_t first, uint64_t end, int packing, int type,
                                  int streaming) {
    wm_grouped of = *grouped; /* which no store changes */
    of.packing = packing;
    const wm_grouped *const w = &of;
    const uint64_t bytes = coded_bytes(type), stride = packing == ALONG_ROWS ? w->rows / 2 : 4 * w->rows;
    uint64_t memory[(4 * 16 * TILE + 2 * RUNS * SLOTS + 2 * SLOTS + LINE) / 8];
    uint8_t *const tables = (uint8_t *)memory + (0 - (uintptr_t)memory) % LINE, *const halves = tables + 4 * 16 * TILE;
    uint8_t *codes = halves + 2 * SLOTS, *others = codes + RUNS * SLOTS, slots[TILE];
    for (unsigned o = 0; o < TILE; o++) slots[o] = (uint8_t)(packing == ALONG_ROWS ? slot_by_rows(o) : slot_by_columns(o));
    uint8_t columns[COPIED * TILE];
    for (uint64_t part = 0; end && part < PARTS; part++) {
        for (uint64_t c = 8 * part; packing == ALONG_ROWS && c < 8 * part + 8; c++) copy_column(w, first, c, columns);
        for (uint64_t i = 0; i < PIECES / 2; i++) begin_turning(w, first, 0, part, i, columns, halves);
    }
    for (uint64_t c = RUN; packing == ALONG_ROWS && c < RUN + COPIED && c < end; c++) copy_column(w, first, c, columns);
    for (batch b = {0, 0, 0}, next = batch_from(w, 0, end); b.runs || next.runs;) {
        /* Lines that come after those of the next batch, perhaps in the next tile, or outside. */
        const uint64_t far = next.c + (packing == ALONG_ROWS ? RUN + AHEAD : RUN * next.runs), lines = RUN * next.runs;
        const uint8_t *const fetched = far < end ? words_at(w, first, far) : words_at(w, first + TILE, far - end);
        const uint64_t from = next.group * w->rows + first;
        const int other = next.runs && (!b.runs || next.group != b.group);
        uint8_t *to = w->out + bytes * (first * w->columns + b.c);
        for (uint64_t o = 0; o < TILE; o++, to += bytes * w->columns) {
            uint8_t *const table = tables + 16 * bytes * o;
            if (o < lines) PREFETCH(packing == ALONG_ROWS ? fetched + o * stride : fetched + o / 8 * stride + o % 8 * LINE);
            if (packing == ALONG_ROWS && o < lines && next.c + RUN + COPIED + o < end)
                copy_column(w, first, next.c + RUN + COPIED + o, columns);
            if (b.runs == RUNS)
                look_up_runs(codes + 16 * slots[o], RUNS, table, type, streaming, to);
            else
                look_up_runs(codes + 16 * slots[o], b.runs, table, type, streaming, to);
            for (uint64_t i = o % ROWS * PIECES / ROWS; i < (o % ROWS + 1) * PIECES / ROWS; i++)
                turn(w, first, next, end, o / ROWS, i, columns, halves, others);
            if (other)
                make_tables(&(wm_tabled){w->values, w->scales + from + o, w->zeros + from + o, NULL, table, 1, 1, 16, type, 1},
                            type);
        }
        uint8_t *const done = codes;
        codes = others, others = done, b = next, next = batch_from(w, b.c + RUN * b.runs, end);
    }
}

/* The values of one column, `first` on. The words of a column of the next run are prefetched, since no CPU predicts them. */
TARGET WM_INLINE void decode_column(const wm_grouped *w, uint64_t first, uint64_t c, int type, uint8_t *to) {
    const uint64_t bit = c * (uint64_t)w->bits, bytes = coded_bytes(type), from = w->group[c] * w->rows + first;
    const float *s = w->scales + from, *z = w->zeros + from;
    const uint32_t mask = (1u << w->bits) - 1;
    const unsigned shift = (unsigned)(bit % 32), spans = shift + (unsigned)w->bits > 32;
    const uint8_t *words = w->words + 4 * (bit / 32 * w->rows + first), *upper = spans ? words + 4 * w->rows : words;
    float values[TILE];
    for (uint64_t at = 0; at < TILE; at += LANES) PREFETCH(words + 4 * (w->rows * (uint64_t)w->bits + at));
    for (int l = 0; l < TILE; l++) { /* the next word has the rest; otherwise this one has bits above those of the code */
        const uint32_t q = load_le32(words + 4 * l) >> shift | load_le32(upper + 4 * l) << (spans ? 32 - shift : 31);
        values[l] = s[l] * ((float)(int32_t)(q & mask) - z[l]);
    }
    for (uint64_t at = 0; at < TILE; at += LANES) round_lanes(values + at, type, to + bytes * at);
}

/* Columns c to c + RUN of some outputs, from number `at` of a tile on, to their rows: squares, a lane wide, are turned in rounds of
 * interleaving. */
TARGET WM_INLINE void turn_squares(const wm_grouped *w, const uint8_t *tile, uint64_t first, uint64_t at, uint64_t c, int type,
                                   int streaming) {
    const uint64_t bytes = coded_bytes(type), side = sizeof(lane) / bytes, row_bytes = bytes * w->columns;
    uint8_t *out = w->out + (first + at) * row_bytes + bytes * c;
    for (uint64_t k = 0; k < RUN; k += side, out += sizeof(lane)) {
        lane a[sizeof(lane) / 2], b[sizeof(lane) / 2];
        for (uint64_t i = 0; i < side; i++) a[i] = load_lane(tile + bytes * (TILE * (k + i) + at));
        for (uint64_t round = 1; round < side; round *= 2) {
            for (uint64_t i = 0; i < side; i++) b[i] = interleave_lanes(a[i / 2], a[(i + side) / 2], (int)bytes, (int)(i % 2));
            for (uint64_t i = 0; i < side; i++) a[i] = b[i];
        }
        for (uint64_t i = 0; i < side; i++) store_lane(out + i * row_bytes, a[i], streaming);
    }
}

/* Columns [0, end), whole runs, of a tile: while one run is decoded, the one before it is turned, since memory takes lines slowly. */
TARGET WM_INLINE void decode_columns(const wm_grouped *w, uint64_t first, uint64_t end, int type, int streaming) {
    const uint64_t bytes = coded_bytes(type), side = sizeof(lane) / bytes;
    uint8_t tiles[2][4 * TILE * RUN];
    for (uint64_t c = 0; end && c < end + RUN; c++) {
        const uint64_t at = c % RUN * (TILE / RUN);
        uint8_t *const tile = tiles[c / RUN % 2], *const before = tiles[(c / RUN + 1) % 2];
        if (c < end) decode_column(w, first, c, type, tile + bytes * TILE * (c % RUN));
        if (c >= RUN && at % side == 0) turn_squares(w, before, first, at, c / RUN * RUN - RUN, type, streaming);
    }
}

TARGET WM_INLINE void decode_rows(const wm_grouped *grouped, uint64_t begin, uint64_t end, int type) {
    const wm_grouped of = *grouped, *const w = &of; /* which no store changes */
    const uint64_t whole = w->in_runs || w->packing == ALONG_COLUMNS ? w->columns / RUN * RUN : 0;
    uint64_t first = begin;
    for (; end - first >= TILE; first += TILE) {
        if (!w->in_runs)
            w->streaming ? decode_columns(w, first, whole, type, 1) : decode_columns(w, first, whole, type, 0);
        else if (w->packing == ALONG_ROWS)
            w->streaming ? decode_runs(w, first, whole, ALONG_ROWS, type, 1)
                         : decode_runs(w, first, whole, ALONG_ROWS, type, 0);
        else
            w->streaming ? decode_runs(w, first, whole, ALONG_COLUMNS, type, 1)
                         : decode_runs(w, first, whole, ALONG_COLUMNS, type, 0);
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
