/* crc32 as a function of Python's own: the one C file that knows Python.
 *
 * For short inputs the call is the cost. A Python function that asks cffi for a pointer and then calls through it takes
 * longer than zlib takes for a kilobyte; a built-in function takes what zlib.crc32 takes. So this one function has a glue
 * of its own; everything else is batch-shaped and goes through cffi.
 *
 * Only the stable ABI is used, as by the rest of the module.
 */
#include <pyconfig.h>
#if !defined(Py_GIL_DISABLED) /* which has no stable ABI yet */
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include "kernels.h"

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
    long n_threads = 1;
    if (threads && (n_threads = PyLong_AsLong(threads)) == -1 && PyErr_Occurred()) return NULL;
    if (n_threads > INT_MAX) n_threads = INT_MAX;
    if (n_threads < 1) n_threads = 1;

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
        result = wm_crc32((uint32_t)crc, view.buf, (uint64_t)view.len, (int)n_threads);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(result);
}

/* The cast by way of void (*)(void) is how C lets a function pointer be kept as another type. */
static PyMethodDef functions[] = {
    {"crc32", (PyCFunction)(void (*)(void))crc32, METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

int wm_python_functions(const char *crc32_doc) {
    PyGILState_STATE state = PyGILState_Ensure(); /* cffi let go of the lock */
    functions[0].ml_doc = crc32_doc;
    PyObject *module = PyImport_ImportModule("weightmap._kernels");
    int failed = !module || PyModule_AddFunctions(module, functions);
    if (failed) PyErr_Clear();
    Py_XDECREF(module);
    PyGILState_Release(state);
    return failed ? -1 : 0;
}
