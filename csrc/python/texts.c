/* pack_texts: many words as UTF-8, one after another. Words lie scattered in memory, so each is prefetched. */
#include "builtin.h"

enum { WORDS_AHEAD = 8 };

/* The UTF-8 of a str, a lone surrogate encoded like a character. The caller releases *owner, which holds it unless NULL. NULL
 * with an exception when `text` is not a str. */
static const char *utf8_of(PyObject *text, Py_ssize_t *len, PyObject **owner) {
    *owner = NULL;
    if (!PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "%R is not a str", text);
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

/* Writes the words of a tuple to `blob` (unless NULL), each between two brackets, and where they begin and end to `bounds`.
 * Returns the bytes of all, or -1 with an exception. */
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

/* pack_texts(words, before, after, bounds): see native/checksums.py. */
static PyObject *pack_texts(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    enum { WORDS, BEFORE, AFTER, BOUNDS, N_ARGS };
    Py_buffer view;
    PyObject *result = NULL, *words;
    if (n_args != N_ARGS) {
        PyErr_SetString(PyExc_TypeError, "pack_texts() takes 4 arguments");
        return NULL;
    }
    const char *before = PyUnicode_AsUTF8AndSize(args[BEFORE], NULL), *after = PyUnicode_AsUTF8AndSize(args[AFTER], NULL);
    if (!before || !after || PyObject_GetBuffer(args[BOUNDS], &view, PyBUF_WRITABLE)) return NULL;
    if ((words = PySequence_Tuple(args[WORDS]))) { /* a tuple cannot change meanwhile */
        uint32_t *bounds = view.buf;
        if ((uintptr_t)view.buf % sizeof *bounds || (view.len / 4 - 1) != PyTuple_Size(words)) {
            PyErr_SetString(PyExc_ValueError, "bounds are aligned, and one more than words");
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

static PyMethodDef functions[] = {
    {"pack_texts", WM_FUNCTION(pack_texts), METH_FASTCALL, "pack_texts(words, before, after, bounds)"},
    {NULL, NULL, 0, NULL},
};

int wm_python_texts(void) {
    PyGILState_STATE state = PyGILState_Ensure();
    const int failed = add_functions(functions);
    PyGILState_Release(state);
    return failed;
}
