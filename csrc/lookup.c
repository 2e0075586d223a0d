/* Codes to values by tables:
 *
 *     out[r][c] = table[which[r / height][c / width]][code of row r, column c]
 *
 * A block of `height` rows and `width` columns shares a table, which holds what each code stands for there. The caller computes the
 * tables, which are few: so values have the bits of its arithmetic on every CPU, and this moves them. Looking up one value takes
 * about as long as storing it, so there are no variants.
 */
#include "internal.h"

enum { ELEMENTS_A_THREAD = 1 << 20 };

typedef struct {
    const uint8_t *codes, *tables;
    const uint32_t *which;
    uint64_t row_bytes, columns, across, height, width;
    int bits, value_bytes;
    uint8_t *out;
} work;

/* The values of n codes from code number `from` on: a byte each, or of 4 bits, the low half of a byte first. */
#define LOOK_UP(bytes)                                                                                          \
    static void look_up_##bytes(const uint8_t *restrict codes, int bits, uint64_t from, uint64_t n,             \
                                const uint8_t *restrict table, uint8_t *restrict out) {                         \
        uint64_t i = 0;                                                                                         \
        if (bits == 8) {                                                                                        \
            for (codes += from; i < n; i++) memcpy(out + bytes * i, table + bytes * (unsigned)codes[i], bytes); \
            return;                                                                                             \
        }                                                                                                       \
        if (from % 2 && n) memcpy(out, table + bytes * (codes[from / 2] >> 4), bytes), i++;                     \
        for (codes += (from + i) / 2; i + 2 <= n; i += 2, codes++) {                                            \
            memcpy(out + bytes * i, table + bytes * (*codes & 15), bytes);                                      \
            memcpy(out + bytes * (i + 1), table + bytes * (*codes >> 4), bytes);                                \
        }                                                                                                       \
        if (i < n) memcpy(out + bytes * i, table + bytes * (*codes & 15), bytes);                               \
    }
LOOK_UP(2)
LOOK_UP(4)

static void run_part(void *context, int part, uint64_t begin, uint64_t end) {
    const work *w = context;
    const uint64_t table_bytes = (uint64_t)w->value_bytes << w->bits, out_bytes = w->columns * (uint64_t)w->value_bytes;
    for (uint64_t first = begin, last; first < end;
         first = last) { /* the rows of a block, so that its table stays in the cache */
        last = (first / w->height + 1) * w->height;
        last = last < end ? last : end;
        const uint32_t *which = w->which + first / w->height * w->across;
        for (uint64_t b = 0, c = 0; c < w->columns; b++, c += w->width) {
            const uint64_t n = w->columns - c < w->width ? w->columns - c : w->width;
            const uint8_t *table = w->tables + which[b] * table_bytes;
            for (uint64_t r = first; r < last; r++) {
                const uint8_t *codes = w->codes + r * w->row_bytes;
                uint8_t *out = w->out + r * out_bytes + c * (uint64_t)w->value_bytes;
                if (w->value_bytes == 2)
                    look_up_2(codes, w->bits, c, n, table, out);
                else
                    look_up_4(codes, w->bits, c, n, table, out);
            }
        }
    }
}

int wm_lookup(const uint8_t *codes, uint64_t codes_size, int bits, uint64_t rows, uint64_t columns, const uint32_t *which,
              uint64_t n_which, uint64_t height, uint64_t width, const uint8_t *tables, uint64_t tables_size, int value_bytes,
              uint8_t *out, uint64_t out_size, int threads) {
    enum { MOST = 1u << 31 };
    if ((bits != 4 && bits != 8) || (value_bytes != 2 && value_bytes != 4) || height == 0 || width == 0) return -1;
    if (rows > MOST || columns > MOST) return -1;
    const uint64_t row_bytes = bits == 8 ? columns : ceil_div(columns, 2), across = ceil_div(columns, width);
    if (codes_size != rows * row_bytes || n_which != ceil_div(rows, height) * across) return -1;
    if (out_size / (uint64_t)value_bytes != rows * columns || out_size % (uint64_t)value_bytes) return -1;
    const uint64_t count = tables_size / ((uint64_t)value_bytes << bits);
    if (tables_size % ((uint64_t)value_bytes << bits)) return -1;
    for (uint64_t i = 0; i < n_which; i++)
        if (which[i] >= count) return -1;
    if (out_size == 0) return 0; /* there may be no pointers */
    if (wm_overlap(codes, codes_size, out, out_size) || wm_overlap(tables, tables_size, out, out_size)) return -2;
    work w = {codes, tables, which, row_bytes, columns, across, height, width, bits, value_bytes, out};
    const uint64_t least = ELEMENTS_A_THREAD / (columns ? columns : 1);
    wm_run_parts(run_part, &w, rows, height < rows ? height : 1, least ? least : 1, threads);
    return 0;
}
