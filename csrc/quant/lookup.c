/* Codes with scales of blocks: the entry point, which makes the tables, and the loops in plain C. lookup.h has the loops.
 *
 * A table has the value of each code in a block, by the formula; codes are then looked up. So types of codes differ in their tables
 * alone. Tables are made for as many blocks as the first-level cache holds, which then serve row after row. Codes of other than 4 or 8
 * bits are widened first, to 4 bits or a byte.
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

/* Bytes of tables that are made together; rows that are looked up together, so that each table is loaded into registers once for
 * them: few, since memory is fastest in few streams; and codes of a row that are widened together. */
enum { ELEMENTS_A_THREAD = 1 << 19, TABLES = 1 << 14, TOGETHER = 8, WIDENED = 1 << 10 };

typedef struct {
    wm_looked row; /* the first one */
    wm_tabled tables;
    uint64_t columns, across, height, before;
    uint64_t bits, codes_size; /* as they are stored: row.bits is 4 for fewer */
} work;

/* Eight codes of 5 to 7 bits, one behind the other, as bytes. */
static inline uint64_t eight_bytes(uint64_t x, unsigned bits) {
    const uint64_t four = (1u << 4 * bits) - 1, two = (1u << 2 * bits) - 1, one = (1u << bits) - 1;
    x = (x & four) | (x >> 4 * bits & four) << 32;
    x = (x & two * 0x100000001) | (x & (two << 2 * bits) * 0x100000001) << (16 - 2 * bits);
    return (x & one * 0x1000100010001) | (x & (one << bits) * 0x1000100010001) << (8 - bits);
}

/* Widens n codes, at most WIDENED, from bit number `bit` of a row on to nibbles or bytes; the last ones in eights. The row has `size`
 * bytes. Eights are copied first, so that compilers vectorise the other loops. */
static void widen(const uint8_t *row, uint64_t size, uint64_t bit, unsigned bits, uint64_t n, uint8_t *to) {
    uint64_t eights[WIDENED / 8];
    const uint64_t count = ceil_div(n, 8);
    const unsigned shift = bit % 8;
    row += bit / 8, size -= bit / 8;
    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *from = row + bits * i;
        uint8_t last[8] = {0};
        eights[i] = load_le64(size - bits * i < sizeof last ? memcpy(last, from, size - bits * i) : from);
    }
    for (uint64_t i = 0; bits < 4 && i < count; i++) {
        const uint32_t nibbles = eight_nibbles((uint32_t)(eights[i] >> shift), (int)bits);
        memcpy(to + 4 * i, &nibbles, sizeof nibbles);
    }
    for (uint64_t i = 0; bits > 4 && i < count; i++) {
        const uint64_t wide = eight_bytes(eights[i] >> shift, bits);
        memcpy(to + 8 * i, &wide, sizeof wide);
    }
}

static void skip_blocks(wm_looked *row, uint64_t n) {
    if (row->which) {
        row->which += n;
    } else {
        row->scales += n;
        if (row->zeros) row->zeros += n;
    }
}

/* The kind of numbers in codes of 8 bits. A NaN is always looked up. */
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
    const uint64_t table_bytes = (uint64_t)w->row.bytes << w->row.bits, width = w->row.width;
    const int widened = w->bits != 4 && w->bits != 8;
    uint64_t together = TABLES / table_bytes, words[TABLES / 8];
    if (widened && together > WIDENED / width) together = WIDENED / width; /* 0: parts of a block */
    uint8_t *const memory = (uint8_t *)words, wide[TOGETHER][WIDENED];
    begin += w->before, end += w->before;
    for (uint64_t first = begin, last; first < end; first = last) { /* the rows of a block */
        last = (first / w->height + 1) * w->height;
        last = last < end ? last : end;
        for (uint64_t c = 0, n; c < w->columns; c += n) {
            const uint64_t block = first / w->height * w->across + c / width, in_block = width - c % width;
            wm_looked row = w->row;
            n = together ? together * width : in_block < WIDENED ? in_block : WIDENED;
            n = row.n = n < w->columns - c ? n : w->columns - c;
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
                row.codes = w->row.codes + r * w->row.codes_apart + (widened ? 0 : c * w->bits / 8);
                for (uint64_t k = 0; widened && k < row.rows; k++, row.codes += w->row.codes_apart)
                    widen(row.codes, w->codes_size - (r + k) * w->row.codes_apart, c * w->bits, (unsigned)w->bits, n, wide[k]);
                if (widened) row.codes = wide[0], row.codes_apart = WIDENED;
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
    w.row.codes += from * w.bits / 8, w.codes_size -= from * w.bits / 8, w.row.out += from * (uint64_t)w.row.bytes;
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
    if (bits < 1 || bits > 8 || (high_first && bits != 4) || before >= height || width == 0 || type < AS_FLOAT32 ||
        type > AS_BFLOAT16)
        return -1;
    if (rows > MAX_ROWS || row_bytes > longest || columns > longest || height > longest) return -1;
    const uint64_t bytes = coded_bytes(type), needed = ceil_div(columns * (uint64_t)bits, 8);
    if (out_size % bytes || (rows && out_size / bytes / rows != columns) || out_size / bytes != rows * columns) return -1;
    if (out_size == 0) return 0; /* pointers may be NULL */
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
    const int wide = bits <= 4 ? 4 : bits <= 6 ? 6 : 8;
    float all[NUMBERS] = {0};
    if (wide > bits) values = memcpy(all, values, sizeof *values << bits);
    work w = {.row = {codes, NULL, which, out, columns, width, 1, row_bytes, columns * bytes, wide, (int)bytes, high_first != 0,
                      streaming, scales, zeros, numbers, type},
              .tables = {values, scales, zeros, biases, NULL, n_scales, 1, 1u << wide, type, factor},
              .columns = columns,
              .across = across,
              .height = height,
              .before = before,
              .bits = (uint64_t)bits,
              .codes_size = codes_size};
    uint8_t *const every = which ? malloc(n_scales * (bytes << wide)) : NULL;
    if (which) {
        if (!every) return -3;
        w.tables.out = every, w.row.tables = every;
        wm_variants_in_use()->tables(&w.tables);
    }
    const uint64_t each = rows == 1 ? width : columns, rows_a_thread = ELEMENTS_A_THREAD / each;
    if (rows == 1) /* eight blocks have whole bytes */
        wm_run_parts(run_blocks, &w, across, 8, rows_a_thread > 8 ? rows_a_thread : 8, threads);
    else
        wm_run_parts(run_rows, &w, rows, height < rows ? height : 1, rows_a_thread > 1 ? rows_a_thread : 1, threads);
    free(every);
    return 0;
}
