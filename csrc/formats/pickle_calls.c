/* The names that a pickle program may call, and the result of each call. See pickle.c. */
#include "formats/pickle_calls.h"
#include "formats/pickle_values.h"

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
    A_STORAGE,   /* of the type `dtype` */
    ODD_STORAGE, /* of a type that no tensor here has */
    A_DTYPE,
    A_SET,
    A_DICT,
    COUNTER,
    A_NAMESPACE,
    A_COMPLEX,
    A_BYTEARRAY,
    A_TYPE, /* of Python, the default of a dictionary */
    A_LAYOUT,
    POSIX_PATH,
    WINDOWS_PATH,
    AN_ARRAY, /* the class */
    NUMPY_ARRAY,
    NUMPY_BUFFER
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
    {"torch.storage", "UntypedStorage", UNTYPED, 8, 1}, /* torch takes it for one of uint8 */
    {"torch", "UntypedStorage", UNTYPED, 8, 1},
    {"torch", "QInt8Storage", ODD_STORAGE, 7, 1},
    {"torch", "QUInt8Storage", ODD_STORAGE, 8, 1},
    {"torch", "QInt32Storage", ODD_STORAGE, 5, 4},
    {"torch", "QUInt4x2Storage", ODD_STORAGE, 8, 1},
    {"torch", "QUInt2x4Storage", ODD_STORAGE, 8, 1},
    {"torch.serialization", "_get_layout", A_LAYOUT, 0, 0},
    {"collections", "defaultdict", A_DICT, 0, 0},
    {"collections", "Counter", COUNTER, 0, 0},
    {"argparse", "Namespace", A_NAMESPACE, 0, 0},
    {"numpy", "ndarray", AN_ARRAY, 0, 0},
    {"numpy.core.multiarray", "_reconstruct", NUMPY_ARRAY, 0, 0},
    {"numpy._core.multiarray", "_reconstruct", NUMPY_ARRAY, 0, 0},
    {"numpy.core.numeric", "_frombuffer", NUMPY_BUFFER, 0, 0},
    {"numpy._core.numeric", "_frombuffer", NUMPY_BUFFER, 0, 0},
#define PYTHON(role, name) {"__builtin__", name, role, 0, 0}, {"builtins", name, role, 0, 0}
    PYTHON(A_SET, "set"),
    PYTHON(A_SET, "frozenset"),
    PYTHON(A_COMPLEX, "complex"),
    PYTHON(A_BYTEARRAY, "bytearray"),
    PYTHON(A_BYTEARRAY, "bytes"),
    PYTHON(A_TYPE, "bool"),
    PYTHON(A_TYPE, "dict"),
    PYTHON(A_TYPE, "float"),
    PYTHON(A_TYPE, "int"),
    PYTHON(A_TYPE, "list"),
    PYTHON(A_TYPE, "str"),
    PYTHON(A_TYPE, "tuple"),
#define PATH_OF(role, name) {"pathlib", name, role, 0, 0}, {"pathlib._local", name, role, 0, 0}
    PATH_OF(POSIX_PATH, "PosixPath"),
    PATH_OF(POSIX_PATH, "PurePosixPath"),
    PATH_OF(WINDOWS_PATH, "WindowsPath"),
    PATH_OF(WINDOWS_PATH, "PureWindowsPath"),
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
    TYPE(20, 1, "float4_e2m1fn_x2"),
};
enum { N_NAMES = sizeof NAMES / sizeof *NAMES, MAX_NAME = 32, MAX_ARGS = 16, MAX_PARTS = 255 };

/* --------------------------------------------------------------------------------------------------- calls */
/* Copies a text that may be a name of the list; a longer one, or another value, becomes zeros. Returns 0 or -1. */
static int short_text(machine *m, value text, char out[MAX_NAME]) {
    memset(out, 0, MAX_NAME);
    return text.kind == TEXT && text.n <= MAX_NAME ? wm_pickle_copy(&m->in, text.at, text.n, (uint8_t *)out) : 0;
}

static int same(const char *text, value of, const char *expected) {
    const size_t n = strlen(expected);
    return of.n == n && memcmp(text, expected, n) == 0;
}

int wm_pickle_name(machine *m, value module, value name) {
    char first[MAX_NAME], second[MAX_NAME];
    if (module.kind != TEXT || name.kind != TEXT) return bad_stack(m);
    if (short_text(m, module, first) || short_text(m, name, second)) return -1;
    for (uint64_t i = 0; i < N_NAMES; i++) {
        if (!same(first, module, NAMES[i].module) || !same(second, name, NAMES[i].name)) continue;
        return NAMES[i].role == A_DTYPE ? push(m, DTYPE, (uint32_t)i, NAMES[i].dtype) : push(m, NAME, 0, i);
    }
    if (!m->in.source->lax) return wm_fail(m->fault, WM_FAULT_PICKLE_NAME, module.at, name.at, name.n, module.n);
    const uint64_t at = take(m, (uint64_t)2 * VALUE_WORDS);
    if (at == NOWHERE) return -1;
    put(m, at, module);
    put(m, at + VALUE_WORDS, name);
    m->barrier = m->pool;
    return push(m, ODD, WM_PICKLE_ODD_UNKNOWN, at);
}

/* The index of a call's first odd argument, which makes the result odd; or the number of arguments. Looks at more arguments than
 * any listed function takes, but not at all of a long tuple, which may occur often. */
static uint64_t odd_one(const machine *m, value args) {
    uint64_t i = 0;
    while (i < args.n && i < MAX_ARGS && get(m, args.at + i * VALUE_WORDS).kind != ODD) i++;
    return i < MAX_ARGS ? i : args.n;
}

/* Returns the words of a call's arguments to the pool, unless the memo or a container has them. A value on the stack is older than
 * the values above it, so the words from the first argument on belong to the arguments alone. */
static void give_back(machine *m, value args) {
    uint64_t first = m->pool;
    for (uint64_t i = 0; i <= args.n; i++) {
        const value v = i < args.n ? get(m, args.at + i * VALUE_WORDS) : args;
        const int in_pool = is_container(v) || (v.kind == TUPLE && v.n);
        if (in_pool && v.at >= m->barrier && v.at < first) first = v.at;
    }
    m->pool = first;
}

/* Copies a shape: a tuple of up to MAX_NDIM integers, none negative; returns 0 for anything else. */
static int read_shape(const machine *m, value v, uint64_t shape[MAX_NDIM]) {
    if (v.kind != TUPLE || v.n > MAX_NDIM) return 0;
    for (uint64_t i = 0; i < v.n; i++) {
        const value dim = get(m, v.at + i * VALUE_WORDS);
        if (dim.kind != INTEGER || dim.at > INT64_MAX) return 0;
        shape[i] = dim.at;
    }
    return 1;
}

/* Pushes the storage of a tuple ("storage", type, key, device, number of elements), or of six where the last one is None. */
int wm_pickle_storage(machine *m, value id) {
    char word[MAX_NAME];
    const uint64_t odd = id.kind == TUPLE ? odd_one(m, id) : 0;
    if (id.kind == TUPLE && odd < id.n) { /* a type that is not known; in old files a class, with its source */
        const value what = get(m, id.at + odd * VALUE_WORDS);
        return push(m, ODD, what.n, what.at);
    }
    if (id.kind != TUPLE || (id.n != 5 && id.n != 6)) return bad_call(m);
    value part[6] = {{0, 0, 0}};
    for (uint64_t i = 0; i < id.n; i++) part[i] = get(m, id.at + i * VALUE_WORDS);
    if (short_text(m, part[3], word)) return -1;
    const int meta = same(word, part[3], "meta"); /* a device without data */
    if (short_text(m, part[0], word)) return -1;
    const int role = part[1].kind == NAME ? NAMES[part[1].at].role : A_CLASS;
    const int typed = role == A_STORAGE || role == ODD_STORAGE || role == UNTYPED;
    const int counted = part[4].kind == INTEGER && part[4].at <= INT64_MAX / 16;
    /* A key may be mentioned by every tensor, and is looked up each time. */
    const int named = part[2].kind == TEXT && part[2].n <= WM_PICKLE_KEY;
    if (!same(word, part[0], "storage") || !typed || !named || meta || !counted || (id.n == 6 && part[5].kind != NONE))
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
    m->barrier = m->pool;
    return push(m, STORAGE, 0, at);
}

/* Bytes of a number of a type; for a complex type, of each half. */
static uint32_t number_bytes(uint32_t type) {
    return NAMES[type].dtype == 10 || NAMES[type].dtype == 11 ? NAMES[type].bytes / 2u : NAMES[type].bytes;
}

/* Whether a dictionary marks a tensor as conjugated or negated: a WM_PICKLE_ODD_ constant, else 0; or -1. */
static int view_of(machine *m, value extra) {
    int conjugate = 0, negative = 0;
    if (extra.kind != NONE && extra.kind != DICT) return bad_call(m);
    const container c = extra.kind == DICT ? contents(m->arena, extra) : (container){NOWHERE, NOWHERE, 0};
    if (c.count > 4) return bad_call(m);
    for (uint64_t at = c.first; at; at = m->arena[at]) {
        for (uint64_t i = 0; i < m->arena[at + 1]; i += 2) { /* a chunk has whole pairs */
            char word[MAX_NAME];
            const value key = get(m, at + CHUNK_WORDS + i * VALUE_WORDS), is = get(m, at + CHUNK_WORDS + (i + 1) * VALUE_WORDS);
            if (short_text(m, key, word)) return -1;
            const int conj = same(word, key, "conj");
            if (key.kind != TEXT || is.kind != BOOLEAN || (!conj && !same(word, key, "neg"))) return bad_call(m);
            *(conj ? &conjugate : &negative) = 1; /* True or False: torch checks only that it is there */
        }
    }
    return conjugate ? WM_PICKLE_ODD_CONJUGATE : negative ? WM_PICKLE_ODD_NEGATIVE : 0;
}

/* Pushes the tensor of (storage, offset, shape, strides, ...), with the given dtype or its storage's. */
static int make_tensor(machine *m, value args, int role) {
    value part[7] = {{0, 0, 0}};
    uint64_t shape[MAX_NDIM], strides[MAX_NDIM];
    const uint64_t required = role == REBUILD_V3 ? 7 : role == REBUILD_V2 ? 6 : 4;
    if (args.n < required || args.n > required + 1) return bad_call(m);
    for (uint64_t i = 0; i < required; i++) part[i] = get(m, args.at + i * VALUE_WORDS);
    storage_record storage;
    if (part[0].kind != STORAGE || part[1].kind != INTEGER || part[1].at > INT64_MAX || !read_shape(m, part[2], shape) ||
        !read_shape(m, part[3], strides) || part[2].n != part[3].n || (role == REBUILD_V3 && part[6].kind != DTYPE))
        return bad_call(m);
    memcpy(&storage, m->arena + part[0].at, sizeof storage);
    const int odd = args.n > required ? view_of(m, get(m, args.at + required * VALUE_WORDS)) : 0;
    if (odd) return odd < 0 ? -1 : leave_out(m, (uint32_t)odd, NOWHERE);
    uint32_t type = role == REBUILD_V3 ? part[6].n : storage.type;
    if (NAMES[type].role == UNTYPED || NAMES[type].role == ODD_STORAGE) return bad_call(m);
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
        if (dim == 1) strides[i - 1] = dense; /* nothing takes this step, and numpy refuses one beyond 2^63 */
        if (dim > 1 && !empty && strides[i - 1] != dense) strided = WM_PICKLE_STRIDED;
        if (dim && dense > INT64_MAX / bytes / dim) return fail(m, WM_FAULT_PICKLE_OVERFLOW, dim, INT64_MAX);
        if (dim) dense *= dim;
    }
    give_back(m, args);
    const uint64_t at = take(m, TENSOR_WORDS + (strided ? 2 * ndim : ndim));
    if (at == NOWHERE) return -1;
    const uint64_t begin = empty ? 0 : part[1].at * bytes, end = empty ? 0 : (last + 1) * bytes;
    const uint32_t retyped = !empty && number_bytes(type) != number_bytes(storage.type) ? RETYPED : 0;
    const tensor_record record = {storage.number, (uint16_t)ndim, (uint16_t)(NAMES[type].dtype | strided | retyped), begin,
                                  end};
    memcpy(m->arena + at, &record, sizeof record);
    memcpy(m->arena + at + TENSOR_WORDS, shape, ndim * sizeof *shape);
    if (strided) memcpy(m->arena + at + TENSOR_WORDS + ndim, strides, ndim * sizeof *strides);
    m->barrier = m->pool;
    return push(m, TENSOR, 0, at);
}

/* Whether no attribute in a dictionary changes a tensor's values; None is an empty dictionary. 0 or 1, or -1. */
static int is_harmless(machine *m, value attributes) {
    if (attributes.kind != DICT) return attributes.kind == NONE;
    for (uint64_t at = contents(m->arena, attributes).first; at; at = m->arena[at]) {
        /* One dictionary may be the state of many tensors: looking at it each time would take unbounded time. */
        m->looked += m->arena[at + 1];
        if (m->looked > m->len) return fail(m, WM_FAULT_PICKLE_LAUGHS, m->looked, m->len);
        for (uint64_t i = 0; i < m->arena[at + 1]; i += 2) { /* a chunk has whole pairs */
            char word[MAX_NAME];
            const value key = get(m, at + CHUNK_WORDS + i * VALUE_WORDS);
            if (short_text(m, key, word)) return -1;
            if (key.kind != TEXT || same(word, key, "data") || same(word, key, "real") || same(word, key, "imag")) return 0;
        }
    }
    return 1;
}

/* Checks the state of a tensor: its attributes, or a pair of attributes and slots. They are left out. */
static int check_state(machine *m, value state) {
    const int pair = state.kind == TUPLE && state.n == 2;
    const int first = is_harmless(m, pair ? get(m, state.at) : state);
    const int second = first == 1 && pair ? is_harmless(m, get(m, state.at + VALUE_WORDS)) : first;
    return second < 0 ? -1 : second ? 0 : bad_call(m);
}

/* Checks the state of a dtype of numpy: (version, byte order, None, None, None, ...), the order little-endian or none.
   Dates have a ninth item, their unit. */
static int check_dtype(machine *m, value kind, value state) {
    char word[MAX_NAME];
    if (state.kind != TUPLE || state.n < 8 || state.n > 9) return bad_call(m);
    const value order = get(m, state.at + VALUE_WORDS);
    if (short_text(m, order, word)) return -1;
    int plain = state.n == 8 && (same(word, order, "<") || same(word, order, "|") || same(word, order, "="));
    for (uint64_t i = 2; i < 5; i++) plain &= get(m, state.at + i * VALUE_WORDS).kind == NONE;
    if (!plain && !m->in.source->lax) return fail(m, WM_FAULT_PICKLE_ODD, WM_PICKLE_ODD_ARRAY, 0);
    put(m, kind.at + VALUE_WORDS, (value){BOOLEAN, 0, (uint64_t)!plain});
    return 0;
}

int wm_pickle_build(machine *m, value target, value state) {
    if (target.kind == ODD) return 0;
    if (target.kind == KIND) return check_dtype(m, target, state);
    if (target.kind == ARRAY) return wm_pickle_fill_array(m, target.at, state);
    if (target.kind == OBJECT) return wm_pickle_update(m, state);
    /* Attributes of a dictionary, such as the versions of modules. The state of a tensor would give it another storage. */
    return target.kind == DICT && state.kind == DICT ? 0 : bad_call(m);
}

/* Pushes the dtype of numpy of (text, ...); its state follows. */
static int make_dtype(machine *m, value args) {
    const value text = get(m, args.at);
    give_back(m, args);
    const uint64_t at = take(m, (uint64_t)2 * VALUE_WORDS);
    if (at == NOWHERE) return -1;
    put(m, at, text);
    put(m, at + VALUE_WORDS, (value){BOOLEAN, 0, 0});
    m->barrier = m->pool;
    return push(m, KIND, 0, at);
}

/* Whether the arguments are n, or fewer, values of a kind. */
static int are_all(const machine *m, value args, uint64_t n, uint32_t kind, uint32_t other) {
    for (uint64_t i = 0; i < args.n && i < n; i++) {
        const value v = get(m, args.at + i * VALUE_WORDS);
        if (v.kind != kind && v.kind != other) return 0;
    }
    return args.n <= n;
}

/* Calls the names that make everyday objects of Python and numpy. */
static int call_python(machine *m, int role, value args) {
    const value nothing = {MARK, 0, 0}, first = args.n ? get(m, args.at) : nothing;
    char word[MAX_NAME];
    switch (role) {
    case A_SET: return args.n > 1 ? bad_call(m) : wm_pickle_collect(m, SET, first);
    case COUNTER: return args.n > 1 ? bad_call(m) : wm_pickle_collect(m, DICT, first);
    case A_DICT: /* the function for missing values is not needed here */
        if (args.n > 1 || (args.n && first.kind != NONE && first.kind != NAME && first.kind != ODD)) return bad_call(m);
        return push(m, DICT, 0, NOWHERE);
    case A_COMPLEX: return args.n == 2 && are_all(m, args, 2, REAL, INTEGER) ? push(m, COMPLEX, 0, args.at) : bad_call(m);
    case A_BYTEARRAY:
        if (!args.n) return push(m, BYTES, 0, 0);
        if (args.n == 2) { /* a text and its encoding */
            const value encoding = get(m, args.at + VALUE_WORDS);
            if (short_text(m, encoding, word)) return -1;
            return first.kind == TEXT && same(word, encoding, "latin-1") ? push(m, LATIN, first.n, first.at) : bad_call(m);
        }
        if (first.kind != BYTES && first.kind != LATIN) return bad_call(m);
        return push(m, first.kind, first.n, first.at);
    case A_LAYOUT: return args.n == 1 && first.kind == TEXT ? push(m, TEXT, first.n, first.at) : bad_call(m);
    case POSIX_PATH:
    case WINDOWS_PATH:
        if (!are_all(m, args, MAX_PARTS, TEXT, TEXT)) return bad_call(m);
        return push(m, PATH, args.n * 2 + (role == WINDOWS_PATH), args.at);
    case NUMPY_ARRAY: /* of a class, which gets its state from BUILD */
        if (args.n != 3 || first.kind != NAME || NAMES[first.at].role != AN_ARRAY) return bad_call(m);
        give_back(m, args);
        return wm_pickle_new_array(m);
    case NUMPY_BUFFER: return wm_pickle_buffer(m, args);
    default: return bad_call(m);
    }
}

/* Calls name number `name` with the tuple `args`, which has been taken off the stack. */
static int call(machine *m, uint64_t name, value args) {
    const int role = NAMES[name].role;
    value first = args.n ? get(m, args.at) : (value){MARK, 0, 0};
    char word[MAX_NAME];
    switch (role) {
    case ORDERED_DICT: /* of a list of pairs, where it was pickled so */
        if (args.n > 1 || (args.n && first.kind != LIST)) return bad_call(m);
        if (push(m, DICT, 0, NOWHERE)) return -1;
        if (args.n) {
            const uint64_t dict = make_container(m, m->stack);
            if (dict == NOWHERE) return -1;
            for (uint64_t at = contents(m->arena, first).first; at; at = m->arena[at]) {
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
        if (args.n == 4 && check_state(m, get(m, args.at + 3 * VALUE_WORDS))) return -1;
        give_back(m, args);
        return push(m, TENSOR, 0, first.at);
    case REBUILD_FROM_TYPE: { /* (function, class, arguments, state) */
        if (args.n != 4 || first.kind != NAME) return bad_call(m);
        const value class_ = get(m, args.at + VALUE_WORDS), inner = get(m, args.at + 2 * VALUE_WORDS);
        const int rebuilds = NAMES[first.at].role >= REBUILD_V1 && NAMES[first.at].role <= REBUILD_PARAMETER;
        if (!rebuilds || class_.kind != NAME || NAMES[class_.at].role != A_CLASS || inner.kind != TUPLE) return bad_call(m);
        return check_state(m, get(m, args.at + 3 * VALUE_WORDS)) ? -1 : call(m, first.at, inner);
    }
    case SIZE:
        if (args.n != 1 || first.kind != TUPLE) return bad_call(m);
        return push(m, TUPLE, first.n, first.at);
    case A_DEVICE: { /* a name, and perhaps a number */
        const value number = args.n == 2 ? get(m, args.at + VALUE_WORDS) : (value){INTEGER, 0, 0};
        if (!args.n || args.n > 2 || first.kind != TEXT || first.n > 255 || number.kind != INTEGER || number.at > INT8_MAX)
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
        return make_dtype(m, args);
    case NUMPY_SCALAR: {
        const value raw = args.n == 2 ? get(m, args.at + VALUE_WORDS) : first;
        if (args.n != 2 || first.kind != KIND || (raw.kind != BYTES && raw.kind != LATIN) || raw.n > 255) return bad_call(m);
        return wm_pickle_is_odd(m, first) ? leave_out(m, WM_PICKLE_ODD_ARRAY, NOWHERE) : push(m, SCALAR, 0, args.at);
    }
    default: return call_python(m, role, args);
    }
}

int wm_pickle_call(machine *m, value function, value args) {
    if (function.kind == ODD) return push(m, ODD, function.n, function.at);
    if (args.kind != TUPLE || function.kind != NAME) return bad_call(m);
    const uint64_t odd = NAMES[function.at].role == A_DICT ? args.n : odd_one(m, args);
    if (odd == args.n) return call(m, function.at, args);
    const value what = get(m, args.at + odd * VALUE_WORDS);
    give_back(m, args);
    return push(m, ODD, what.n, what.at);
}

int wm_pickle_make(machine *m, value class_, value args) {
    if (class_.kind == ODD) return push(m, ODD, class_.n, class_.at);
    const int empty = class_.kind == NAME && NAMES[class_.at].role == A_NAMESPACE && args.kind == TUPLE && !args.n;
    return empty ? push(m, OBJECT, 0, NOWHERE) : bad_call(m);
}

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
        out->at[i] = storage.key, out->nbytes[i] = storage.nbytes;
        out->item[i] = NAMES[storage.type].bytes, out->type[i] = NAMES[storage.type].dtype;
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
