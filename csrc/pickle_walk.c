/* The result of a pickle program: tensors and values with their names. See pickle.c. */
#include "pickle.h"

/* Members of containers that are walked: one for each byte of the program, and these. */
enum { DEPTH = 128, SPARE = 4096 };

/* A container that is being walked: its next value, how many are left in its chunk and in all, the next chunk, and where its name
 * ends in the path. */
typedef struct {
    uint32_t kind;
    uint64_t at, here, left, next, number, path_len;
} level;

typedef struct {
    reader in;
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

static void lengthen(walker *w, uint64_t n) {
    w->path_len += n;
    if (w->path_len > w->out->longest) w->out->longest = w->path_len;
}

static void add(walker *w, const void *text, uint64_t n) {
    if (w->path) memcpy(w->path + w->path_len, text, n);
    lengthen(w, n);
}

/* Makes the path that of member `key` of the container at this depth: its name, a point, and the key. */
static int extend(walker *w, const level *parent, uint64_t depth, value key) {
    char digits[24];
    unsigned i = sizeof digits;
    const uint64_t length = parent->path_len + 1 + (key.kind == TEXT ? key.n : sizeof digits);
    if (length > w->most_names) return walk_fail(w, WM_FAULT_PICKLE_NAMES, length, w->most_names);
    w->path_len = parent->path_len;
    if (depth > 1) add(w, ".", 1);
    if (key.kind == TEXT) {
        if (w->path && wm_pickle_copy(&w->in, key.at, key.n, w->path + w->path_len)) return -1;
        return lengthen(w, key.n), 0;
    }
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
    const int strided = (tensor.dtype & WM_PICKLE_STRIDED) != 0;
    if (w->tensors) {
        const wm_columns *c = w->tensors->columns;
        if (i >= c->cap || out->names_len + w->path_len > c->names_cap || out->n_dims + tensor.ndim > c->dims_cap)
            return walk_fail(w, WM_FAULT_COLUMN, i, c->cap);
        const uint64_t storage = w->tensors->storages[tensor.storage], *dims = w->arena + v.at + TENSOR_WORDS;
        const size_t size = tensor.ndim * sizeof *dims;
        memcpy(c->names + out->names_len, w->path, w->path_len);
        c->dtype[i] = (uint8_t)tensor.dtype;
        c->begin[i] = storage + tensor.begin;
        c->end[i] = storage + tensor.end;
        memcpy(c->dims + out->n_dims, dims, size);
        if (strided)
            memcpy(w->tensors->strides + out->n_dims, dims + tensor.ndim, size);
        else if (w->tensors->strides)
            memset(w->tensors->strides + out->n_dims, 0, size);
        c->bounds[i + 1] = (uint32_t)(out->names_len + w->path_len);
        c->dim_bounds[i + 1] = (uint32_t)(out->n_dims + tensor.ndim);
    }
    out->n_strided += (uint64_t)strided;
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

static level enter(const walker *w, value v) {
    container c = {NOWHERE, NOWHERE, v.n};
    if (v.kind != TUPLE) memcpy(&c, w->arena + v.at, sizeof c);
    return (level){v.kind, v.at, v.kind == TUPLE ? v.n : 0, c.count, c.first, 0, w->path_len};
}

/* The next value of a container that has one. */
static value step(const walker *w, level *l) {
    if (!l->here) {
        chunk c;
        memcpy(&c, w->arena + l->next, sizeof c);
        l->at = l->next + CHUNK_WORDS, l->here = c.count, l->next = c.next;
    }
    const value v = word(w, l->at);
    l->at += VALUE_WORDS, l->here--, l->left--;
    return v;
}

static int walk(walker *w, uint64_t len) {
    level levels[DEPTH];
    uint64_t depth = 0;
    wm_pickle *out = w->out;
    value v = word(w, out->root);
    if (out->n_storages > w->most) return walk_fail(w, WM_FAULT_CAPACITY, out->n_storages, w->most);
    out->n_tensors = out->n_dims = out->names_len = out->n_values = out->value_names_len = out->n_strided = 0;
    if (w->tensors) w->tensors->columns->bounds[0] = w->tensors->columns->dim_bounds[0] = 0;
    if (w->values) w->values->bounds[0] = 0;
    for (;;) {
        if (v.kind == LIST || v.kind == DICT || v.kind == TUPLE) {
            if (depth == DEPTH) return walk_fail(w, WM_FAULT_PICKLE_DEEP, depth + 1, DEPTH);
            levels[depth++] = enter(w, v);
        } else if (v.kind == TENSOR ? emit_tensor(w, v) : emit_value(w, v)) {
            return -1;
        }
        while (depth && !levels[depth - 1].left) depth--;
        if (!depth) return 0;
        /* A container that many others hold is walked as often: of "laughs" that double at each level there is no end. */
        if (w->visited++ > len + SPARE) return walk_fail(w, WM_FAULT_PICKLE_LAUGHS, w->visited, len + SPARE);
        level *l = &levels[depth - 1];
        value key = {INTEGER, 0, l->number++};
        if (l->kind == DICT) key = step(w, l);
        v = step(w, l);
        if (extend(w, l, depth, key)) return -1;
    }
}

int wm_pickle_walk(const wm_pickle_source *source, const uint64_t *arena, uint64_t most, uint64_t most_names,
                   const wm_pickle_tensors *tensors, const wm_pickle_values *values, uint8_t *path, wm_pickle *out,
                   wm_fault *fault) {
    walker w = {.arena = arena,
                .out = out,
                .tensors = tensors,
                .values = values,
                .path = path,
                .most = most,
                .most_names = most_names,
                .fault = fault};
    if (wm_pickle_open(&w.in, source, fault)) return -1;
    const int failed = walk(&w, source->len);
    wm_pickle_close(&w.in);
    return failed;
}
