/* Integers of checkpoints with scales and zero points of groups: the entry point, and single elements. groups.h has
 * the loops. */
#include "quant/groups_value.h"

enum { ELEMENTS_A_THREAD = 1 << 20, SMALL = 4 << 20 /* bytes */ };

/* Rows of a tile lie apart, so no CPU predicts its stores, and each line is read first unless it is streamed. So streaming gains
 * even where no other output streams, as soon as the second-level cache is too small: by an earlier loop 32 MiB of float16 from
 * AWQ took 2.0 ms in place of 2.5 on Sapphire Rapids (AVX2: 2.2, 2.9), and 4 MiB likewise. */
static int streams(uint64_t input, uint64_t output) {
    if (wm_stream_least() == UINT64_MAX) return output >= SMALL;
    return wm_how_to_store(input, output) == WM_STREAMED;
}

static float value_at(const wm_grouped *w, uint64_t o, uint64_t c) {
    static const uint8_t nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    uint32_t q;
    if (w->packing == ALONG_ROWS) {
        q = load_le32(w->words + 4 * (c * (w->rows / 8) + o / 8)) >> 4 * nibble[o % 8];
    } else {
        const uint64_t bit = c * (uint64_t)w->bits;
        const unsigned shift = (unsigned)(bit % 32);
        const uint8_t *word = w->words + 4 * (bit / 32 * w->rows + o);
        q = load_le32(word) >> shift;
        if (shift + (unsigned)w->bits > 32) q |= load_le32(word + 4 * w->rows) << (32 - shift);
    }
    const uint64_t at = w->group[c] * w->rows + o;
    return w->scales[at] * ((float)(int32_t)(q & ((1u << w->bits) - 1)) - w->zeros[at]);
}

void wm_grouped_one_by_one(const wm_grouped *w, uint64_t begin, uint64_t end, uint64_t from) {
    for (uint64_t o = begin; o < end; o++)
        for (uint64_t c = from; c < w->columns; c++) {
            const float value = value_at(w, o, c);
            const uint64_t at = o * w->columns + c;
            const uint16_t half = w->type == AS_FLOAT16 ? narrow_float(value) : narrow_to_bfloat16(value);
            if (w->type == AS_FLOAT32)
                memcpy(w->out + 4 * at, &value, 4);
            else
                memcpy(w->out + 2 * at, &half, 2);
        }
}

static void run_part(void *context, int part, uint64_t begin, uint64_t end) {
    const wm_grouped *w = context;
    wm_variants_in_use()->groups(w, begin, end);
    end_streaming(w->streaming);
}

/* Whether each RUN columns have one group. */
static int in_runs(const uint32_t *group, uint64_t columns) {
    for (uint64_t c = 0; c < columns / RUN * RUN; c++)
        if (group[c] != group[c / RUN * RUN]) return 0;
    return 1;
}

int wm_groups_decode(const uint8_t *words, uint64_t words_size, int bits, int packing, const uint32_t *group, uint64_t columns,
                     const float *scales, const float *zeros, uint64_t n_scales, uint64_t rows, int type, uint8_t *out,
                     uint64_t out_size, int threads) {
    enum { MAX_ROWS = 1u << 31 };
    if (bits < 1 || bits > 8) return -1;
    if (packing != ALONG_COLUMNS && packing != ALONG_ROWS) return -1;
    if (type < AS_FLOAT32 || type > AS_BFLOAT16 || rows > MAX_ROWS || columns > MAX_ROWS) return -1;
    if (packing == ALONG_ROWS ? bits != 4 || rows % 8 : columns * (uint64_t)bits % 32) return -1;
    const uint64_t codes = packing == ALONG_ROWS ? columns * (rows / 8) : columns * (uint64_t)bits / 32 * rows;
    const uint64_t bytes = type == AS_FLOAT32 ? 4 : 2;
    if (words_size % 4 || words_size / 4 != codes) return -1;
    if (out_size % bytes || out_size / bytes != rows * columns) return -1;
    if (out_size == 0) return 0; /* pointers may be NULL */
    if (n_scales % rows) return -1;
    for (uint64_t c = 0; c < columns; c++)
        if (group[c] >= n_scales / rows) return -1;
    if (wm_overlap(words, words_size, out, out_size) || wm_overlap(scales, 4 * n_scales, out, out_size) ||
        wm_overlap(zeros, 4 * n_scales, out, out_size))
        return -2;
    const int runs = bits <= 4 && in_runs(group, columns);
    const int aligned = (uintptr_t)out % LINE == 0 && columns * bytes % LINE == 0;
    const int streaming = aligned && streams(words_size, out_size);
    static const float values[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    wm_grouped w = {words, group, scales, zeros, values, out, rows, columns, bits, packing, type, runs, streaming};
    const uint64_t rows_a_thread = ELEMENTS_A_THREAD / columns;
    wm_run_parts(run_part, &w, rows, TILE, rows_a_thread > TILE ? rows_a_thread : TILE, threads);
    return 0;
}
