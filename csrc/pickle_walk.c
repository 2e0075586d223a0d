/* The result of a pickle program: tensors and values with their names. See pickle.c. */
#include "pickle.h"

/* Members of containers that are walked: one for each byte of the program, and these. */
enum { DEPTH = 128, SPARE = 4096 };

/* A container that is being walked, and where its name ends in the path. */
typedef struct {
    uint32_t kind;
    uint64_t at, left, number, path_len;
} level;

typedef struct {
    const uint8_t *data;
    const uint64_t *arena;
    wm_pickle *out;
    const wm_pickle_tensors *tensors; /* NULL: they are counted */
    const wm_pickle_values *values;
    uint8_t *path; /* NULL where both are counted */
    uint64_t path_len, visited, most, most_names;
    wm_fault *fault;
} walker;

static value word(const walker *w, uint64_t at) {
    value v;
    memcpy(&v, w->arena + at, sizeof v);
    return v;
}

static int walk_fail(const walker *w, int code, uint64_t actual, uint64_t expected) {
    return wm_fail(w->fault, code, w->out->n_tensors + w->out->n_values, 0, actual, expected);
}

static void add(walker *w, const void *text, uint64_t n) {
    if (w->path) memcpy(w->path + w->path_len, text, n);
    w->path_len += n;
    if (w->path_len > w->out->longest) w->out->longest = w->path_len;
}

/* Makes the path that of member `key` of the container at this depth: its name, a point, and the key. */
static int extend(walker *w, const level *parent, uint64_t depth, value key) {
    char digits[24];
    unsigned i = sizeof digits;
    const uint64_t length = parent->path_len + 1 + (key.kind == TEXT ? key.n : sizeof digits);
    if (length > w->most_names) return walk_fail(w, WM_FAULT_PICKLE_NAMES, length, w->most_names);
    w->path_len = parent->path_len;
    if (depth > 1) add(w, ".", 1);
    if (key.kind == TEXT) return add(w, w->data + key.at, key.n), 0;
    if (key.kind != INTEGER) return walk_fail(w, WM_FAULT_PICKLE_KEY, key.kind, 0);
    const int negative = key.at >> 63 != 0;
    uint64_t rest = negative ? 0 - key.at : key.at;
    do digits[--i] = (char)('0' + rest % 10);
    while (rest /= 10);
    if (negative) digits[--i] = '-';
    return add(w, digits + i, sizeof digits - i), 0;
}

static int emit_tensor(walker *w, value v) {
    wm_pickle *out = w->out;
    const uint64_t i = out->n_tensors++;
    tensor_record tensor;
    memcpy(&tensor, w->arena + v.at, sizeof tensor);
    if (i >= w->most) return walk_fail(w, WM_FAULT_CAPACITY, i + 1, w->most);
    if (w->tensors) {
        const wm_columns *c = &w->tensors->columns;
        if (i >= c->cap || out->names_len + w->path_len > c->names_cap || out->n_dims + tensor.ndim > c->dims_cap)
            return walk_fail(w, WM_FAULT_COLUMN, i, c->cap);
        memcpy(c->names + out->names_len, w->path, w->path_len);
        c->dtype[i] = (uint8_t)tensor.dtype;
        c->begin[i] = tensor.begin;
        c->end[i] = tensor.end;
        w->tensors->storage[i] = (uint32_t)tensor.storage;
        for (uint64_t k = 0; k < tensor.ndim; k++) {
            c->dims[out->n_dims + k] = word(w, tensor.dims + k * VALUE_WORDS).at;
            w->tensors->strides[out->n_dims + k] = word(w, tensor.strides + k * VALUE_WORDS).at;
        }
        c->bounds[i + 1] = (uint32_t)(out->names_len + w->path_len);
        c->dim_bounds[i + 1] = (uint32_t)(out->n_dims + tensor.ndim);
    }
    out->names_len += w->path_len;
    out->n_dims += tensor.ndim;
    if (out->names_len > w->most_names) return walk_fail(w, WM_FAULT_PICKLE_NAMES, out->names_len, w->most_names);
    return 0;
}

static int emit_value(walker *w, value v) {
    wm_pickle *out = w->out;
    const uint64_t i = out->n_values++;
    if (v.kind == STORAGE || v.kind == NAME) return walk_fail(w, WM_FAULT_PICKLE_LEAF, v.kind, 0);
    if (w->values) {
        const wm_pickle_values *c = w->values;
        if (i >= c->cap || out->value_names_len + w->path_len > c->names_cap) return walk_fail(w, WM_FAULT_COLUMN, i, c->cap);
        memcpy(c->names + out->value_names_len, w->path, w->path_len);
        c->bounds[i + 1] = (uint32_t)(out->value_names_len + w->path_len);
        c->kind[i] = (uint8_t)v.kind;
        c->length[i] = v.n;
        c->at[i] = v.at;
        if (v.kind == SCALAR) { /* the spans of its dtype and of its bytes, 32 bits each */
            const value dtype = word(w, v.at), raw = word(w, v.at + VALUE_WORDS);
            c->kind[i] = raw.kind == LATIN ? WM_PICKLE_SCALAR_LATIN : WM_PICKLE_SCALAR;
            c->length[i] = dtype.n << 16 | (raw.n & 0xffff);
            c->at[i] = dtype.at << 32 | raw.at;
        }
    }
    out->value_names_len += w->path_len;
    if (out->value_names_len > w->most_names) return walk_fail(w, WM_FAULT_PICKLE_NAMES, out->value_names_len, w->most_names);
    return 0;
}

int wm_pickle_walk(const uint8_t *data, uint64_t len, const uint64_t *arena, uint64_t most, uint64_t most_names,
                   const wm_pickle_tensors *tensors, const wm_pickle_values *values, uint8_t *path, wm_pickle *out,
                   wm_fault *fault) {
    walker w = {.data = data,
                .arena = arena,
                .out = out,
                .tensors = tensors,
                .values = values,
                .path = path,
                .most = most,
                .most_names = most_names,
                .fault = fault};
    level levels[DEPTH];
    uint64_t depth = 0;
    value v = word(&w, out->root);
    wm_fail(fault, WM_FAULT_NONE, 0, 0, 0, 0);
    if (out->n_storages > most) return walk_fail(&w, WM_FAULT_CAPACITY, out->n_storages, most);
    out->n_tensors = out->n_dims = out->names_len = out->n_values = out->value_names_len = 0;
    if (tensors) tensors->columns.bounds[0] = tensors->columns.dim_bounds[0] = 0;
    if (values) values->bounds[0] = 0;
    for (;;) {
        if (v.kind == LIST || v.kind == DICT || v.kind == TUPLE) {
            if (depth == DEPTH) return walk_fail(&w, WM_FAULT_PICKLE_DEEP, depth + 1, DEPTH);
            container c = {v.at, 0, v.n};
            if (v.kind != TUPLE) memcpy(&c, arena + v.at, sizeof c);
            levels[depth++] = (level){v.kind, c.first, c.count, 0, w.path_len};
        } else if (v.kind == TENSOR ? emit_tensor(&w, v) : emit_value(&w, v)) {
            return -1;
        }
        while (depth && !levels[depth - 1].left) depth--;
        if (!depth) return 0;
        /* A container that many others hold is walked as often: of "laughs" that double at each level there is no end. */
        if (w.visited++ > len + SPARE) return walk_fail(&w, WM_FAULT_PICKLE_LAUGHS, w.visited, len + SPARE);
        level *l = &levels[depth - 1];
        value key = {INTEGER, 0, l->number++};
        const uint64_t at = l->at;
        v = word(&w, at);
        if (l->kind == DICT) {
            const uint64_t second = arena[at + VALUE_WORDS];
            key = v, v = word(&w, second);
            l->at = arena[second + VALUE_WORDS];
            l->left -= 2;
        } else {
            l->at = l->kind == LIST ? arena[at + VALUE_WORDS] : at + VALUE_WORDS;
            l->left--;
        }
        if (extend(&w, l, depth, key)) return -1;
    }
}
