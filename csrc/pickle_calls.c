/* The names that a pickle program may call, and what each call makes of its arguments. See pickle.c. */
#include "pickle.h"

enum {
    ORDERED_DICT,
    REBUILD_V1,
    REBUILD_V2,
    REBUILD_V3,
    REBUILD_PARAMETER,
    REBUILD_FROM_TYPE,
    SIZE,
    A_DEVICE,
    A_CLASS, /* of a tensor; changes nothing */
    NUMPY_SCALAR,
    NUMPY_DTYPE,
    ENCODE,
    UNTYPED,
    A_STORAGE, /* of the type `dtype` */
    A_DTYPE
};

static const struct {
    const char *module, *name;
    uint8_t role, dtype, bytes;
} NAMES[] = {
    {"collections", "OrderedDict", ORDERED_DICT, 0, 0},
    {"torch._utils", "_rebuild_tensor", REBUILD_V1, 0, 0},
    {"torch._utils", "_rebuild_tensor_v2", REBUILD_V2, 0, 0},
    {"torch._utils", "_rebuild_tensor_v3", REBUILD_V3, 0, 0},
    {"torch._utils", "_rebuild_parameter", REBUILD_PARAMETER, 0, 0},
    {"torch._utils", "_rebuild_parameter_with_state", REBUILD_PARAMETER, 0, 0},
    {"torch._tensor", "_rebuild_from_type_v2", REBUILD_FROM_TYPE, 0, 0},
    {"torch", "Size", SIZE, 0, 0},
    {"torch", "device", A_DEVICE, 0, 0},
    {"torch", "Tensor", A_CLASS, 0, 0},
    {"torch.nn.parameter", "Parameter", A_CLASS, 0, 0},
    {"torch.nn.parameter", "Buffer", A_CLASS, 0, 0},
    {"numpy.core.multiarray", "scalar", NUMPY_SCALAR, 0, 0},
    {"numpy._core.multiarray", "scalar", NUMPY_SCALAR, 0, 0},
    {"numpy", "dtype", NUMPY_DTYPE, 0, 0},
    {"_codecs", "encode", ENCODE, 0, 0},
    {"torch.storage", "UntypedStorage", UNTYPED, 0, 1},
    {"torch", "UntypedStorage", UNTYPED, 0, 1},
#define TYPE(code, bytes, name) {"torch", name, A_DTYPE, code, bytes}
#define STORED(code, bytes, dtype, type) \
    TYPE(code, bytes, dtype), { "torch", type, A_STORAGE, code, bytes }
    STORED(0, 4, "float32", "FloatStorage"),
    STORED(1, 8, "float64", "DoubleStorage"),
    STORED(2, 2, "float16", "HalfStorage"),
    STORED(3, 2, "bfloat16", "BFloat16Storage"),
    STORED(4, 8, "int64", "LongStorage"),
    STORED(5, 4, "int32", "IntStorage"),
    STORED(6, 2, "int16", "ShortStorage"),
    STORED(7, 1, "int8", "CharStorage"),
    STORED(8, 1, "uint8", "ByteStorage"),
    STORED(9, 1, "bool", "BoolStorage"),
    STORED(10, 8, "complex64", "ComplexFloatStorage"),
    STORED(11, 16, "complex128", "ComplexDoubleStorage"),
    TYPE(12, 2, "uint16"),
    TYPE(13, 4, "uint32"),
    TYPE(14, 8, "uint64"),
    TYPE(15, 1, "float8_e4m3fn"),
    TYPE(16, 1, "float8_e5m2"),
    TYPE(17, 1, "float8_e4m3fnuz"),
    TYPE(18, 1, "float8_e5m2fnuz"),
    TYPE(19, 1, "float8_e8m0fnu"),
};
enum { N_NAMES = sizeof NAMES / sizeof *NAMES, NAME_MOST = 32 };

/* --------------------------------------------------------------------------------------------------- calls */
/* Copies a text that is no longer than the names in the list may be; any other, and what is none, becomes zeros. Returns 0 or -1. */
static int short_text(machine *m, value text, char out[NAME_MOST]) {
    memset(out, 0, NAME_MOST);
    return text.kind == TEXT && text.n <= NAME_MOST ? wm_pickle_copy(&m->in, text.at, text.n, (uint8_t *)out) : 0;
}

static int same(const char *text, value of, const char *wanted) {
    const size_t n = strlen(wanted);
    return of.n == n && memcmp(text, wanted, n) == 0;
}

int wm_pickle_name(machine *m, value module, value name) {
    char first[NAME_MOST], second[NAME_MOST];
    if (module.kind != TEXT || name.kind != TEXT) return bad_stack(m);
    if (short_text(m, module, first) || short_text(m, name, second)) return -1;
    for (uint64_t i = 0; i < N_NAMES; i++) {
        if (!same(first, module, NAMES[i].module) || !same(second, name, NAMES[i].name)) continue;
        return NAMES[i].role == A_DTYPE ? push(m, DTYPE, (uint32_t)i, NAMES[i].dtype) : push(m, NAME, 0, i);
    }
    return wm_fail(m->fault, WM_FAULT_PICKLE_NAME, module.at, name.at, name.n, module.n);
}

/* Gives the words of a call's arguments back to the pool, but for those that the memo or a container has. Each value on the stack
 * was made before those above it, so nothing else is in or behind the first of them. */
static void give_back(machine *m, value args) {
    uint64_t first = m->pool;
    for (uint64_t i = 0; i <= args.n; i++) {
        const value v = i < args.n ? get(m, args.at + i * VALUE_WORDS) : args;
        const int in_pool = v.kind == LIST || v.kind == DICT || (v.kind == TUPLE && v.n);
        if (in_pool && v.at >= m->kept && v.at < first) first = v.at;
    }
    m->pool = first;
}

/* Copies a tuple of integers that are not negative, of as many as an array may have dimensions; 0 for anything else. */
static int read_shape(const machine *m, value v, uint64_t shape[NDIM_MOST]) {
    if (v.kind != TUPLE || v.n > NDIM_MOST) return 0;
    for (uint64_t i = 0; i < v.n; i++) {
        const value dim = get(m, v.at + i * VALUE_WORDS);
        if (dim.kind != INTEGER || dim.at > INT64_MAX) return 0;
        shape[i] = dim.at;
    }
    return 1;
}

/* Pushes the storage of a tuple ("storage", type, key, device, number of elements), or of six where the last one is None. */
int wm_pickle_storage(machine *m, value id) {
    char word[NAME_MOST];
    if (id.kind != TUPLE || (id.n != 5 && id.n != 6)) return bad_call(m);
    value part[6] = {{0, 0, 0}};
    for (uint64_t i = 0; i < id.n; i++) part[i] = get(m, id.at + i * VALUE_WORDS);
    if (short_text(m, part[0], word)) return -1;
    const int typed = part[1].kind == NAME && (NAMES[part[1].at].role == A_STORAGE || NAMES[part[1].at].role == UNTYPED);
    const int counted = part[4].kind == INTEGER && part[4].at <= INT64_MAX / 16;
    /* A key may be mentioned by every tensor, and is looked up each time. */
    const int named = part[2].kind == TEXT && part[2].n <= WM_PICKLE_KEY;
    if (!same(word, part[0], "storage") || !typed || !named || !counted || (id.n == 6 && part[5].kind != NONE))
        return bad_call(m);
    if (m->storages == UINT32_MAX) return fail(m, WM_FAULT_CAPACITY, m->storages, UINT32_MAX);
    give_back(m, id);
    const uint64_t at = take(m, STORAGE_WORDS);
    if (at == NOWHERE) return -1;
    const storage_record record = {
        part[2].at,          part[4].at * NAMES[part[1].at].bytes, NOWHERE, (uint32_t)m->storages++, (uint16_t)part[2].n,
        (uint16_t)part[1].at};
    memcpy(m->arena + at, &record, sizeof record);
    if (m->last_storage)
        memcpy(m->arena + m->last_storage + offsetof(storage_record, next) / 8, &at, sizeof at);
    else
        m->first_storage = at;
    m->last_storage = at;
    m->kept = m->pool;
    return push(m, STORAGE, 0, at);
}

/* Pushes the tensor of (storage, offset, shape, strides, ...), of the dtype of its storage or the one given. */
static int make_tensor(machine *m, value args, int role) {
    value part[7] = {{0, 0, 0}};
    uint64_t shape[NDIM_MOST], strides[NDIM_MOST];
    const uint64_t least = role == REBUILD_V3 ? 7 : role == REBUILD_V2 ? 6 : 4;
    if (args.n < least || args.n > least + 1) return bad_call(m);
    for (uint64_t i = 0; i < least; i++) part[i] = get(m, args.at + i * VALUE_WORDS);
    storage_record storage;
    if (part[0].kind != STORAGE || part[1].kind != INTEGER || part[1].at > INT64_MAX || !read_shape(m, part[2], shape) ||
        !read_shape(m, part[3], strides) || part[2].n != part[3].n || (role == REBUILD_V3 && part[6].kind != DTYPE))
        return bad_call(m);
    memcpy(&storage, m->arena + part[0].at, sizeof storage);
    if (args.n > least) { /* what the values are besides: conjugated, negated */
        const value extra = get(m, args.at + least * VALUE_WORDS);
        if (extra.kind != NONE && (extra.kind != DICT || m->arena[extra.at])) return bad_call(m);
    }
    uint32_t type = role == REBUILD_V3 ? part[6].n : storage.type;
    if (NAMES[type].role == UNTYPED) return bad_call(m);
    const uint64_t bytes = NAMES[type].bytes, room = storage.nbytes / bytes, ndim = part[2].n;
    /* The last element's place, counted without overflow, as far as the storage goes. */
    uint64_t last = part[1].at, dense = 1;
    int empty = 0, overlong = last > room;
    for (uint64_t i = 0; i < ndim; i++) {
        if (shape[i] == 0) empty = 1;
        if (shape[i] > 1 && strides[i] && !overlong) {
            if (shape[i] - 1 > (room - last) / strides[i])
                overlong = 1;
            else
                last += (shape[i] - 1) * strides[i];
        }
    }
    if (!empty && (overlong || last >= room)) return fail(m, WM_FAULT_PICKLE_RANGE, last, room);
    uint32_t strided = 0;
    for (uint64_t i = ndim; i > 0; i--) { /* numpy multiplies the other dimensions of an empty tensor too */
        const uint64_t dim = shape[i - 1];
        if (dim > 1 && !empty && strides[i - 1] != dense) strided = WM_PICKLE_STRIDED;
        if (dim && dense > INT64_MAX / bytes / dim) return fail(m, WM_FAULT_PICKLE_OVERFLOW, dim, INT64_MAX);
        if (dim) dense *= dim;
    }
    give_back(m, args);
    const uint64_t at = take(m, TENSOR_WORDS + (strided ? 2 * ndim : ndim));
    if (at == NOWHERE) return -1;
    const uint64_t begin = empty ? 0 : part[1].at * bytes, end = empty ? 0 : (last + 1) * bytes;
    const tensor_record record = {storage.number, (uint16_t)ndim, (uint16_t)(NAMES[type].dtype | strided), begin, end};
    memcpy(m->arena + at, &record, sizeof record);
    memcpy(m->arena + at + TENSOR_WORDS, shape, ndim * sizeof *shape);
    if (strided) memcpy(m->arena + at + TENSOR_WORDS + ndim, strides, ndim * sizeof *strides);
    m->kept = m->pool;
    return push(m, TENSOR, 0, at);
}

/* Calls name number `name` with the tuple `args`, which has been taken off the stack. */
static int call(machine *m, uint64_t name, value args) {
    const int role = NAMES[name].role;
    value first = args.n ? get(m, args.at) : (value){MARK, 0, 0};
    char word[NAME_MOST];
    switch (role) {
    case ORDERED_DICT: /* of a list of pairs, where it was pickled so */
        if (args.n > 1 || (args.n && first.kind != LIST)) return bad_call(m);
        if (new_container(m, DICT)) return -1;
        if (args.n) {
            const uint64_t dict = top(m, 0).at;
            container c;
            memcpy(&c, m->arena + first.at, sizeof c);
            for (uint64_t at = c.first; at; at = m->arena[at]) {
                for (uint64_t i = 0; i < m->arena[at + 1]; i++) {
                    const value pair = get(m, at + CHUNK_WORDS + i * VALUE_WORDS);
                    if (pair.kind != TUPLE || pair.n != 2) return bad_call(m);
                    const uint64_t to = add_chunk(m, dict, 2);
                    if (to == NOWHERE) return -1;
                    memcpy(m->arena + to, m->arena + pair.at, 2 * sizeof(value));
                }
            }
        }
        return 0;
    case REBUILD_V1:
    case REBUILD_V2:
    case REBUILD_V3: return make_tensor(m, args, role);
    case REBUILD_PARAMETER:
        if (args.n < 3 || args.n > 4 || first.kind != TENSOR) return bad_call(m);
        give_back(m, args);
        return push(m, TENSOR, 0, first.at);
    case REBUILD_FROM_TYPE: { /* (function, class, arguments, state) */
        if (args.n != 4 || first.kind != NAME) return bad_call(m);
        const value class_ = get(m, args.at + VALUE_WORDS), inner = get(m, args.at + 2 * VALUE_WORDS);
        const int rebuilds = NAMES[first.at].role >= REBUILD_V1 && NAMES[first.at].role <= REBUILD_PARAMETER;
        if (!rebuilds || class_.kind != NAME || NAMES[class_.at].role != A_CLASS || inner.kind != TUPLE) return bad_call(m);
        return call(m, first.at, inner);
    }
    case SIZE:
        if (args.n != 1 || (first.kind != TUPLE && first.kind != LIST)) return bad_call(m);
        return push(m, first.kind, first.n, first.at);
    case A_DEVICE: { /* a name, and perhaps a number */
        const value number = args.n == 2 ? get(m, args.at + VALUE_WORDS) : (value){INTEGER, 0, 0};
        if (!args.n || args.n > 2 || first.kind != TEXT || first.n > 255 || number.kind != INTEGER || number.at > 255)
            return bad_call(m);
        return push(m, DEVICE, first.n | (args.n == 2 ? (uint32_t)number.at + 1 : 0) << 8, first.at);
    }
    case ENCODE:
        if (args.n != 2 || first.kind != TEXT) return bad_call(m);
        if (short_text(m, get(m, args.at + VALUE_WORDS), word)) return -1;
        if (!same(word, get(m, args.at + VALUE_WORDS), "latin1")) return bad_call(m);
        return push(m, LATIN, first.n, first.at);
    case NUMPY_DTYPE:
        if (args.n != 3 || first.kind != TEXT) return bad_call(m);
        return push(m, KIND, first.n, first.at);
    case NUMPY_SCALAR: {
        const value raw = args.n == 2 ? get(m, args.at + VALUE_WORDS) : first;
        if (args.n != 2 || first.kind != KIND || (raw.kind != BYTES && raw.kind != LATIN) || first.n > 255 || raw.n > 255)
            return bad_call(m);
        return push(m, SCALAR, 0, args.at);
    }
    default: return bad_call(m);
    }
}

int wm_pickle_call(machine *m, value function, value args) { return call(m, function.at, args); }

static int list(reader *in, const uint64_t *arena, uint64_t *cursor, uint64_t count, const wm_pickle_storages *out) {
    uint64_t names = 0;
    out->bounds[0] = 0;
    for (uint64_t i = 0; i < count; i++) {
        storage_record storage;
        memcpy(&storage, arena + *cursor, sizeof storage);
        memcpy(out->names + names, out->prefix, out->prefix_len);
        names += out->prefix_len;
        if (wm_pickle_copy(in, storage.key, storage.key_len, out->names + names)) return -1;
        names += storage.key_len;
        out->bounds[i + 1] = (uint32_t)names;
        out->at[i] = storage.key, out->nbytes[i] = storage.nbytes, out->item[i] = NAMES[storage.type].bytes;
        *cursor = storage.next;
    }
    return 0;
}

int wm_pickle_list(const wm_pickle_source *source, const uint64_t *arena, uint64_t *cursor, uint64_t count,
                   const wm_pickle_storages *out, wm_fault *fault) {
    reader in;
    if (wm_pickle_open(&in, source, fault)) return -1;
    const int failed = list(&in, arena, cursor, count, out);
    wm_pickle_close(&in);
    return failed;
}
