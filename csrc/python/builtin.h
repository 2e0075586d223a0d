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

/* C casts a pointer to a function safely only by way of void (*)(void). */
#define WM_FUNCTION(function) ((PyCFunction)(void (*)(void))(function))

/* Adds functions to the module. 0, or -1 without an exception. The caller holds the lock. */
static inline int add_functions(PyMethodDef *functions) {
    PyObject *module = PyImport_ImportModule("weightmap._kernels");
    const int failed = !module || PyModule_AddFunctions(module, functions);
    Py_XDECREF(module);
    if (failed) PyErr_Clear();
    return failed ? -1 : 0;
}

#endif
