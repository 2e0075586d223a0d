/* The interface of the C module, continued from scans.h, whose types it uses: archives, and the arrays and pickles in them. */

/* ------------------------------------------------------------------------------------------------- archives
 * Checks the `count` entries of a ZIP archive, whose central directory is central[0, len), against their own headers, which are
 * read by `read` if it is not NULL, from the descriptor fd or, with fd -1, from memory; and turns them into columns. The
 * directory begins at `end` in the file. The names have `len` bytes of room, the columns `count` entries, the bounds one more.
 * Whether names repeat or entries overlap is not looked at. Returns 0, or -1 with *fault filled.
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
/* A name has a zero byte; is not ASCII, and not marked as UTF-8; or there is another one, in an extra field. */
enum { WM_ZIP_ENDED = 1, WM_ZIP_UNMARKED = 2, WM_ZIP_RENAMED = 3 };
int wm_zip_scan(const wm_zip_source *source, const uint8_t *central, uint64_t len, const wm_zip_entries *out, wm_fault *fault);
/* Checks that entries lie one behind the other from byte 0 to `end`, where the directory begins: order[i] is the i-th of them (NULL:
 * entry i). A data descriptor of 12, 16, 20 or 24 bytes belongs to the entry before it. Returns 0, or -1 with *fault filled. */
int wm_zip_order(const wm_zip_entries *entries, const uint64_t *order, uint64_t end, wm_fault *fault);

/* Reads the headers of the members of an .npz archive that are stored, and of the form that numpy writes: see npy.c. Member i is
 * called names[bounds[i], bounds[i+1]), without ".npy"; kind[i] is the number of its type in `kinds`, the text of a type such as <f4,
 * the first byte lowest; fortran[i] says whether its first dimension is the fastest; its dimensions are dims[dim_bounds[i],
 * dim_bounds[i+1]), and its data lies from begin[i] to end[i]. Of a member that was not read, kind[i] is WM_NPY_ODD, it has no
 * dimensions, and begin[i] and end[i] are where it begins. How much the columns hold: the bytes of the entries' names, count + 1
 * bounds and dim_bounds, dims_cap dims, count of the others. Returns 0, or -1 with *fault filled. */
enum { WM_NPY_KINDS = 64, WM_NPY_ODD = 255, WM_NPY_NDIM = 32 };
typedef struct {
    uint64_t dims_cap;
    uint8_t *names;
    uint32_t *bounds;
    uint8_t *kind, *fortran;
    uint64_t *dims;
    uint32_t *dim_bounds;
    uint64_t *begin, *end;
    uint64_t n_dims, names_len, n_kinds, kinds[64];
} wm_npy;
int wm_npy_scan(const wm_zip_source *source, const wm_zip_entries *entries, wm_npy *out, wm_fault *fault);

/* ------------------------------------------------------------------------------------- pickles of PyTorch
 * The pickle program of a checkpoint: `len` bytes of the descriptor fd from `begin` on, read by pread as they are needed; or, with
 * fd -1, data[0, len).
 */
typedef struct {
    int32_t fd;
    const uint8_t *data;
    uint64_t begin, len;
    int lax; /* what is no tensor or value is left out, and no fault */
} wm_pickle_source;
/* Runs a program: see pickle.c. `arena` has `words` words, 4 * len + len / 256 + 1024 of which are enough for what picklers write;
 * it need not be cleared, and holds the result, for the functions below. Nothing outside the program and the arena is touched, and
 * nothing is called that the program names. Returns 0, or -1 with *fault filled. */
typedef struct {
    uint64_t end;                          /* where the program ends */
    uint64_t root, storages;               /* where they are in the arena */
    uint64_t n_storages;                   /* how often a storage was mentioned: 0 to n_storages - 1 are their numbers */
    uint64_t n_tensors, n_dims, names_len; /* by wm_pickle_walk: what the columns of tensors have to hold, */
    uint64_t n_values, value_names_len;    /* what those of values have to, */
    uint64_t longest, n_strided;           /* the longest name, and how many tensors are not row-major */
    uint64_t n_retyped;                    /* how many are numbers of another width than those of their storage */
} wm_pickle;
int wm_pickle_run(const wm_pickle_source *source, uint64_t *arena, uint64_t words, wm_pickle *out, wm_fault *fault);
/* Columns of tensors, as a scan fills them, and the strides of those that are not row-major (in elements, as many as dimensions;
 * NULL where all are), to whose dtype WM_PICKLE_STRIDED is added. `storages` says where each storage begins. */
enum { WM_PICKLE_STRIDED = 128 };
typedef struct {
    wm_columns *columns;
    const uint64_t *storages;
    uint64_t *strides;
} wm_pickle_tensors;
/* What the result holds besides: names as in columns, and of each its kind, as a WM_PICKLE_ constant, its length and where it is,
 * or itself. The rows behind one of several parts are these parts, without names. */
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
    WM_PICKLE_DEVICE = 14,  /* length: of its name, and 256 times one more than its number, 0 for none */
    WM_PICKLE_KIND = 17,    /* a dtype of numpy, as a text */
    WM_PICKLE_SCALAR = 18,  /* of numpy. Length: the number of parts that follow; its dtype and its bytes */
    WM_PICKLE_COMPLEX = 19, /* two parts */
    WM_PICKLE_PATH = 20,    /* at: 1 on Windows. As many parts as length says */
    WM_PICKLE_ARRAY = 21, /* of numpy. As many parts as length says: its dtype, its bytes, 1 for Fortran's order, dimensions */
    WM_PICKLE_ODD = 22    /* what is left out. at: a WM_PICKLE_ODD_ constant; where it is UNKNOWN, two parts: module and name */
};
/* What is no tensor or value, and the name that a program gives to what it is. */
enum {
    WM_PICKLE_ODD_UNKNOWN = 0,
    WM_PICKLE_ODD_CONJUGATE = 1,
    WM_PICKLE_ODD_NEGATIVE = 2,
    WM_PICKLE_ODD_STORAGE = 3,
    WM_PICKLE_ODD_CLASS = 4,
    WM_PICKLE_ODD_KEY = 5, /* the value of a key that makes no name; it has the name of the dictionary */
    WM_PICKLE_ODD_ARRAY = 6
};
/* Walks the result, and names every tensor and every other value by the keys and numbers that lead to it, with points between.
 * `out` is what wm_pickle_run filled. Without tensors and values (NULL) they are counted; with them `path` has room for the longest
 * name. At most `most` tensors, and most_names bytes of names. Returns 0, or -1 with *fault filled. */
int wm_pickle_walk(const wm_pickle_source *source, const uint64_t *arena, uint64_t most, uint64_t most_names,
                   const wm_pickle_tensors *tensors, const wm_pickle_values *values, uint8_t *path, wm_pickle *out,
                   wm_fault *fault);
/* Lists the next `count` storages, which has to be no more than are left: names[bounds[i], bounds[i+1]) is the prefix and the key
 * of one, with room for WM_PICKLE_KEY bytes of key; at[i] is where its key lies in the program, nbytes[i] the bytes that it claims
 * item[i] those of an element, and type[i] the code of its type. *cursor is out->storages at first. Returns 0, or -1 with *fault filled. */
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
