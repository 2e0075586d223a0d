/* The headers of the arrays of an .npz archive, in the form that numpy writes:
 *
 *     "\x93NUMPY" | 1, 0 | u16 length | {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } | spaces | newline
 *
 * A header is a literal of Python, so other texts say the same, and there are other types. Only this exact form is read here, which
 * nearly all members of an archive have; the caller reads the others.
 */
#include "core/internal.h"

enum { PREFIX = 10 };

typedef struct {
    const uint8_t *at, *end;
} text;

typedef struct {
    uint64_t kind, start, nbytes, ndim, dims[WM_NPY_NDIM]; /* nbytes: of the data */
    int fortran;
} header;

static int skip(text *t, const char *expected) {
    const size_t n = strlen(expected);
    if ((size_t)(t->end - t->at) < n || memcmp(t->at, expected, n)) return 0;
    t->at += n;
    return 1;
}

/* Reads a whole number of at most 18 digits, without zeros before it. */
static int read_number(text *t, uint64_t *number) {
    const uint8_t *const begin = t->at;
    for (*number = 0; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++) {
        if (t->at - begin == 18) return 0;
        *number = 10 * *number + (uint64_t)(*t->at - '0');
    }
    return t->at != begin && (*begin != '0' || t->at - begin == 1);
}

/* Reads a type such as <f4: its text becomes the number of its bytes, the first one lowest. */
static int read_kind(text *t, uint64_t *kind, uint64_t *itemsize) {
    const uint8_t *const begin = t->at;
    if (t->end - t->at < 3 || !memchr("<>|", *t->at, 3) || !memchr("biufc", t->at[1], 5)) return 0;
    t->at += 2;
    if (!read_number(t, itemsize) || *itemsize == 0 || *itemsize > 16) return 0;
    *kind = 0;
    memcpy(kind, begin, (size_t)(t->at - begin));
    return 1;
}

/* Reads a tuple of numbers, to its closing bracket; the shape times `bytes` is the size of the data. */
static int read_shape(text *t, header *h, uint64_t bytes) {
    uint64_t product = bytes; /* numpy multiplies the other dimensions of an empty array too */
    h->nbytes = bytes;
    for (h->ndim = 0; !skip(t, h->ndim == 1 ? ",)" : ")"); h->ndim++) { /* a tuple of one number ends with a comma */
        uint64_t dim;
        if (h->ndim == WM_NPY_NDIM || (h->ndim && !skip(t, ", ")) || !read_number(t, &dim)) return 0;
        if (dim && product > (uint64_t)INT64_MAX / dim) return 0;
        product *= dim ? dim : 1;
        h->nbytes *= dim;
        h->dims[h->ndim] = dim;
    }
    return 1;
}

/* Reads the header that begins a member; 0 when it is not of the form above. */
static int read_header(const uint8_t *data, uint64_t n, header *h) {
    uint64_t bytes;
    if (n < PREFIX || memcmp(data, "\x93NUMPY\1\0", 8)) return 0;
    const uint64_t length = load_le16(data + 8);
    if (length > n - PREFIX) return 0;
    text t = {data + PREFIX, data + PREFIX + length};
    if (!skip(&t, "{'descr': '") || !read_kind(&t, &h->kind, &bytes) || !skip(&t, "', 'fortran_order': ")) return 0;
    h->fortran = skip(&t, "True");
    if ((!h->fortran && !skip(&t, "False")) || !skip(&t, ", 'shape': (") || !read_shape(&t, h, bytes)) return 0;
    if (!skip(&t, ", }")) return 0;
    while (t.at < t.end && *t.at == ' ') t.at++;
    h->start = PREFIX + length;
    return skip(&t, "\n") && t.at == t.end;
}

/* The number of a kind in the list of kinds, to which a new one is added; ODD when there is no room. */
static uint8_t number_of(wm_npy *out, uint64_t kind) {
    for (uint64_t i = out->n_kinds; i > 0; i--)
        if (out->kinds[i - 1] == kind) return (uint8_t)(i - 1);
    if (out->n_kinds == WM_NPY_KINDS) return WM_NPY_ODD;
    out->kinds[out->n_kinds] = kind;
    return (uint8_t)out->n_kinds++;
}

void wm_npy_add(const wm_zip_entries *entries, uint64_t i, const uint8_t *data, uint64_t n, wm_npy *out) {
    wm_columns *c = out->columns;
    const uint8_t *const name = entries->names + entries->bounds[i];
    uint64_t len = entries->bounds[i + 1] - entries->bounds[i];
    const uint64_t begin = entries->data[i], size = entries->size[i];
    header h = {0};
    if (len >= 4 && memcmp(name + len - 4, ".npy", 4) == 0) len -= 4;
    memcpy(c->names + out->names_len, name, len);
    out->names_len += len;
    c->dtype[i] = WM_NPY_ODD;
    if (read_header(data, n, &h) && size - h.start == h.nbytes && h.ndim <= c->dims_cap - out->n_dims)
        c->dtype[i] = number_of(out, h.kind);
    if (c->dtype[i] == WM_NPY_ODD) h = (header){0};
    memcpy(c->dims + out->n_dims, h.dims, h.ndim * sizeof *h.dims);
    out->n_dims += h.ndim;
    out->fortran[i] = (uint8_t)h.fortran;
    c->begin[i] = begin + h.start;
    c->end[i] = begin + h.start + h.nbytes;
    c->bounds[i + 1] = (uint32_t)out->names_len;
    c->dim_bounds[i + 1] = (uint32_t)out->n_dims;
}
