/* fstat, finder and row_reader: the state of one file, and functions for one hash index and for one table. A look-up calls all
 * three, and through cffi these calls would be a third of its time. What the functions read was built and touched by this
 * process, so they keep the lock.
 */
#include "builtin.h"

#include <structmember.h>

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

/* State: a wm_file. */
typedef struct {
    PyObject_HEAD wm_file file;
} state;
static PyTypeObject *state_type;

static PyMemberDef state_members[] = {
    {"fd", T_INT, offsetof(state, file.fd), READONLY, NULL},
    {"mode", T_UINT, offsetof(state, file.mode), READONLY, NULL},
    {"size", T_ULONGLONG, offsetof(state, file.size), READONLY, NULL},
    {"device", T_ULONGLONG, offsetof(state, file.device), READONLY, NULL},
    {"inode", T_ULONGLONG, offsetof(state, file.inode), READONLY, NULL},
    {"mtime_ns", T_LONGLONG, offsetof(state, file.mtime_ns), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* unchanged(): see wm_unchanged in kernels.h. A server may take its time to answer, so it lets go of the lock. */
static PyObject *unchanged(PyObject *self, PyObject *unused) {
    int found;
    Py_BEGIN_ALLOW_THREADS found = wm_unchanged(&((const state *)self)->file);
    Py_END_ALLOW_THREADS return PyLong_FromLong(found);
}

static PyMethodDef state_methods[] = {{"unchanged", unchanged, METH_NOARGS, "unchanged()"}, {NULL, NULL, 0, NULL}};
static PyType_Slot state_slots[] = {{Py_tp_members, state_members}, {Py_tp_methods, state_methods}, {0, NULL}};
static PyType_Spec state_spec = {"weightmap._kernels.State", sizeof(state), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, state_slots};

/* fstat(fd), or where Python asks the system itself, fstat(fd, mode, size, device, inode, mtime_ns). */
static PyObject *file_state(PyObject *module, PyObject *args) {
    int fd, error = 0;
    unsigned mode = 0;
    unsigned long long size = 0, device = 0, inode = 0;
    long long mtime_ns = 0;
    if (!PyArg_ParseTuple(args, "i|IKKKL", &fd, &mode, &size, &device, &inode, &mtime_ns)) return NULL;
    wm_file file = {fd, mode, size, device, inode, mtime_ns};
    if (PyTuple_Size(args) == 1) {
        Py_BEGIN_ALLOW_THREADS error = wm_fstat(fd, &file);
        Py_END_ALLOW_THREADS
    }
    errno = error;
    if (error) return PyErr_SetFromErrno(PyExc_OSError);
    state *made = (state *)PyType_GenericAlloc(state_type, 0);
    if (made) made->file = file;
    return (PyObject *)made;
}

/* What a function keeps: a copy of the struct, and the Python objects that own its memory. */
typedef struct {
    PyObject *keep;
    union {
        wm_index index;
        wm_columns columns;
    } of;
} kept;
static const char KEPT[] = "weightmap._kernels.kept";

static void release(PyObject *capsule) {
    kept *k = PyCapsule_GetPointer(capsule, KEPT);
    Py_DECREF(k->keep);
    free(k);
}

/* A built-in function over a copy of the struct of `size` bytes whose address is args[0]; args[1] owns the memory. */
static PyObject *function_over(PyMethodDef *function, size_t size, PyObject *const *args, Py_ssize_t n_args) {
    if (n_args != 2) {
        PyErr_Format(PyExc_TypeError, "%s needs an address, and the owner of the memory", function->ml_name);
        return NULL;
    }
    const void *address = PyLong_AsVoidPtr(args[0]);
    if (!address) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "an address of 0");
        return NULL;
    }
    kept *k = malloc(sizeof *k);
    PyObject *capsule = k ? PyCapsule_New(k, KEPT, release) : PyErr_NoMemory();
    if (!capsule) {
        free(k);
        return NULL;
    }
    k->keep = Py_NewRef(args[1]);
    memcpy(&k->of, address, size);
    PyObject *made = PyCFunction_NewEx(function, capsule, NULL);
    Py_DECREF(capsule);
    return made;
}

/* find(text): the number of the string equal to `text`, or -1 */
static PyObject *find(PyObject *self, PyObject *text) {
    const kept *k = PyCapsule_GetPointer(self, KEPT);
    Py_ssize_t len = 0;
    const char *utf8 = PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, &len) : NULL;
    if (utf8) return PyLong_FromLongLong(wm_index_lookup(&k->of.index, (const uint8_t *)utf8, (uint64_t)len));
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return NULL;
        PyErr_Clear(); /* a lone surrogate, which no file can hold */
    }
    return PyLong_FromLong(-1);
}
static PyMethodDef find_function = {"find", find, METH_O, "find(text)"};

static PyObject *finder(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    return function_over(&find_function, sizeof(wm_index), args, n_args);
}

/* row(i): dtype code, shape, number of elements (0 when it does not fit 64 bits) and begin of row i */
static PyObject *row(PyObject *self, PyObject *number) {
    const wm_columns *columns = &((const kept *)PyCapsule_GetPointer(self, KEPT))->of.columns;
    const long long i = PyLong_AsLongLong(number);
    if (i == -1 && PyErr_Occurred()) return NULL;
    const uint64_t dims_cap = columns->dims_cap;
    if (i < 0 || (uint64_t)i >= columns->cap || columns->dim_bounds[i] > columns->dim_bounds[i + 1] ||
        columns->dim_bounds[i + 1] > dims_cap) {
        PyErr_Format(PyExc_IndexError, "no row %lld", i);
        return NULL;
    }
    const uint32_t first = columns->dim_bounds[i], last = columns->dim_bounds[i + 1];
    PyObject *shape = PyTuple_New((Py_ssize_t)(last - first)), *result = PyTuple_New(4);
    uint64_t elements = 1;
    int failed = !shape || !result;
    for (uint32_t d = first; !failed && d < last; d++) {
        const uint64_t dim = columns->dims[d];
        PyObject *size = PyLong_FromUnsignedLongLong(dim);
        elements = dim && elements > UINT64_MAX / dim ? 0 : elements * dim;
        failed = !size || PyTuple_SetItem(shape, (Py_ssize_t)(d - first), size);
    }
    PyObject *code = failed ? NULL : PyLong_FromLong(columns->dtype[i]);
    PyObject *count = code ? PyLong_FromUnsignedLongLong(elements) : NULL;
    PyObject *begin = count ? PyLong_FromUnsignedLongLong(columns->begin[i]) : NULL;
    if (!begin) {
        Py_XDECREF(count);
        Py_XDECREF(code);
        Py_XDECREF(shape);
        Py_XDECREF(result);
        return NULL;
    }
    PyTuple_SetItem(result, 0, code); /* takes the references; it cannot fail here */
    PyTuple_SetItem(result, 1, shape);
    PyTuple_SetItem(result, 2, count);
    PyTuple_SetItem(result, 3, begin);
    return result;
}
static PyMethodDef row_function = {"row", row, METH_O, "row(i)"};

static PyObject *row_reader(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    return function_over(&row_function, sizeof(wm_columns), args, n_args);
}

static PyMethodDef functions[] = {
    {"fstat", file_state, METH_VARARGS, "fstat(fd)"},
    {"finder", WM_FUNCTION(finder), METH_FASTCALL, "finder(address of a wm_index, owner): a function of a text"},
    {"row_reader", WM_FUNCTION(row_reader), METH_FASTCALL, "row_reader(address of a wm_columns, owner): a function of a row"},
    {NULL, NULL, 0, NULL},
};

int wm_python_lookups(void) {
    PyGILState_STATE held = PyGILState_Ensure();
    state_type = (PyTypeObject *)PyType_FromSpec(&state_spec);
    if (!state_type) PyErr_Clear();
    const int failed = !state_type || add_functions(functions) ? -1 : 0;
    PyGILState_Release(held);
    return failed;
}
