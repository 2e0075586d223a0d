/* fstat, finder and placer: the state of one file, and functions for one hash index and for one table. A look-up calls all
 * three, and through cffi these calls would be a third of its time. They read memory that this process built, so they keep the
 * lock.
 */
#include "python/builtin.h"

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
    int same;
    Py_BEGIN_ALLOW_THREADS same = wm_unchanged(&((const state *)self)->file);
    Py_END_ALLOW_THREADS return PyLong_FromLong(same);
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
    state *object = (state *)PyType_GenericAlloc(state_type, 0);
    if (object) object->file = file;
    return (PyObject *)object;
}

/* The state of such a function: a copy of the struct, and the Python objects that own its memory. */
typedef struct {
    PyObject *keep;
    union {
        wm_index index;
        wm_table table;
    } of;
} binding;
static const char BINDING[] = "weightmap._kernels.kept";
static PyObject *loaded_name;

static void release(PyObject *capsule) {
    binding *k = PyCapsule_GetPointer(capsule, BINDING);
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
    binding *k = malloc(sizeof *k);
    PyObject *capsule = k ? PyCapsule_New(k, BINDING, release) : PyErr_NoMemory();
    if (!capsule) {
        free(k);
        return NULL;
    }
    k->keep = Py_NewRef(args[1]);
    memcpy(&k->of, address, size);
    PyObject *object = PyCFunction_NewEx(function, capsule, NULL);
    Py_DECREF(capsule);
    return object;
}

/* find(text): the number of the string equal to `text`, or -1 */
static PyObject *find(PyObject *self, PyObject *text) {
    const binding *k = PyCapsule_GetPointer(self, BINDING);
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

/* place(i): see Table.place in table/table.py; None for a row that Python must look at. The first of the objects kept are the
 * dtypes by code. */
static PyObject *place(PyObject *self, PyObject *number) {
    const binding *k = PyCapsule_GetPointer(self, BINDING);
    const wm_table *table = &k->of.table;
    wm_row row;
    if (wm_row_check(table, PyLong_AsUnsignedLongLong(number), &row, NULL)) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    PyObject *dtype = PyTuple_GetItem(PyTuple_GetItem(k->keep, 0), row.dtype), *loaded, *shape, *result = NULL;
    if (!dtype || !(loaded = PyObject_GetAttr(dtype, loaded_name))) return NULL;
    const int plain = loaded != Py_None && table->rules->bits[row.dtype] != WM_BITS_DECLARED;
    Py_DECREF(loaded);
    if (!plain) Py_RETURN_NONE;
    if (!(shape = PyTuple_New((Py_ssize_t)row.ndim))) return NULL;
    for (uint32_t d = 0; d < row.ndim; d++) {
        PyObject *dim = PyLong_FromUnsignedLongLong(row.dims[d]);
        if (!dim || PyTuple_SetItem(shape, (Py_ssize_t)d, dim)) goto done;
    }
    result = Py_BuildValue("OOKKO", dtype, shape, (unsigned long long)(table->base + row.offset),
                           (unsigned long long)row.nbytes, Py_None);
done:
    Py_DECREF(shape);
    return result;
}
static PyMethodDef place_function = {"place", place, METH_O, "place(i)"};

static PyObject *placer(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    return function_over(&place_function, sizeof(wm_table), args, n_args);
}

static PyMethodDef functions[] = {
    {"fstat", file_state, METH_VARARGS, "fstat(fd)"},
    {"finder", WM_FUNCTION(finder), METH_FASTCALL, "finder(address of a wm_index, owner): a function of a text"},
    {"placer", WM_FUNCTION(placer), METH_FASTCALL, "placer(address of a wm_table, owner): a function of a row"},
    {NULL, NULL, 0, NULL},
};

int wm_python_lookups(void) {
    PyGILState_STATE gil = PyGILState_Ensure();
    state_type = (PyTypeObject *)PyType_FromSpec(&state_spec);
    if (!state_type) PyErr_Clear();
    loaded_name = PyUnicode_InternFromString("loaded");
    const int failed = !state_type || !loaded_name || add_functions(functions) ? -1 : 0;
    PyGILState_Release(gil);
    return failed;
}
