/* ONNX models, which are protobuf: a message is a row of fields, each behind its number and one of four kinds,
 *
 *     varint number << 3 | kind,  then  0: a varint   1: 8 bytes   2: a varint, and as many bytes   5: 4 bytes
 *
 * and the bytes of kind 2 may be a message again. Initialisers lie three deep:
 *
 *     ModelProto { graph = 7: GraphProto { initializer = 5: TensorProto { dims, data_type, name, data ... } ... } ... }
 *
 * and the tensors of Constant nodes five, whose name is the node's first output:
 *
 *     graph { node = 1: NodeProto { output = 2, op_type = 4: "Constant", attribute = 5: { name = 1: "value", t = 5: TensorProto } } }
 *
 * An attribute may hold graphs, with their own nodes and initialisers; functions and training_info have nodes and graphs too.
 * Nothing lists tensors: finding them takes a walk from field to field, across everything else. One walk serves both functions
 * here, over a file or over memory, and reads each byte of a field at most twice. As in amb.c, pread brings a window of some
 * kilobytes into private memory, with tensor data only by chance.
 *
 * A known field of the wrong kind is a fault, although protobuf takes it for an unknown one: no writer makes such a file. Unknown
 * fields are skipped. As in protobuf, fields come in any order, the last of several scalars counts, and repeated numbers may lie
 * in several pieces, packed or one by one.
 */
#include <stdlib.h>

#include "core/internal.h"

enum { PAGE = 4096, READ_AHEAD = 96, PIECE = 65536, ROOM = PIECE + 4 * PAGE, MAX_NAME = 65535, MAX_DIMS = 64 };
enum { MAX_VARINT = 10, MAX_DIGITS = 18 };
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };
/* The fields by their numbers in each message. */
enum { GRAPH = 7, OPSET_IMPORT = 8, METADATA_PROPS = 14, TRAINING_INFO = 20, FUNCTIONS = 25 };
enum { NODE = 1, INITIALIZER = 5, SPARSE_INITIALIZER = 15 };
enum { INITIALIZATION = 1, ALGORITHM = 2, FUNCTION_NODE = 7 }; /* of training_info, of a function */
enum { OUTPUT = 2, OP_TYPE = 4, ATTRIBUTE = 5, DOMAIN = 7 };
enum { ATTRIBUTE_NAME = 1, ONE_TENSOR = 5, ONE_GRAPH = 6, TENSORS = 10, GRAPHS = 11, SPARSE_TENSOR = 22, SPARSE_TENSORS = 23 };
enum { FLOAT_VALUE = 2, STRING_VALUE = 4, FLOATS = 7, STRINGS = 9 };
enum { MAX_GRAPHS = 64 }; /* graphs within graphs: protobuf reads half as many */
static const uint64_t NESTED = (uint64_t)1 << WM_ONNX_NESTED_BIT, IN_FUNCTION = (uint64_t)1 << WM_ONNX_FUNCTION_BIT;
enum {
    DIMS = 1,
    DATA_TYPE = 2,
    SEGMENT = 3,
    FLOAT_DATA = 4,
    INT32_DATA = 5,
    STRING_DATA = 6,
    INT64_DATA = 7,
    NAME = 8,
    RAW_DATA = 9,
    DOUBLE_DATA = 10,
    UINT64_DATA = 11,
    EXTERNAL_DATA = 13,
    DATA_LOCATION = 14
};
enum { KEY = 1, VALUE = 2 };
enum { FLOAT = 1, INT64 = 7, STRING = 8, DOUBLE = 11, UINT32 = 12, UINT64 = 13, COMPLEX64 = 14, COMPLEX128 = 15, TYPES = 29 };
/* Bits of an element by data_type; of a string any number. */
static const uint8_t BITS[TYPES] = {0,   32, 8, 8, 16, 16, 32, 64, 8, 8, 16, 64, 32, 64, 64,
                                    128, 16, 8, 8, 8,  8,  4,  4,  4, 8, 2,  2,  6,  6};

typedef struct {
    const wm_onnx_file *file;
    wm_onnx *out;
    wm_fault *fault;
    uint8_t *buffer; /* ROOM bytes; NULL over memory */
    uint64_t start, filled;
    uint8_t last[WM_ONNX_PATH]; /* the location of the last tensor in another file */
    uint64_t last_len;
    uint64_t at, dims[MAX_DIMS]; /* start of the tensor being read, and its dimensions */
    uint64_t nested;             /* NESTED in a node, a sub-graph or training_info, in a function with IN_FUNCTION, else 0 */
} walker;

/* A field: its payload [begin, end) in the file, and for a varint its value, else 0. */
typedef struct {
    uint64_t at, number, kind, value, begin, end;
} field;

static int fail(const walker *w, int32_t code, uint64_t at, uint64_t actual, uint64_t expected) {
    wm_fail(w->fault, code, w->out->n_tensors, at, actual, expected);
    return 0;
}

/* The `count` bytes of the file from `at` on, at most PIECE, valid until the next call; NULL when they cannot be read. The caller
 * knows that they lie within the file. */
static inline const uint8_t *view(walker *w, uint64_t at, uint64_t count) {
    const wm_onnx_file *f = w->file;
    if (!w->buffer) return f->data + at;
    if (at < w->start || at - w->start > w->filled || count > w->filled - (at - w->start)) {
        uint64_t last = at + count + READ_AHEAD, max = last - last % PAGE + PAGE - at, error;
        if (max > f->size - at) max = f->size - at;
        w->start = at;
        w->filled = wm_read_at(&(wm_readable){f->fd, f->read, f->context}, w->buffer, count, max, at, &error);
        if (w->filled < count) return fail(w, WM_FAULT_ONNX_READ, at + w->filled, error, at + count), NULL;
    }
    return w->buffer + (at - w->start);
}

/* Reads a varint at *pos of a message that ends at `end`. */
static inline int read_varint(walker *w, uint64_t *pos, uint64_t end, uint64_t *value) {
    uint64_t at = *pos, remaining = end - at;
    const uint8_t *p = view(w, at, remaining < MAX_VARINT ? remaining : MAX_VARINT);
    if (!p) return 0;
    if (remaining && p[0] < 0x80) return *value = p[0], *pos = at + 1, 1;
    uint64_t result = 0;
    for (unsigned i = 0; i < MAX_VARINT && i < remaining; i++) {
        result |= (uint64_t)(p[i] & 0x7F) << 7 * i;
        if (p[i] < 0x80) {
            if (i == MAX_VARINT - 1 && p[i] > 1) break; /* more than 64 bits */
            return *value = result, *pos = at + i + 1, 1;
        }
    }
    return remaining < MAX_VARINT ? fail(w, WM_FAULT_ONNX_END, at, remaining, remaining + 1)
                                  : fail(w, WM_FAULT_ONNX_VARINT, at, 0, 0);
}

/* Reads the field at *pos of a message that ends at `end`. */
static inline int read_field(walker *w, uint64_t *pos, uint64_t end, field *f) {
    uint64_t tag, size;
    f->at = *pos, f->value = 0;
    if (!read_varint(w, pos, end, &tag)) return 0;
    f->number = w->out->number = tag >> 3, f->kind = tag & 7;
    if (f->number == 0 || tag > UINT32_MAX) return fail(w, WM_FAULT_ONNX_TAG, f->at, tag, 0);
    f->begin = *pos;
    switch (f->kind) {
    case VARINT:
        if (!read_varint(w, pos, end, &f->value)) return 0;
        f->end = *pos;
        return 1;
    case BYTES:
        if (!read_varint(w, pos, end, &size)) return 0;
        f->begin = *pos;
        break;
    case FIXED64: size = 8; break;
    case FIXED32: size = 4; break;
    default: return fail(w, WM_FAULT_ONNX_KIND, f->at, f->kind, 0);
    }
    if (size > end - f->begin) return fail(w, WM_FAULT_ONNX_END, f->at, end - f->begin, size);
    *pos = f->end = f->begin + size;
    return 1;
}

/* Refuses a field whose kind does not match its number. */
static inline int expect(const walker *w, const field *f, uint64_t kind) {
    return f->kind == kind || fail(w, WM_FAULT_ONNX_WIRE, f->at, f->kind, kind);
}

/* --------------------------------------------------------------------------------------------------- a tensor */
typedef struct {
    uint64_t name_len, ndim, type;
    int external;                            /* data_location */
    int has_raw, has_length;                 /* raw_data; a "length" in external_data */
    uint64_t raw_begin, raw_end;             /* the payload of raw_data, */
    uint64_t typed, typed_at, typed_end;     /* the field with numbers or strings, from its first tag to its end, */
    uint64_t pieces, piece_begin, bytes;     /* number of its pieces, the last payload; bytes of all payloads */
    uint64_t offset, length, path, path_len; /* external_data: "location" lies at `path` */
    uint64_t sum, sum_len;                   /* "checksum" */
} tensor;

/* The kind of a single number of a field of numbers. */
static uint64_t kind_of(uint64_t number) {
    return number == FLOAT_DATA ? FIXED32 : number == DOUBLE_DATA ? FIXED64 : number == STRING_DATA ? BYTES : VARINT;
}

/* Whether numbers of this type may lie in this field. */
static int holds(uint64_t number, uint64_t type) {
    switch (number) {
    case FLOAT_DATA: return type == FLOAT || type == COMPLEX64;
    case DOUBLE_DATA: return type == DOUBLE || type == COMPLEX128;
    case INT64_DATA: return type == INT64;
    case UINT64_DATA: return type == UINT32 || type == UINT64;
    case STRING_DATA: return type == STRING;
    default: return type != FLOAT && type != INT64 && type != STRING && !(DOUBLE <= type && type <= COMPLEX128);
    }
}

/* Notes a piece of numbers. */
static int read_numbers(walker *w, const field *f, tensor *t) {
    uint64_t kind = kind_of(f->number), size = f->end - f->begin, width = kind == FIXED32 ? 4 : kind == FIXED64 ? 8 : 1;
    if (f->kind != kind && f->kind != BYTES) return fail(w, WM_FAULT_ONNX_WIRE, f->at, f->kind, BYTES);
    if (size % width) return fail(w, WM_FAULT_ONNX_PACKED, f->at, size, width);
    if (!size && kind != BYTES) return 1; /* no numbers */
    if (t->typed && t->typed != f->number) return fail(w, WM_FAULT_ONNX_TWICE, f->at, t->typed, 0);
    if (!t->typed) t->typed_at = f->at;
    t->typed = f->number;
    t->typed_end = f->end;
    t->pieces++;
    t->piece_begin = f->begin;
    t->bytes += size;
    return 1;
}

static int read_dim(walker *w, const wm_columns *c, tensor *t, uint64_t at, uint64_t dim) {
    if (dim > INT64_MAX) return fail(w, WM_FAULT_ONNX_DIM, at, dim, 0);
    if (t->ndim == MAX_DIMS) return fail(w, WM_FAULT_TABLE_NDIM, at, MAX_DIMS + 1, MAX_DIMS);
    if (w->out->n_dims + t->ndim < c->dims_cap) c->dims[w->out->n_dims + t->ndim] = dim;
    w->dims[t->ndim++] = dim;
    return 1;
}

static int read_dims(walker *w, const wm_columns *c, const field *f, tensor *t) {
    uint64_t dim, pos = f->begin;
    if (f->kind == VARINT) return read_dim(w, c, t, f->at, f->value);
    if (!expect(w, f, BYTES)) return 0;
    while (pos < f->end) {
        uint64_t at = pos;
        if (!read_varint(w, &pos, f->end, &dim) || !read_dim(w, c, t, at, dim)) return 0;
    }
    return 1;
}

/* Copies [begin, end) of the file, which may be longer than a window. */
static int copy(walker *w, uint64_t begin, uint64_t end, uint8_t *out) {
    for (uint64_t at = begin; at < end;) {
        uint64_t size = end - at < PIECE ? end - at : PIECE;
        const uint8_t *p = view(w, at, size);
        if (!p) return 0;
        memcpy(out + (at - begin), p, size);
        at += size;
    }
    return 1;
}

/* Reads the decimal number of an entry, up to 18 digits. */
static int read_decimal(walker *w, uint64_t begin, uint64_t end, uint64_t *value) {
    uint64_t size = end - begin, result = 0;
    const uint8_t *p = size && size <= MAX_DIGITS ? view(w, begin, size) : NULL;
    if (size && size <= MAX_DIGITS && !p) return 0;
    for (uint64_t i = 0; p && i < size; i++) {
        if (p[i] < '0' || p[i] > '9')
            p = NULL;
        else
            result = 10 * result + (p[i] - '0');
    }
    return *value = result, p ? 1 : fail(w, WM_FAULT_ONNX_DECIMAL, begin, size, MAX_DIGITS);
}

static int is_key(const uint8_t *key, uint64_t len, const char *name) {
    return len == strlen(name) && memcmp(key, name, len) == 0;
}

/* Reads a key and its value of external_data; the last of several with one key counts. */
static int read_entry(walker *w, const field *entry, tensor *t) {
    uint64_t pos = entry->begin, key = pos, key_end = pos, value = pos, value_end = pos;
    field f;
    w->out->message = WM_ONNX_ENTRY;
    while (pos < entry->end) {
        if (!read_field(w, &pos, entry->end, &f)) return 0;
        if (f.number != KEY && f.number != VALUE) continue;
        if (!expect(w, &f, BYTES)) return 0;
        *(f.number == KEY ? &key : &value) = f.begin;
        *(f.number == KEY ? &key_end : &value_end) = f.end;
    }
    if (key_end - key > sizeof "location") return 1;
    const uint8_t *p = view(w, key, key_end - key);
    if (!p) return 0;
    if (is_key(p, key_end - key, "location")) {
        t->path = value, t->path_len = value_end - value;
    } else if (is_key(p, key_end - key, "checksum")) {
        t->sum = value, t->sum_len = value_end - value;
    } else if (is_key(p, key_end - key, "offset")) {
        return read_decimal(w, value, value_end, &t->offset);
    } else if (is_key(p, key_end - key, "length")) {
        t->has_length = 1;
        return read_decimal(w, value, value_end, &t->length);
    }
    return 1;
}

static int read_tensor_field(walker *w, const wm_columns *c, const field *f, tensor *t) {
    switch (f->number) {
    case DIMS: return read_dims(w, c, f, t);
    case DATA_TYPE: return t->type = f->value, expect(w, f, VARINT);
    case SEGMENT: return fail(w, WM_FAULT_ONNX_SEGMENT, f->at, 0, 0);
    case FLOAT_DATA:
    case INT32_DATA:
    case STRING_DATA:
    case INT64_DATA:
    case DOUBLE_DATA:
    case UINT64_DATA: return read_numbers(w, f, t);
    case NAME:
        if (!expect(w, f, BYTES)) return 0;
        t->name_len = f->end - f->begin;
        if (t->name_len > MAX_NAME) return fail(w, WM_FAULT_ONNX_NAME, f->at, t->name_len, MAX_NAME);
        /* Copied at once, as long as the window has it; another name replaces it. */
        return w->out->names_len + t->name_len > c->names_cap || copy(w, f->begin, f->end, c->names + w->out->names_len);
    case RAW_DATA: t->has_raw = 1, t->raw_begin = f->begin, t->raw_end = f->end; return expect(w, f, BYTES);
    case EXTERNAL_DATA:
        if (!expect(w, f, BYTES) || !read_entry(w, f, t)) return 0;
        w->out->message = WM_ONNX_TENSOR;
        return 1;
    case DATA_LOCATION:
        if (!expect(w, f, VARINT)) return 0;
        t->external = f->value == 1;
        return f->value <= 1 || fail(w, WM_FAULT_ONNX_LOCATION, f->at, f->value, 1);
    default: return 1;
    }
}

/* Elements by the shape, or 2^64 - 1 if they are more. */
static uint64_t elements(const walker *w, uint64_t ndim) {
    uint64_t n = 1;
    int empty = 0;
    for (uint64_t k = 0; k < ndim; k++) {
        n = mul_capped(n, w->dims[k]);
        empty |= w->dims[k] == 0;
    }
    return empty ? 0 : n;
}

/* Numbers that a field holds for n elements of a type. */
static uint64_t numbers(uint64_t type, uint64_t n) {
    uint64_t bits = BITS[type];
    return type == COMPLEX64 || type == COMPLEX128 ? mul_capped(n, 2) : bits < 6 ? ceil_div(n, 8 / bits) : n;
}

/* Notes the other file of a tensor, unless the tensor before has the same. */
static int note_file(walker *w, const tensor *t) {
    const wm_onnx_file *f = w->file;
    wm_onnx *out = w->out;
    uint8_t path[WM_ONNX_PATH];
    if (t->path_len == 0 || t->path_len > sizeof path)
        return fail(w, WM_FAULT_ONNX_PATH, t->path_len ? t->path : w->at, t->path_len, sizeof path);
    if (!copy(w, t->path, t->path + t->path_len, path)) return 0;
    if (out->n_files && w->last_len == t->path_len && !t->sum_len && memcmp(w->last, path, t->path_len) == 0) return 1;
    memcpy(w->last, path, t->path_len);
    w->last_len = t->sum_len ? 0 : t->path_len; /* one with a checksum is noted again */
    if (out->n_files < f->files_cap)
        f->files[out->n_files] = (wm_onnx_place){out->n_tensors, t->path, t->path_len, t->sum, t->sum_len};
    out->n_files++;
    return 1;
}

static int add(walker *w, const wm_columns *c, const tensor *t, uint8_t code, uint64_t begin, uint64_t end);

/* Locates the data of a tensor, and writes its row. */
static int take(walker *w, const wm_columns *c, const tensor *t) {
    wm_onnx *out = w->out;
    uint64_t begin = w->at, end = w->at, n = elements(w, t->ndim);
    uint8_t code = (uint8_t)t->type;
    out->number = NAME;
    if (!t->name_len) return fail(w, WM_FAULT_ONNX_NAME, w->at, 0, MAX_NAME);
    out->number = DATA_TYPE;
    if (t->type >= TYPES || !BITS[t->type] || (w->nested && t->type == STRING))
        return fail(w, WM_FAULT_TABLE_DTYPE, w->at, t->type, 0);
    if (t->typed) {
        out->number = t->typed;
        if (!holds(t->typed, t->type)) return fail(w, WM_FAULT_ONNX_FIELD, t->typed_at, t->type, 0);
        if (t->has_raw || t->external)
            return fail(w, WM_FAULT_ONNX_TWICE, t->typed_at, t->external ? EXTERNAL_DATA : RAW_DATA, 0);
    }
    if (t->type == STRING) {
        out->n_strings++;
    } else if (t->external) {
        out->number = RAW_DATA;
        if (t->has_raw && t->raw_end > t->raw_begin) return fail(w, WM_FAULT_ONNX_TWICE, t->raw_begin, EXTERNAL_DATA, 0);
        if (!note_file(w, t)) return 0;
        begin = t->offset;
        end = add_capped(begin, t->has_length ? t->length : ceil_div(mul_capped(n, BITS[t->type]), 8));
        code |= WM_ONNX_EXTERNAL;
    } else if (t->has_raw) {
        begin = t->raw_begin, end = t->raw_end;
    } else if (t->typed) {
        uint64_t count = numbers(t->type, n), kind = kind_of(t->typed), width = kind == FIXED32 ? 4 : 8;
        if (kind == VARINT ? count > t->bytes || t->bytes / MAX_VARINT > count : t->bytes / width != count)
            return fail(w, WM_FAULT_ONNX_COUNT, t->typed_at, t->bytes, count);
        if (t->pieces == 1 && kind != VARINT) {
            begin = t->piece_begin, end = t->typed_end; /* the elements themselves */
        } else {
            begin = t->typed_at, end = t->typed_end;
            code |= WM_ONNX_MADE;
        }
    }
    return add(w, c, t, code, begin, end);
}

/* Writes the row of a tensor, while there is room. */
static int add(walker *w, const wm_columns *c, const tensor *t, uint8_t code, uint64_t begin, uint64_t end) {
    wm_onnx *out = w->out;
    uint64_t row = out->n_tensors, names = out->names_len + t->name_len, dims = out->n_dims + t->ndim;
    if (row >= w->file->max_tensors || dims >= UINT32_MAX)
        return fail(w, WM_FAULT_CAPACITY, w->at, row + 1, w->file->max_tensors);
    if (names > w->file->max_names) return fail(w, WM_FAULT_ONNX_NAMES, w->at, names, w->file->max_names);
    if (row < c->cap && names <= c->names_cap && dims <= c->dims_cap) {
        c->bounds[row + 1] = (uint32_t)names;
        c->dim_bounds[row + 1] = (uint32_t)dims;
        c->dtype[row] = code;
        c->begin[row] = begin;
        c->end[row] = end;
        w->file->at[row] = w->at | w->nested;
    }
    out->names_len = names, out->n_dims = dims;
    out->n_tensors++;
    return 1;
}

/* ---------------------------------------------------------------------------------------- the messages around it */
/* Whether a fault is about one tensor, and not about where messages end or how much there is. */
static int is_of_tensor(int32_t code) {
    static const int32_t CODES[] = {WM_FAULT_ONNX_DIM,    WM_FAULT_TABLE_NDIM,   WM_FAULT_ONNX_SEGMENT, WM_FAULT_ONNX_FIELD,
                                    WM_FAULT_ONNX_TWICE,  WM_FAULT_ONNX_COUNT,   WM_FAULT_ONNX_NAME,    WM_FAULT_ONNX_LOCATION,
                                    WM_FAULT_ONNX_PACKED, WM_FAULT_ONNX_DECIMAL, WM_FAULT_ONNX_PATH,    WM_FAULT_TABLE_DTYPE,
                                    WM_FAULT_ONNX_WIRE};
    for (unsigned i = 0; i < sizeof CODES / sizeof *CODES; i++)
        if (CODES[i] == code) return 1;
    return 0;
}

/* Reads a tensor; its name is `name` if that is not NULL, else its own. */
static int read_tensor_as(walker *w, const wm_columns *c, const field *message, const field *name, tensor *t) {
    uint64_t pos = message->begin;
    field f;
    *t = (tensor){0};
    w->at = message->at;
    w->out->message = WM_ONNX_TENSOR;
    while (pos < message->end)
        if (!read_field(w, &pos, message->end, &f) || !read_tensor_field(w, c, &f, t)) return 0;
    if (name) {
        const field named = {.at = name->at, .number = NAME, .kind = BYTES, .begin = name->begin, .end = name->end};
        if (!read_tensor_field(w, c, &named, t)) return 0;
    }
    return take(w, c, t);
}

/* Reads a tensor. An unreadable one in a node or a graph within a graph, where nobody looks it up by name, is only counted.
 * Elsewhere, with file->lax, it becomes a row without data, of the data_type 0. */
static int read_tensor(walker *w, const wm_columns *c, const field *message, const field *name) {
    wm_onnx *out = w->out;
    const uint64_t files = out->n_files;
    tensor t;
    out->n_nested += w->nested != 0;
    if (read_tensor_as(w, c, message, name, &t)) return 1;
    if (!is_of_tensor(w->fault->code) || !(w->nested || w->file->lax)) return 0;
    wm_fail(w->fault, WM_FAULT_NONE, 0, 0, 0, 0);
    out->n_files = files, w->last_len = 0;
    if (w->nested) return out->n_unlisted++, 1;
    t = (tensor){0};
    for (uint64_t pos = message->begin; pos < message->end;) { /* the name may stand behind the fault */
        field f;
        if (!read_field(w, &pos, message->end, &f)) return 0;
        if (f.number != NAME || f.kind != BYTES || f.end - f.begin > MAX_NAME) continue;
        if (!read_tensor_field(w, c, &f, &t)) return 0;
    }
    if (!t.name_len) return out->n_unlisted++, 1;
    out->n_unread++;
    return add(w, c, &t, 0, w->at, w->at);
}

static int read_graph(walker *w, const wm_columns *c, const field *message, int depth);

/* Whether the field's bytes are this text; -1 when they cannot be read. */
static int is_text(walker *w, const field *f, const char *text) {
    const uint64_t size = f->end - f->begin;
    if (size != strlen(text)) return 0;
    const uint8_t *p = view(w, f->begin, size);
    return p ? memcmp(p, text, size) == 0 : -1;
}

/* Reads an attribute of a node in a graph of this depth; `output` is the output of a Constant node, NULL for other nodes. */
static int read_attribute(walker *w, const wm_columns *c, const field *message, const field *output, int depth) {
    uint64_t pos = message->begin, tensors = 0, numbers = 0;
    int is_value = 0;
    field f, value = {0};
    while (pos < message->end) {
        w->out->message = WM_ONNX_NODE;
        if (!read_field(w, &pos, message->end, &f)) return 0;
        switch (f.number) {
        case ATTRIBUTE_NAME:
            if (!expect(w, &f, BYTES) || (is_value = is_text(w, &f, "value")) < 0) return 0;
            break;
        case ONE_TENSOR:
            if (!expect(w, &f, BYTES)) return 0;
            value = f;
            tensors++;
            break;
        case TENSORS: w->out->n_unlisted++; break;
        case SPARSE_TENSOR:
        case SPARSE_TENSORS: w->out->n_sparse++; break;
        case ONE_GRAPH:
        case GRAPHS:
            if (!expect(w, &f, BYTES) || !read_graph(w, c, &f, depth + 1)) return 0;
            break;
        default:
            numbers |= (FLOAT_VALUE <= f.number && f.number <= STRING_VALUE) || (FLOATS <= f.number && f.number <= STRINGS);
        }
    }
    if (output && is_value && tensors == 1) return read_tensor(w, c, &value, output);
    w->out->n_unlisted += tensors != 0; /* protobuf merges several into one */
    w->out->n_numbers += output && !tensors && numbers;
    return 1;
}

/* Reads a node of a graph of this depth: its kind first, since fields come in any order. */
static int read_node(walker *w, const wm_columns *c, const field *message, int depth) {
    const uint64_t outside = w->nested;
    uint64_t pos = message->begin, attributes = 0, outputs = 0;
    int is_constant = 0, is_standard = 1;
    field f, output = {0};
    while (pos < message->end) {
        w->out->message = WM_ONNX_NODE;
        if (!read_field(w, &pos, message->end, &f)) return 0;
        if (f.number != OUTPUT && f.number != OP_TYPE && f.number != ATTRIBUTE && f.number != DOMAIN) continue;
        if (!expect(w, &f, BYTES)) return 0;
        attributes += f.number == ATTRIBUTE;
        if (f.number == OUTPUT && !outputs++) output = f;
        if (f.number == OP_TYPE && (is_constant = is_text(w, &f, "Constant")) < 0) return 0;
        if (f.number != DOMAIN || (is_standard = f.begin == f.end)) continue;
        if ((is_standard = is_text(w, &f, "ai.onnx")) < 0) return 0;
    }
    w->nested |= NESTED;
    for (pos = message->begin; attributes; attributes -= f.number == ATTRIBUTE) {
        w->out->message = WM_ONNX_NODE;
        if (!read_field(w, &pos, message->end, &f)) return 0;
        if (f.number == ATTRIBUTE && !read_attribute(w, c, &f, is_constant && is_standard ? &output : NULL, depth)) return 0;
    }
    w->nested = outside;
    return 1;
}

static int read_graph(walker *w, const wm_columns *c, const field *message, int depth) {
    uint64_t pos = message->begin;
    field f;
    if (depth == MAX_GRAPHS) return w->out->n_unlisted++, 1;
    while (pos < message->end) {
        w->out->message = WM_ONNX_GRAPH;
        if (!read_field(w, &pos, message->end, &f)) return 0;
        if (f.number == SPARSE_INITIALIZER) w->out->n_sparse++;
        if (f.number != INITIALIZER && f.number != NODE) continue;
        if (!expect(w, &f, BYTES)) return 0;
        if (!(f.number == NODE ? read_node(w, c, &f, depth) : read_tensor(w, c, &f, NULL))) return 0;
    }
    return 1;
}

/* Reads the nodes of a function, or the graphs of training_info. */
static int read_others(walker *w, const wm_columns *c, const field *message) {
    uint64_t pos = message->begin;
    field f;
    int fine = 1;
    w->nested = message->number == FUNCTIONS ? NESTED | IN_FUNCTION : NESTED;
    while (fine && pos < message->end) {
        w->out->message = WM_ONNX_MODEL;
        if (!read_field(w, &pos, message->end, &f)) return 0;
        if (message->number == FUNCTIONS && f.number == FUNCTION_NODE)
            fine = expect(w, &f, BYTES) && read_node(w, c, &f, 1);
        else if (message->number == TRAINING_INFO && (f.number == INITIALIZATION || f.number == ALGORITHM))
            fine = expect(w, &f, BYTES) && read_graph(w, c, &f, 1);
    }
    w->nested = 0;
    return fine;
}

/* Copies a field of metadata of the model, while there is room. */
static int keep(walker *w, const field *f) {
    const wm_onnx_file *file = w->file;
    wm_onnx *out = w->out;
    uint64_t size = f->end - f->at;
    if (size > file->max_kept - out->kept_len) return fail(w, WM_FAULT_ONNX_KEPT, f->at, out->kept_len + size, file->max_kept);
    if (out->kept_len + size <= file->kept_cap && !copy(w, f->at, f->end, file->kept + out->kept_len)) return 0;
    out->kept_len += size;
    return 1;
}

static int read_model(walker *w, const wm_columns *c) {
    static const uint8_t KINDS[] = {0, VARINT, BYTES, BYTES, BYTES, VARINT, BYTES, BYTES, BYTES}; /* of fields 1 to 8 */
    uint64_t pos = 0, size = w->file->size;
    field f;
    while (pos < size) {
        w->out->message = WM_ONNX_MODEL;
        if (!read_field(w, &pos, size, &f)) return 0;
        const int others = f.number == TRAINING_INFO || f.number == FUNCTIONS;
        if (f.number > OPSET_IMPORT && f.number != METADATA_PROPS && !others) continue;
        if (!expect(w, &f, f.number <= OPSET_IMPORT ? KINDS[f.number] : BYTES)) return 0;
        w->out->has_graph |= f.number == GRAPH;
        if (!(f.number == GRAPH ? read_graph(w, c, &f, 0) : others ? read_others(w, c, &f) : keep(w, &f))) return 0;
    }
    w->out->number = GRAPH;
    return w->out->has_graph || fail(w, WM_FAULT_ONNX_GRAPH, size, 0, 0);
}

int wm_onnx_scan(const wm_onnx_file *file, const wm_columns *columns, wm_onnx *out, wm_fault *fault) {
    walker w;
    w.file = file, w.out = out, w.fault = fault, w.buffer = NULL;
    w.start = w.filled = w.last_len = w.at = w.nested = 0;
    *out = (wm_onnx){0};
    wm_fail(fault, WM_FAULT_NONE, 0, 0, 0, 0);
    if (file->size >= IN_FUNCTION || file->max_names >= UINT32_MAX || (file->fd < 0 && !file->read && !file->data))
        return wm_fail(fault, WM_FAULT_COLUMN, 0, 0, file->size, 0);
    if ((file->fd >= 0 || file->read) && !(w.buffer = malloc(ROOM))) return wm_fail(fault, WM_FAULT_MEMORY, 0, 0, ROOM, 0);
    columns->bounds[0] = columns->dim_bounds[0] = 0;
    int fine = read_model(&w, columns);
    free(w.buffer);
    return fine ? 0 : -1;
}

/* ----------------------------------------------------------------------------------------------------- numbers */
/* Writes a number of a field of varints as an element of `bits` bits; returns 0 for one that does not fit. Numbers of 32 bits and
 * fewer are signed or unsigned; those of six bits are codes. */
static inline int put(uint8_t *out, uint64_t i, uint64_t value, uint64_t bits) {
    uint64_t width = bits / 8;
    if (bits < 64 && value >> bits && (bits == 6 || value < UINT64_MAX << (bits - 1))) return 0;
    if (bits == 6) {
        uint64_t bit = 6 * i, shifted = value << bit % 8;
        out[bit / 8] |= (uint8_t)shifted;
        if (shifted >> 8) out[bit / 8 + 1] |= (uint8_t)(shifted >> 8);
        return 1;
    }
    for (uint64_t k = 0; k < width; k++) out[i * width + k] = (uint8_t)(value >> 8 * k);
    return 1;
}

int wm_onnx_numbers(const uint8_t *data, uint64_t len, uint64_t number, uint64_t bits, uint64_t count, uint8_t *out,
                    wm_fault *fault) {
    const wm_onnx_file file = {.data = data, .size = len};
    wm_onnx result = {0};
    walker walk, *w = &walk;
    uint64_t kind = kind_of(number), pos = 0, n = 0;
    int fine = 1;
    field f;
    wm_fail(fault, WM_FAULT_NONE, 0, 0, 0, 0);
    w->file = &file, w->out = &result, w->fault = fault, w->buffer = NULL;
    if (bits == 6) memset(out, 0, ceil_div(6 * count, 8));
    while (fine && pos < len) {
        fine = read_field(w, &pos, len, &f);
        if (!fine || f.number != number) continue;
        for (uint64_t at = f.begin; fine && at < f.end;) {
            uint64_t value = f.value;
            if (n == count) {
                fine = fail(w, WM_FAULT_ONNX_COUNT, at, n + 1, count);
            } else if (kind == VARINT) {
                uint64_t start = at;
                fine = f.kind == VARINT ? (at = f.end, 1) : read_varint(w, &at, f.end, &value);
                if (fine && !put(out, n, value, bits)) fine = fail(w, WM_FAULT_ONNX_NUMBER, start, value, bits);
            } else if (f.end - at < bits / 8) {
                fine = fail(w, WM_FAULT_ONNX_PACKED, f.at, f.end - at, bits / 8);
            } else {
                memcpy(out + n * (bits / 8), data + at, bits / 8);
                at += bits / 8;
            }
            n++;
        }
    }
    if (fine && n != count) return wm_fail(fault, WM_FAULT_ONNX_COUNT, 0, 0, n, count);
    return fine ? 0 : -1;
}
