/* crc32, fnv1a32 and fnv1a64 of any buffer. For a short one they take as long as zlib.crc32. */
#include "python/builtin.h"

/* Releasing and taking the lock costs more than a kernel needs for this many bytes. */
enum { KEEP_GIL_BELOW = 8192 };

/* How many threads C may use, at most INT_MAX. -1 with an exception when it is not a number, or below 1. */
static int take_threads(PyObject *threads) {
    int overflow;
    const long n = PyLong_AsLongAndOverflow(threads, &overflow);
    if (n == -1 && !overflow && PyErr_Occurred()) return -1;
    if (overflow < 0 || (!overflow && n < 1)) {
        PyErr_Format(PyExc_ValueError, "threads is %S, expected 1 or more", threads);
        return -1;
    }
    return overflow || n > INT_MAX ? INT_MAX : (int)n;
}

/* Sets the arguments given by name, whose values are args[0], args[1], ... 0, or -1 with an exception. */
static int take_keywords(PyObject *kwnames, PyObject *const *args, PyObject **data, PyObject **value, PyObject **threads) {
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

/* The buffer of `data`; an object without one, or with one that has gaps, is a TypeError. */
static int take_buffer(PyObject *data, Py_buffer *view) {
    if (PyObject_GetBuffer(data, view, PyBUF_SIMPLE) == 0) return 0;
    if (PyErr_ExceptionMatches(PyExc_BufferError) || PyErr_ExceptionMatches(PyExc_ValueError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "a C-contiguous buffer is needed, not this %R", (PyObject *)Py_TYPE(data));
    }
    return -1;
}

/* CRC-32 of 64 KiB in memory takes one to four microseconds, less than a thread that waits for the lock needs to wake up. */
enum { CRC32_OF_BYTES_KEEPS_GIL_BELOW = (64 << 10) + 1 };

static PyObject *crc32(PyObject *module, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames) {
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

    unsigned long crc = 0; /* the low 32 bits of a wider value */
    if (value && (crc = PyLong_AsUnsignedLongMask(value)) == (unsigned long)-1 && PyErr_Occurred()) return NULL;
    int n_threads = 1;
    if (threads && (n_threads = take_threads(threads)) < 0) return NULL;

    /* The usual short input: it cannot change, so it needs no view, and no page of a file is read meanwhile. */
    if (Py_IS_TYPE(data, &PyBytes_Type)) {
        Py_ssize_t len = PyBytes_Size(data);
        if (len < CRC32_OF_BYTES_KEEPS_GIL_BELOW)
            return PyLong_FromUnsignedLong(wm_crc32((uint32_t)crc, (const uint8_t *)PyBytes_AsString(data), (uint64_t)len, 1));
    }
    Py_buffer view;
    if (take_buffer(data, &view)) return NULL;
    uint32_t result;
    if (view.len < KEEP_GIL_BELOW) {
        result = wm_crc32((uint32_t)crc, view.buf, (uint64_t)view.len, 1);
    } else {
        Py_BEGIN_ALLOW_THREADS result = wm_crc32((uint32_t)crc, view.buf, (uint64_t)view.len, n_threads);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(result);
}

/* The one argument, `data`, of this function; or NULL with an exception. */
static PyObject *take_data(const char *function, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames) {
    const Py_ssize_t n_names = kwnames ? PyTuple_Size(kwnames) : 0;
    if (n_args + n_names == 1 && (!n_names || PyUnicode_CompareWithASCIIString(PyTuple_GetItem(kwnames, 0), "data") == 0))
        return args[0];
    PyErr_Format(PyExc_TypeError, "%s() takes one argument, 'data'", function);
    return NULL;
}

/* The hash of a buffer, of 64 bits or 32; or NULL with an exception. */
static PyObject *hash_data(PyObject *data, int wide) {
    unsigned long long hash;
    if (Py_IS_TYPE(data, &PyBytes_Type) && PyBytes_Size(data) < KEEP_GIL_BELOW) {
        const uint8_t *bytes = (const uint8_t *)PyBytes_AsString(data);
        const uint64_t len = (uint64_t)PyBytes_Size(data);
        return PyLong_FromUnsignedLongLong(wide ? wm_fnv1a64(bytes, len) : wm_fnv1a32(bytes, len));
    }
    Py_buffer view;
    if (take_buffer(data, &view)) return NULL;
    Py_BEGIN_ALLOW_THREADS hash = wide ? wm_fnv1a64(view.buf, (uint64_t)view.len) : wm_fnv1a32(view.buf, (uint64_t)view.len);
    Py_END_ALLOW_THREADS PyBuffer_Release(&view);
    return PyLong_FromUnsignedLongLong(hash);
}

static PyObject *fnv1a32(PyObject *module, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames) {
    PyObject *data = take_data("fnv1a32", args, n_args, kwnames);
    return data ? hash_data(data, 0) : NULL;
}

static PyObject *fnv1a64(PyObject *module, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames) {
    PyObject *data = take_data("fnv1a64", args, n_args, kwnames);
    return data ? hash_data(data, 1) : NULL;
}

static PyMethodDef functions[] = {
    {"crc32", WM_FUNCTION(crc32), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"fnv1a32", WM_FUNCTION(fnv1a32), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"fnv1a64", WM_FUNCTION(fnv1a64), METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

int wm_python_functions(const char *const *docs) {
    PyGILState_STATE state = PyGILState_Ensure(); /* cffi released the lock */
    for (int i = 0; docs[i] && functions[i].ml_name; i++) functions[i].ml_doc = docs[i];
    const int failed = add_functions(functions);
    PyGILState_Release(state);
    return failed;
}
