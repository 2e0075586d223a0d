/* The interface of the C module, continued from scans.h, whose types it uses: archives, and the arrays and pickles in them. */

/* ------------------------------------------------------------------------------------------------- archives
 * Checks the `count` entries of a ZIP archive, whose central directory is central[0, len), against their own headers, and
 * turns them into columns; reads the headers of arrays too, unless `arrays` is NULL. Reads by `read` if it is not NULL, from the
 * descriptor fd or, with fd -1, from memory. The directory begins at `end` in the file. The names have `len` bytes of room, the
 * columns `count` entries, the bounds one more. Repeated names and overlapping entries are not checked. Returns 0, or -1 with
 * *fault filled.
 */
typedef struct {
    int32_t fd;
    const uint8_t *data; /* with fd -1: the file */
    uint64_t end;
    wm_read read;
    void *context;
} wm_zip_source;
typedef struct {
    uint64_t count;
    uint8_t *names; /* entry i: names[bounds[i], bounds[i+1]) */
    uint32_t *bounds;
    uint16_t *method; /* 0 stored, 8 deflated */
    uint8_t *later;   /* whether a data descriptor may follow */
    uint32_t *crc;
    uint64_t *stored, *size, *offset, *data; /* bytes in the file and when inflated; where its header and its bytes begin */
} wm_zip_entries;
/* Defects of a name: a zero byte; bytes beyond ASCII without the mark of UTF-8; another name in an extra field. */
enum { WM_ZIP_ENDED = 1, WM_ZIP_UNMARKED = 2, WM_ZIP_RENAMED = 3 };
/* Checks that entries lie one behind the other from byte 0 to `end`, where the directory begins: order[i] is the i-th of them
 * (NULL: entry i). A data descriptor of 12, 16, 20 or 24 bytes belongs to the entry before it. Returns 0, or -1 with *fault
 * filled. */
int wm_zip_order(const wm_zip_entries *entries, const uint64_t *order, uint64_t end, wm_fault *fault);

/* The headers of the members of an .npz archive. Row i of the columns:
 *   name         the entry's, without ".npy"
 *   dtype        the number of its type in `kinds`: the text of a type such as <f4, first byte lowest
 *   begin, end   the place of its data
 * and fortran[i] says whether its first dimension is the fastest. A member has the type WM_NPY_ODD, no dimensions, and its own
 * beginning as `begin` and `end`, if it is deflated, differs from what numpy writes, or has dimensions for which there is no
 * room. The columns have room for the names and rows of all entries. */
enum { WM_NPY_KINDS = 64, WM_NPY_ODD = 255, WM_NPY_NDIM = 32, WM_NPY_FIRST = 128 };
typedef struct {
    wm_columns *columns;
    uint8_t *fortran;
    uint64_t n_dims, names_len, n_kinds, kinds[64];
} wm_npy;
int wm_zip_scan(const wm_zip_source *source, const uint8_t *central, uint64_t len, const wm_zip_entries *out, wm_npy *arrays,
                wm_fault *fault);

/* ------------------------------------------------------------------------------------- pickles of PyTorch
 * The pickle program of a checkpoint: `len` bytes of the descriptor fd from `begin` on, read by pread as they are needed; or, with
 * fd -1, data[0, len).
 */
typedef struct {
    int32_t fd;
    const uint8_t *data;
    uint64_t begin, len;
    int lax; /* leave out objects other than tensors and values, instead of a fault */
} wm_pickle_source;
/* Runs a program: see pickle.c. `arena` has `words` words: 4 * len + len / 256 + 1024 suffice for the output of picklers. It need
 * not be cleared, and holds the result, for the functions below. Nothing outside the program and the arena is touched, and no
 * function named by the program is called. Returns 0, or -1 with *fault filled. */
typedef struct {
    uint64_t end;                          /* where the program ends */
    uint64_t root, storages;               /* where they are in the arena */
    uint64_t n_storages;                   /* mentions of storages, which are numbered from 0 */
    uint64_t n_tensors, n_dims, names_len; /* by wm_pickle_walk: the room for columns of tensors, */
    uint64_t n_values, value_names_len;    /* the room for columns of values, */
    uint64_t longest, n_strided;           /* the longest name, and the number of tensors that are not row-major */
    uint64_t n_retyped;                    /* tensors with numbers of another width than their storage's */
} wm_pickle;
int wm_pickle_run(const wm_pickle_source *source, uint64_t *arena, uint64_t words, wm_pickle *out, wm_fault *fault);
/* Columns of tensors, as a scan fills them. Tensors that are not row-major have WM_PICKLE_STRIDED added to their dtype, and strides
 * (in elements, one per dimension; NULL if all tensors are row-major). `storages` has the beginning of each storage. */
enum { WM_PICKLE_STRIDED = 128 };
typedef struct {
    wm_columns *columns;
    const uint64_t *storages;
    uint64_t *strides;
} wm_pickle_tensors;
/* The other values of the result: names as in columns, and for each its kind (a WM_PICKLE_ constant), its length, and its place or
 * the value itself. The parts of a value follow it as rows without names. */
typedef struct {
    uint64_t cap, names_cap;
    uint8_t *names;
    uint32_t *bounds;
    uint8_t *kind;
    uint32_t *length;
    uint64_t *at;
} wm_pickle_values;
enum {
    WM_PICKLE_NONE = 1,
    WM_PICKLE_BOOLEAN = 2,
    WM_PICKLE_INTEGER = 3, /* at: an int64 */
    WM_PICKLE_LONG = 4,    /* length bytes at `at`, little-endian, two's complement */
    WM_PICKLE_REAL = 5,    /* at: the bits of a double */
    WM_PICKLE_TEXT = 6,
    WM_PICKLE_BYTES = 7,
    WM_PICKLE_LATIN = 8, /* bytes as a text of the characters 0 to 255 */
    WM_PICKLE_DTYPE = 13,
    WM_PICKLE_DEVICE = 14,  /* length: of its name, plus 256 * (its number + 1) if it has one */
    WM_PICKLE_KIND = 17,    /* a dtype of numpy, as a text */
    WM_PICKLE_SCALAR = 18,  /* of numpy. Length: the number of parts that follow; its dtype and its bytes */
    WM_PICKLE_COMPLEX = 19, /* two parts */
    WM_PICKLE_PATH = 20,    /* at: 1 on Windows; length: the number of parts */
    WM_PICKLE_ARRAY = 21,   /* of numpy. Length: the number of parts: dtype, bytes, 1 for Fortran's order, dimensions */
    WM_PICKLE_ODD = 22      /* left out. at: a WM_PICKLE_ODD_ constant; UNKNOWN has two parts: module and name */
};
/* Kinds of objects that are neither tensors nor values */
enum {
    WM_PICKLE_ODD_UNKNOWN = 0,
    WM_PICKLE_ODD_CONJUGATE = 1,
    WM_PICKLE_ODD_NEGATIVE = 2,
    WM_PICKLE_ODD_STORAGE = 3,
    WM_PICKLE_ODD_CLASS = 4,
    WM_PICKLE_ODD_KEY = 5, /* value of a key that cannot be part of a name; it has the dictionary's name */
    WM_PICKLE_ODD_ARRAY = 6
};
/* Walks the result, and names every tensor and every other value by the keys and numbers on the way to it, joined by points.
 * wm_pickle_run has filled `out`. Only counts tensors and values if these are NULL; otherwise `path` has room for the longest
 * name. Accepts at most `max` tensors, and most_names bytes of names. Returns 0, or -1 with *fault filled. */
int wm_pickle_walk(const wm_pickle_source *source, const uint64_t *arena, uint64_t max, uint64_t most_names,
                   const wm_pickle_tensors *tensors, const wm_pickle_values *values, uint8_t *path, wm_pickle *out,
                   wm_fault *fault);
/* Lists up to `count` more storages: names[bounds[i], bounds[i+1]) is the prefix and the key of one, with room for WM_PICKLE_KEY
 * bytes of key; at[i] is the place of its key in the program, nbytes[i] its claimed bytes, item[i] the bytes
 * of an element, and type[i] the code of its type. *cursor is out->storages at first. Returns 0, or -1 with *fault filled. */
enum { WM_PICKLE_KEY = 255 };
typedef struct {
    const uint8_t *prefix;
    uint64_t prefix_len;
    uint8_t *names;
    uint32_t *bounds;
    uint64_t *at, *nbytes;
    uint8_t *item, *type;
} wm_pickle_storages;
int wm_pickle_list(const wm_pickle_source *source, const uint64_t *arena, uint64_t *cursor, uint64_t count,
                   const wm_pickle_storages *out, wm_fault *fault);
