/* Python objects that own resources of the system: descriptors, memory, files that are being written.
 *
 * A signal handler may raise an exception between any two steps of a Python program, and at shutdown the interpreter clears
 * its modules in no fixed order. So a resource always has an owner: the call that obtains it makes the owner, and the owner
 * releases it, both in C, where no handler runs and no module is needed.
 */
#if !defined(_WIN32) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* unlinkat */
#endif
#include "python/builtin.h"

#include <structmember.h>

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#if defined(_WIN32)
#include <io.h>
#include <process.h>
#define close _close
#define getpid _getpid
#else
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
#endif

/* args[0](*args[1:]), or args[0](first, *args[1:]) unless `first` is NULL. */
static PyObject *call(PyObject *first, PyObject *const *args, Py_ssize_t n) {
    const Py_ssize_t before = first ? 0 : 1;
    PyObject *arguments = PyTuple_New(n - before), *result = NULL;
    if (arguments && first) PyTuple_SetItem(arguments, 0, Py_NewRef(first));
    for (Py_ssize_t i = 1; arguments && i < n; i++) PyTuple_SetItem(arguments, i - before, Py_NewRef(args[i]));
    if (arguments) result = PyObject_Call(args[0], arguments, NULL);
    Py_XDECREF(arguments);
    return result;
}

static int too_few(const char *function, Py_ssize_t n, Py_ssize_t required) {
    if (n >= required) return 0;
    PyErr_Format(PyExc_TypeError, "%s() takes at least %zd arguments", function, required);
    return 1;
}

static void free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* --------------------------------------------------------------------------------------------- descriptors
 * Descriptor: an int, closed when the last reference to it goes.
 */
static PyTypeObject *descriptor_type;

static void close_number(PyObject *number) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    const long fd = PyLong_AsLong(number);
    PyErr_Clear();
    if (fd >= 0 && fd <= INT_MAX) {
        Py_BEGIN_ALLOW_THREADS(void) close((int)fd); /* an error loses nothing: the file was only read */
        Py_END_ALLOW_THREADS
    }
    PyErr_Restore(type, value, trace);
}

static PyType_Slot descriptor_slots[] = {{Py_tp_finalize, close_number}, {0, NULL}};
static PyType_Spec descriptor_spec = {"weightmap._kernels.Descriptor", 0, 0, Py_TPFLAGS_DEFAULT, descriptor_slots};

/* own(function, *args): a Descriptor of the number that function(*args) returns. */
static PyObject *own(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    if (too_few("own", n_args, 1)) return NULL;
    PyObject *number = call(NULL, args, n_args);
    if (!number) return NULL;
    PyObject *owner = PyObject_CallFunctionObjArgs((PyObject *)descriptor_type, number, NULL);
    if (!owner && PyLong_Check(number)) close_number(number);
    Py_DECREF(number);
    return owner;
}

/* -------------------------------------------------------------------------------------------------- memory
 * Memory: a buffer over a mapped file or new memory, released with the last view of it.
 */
typedef struct {
    PyObject_HEAD PyObject *weak; /* weak references, for plans/pages.py */
    uint8_t *bytes;
    uint64_t size;
    int readonly, mapped;
} memory_object;
static PyTypeObject *memory_type;

static PyObject *memory_of(uint8_t *bytes, uint64_t size, int readonly, int mapped) {
    memory_object *memory = (memory_object *)PyType_GenericAlloc(memory_type, 0);
    if (memory) {
        memory->bytes = bytes, memory->size = size, memory->readonly = readonly, memory->mapped = mapped;
    } else if (mapped) {
        wm_unmap(bytes, size);
    } else {
        wm_memory_free(bytes);
    }
    return (PyObject *)memory;
}

static void memory_dealloc(PyObject *self) {
    const memory_object *memory = (memory_object *)self;
    if (memory->weak) PyObject_ClearWeakRefs(self);
    Py_BEGIN_ALLOW_THREADS if (memory->mapped) wm_unmap(memory->bytes, memory->size);
    else wm_memory_free(memory->bytes);
    Py_END_ALLOW_THREADS free_object(self);
}

static int memory_buffer(PyObject *self, Py_buffer *view, int flags) {
    const memory_object *memory = (memory_object *)self;
    return PyBuffer_FillInfo(view, self, memory->bytes, (Py_ssize_t)memory->size, memory->readonly, flags);
}

static PyMemberDef memory_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(memory_object, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot memory_slots[] = {
    {Py_tp_dealloc, memory_dealloc}, {Py_bf_getbuffer, memory_buffer}, {Py_tp_members, memory_members}, {0, NULL}};
static PyType_Spec memory_spec = {"weightmap._kernels.Memory", sizeof(memory_object), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, memory_slots};

/* map_file(fd, size, kind): see wm_map in kernels.h. */
static PyObject *map_file(PyObject *module, PyObject *args) {
    int fd, kind, error;
    unsigned long long size;
    if (!PyArg_ParseTuple(args, "iKi", &fd, &size, &kind)) return NULL;
    uint8_t *map;
    Py_BEGIN_ALLOW_THREADS map = size > PY_SSIZE_T_MAX ? (error = EFBIG, NULL) : wm_map(fd, size, kind, &error);
    Py_END_ALLOW_THREADS if (map) return memory_of(map, size, !(kind & 1), 1);
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* new_memory(size): see wm_memory_new in kernels.h; or None. */
static PyObject *new_memory(PyObject *module, PyObject *args) {
    unsigned long long size;
    if (!PyArg_ParseTuple(args, "K", &size)) return NULL;
    uint8_t *bytes;
    Py_BEGIN_ALLOW_THREADS bytes = size > PY_SSIZE_T_MAX ? NULL : wm_memory_new(size);
    Py_END_ALLOW_THREADS if (bytes) return memory_of(bytes, size, 0, 0);
    Py_RETURN_NONE;
}

/* --------------------------------------------------------------------------------------- temporary files
 * Temporary: a file that is being written. It owns a descriptor and may own a name in a directory. `with_temporary` closes and
 * removes what it owns at the end. If the process ends before that, while a daemon thread writes, the name is removed too;
 * a forked child leaves it alone.
 */
#if defined(_WIN32)
typedef wchar_t character;
#define AT_FDCWD -1
#else
typedef char character;
#endif
typedef struct temporary {
    PyObject_HEAD struct temporary *next; /* the next file with a name */
    character *name;
    PyObject *folder; /* the descriptor of the directory of the name, or NULL */
    int folder_fd, fd, owner;
} temporary;
static PyTypeObject *temporary_type;

static void remove_name(const temporary *t) {
    if (!t->name || t->owner != (int)getpid()) return;
#if defined(_WIN32)
    (void)_wunlink(t->name);
#else
    (void)unlinkat(t->folder_fd, t->name, 0);
#endif
}

/* The files with a name. Builds without the GIL need the mutex. */
static temporary *named;
#if defined(_WIN32)
static int lock_named(int wait) { return wait >= 0; }
static void unlock_named(void) {}
#else
static pthread_mutex_t named_mutex = PTHREAD_MUTEX_INITIALIZER;
static int lock_named(int wait) { return (wait ? pthread_mutex_lock : pthread_mutex_trylock)(&named_mutex) == 0; }
static void unlock_named(void) { pthread_mutex_unlock(&named_mutex); }
#endif

static void remove_named(void) {
    if (!lock_named(0)) return;
    for (const temporary *t = named; t; t = t->next) remove_name(t);
    unlock_named();
}

static void take_name(temporary *t, character *name, PyObject *folder) {
    t->name = name;
    t->folder = folder == Py_None ? NULL : Py_NewRef(folder);
    t->folder_fd = t->folder ? (int)PyLong_AsLong(folder) : AT_FDCWD;
    t->owner = (int)getpid();
    lock_named(1);
    t->next = named;
    named = t;
    unlock_named();
}

static void drop_name(temporary *t) {
    if (!t->name) return;
    lock_named(1);
    temporary **place = &named;
    while (*place != t) place = &(*place)->next;
    *place = t->next;
    unlock_named();
    PyMem_Free(t->name);
    t->name = NULL;
    Py_CLEAR(t->folder);
}

/* Closes the descriptor and removes the name, whatever errors occur; keeps the exception under way. */
static void dispose(temporary *t) {
    const int fd = t->fd;
    t->fd = -1;
    Py_BEGIN_ALLOW_THREADS if (fd >= 0)(void) close(fd);
    remove_name(t);
    Py_END_ALLOW_THREADS drop_name(t);
}

static void temporary_dealloc(PyObject *self) {
    dispose((temporary *)self);
    free_object(self);
}

/* A copy of a path in the encoding of the system, or NULL with an exception. */
static character *copy_name(PyObject *path) {
#if defined(_WIN32)
    return PyUnicode_AsWideCharString(path, NULL);
#else
    PyObject *bytes;
    if (!PyUnicode_FSConverter(path, &bytes)) return NULL;
    const size_t size = (size_t)PyBytes_Size(bytes) + 1;
    char *name = PyMem_Malloc(size);
    if (name)
        memcpy(name, PyBytes_AsString(bytes), size);
    else
        PyErr_NoMemory();
    Py_DECREF(bytes);
    return name;
#endif
}

/* create(name, folder, function, *args): takes over the file that function(*args) makes: the descriptor, if it returns one, and
 * the name, unless None. `folder` is the descriptor of the directory of the name, or None when the name is a path. */
static PyObject *temporary_create(PyObject *self, PyObject *const *args, Py_ssize_t n_args) {
    temporary *t = (temporary *)self;
    character *name = NULL;
    enum { NAME, FOLDER, FUNCTION, REQUIRED };
    if (too_few("create", n_args, REQUIRED)) return NULL;
    if (t->name || (args[FOLDER] != Py_None && !PyLong_Check(args[FOLDER]))) {
        PyErr_SetString(PyExc_ValueError, t->name ? "it has a name already" : "folder is not a descriptor");
        return NULL;
    }
    if (args[NAME] != Py_None && !(name = copy_name(args[NAME]))) return NULL;
    PyObject *result = call(NULL, args + FUNCTION, n_args - FUNCTION);
    if (!result) {
        PyMem_Free(name);
        return NULL;
    }
    if (PyLong_Check(result)) {
        if (t->fd >= 0) (void)close(t->fd);
        t->fd = (int)PyLong_AsLong(result); /* no system has larger ones */
    }
    if (name) take_name(t, name, args[FOLDER]);
    return result;
}

/* give(function, *args): after function(*args), a rename, the name is no longer ours. */
static PyObject *temporary_give(PyObject *self, PyObject *const *args, Py_ssize_t n_args) {
    if (too_few("give", n_args, 1)) return NULL;
    PyObject *result = call(NULL, args, n_args);
    if (result) drop_name((temporary *)self);
    return result;
}

static PyObject *temporary_fileno(PyObject *self, PyObject *unused) { return PyLong_FromLong(((temporary *)self)->fd); }

static PyObject *temporary_close(PyObject *self, PyObject *unused) {
    temporary *t = (temporary *)self;
    const int fd = t->fd;
    int failed = 0;
    t->fd = -1;
    if (fd >= 0) {
        Py_BEGIN_ALLOW_THREADS failed = close(fd);
        Py_END_ALLOW_THREADS
    }
    if (failed) return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static PyMethodDef temporary_methods[] = {
    {"create", WM_FUNCTION(temporary_create), METH_FASTCALL, "create(name, folder, function, *args)"},
    {"give", WM_FUNCTION(temporary_give), METH_FASTCALL, "give(function, *args)"},
    {"fileno", temporary_fileno, METH_NOARGS, "fileno()"},
    {"close", temporary_close, METH_NOARGS, "close()"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot temporary_slots[] = {{Py_tp_dealloc, temporary_dealloc}, {Py_tp_methods, temporary_methods}, {0, NULL}};
static PyType_Spec temporary_spec = {"weightmap._kernels.Temporary", sizeof(temporary), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, temporary_slots};

/* with_temporary(function, *args): function(temporary, *args); then removes the file unless it was given away. */
static PyObject *with_temporary(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    if (too_few("with_temporary", n_args, 1)) return NULL;
    temporary *t = (temporary *)PyType_GenericAlloc(temporary_type, 0);
    if (!t) return NULL;
    t->fd = -1;
    PyObject *result = call((PyObject *)t, args, n_args);
    dispose(t);
    Py_DECREF((PyObject *)t);
    return result;
}

/* ---------------------------------------------------------------------------------------- the environment */
/* is_set(name): whether the environment has a variable of this name. `os.environ` keeps the environment of C up to date, and
 * takes 1 to 4 microseconds to say that it lacks a name. The caller holds the lock, and so does whoever sets a variable. */
static PyObject *is_set(PyObject *module, PyObject *name) {
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    return text ? PyBool_FromLong(getenv(text) != NULL) : NULL;
}

/* ------------------------------------------------------------------------------------------- into the module */
static PyMethodDef functions[] = {
    {"own", WM_FUNCTION(own), METH_FASTCALL, "own(function, *args)"},
    {"map_file", map_file, METH_VARARGS, "map_file(fd, size, kind)"},
    {"new_memory", new_memory, METH_VARARGS, "new_memory(size)"},
    {"with_temporary", WM_FUNCTION(with_temporary), METH_FASTCALL, "with_temporary(function, *args)"},
    {"is_set", is_set, METH_O, "is_set(name)"},
    {NULL, NULL, 0, NULL},
};

int wm_python_owners(void) {
    PyGILState_STATE state = PyGILState_Ensure(); /* cffi let go of the lock */
    PyObject *module = PyImport_ImportModule("weightmap._kernels"), *bases = PyTuple_Pack(1, (PyObject *)&PyLong_Type);
    if (bases) descriptor_type = (PyTypeObject *)PyType_FromSpecWithBases(&descriptor_spec, bases);
    memory_type = (PyTypeObject *)PyType_FromSpec(&memory_spec);
    temporary_type = (PyTypeObject *)PyType_FromSpec(&temporary_spec);
    const int failed = !module || !descriptor_type || !memory_type || !temporary_type ||
                       PyObject_SetAttrString(module, "Descriptor", (PyObject *)descriptor_type) || add_functions(functions) ||
                       atexit(remove_named);
    if (failed) PyErr_Clear();
    Py_XDECREF(module);
    Py_XDECREF(bases);
    PyGILState_Release(state);
    return failed ? -1 : 0;
}
