/* Shared by the files of this folder, the only ones that know Python.
 *
 * Functions that users call once for a batch go through cffi. Those here are built-in functions instead, for two reasons. For
 * short inputs the call is the cost: a Python function that asks cffi for a pointer and calls through it takes longer than
 * zlib takes for a kilobyte. And some work is on Python's own objects.
 *
 * They keep to the stable ABI, as the rest of the module does.
 */
#ifndef WEIGHTMAP_BUILTIN_H
#define WEIGHTMAP_BUILTIN_H
#include <pyconfig.h>
#if !defined(Py_GIL_DISABLED) /* which has no stable ABI yet */
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include "core/internal.h"

/* Releasing and taking the lock costs more than a kernel needs for this many bytes. */
enum { KEEP_GIL_BELOW = 8192 };

/* C casts a pointer to a function safely only by way of void (*)(void). */
#define WM_FUNCTION(function) ((PyCFunction)(void (*)(void))(function))

/* How many threads C may use, at most INT_MAX. -1 with an exception when it is not a number, or below 1. */
static inline int take_threads(PyObject *threads) {
    int overflow;
    const long n = PyLong_AsLongAndOverflow(threads, &overflow);
    if (n == -1 && !overflow && PyErr_Occurred()) return -1;
    if (overflow < 0 || (!overflow && n < 1)) {
        PyErr_Format(PyExc_ValueError, "threads is %S, expected 1 or more", threads);
        return -1;
    }
    return overflow || n > INT_MAX ? INT_MAX : (int)n;
}

/* Adds functions to the module. 0, or -1 without an exception. The caller holds the lock. */
static inline int add_functions(PyMethodDef *functions) {
    PyObject *module = PyImport_ImportModule("weightmap._kernels");
    const int failed = !module || PyModule_AddFunctions(module, functions);
    Py_XDECREF(module);
    if (failed) PyErr_Clear();
    return failed ? -1 : 0;
}

#endif
