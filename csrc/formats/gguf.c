/* The header of a GGUF file: key-values, then tensor infos.
 *
 *     key-value     string key | u32 type | value
 *     tensor info   string name | u32 number of dimensions | that many dimensions | u32 type | u64 offset
 *
 * A string is a length and that many bytes. Lengths, counts and dimensions take 8 bytes, or 4 in version 1 of the format. In
 * a big-endian file the bytes of every number are swapped.
 *
 * A header does not say how long it is. So the scan gets the bytes that have been read so far, and asks for more if they do
 * not suffice: key-values resume with the one that was cut off, tensor infos start over. No field may reach past `limit`: the
 * end of the file, or the caller's limit for a header. A count is compared with the bytes left up to there before it is used,
 * so a scan never takes more steps than there are bytes.
 */
#include "core/internal.h"
#include "core/utf8.h"

enum { STRING = 8, ARRAY = 9, BOOL = 7, TYPES = 13 };
enum { MIN_TENSOR = 20, LAX_NDIM = 64 }; /* bytes of an info, in any version; dimensions that numpy has */
enum { DONE = 0, MORE = 1, WRONG = -1 };
/* Bytes of a value of each type; 0 for strings and arrays. */
static const uint8_t SIZES[TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

typedef struct {
    const uint8_t *data;
    uint64_t len, limit, pos;
    uint64_t width; /* bytes of a length, count or dimension */
    int big;
    uint64_t row;    /* for faults */
    uint64_t needed; /* with MORE: the least number of bytes needed */
    wm_fault *fault;
} reader;

static int wrong(reader *r, int32_t code, uint64_t at, uint64_t actual, uint64_t expected) {
    wm_fail(r->fault, code, r->row, at, actual, expected);
    return WRONG;
}

/* DONE if `count` bytes follow. */
static int have(reader *r, uint64_t count) {
    if (count <= r->len - r->pos) return DONE;
    if (count > r->limit - r->pos) return wrong(r, WM_FAULT_GGUF_END, r->pos, r->limit - r->pos, count);
    r->needed = r->pos + count;
    return MORE;
}

static uint64_t load(const reader *r, const uint8_t *p, uint64_t width) {
    if (!r->big) return width == 4 ? load_le32(p) : load_le64(p);
    uint64_t value = 0;
    for (uint64_t i = 0; i < width; i++) value = value << 8 | p[i];
    return value;
}

static inline int number(reader *r, uint64_t width, uint64_t *value) {
    int state = have(r, width);
    if (state) return state;
    *value = load(r, r->data + r->pos, width);
    r->pos += width;
    return DONE;
}

/* Skips a string; its text is then at data[pos - length]. */
static inline int string(reader *r, uint64_t *length) {
    uint64_t at = r->pos;
    int state = number(r, r->width, length);
    if (state) return state;
    if (*length > r->limit - r->pos) return wrong(r, WM_FAULT_GGUF_COUNT, at, *length, r->limit - r->pos);
    state = have(r, *length);
    if (state == DONE) r->pos += *length;
    return state;
}

/* The fewest bytes of a value of a type. */
static uint64_t min(const reader *r, uint64_t type) {
    return type == STRING ? r->width : type == ARRAY ? 4 + r->width : SIZES[type];
}

static int truth(reader *r, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        if (r->data[r->pos + i] > 1) return wrong(r, WM_FAULT_GGUF_BOOL, r->pos + i, r->data[r->pos + i], 1);
    return DONE;
}

/* With MORE: estimates the rest of a list from its first items, between `start` and `pos`, so that a long list is not read
 * piece by piece. */
static void expect(reader *r, uint64_t start, uint64_t done, uint64_t count, uint64_t min) {
    uint64_t each = done ? (r->pos - start) / done + 1 : 0;
    uint64_t tail = (count - done) * (each > min ? each : min);
    if (tail > r->limit - r->pos) tail = r->limit - r->pos;
    if (r->needed < r->pos + tail) r->needed = r->pos + tail;
}

/* Skips an array of strings. They are the bulk of a header, so the loop writes out what `string` does. */
static int strings(reader *r, uint64_t all) {
    const uint64_t width = r->width, start = r->pos;
    uint64_t count = all;
    while (count) {
        uint64_t length;
        if (r->len - r->pos < width) break;
        length = load(r, r->data + r->pos, width);
        if (length > r->len - r->pos - width) break;
        r->pos += width + length;
        count--;
    }
    if (!count) return DONE;
    const uint64_t at = r->pos;
    uint64_t length;
    int state = string(r, &length);
    if (state == MORE) {
        r->pos = at; /* `string` may have passed the length already */
        expect(r, start, all - count, all, width);
    }
    return state;
}

/* Skips the values of an array that holds no arrays. */
static int items(reader *r, uint64_t type, uint64_t count) {
    if (type == STRING) return strings(r, count);
    int state = have(r, count * SIZES[type]);
    if (state == DONE && type == BOOL) state = truth(r, count);
    if (state == DONE) r->pos += count * SIZES[type];
    return state;
}

/* Skips an array; for arrays of arrays a stack holds how many items each level has left. */
static int array(reader *r) {
    uint64_t remaining[WM_GGUF_DEPTH];
    int depth = 0;
    for (;;) {
        uint64_t at = r->pos, type, count;
        int state = number(r, 4, &type);
        if (state) return state;
        if (type >= TYPES) return wrong(r, WM_FAULT_GGUF_TYPE, at, type, TYPES);
        at = r->pos;
        state = number(r, r->width, &count);
        if (state) return state;
        if (count > (r->limit - r->pos) / min(r, type))
            return wrong(r, WM_FAULT_GGUF_COUNT, at, count, (r->limit - r->pos) / min(r, type));
        if (type == ARRAY && count) {
            if (depth == WM_GGUF_DEPTH) return wrong(r, WM_FAULT_GGUF_DEPTH, at, WM_GGUF_DEPTH + 1, WM_GGUF_DEPTH);
            remaining[depth++] = count;
            continue;
        }
        if (type != ARRAY && (state = items(r, type, count))) return state;
        while (depth && --remaining[depth - 1] == 0) depth--;
        if (!depth) return DONE;
    }
}

static int value(reader *r, uint64_t type, uint64_t at) {
    if (type >= TYPES) return wrong(r, WM_FAULT_GGUF_TYPE, at, type, TYPES);
    if (type == ARRAY) return array(r);
    if (type != STRING) return items(r, type, 1);
    uint64_t length;
    at = r->pos;
    int state = string(r, &length);
    if (state == DONE && !wm_utf8_valid(r->data + r->pos - length, length)) return wrong(r, WM_FAULT_GGUF_UTF8, at, 0, 0);
    return state;
}

static int key_value(reader *r, uint32_t *position) {
    uint64_t at = r->pos, length, type;
    int state = number(r, r->width, &length);
    if (state) return state;
    if (length > WM_GGUF_KEY) return wrong(r, WM_FAULT_GGUF_KEY, at, length, WM_GGUF_KEY);
    if ((state = have(r, length))) return state;
    const uint64_t key = r->pos;
    if (!wm_utf8_valid(r->data + key, length)) return wrong(r, WM_FAULT_GGUF_KEY_UTF8, at, 0, 0);
    r->pos += length;
    at = r->pos;
    if ((state = number(r, 4, &type)) || (state = value(r, type, at))) return state;
    position[0] = (uint32_t)key;
    position[1] = (uint32_t)(key + length);
    return DONE;
}

static reader begin(const uint8_t *data, uint64_t len, wm_gguf *g, wm_fault *fault) {
    return (reader){.data = data,
                    .len = len,
                    .limit = g->limit,
                    .pos = g->pos,
                    .width = g->version == 1 ? 4 : 8,
                    .big = g->big,
                    .row = g->n_keys,
                    .fault = fault};
}

/* Positions take 32 bits. */
static int fits(const wm_gguf *g, uint64_t len) { return g->limit < UINT32_MAX && g->pos <= len && len <= g->limit; }

int wm_gguf_values(const uint8_t *data, uint64_t len, uint32_t *keys, uint64_t cap, wm_gguf *g, wm_fault *fault) {
    wm_fail(fault, WM_FAULT_NONE, 0, 0, 0, 0);
    if (!fits(g, len)) return wm_fail(fault, WM_FAULT_COLUMN, 0, 0, len, g->limit);
    reader r = begin(data, len, g, fault);
    while (g->n_keys < g->count) {
        if (g->n_keys >= cap) return wm_fail(fault, WM_FAULT_CAPACITY, g->n_keys, g->pos, g->count, cap);
        int state = key_value(&r, keys + 2 * g->n_keys);
        g->needed = r.needed;
        if (state) return state;
        g->pos = r.pos;
        r.row = ++g->n_keys;
    }
    return wm_keys_unique(data, g->n_keys, keys, fault);
}

/* Computes the bytes of a tensor. Rows consist of whole blocks. */
static int tensor_bytes(reader *r, const wm_gguf_type *type, const uint64_t *dims, uint64_t ndim, uint64_t at,
                        uint64_t *nbytes) {
    uint64_t row = ndim ? dims[ndim - 1] : 1, count = 1; /* dims has the fastest dimension last */
    if (row % type->elements) return wrong(r, WM_FAULT_GGUF_BLOCK, at, row, type->elements);
    int empty = 0;
    for (uint64_t k = 0; k < ndim; k++) {
        if (dims[k] == 0)
            empty = 1;
        else if (dims[k] > (uint64_t)INT64_MAX / count)
            return wrong(r, WM_FAULT_TABLE_OVERFLOW, at, 0, 0);
        else
            count *= dims[k];
    }
    uint64_t blocks = count / type->elements + (count % type->elements != 0);
    if (blocks > (uint64_t)INT64_MAX / type->bytes) return wrong(r, WM_FAULT_TABLE_OVERFLOW, at, 0, 0);
    *nbytes = empty ? 0 : blocks * type->bytes;
    return DONE;
}

/* Returns the dtype of a code that the caller does not know: its place among such codes. */
static int other(reader *r, uint32_t code, uint64_t at, wm_gguf *g, uint8_t *dtype) {
    uint32_t i = 0;
    while (i < g->n_others && g->others[i] != code) i++;
    if (!g->lax || i == WM_GGUF_OTHERS) return wrong(r, WM_FAULT_TABLE_DTYPE, at, code, g->lax ? WM_GGUF_OTHERS : 0);
    if (i == g->n_others) g->others[g->n_others++] = code;
    *dtype = (uint8_t)(WM_GGUF_TYPES + i);
    return DONE;
}

static int tensor(reader *r, const wm_gguf_type *types, const wm_columns *c, wm_gguf *g) {
    const uint64_t row = r->row, start = r->pos;
    uint64_t length, ndim, code, offset, nbytes;
    int state = string(r, &length);
    if (state) return state;
    memcpy(c->names + g->names_len, r->data + r->pos - length, length);
    g->names_len += length;
    c->bounds[row + 1] = (uint32_t)g->names_len;
    uint64_t at = r->pos;
    if ((state = number(r, 4, &ndim))) return state;
    const uint64_t max_ndim = g->lax ? LAX_NDIM : WM_GGUF_NDIM;
    if (ndim > max_ndim) return wrong(r, WM_FAULT_TABLE_NDIM, at, ndim, max_ndim);
    if (ndim > c->dims_cap - g->n_dims) return wrong(r, WM_FAULT_CAPACITY, start, ndim, c->dims_cap - g->n_dims);
    uint64_t *dims = c->dims + g->n_dims;
    at = r->pos;
    for (uint64_t k = ndim; k > 0; k--)
        if ((state = number(r, r->width, &dims[k - 1]))) return state;
    g->n_dims += ndim;
    c->dim_bounds[row + 1] = (uint32_t)g->n_dims;
    const uint64_t type_at = r->pos;
    if ((state = number(r, 4, &code))) return state;
    static const wm_gguf_type unknown = {1, 1};
    const int is_known = code < WM_GGUF_TYPES && types[code].bytes;
    c->dtype[row] = (uint8_t)code;
    if (!is_known && (state = other(r, (uint32_t)code, type_at, g, &c->dtype[row]))) return state;
    if ((state = tensor_bytes(r, is_known ? &types[code] : &unknown, dims, ndim, at, &nbytes))) return state;
    if (!is_known && nbytes) nbytes = 1;
    at = r->pos;
    if ((state = number(r, 8, &offset))) return state;
    if (offset > UINT64_MAX - nbytes) return wrong(r, WM_FAULT_TABLE_RANGE, at, offset, UINT64_MAX - nbytes);
    c->begin[row] = offset;
    c->end[row] = offset + nbytes;
    if (row && (offset < c->begin[row - 1] || (offset == c->begin[row - 1] && c->end[row] < c->end[row - 1]))) g->ordered = 0;
    if (c->end[row] > g->data_end) g->data_end = c->end[row];
    return DONE;
}

int wm_gguf_tensors(const uint8_t *data, uint64_t len, const wm_gguf_type *types, const wm_columns *columns, wm_gguf *g,
                    wm_fault *fault) {
    wm_fail(fault, WM_FAULT_NONE, 0, 0, 0, 0);
    if (!fits(g, len) || columns->names_cap < len - g->pos || columns->dims_cap >= UINT32_MAX)
        return wm_fail(fault, WM_FAULT_COLUMN, 0, 0, len, columns->names_cap);
    reader r = begin(data, len, g, fault);
    g->n_dims = g->names_len = g->data_end = g->n_others = 0;
    g->ordered = 1;
    columns->bounds[0] = columns->dim_bounds[0] = 0;
    for (r.row = 0; r.row < g->n_tensors; r.row++) {
        /* A caller that asks for fewer rows learns from the fault where the next one begins. */
        if (r.row >= columns->cap) return wm_fail(fault, WM_FAULT_CAPACITY, r.row, r.pos, g->n_tensors, columns->cap);
        int state = tensor(&r, types, columns, g);
        if (state == MORE) expect(&r, g->pos, r.row, g->n_tensors, MIN_TENSOR);
        g->needed = r.needed;
        if (state) return state;
    }
    g->end = r.pos;
    return DONE;
}

void wm_gguf_reach(const wm_columns *columns, uint64_t room, wm_gguf *g) {
    const wm_columns *c = columns;
    if (g->n_tensors > c->cap) return;
    uint64_t next = room; /* the begin after this row's */
    for (uint64_t behind = g->n_tensors; behind > 0; behind--) {
        const uint64_t i = behind - 1;
        if (behind < g->n_tensors && c->begin[behind] > c->begin[i]) next = c->begin[behind];
        if (c->dtype[i] >= WM_GGUF_TYPES && c->end[i] > c->begin[i] && next > c->begin[i]) c->end[i] = next;
        if (c->end[i] > g->data_end) g->data_end = c->end[i];
    }
}

int64_t wm_gguf_find(const uint8_t *data, uint64_t len, const uint32_t *keys, uint64_t n, const uint8_t *key,
                     uint64_t key_len) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t first = keys[2 * i], last = keys[2 * i + 1];
        if (last - first == key_len && first <= last && last <= len && memcmp(data + first, key, key_len) == 0)
            return (int64_t)i;
    }
    return -1;
}

int64_t wm_gguf_array(const uint8_t *data, uint64_t len, uint64_t pos, uint32_t version, int big) {
    wm_fault fault;
    reader r = {.data = data, .len = len, .limit = len, .pos = pos, .width = version == 1 ? 4 : 8, .big = big, .fault = &fault};
    if (pos > len || array(&r)) return -1;
    return (int64_t)r.pos;
}

int64_t wm_gguf_strings(const uint8_t *data, uint64_t len, uint64_t count, uint32_t version, int big, uint32_t *bounds) {
    wm_fault fault;
    reader r = {.data = data, .len = len, .limit = len, .width = version == 1 ? 4 : 8, .big = big, .fault = &fault};
    if (len > UINT32_MAX - r.width) return -1;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t length;
        if (string(&r, &length)) return -1 - (int64_t)i;
        bounds[i] = (uint32_t)(r.pos - length);
    }
    bounds[count] = (uint32_t)(r.pos + r.width);
    return (int64_t)r.pos;
}
