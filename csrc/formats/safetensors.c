/* The header of a safetensors file: one JSON object that maps the name of each tensor to
 *
 *     {"dtype": "F32", "shape": [30522, 384], "data_offsets": [0, 46881792]}
 *
 * and may map "__metadata__" to an object of strings, or to null. One pass from left to right writes each tensor's values
 * straight to the columns. Keys of a tensor's object that the format does not define are skipped and counted. The first fault
 * in the text ends the scan.
 *
 * Keys may have escapes, any order and any white space. Writers use one spelling, so that is tried first, by comparing a few
 * bytes; any other spelling is parsed as a string.
 */
#include "formats/json.h"

enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4, ALL_KEYS = 7, MAX_DIMS = 255, DTYPE_BYTES = 16 };

typedef struct {
    wm_json json; /* json.row is the number of the tensor being read */
    const uint8_t *dtypes;
    uint64_t n_dtypes;
    uint64_t last_spelling; /* the last tensor's dtype, in quotes, as a little-endian word, */
    unsigned last_bytes;    /* and how many bytes of the word count: 0 for a longer spelling */
    uint8_t last_dtype;
    wm_columns columns;
    uint64_t n_dims, names_len;            /* of the finished tensors: the columns are free from there on */
    uint64_t undefined_keys, undefined_at; /* see wm_safetensors */
} scan;

/* Where names are unescaped, behind the finished ones; strings that are not kept are unescaped there too. There is always
 * room: every byte written there was read from the text. */
static uint8_t *scratch(const scan *s, uint64_t name_len) { return s->columns.names + s->names_len + name_len; }

static int equal(const uint8_t *string, uint64_t length, const char *text) {
    return length == strlen(text) && memcmp(string, text, length) == 0;
}

/* Looks up the dtype's name, which stands in quotes at p; unescapes it to free_bytes. */
static const uint8_t *find_dtype(scan *s, const uint8_t *p, uint8_t *free_bytes) {
    const uint8_t *at = p;
    uint8_t field[DTYPE_BYTES] = {0};
    uint64_t length, code = 0;
    p = wm_json_string(&s->json, p, free_bytes, &length);
    if (!p) return NULL;
    /* Zero bytes pad the names of the list, so none of them ends in one. */
    if (length == 0 || length > DTYPE_BYTES || !free_bytes[length - 1]) return json_fail(&s->json, WM_FAULT_JSON_DTYPE, at);
    memcpy(field, free_bytes, length);
    while (code < s->n_dtypes && memcmp(field, s->dtypes + code * DTYPE_BYTES, DTYPE_BYTES)) code++;
    if (code == s->n_dtypes) return json_fail(&s->json, WM_FAULT_JSON_DTYPE, at);
    s->last_dtype = (uint8_t)code;
    s->last_bytes = p - at <= 8 ? (unsigned)(p - at) : 0;
    s->last_spelling = 0;
    for (unsigned i = 0; i < s->last_bytes; i++) s->last_spelling |= (uint64_t)at[i] << 8 * i;
    return p;
}

/* Reads the dtype. It is mostly the last tensor's: one comparison of a word. */
static inline const uint8_t *read_dtype(scan *s, const uint8_t *p, uint8_t *free_bytes) {
    if (s->last_bytes && s->json.end - p >= 8 && (load_le64(p) ^ s->last_spelling) << (64 - 8 * s->last_bytes) == 0)
        p += s->last_bytes;
    else if (!(p = find_dtype(s, p, free_bytes)))
        return NULL;
    s->columns.dtype[s->json.row] = s->last_dtype;
    return p;
}

/* Reads "[n, n, ...]" to behind the finished dims; *count is how many. */
static const uint8_t *read_shape(const scan *s, const uint8_t *p, uint64_t *count) {
    const wm_json *json = &s->json;
    uint64_t n = 0;
    p = json_token(json, p, '[');
    if (!p) return NULL;
    p = json_space(json, p);
    if (!json_at(json, p, ']')) {
        for (;;) {
            uint64_t value;
            if (n == MAX_DIMS) return json_fail(json, WM_FAULT_DIMS, p);
            const uint8_t *next = wm_json_u64(json, p, &value);
            if (!next) return NULL;
            if (s->n_dims + n >= s->columns.dims_cap) return json_fail(json, WM_FAULT_CAPACITY, p);
            s->columns.dims[s->n_dims + n++] = value;
            p = json_space(json, next);
            if (!json_at(json, p, ',')) break;
            p = json_space(json, p + 1);
        }
    }
    *count = n;
    return json_token(json, p, ']');
}

/* Reads "[begin, end]". */
static const uint8_t *read_offsets(const scan *s, const uint8_t *p) {
    const wm_json *json = &s->json;
    if (!(p = json_token(json, p, '['))) return NULL;
    if (!(p = wm_json_u64(json, json_space(json, p), &s->columns.begin[json->row]))) return NULL;
    if (!(p = json_token(json, p, ','))) return NULL;
    if (!(p = wm_json_u64(json, json_space(json, p), &s->columns.end[json->row]))) return NULL;
    return json_token(json, p, ']');
}

/* 1 when the n bytes at p equal `text`: with a constant n, one or two comparisons of words. */
static inline int spelled(const scan *s, const uint8_t *p, const char *text, size_t n) {
    return (size_t)(s->json.end - p) >= n && memcmp(p, text, n) == 0;
}

/* Reads a key of a tensor's object and its colon; *key is 0 when the key is none of the three. */
static inline const uint8_t *read_key(const scan *s, const uint8_t *p, uint8_t *free_bytes, int *key) {
    if (spelled(s, p, "\"dtype\":", 8)) return *key = DTYPE, p + 8;
    if (spelled(s, p, "\"shape\":", 8)) return *key = SHAPE, p + 8;
    if (spelled(s, p, "\"data_offsets\":", 15)) return *key = OFFSETS, p + 15;
    uint64_t length;
    p = wm_json_string(&s->json, p, free_bytes, &length);
    if (!p) return NULL;
    *key = equal(free_bytes, length, "dtype")          ? DTYPE
           : equal(free_bytes, length, "shape")        ? SHAPE
           : equal(free_bytes, length, "data_offsets") ? OFFSETS
                                                       : 0;
    return json_token(&s->json, p, ':');
}

/* Reads a tensor's object into row json.row of the columns. Its name, of name_len bytes, lies behind the finished ones. */
static const uint8_t *read_tensor(scan *s, const uint8_t *p, uint64_t name_len) {
    const wm_json *json = &s->json;
    uint8_t *free_bytes = scratch(s, name_len);
    uint64_t count = 0;
    int present = 0;
    if (!(p = json_token(json, p, '{'))) return NULL;
    p = json_space(json, p);
    if (!json_at(json, p, '}')) {
        for (;;) {
            const uint8_t *at = p;
            int key;
            if (!(p = read_key(s, p, free_bytes, &key))) return NULL;
            if (present & key) return json_fail(json, WM_FAULT_JSON_KEY, at);
            present |= key;
            if (key == 0) {
                if (s->undefined_keys++ == 0) s->undefined_at = (uint64_t)(at - json->text);
                p = wm_json_skip(json, p, free_bytes);
            } else if (key == DTYPE) {
                p = read_dtype(s, json_space(json, p), free_bytes);
            } else if (key == SHAPE) {
                p = read_shape(s, p, &count);
            } else {
                p = read_offsets(s, p);
            }
            if (!p) return NULL;
            p = json_space(json, p);
            if (!json_at(json, p, ',')) break;
            p = json_space(json, p + 1);
        }
    }
    if (!(p = json_token(json, p, '}'))) return NULL;
    if (present != ALL_KEYS) return json_fail(json, WM_FAULT_JSON_MISSING, p);
    s->n_dims += count;
    return p;
}

/* Reads the members of the header's object, p after its brace, to the closing one. */
static const uint8_t *read_members(scan *s, const uint8_t *p, wm_safetensors *out) {
    wm_json *json = &s->json;
    int has_metadata = 0;
    p = json_space(json, p);
    if (json_at(json, p, '}')) return p + 1;
    for (;;) {
        const uint8_t *at = p;
        uint8_t *name = scratch(s, 0);
        uint64_t name_len;
        if (!(p = wm_json_string(json, p, name, &name_len))) return NULL;
        if (!(p = json_token(json, p, ':'))) return NULL;
        if (equal(name, name_len, "__metadata__")) {
            p = json_space(json, p);
            const uint8_t *value = p;
            if (has_metadata++) return json_fail(json, WM_FAULT_JSON_METADATA, at);
            if (!json_at(json, p, '{') && !spelled(s, p, "null", 4)) return json_fail(json, WM_FAULT_JSON_METADATA, p);
            if (!(p = wm_json_skip(json, p, scratch(s, 0)))) return NULL;
            if (*value == '{') {
                out->metadata_begin = (uint64_t)(value - json->text);
                out->metadata_end = (uint64_t)(p - json->text);
            }
        } else {
            if (json->row >= s->columns.cap || name_len > UINT32_MAX - s->names_len)
                return json_fail(json, WM_FAULT_CAPACITY, at);
            if (!(p = read_tensor(s, p, name_len))) return NULL;
            s->names_len += name_len;
            json->row++;
            s->columns.bounds[json->row] = (uint32_t)s->names_len;
            s->columns.dim_bounds[json->row] = (uint32_t)s->n_dims;
        }
        p = json_space(json, p);
        if (!json_at(json, p, ',')) return json_token(json, p, '}');
        p = json_space(json, p + 1);
    }
}

int wm_safetensors_scan(const uint8_t *json, uint64_t len, const uint8_t *dtypes, uint64_t n_dtypes, const wm_columns *columns,
                        wm_safetensors *out, wm_fault *fault) {
    scan s = {
        .json = {json, json + len, fault, 0},
        .dtypes = dtypes,
        .n_dtypes = n_dtypes < 256 ? n_dtypes : 256, /* dtype is a column of bytes */
        .columns = *columns,
    };
    const uint64_t *begin = columns->begin, *end = columns->end;
    if (s.columns.dims_cap > UINT32_MAX) s.columns.dims_cap = UINT32_MAX; /* bounds have 32 bits */
    *out = (wm_safetensors){0};
    wm_fail(fault, WM_FAULT_NONE, 0, 0, 0, 0);
    if (columns->names_cap < len) return wm_fail(fault, WM_FAULT_COLUMN, 0, 0, len, columns->names_cap);
    if (len == 0 || json[0] != '{') return wm_fail(fault, WM_FAULT_JSON_SYNTAX, 0, 0, 0, 0);
    columns->bounds[0] = columns->dim_bounds[0] = 0;
    const uint8_t *p = read_members(&s, json + 1, out);
    if (!p) return -1;
    p = json_space(&s.json, p); /* writers pad the header, most of them with spaces to a multiple of eight bytes */
    if (p < s.json.end) return wm_fail(fault, WM_FAULT_JSON_TRAILING, s.json.row, (uint64_t)(p - json), 0, 0);
    out->n_tensors = s.json.row;
    out->n_dims = s.n_dims;
    out->names_len = s.names_len;
    out->undefined_keys = s.undefined_keys;
    out->undefined_at = s.undefined_at;
    out->backwards = s.json.row;
    out->ordered = 1;
    for (uint64_t i = 0; i < s.json.row; i++) {
        if (end[i] < begin[i] && out->backwards == s.json.row) out->backwards = i;
        if (end[i] > out->data_end) out->data_end = end[i];
        if (i && (begin[i] < begin[i - 1] || (begin[i] == begin[i - 1] && end[i] < end[i - 1]))) out->ordered = 0;
    }
    return 0;
}
