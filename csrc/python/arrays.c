/* widen, decode and decode_ggml: they take the usual arrays and return True when they have done the work. For other arrays and wrong
 * arguments they write nothing and return False, and the Python function that called them does the work or raises.
 *
 * An array describes itself in its attribute __array_struct__, a protocol that needs none of numpy's headers and takes a third
 * of the time of a buffer. The capsule keeps the array alive, and its memory in place.
 */
#include "builtin.h"

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

static PyTypeObject *ndarray;  /* NULL until numpy is imported; kept for good, as the name is */
static PyObject *array_struct; /* the name of the attribute */

static int know_ndarray(void) {
    PyObject *name = PyUnicode_FromString("numpy"), *numpy = name ? PyImport_GetModule(name) : NULL;
    if (numpy) ndarray = (PyTypeObject *)PyObject_GetAttrString(numpy, "ndarray");
    PyErr_Clear();
    Py_XDECREF(name);
    Py_XDECREF(numpy);
    return ndarray != NULL;
}

/* Takes `object` as an array with these flags; instances of derived classes do not count. 1, or 0 without an exception. */
static int take_array(PyObject *object, int flags, array *a) {
    if ((!ndarray && !know_ndarray()) || !Py_IS_TYPE(object, ndarray)) return 0;
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

/* The number that `object` is, or -1 without an exception when it is none or negative. */
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

enum { FLOAT16, BFLOAT16, FLOAT16_PAIRS }; /* as in native/floats.py */

/* widen(kind, a, out, threads) */
static PyObject *widen(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    array a, out;
    int done = 0;
    if (n_args != 4 || WM_BIG_ENDIAN || !take_array(args[1], CONTIGUOUS | NATIVE, &a)) Py_RETURN_FALSE;
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
                Py_BEGIN_ALLOW_THREADS done = convert(a.is->data, out.is->data, out.size, threads) == 0;
                Py_END_ALLOW_THREADS
            }
        }
        Py_DECREF(out.capsule);
    }
    Py_DECREF(a.capsule);
    return PyBool_FromLong(done);
}

/* The bytes of an array, or of a bytes object, which has no capsule. 1, or 0 without an exception. */
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
            Py_BEGIN_ALLOW_THREADS if (adaptive) done =
                wm_adaptive_decode(bytes, size, scale, (uint64_t)block, (uint64_t)n, plan.is->data, plan.size, (uint64_t)start,
                                   out.is->data, out.size, half, threads) == 0;
            else done = wm_blocks_decode(bytes, size, (int)bits, scale, (uint64_t)block, (uint64_t)n, (uint64_t)start,
                                         out.is->data, out.size, half, threads) == 0;
            Py_END_ALLOW_THREADS
        }
        Py_DECREF(out.capsule);
    }
    Py_XDECREF(plan.capsule);
    Py_XDECREF(data.capsule);
    return PyBool_FromLong(done);
}

/* decode_ggml(data, n, type, start, stop, out, threads): of ggml's type of this number */
static PyObject *decode_ggml(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    enum { DATA, N, TYPE, START, STOP, OUT, THREADS, N_ARGS };
    array data, out;
    const uint8_t *bytes;
    uint64_t size;
    int done = 0;
    if (n_args != N_ARGS || !take_bytes(args[DATA], &data, &bytes, &size)) Py_RETURN_FALSE;
    if (take_array(args[OUT], CONTIGUOUS | ALIGNED | NATIVE | WRITEABLE, &out)) {
        const long long n = take_count(args[N]), type = take_count(args[TYPE]);
        const long long start = take_count(args[START]), stop = take_count(args[STOP]);
        const int threads = take_threads(args[THREADS]), half = out.is->itemsize == 2;
        if (threads < 0) PyErr_Clear();
        if (n >= 0 && type >= 0 && type < 64 && start >= 0 && stop >= start && threads >= 0 &&
            (is_of(&out, 'f', 4) || is_of(&out, 'f', 2)) && out.size == (uint64_t)(stop - start)) {
            Py_BEGIN_ALLOW_THREADS done = wm_ggml_decode(bytes, size, (int)type, (uint64_t)n, (uint64_t)start, out.is->data,
                                                         out.size, half, threads) == 0;
            Py_END_ALLOW_THREADS
        }
        Py_DECREF(out.capsule);
    }
    Py_XDECREF(data.capsule);
    return PyBool_FromLong(done);
}

static PyMethodDef functions[] = {
    {"widen", WM_FUNCTION(widen), METH_FASTCALL, "widen(kind, a, out, threads)"},
    {"decode", WM_FUNCTION(decode), METH_FASTCALL,
     "decode(data, n, bits, block_size, scale_type, start, stop, out, threads[, plan])"},
    {"decode_ggml", WM_FUNCTION(decode_ggml), METH_FASTCALL, "decode_ggml(data, n, type, start, stop, out, threads)"},
    {NULL, NULL, 0, NULL},
};

int wm_python_arrays(void) {
    PyGILState_STATE state = PyGILState_Ensure();
    array_struct = PyUnicode_InternFromString("__array_struct__");
    const int failed = !array_struct ? -1 : add_functions(functions);
    if (failed) PyErr_Clear();
    PyGILState_Release(state);
    return failed;
}
