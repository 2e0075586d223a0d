/* Tables of tensors: one pass over the rows of an index checks every number in it, before Python makes an array.
 *
 * A table has columns that a scan filled, or the records of EMBD, perhaps in a mapped file. For each row:
 *
 *     dtype       is in the list                      ndim      lies within the format's bounds
 *     unused dims are 0                               bytes     product of the shape, times the bits of an element, rounded
 *                                                               up to bytes, below 2^63 at every step
 *     offset      a multiple of the alignment         range     ends within the data section, and within the file
 *     order       begins where the one before it ended, or at most max_gap bytes later: so two tensors never share a byte
 *
 * A dimension of 0 makes the tensor empty whatever the others are, but the product of the others must still be below 2^63,
 * or numpy refuses the shape.
 *
 * A mapped file may change between two loads, so each value is loaded once, and returned as it was checked. Python checks a row
 * again at each use, but for alignment and order.
 */
#include <stdlib.h>

#include "core/internal.h"
#include "core/utf8.h"

#define LIMIT ((uint64_t)INT64_MAX)
enum { RECORD = 32, HASH = 0, DTYPE = 4, NDIM = 5, LENGTH = 6, DIMS = 8, OFFSET = 24 };

/* a * b below 2^63; returns 0 when it is not. A division instead would be most of the cost of a row. */
static inline int mul(uint64_t a, uint64_t b, uint64_t *product) {
#if defined(__GNUC__)
    return !__builtin_mul_overflow(a, b, product) && *product <= LIMIT;
#else
    if (b != 0 && a > LIMIT / b) return 0;
    *product = a * b;
    return 1;
#endif
}

/* Fails for a tensor that ends at `end`, or for the data section itself (row n): it reaches past the section or the file. */
static int out_of_range(const wm_table *t, uint64_t i, uint64_t end, wm_fault *fault) {
    if (end > t->data_size) return wm_fail(fault, WM_FAULT_TABLE_RANGE, i, 0, end, t->data_size);
    return wm_fail(fault, WM_FAULT_TABLE_TRUNCATED, i, 0, end, t->room);
}

/* Fails for the first of these dimensions that is not 0. */
WM_NOINLINE void unused_dim(uint64_t i, const uint64_t *dims, wm_fault *fault) {
    while (*dims == 0) dims++;
    (void)wm_fail(fault, WM_FAULT_TABLE_UNUSED_DIM, i, 0, *dims, 0);
}

/* Bytes that tensors may lie in. */
static inline uint64_t usable(const wm_table *t) {
    const uint64_t size = t->data_size < t->room ? t->data_size : t->room;
    return size < LIMIT ? size : LIMIT;
}

/* Fills *row, whose number is below n; the dimensions of a record go to `copied`, and `size` is usable(t). Inlined, so that a loop
 * over columns has none of the code for records. */
WM_INLINE int check_row(const wm_table *t, uint64_t i, uint64_t size, uint64_t *copied, wm_row *row, wm_fault *fault) {
    const wm_rules *rules = t->rules;
    const wm_columns *c = t->columns;
    if (!c) {
        const uint8_t *record = t->records + RECORD * i;
        row->dtype = (uint32_t)read_once(record[DTYPE]), row->ndim = (uint32_t)read_once(record[NDIM]);
        for (int k = 0; k < WM_RECORD_DIMS; k++) copied[k] = read_once(load_le32(record + DIMS + 4 * k));
        row->dims = copied, row->offset = read_once(load_le64(record + OFFSET));
    } else {
        const uint64_t first = c->dim_bounds[i], last = c->dim_bounds[i + 1];
        if (first > last || last > t->n_dims) return wm_fail(fault, WM_FAULT_COLUMN, i, 0, last, t->n_dims);
        row->dtype = c->dtype[i], row->ndim = (uint32_t)(last - first), row->dims = c->dims + first, row->offset = c->begin[i];
    }
    const uint64_t bits = rules->bits[row->dtype], ndim = row->ndim;
    if (bits == 0) return wm_fail(fault, WM_FAULT_TABLE_DTYPE, i, 0, row->dtype, 0);
    if (ndim < rules->min_ndim || ndim > rules->max_ndim || (!c && ndim > WM_RECORD_DIMS))
        return wm_fail(fault, WM_FAULT_TABLE_NDIM, i, 0, ndim, rules->max_ndim);

    uint64_t count = 1, total;
    int empty = 0;
    for (uint64_t k = 0; k < ndim; k++) {
        const uint64_t dim = row->dims[k];
        if (dim == 0)
            empty = 1;
        else if (!mul(count, dim, &count))
            return wm_fail(fault, WM_FAULT_TABLE_OVERFLOW, i, 0, dim, LIMIT);
    }
    if (!c && ((ndim < 1 && copied[0]) || (ndim < 2 && copied[1]) || (ndim < 3 && copied[2]) || (ndim < 4 && copied[3])))
        return unused_dim(i, copied + ndim, fault), -1;
    const int declares = c && c->end;
    const uint64_t declared = declares ? c->end[i] - row->offset : 0;
    if (bits == WM_BITS_DECLARED) { /* the shape is legal but does not determine the bytes */
        if (!declares) return wm_fail(fault, WM_FAULT_COLUMN, i, 0, row->dtype, 0);
        if (c->end[i] < row->offset) return wm_fail(fault, WM_FAULT_TABLE_SIZE, i, 0, declared, 0);
        row->nbytes = declared;
    } else {
        /* Bytes, not bits, where elements are whole bytes: numpy has empty arrays whose dimensions make 2^63 bits or more. */
        const uint64_t packed = bits % 8;
        if (!mul(count, packed ? bits : bits / 8, &total)) return wm_fail(fault, WM_FAULT_TABLE_OVERFLOW, i, 0, count, LIMIT);
        row->nbytes = empty ? 0 : packed ? (total + 7) / 8 : total;
        if (declares && declared != row->nbytes) return wm_fail(fault, WM_FAULT_TABLE_SIZE, i, 0, declared, row->nbytes);
    }
    if (row->nbytes > size || row->offset > size - row->nbytes)
        return out_of_range(t, i, add_capped(row->offset, row->nbytes), fault);
    return 0;
}

int wm_row_check(const wm_table *table, uint64_t i, wm_row *row, wm_fault *fault) {
    if (i >= table->n) return wm_fail(fault, WM_FAULT_COLUMN, i, 0, i, table->n);
    return check_row(table, i, usable(table), row->copied, row, fault);
}

int wm_rows_check(const wm_table *table, uint64_t first, uint64_t n, const wm_rows *out, wm_fault *fault) {
    if (first > table->n || n > table->n - first) return wm_fail(fault, WM_FAULT_COLUMN, first, 0, n, table->n);
    const uint64_t size = usable(table);
    for (uint64_t i = 0; i < n; i++) {
        wm_row row;
        if (check_row(table, first + i, size, row.copied, &row, fault)) return -1;
        out->dtype[i] = (uint8_t)row.dtype, out->ndim[i] = (uint8_t)row.ndim;
        out->begin[i] = table->base + row.offset, out->nbytes[i] = row.nbytes;
        for (uint64_t k = 0; k < out->width; k++) out->dims[i * out->width + k] = k < row.ndim ? row.dims[k] : 0;
    }
    return 0;
}

/* Checks every row, and how tensors follow one another unless `lax`. Returns 0, or -1 with *fault filled. */
WM_INLINE int check_table(const wm_table *t, int lax, wm_fault *fault) {
    const wm_rules *rules = t->rules;
    /* A remainder by a power of two is a mask; nearly all alignments are one. */
    const int power = !(rules->alignment & (rules->alignment - 1));
    const uint64_t low = power && rules->alignment ? rules->alignment - 1 : 0, odd = power ? 0 : rules->alignment;
    const uint64_t size = usable(t);
    uint64_t previous = 0; /* where the tensor before this one ended */
    for (uint64_t i = 0; i < t->n; i++) {
        uint64_t copied[WM_RECORD_DIMS];
        wm_row row;
        if (check_row(t, i, size, copied, &row, fault)) return -1;
        const uint64_t offset = row.offset;
        if (offset & low || (odd && offset % odd)) return wm_fail(fault, WM_FAULT_TABLE_ALIGN, i, 0, offset, rules->alignment);
        if (!lax && offset < previous) return wm_fail(fault, WM_FAULT_TABLE_OVERLAP, i, 0, offset, previous);
        if (!lax && offset - previous > rules->max_gap) return wm_fail(fault, WM_FAULT_TABLE_HOLE, i, 0, offset, previous);
        previous = offset + row.nbytes;
    }
    if (t->data_size > t->room && t->data_size != UINT64_MAX) return out_of_range(t, t->n, t->data_size, fault);
    if (!lax && size - previous > rules->max_gap) return wm_fail(fault, WM_FAULT_TABLE_HOLE, t->n, 0, size, previous);
    return 0;
}

/* ------------------------------------------------------------------------------------- names with stored hashes
 * EMBD keeps an FNV-1a hash of each name in its record. One pass in chunks copies the lengths to the stack, hashes the names
 * of the chunk as one batch and compares the stored hashes. Then names.c looks for duplicates.
 */
enum { CHUNK = 1024 };

/* Checks the names of n records, which lie back to back in names[0, len): each is in range, UTF-8, hashed right, and unique.
 * *used is the bytes that they take. */
static int check_names(const uint8_t *records, uint64_t n, const uint8_t *names, uint64_t len, uint64_t *used,
                       wm_fault *fault) {
    uint32_t chunk[CHUNK];
    *used = 0;
    if (n == 0) return 0;
    if (n >= UINT32_MAX / 8) return wm_fail(fault, WM_FAULT_CAPACITY, n, 0, n, UINT32_MAX / 8);
    uint32_t *hash = malloc((2 * n + 1) * sizeof *hash);
    if (!hash) return wm_fail(fault, WM_FAULT_MEMORY, 0, 0, (2 * n + 1) * sizeof *hash, 0);
    uint32_t *position = hash + n;
    int result = -1;

    /* A chunk at a time, so that records and names come into the cache once for all checks. */
    uint64_t pos = 0;
    position[0] = 0;
    for (uint64_t first = 0; first < n; first += CHUNK) {
        uint64_t count = n - first < CHUNK ? n - first : CHUNK, start = pos;
        for (uint64_t i = 0; i < count; i++) {
            uint64_t length = load_le16(records + (first + i) * RECORD + LENGTH);
            if (length > len - pos || pos + length >= UINT32_MAX) {
                wm_fail(fault, WM_FAULT_NAME_RANGE, first + i, pos, length, len - pos);
                goto done;
            }
            pos += length;
            chunk[i] = (uint32_t)length;
            position[first + i + 1] = (uint32_t)pos;
        }
        /* That all bytes together are UTF-8 would not do, since a sequence may straddle two names; that all are ASCII does. */
        if (!wm_ascii(names + start, pos - start))
            for (uint64_t i = first; i < first + count; i++)
                if (!wm_utf8_valid(names + position[i], position[i + 1] - position[i])) {
                    wm_fail(fault, WM_FAULT_NAME_UTF8, i, position[i], 0, 0);
                    goto done;
                }
        wm_fnv1a32_run(names + start, names + len, chunk, 0, count, hash + first);
        for (uint64_t i = first; i < first + count; i++) {
            uint32_t stored = load_le32(records + i * RECORD + HASH);
            if (stored != hash[i]) {
                wm_fail(fault, WM_FAULT_NAME_HASH, i, position[i], stored, hash[i]);
                goto done;
            }
        }
    }
    *used = pos;
    result = wm_names_unique(names, n, hash, position, 1, fault);
done:
    free(hash);
    return result;
}

/* ------------------------------------------------------------------------------------------------ columns in one call */
int wm_columns_place(wm_columns *columns, uint64_t *memory, uint64_t words) {
    wm_columns *c = columns;
    const uint64_t limit = UINT32_MAX; /* no table has more of anything, so sums do not wrap */
    if (c->cap > limit || c->dims_cap > limit || c->names_cap > limit) return -1;
    uint64_t bytes = 8 * (c->dims_cap + 2 * c->cap) + 8 * (c->cap + 1) + 4 * c->cap + c->names_cap + c->cap;
    if (words < (bytes + 7) / 8) return -1;
    /* The widest values first, so that all are aligned. */
    c->dims = memory;
    c->begin = c->dims + c->dims_cap;
    c->end = c->begin + c->cap;
    c->bounds = (uint32_t *)(c->end + c->cap);
    c->dim_bounds = c->bounds + c->cap + 1;
    c->hashes = c->dim_bounds + c->cap + 1;
    c->names = (uint8_t *)(c->hashes + c->cap);
    c->dtype = c->names + c->names_cap;
    return 0;
}

int wm_columns_check(wm_columns *columns, uint64_t n, uint64_t n_dims, uint64_t names_len, int utf8, const wm_rules *rules,
                     uint64_t data_size, uint64_t room, int lax, wm_fault *fault) {
    const wm_columns *c = columns;
    const uint32_t *bounds = c->bounds;
    if (n > c->cap || n_dims > c->dims_cap || names_len > c->names_cap) return wm_fail(fault, WM_FAULT_COLUMN, 0, 0, n, c->cap);
    const wm_table t = {rules, c, NULL, n, n_dims, 0, data_size, room};
    if (check_table(&t, lax, fault)) return -1;
    if (n >= UINT32_MAX / 8) return wm_fail(fault, WM_FAULT_CAPACITY, n, 0, n, UINT32_MAX / 8);
    for (uint64_t i = 0; i < n; i++)
        if (bounds[i + 1] < bounds[i] || bounds[i + 1] > names_len)
            return wm_fail(fault, WM_FAULT_NAME_RANGE, i, bounds[i], bounds[i + 1], names_len);
    if (utf8) {
        int64_t bad = wm_utf8_strings(c->names, names_len, bounds, n, 0);
        if (bad >= 0) return wm_fail(fault, WM_FAULT_NAME_UTF8, (uint64_t)bad, bounds[bad], 0, 0);
    }
    if (n == 0) return 0;
    uint32_t lengths[CHUNK];
    for (uint64_t first = 0; first < n; first += CHUNK) {
        const uint64_t count = n - first < CHUNK ? n - first : CHUNK;
        for (uint64_t i = 0; i < count; i++) lengths[i] = bounds[first + i + 1] - bounds[first + i];
        wm_fnv1a32_run(c->names + bounds[first], c->names + names_len, lengths, 0, count, c->hashes + first);
    }
    columns->hashed = 1;
    return wm_names_unique(c->names, n, c->hashes, bounds, 1, fault);
}

int64_t wm_columns_find(const wm_columns *columns, uint64_t n, uint64_t names_len, const uint8_t *name, uint64_t name_len) {
    /* A hash rules out nearly all names: whole blocks of rows, which compilers compare several at once. */
    enum { BLOCK = 64 };
    const uint32_t *bounds = columns->bounds, *hashes = columns->hashes, hash = wm_fnv1a32(name, name_len);
    if (n > columns->cap || names_len > columns->names_cap) return -1;
    for (uint64_t row = 0; row < n; row += BLOCK) {
        const uint64_t last = n - row < BLOCK ? n : row + BLOCK;
        int hit = !columns->hashed || last - row < BLOCK;
        if (!hit)
            for (int i = 0; i < BLOCK; i++) hit |= hashes[row + i] == hash;
        for (uint64_t i = row; hit && i < last; i++) {
            const uint64_t begin = bounds[i], end = bounds[i + 1];
            if (end - begin == name_len && begin <= end && end <= names_len &&
                memcmp(columns->names + begin, name, name_len) == 0)
                return (int64_t)i;
        }
    }
    return -1;
}

/* ------------------------------------------------------------------------------------------------ EMBD in one call */
int64_t wm_records_check(const uint8_t *index, uint64_t len, uint64_t n, const wm_rules *rules, uint64_t data_size,
                         uint64_t room, int lax, wm_fault *fault) {
    uint64_t used;
    if (n > len / RECORD) return wm_fail(fault, WM_FAULT_COLUMN, 0, 0, len / RECORD, n);
    const wm_table t = {rules, NULL, index, n, 0, 0, data_size, room};
    if (check_table(&t, lax, fault)) return -1;
    return check_names(index, n, index + n * RECORD, len - n * RECORD, &used, fault) ? -1 : (int64_t)used;
}

int64_t wm_records_bounds(const uint8_t *index, uint64_t len, uint64_t n, uint32_t *bounds) {
    uint64_t end = 0;
    if (n > len / RECORD) return -1;
    for (uint64_t row = 0; row < n; row++) {
        bounds[row] = (uint32_t)end;
        end += read_once(load_le16(index + row * RECORD + LENGTH));
    }
    bounds[n] = (uint32_t)end;
    return (int64_t)end;
}

int64_t wm_records_find(const uint8_t *index, uint64_t len, uint64_t n, const uint8_t *name, uint64_t name_len) {
    if (n > len / RECORD) return -1;
    /* Blocks of sixteen rows without the wanted hash are skipped; in a block with a hit each row is compared. */
    enum { BLOCK = 16 };
    const uint8_t *names = index + n * RECORD;
    const uint32_t target = wm_fnv1a32(name, name_len);
    uint64_t names_len = len - n * RECORD, pos = 0;
    for (uint64_t row = 0; row < n; row += BLOCK) {
        uint64_t end = n - row < BLOCK ? n : row + BLOCK;
        if (end - row == BLOCK) { /* a constant number of turns, which the compiler unrolls */
            const uint8_t *block = index + row * RECORD;
            uint64_t sum = 0;
            uint32_t hit = 0;
            for (int i = 0; i < BLOCK; i++) {
                hit |= load_le32(block + i * RECORD + HASH) == target;
                sum += load_le16(block + i * RECORD + LENGTH);
            }
            if (!hit) {
                pos += sum;
                continue;
            }
        }
        for (uint64_t i = row; i < end; i++) {
            uint64_t word = load_le64(index + i * RECORD), size = word >> 48;
            if ((uint32_t)word == target && size == name_len && pos <= names_len && size <= names_len - pos &&
                memcmp(names + pos, name, size) == 0)
                return (int64_t)i;
            pos += size;
        }
    }
    return -1;
}
