/* Tables of tensors: one pass over the rows of an index checks every number in it, before Python makes an array.
 *
 * A table is a set of columns that may be strided: so the same code checks the 32-byte records of a mapped EMBD file where
 * they lie, and the private arrays that a scan of another format has filled. For each row:
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
 * Each value is loaded once, into a local: a file that changes meanwhile may change the verdict, but no value passes that was
 * not checked. (Python checks again the rows that it reads later.)
 */
#include <stdlib.h>

#include "internal.h"
#include "utf8.h"

#define LIMIT ((uint64_t)INT64_MAX)

/* Value i of a column is little-endian at data[i * stride]; `len` bytes are there from `data` on. */
typedef struct {
    const uint8_t *data;
    uint64_t len, stride;
} column;

typedef struct {
    uint64_t n;
    column dtype;               /* u8: index into bits */
    column ndim;                /* u8; used when dim_bounds is NULL */
    column dims;                /* dims_cap u32 for each row; or, with dim_bounds, u64 values at stride 8 */
    const uint32_t *dim_bounds; /* n + 1 entries: dims of tensor i are values [dim_bounds[i], dim_bounds[i+1]); or NULL */
    column offset;              /* u64, relative to the data */
    column end;                 /* u64, declared end, relative to the data; data NULL when not declared */
    uint64_t dims_cap;          /* without dim_bounds: dimensions that a row has room for */
    wm_rules rules;
    uint64_t data_size, room;
    int lax;
} table;

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

/* 1 when a column holds n values of `width` bytes. */
static int holds(const column *c, uint64_t n, uint64_t width) {
    if (n == 0) return 1;
    if (c->len < width) return 0;
    return n == 1 || (c->stride != 0 && n - 1 <= (c->len - width) / c->stride);
}

static inline uint64_t load_dim(const table *t, uint64_t row, uint64_t k, uint64_t first) {
    if (t->dim_bounds) return load_le64(t->dims.data + 8 * (first + k));
    return load_le32(t->dims.data + row * t->dims.stride + 4 * k);
}

/* Bytes of the row's tensor by its shape and dtype. */
static int shape_bytes(const table *t, uint64_t row, uint64_t *nbytes, wm_fault *fault) {
    uint8_t code = t->dtype.data[row * t->dtype.stride];
    uint64_t bits = t->rules.bits[code];
    if (bits == 0) return wm_fail(fault, WM_FAULT_TABLE_DTYPE, row, 0, code, 0);

    uint64_t first = 0, ndim;
    if (t->dim_bounds) {
        first = t->dim_bounds[row];
        uint64_t last = t->dim_bounds[row + 1];
        if (last < first || last > t->dims.len / 8) return wm_fail(fault, WM_FAULT_COLUMN, row, 0, last, t->dims.len / 8);
        ndim = last - first;
    } else {
        ndim = t->ndim.data[row * t->ndim.stride];
    }
    if (ndim < t->rules.min_ndim || ndim > t->rules.max_ndim)
        return wm_fail(fault, WM_FAULT_TABLE_NDIM, row, 0, ndim, t->rules.max_ndim);

    uint64_t count = 1;
    int empty = 0;
    for (uint64_t k = 0; k < ndim; k++) {
        uint64_t dim = load_dim(t, row, k, first);
        if (dim == 0)
            empty = 1;
        else if (!mul(count, dim, &count))
            return wm_fail(fault, WM_FAULT_TABLE_OVERFLOW, row, 0, dim, LIMIT);
    }
    if (!t->dim_bounds)
        for (uint64_t k = ndim; k < t->dims_cap; k++) {
            uint64_t dim = load_dim(t, row, k, first);
            if (dim != 0) return wm_fail(fault, WM_FAULT_TABLE_UNUSED_DIM, row, 0, dim, 0);
        }
    uint64_t total;
    if (bits == WM_BITS_DECLARED) { /* the shape is legal but does not determine the bytes */
        if (!t->end.data) return wm_fail(fault, WM_FAULT_COLUMN, row, 0, code, 0);
        uint64_t offset = load_le64(t->offset.data + row * t->offset.stride);
        uint64_t end = load_le64(t->end.data + row * t->end.stride);
        if (end < offset) return wm_fail(fault, WM_FAULT_TABLE_SIZE, row, 0, end - offset, 0);
        *nbytes = end - offset;
        return 0;
    }
    /* Bytes, not bits, where elements are whole bytes: numpy has empty arrays whose dimensions make 2^63 bits or more. */
    uint64_t packed = bits % 8;
    if (!mul(count, packed ? bits : bits / 8, &total)) return wm_fail(fault, WM_FAULT_TABLE_OVERFLOW, row, 0, count, LIMIT);
    *nbytes = empty ? 0 : packed ? (total + 7) / 8 : total;
    return 0;
}

/* The same for nearly all rows of EMBD: one to four dimensions, none of which is 0. Returns 0 for other rows, which
 * shape_bytes has to look at. */
static inline int simple_bytes(const table *t, uint64_t row, uint64_t *nbytes) {
    const uint8_t *p = t->dims.data + row * t->dims.stride;
    uint64_t ndim = t->ndim.data[row * t->ndim.stride], code = t->dtype.data[row * t->dtype.stride];
    uint64_t d0 = load_le32(p), d1 = load_le32(p + 4), d2 = load_le32(p + 8), d3 = load_le32(p + 12);
    uint64_t bits = t->rules.bits[code];
    /* Unused dimensions must be 0 and count as 1. */
    if (ndim - 1 > 3 || (ndim < 2 && d1) || (ndim < 3 && d2) || (ndim < 4 && d3)) return 0;
    d1 = ndim < 2 ? 1 : d1;
    d2 = ndim < 3 ? 1 : d2;
    d3 = ndim < 4 ? 1 : d3;
    uint64_t count, total;
    if (!bits || bits == WM_BITS_DECLARED || !d0 || !d1 || !d2 || !d3 || !mul(d0 * d1, d2 * d3, &count) ||
        !mul(count, bits, &total))
        return 0;
    *nbytes = (total + 7) / 8;
    return 1;
}

/* Fails for a tensor that ends at `end`, or for the data section itself (row n): it reaches past the section or the file. */
static int out_of_range(const table *t, uint64_t row, uint64_t end, wm_fault *fault) {
    if (end > t->data_size) return wm_fail(fault, WM_FAULT_TABLE_RANGE, row, 0, end, t->data_size);
    return wm_fail(fault, WM_FAULT_TABLE_TRUNCATED, row, 0, end, t->room);
}

/* Checks every row. Returns 0, or -1 with *fault filled. */
static int check_table(const table *given, wm_fault *fault) {
    const table copy = *given, *t = &copy; /* so the compiler knows that nothing changes it */
    const wm_rules *rules = &t->rules;
    if (!holds(&t->dtype, t->n, 1) || !holds(&t->offset, t->n, 8) || (t->end.data && !holds(&t->end, t->n, 8)) ||
        (!t->dim_bounds &&
         (rules->max_ndim > t->dims_cap || !holds(&t->ndim, t->n, 1) || !holds(&t->dims, t->n, 4 * t->dims_cap))))
        return wm_fail(fault, WM_FAULT_COLUMN, 0, 0, 0, t->n);
    /* A remainder by a power of two is a mask; nearly all alignments are one. */
    const int power = !(rules->alignment & (rules->alignment - 1));
    const uint64_t low = power && rules->alignment ? rules->alignment - 1 : 0, odd = power ? 0 : rules->alignment;
    uint64_t size = t->data_size < t->room ? t->data_size : t->room;
    if (size > LIMIT) size = LIMIT;
    const int lax = t->lax;
    const int simple = !t->dim_bounds && rules->max_ndim == 4 && rules->min_ndim == 1;
    uint64_t previous = 0; /* where the tensor before this one ended */
    for (uint64_t row = 0; row < t->n; row++) {
        uint64_t nbytes, offset = load_le64(t->offset.data + row * t->offset.stride);
        if (!(simple && simple_bytes(t, row, &nbytes)) && shape_bytes(t, row, &nbytes, fault)) return -1;
        if (t->end.data) {
            uint64_t declared = load_le64(t->end.data + row * t->end.stride) - offset;
            if (declared != nbytes) return wm_fail(fault, WM_FAULT_TABLE_SIZE, row, 0, declared, nbytes);
        }
        if (nbytes > size || offset > size - nbytes)
            return out_of_range(t, row, offset > UINT64_MAX - nbytes ? UINT64_MAX : offset + nbytes, fault);
        if (offset & low || (odd && offset % odd))
            return wm_fail(fault, WM_FAULT_TABLE_ALIGN, row, 0, offset, rules->alignment);
        if (!lax && offset < previous) return wm_fail(fault, WM_FAULT_TABLE_OVERLAP, row, 0, offset, previous);
        if (!lax && offset - previous > rules->max_gap) return wm_fail(fault, WM_FAULT_TABLE_HOLE, row, 0, offset, previous);
        previous = offset + nbytes;
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

static uint16_t name_length(const column *lengths, uint64_t row) { return load_le16(lengths->data + row * lengths->stride); }

/* Checks n names that lie back to back in names[0, len), with their u16 lengths and their FNV-1a 32 hashes in two columns: each
 * is in range, UTF-8, hashed right, and unique. *used is the bytes that they take. */
static int check_names(const uint8_t *names, uint64_t len, uint64_t n, const column *lengths, const column *hashes,
                       uint64_t *used, wm_fault *fault) {
    uint32_t chunk[CHUNK];
    *used = 0;
    if (n == 0) return 0;
    if (!holds(lengths, n, 2) || !holds(hashes, n, 4)) return wm_fail(fault, WM_FAULT_COLUMN, 0, 0, 0, n);
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
            uint64_t length = name_length(lengths, first + i);
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
            uint32_t stored = load_le32(hashes->data + i * hashes->stride);
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
    const uint64_t most = UINT32_MAX; /* no table has more of anything, so sums do not wrap */
    if (c->cap > most || c->dims_cap > most || c->names_cap > most) return -1;
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
    table t = {
        .n = n,
        .dtype = {c->dtype, n, 1},
        .dims = {(const uint8_t *)c->dims, 8 * n_dims, 8},
        .dim_bounds = c->dim_bounds,
        .offset = {(const uint8_t *)c->begin, 8 * n, 8},
        .end = {(const uint8_t *)c->end, 8 * n, 8},
        .rules = *rules,
        .data_size = data_size,
        .room = room,
        .lax = lax,
    };
    if (check_table(&t, fault)) return -1;
    if (n >= UINT32_MAX / 8) return wm_fail(fault, WM_FAULT_CAPACITY, n, 0, n, UINT32_MAX / 8);
    for (uint64_t i = 0; i < n; i++)
        if (bounds[i + 1] < bounds[i] || bounds[i + 1] > names_len)
            return wm_fail(fault, WM_FAULT_NAME_RANGE, i, bounds[i], bounds[i + 1], names_len);
    if (utf8) {
        int64_t bad = wm_utf8_strings(c->names, names_len, bounds, n, 0);
        if (bad >= 0) return wm_fail(fault, WM_FAULT_NAME_UTF8, (uint64_t)bad, bounds[bad], 0, 0);
    }
    if (n == 0) return 0;
    uint32_t lengths[CHUNK], few[CHUNK], *hashes = c->hashes ? c->hashes : few;
    if (hashes == few && n > CHUNK && !(hashes = malloc(n * sizeof *hashes)))
        return wm_fail(fault, WM_FAULT_MEMORY, 0, 0, n * sizeof *hashes, 0);
    for (uint64_t first = 0; first < n; first += CHUNK) {
        const uint64_t count = n - first < CHUNK ? n - first : CHUNK;
        for (uint64_t i = 0; i < count; i++) lengths[i] = bounds[first + i + 1] - bounds[first + i];
        wm_fnv1a32_run(c->names + bounds[first], c->names + names_len, lengths, 0, count, hashes + first);
    }
    columns->hashed = hashes == c->hashes;
    int result = wm_names_unique(c->names, n, hashes, bounds, 1, fault);
    if (hashes != c->hashes && hashes != few) free(hashes);
    return result;
}

int64_t wm_columns_find(const wm_columns *columns, uint64_t n, uint64_t names_len, const uint8_t *name, uint64_t name_len) {
    /* A hash rules out nearly all names. Where there are none, eight bytes from where the last name compared differs do so too,
     * for names of a model begin alike, and many end alike; but that reads all names. Blocks of rows without a hit are skipped,
     * and in a block with one each row is compared. Compilers take several rows of a block at once, unless it is so short that
     * they unroll it first. */
    enum { BLOCK = 64, PART = 8 };
    const uint8_t *names = columns->names;
    const uint32_t *bounds = columns->bounds, *hashes = columns->hashes, hash = wm_fnv1a32(name, name_len);
    const int hashed = columns->hashed;
    if (n > columns->cap || names_len > columns->names_cap) return -1;
    for (uint64_t row = 0, at = 0; row < n; row += BLOCK) {
        int hit = 0;
        if (n - row >= BLOCK && hashed) {
            for (int i = 0; i < BLOCK; i++) hit |= hashes[row + i] == hash;
        } else if (n - row >= BLOCK && at + PART <= name_len && name_len <= names_len) {
            const uint64_t wanted = load_le64(name + at), last = names_len - at - PART;
            for (int i = 0; i < BLOCK; i++) {
                const uint64_t begin = bounds[row + i];
                hit |= load_le64(names + at + (begin < last ? begin : last)) == wanted;
            }
        } else {
            hit = 1;
        }
        if (!hit) continue;
        for (uint64_t i = row; i < n && i < row + BLOCK; i++) {
            const uint64_t begin = bounds[i], end = bounds[i + 1];
            if (end - begin != name_len || end < begin || end > names_len) continue;
            uint64_t same = 0;
            while (same < name_len && names[begin + same] == name[same]) same++;
            if (same == name_len) return (int64_t)i;
            at = same + PART <= name_len || name_len < PART ? same : name_len - PART;
        }
    }
    return -1;
}

/* ------------------------------------------------------------------------------------------------ EMBD in one call */
enum { RECORD = 32, HASH = 0, DTYPE = 4, NDIM = 5, LENGTH = 6, DIMS = 8, OFFSET = 24, MAX_NDIM = 4 };

static column field(const uint8_t *index, uint64_t n, uint64_t at) {
    return n ? (column){index + at, n * RECORD - at, RECORD} : (column){index, 0, RECORD};
}

int64_t wm_records_check(const uint8_t *index, uint64_t len, uint64_t n, const wm_rules *rules, uint64_t data_size,
                         uint64_t room, int lax, wm_fault *fault) {
    uint64_t used;
    if (n > len / RECORD) return wm_fail(fault, WM_FAULT_COLUMN, 0, 0, len / RECORD, n);
    table t = {
        .n = n,
        .dtype = field(index, n, DTYPE),
        .ndim = field(index, n, NDIM),
        .dims = field(index, n, DIMS),
        .offset = field(index, n, OFFSET),
        .dims_cap = MAX_NDIM,
        .rules = *rules,
        .data_size = data_size,
        .room = room,
        .lax = lax,
    };
    if (check_table(&t, fault)) return -1;
    column lengths = field(index, n, LENGTH), hashes = field(index, n, HASH);
    return check_names(index + n * RECORD, len - n * RECORD, n, &lengths, &hashes, &used, fault) ? -1 : (int64_t)used;
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
    const uint32_t wanted = wm_fnv1a32(name, name_len);
    uint64_t names_len = len - n * RECORD, pos = 0;
    for (uint64_t row = 0; row < n; row += BLOCK) {
        uint64_t end = n - row < BLOCK ? n : row + BLOCK;
        if (end - row == BLOCK) { /* a constant number of turns, which the compiler unrolls */
            const uint8_t *block = index + row * RECORD;
            uint64_t sum = 0;
            uint32_t hit = 0;
            for (int i = 0; i < BLOCK; i++) {
                hit |= load_le32(block + i * RECORD + HASH) == wanted;
                sum += load_le16(block + i * RECORD + LENGTH);
            }
            if (!hit) {
                pos += sum;
                continue;
            }
        }
        for (uint64_t i = row; i < end; i++) {
            uint64_t word = load_le64(index + i * RECORD), size = word >> 48;
            if ((uint32_t)word == wanted && size == name_len && pos <= names_len && size <= names_len - pos &&
                memcmp(names + pos, name, size) == 0)
                return (int64_t)i;
            pos += size;
        }
    }
    return -1;
}
