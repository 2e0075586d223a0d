/* Built-in functions of Python's own. The C files of this folder are the ones that know Python.
 *
 * For short inputs the call is the cost. A Python function that asks cffi for a pointer and then calls through it takes
 * longer than zlib takes for a kilobyte; a built-in function takes what zlib.crc32 takes. So has crc32 a glue of its own, and
 * have the FNV-1a hashes of one name, and the conversions to floats, of which a cache full takes a few microseconds: the
 * arrays that they usually get are checked and converted here in one call. Lists of words are packed here, since each word is
 * an object of Python's. Everything else is batch-shaped and goes through cffi.
 *
 * Only the stable ABI is used, as by the rest of the module.
 */
#include <pyconfig.h>
#if !defined(Py_GIL_DISABLED) /* which has no stable ABI yet */
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include "internal.h"

/* Releasing and taking the lock costs more than a kernel needs for this many bytes. */
enum { KEEP_GIL_BELOW = 8192 };

/* Fills the arguments that are given by name, args[0] to args[names - 1] being their values. 0, or -1 with an exception. */
static int take_keywords(PyObject *kwnames, PyObject *const *args, PyObject **data, PyObject **value,
                         PyObject **threads) {
    Py_ssize_t n = PyTuple_Size(kwnames);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *name = PyTuple_GetItem(kwnames, i); /* borrowed, as all below */
        PyObject **place = NULL;
        if (PyUnicode_CompareWithASCIIString(name, "threads") == 0) place = threads;
        if (PyUnicode_CompareWithASCIIString(name, "value") == 0) place = value;
        if (PyUnicode_CompareWithASCIIString(name, "data") == 0) place = data;
        if (!place || *place) {
            PyErr_Format(PyExc_TypeError, "crc32() got %s '%U'",
                         place ? "multiple values for argument" : "an unexpected keyword argument", name);
            return -1;
        }
        *place = args[i];
    }
    return 0;
}

/* The buffer of `data`; what has none, or one with gaps, is a TypeError. */
static int take_buffer(PyObject *data, Py_buffer *view) {
    if (PyObject_GetBuffer(data, view, PyBUF_SIMPLE) == 0) return 0;
    if (PyErr_ExceptionMatches(PyExc_BufferError) || PyErr_ExceptionMatches(PyExc_ValueError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "a C-contiguous buffer is needed, not this %R", (PyObject *)Py_TYPE(data));
    }
    return -1;
}

/* How many threads C may use; of what no int holds, the most or none. -1 with an exception when it is no number. */
static int take_threads(PyObject *threads) {
    int overflow;
    const long n = PyLong_AsLongAndOverflow(threads, &overflow);
    if (n == -1 && !overflow && PyErr_Occurred()) return -1;
    return overflow < 0 || n < 0 ? 0 : overflow || n > INT_MAX ? INT_MAX : (int)n;
}

static PyObject *crc32(PyObject *module, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames) {
    (void)module;
    PyObject *data = n_args > 0 ? args[0] : NULL, *value = n_args > 1 ? args[1] : NULL, *threads = NULL;
    if (n_args > 2) {
        PyErr_Format(PyExc_TypeError, "crc32() takes from 1 to 2 positional arguments but %zd were given", n_args);
        return NULL;
    }
    if (kwnames && take_keywords(kwnames, args + n_args, &data, &value, &threads)) return NULL;
    if (!data) {
        PyErr_SetString(PyExc_TypeError, "crc32() missing 1 required positional argument: 'data'");
        return NULL;
    }

    unsigned long crc = 0; /* of a wider value the low 32 bits count */
    if (value && (crc = PyLong_AsUnsignedLongMask(value)) == (unsigned long)-1 && PyErr_Occurred()) return NULL;
    int n_threads = 1;
    if (threads && (n_threads = take_threads(threads)) < 0) return NULL;

    if (Py_IS_TYPE(data, &PyBytes_Type)) { /* the usual case when short; they cannot change, so no view is needed */
        Py_ssize_t len = PyBytes_Size(data);
        if (len < KEEP_GIL_BELOW)
            return PyLong_FromUnsignedLong(
                wm_crc32((uint32_t)crc, (const uint8_t *)PyBytes_AsString(data), (uint64_t)len, 1));
    }
    Py_buffer view;
    if (take_buffer(data, &view)) return NULL;
    uint32_t result;
    if (view.len < KEEP_GIL_BELOW) {
        result = wm_crc32((uint32_t)crc, view.buf, (uint64_t)view.len, 1);
    } else {
        Py_BEGIN_ALLOW_THREADS
        result = wm_crc32((uint32_t)crc, view.buf, (uint64_t)view.len, n_threads);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(result);
}

/* The one argument `data` of a function of this name; or NULL with an exception. */
static PyObject *take_data(const char *function, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames) {
    const Py_ssize_t n_names = kwnames ? PyTuple_Size(kwnames) : 0;
    if (n_args + n_names == 1 && (!n_names || PyUnicode_CompareWithASCIIString(PyTuple_GetItem(kwnames, 0), "data") == 0))
        return args[0];
    PyErr_Format(PyExc_TypeError, "%s() takes one argument, 'data'", function);
    return NULL;
}

/* The hash of either width of what has a buffer; or an exception. */
static PyObject *hash_data(PyObject *data, int wide) {
    unsigned long long hash;
    if (Py_IS_TYPE(data, &PyBytes_Type) && PyBytes_Size(data) < KEEP_GIL_BELOW) {
        const uint8_t *bytes = (const uint8_t *)PyBytes_AsString(data);
        const uint64_t len = (uint64_t)PyBytes_Size(data);
        return PyLong_FromUnsignedLongLong(wide ? wm_fnv1a64(bytes, len) : wm_fnv1a32(bytes, len));
    }
    Py_buffer view;
    if (take_buffer(data, &view)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    hash = wide ? wm_fnv1a64(view.buf, (uint64_t)view.len) : wm_fnv1a32(view.buf, (uint64_t)view.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLongLong(hash);
}

static PyObject *fnv1a32(PyObject *module, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames) {
    (void)module;
    PyObject *data = take_data("fnv1a32", args, n_args, kwnames);
    return data ? hash_data(data, 0) : NULL;
}

static PyObject *fnv1a64(PyObject *module, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames) {
    (void)module;
    PyObject *data = take_data("fnv1a64", args, n_args, kwnames);
    return data ? hash_data(data, 1) : NULL;
}

/* --------------------------------------------------------------------------------------------------- texts
 * Many words as UTF-8 back to back. Words lie all over memory, so each is asked for some words ahead.
 */
enum { WORDS_AHEAD = 8 };

/* The UTF-8 of a str; a lone surrogate as if it were a character. *owner, unless NULL, holds it and is to be let go of. NULL
 * with an exception when `text` is no str. */
static const char *utf8_of(PyObject *text, Py_ssize_t *len, PyObject **owner) {
    *owner = NULL;
    if (!PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "%R is no str", text);
        return NULL;
    }
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, len);
    if (utf8 || !PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return utf8;
    PyErr_Clear();
    if (!(*owner = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass"))) return NULL;
    *len = PyBytes_Size(*owner);
    return PyBytes_AsString(*owner);
}

static uint8_t *append(uint8_t *to, const char *bytes, Py_ssize_t len) {
    memcpy(to, bytes, (size_t)len);
    return to + len;
}

/* Writes the words of a tuple to `blob`, each within two brackets, and where they begin and end to bounds. With blob NULL only
 * the bounds. Returns the bytes of all, or -1 with an exception. */
static long long pack(PyObject *words, const char *before, const char *after, uint8_t *blob, uint32_t *bounds) {
    const Py_ssize_t n = PyTuple_Size(words), n_before = (Py_ssize_t)strlen(before), n_after = (Py_ssize_t)strlen(after);
    unsigned long long total = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!blob && i + WORDS_AHEAD < n) PREFETCH(PyTuple_GetItem(words, i + WORDS_AHEAD));
        Py_ssize_t len;
        PyObject *owner;
        const char *utf8 = utf8_of(PyTuple_GetItem(words, i), &len, &owner);
        if (!utf8) return -1;
        bounds[i] = (uint32_t)total;
        total += (unsigned long long)(n_before + len + n_after);
        if (blob) blob = append(append(append(blob, before, n_before), utf8, len), after, n_after);
        Py_XDECREF(owner);
    }
    bounds[n] = (uint32_t)total;
    return (long long)total;
}

/* pack_texts(words, before, after, bounds): see kernels/_subwords.py. */
static PyObject *pack_texts(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    (void)module;
    enum { WORDS, BEFORE, AFTER, BOUNDS, N_ARGS };
    Py_buffer view;
    PyObject *result = NULL, *words;
    if (n_args != N_ARGS) {
        PyErr_SetString(PyExc_TypeError, "pack_texts() takes 4 arguments");
        return NULL;
    }
    const char *before = PyUnicode_AsUTF8AndSize(args[BEFORE], NULL), *after = PyUnicode_AsUTF8AndSize(args[AFTER], NULL);
    if (!before || !after || PyObject_GetBuffer(args[BOUNDS], &view, PyBUF_WRITABLE)) return NULL;
    if ((words = PySequence_Tuple(args[WORDS]))) { /* which nobody can change meanwhile */
        uint32_t *bounds = view.buf;
        if ((view.len / 4 - 1) != PyTuple_Size(words)) {
            PyErr_SetString(PyExc_ValueError, "bounds are one more than words");
        } else {
            const long long size = pack(words, before, after, NULL, bounds);
            if (size > UINT32_MAX)
                result = Py_NewRef(Py_None);
            else if (size >= 0 && (result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size)))
                pack(words, before, after, (uint8_t *)PyBytes_AsString(result), bounds);
        }
        Py_DECREF(words);
    }
    PyBuffer_Release(&view);
    return result;
}

/* -------------------------------------------------------------------------------------------------- arrays
 * What follows takes arrays as they usually are, and returns True when it has done the work. Of anything else, and of what is
 * wrong, it returns False and has written nothing: the Python function that called it then sees to it, and finds the words.
 *
 * An array tells about itself by its attribute __array_struct__, a protocol of numpy's that needs none of its headers and
 * takes a third of the time of a buffer. The capsule keeps the array alive, and its memory where it is.
 */
typedef struct {
    int two; /* 2 */
    int nd;
    char typekind;
    int itemsize, flags;
    intptr_t *shape, *strides;
    void *data;
    PyObject *descr;
} array_interface;
enum { CONTIGUOUS = 0x1, ALIGNED = 0x100, NATIVE = 0x200, WRITEABLE = 0x400 };

typedef struct {
    PyObject *capsule;
    const array_interface *is;
    uint64_t size; /* elements */
} array;

static PyTypeObject *ndarray;
static PyObject *array_struct; /* the name of the attribute */

/* The array with these flags that `object` is; an instance of a class derived from it is none. 1, or 0 without an exception. */
static int take_array(PyObject *object, int flags, array *a) {
    if (!Py_IS_TYPE(object, ndarray)) return 0;
    a->capsule = PyObject_GetAttr(object, array_struct);
    a->is = a->capsule ? PyCapsule_GetPointer(a->capsule, NULL) : NULL;
    if (a->is && a->is->two == 2 && (a->is->flags & flags) == flags) {
        a->size = 1;
        for (int i = 0; i < a->is->nd; i++) a->size *= (uint64_t)a->is->shape[i];
        return 1;
    }
    PyErr_Clear();
    Py_XDECREF(a->capsule);
    return 0;
}

/* A whole number from 0 on, or -1 without an exception. */
static long long take_count(PyObject *object) {
    const long long n = PyLong_AsLongLong(object);
    if (n == -1 && PyErr_Occurred()) PyErr_Clear();
    return n < 0 ? -1 : n;
}

static int is_of(const array *a, char typekind, int itemsize) {
    return a->is->typekind == typekind && a->is->itemsize == itemsize;
}

/* Whether `out` has the shape of `a`, the last dimension `times` as long. */
static int same_shape(const array *a, const array *out, intptr_t times) {
    const int nd = a->is->nd;
    if (out->is->nd != nd || (nd == 0 && times != 1)) return 0;
    for (int i = 0; i < nd; i++)
        if (out->is->shape[i] != a->is->shape[i] * (i == nd - 1 ? times : 1)) return 0;
    return 1;
}

static const int little_endian =
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    0;
#else
    1;
#endif

enum { FLOAT16, BFLOAT16, FLOAT16_PAIRS }; /* as in kernels/_half.py */

/* widen(kind, a, out, threads) */
static PyObject *widen(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    (void)module;
    array a, out;
    int done = 0;
    if (n_args != 4 || !little_endian || !take_array(args[1], CONTIGUOUS | NATIVE, &a)) Py_RETURN_FALSE;
    if (take_array(args[2], CONTIGUOUS | ALIGNED | NATIVE | WRITEABLE, &out)) {
        const long long kind = take_count(args[0]);
        const int threads = take_threads(args[3]), pairs = kind == FLOAT16_PAIRS;
        const int legal = is_of(&a, 'u', pairs ? 4 : 2) || (kind == FLOAT16 && is_of(&a, 'f', 2));
        if (threads < 0) PyErr_Clear();
        if (threads >= 0 && kind >= 0 && legal && is_of(&out, 'f', 4) && same_shape(&a, &out, pairs ? 2 : 1)) {
            int (*const convert)(const uint8_t *, float *, uint64_t, int) = kind == BFLOAT16 ? wm_bf16_to_f32 : wm_f16_to_f32;
            if (out.size < KEEP_GIL_BELOW) {
                done = convert(a.is->data, out.is->data, out.size, 1) == 0;
            } else {
                Py_BEGIN_ALLOW_THREADS
                done = convert(a.is->data, out.is->data, out.size, threads) == 0;
                Py_END_ALLOW_THREADS
            }
        }
        Py_DECREF(out.capsule);
    }
    Py_DECREF(a.capsule);
    return PyBool_FromLong(done);
}

/* The bytes of an array, or of a bytes object, for which there is no capsule. 1, or 0 without an exception. */
static int take_bytes(PyObject *object, array *a, const uint8_t **bytes, uint64_t *size) {
    if (Py_IS_TYPE(object, &PyBytes_Type)) {
        a->capsule = NULL;
        *bytes = (const uint8_t *)PyBytes_AsString(object), *size = (uint64_t)PyBytes_Size(object);
        return 1;
    }
    if (!take_array(object, CONTIGUOUS, a)) return 0;
    *bytes = a->is->data, *size = a->size * (uint64_t)a->is->itemsize;
    if (a->is->typekind != 'O') return 1;
    Py_DECREF(a->capsule);
    return 0;
}

/* decode(data, n, bits, block_size, scale_type, start, stop, out, threads[, plan]): with a plan, of adaptive blocks */
static PyObject *decode(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    (void)module;
    enum { DATA, N, BITS, BLOCK, SCALE, START, STOP, OUT, THREADS, N_ARGS, PLAN = N_ARGS };
    array data, out, plan = {0};
    const uint8_t *bytes;
    uint64_t size;
    int done = 0;
    if (n_args < N_ARGS || n_args > N_ARGS + 1 || !PyUnicode_Check(args[SCALE])) Py_RETURN_FALSE;
    if (!take_bytes(args[DATA], &data, &bytes, &size)) Py_RETURN_FALSE;
    const int adaptive = n_args > PLAN;
    if (adaptive && !take_array(args[PLAN], CONTIGUOUS | ALIGNED | NATIVE, &plan)) {
        Py_XDECREF(data.capsule);
        Py_RETURN_FALSE;
    }
    if (take_array(args[OUT], CONTIGUOUS | ALIGNED | NATIVE | WRITEABLE, &out)) {
        const long long n = take_count(args[N]), block = take_count(args[BLOCK]), bits = take_count(args[BITS]);
        const long long start = take_count(args[START]), stop = take_count(args[STOP]);
        const int threads = take_threads(args[THREADS]), half = out.is->itemsize == 2;
        const int scale = PyUnicode_CompareWithASCIIString(args[SCALE], "fp16") == 0   ? 1
                          : PyUnicode_CompareWithASCIIString(args[SCALE], "fp32") == 0 ? 0
                                                                                       : -1;
        if (threads < 0) PyErr_Clear();
        const int legal = adaptive ? is_of(&plan, 'u', 8) : bits == 4 || bits == 5 || bits == 8;
        if (legal && n >= 0 && block >= 0 && start >= 0 && stop >= start && scale >= 0 && threads >= 0 &&
            (is_of(&out, 'f', 4) || is_of(&out, 'f', 2)) && out.size == (uint64_t)(stop - start)) {
            Py_BEGIN_ALLOW_THREADS
            if (adaptive)
                done = wm_adaptive_decode(bytes, size, scale, (uint64_t)block, (uint64_t)n, plan.is->data, plan.size,
                                          (uint64_t)start, out.is->data, out.size, half, threads) == 0;
            else
                done = wm_blocks_decode(bytes, size, (int)bits, scale, (uint64_t)block, (uint64_t)n, (uint64_t)start,
                                        out.is->data, out.size, half, threads) == 0;
            Py_END_ALLOW_THREADS
        }
        Py_DECREF(out.capsule);
    }
    Py_XDECREF(plan.capsule);
    Py_XDECREF(data.capsule);
    return PyBool_FromLong(done);
}

/* ------------------------------------------------------------------------------------------- into the module
 * The cast by way of void (*)(void) is how C lets a function pointer be kept as another type. */
static PyMethodDef checksums[] = {
    {"crc32", (PyCFunction)(void (*)(void))crc32, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"fnv1a32", (PyCFunction)(void (*)(void))fnv1a32, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"fnv1a64", (PyCFunction)(void (*)(void))fnv1a64, METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef texts[] = {
    {"pack_texts", (PyCFunction)(void (*)(void))pack_texts, METH_FASTCALL, "pack_texts(words, before, after, bounds)"},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef conversions[] = {
    {"widen", (PyCFunction)(void (*)(void))widen, METH_FASTCALL, "widen(kind, a, out, threads)"},
    {"decode", (PyCFunction)(void (*)(void))decode, METH_FASTCALL,
     "decode(data, n, bits, block_size, scale_type, start, stop, out, threads[, plan])"},
    {NULL, NULL, 0, NULL},
};

static int add_functions(PyMethodDef *functions) {
    PyObject *module = PyImport_ImportModule("weightmap._kernels");
    const int failed = !module || PyModule_AddFunctions(module, functions);
    Py_XDECREF(module);
    return failed;
}

int wm_python_functions(const char *const *docs) {
    PyGILState_STATE state = PyGILState_Ensure(); /* cffi let go of the lock */
    for (int i = 0; docs[i] && checksums[i].ml_name; i++) checksums[i].ml_doc = docs[i];
    const int failed = add_functions(checksums);
    if (failed) PyErr_Clear();
    PyGILState_Release(state);
    return failed ? -1 : 0;
}

int wm_python_texts(void) {
    PyGILState_STATE state = PyGILState_Ensure();
    const int failed = add_functions(texts);
    if (failed) PyErr_Clear();
    PyGILState_Release(state);
    return failed ? -1 : 0;
}

int wm_python_arrays(void) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (numpy) ndarray = (PyTypeObject *)PyObject_GetAttrString(numpy, "ndarray"); /* ours for good, as the name is */
    array_struct = PyUnicode_InternFromString("__array_struct__");
    const int failed = !ndarray || !array_struct || add_functions(conversions);
    if (failed) PyErr_Clear();
    Py_XDECREF(numpy);
    PyGILState_Release(state);
    return failed ? -1 : 0;
}
