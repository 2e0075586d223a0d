/* The records of an AMB file: its tensors one after another, each behind a header of its own, without a list of them:
 *
 *     u16 name_length | name | u8 ndim | ndim x u32 | u8 dtype | u64 data_size | data | 0-7 zero bytes
 *
 * The padding brings the end of the data to a multiple of 8. Each record begins where the one before ends, so the tensors
 * are found by walking from header to header, over the data between them:
 *
 *     for (pos = begin; pos < end; pos = round_up(data + data_size, 8)) read_record(pos);
 *
 * pread, or a function in its place, brings a window of some kilobytes at each header into private memory, and nothing of the
 * data. So the walk costs a page for each large tensor, small records share a page, and a file may shrink or change meanwhile:
 * every byte that decides is read once.
 *
 * Every size is compared with the bytes left in the section before it is used. A record takes at least twelve bytes, and
 * max_tensors bounds their number, so the walk ends whatever the sizes say.
 *
 * Quantised data begins with a header of four bytes on the same page, which the walk checks too:
 *
 *     u8 quant_type | u16 block_size | u8 scale_type
 *
 * Data of the two schemes by blocks may lack it. Then the section says the sizes of blocks and scales, and the data must take
 * exactly the bytes that follow from them. Data that could be either has a header.
 */
#include <stdlib.h>

#include "core/internal.h"

/* ROOM holds the longest header (a name of 65,535 bytes, 64 dimensions) and up to a page before and after. A window reads
 * READ_AHEAD bytes more than requested, and on to the end of their page. */
enum { PAGE = 4096, READ_AHEAD = 96, ROOM = 65536 + 4 * PAGE };
enum { MAX_NDIM = 64, AFTER_DIMS = 9, QUANT_HEADER = 4, ALIGNMENT = 8 };
enum { INT8 = 3, FIRST_QUANT = 4, BLOCKS = 6, ADAPTIVE = 8, DTYPES = 9, QUANTISED_INT8 = 9 };

typedef struct {
    const wm_amb_section *section;
    const wm_columns *columns;
    wm_amb *out;
    wm_fault *fault;
    uint64_t pos;    /* in the file */
    uint8_t *buffer; /* ROOM bytes; NULL over memory */
    uint64_t start, filled;
} walker;

typedef struct {
    const uint8_t *name, *dims;
    uint64_t name_len, ndim, data, size; /* data: its position in the file */
    uint8_t code;
} record;

static int fail(const walker *w, int32_t code, int32_t part, uint64_t at, uint64_t actual, uint64_t expected) {
    w->out->part = part;
    wm_fail(w->fault, code, w->out->n_tensors, at, actual, expected);
    return 0;
}

/* Fills the window from `at` on with at least `min` and at most `max` bytes. */
static int refill(walker *w, uint64_t at, uint64_t min, uint64_t max) {
    uint64_t error;
    w->start = at;
    w->filled =
        wm_read_at(&(wm_readable){w->section->fd, w->section->read, w->section->context}, w->buffer, min, max, at, &error);
    return w->filled < min ? fail(w, WM_FAULT_AMB_READ, 0, at + w->filled, error, at + min) : 1;
}

/* The `count` bytes of the file from `at` on, valid until the next call; NULL when they cannot be read. The caller knows that
 * they lie within the section. */
static inline const uint8_t *view(walker *w, uint64_t at, uint64_t count) {
    const wm_amb_section *s = w->section;
    if (!w->buffer) return s->data + at;
    if (at < w->start || at - w->start > w->filled || count > w->filled - (at - w->start)) {
        uint64_t last = at + count + READ_AHEAD, max = last - last % PAGE + PAGE - at;
        if (max > s->end - at) max = s->end - at;
        if (!refill(w, at, count, max)) return NULL;
    }
    return w->buffer + (at - w->start);
}

/* Bytes of `count` codes of up to 8 bits; any count, without wrapping around. */
static uint64_t packed(uint64_t bits, uint64_t count) { return count / 8 * bits + (count % 8 * bits + 7) / 8; }

/* Bytes of n elements in blocks; with a block size of 0 one scale and all codes. */
static uint64_t scheme_bytes(uint64_t bits, uint64_t block_size, uint64_t scale, uint64_t n) {
    if (!block_size) return add_capped(scale, packed(bits, n));
    return mul_capped(ceil_div(n, block_size), scale + packed(bits, block_size));
}

static uint64_t bits_of(uint8_t code) { return code == INT8 ? 8 : code == 4 || code == BLOCKS ? 4 : 5; }

/* 1 for a block size that the scheme allows: each block begins on a byte, an adaptive one in 4 bits as well as in 5. */
static int fits_blocks(uint8_t code, uint64_t block_size) {
    if (code < BLOCKS) return block_size == 0;
    return block_size != 0 && block_size % (code == BLOCKS ? 2 : 8) == 0;
}

/* Checks the header and the size of quantised data of n elements. The size of adaptive data depends on its mask, which this does
 * not read: it lies between all blocks in 4 bits and all blocks as halves. */
static int check_quantised(walker *w, const record *r, uint64_t n) {
    const wm_amb_section *s = w->section;
    int by_blocks = r->code == BLOCKS || r->code == BLOCKS + 1;
    int bare = by_blocks && s->bare_scale && fits_blocks(r->code, s->bare_block_size) &&
               r->size == scheme_bytes(bits_of(r->code), s->bare_block_size, s->bare_scale, n);
    if (r->size < QUANT_HEADER)
        return bare || fail(w, WM_FAULT_AMB_SCHEME_SIZE, WM_AMB_DATA_SIZE, r->data - 8, r->size, QUANT_HEADER);
    const uint8_t *header = view(w, r->data, QUANT_HEADER);
    if (!header) return 0;
    uint64_t type = header[0], block_size = load_le16(header + 1), scale_type = header[3], scale = scale_type ? 2 : 4;
    uint64_t by_dtype = r->code - 2u; /* types 1 to 6 stand for dtypes 3 to 8 */
    int32_t problem = 0, part = WM_AMB_QUANT_TYPE;
    uint64_t actual = type, expected = by_dtype, at = r->data;
    if (type != by_dtype) {
        problem = WM_FAULT_AMB_QUANT_TYPE;
    } else if (!fits_blocks(r->code, block_size)) {
        problem = WM_FAULT_AMB_BLOCK_SIZE, part = WM_AMB_BLOCK_SIZE, at += 1, actual = block_size;
        expected = r->code < BLOCKS ? 0 : r->code == BLOCKS ? 2 : 8;
    } else if (scale_type > 1) {
        problem = WM_FAULT_AMB_SCALE_TYPE, part = WM_AMB_SCALE_TYPE, at += 3, actual = scale_type, expected = 1;
    } else if (r->code == ADAPTIVE) {
        uint64_t blocks = ceil_div(n, block_size), mask = ceil_div(blocks, 4);
        uint64_t min = add_capped(mask, mul_capped(blocks, scale + block_size / 2));
        uint64_t max = add_capped(mask, mul_capped(blocks, 2 * block_size));
        if (r->size - QUANT_HEADER < min || r->size - QUANT_HEADER > max)
            problem = WM_FAULT_AMB_SCHEME_SIZE, expected = add_capped(QUANT_HEADER, r->size - QUANT_HEADER < min ? min : max);
    } else {
        expected = add_capped(QUANT_HEADER, scheme_bytes(bits_of(r->code), block_size, scale, n));
        if (r->size != expected) problem = WM_FAULT_AMB_SCHEME_SIZE;
    }
    if (!problem || bare) return 1;
    if (problem == WM_FAULT_AMB_SCHEME_SIZE) part = WM_AMB_DATA_SIZE, at = r->data - 8, actual = r->size;
    return fail(w, problem, part, at, actual, expected);
}

/* Checks the shape, and that the data takes the bytes of that shape. Sets the code that goes into the columns. */
static int check_data(walker *w, record *r) {
    static const uint8_t WIDTH[] = {4, 2, 2, 1};
    uint64_t n = 1, dims_at = r->data - AFTER_DIMS - 4 * r->ndim;
    int empty = 0;
    for (uint64_t k = 0; k < r->ndim; k++) {
        uint64_t dim = load_le32(r->dims + 4 * k);
        if (dim) n = mul_capped(n, dim);
        empty |= !dim;
    }
    uint64_t width = r->code < FIRST_QUANT ? WIDTH[r->code] : 1, bytes = mul_capped(n, width);
    if (bytes > INT64_MAX) return fail(w, WM_FAULT_TABLE_OVERFLOW, WM_AMB_SHAPE, dims_at, 0, INT64_MAX);
    if (empty) n = bytes = 0;
    if (r->code < FIRST_QUANT && r->size == bytes) return 1;
    /* A header and one scale more than the elements: quantised. No two of these sizes are equal. */
    int is_int8 = r->code == INT8 && (r->size == n + QUANT_HEADER + 2 || r->size == n + QUANT_HEADER + 4);
    if (r->code < FIRST_QUANT && !is_int8) return fail(w, WM_FAULT_TABLE_SIZE, WM_AMB_DATA_SIZE, r->data - 8, r->size, bytes);
    if (!check_quantised(w, r, n)) return 0;
    if (is_int8) r->code = QUANTISED_INT8;
    return 1;
}

/* Reads the header of the record at `pos`. Its name and dimensions are valid until the next view. */
static int read_record(walker *w, record *r) {
    uint64_t pos = w->pos, remaining = w->section->end - pos;
    const uint8_t *p;
    if (remaining < 2) return fail(w, WM_FAULT_AMB_END, WM_AMB_NAME_LENGTH, pos, remaining, 2);
    if (!(p = view(w, pos, 2))) return 0;
    r->name_len = load_le16(p);
    remaining -= 2;
    if (remaining < r->name_len) return fail(w, WM_FAULT_AMB_END, WM_AMB_NAME, pos + 2, remaining, r->name_len);
    uint64_t at = pos + 2 + r->name_len;
    remaining -= r->name_len;
    if (remaining < 1) return fail(w, WM_FAULT_AMB_END, WM_AMB_NDIM, at, remaining, 1);
    if (!(p = view(w, pos, 3 + r->name_len))) return 0;
    r->ndim = p[2 + r->name_len];
    if (r->ndim > MAX_NDIM) return fail(w, WM_FAULT_TABLE_NDIM, WM_AMB_NDIM, at, r->ndim, MAX_NDIM);
    uint64_t dims = 4 * r->ndim;
    at++, remaining--;
    if (remaining < dims) return fail(w, WM_FAULT_AMB_END, WM_AMB_SHAPE, at, remaining, dims);
    at += dims, remaining -= dims;
    if (remaining < 1) return fail(w, WM_FAULT_AMB_END, WM_AMB_DTYPE, at, remaining, 1);
    if (remaining < AFTER_DIMS) return fail(w, WM_FAULT_AMB_END, WM_AMB_DATA_SIZE, at + 1, remaining - 1, AFTER_DIMS - 1);
    remaining -= AFTER_DIMS;
    /* The header of the data too, where there may be one: so viewing it later does not move the window. */
    uint64_t more = remaining < QUANT_HEADER ? remaining : QUANT_HEADER;
    if (!(p = view(w, pos, at - pos + AFTER_DIMS + more))) return 0;
    r->name = p + 2;
    r->dims = p + (at - pos) - dims;
    r->code = r->dims[dims];
    r->size = load_le64(r->dims + dims + 1);
    r->data = at + AFTER_DIMS;
    if (r->code >= DTYPES) return fail(w, WM_FAULT_TABLE_DTYPE, WM_AMB_DTYPE, at, r->code, DTYPES);
    if (r->size > remaining) return fail(w, WM_FAULT_AMB_DATA, WM_AMB_DATA_SIZE, at + 1, r->size, remaining);
    return check_data(w, r);
}

/* Counts a record, and writes it to the columns while they have room. */
static int take(walker *w, const record *r) {
    const wm_amb_section *s = w->section;
    const wm_columns *c = w->columns;
    wm_amb *out = w->out;
    uint64_t row = out->n_tensors, names = out->names_len + r->name_len, dims = out->n_dims + r->ndim;
    if (row >= s->max_tensors || dims >= UINT32_MAX)
        return fail(w, WM_FAULT_CAPACITY, WM_AMB_NAME_LENGTH, w->pos, row + 1, s->max_tensors);
    if (names > s->max_names) return fail(w, WM_FAULT_AMB_NAMES, WM_AMB_NAME_LENGTH, w->pos, names, s->max_names);
    if (row < c->cap && names <= c->names_cap && dims <= c->dims_cap) {
        memcpy(c->names + out->names_len, r->name, r->name_len);
        c->bounds[row + 1] = (uint32_t)names;
        for (uint64_t k = 0; k < r->ndim; k++) c->dims[out->n_dims + k] = load_le32(r->dims + 4 * k);
        c->dim_bounds[row + 1] = (uint32_t)dims;
        c->dtype[row] = r->code;
        c->begin[row] = r->data - s->begin;
        c->end[row] = r->data - s->begin + r->size;
    }
    out->names_len = names;
    out->n_dims = dims;
    return 1;
}

/* Steps over the data and the padding behind it. */
static int step(walker *w, const record *r) {
    const wm_amb_section *s = w->section;
    uint64_t end = r->data + r->size, padding = (0 - (end - s->origin)) % ALIGNMENT, remaining = s->end - end;
    if (remaining < padding) { /* the last record; some of its padding is missing */
        if (!s->lax) return fail(w, WM_FAULT_AMB_UNPADDED, WM_AMB_PADDING, end, remaining, padding);
        w->out->unpadded = end;
        padding = remaining;
    }
    const uint8_t *p = padding ? view(w, end, padding) : NULL;
    if (padding && !p) return 0;
    for (uint64_t i = 0; i < padding; i++)
        if (p[i]) {
            if (!s->lax) return fail(w, WM_FAULT_AMB_PADDING, WM_AMB_PADDING, end + i, p[i], 0);
            if (!w->out->odd_padding) w->out->odd_padding = end + i;
        }
    w->pos = end + padding;
    return 1;
}

int wm_amb_walk(const wm_amb_section *section, const wm_columns *columns, wm_amb *out, wm_fault *fault) {
    walker w = {.section = section, .columns = columns, .out = out, .fault = fault, .pos = section->begin};
    *out = (wm_amb){0};
    wm_fail(fault, WM_FAULT_NONE, 0, 0, 0, 0);
    if (section->begin > section->end || section->end > INT64_MAX || section->origin > section->begin ||
        section->max_names >= UINT32_MAX || (section->fd < 0 && !section->read && section->end > section->size))
        return wm_fail(fault, WM_FAULT_COLUMN, 0, 0, section->end, section->size);
    if ((section->fd >= 0 || section->read) && !(w.buffer = malloc(ROOM)))
        return wm_fail(fault, WM_FAULT_MEMORY, 0, 0, ROOM, 0);
    columns->bounds[0] = columns->dim_bounds[0] = 0;
    int fine = 1;
    while (fine && w.pos < section->end) {
        record r = {0};
        fine = read_record(&w, &r) && take(&w, &r) && step(&w, &r);
        out->n_tensors += (uint64_t)fine;
    }
    free(w.buffer);
    return fine ? 0 : -1;
}
