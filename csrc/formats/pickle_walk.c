/* The result of a pickle program: tensors and values with their names. See pickle.c. */
#include "formats/pickle_keys.h"

/* The most members of containers to walk: one for each byte of the program, and EXTRA_VISITS. */
enum { DEPTH = 128, EXTRA_VISITS = 4096 };

/* A container on the way: its next value, the values that remain in its chunk and in all, the next chunk, and the end of its name
 * in the path. */
typedef struct {
    uint32_t kind;
    uint64_t self, at, here, remaining, next, number, path_len;
} level;

typedef struct {
    reader in;
    const uint64_t *arena;
    wm_pickle *out;
    const wm_pickle_tensors *tensors; /* NULL: they are counted */
    const wm_pickle_values *values;
    uint8_t *path; /* NULL where both are counted */
    uint64_t path_len, visited, max, most_names;
    uint64_t keys; /* bytes of keys that were compared */
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

/* Whether a key makes a name: a text, an integer, True, False or None, or a tuple of texts, integers and None. */
static int is_name(walker *w, value key) {
    if (key.kind != TUPLE) return key.kind == TEXT || key.kind == INTEGER || key.kind == BOOLEAN || key.kind == NONE;
    w->visited += key.n;
    for (uint64_t i = 0; i < key.n; i++) {
        const value part = word(w, key.at + i * VALUE_WORDS);
        if (part.kind != TEXT && part.kind != INTEGER && part.kind != NONE) return 0;
    }
    return 1;
}

static int add_key(walker *w, value key) {
    char digits[24];
    unsigned i = sizeof digits;
    const uint64_t length = w->path_len + (key.kind == TEXT ? key.n : sizeof digits);
    if (length > w->most_names) return walk_fail(w, WM_FAULT_PICKLE_NAMES, length, w->most_names);
    if (key.kind == TEXT) {
        if (w->path && wm_pickle_copy(&w->in, key.at, key.n, w->path + w->path_len)) return -1;
        return lengthen(w, key.n), 0;
    }
    if (key.kind == NONE) return add(w, "None", 4), 0;
    if (key.kind == BOOLEAN) return key.at ? add(w, "True", 4) : add(w, "False", 5), 0;
    const int negative = key.at >> 63 != 0;
    uint64_t magnitude = negative ? ~key.at + 1 : key.at;
    do digits[--i] = (char)('0' + magnitude % 10);
    while (magnitude /= 10);
    if (negative) digits[--i] = '-';
    return add(w, digits + i, sizeof digits - i), 0;
}

/* Sets the path to the name of member `key` of the container at this depth: container, point, key; a tuple in parentheses. */
static int extend(walker *w, const level *parent, uint64_t depth, value key) {
    w->path_len = parent->path_len;
    if (depth > 1) add(w, ".", 1);
    if (key.kind != TUPLE) return add_key(w, key);
    add(w, "(", 1);
    for (uint64_t i = 0; i < key.n; i++) {
        if (i) add(w, ", ", 2);
        if (add_key(w, word(w, key.at + i * VALUE_WORDS))) return -1;
    }
    return add(w, ")", 1), 0;
}

static int emit_tensor(walker *w, value v) {
    wm_pickle *out = w->out;
    const uint64_t i = out->n_tensors++;
    tensor_record tensor;
    memcpy(&tensor, w->arena + v.at, sizeof tensor);
    if (i >= w->max) return walk_fail(w, WM_FAULT_CAPACITY, i + 1, w->max);
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
    out->n_retyped += (tensor.dtype & RETYPED) != 0;
    out->names_len += w->path_len;
    out->n_dims += tensor.ndim;
    if (out->names_len > w->most_names) return walk_fail(w, WM_FAULT_PICKLE_NAMES, out->names_len, w->most_names);
    return 0;
}

/* A row of the columns of values; the parts of a value have rows without names. */
static int emit_row(walker *w, value v, uint64_t name) {
    wm_pickle *out = w->out;
    const uint64_t i = out->n_values++;
    if (w->values) {
        const wm_pickle_values *c = w->values;
        if (i >= c->cap || out->value_names_len + name > c->names_cap) return walk_fail(w, WM_FAULT_COLUMN, i, c->cap);
        if (v.kind == KIND) v = (value){KIND, word(w, v.at).n, word(w, v.at).at};
        memcpy(c->names + out->value_names_len, w->path, name);
        c->bounds[i + 1] = (uint32_t)(out->value_names_len + name);
        c->kind[i] = (uint8_t)v.kind;
        c->length[i] = v.n;
        c->at[i] = v.at;
    }
    out->value_names_len += name;
    if (out->value_names_len > w->most_names) return walk_fail(w, WM_FAULT_PICKLE_NAMES, out->value_names_len, w->most_names);
    return 0;
}

static int emit_parts(walker *w, uint64_t at, uint64_t n) {
    w->visited += n;
    for (uint64_t i = 0; i < n; i++)
        if (emit_row(w, word(w, at + i * VALUE_WORDS), 0)) return -1;
    return 0;
}

static int emit_array(walker *w, value v) {
    value part[ARRAY_PARTS];
    for (uint64_t i = 0; i < ARRAY_PARTS; i++) part[i] = word(w, v.at + i * VALUE_WORDS);
    if (emit_row(w, (value){ARRAY, 3 + part[0].n, 0}, w->path_len)) return -1;
    if (emit_row(w, part[1], 0) || emit_row(w, part[3], 0) || emit_row(w, part[2], 0)) return -1;
    return emit_parts(w, part[0].at, part[0].n);
}

/* Why a value is odd where a tensor or plain value is expected: a WM_PICKLE_ODD_ constant; -1 if it is not. */
static int odd_of(const walker *w, value v) {
    if (v.kind == ODD) return (int)v.n;
    if (v.kind == STORAGE) return WM_PICKLE_ODD_STORAGE;
    if (v.kind == NAME) return WM_PICKLE_ODD_CLASS;
    if (v.kind == ARRAY && word(w, v.at).kind != TUPLE) return WM_PICKLE_ODD_ARRAY;
    const int dtype = v.kind == KIND ? 0 : v.kind == ARRAY ? 1 : -1;
    const value kind = dtype == 1 ? word(w, v.at + VALUE_WORDS) : v;
    return dtype >= 0 && word(w, kind.at + VALUE_WORDS).at ? WM_PICKLE_ODD_ARRAY : -1;
}

static int emit_value(walker *w, value v) {
    const int odd = odd_of(w, v);
    if (odd >= 0) {
        if (!w->in.source->lax) return walk_fail(w, WM_FAULT_PICKLE_ODD, (uint64_t)odd, 0);
        const uint32_t parts = odd == WM_PICKLE_ODD_UNKNOWN ? 2 : 0;
        return emit_row(w, (value){ODD, parts, (uint64_t)odd}, w->path_len) ? -1 : emit_parts(w, v.at, parts);
    }
    if (v.kind == ARRAY) return emit_array(w, v);
    if (v.kind != SCALAR && v.kind != COMPLEX && v.kind != PATH) return emit_row(w, v, w->path_len);
    const uint32_t n = v.kind == PATH ? v.n / 2 : 2;
    return emit_row(w, (value){v.kind, n, v.n % 2}, w->path_len) ? -1 : emit_parts(w, v.at, n);
}

/* The fault of a container nested too deep: within itself, or not. */
static int too_deep(const walker *w, const level *levels, value v) {
    int repeated = 0;
    for (uint64_t i = 0; i < DEPTH; i++) repeated |= levels[i].kind == v.kind && levels[i].self == v.at;
    return walk_fail(w, repeated ? WM_FAULT_PICKLE_CYCLE : WM_FAULT_PICKLE_DEEP, DEPTH + 1, DEPTH);
}

static level enter(const walker *w, value v) {
    const container c = v.kind == TUPLE ? (container){NOWHERE, NOWHERE, v.n} : contents(w->arena, v);
    return (level){v.kind, v.at, v.at, v.kind == TUPLE ? v.n : 0, c.count, c.first, 0, w->path_len};
}

/* The next value of a container that has one. */
static value step(const walker *w, level *l) {
    if (!l->here) {
        chunk c;
        memcpy(&c, w->arena + l->next, sizeof c);
        l->at = l->next + CHUNK_WORDS, l->here = c.count, l->next = c.next;
    }
    const value v = word(w, l->at);
    l->at += VALUE_WORDS, l->here--, l->remaining--;
    return v;
}

/* Refuses a repeated key or member of a set, when the result is walked for the first time. */
static int check_keys(walker *w, value v) {
    const container c = contents(w->arena, v);
    const uint64_t step = v.kind == SET ? 1 : 2;
    if (w->tensors || w->values || c.count < 2 * step) return 0;
    const int code = wm_pickle_keys(&w->in, w->arena, c, step, &w->keys, w->most_names);
    return code > 0 ? walk_fail(w, code, w->keys, w->most_names) : code;
}

static int walk(walker *w, uint64_t len) {
    level levels[DEPTH];
    uint64_t depth = 0;
    wm_pickle *out = w->out;
    value v = word(w, out->root);
    if (out->n_storages > w->max) return walk_fail(w, WM_FAULT_CAPACITY, out->n_storages, w->max);
    out->n_tensors = out->n_dims = out->names_len = out->n_values = out->value_names_len = out->n_strided = out->n_retyped = 0;
    if (w->tensors) w->tensors->columns->bounds[0] = w->tensors->columns->dim_bounds[0] = 0;
    if (w->values) w->values->bounds[0] = 0;
    for (;;) {
        if (is_container(v) || v.kind == TUPLE) {
            if (depth == DEPTH) return too_deep(w, levels, v);
            levels[depth++] = enter(w, v);
            if (v.kind != LIST && v.kind != TUPLE && check_keys(w, v)) return -1;
        } else if (v.kind == TENSOR ? emit_tensor(w, v) : emit_value(w, v)) {
            return -1;
        }
        while (depth && !levels[depth - 1].remaining) depth--;
        if (!depth) return 0;
        /* A container that many others hold is walked as often: "laughs" that double at each level would never end. */
        if (w->visited++ > len + EXTRA_VISITS) return walk_fail(w, WM_FAULT_PICKLE_LAUGHS, w->visited, len + EXTRA_VISITS);
        level *l = &levels[depth - 1];
        value key = {INTEGER, 0, l->number++};
        if (l->kind == DICT || l->kind == OBJECT) key = step(w, l);
        v = step(w, l);
        if (is_name(w, key)) {
            if (extend(w, l, depth, key)) return -1;
        } else {
            w->path_len = l->path_len;
            v = (value){ODD, WM_PICKLE_ODD_KEY, NOWHERE};
        }
    }
}

int wm_pickle_walk(const wm_pickle_source *source, const uint64_t *arena, uint64_t max, uint64_t most_names,
                   const wm_pickle_tensors *tensors, const wm_pickle_values *values, uint8_t *path, wm_pickle *out,
                   wm_fault *fault) {
    walker w = {.arena = arena,
                .out = out,
                .tensors = tensors,
                .values = values,
                .path = path,
                .max = max,
                .most_names = most_names,
                .fault = fault};
    if (wm_pickle_open(&w.in, source, fault)) return -1;
    const int failed = walk(&w, source->len);
    wm_pickle_close(&w.in);
    return failed;
}
