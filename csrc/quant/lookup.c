/* Codes with scales of blocks: the entry point, which makes the tables, and the loops in plain C. lookup.h has the loops.
 *
 * A table has the value of each code in a block, by the formula; codes are then looked up. So types of codes differ in their tables
 * alone. Tables are made for as many blocks as the first-level cache holds, which then serve row after row.
 */
#include "quant/groups_value.h"

#include <stdlib.h>

static inline void round_halves(const float *values, uint8_t *to) {
    uint16_t halves[LANES];
    for (int l = 0; l < LANES; l++) halves[l] = narrow_float(values[l]);
    memcpy(to, halves, sizeof halves);
}

#define TARGET
#define SUFFIX portable
#define NIBBLES 0
#define BYTES 0
#include "quant/coded_lanes.h"

#include "quant/lookup.h"

#include "quant/groups.h"

/* Bytes of tables that are made together; and rows that are looked up together, so that each table is loaded into registers once for
 * them: few, for memory is read and written fastest where it lies in few streams. */
enum { ELEMENTS_A_THREAD = 1 << 19, TABLES = 1 << 14, TOGETHER = 8 };

typedef struct {
    wm_looked row; /* the first one */
    wm_tabled tables;
    uint64_t columns, across, height, before;
} work;

static void skip_blocks(wm_looked *row, uint64_t n) {
    if (row->which) {
        row->which += n;
    } else {
        row->scales += n;
        if (row->zeros) row->zeros += n;
    }
}

/* The kind of numbers that codes of 8 bits are. A NaN is always looked up. */
static int numbers_of(const float *values) {
    int integers = 1, e4m3 = 1;
    for (unsigned q = 0; q < 256; q++) {
        const float number = widen_half((q & 0x80) << 8 | (q & 0x7F) << 7) * 256;
        integers &= bits_of_float(values[q]) == bits_of_float((float)(int8_t)(uint8_t)q);
        e4m3 &= (q & 0x7F) == 0x7F || bits_of_float(values[q]) == bits_of_float(number);
    }
    return integers ? WM_INTEGERS : e4m3 ? WM_E4M3 : WM_ANY_NUMBERS;
}

/* Rows [begin, end), counted from the beginning of their first block. */
static void run_rows(void *context, int part, uint64_t begin, uint64_t end) {
    const work *w = context;
    const wm_variants *kernels = wm_variants_in_use();
    const uint64_t table_bytes = (uint64_t)w->row.bytes << w->row.bits, together = TABLES / table_bytes, width = w->row.width;
    uint64_t words[TABLES / 8];
    uint8_t *const memory = (uint8_t *)words;
    begin += w->before, end += w->before;
    for (uint64_t first = begin, last; first < end; first = last) { /* the rows of a block */
        last = (first / w->height + 1) * w->height;
        last = last < end ? last : end;
        for (uint64_t b = 0, c = 0; c < w->columns; b += together, c += together * width) {
            const uint64_t block = first / w->height * w->across + b;
            wm_looked row = w->row;
            row.n = w->columns - c < together * width ? w->columns - c : together * width;
            skip_blocks(&row, block);
            if (!row.which) {
                wm_tabled tables = w->tables;
                tables.scales = row.scales, tables.zeros = row.zeros;
                if (tables.biases) tables.biases += block;
                tables.n = ceil_div(row.n, width);
                tables.out = memory, row.tables = memory;
                kernels->tables(&tables);
            }
            for (uint64_t r = first - w->before; r < last - w->before; r += row.rows) {
                row.rows = last - w->before - r < TOGETHER ? last - w->before - r : TOGETHER;
                row.codes = w->row.codes + r * row.codes_apart + c * (uint64_t)row.bits / 8;
                row.out = w->row.out + r * row.out_apart + c * (uint64_t)row.bytes;
                kernels->lookup(&row);
            }
        }
    }
    end_streaming(w->row.streaming);
}

/* Blocks [begin, end) of the only row. */
static void run_blocks(void *context, int part, uint64_t begin, uint64_t end) {
    work w = *(const work *)context;
    const uint64_t from = begin * w.row.width, to = end * w.row.width < w.columns ? end * w.row.width : w.columns;
    w.row.codes += from * (uint64_t)w.row.bits / 8, w.row.out += from * (uint64_t)w.row.bytes;
    skip_blocks(&w.row, begin);
    if (w.tables.biases && !w.row.which) w.tables.biases += begin;
    w.columns = to - from, w.across = end - begin;
    run_rows(&w, part, 0, 1);
}

int wm_lookup(const uint8_t *codes, uint64_t codes_size, int bits, int high_first, uint64_t row_bytes, uint64_t rows,
              uint64_t columns, uint64_t before, uint64_t height, uint64_t width, const float *values, const float *scales,
              const float *zeros, const float *biases, uint64_t n_scales, const uint8_t *which, uint64_t n_which, float factor,
              int type, uint8_t *out, uint64_t out_size, int threads) {
    enum { MAX_ROWS = 1u << 31, NUMBERS = 256 };
    const uint64_t longest = (uint64_t)1 << 48;
    if ((bits != 4 && bits != 8) || before >= height || width == 0 || type < AS_FLOAT32 || type > AS_BFLOAT16) return -1;
    if (rows > MAX_ROWS || row_bytes > longest || columns > longest || height > longest) return -1;
    const uint64_t bytes = coded_bytes(type), needed = bits == 8 ? columns : ceil_div(columns, 2);
    if (out_size % bytes || (rows && out_size / bytes / rows != columns) || out_size / bytes != rows * columns) return -1;
    if (out_size == 0) return 0; /* there may be no pointers */
    width = width < columns ? width : columns;
    const uint64_t across = ceil_div(columns, width), blocks = ceil_div(before + rows, height) * across;
    if (needed > codes_size || (rows > 1 && (row_bytes < needed || (codes_size - needed) / (rows - 1) < row_bytes))) return -1;
    if (which ? n_which != blocks || n_scales > NUMBERS : n_scales != blocks) return -1;
    for (uint64_t i = 0; which && n_scales < NUMBERS && i < n_which; i++)
        if (which[i] >= n_scales) return -1;
    if (wm_overlap(codes, codes_size, out, out_size) || wm_overlap(scales, 4 * n_scales, out, out_size) ||
        (zeros && wm_overlap(zeros, 4 * n_scales, out, out_size)) ||
        (biases && wm_overlap(biases, 4 * n_scales, out, out_size)) || (which && wm_overlap(which, n_which, out, out_size)))
        return -2;
    const int aligned = (uintptr_t)out % LINE == 0 && columns * bytes % LINE == 0 && width * bytes % LINE == 0;
    const int streaming = aligned && wm_how_to_store(codes_size, out_size) == WM_STREAMED;
    const int numbers = bits == 8 && factor == 1 && !biases ? numbers_of(values) : WM_ANY_NUMBERS;
    work w = {.row = {codes, NULL, which, out, columns, width, 1, row_bytes, columns * bytes, bits, (int)bytes, high_first != 0,
                      streaming, scales, zeros, numbers, type},
              .tables = {values, scales, zeros, biases, NULL, n_scales, 1, 1u << bits, type, factor},
              .columns = columns,
              .across = across,
              .height = height,
              .before = before};
    uint8_t *const every = which ? malloc(n_scales * (bytes << bits)) : NULL;
    if (which) {
        if (!every) return -3;
        w.tables.out = every, w.row.tables = every;
        wm_variants_in_use()->tables(&w.tables);
    }
    const uint64_t each = rows == 1 ? width : columns, rows_a_thread = ELEMENTS_A_THREAD / each;
    if (rows == 1) /* two blocks have whole bytes */
        wm_run_parts(run_blocks, &w, across, 2, rows_a_thread > 2 ? rows_a_thread : 2, threads);
    else
        wm_run_parts(run_rows, &w, rows, height < rows ? height : 1, rows_a_thread > 1 ? rows_a_thread : 1, threads);
    free(every);
    return 0;
}
