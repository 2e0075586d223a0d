/* The header of a BinTensors file, in the encoding of bincode 2 ("standard" configuration).
 *
 * An unsigned integer up to 250 is one byte; otherwise a byte of 251, 252 or 253 announces two, four or eight bytes,
 * little-endian. No header has 254 or 255 there. A string is its length and its bytes, a list its length and its elements, a
 * map its length and its pairs; an optional value is a byte of 0, or a byte of 1 and the value.
 *
 * Two layouts are in use, and no field says which one a file has:
 *
 *     spec      Option<Map<String, String>>,  Vec<(dtype, shape, start, end)>,  Map<name, index into the Vec>
 *     current   Option<Map<String, String>>,  Vec<(name, dtype, shape, start, end)>
 *
 * One loop walks both, from left to right. In the spec layout names come in the order of the map: the walk notes where the
 * name of each tensor begins, and then copies the names in the order of the tensors.
 *
 * A count is compared with the bytes that are left before it is used, so a walk takes at most as many steps as there are
 * bytes, whatever the counts say.
 */
#include <stdlib.h>

#include "core/internal.h"
#include "core/utf8.h"

/* The fewest bytes of a tensor without its name, a name, a pair of the map, a pair of the metadata. */
enum { MIN_TENSOR = 4, MIN_NAME = 1, MIN_ENTRY = 2, MIN_PAIR = 2, DTYPES = 15 };
enum { SPEC = 1, CURRENT = 2 };

typedef struct {
    const uint8_t *data;
    uint64_t len, pos;
    uint64_t wide; /* the place of the first integer with more bytes than it needs; len if there is none */
    uint64_t row;  /* for faults: the tensor, or pair of a map, being read, */
    int32_t part;  /* and the part of the header */
    int tolerant;  /* 1: go on after a wrong value, to see how far the layout fits */
    wm_fault fault;
    int32_t faulty_part;
} reader;

/* Notes a wrong value after which reading can go on; the first one counts. Returns 1 to go on. */
static int note(reader *r, int32_t code, uint64_t at, uint64_t actual, uint64_t expected) {
    if (r->fault.code == WM_FAULT_NONE) {
        wm_fail(&r->fault, code, r->row, at, actual, expected);
        r->faulty_part = r->part;
    }
    return r->tolerant;
}

/* Notes a fault that ends the reading. Returns 0. */
static int fail(reader *r, int32_t code, uint64_t at, uint64_t actual, uint64_t expected) {
    note(r, code, at, actual, expected);
    return 0;
}

/* Reads an integer of more than one byte. */
static int read_wide(reader *r, uint64_t *value) {
    uint64_t at = r->pos, min;
    uint8_t first = r->data[at];
    if (first > 253) return fail(r, WM_FAULT_BIN_INTEGER, at, first, 253);
    unsigned size = 2u << (first - 251);
    if (r->len - at - 1 < size) return fail(r, WM_FAULT_BIN_END, at, r->len - at - 1, size);
    const uint8_t *p = r->data + at + 1;
    if (size == 2)
        *value = load_le16(p), min = 251;
    else if (size == 4)
        *value = load_le32(p), min = UINT64_C(1) << 16;
    else
        *value = load_le64(p), min = UINT64_C(1) << 32;
    if (*value < min && at < r->wide) r->wide = at;
    r->pos = at + 1 + size;
    return 1;
}

static inline int read_integer(reader *r, uint64_t *value) {
    if (r->pos >= r->len) return fail(r, WM_FAULT_BIN_END, r->len, 0, 1);
    uint8_t first = r->data[r->pos];
    if (first > 250) return read_wide(r, value);
    *value = first;
    r->pos++;
    return 1;
}

/* Reads the count of things that take at least `min` bytes each. */
static inline int read_count(reader *r, uint64_t min, uint64_t *count) {
    uint64_t at = r->pos;
    if (!read_integer(r, count)) return 0;
    return *count <= (r->len - r->pos) / min || fail(r, WM_FAULT_BIN_COUNT, at, *count, (r->len - r->pos) / min);
}

/* Reads a string, which afterwards lies at data[pos - length]. */
static inline int read_string(reader *r, uint64_t *length) {
    if (!read_count(r, 1, length)) return 0;
    r->pos += *length;
    return 1;
}

/* Notes whether a key of the metadata comes twice. The pairs are known to lie within the header. Returns 1 to go on. */
static int check_keys(reader *r, reader pairs, uint64_t count, wm_bintensors *out) {
    if (count < 2) return 1;
    uint32_t *key = malloc(2 * count * sizeof *key); /* begin and end of each */
    if (!key) return fail(r, WM_FAULT_MEMORY, 0, 2 * count * sizeof *key, 0);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t length = 0;
        read_string(&pairs, &length);
        key[2 * i] = (uint32_t)(pairs.pos - length);
        key[2 * i + 1] = (uint32_t)pairs.pos;
        read_string(&pairs, &length);
    }
    wm_fault fault = {0};
    wm_keys_unique(r->data, count, key, &fault);
    free(key);
    if (fault.code == WM_FAULT_MEMORY) return fail(r, WM_FAULT_MEMORY, 0, fault.actual, 0);
    out->keys_in_doubt = fault.code != WM_FAULT_NONE;
    return 1;
}

static int read_metadata(reader *r, wm_bintensors *out) {
    r->part = WM_BIN_METADATA;
    if (r->pos >= r->len) return fail(r, WM_FAULT_BIN_END, r->len, 0, 1);
    uint8_t tag = r->data[r->pos];
    if (tag > 1) return fail(r, WM_FAULT_BIN_OPTION, r->pos, tag, 1);
    r->pos++;
    if (tag == 0) return 1;
    if (!read_count(r, MIN_PAIR, &out->metadata_count)) return 0;
    out->metadata_begin = r->pos;
    const reader pairs = *r;
    for (uint64_t i = 0; i < 2 * out->metadata_count; i++) {
        uint64_t at = r->pos, length;
        r->row = i / 2;
        if (!read_string(r, &length)) return 0;
        if (!wm_utf8_valid(r->data + r->pos - length, length) && !note(r, WM_FAULT_BIN_UTF8, at, 0, 0)) return 0;
    }
    out->metadata_end = r->pos;
    return check_keys(r, pairs, out->metadata_count, out);
}

/* Reads the dtype, the shape and the place of tensor `row`. */
static inline int read_tensor(reader *r, const wm_columns *c, uint64_t *n_dims) {
    uint64_t at = r->pos, code, ndim;
    r->part = WM_BIN_DTYPE;
    if (!read_integer(r, &code)) return 0;
    if (code >= DTYPES && !note(r, WM_FAULT_BIN_DTYPE, at, code, DTYPES)) return 0;
    c->dtype[r->row] = (uint8_t)code;
    at = r->pos;
    r->part = WM_BIN_SHAPE;
    if (!read_count(r, 1, &ndim)) return 0;
    if (ndim > c->dims_cap - *n_dims) return fail(r, WM_FAULT_CAPACITY, at, ndim, c->dims_cap - *n_dims);
    uint64_t *dims = c->dims + *n_dims;
    for (uint64_t k = 0; k < ndim; k++)
        if (!read_integer(r, &dims[k])) return 0;
    *n_dims += ndim;
    c->dim_bounds[r->row + 1] = (uint32_t)*n_dims;
    r->part = WM_BIN_OFFSETS;
    return read_integer(r, &c->begin[r->row]) && read_integer(r, &c->end[r->row]);
}

/* Reads the map from names to tensors: bounds[i] becomes the position of the name of tensor i, with its length. */
static int read_map(reader *r, const wm_columns *c, uint64_t n, wm_bintensors *out) {
    uint64_t at = r->pos, count;
    r->row = n;
    r->part = WM_BIN_MAP;
    out->map_begin = at;
    if (!read_count(r, MIN_ENTRY, &count)) return 0;
    if (count != n && !note(r, WM_FAULT_BIN_MAP, at, count, n)) return 0;
    for (uint64_t i = 0; i < n; i++) c->bounds[i] = UINT32_MAX;
    for (r->row = 0; r->row < count; r->row++) {
        uint64_t name = r->pos, length, index;
        if (!read_string(r, &length)) return 0;
        at = r->pos;
        if (!read_integer(r, &index)) return 0;
        if (index >= n) {
            if (!note(r, WM_FAULT_BIN_INDEX, at, index, n)) return 0;
        } else if (c->bounds[index] != UINT32_MAX) {
            if (!note(r, WM_FAULT_BIN_ALIAS, at, index, n)) return 0;
        } else {
            c->bounds[index] = (uint32_t)name;
        }
    }
    if (r->fault.code != WM_FAULT_NONE) return 1;
    /* n entries and no index twice: each tensor has a name. The bytes are private, so the lengths have not changed. */
    uint64_t names_len = 0;
    reader again = *r;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t length = 0;
        again.pos = c->bounds[i];
        read_string(&again, &length);
        memcpy(c->names + names_len, r->data + again.pos - length, length);
        c->bounds[i] = (uint32_t)names_len;
        names_len += length;
    }
    out->names_len = names_len;
    return 1;
}

/* Reads a header to its end, or as far as it goes. */
static void read_header(reader *r, const wm_columns *c, int layout, wm_bintensors *out) {
    uint64_t n = 0, n_dims = 0, names_len = 0;
    *out = (wm_bintensors){.layout = layout};
    if (!read_metadata(r, out)) return;
    r->row = 0;
    r->part = WM_BIN_TENSORS;
    /* Each tensor has a name, here or in the map: so the count never exceeds the room in the columns. */
    if (!read_count(r, MIN_TENSOR + (layout == SPEC ? MIN_ENTRY : MIN_NAME), &n)) return;
    c->bounds[0] = c->dim_bounds[0] = 0;
    for (; r->row < n; r->row++) {
        uint64_t at = r->pos, length;
        if (r->row >= c->cap) {
            fail(r, WM_FAULT_CAPACITY, at, n, c->cap);
            return;
        }
        if (layout == CURRENT) {
            r->part = WM_BIN_NAME;
            if (!read_string(r, &length)) return;
            memcpy(c->names + names_len, r->data + r->pos - length, length);
            names_len += length;
            c->bounds[r->row + 1] = (uint32_t)names_len;
        }
        if (!read_tensor(r, c, &n_dims)) return;
        if (c->end[r->row] > out->data_end) out->data_end = c->end[r->row];
    }
    out->n_tensors = n;
    out->n_dims = n_dims;
    out->names_len = names_len;
    if (layout == SPEC && !read_map(r, c, n, out)) return;
    c->bounds[n] = (uint32_t)out->names_len;
    out->end = r->pos;
    out->wide = r->wide;
    uint64_t tail = r->pos;
    while (tail < r->len && r->data[tail] == ' ') tail++;
    out->complete = tail == r->len && r->len - r->pos < 8;
}

/* How well a layout fits: the larger, the less likely by chance. From best to worst:
 *   - no fault, and it ends where the header does;
 *   - it ends there, with a fault in the map of names alone, which follows all tensors;
 *   - no fault but bytes left over, or more tensors than there is room for;
 *   - it ends there, with wrong values;
 *   - all tensors were read, up to the map; then by how far it was read. */
static uint64_t progress(const reader *r, const wm_bintensors *out) {
    const int faultless = r->fault.code == WM_FAULT_NONE;
    if (out->complete && faultless) return UINT64_MAX;
    if (out->complete && r->faulty_part == WM_BIN_MAP && out->n_tensors > 0) return UINT64_MAX - 1;
    if (faultless || r->fault.code == WM_FAULT_CAPACITY) return UINT64_MAX - 2;
    if (out->complete) return UINT64_MAX - 3;
    return r->part == WM_BIN_MAP && out->n_tensors > 0 ? r->len : r->pos;
}

int wm_bintensors_scan(const uint8_t *header, uint64_t len, int layouts, const wm_columns *columns, wm_bintensors *out,
                       wm_fault *fault) {
    *out = (wm_bintensors){0};
    wm_fail(fault, WM_FAULT_NONE, 0, 0, 0, 0);
    /* Positions are kept in 32 bits; the format allows headers of 100 MB. */
    if (len >= UINT32_MAX || columns->names_cap < len || columns->dims_cap >= UINT32_MAX)
        return wm_fail(fault, WM_FAULT_COLUMN, 0, 0, len, columns->names_cap);
    /* First strictly. If no layout fits, once more tolerantly, to report the fault of the one that fits best. */
    for (int tolerant = 0; tolerant < 2; tolerant++)
        for (int layout = SPEC; layout <= CURRENT; layout++) {
            if (!(layouts & layout)) continue;
            reader r = {.data = header, .len = len, .wide = len, .tolerant = tolerant};
            wm_bintensors candidate;
            read_header(&r, columns, layout, &candidate);
            candidate.progress = progress(&r, &candidate);
            candidate.part = r.faulty_part;
            if (!tolerant && (r.fault.code != WM_FAULT_NONE || (layouts == (SPEC | CURRENT) && !candidate.complete))) continue;
            if (!tolerant || out->layout == 0 || candidate.progress > out->progress) {
                *out = candidate;
                *fault = r.fault;
            }
            if (!tolerant) return 0;
        }
    if (out->layout == SPEC && layouts & CURRENT) { /* reading the other layout has overwritten its columns */
        reader r = {.data = header, .len = len, .wide = len, .tolerant = 1};
        wm_bintensors candidate;
        read_header(&r, columns, SPEC, &candidate);
    }
    return fault->code == WM_FAULT_NONE ? 0 : -1;
}
