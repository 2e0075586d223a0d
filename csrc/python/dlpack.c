/* Arrays for other libraries, by the protocol of DLPack: a struct that says where memory lies, in a capsule.
 *
 * The structs are those of dlpack.h, versions 0.x and 1.x: https://dmlc.github.io/dlpack/latest. A consumer takes one out of its
 * capsule, whose name it changes, and calls `deleter` when it is done, from any thread and perhaps without the lock of Python.
 */
#include "python/builtin.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    int32_t type, id;
} device;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} element;

typedef struct {
    void *data;
    device device;
    int32_t ndim;
    element dtype;
    int64_t *shape, *strides; /* in elements */
    uint64_t byte_offset;
} tensor;

/* Version 0, in a capsule called "dltensor". */
typedef struct legacy {
    tensor tensor;
    void *manager;
    void (*deleter)(struct legacy *);
} legacy;

/* Version 1, "dltensor_versioned". */
typedef struct versioned {
    struct {
        uint32_t major, minor;
    } version;
    void *manager;
    void (*deleter)(struct versioned *);
    uint64_t flags;
    tensor tensor;
} versioned;

typedef struct {
    union {
        legacy legacy;
        versioned versioned;
    } managed;
    PyObject *owner; /* keeps the memory */
    int64_t dims[];  /* shape, then strides */
} export;

enum { CPU = 1, MAJOR = 1, MINOR = 0, MAX_DIMS = 64 };
static const char *const NAMES[] = {"dltensor", "dltensor_versioned"};

static void release(export *e) {
    if (!Py_IsInitialized()) return; /* the process ends: the owner is gone, or stays */
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(e->owner);
    PyGILState_Release(state);
    free(e);
}

static void delete_legacy(legacy *managed) {
    if (managed) release(managed->manager);
}

static void delete_versioned(versioned *managed) {
    if (managed) release(managed->manager);
}

/* Ends a capsule: releases its struct if nobody took it out. */
static void capsule_gone(PyObject *capsule) {
    for (int i = 0; i < 2; i++) {
        if (PyCapsule_IsValid(capsule, NAMES[i])) release(PyCapsule_GetPointer(capsule, NAMES[i]));
    }
}

/* Reads `n` numbers of a tuple. 0, or -1 with an exception. */
static int take_dims(PyObject *tuple, Py_ssize_t n, int64_t *out) {
    for (Py_ssize_t i = 0; i < n; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (out[i] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

/* dlpack(owner, address, shape, strides, code, bits, flags): a capsule of version 1 with these flags, or of version 0 when they
 * are negative. Strides are in elements. */
static PyObject *dlpack(PyObject *module, PyObject *args) {
    PyObject *owner, *shape, *strides;
    unsigned long long address;
    unsigned char code, bits;
    long long flags;
    if (!PyArg_ParseTuple(args, "OKO!O!bbL", &owner, &address, &PyTuple_Type, &shape, &PyTuple_Type, &strides, &code, &bits,
                          &flags)) {
        return NULL;
    }
    const Py_ssize_t n = PyTuple_Size(shape);
    if (n > MAX_DIMS || PyTuple_Size(strides) != n) {
        PyErr_SetString(PyExc_ValueError, "dlpack() takes as many strides as dimensions, and at most 64");
        return NULL;
    }
    export *e = calloc(1, sizeof *e + (size_t)n * 2 * sizeof *e->dims);
    if (!e) return PyErr_NoMemory();
    if (take_dims(shape, n, e->dims) || take_dims(strides, n, e->dims + n)) {
        free(e);
        return NULL;
    }
    const int version = flags >= 0;
    tensor *t = version ? &e->managed.versioned.tensor : &e->managed.legacy.tensor;
    t->data = (void *)(uintptr_t)address;
    t->device.type = CPU;
    t->ndim = (int32_t)n;
    t->dtype = (element){code, bits, 1};
    t->shape = e->dims, t->strides = e->dims + n;
    if (version) {
        e->managed.versioned.version.major = MAJOR, e->managed.versioned.version.minor = MINOR;
        e->managed.versioned.flags = (uint64_t)flags;
        e->managed.versioned.manager = e, e->managed.versioned.deleter = delete_versioned;
    } else {
        e->managed.legacy.manager = e, e->managed.legacy.deleter = delete_legacy;
    }
    /* The union is first: its address is that of the struct in the capsule, and of `e`. */
    PyObject *capsule = PyCapsule_New(e, NAMES[version], capsule_gone);
    if (!capsule) {
        free(e);
        return NULL;
    }
    e->owner = Py_NewRef(owner);
    return capsule;
}

static PyMethodDef functions[] = {
    {"dlpack", dlpack, METH_VARARGS, "dlpack(owner, address, shape, strides, code, bits, flags)"},
    {NULL, NULL, 0, NULL},
};

int wm_python_dlpack(void) {
    PyGILState_STATE state = PyGILState_Ensure(); /* cffi let go of the lock */
    const int failed = add_functions(functions);
    PyGILState_Release(state);
    return failed;
}
