/* The interface of the C module, continued from kernels.h, whose rules hold here too: scans of the indexes of files, and the
 * tables of tensors that they fill.
 */
#ifndef WEIGHTMAP_SCANS_H
#define WEIGHTMAP_SCANS_H
#include <stdint.h>
#endif

/* ------------------------------------------------------------------------------------------------ scan faults
 * The fault that a scan of an index found, and its place. Python words the message.
 */
typedef struct {
    int32_t code;      /* one of the WM_FAULT_ constants; 0 none */
    uint64_t row;      /* number of the tensor or entry, where there is one */
    uint64_t at;       /* byte position within the scanned bytes, where there is one */
    uint64_t actual;   /* the value found */
    uint64_t expected; /* the value or limit that was expected, where there is one */
} wm_fault;

enum {
    WM_FAULT_NONE = 0,
    /* JSON, in the strict sense of RFC 8259 */
    WM_FAULT_JSON_SYNTAX = 1,    /* at: where */
    WM_FAULT_JSON_UTF8 = 2,      /* at: opening quote of the string */
    WM_FAULT_JSON_SURROGATE = 3, /* a lone \ud800-\udfff escape; at: the string */
    WM_FAULT_JSON_KEY = 4,       /* repeated key within a tensor's object; row, at: the key */
    WM_FAULT_JSON_MISSING = 5,   /* a tensor without dtype, shape or data_offsets; row, at: end of its object */
    WM_FAULT_JSON_NUMBER = 6,    /* not a non-negative integer below 2^64; row, at */
    WM_FAULT_JSON_TRAILING = 7,  /* anything but spaces after the closing brace; at */
    WM_FAULT_JSON_DTYPE = 8,     /* a dtype that is not in the list; row, at: the string */
    WM_FAULT_JSON_METADATA = 9,  /* __metadata__ repeated, neither object nor null, or any value nested deeper than 64; at */
    WM_FAULT_CAPACITY = 10,      /* more tensors (row) or dimensions than the arrays hold */
    WM_FAULT_DIMS = 11,          /* more than 255 dimensions; row, at */
    /* tables of tensors */
    WM_FAULT_TABLE_TRUNCATED = 31,  /* row, actual: end, expected: bytes of the file from where the data begins */
    WM_FAULT_TABLE_DTYPE = 32,      /* row, actual: the code */
    WM_FAULT_TABLE_NDIM = 33,       /* row, actual */
    WM_FAULT_TABLE_UNUSED_DIM = 34, /* row, actual: a dimension past ndim that is not 0 */
    WM_FAULT_TABLE_OVERFLOW = 35,   /* row: product of the shape, or its bytes, exceeds 2^63 - 1 */
    WM_FAULT_TABLE_RANGE = 36,      /* row, actual: end, expected: size of the data section */
    WM_FAULT_TABLE_ALIGN = 37,      /* row, actual: offset, expected: alignment */
    WM_FAULT_TABLE_OVERLAP = 38,    /* row, actual: offset, expected: end of the tensor before it */
    WM_FAULT_TABLE_HOLE = 39,       /* row (n: after the last), actual: offset, expected: where the last one ended */
    WM_FAULT_TABLE_SIZE = 40,       /* row, actual: declared bytes, expected: bytes by shape and dtype */
    WM_FAULT_NAME_RANGE = 41,       /* row: the name runs past its section; at */
    WM_FAULT_NAME_UTF8 = 42,        /* row */
    WM_FAULT_NAME_HASH = 43,        /* row, actual: stored, expected: computed */
    WM_FAULT_NAME_DUPLICATE = 44,   /* row, expected: the earlier row */
    WM_FAULT_NAME_FLOOD = 45,       /* hashes collide too much to tell duplicates quickly */
    WM_FAULT_MEMORY = 46,           /* no memory for the scan's own table */
    WM_FAULT_COLUMN = 47,           /* a column is shorter than the table: an error of the caller */
    /* headers in the encoding of bincode; at: where the integer, string, tag or count begins */
    WM_FAULT_BIN_END = 48,     /* the header ends within an integer; actual: bytes left, expected: bytes needed */
    WM_FAULT_BIN_INTEGER = 49, /* actual: a first byte of 254 or 255 */
    WM_FAULT_BIN_OPTION = 50,  /* actual: a tag that is neither 0 nor 1 */
    WM_FAULT_BIN_COUNT = 51,   /* actual: a count or length, expected: the most that the bytes left could hold */
    WM_FAULT_BIN_UTF8 = 52,    /* a string of the metadata */
    WM_FAULT_BIN_DTYPE = 53,   /* row, actual: the code, expected: number of codes */
    WM_FAULT_BIN_INDEX = 54,   /* row: entry of the map, actual: its index, expected: number of tensors */
    WM_FAULT_BIN_ALIAS = 55,   /* row: entry of the map, actual: an index that an earlier entry has */
    WM_FAULT_BIN_MAP = 56,     /* actual: entries of the map, expected: number of tensors */
    /* layers of CNN v2 */
    WM_FAULT_LAYER_ZERO = 64, /* row, at: kernel_size, in_channels or out_channels that is 0 */
    /* records of AMB; at: where the field stands, from the start of the file */
    WM_FAULT_AMB_END = 72,         /* row: the section ends within a field; actual: bytes left, expected: bytes needed */
    WM_FAULT_AMB_DATA = 73,        /* row: data_size (actual) is more than the section has left (expected) */
    WM_FAULT_AMB_NAMES = 74,       /* row: names that together have more bytes (actual) than allowed (expected) */
    WM_FAULT_AMB_PADDING = 75,     /* row, actual: a byte of padding that is not 0 */
    WM_FAULT_AMB_UNPADDED = 76,    /* row: the last record has `actual` bytes of padding, not `expected` */
    WM_FAULT_AMB_QUANT_TYPE = 77,  /* row, actual, expected */
    WM_FAULT_AMB_BLOCK_SIZE = 78,  /* row, actual, expected: a multiple of it, or 0 */
    WM_FAULT_AMB_SCALE_TYPE = 79,  /* row, actual */
    WM_FAULT_AMB_SCHEME_SIZE = 80, /* row, actual: data_size, expected: by shape, block size and type of the scales */
    WM_FAULT_AMB_READ = 81,        /* at: what cannot be read; actual: errno, or 0 where the file ends */
    /* quantised blocks of different kinds */
    WM_FAULT_ADAPTIVE_SIZE = 96,    /* actual: bytes of the data, expected: bytes by the mask */
    WM_FAULT_ADAPTIVE_MASK = 97,    /* row: a block whose kind is 3 */
    WM_FAULT_ADAPTIVE_PADDING = 98, /* bits of the mask behind the last block (row) that are not 0; actual: the byte */
    /* headers of GGUF; at: where the field begins, from the start of the file; row: number of the key-value or tensor. Faults of
     * tables come from the scan too, with `at` */
    WM_FAULT_GGUF_END = 104,      /* a field runs past the limit; actual: bytes left, expected: bytes needed */
    WM_FAULT_GGUF_COUNT = 105,    /* actual: a count or length, expected: the most that the bytes left could hold */
    WM_FAULT_GGUF_TYPE = 106,     /* actual: an unknown type of values */
    WM_FAULT_GGUF_BOOL = 107,     /* actual: a byte that is neither 0 nor 1 */
    WM_FAULT_GGUF_UTF8 = 108,     /* a value */
    WM_FAULT_GGUF_KEY = 109,      /* actual: length of a key, expected: the most that it may be */
    WM_FAULT_GGUF_KEY_UTF8 = 110, /* a key */
    WM_FAULT_GGUF_DEPTH = 111,    /* arrays nested deeper than WM_GGUF_DEPTH */
    WM_FAULT_GGUF_BLOCK = 112,    /* actual: the fastest dimension, expected: elements of a block, which do not divide it */
    /* programs of pickles; at: the opcode */
    WM_FAULT_PICKLE_END = 120,    /* the program ends within an opcode; actual: bytes left, expected: bytes needed */
    WM_FAULT_PICKLE_OPCODE = 121, /* actual: an opcode, or with 0x80 a protocol (expected), that torch.save does not write */
    WM_FAULT_PICKLE_STACK = 122,  /* actual: an opcode that cannot take the values on the stack */
    WM_FAULT_PICKLE_MEMO = 123,   /* actual: a number of the memo, expected: how many it has */
    WM_FAULT_PICKLE_NAME = 124,   /* row, expected: place and length of a module's name; at, actual: of the name in it */
    WM_FAULT_PICKLE_CALL = 125,   /* a call with arguments that torch.save does not write */
    WM_FAULT_PICKLE_RANGE = 126,  /* a tensor whose last element (actual) lies past its storage (expected: elements) */
    WM_FAULT_PICKLE_DEEP = 127,   /* containers lie too deep within each other */
    WM_FAULT_PICKLE_LAUGHS = 128, /* containers that hold each other many times make more members than the program has bytes */
    WM_FAULT_PICKLE_NAMES = 129,  /* actual: bytes of names, expected: the most */
    WM_FAULT_PICKLE_CYCLE = 130,  /* a container that holds itself */
    WM_FAULT_PICKLE_ODD = 131,    /* actual: the object in place of a tensor or value, a WM_PICKLE_ODD_ constant */
    WM_FAULT_PICKLE_OVERFLOW = 132, /* a tensor of more bytes than 2**63 - 1 (expected); actual: the dimension */
    WM_FAULT_PICKLE_MEMORY = 133,   /* actual: words of the arena, which are too few */
    WM_FAULT_PICKLE_REPEATED = 135, /* a key that its dictionary has already */
    WM_FAULT_PICKLE_READ = 134,     /* at: what cannot be read; actual: errno, or 0 where the file ends */
    /* archives; row: the entry */
    WM_FAULT_ZIP_DIRECTORY = 136, /* at: in the central directory, where no entry is */
    WM_FAULT_ZIP_HEADER = 137,    /* at: a header, in the file, that contradicts the directory; actual: 1: in sizes */
    WM_FAULT_ZIP_RANGE = 138,     /* actual: where an entry begins or ends, expected: where the directory begins */
    WM_FAULT_ZIP_ENCRYPTED = 139, /* at: in the central directory */
    WM_FAULT_ZIP_READ = 140,      /* at: what cannot be read; actual: errno, or 0 where the file ends */
    WM_FAULT_ZIP_OVERLAP =
        141,                 /* row, or the number of entries for the directory; actual: its begin, expected: an end before */
    WM_FAULT_ZIP_GAP = 142,  /* at: bytes that belong to no entry; actual: how many */
    WM_FAULT_ZIP_NAME = 143, /* at: in the central directory; actual: why readers may not agree, a WM_ZIP_ constant */
    /* messages of ONNX; at: where the field begins, from the start of the file; row: number of the initialiser */
    WM_FAULT_ONNX_END = 152,      /* its message ends within a field; actual: bytes left, expected: bytes needed */
    WM_FAULT_ONNX_VARINT = 153,   /* more than 64 bits */
    WM_FAULT_ONNX_TAG = 154,      /* actual: a tag that no field has */
    WM_FAULT_ONNX_KIND = 155,     /* actual: a kind of field that protobuf lacks, or the kind of groups */
    WM_FAULT_ONNX_WIRE = 156,     /* actual: the kind of a field that has another one (expected) */
    WM_FAULT_ONNX_DIM = 157,      /* actual: a negative dimension */
    WM_FAULT_ONNX_NAME = 158,     /* actual: bytes of a name, 0 or more than expected */
    WM_FAULT_ONNX_NAMES = 159,    /* actual: bytes of all names, expected: the most */
    WM_FAULT_ONNX_KEPT = 160,     /* actual: bytes of metadata, expected: the most */
    WM_FAULT_ONNX_TWICE = 161,    /* data in two fields; actual: the number of the other one */
    WM_FAULT_ONNX_FIELD = 162,    /* data in a field that is not for its type (actual) */
    WM_FAULT_ONNX_PACKED = 163,   /* actual: bytes of packed numbers, expected: a multiple of it */
    WM_FAULT_ONNX_COUNT = 164,    /* actual: bytes of numbers, or how many they are, expected: numbers by the shape */
    WM_FAULT_ONNX_NUMBER = 165,   /* actual: a number that does not fit its type, expected: the type's bits */
    WM_FAULT_ONNX_SEGMENT = 166,  /* a tensor in segments */
    WM_FAULT_ONNX_LOCATION = 167, /* actual: an unknown data_location */
    WM_FAULT_ONNX_DECIMAL = 168,  /* an offset or a length that is not a decimal number; actual: its characters */
    WM_FAULT_ONNX_PATH = 169,     /* actual: bytes of a location, 0 or more than expected */
    WM_FAULT_ONNX_GRAPH = 170,    /* the model has no graph; at: the end of the file */
    WM_FAULT_ONNX_READ = 171      /* at: what cannot be read; actual: errno, or 0 where the file ends */
};

/* ------------------------------------------------------------------------------------------------ columns
 * The columns of a table of tensors, for a scan to fill. Tensor i: its name is names[bounds[i], bounds[i+1]), dtype[i] an index
 * into the format's list of types, its dimensions are dims[dim_bounds[i], dim_bounds[i+1]), and its data lies from begin[i] to
 * end[i]; `end` is NULL where the format declares none. Capacities: names_cap bytes of names, cap + 1 bounds and dim_bounds, cap
 * of dtype, begin, end and hashes, dims_cap dims. `hashes` is for wm_columns_check: when it has checked the names, it leaves
 * their hashes there and sets `hashed` to 1.
 */
typedef struct {
    uint64_t cap, dims_cap, names_cap;
    uint8_t *names;
    uint32_t *bounds;
    uint8_t *dtype;
    uint64_t *dims;
    uint32_t *dim_bounds;
    uint64_t *begin, *end;
    uint32_t *hashes;
    int32_t hashed;
} wm_columns;
/* Lays the columns out in one piece of memory, by their capacities. Returns 0, or -1 when it has too few words. */
int wm_columns_place(wm_columns *columns, uint64_t *memory, uint64_t words);

/* ------------------------------------------------------------------------------------------------ safetensors
 * Scans the JSON header json[0, len) of a safetensors file, `{` to `}` and trailing spaces (0x20), strictly, and fills the
 * columns: tensors in the order of the text, names unescaped, dtype as an index into the list below, begin and end from the
 * data_offsets. The keys of a tensor's object come in any order, each once. Numbers are JSON integers without sign, fraction
 * or exponent. "__metadata__" is skipped, with its syntax checked and its nesting bounded, and its span returned for Python to
 * parse. wm_columns_check finds duplicate names.
 *
 * `dtypes` holds the n_dtypes known names, each in a field of 16 bytes padded with zero bytes.
 * Capacities: names_cap >= len bytes. A tensor takes at least 48 bytes of text and a dimension 2, so cap = len / 48 + 1 and
 * dims_cap = len / 2 suffice. names must not overlap json. Returns 0, or -1 with *fault filled.
 */
typedef struct {
    uint64_t n_tensors, n_dims, names_len;
    uint64_t metadata_begin, metadata_end; /* span of the value of __metadata__; begin 0 when there is none, or null */
    uint64_t undefined_keys, undefined_at; /* keys of tensors' objects that were skipped, and where the first one is */
    uint64_t data_end;                     /* the largest end */
    uint64_t backwards;                    /* the first tensor that ends before it begins; n_tensors when none does */
    int32_t ordered;                       /* 1 when the text lists the tensors by begin, then by end */
} wm_safetensors;
int wm_safetensors_scan(const uint8_t *json, uint64_t len, const uint8_t *dtypes, uint64_t n_dtypes, const wm_columns *columns,
                        wm_safetensors *out, wm_fault *fault);

/* The depth of nested brackets in text[0, len), JSON or not, strings aside. A reader that stops at the first byte that is
 * not JSON goes no deeper. */
uint64_t wm_json_depth(const uint8_t *text, uint64_t len);

/* ------------------------------------------------------------------------------------------------- BinTensors
 * Scans the header of a BinTensors file, header[0, len), in one of its two layouts (1: the specification's; 2: the current one;
 * 3: the first of them that fits) and fills the columns in the order of the file's list of tensors. dtype[i] is the format's
 * code, 0 to 14. Checks the structure and the UTF-8 of the metadata; wm_columns_check checks ranges and names. The bytes must
 * not change meanwhile.
 *
 * Capacities: names_cap >= len; len and dims_cap are below 2^32 - 1. A tensor takes at least 5 bytes, so cap = len / 5 + 1 and
 * dims_cap = len suffice. More than cap tensors are a fault CAPACITY, with `at` where tensor cap begins. Returns 0, or -1 with
 * *fault filled: the first one in the layout that fits better, which is out->layout. After the faults BIN_ALIAS, BIN_INDEX and
 * BIN_MAP the columns of layout 1 are filled but for the names.
 */
typedef struct {
    uint64_t n_tensors, n_dims, names_len;
    uint64_t metadata_count;               /* pairs of the metadata */
    uint64_t metadata_begin, metadata_end; /* where they lie; begin 0 without metadata, even an empty one */
    uint64_t map_begin;                    /* where the map of names begins; 0 in the current layout */
    uint64_t data_end;                     /* the largest end */
    uint64_t end;                          /* where padding begins */
    uint64_t wide;                         /* where an integer takes more bytes than it needs; len when none does */
    int32_t layout;
    int32_t part;          /* with a fault: the part of the header being read */
    int32_t complete;      /* 1 when only proper padding follows */
    uint64_t progress;     /* how well the layout fits */
    int32_t keys_in_doubt; /* 1 when keys of the metadata repeat, or hashes collide too much to find out */
} wm_bintensors;
enum {
    WM_BIN_METADATA = 0,
    WM_BIN_TENSORS = 1, /* the number of tensors */
    WM_BIN_NAME = 2,
    WM_BIN_DTYPE = 3,
    WM_BIN_SHAPE = 4,
    WM_BIN_OFFSETS = 5,
    WM_BIN_MAP = 6
};
int wm_bintensors_scan(const uint8_t *header, uint64_t len, int layouts, const wm_columns *columns, wm_bintensors *out,
                       wm_fault *fault);

/* ------------------------------------------------------------------------------------------------------- CNN v2
 * Turns the n layer records of 20 bytes in records[0, len) into columns: names "layer.<i>.weight", dtype 0, dims out, in, k, k,
 * and offsets in bytes from the first weight on, without wrapping around. Refuses dimensions of 0; wm_columns_check checks the
 * rest. Capacities: 32 bytes of names for each layer, n tensors and 4 * n dims. names must not overlap records. Returns 0, or
 * -1 with *fault filled: LAYER_ZERO, CAPACITY (more layers than the bounds can count), COLUMN (fewer columns or records).
 */
typedef struct {
    uint64_t names_len;
    uint64_t counted; /* sum of weight_count */
    uint64_t needed;  /* sum of out * in * k * k, at most 2^64 - 1 */
} wm_cnn;
int wm_cnn_layers(const uint8_t *records, uint64_t len, uint64_t n, const wm_columns *columns, wm_cnn *out, wm_fault *fault);

/* Fills `buffer` with up to `count` bytes of a file from `at` on, like pread: returns how many, 0 at the end of the file, or -1.
 * For files that no descriptor reads. */
typedef int64_t (*wm_read)(void *context, uint8_t *buffer, uint64_t count, uint64_t at);

/* --------------------------------------------------------------------------------------------------------- AMB
 * Walks the records in bytes [begin, end) of an AMB file and fills the columns, with offsets relative to `begin`. Reads the
 * headers of records and of quantised data alone: by `read` if it is not NULL, by pread from the descriptor fd or, with fd -1,
 * from memory. dtype[i] is the format's code, 0 to 8, or 9 for quantised int8. Checks all of a record but its name (see
 * wm_columns_check), and of adaptive data only bounds of the size. A padding byte that is not 0 and missing padding at the end
 * are faults, or noted with `lax`.
 *
 * All capacities but the bounds' may be 0: the walk continues beyond them, `out` has the required ones, and the columns hold only
 * the first records. Returns 0, or -1 with *fault filled and the number of sound records in out->n_tensors.
 */
typedef struct {
    int32_t fd;
    int32_t lax;
    const uint8_t *data; /* with fd -1: the file, of `size` bytes */
    uint64_t size;
    uint64_t begin, end;
    uint64_t origin;          /* where padding counts multiples of 8 from: 0, or begin */
    uint64_t max_tensors;     /* more are a fault CAPACITY */
    uint64_t max_names;       /* of all names together; below 2^32 - 1 */
    uint64_t bare_block_size; /* of blocks without a header; */
    uint64_t bare_scale;      /* bytes of a scale in them, or 0 when there are none */
    wm_read read;
    void *context;
} wm_amb_section;
typedef struct {
    uint64_t n_tensors, n_dims, names_len;
    uint64_t odd_padding; /* where padding first is not 0; 0 for nowhere */
    uint64_t unpadded;    /* where the last record lacks padding; 0 for nowhere */
    int32_t part;         /* with a fault: the field */
} wm_amb;
enum {
    WM_AMB_NAME_LENGTH = 0,
    WM_AMB_NAME = 1,
    WM_AMB_NDIM = 2,
    WM_AMB_SHAPE = 3,
    WM_AMB_DTYPE = 4,
    WM_AMB_DATA_SIZE = 5,
    WM_AMB_QUANT_TYPE = 6,
    WM_AMB_BLOCK_SIZE = 7,
    WM_AMB_SCALE_TYPE = 8,
    WM_AMB_PADDING = 9
};
int wm_amb_walk(const wm_amb_section *section, const wm_columns *columns, wm_amb *out, wm_fault *fault);

/* -------------------------------------------------------------------------------------------------------- GGUF
 * Scans the header of a GGUF file, of which data[0, len) has been read so far. The caller fills the first fields of a wm_gguf;
 * scans continue at `pos`. They return 0 at the end, 1 if they need more of the file (at least up to byte `needed`), or -1 with
 * *fault filled. The bytes must be the same in every call.
 */
enum { WM_GGUF_TYPES = 64, WM_GGUF_OTHERS = 128, WM_GGUF_NDIM = 4, WM_GGUF_KEY = 65535, WM_GGUF_DEPTH = 64 };
typedef struct {
    /* given */
    uint64_t limit;            /* no field reaches past it: the end of the file, or the limit of a header; below 2^32 - 1 */
    uint64_t pos;              /* beginning of the next key-value; after the last one, of the first tensor info */
    uint64_t count, n_tensors; /* of key-values and tensors, as the file says */
    uint32_t version;          /* in version 1 lengths, counts and dimensions take 4 bytes, else 8 */
    int32_t big;               /* not 0: big-endian */
    int32_t lax;               /* not 0: tensors may have types that the caller does not know, and more dimensions */
    /* found */
    uint64_t n_keys; /* key-values so far; 0 at first */
    uint64_t needed;
    uint64_t end; /* end of the last tensor info */
    uint64_t n_dims, names_len;
    uint64_t data_end; /* the largest end of a tensor */
    int32_t ordered;   /* 1 if the header lists the tensors by begin, then by end */
    uint32_t n_others; /* codes of types that the caller does not know: the dtype of others[i] is WM_GGUF_TYPES + i */
    uint32_t others[WM_GGUF_OTHERS];
} wm_gguf;
/* A tensor type: elements and bytes of a block; 0 bytes for an unused code. */
typedef struct {
    uint32_t elements, bytes;
} wm_gguf_type;
/* Scans the key-values: key i is data[keys[2 * i], keys[2 * i + 1]); its type and value follow it. Checks structure, truth
 * values, UTF-8 of keys and of strings outside arrays, and that keys are unique. `keys` has room for `cap` key-values: count,
 * or as many of 9 bytes as len allows (one more is a fault CAPACITY). Faults: GGUF_*; NAME_DUPLICATE, NAME_FLOOD (everything
 * but the uniqueness of keys has been checked), MEMORY. */
int wm_gguf_values(const uint8_t *data, uint64_t len, uint32_t *keys, uint64_t cap, wm_gguf *g, wm_fault *fault);
/* Scans the tensor infos into columns, from the first one on in every call; shapes have the fastest dimension last. `types` has
 * WM_GGUF_TYPES entries. Capacities: names_cap >= len - pos, dims_cap < 2^32 - 1; tensor `cap` is a fault CAPACITY whose `at` is
 * its position. Checks that ends do not overflow, but no other property of ranges (see wm_columns_check). A tensor of a type
 * that the caller does not know ends, unless it is empty, a byte behind its begin: see wm_gguf_reach. */
int wm_gguf_tensors(const uint8_t *data, uint64_t len, const wm_gguf_type *types, const wm_columns *columns, wm_gguf *g,
                    wm_fault *fault);
/* Call it once all tensors are there, ordered by begin. Tensors of types that the caller does not know then reach to the begin of
 * the next one, or to `room`, the end of the data section; `data_end` follows. */
void wm_gguf_reach(const wm_columns *columns, uint64_t room, wm_gguf *g);
/* The number of the key-value with this key, or -1. */
int64_t wm_gguf_find(const uint8_t *data, uint64_t len, const uint32_t *keys, uint64_t n, const uint8_t *key, uint64_t key_len);
/* The end of the array whose item type is at `pos`, or -1 if it does not lie whole in data. */
int64_t wm_gguf_array(const uint8_t *data, uint64_t len, uint64_t pos, uint32_t version, int big);
/* wm_walk_strings for the items of an array of strings; the gap is 4 in version 1, else 8. */
int64_t wm_gguf_strings(const uint8_t *data, uint64_t len, uint64_t count, uint32_t version, int big, uint32_t *bounds);

/* -------------------------------------------------------------------------------------------------------- ONNX
 * Walks an ONNX model and fills the columns with its tensors, in the order of the file: the initialisers of its graph and of the
 * graphs within it, and the constants of nodes, under the name of their output. Reads by `read` if it is
 * not NULL, by pread from the descriptor fd or, with fd -1, from memory; no tensor data but what shares a window with fields.
 *
 * dtype[i] is the data_type, 1 to 28. Alone, begin and end are the data in this file. With WM_ONNX_MADE, they are the fields of
 * numbers that wm_onnx_numbers makes the data of; with WM_ONNX_EXTERNAL, the data in another file, the last of `files` up to that
 * tensor. Initialisers of strings (data_type 8) are listed without data; with `lax`, unreadable ones too, as data_type 0. at[i] is
 * the beginning of tensor i, with bit WM_ONNX_NESTED_BIT if it lies in a node, a graph within another, a function or training_info,
 * and WM_ONNX_FUNCTION_BIT in a function.
 * `kept` receives the fields of the model but the graph: 1 to 6, 8 and 14. Checks the structure, and the number of values against
 * the shape; see wm_columns_check for the rest.
 *
 * All capacities but the bounds' may be 0: the walk continues beyond them, `out` has the required ones, and the columns hold only
 * the first tensors. `at` holds as many as the columns. Returns 0, or -1 with *fault filled, the message in out->message and the
 * number of the field in out->number.
 */
enum { WM_ONNX_MADE = 32, WM_ONNX_EXTERNAL = 64, WM_ONNX_PATH = 4096 };
enum { WM_ONNX_MODEL = 0, WM_ONNX_GRAPH = 1, WM_ONNX_TENSOR = 2, WM_ONNX_ENTRY = 3, WM_ONNX_NODE = 4 };
enum { WM_ONNX_NESTED_BIT = 63, WM_ONNX_FUNCTION_BIT = 62 };
/* From tensor `row` on, the name of the other file and its checksum lie here in this one. */
typedef struct {
    uint64_t row, path, path_len, sum, sum_len;
} wm_onnx_place;
typedef struct {
    int32_t fd;
    const uint8_t *data; /* with fd -1: the file */
    uint64_t size;
    uint64_t max_tensors; /* more are a fault CAPACITY */
    uint64_t max_names;   /* of all names together; below 2^32 - 1 */
    uint64_t max_kept;    /* bytes */
    uint64_t *at;
    wm_onnx_place *files;
    uint8_t *kept;
    uint64_t files_cap, kept_cap;
    int32_t lax;
    wm_read read;
    void *context;
} wm_onnx_file;
typedef struct {
    uint64_t n_tensors, n_dims, names_len, n_files, kept_len;
    uint64_t n_strings; /* tensors of strings */
    uint64_t n_nested;  /* tensors with WM_ONNX_NESTED_BIT, listed or not */
    uint64_t n_unread;  /* rows of data_type 0 */
    /* Not in the columns: sparse tensors; constants that are numbers or texts of an attribute; and, unlisted, tensors without a
     * name, in attributes other than a Constant's value, or unreadable in nodes, and graphs nested too deep. */
    uint64_t n_sparse, n_numbers, n_unlisted;
    uint64_t number; /* with a fault: of the field, */
    int32_t message; /* and the message that it belongs to */
    int32_t has_graph;
} wm_onnx;
int wm_onnx_scan(const wm_onnx_file *file, const wm_columns *columns, wm_onnx *out, wm_fault *fault);
/* Makes `count` elements of `bits` bits (6, 8, 16, 32 or 64) of the numbers in the fields `number` of a row of fields in
 * data[0, len): out has count * bits / 8 bytes, rounded up. Returns 0, or -1 with *fault filled (`at`: in data). */
int wm_onnx_numbers(const uint8_t *data, uint64_t len, uint64_t number, uint64_t bits, uint64_t count, uint8_t *out,
                    wm_fault *fault);

/* ------------------------------------------------------------------------------------------------- finalfusion
 * Lists of strings in its vocabularies. Each entry is a u32 length, that many bytes, and `tail` bytes: none after a word, the
 * index of 8 bytes after an n-gram.
 */
/* Walks the first of `count` entries, while they lie whole in data[0, len). Returns their bytes, and their number in *walked: so a
 * list may be walked in pieces. */
uint64_t wm_finalfusion_skip(const uint8_t *data, uint64_t len, uint64_t count, uint32_t tail, uint64_t *walked);
/* Walks `count` n-grams with their indices (tail 8). Fills bounds (count + 1 entries, gap 12: string i is data[bounds[i],
 * bounds[i+1] - 12)) and indices (count entries). N-grams past 2^32 - 5 bytes do not fit. Returns the bytes walked, or -1 - i
 * when n-gram i does not fit. */
int64_t wm_finalfusion_ngrams(const uint8_t *data, uint64_t len, uint64_t count, uint32_t *bounds, uint64_t *indices);

/* ------------------------------------------------------------------------------------------- tables of tensors
 * Checks of a whole index in one call, by the same rules for columns and for records. For every row: the dtype is known, the
 * number of dimensions in bounds, unused dimensions are 0, the bytes do not overflow and agree with a declared end, range,
 * alignment, rising order without overlap, holes of at most max_gap bytes. `lax` not 0 skips order, overlap and holes. Offsets
 * count from the data section of data_size bytes (2^64 - 1 when the format declares none), and a tensor that ends past it is
 * TABLE_RANGE. One that ends past `room`, the bytes of the file from the section on, is TABLE_TRUNCATED.
 */
typedef struct {
    uint64_t min_ndim, max_ndim;
    uint64_t alignment; /* divides every offset; 0 or 1 for none */
    uint64_t max_gap;   /* bytes of padding allowed before a tensor and after the last: 0 back to back */
    uint8_t bits[256];  /* by dtype code: bits of one element; 0: no such code; or WM_BITS_DECLARED */
} wm_rules;
/* For a dtype whose tensors take the bytes from begin to end, whatever their shape: quantised ones. */
enum { WM_BITS_DECLARED = 255 };
/* A table of n tensors: columns with n_dims dimensions, or records (see wm_records_check) where `columns` is NULL. Offsets count
 * from `base`. */
typedef struct {
    const wm_rules *rules;
    const wm_columns *columns;
    const uint8_t *records;
    uint64_t n, n_dims, base, data_size, room;
} wm_table;
enum { WM_RECORD_DIMS = 4 };
/* A row; `dims` points into the columns, or to `copied`. */
typedef struct {
    uint32_t dtype, ndim;
    uint64_t offset, nbytes;
    const uint64_t *dims;
    uint64_t copied[4];
} wm_row;
/* Checks row i, but for alignment, order, overlap and holes, and fills *row. Returns 0, or -1 with *fault filled. */
int wm_row_check(const wm_table *table, uint64_t i, wm_row *row, wm_fault *fault);
/* Checks n rows from `first` on in the same way, and fills columns: `begin` counts from the beginning of the file, and `dims`
 * has `width` dimensions a row, 0 where a row has fewer. */
typedef struct {
    uint8_t *dtype, *ndim;
    uint64_t *dims, width, *begin, *nbytes;
} wm_rows;
int wm_rows_check(const wm_table *table, uint64_t first, uint64_t n, const wm_rows *out, wm_fault *fault);
/* Checks the first n tensors of the columns, with n_dims dimensions and names_len bytes of names in all; names must be unique
 * and, with `utf8` not 0, UTF-8. columns->end may be NULL. Returns 0, or -1 with *fault filled. */
int wm_columns_check(wm_columns *columns, uint64_t n, uint64_t n_dims, uint64_t names_len, int utf8, const wm_rules *rules,
                     uint64_t data_size, uint64_t room, int lax, wm_fault *fault);
/* The first of n tensors with this name, by one pass; or -1. */
int64_t wm_columns_find(const wm_columns *columns, uint64_t n, uint64_t names_len, const uint8_t *name, uint64_t name_len);
/* Checks an index of EMBD in index[0, len): n records of 32 bytes (u32 name_hash, u8 dtype, u8 ndim, u16 name_length, 4 x u32
 * shape, u64 offset), then their names back to back, each UTF-8, hashed right, and unique. Returns the bytes of the names, or
 * -1 with *fault filled. */
int64_t wm_records_check(const uint8_t *index, uint64_t len, uint64_t n, const wm_rules *rules, uint64_t data_size,
                         uint64_t room, int lax, wm_fault *fault);
/* The first record of such an index with the hash, length and bytes of this name, by one pass; or -1. */
int64_t wm_records_find(const uint8_t *index, uint64_t len, uint64_t n, const uint8_t *name, uint64_t name_len);
/* Fills bounds with the starts of the names of such an index among its names, and the end of the last: n + 1 of them, modulo
 * 2^32. Returns that end, wherever it lies, or -1 when the index has fewer records. */
int64_t wm_records_bounds(const uint8_t *index, uint64_t len, uint64_t n, uint32_t *bounds);
/* Checks `count` pairs "u16 klen, u16 vlen, key, value" in data[0, len): they fit, end where the data ends, are UTF-8, and no
 * key repeats. Returns 0, or -1 with *fault: NAME_RANGE (row: the pair that does not fit, or count when bytes are left; at:
 * where), NAME_UTF8, NAME_DUPLICATE, NAME_FLOOD (all but the uniqueness of keys has been checked), MEMORY. */
int wm_pairs_check(const uint8_t *data, uint64_t len, uint64_t count, wm_fault *fault);
