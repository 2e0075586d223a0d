/* THE interface of the C module.
 *
 * This file is read twice: by the C compiler, and by cffi, which gets it without the lines that begin with '#'.
 * So: no macros, constants are enums, and every function carries its contract here.
 *
 * Rules that hold for every function
 *   - It holds no lock, touches no Python and keeps no state but the table of chosen variants: calls run without the GIL.
 *   - It takes a length for every pointer, in and out, and checks before it reads or writes. A length of 0 allows a
 *     null pointer.
 *   - It is total: any bytes whatever give a result or an error code, never a fault, never an endless loop.
 *   - Multi-byte integers in files are little-endian and may lie at any alignment.
 */
#ifndef WEIGHTMAP_KERNELS_H
#define WEIGHTMAP_KERNELS_H
#include <stdint.h>
#endif

/* ------------------------------------------------------------------------------------------ instruction sets
 * A tier is a named set of CPU features; each contains the one before it. Tiers: on x86 "portable" < "sse4" < "avx2" <
 * "avx512" < "avx512icl" (VPCLMULQDQ, GFNI, VBMI); on arm64 "portable" < "neon" (CRC32 and PMULL). Each kernel uses
 * the best variant whose features lie within the chosen tier and within the CPU.
 */
const char *wm_isa_name(int tier);      /* the tier's name; NULL when there is no such tier on this architecture */
int wm_isa_available(int tier);         /* 1 when this CPU has all features of the tier */
int wm_isa_selected(void);              /* the tier in use; the best available one after loading */
int wm_isa_select(int tier);            /* use this tier from now on, in all threads; 0, or -1 when not available */
const char *wm_crc32_variant(void);     /* name of the function in use for long inputs: "crc32_x86_pclmulqdq", ... */
const char *wm_fnv1a32_variant(void);   /* the same for batches of names */
const char *wm_f16_to_f32_variant(void);
const char *wm_bf16_to_f32_variant(void);
const char *wm_intblock_variant(void);  /* and for quantised blocks */
const char *wm_combine_rows_variant(void); /* and for projections in product quantisation */

/* --------------------------------------------------------------------------------------------------- CRC-32
 * The CRC-32 of zlib, PNG and Ethernet: reflected polynomial 0xEDB88320, initial value and final XOR 0xFFFFFFFF.
 */
/* CRC of `data` appended to bytes whose CRC is `crc` (0 for none). Uses up to `threads` threads, fewer when the
 * input is small. */
uint32_t wm_crc32(uint32_t crc, const uint8_t *data, uint64_t len, int threads);
/* CRC of A followed by B, from crc1 of A, crc2 of B and the length of B. O(log len2). */
uint32_t wm_crc32_combine(uint32_t crc1, uint32_t crc2, uint64_t len2);

/* These add built-in functions to the module weightmap._kernels: those worth a glue of their own, since for short inputs the
 * call is the cost, or which take Python's own objects. They alone touch Python, and each is called once, by weightmap.kernels.
 * Return 0, or -1.
 * crc32(data, value=0, *, threads=1), fnv1a32(data), fnv1a64(data); the texts of their documentation, in this order, signature
 * first, must stay; a NULL ends them. */
int wm_python_functions(const char *const *docs);
/* pack_texts: see python/texts.c. */
int wm_python_texts(void);
/* widen and decode: see python/arrays.c. */
int wm_python_arrays(void);
/* Descriptor, own, map_file, new_memory and with_temporary: see python/owners.c. */
int wm_python_owners(void);

/* --------------------------------------------------------------------------------------------------- FNV-1a */
uint32_t wm_fnv1a32(const uint8_t *data, uint64_t len);
uint64_t wm_fnv1a64(const uint8_t *data, uint64_t len);
/* FNV-1a 32 of n names that lie in `blob` one after another, `gap` bytes between two (0: back to back; 2 or 4: each
 * name follows a length prefix that the caller has already read, blob starting at the first name's first byte).
 * Name i has lengths[i] bytes. Returns -1 when done, or the number of the first name that does not fit in `blob`
 * (hashes before it are written). */
int64_t wm_fnv1a32_many(const uint8_t *blob, uint64_t blob_len, const uint32_t *lengths, uint64_t n, uint32_t gap,
                        uint32_t *out);

/* ------------------------------------------------------------------------------------------- large memory
 * Memory of at least `size` bytes for a large array, its contents undefined, in huge pages where there are any. NULL when
 * there is none to be had, or none of this kind. */
void *wm_memory_new(uint64_t size);
/* Gives it back: it may be kept for the next such array, as memory that the system may take. */
void wm_memory_free(void *memory);

/* --------------------------------------------------------------------------------------------------- halves
 * Conversion of n little-endian elements of 16 bits, in[0, 2n), at any alignment, to floats out[0, n). Uses up to `threads`
 * threads, fewer when there is little to do. Every bit of the result is fixed, whatever the CPU. Returns 0, or -1 when `in`
 * and `out` overlap.
 */
/* IEEE 754 binary16. Exact: zeros, subnormal numbers and infinities too. A NaN keeps its sign and the bits of its fraction,
 * moved up by 13, and becomes quiet: bit 22 is set. */
int wm_f16_to_f32(const uint8_t *in, float *out, uint64_t n, int threads);
/* bfloat16. The bits moved up by 16 and nothing else: a signalling NaN stays one. */
int wm_bf16_to_f32(const uint8_t *in, float *out, uint64_t n, int threads);

/* ------------------------------------------------------------------------------------------ quantised blocks
 * Integers q of `bits` bits, two's complement, of which value = scale * q, one multiplication of float32; the scale of type 0
 * is a float32, of type 1 a float16, widened exactly. Codes lie back to back, the first in the lowest bits of byte 0.
 *   block_size > 0   [scale][codes] for each block_size elements, the last block whole; even for 4 bits, a multiple of 8 for 5,
 *                    at most 2^32
 *   block_size 0     one scale, then the codes of all elements
 * A value that is no number, as of a NaN scale or of infinity times 0, is the float32 0x7FC00000, of whatever CPU.
 */
/* Bytes that n elements take so, bits being 4, 5 or 8; or -1 when there is no such thing, or n exceeds 2^56. */
int64_t wm_blocks_size(int bits, int scale_type, uint64_t block_size, uint64_t n);
/* Decodes elements [first, first + count) of the n elements in data[0, size), whatever its alignment, to `count` elements:
 * float32 or, with `half` not 0, float16 rounded from it to nearest, ties to even. `out` is aligned for its type. Uses up to
 * `threads` threads. Returns 0, -1 when the size is not that of wm_blocks_size or the range not within the n elements, or -2
 * when data and out overlap. */
int wm_blocks_decode(const uint8_t *data, uint64_t size, int bits, int scale_type, uint64_t block_size, uint64_t n,
                     uint64_t first, void *out, uint64_t count, int half, int threads);

/* The index of the first element that is NaN or infinite, or -1. */
int64_t wm_first_odd(const float *x, uint64_t n);
/* Quantises x[0, n) to such data in out[0, out_size), exactly as many bytes as wm_blocks_size tells. The scales are those of
 * least squared error that a search found, the codes the nearest to x / scale (of float32, ties to even) within range: the
 * same bytes on every CPU and with any number of threads. A block of zeros gets a scale of 0; a scale too large for its type
 * is the largest finite one. With bits 16 a block is block_size float16 and has no scale; what is too large becomes the
 * largest finite one. `errors`, when not NULL, gets the sum of the squared errors of each block. Returns -1 when done, the index
 * of the first element that is NaN or infinite (nothing is written then), or -2 for sizes that do not fit. */
int64_t wm_blocks_encode(const float *x, uint64_t n, int bits, int scale_type, uint64_t block_size, uint8_t *out,
                         uint64_t out_size, double *errors, uint64_t n_errors, int threads);

/* ------------------------------------------------------------------------------- length-prefixed strings
 * `bounds` describes n strings in `data`: string i is data[bounds[i], bounds[i+1] - gap), so bounds has n + 1 entries
 * and `gap` is the width of the length prefix that stands before each string (0 when there is none).
 */
/* Walks `count` strings, each after a little-endian length of `width` (2, 4 or 8) bytes, from data[0] on. When bounds is
 * not NULL it has count + 1 entries and is filled as above with gap = width (needs len + width < 2^32: strings past that
 * do not fit). Returns the number of bytes walked, or -1 - i when string i does not fit. */
int64_t wm_walk_strings(const uint8_t *data, uint64_t len, uint64_t count, int width, uint32_t *bounds);
/* Strict UTF-8 (no overlong forms, no surrogates, at most U+10FFFF) of each of the n strings by itself. Returns -1, or
 * the number of the first string that is not UTF-8 or whose bounds do not lie in data in rising order. */
int64_t wm_utf8_strings(const uint8_t *data, uint64_t len, const uint32_t *bounds, uint64_t n, uint32_t gap);

/* A hash index over n strings: an open-addressing table, FNV-1a 32 times the golden ratio. `capacity` is a power of two
 * of at least 4/3 n, at most 2^32. A slot holds a string's number and, in the bits above, some of its hash; free slots
 * hold 0xFFFFFFFF. Slots are written here and read by wm_index_find, by nobody else. Of equal strings the first is kept.
 * Returns the number of strings that equal an earlier one (the first such in *duplicate, its earlier twin in *original),
 * or -1 for bounds that do not lie in data in rising order or a bad capacity, or -2 when the strings' hashes collide so
 * much (64 different strings of one hash, or 256 slots probed) that the table would be slow: somebody made them so. */
int64_t wm_index_build(const uint8_t *data, uint64_t len, const uint32_t *bounds, uint64_t n, uint32_t gap,
                       uint32_t *slots, uint64_t capacity, uint64_t *duplicate, uint64_t *original);
/* The number of the string equal to name[0, name_len), or -1. Safe on any contents of `data` and `slots`. */
int64_t wm_index_find(const uint8_t *data, uint64_t len, const uint32_t *bounds, uint64_t n, uint32_t gap,
                      const uint32_t *slots, uint64_t capacity, const uint8_t *name, uint64_t name_len);
/* The same, with all that describes the strings in one place: one look-up is a call of three arguments. */
typedef struct {
    const uint8_t *data;
    uint64_t len;
    const uint32_t *bounds;
    uint64_t n;
    uint32_t gap;
    const uint32_t *slots;
    uint64_t capacity;
} wm_index;
int64_t wm_index_lookup(const wm_index *index, const uint8_t *name, uint64_t name_len);
/* wm_index_find for many names at once: name i is names[name_bounds[i], name_bounds[i+1]); out[i] = number or -1.
 * Returns 0, or -1 for name_bounds that do not lie in names in rising order or a bad capacity. */
int wm_index_find_many(const uint8_t *data, uint64_t len, const uint32_t *bounds, uint64_t n, uint32_t gap,
                       const uint32_t *slots, uint64_t capacity, const uint8_t *names, uint64_t names_len,
                       const uint32_t *name_bounds, uint64_t n_names, int64_t *out);

/* ---------------------------------------------------------------------------------------------------- subwords
 * Rows of the character n-grams of words that a vocabulary does not have. The n-grams of a text are those of min_n to max_n
 * characters: from each character on, in turn, the longest first. Kinds:
 *   bucket    row = first_row + (FNV-1a 64 over the number of characters as u64 and each as u32, modulo size, a power of two)
 *   fastText  row = first_row + (FNV-1a 32 over the UTF-8, a byte taken as signed by the XOR, modulo size < 2^32)
 *   explicit  row = first_row + indices[number of the n-gram in the index], and none for one that is not there
 * A character is a byte and the bytes 0x80 to 0xBF behind it.
 */
enum { WM_SUBWORDS_BUCKET = 0, WM_SUBWORDS_FASTTEXT = 1, WM_SUBWORDS_EXPLICIT = 2, WM_NGRAMS_MOST = 1048576 };
typedef struct {
    int32_t kind;
    uint32_t min_n, max_n;
    uint64_t size;      /* of the hashed kinds */
    uint64_t first_row; /* added modulo 2^64 */
    const wm_index *ngrams; /* explicit; else NULL */
    const uint64_t *indices;
    uint64_t n_indices;
} wm_subwords;
/* The rows of the n-grams of n texts, text i being texts[bounds[i], bounds[i+1]) with its brackets "<" and ">": rows[
 * row_bounds[i], row_bounds[i+1]), row_bounds having n + 1 entries. Returns their number, which may exceed cap; then rows is
 * only filled in part, and the call is to be repeated with more room. Or -1 for bounds that do not lie in texts in rising
 * order or a kind that is not as it should be, or -2 - i when text i has more than WM_NGRAMS_MOST n-grams, also without rows. */
int64_t wm_subword_rows(const wm_subwords *subwords, const uint8_t *texts, uint64_t len, const uint32_t *bounds, uint64_t n,
                        uint64_t *rows, uint64_t cap, uint64_t *row_bounds);
/* Sums of rows, each divided by its L2 norm; a sum of zeros stays one. The matrix lies in matrix[0, size), rows of dims float32,
 * at any alignment. Sum i is of the rows rows[bounds[i], bounds[i+1]), of n_rows in all, added in this order in float32, and goes
 * to row places[i] of out (i with places NULL), which has out_rows rows; places are different ones. norms[i], when norms is not
 * NULL, is its norm: of the squares in double precision. Returns -1 when done, or the number of the first sum one of whose rows
 * does not lie in the matrix, or -2 for bounds or places that are not as they should be. */
int64_t wm_unit_sums(const uint8_t *matrix, uint64_t size, uint64_t dims, const uint64_t *rows, uint64_t n_rows,
                     const uint64_t *bounds, const uint64_t *places, uint64_t n, float *out, uint64_t out_rows, float *norms,
                     int threads);

/* Copies rows of row_bytes of the matrix in matrix[0, size) to out[0, out_size): row i is row rows[i], or zeros for a number that
 * is negative or too large. 0, or -1 when out is too small for n rows. */
int wm_gather_rows(const uint8_t *matrix, uint64_t size, uint64_t row_bytes, const int64_t *rows, uint64_t n, uint8_t *out,
                   uint64_t out_size, int threads);

/* ---------------------------------------------------------------------------------------- product quantisation
 * n_rows rows of `pieces` codes; piece j of a row is codebooks[j][code], `width` floats of n_centroids such. Then, with a
 * projection (given transposed, dims x dims for dims = pieces * width; else NULL), the row is multiplied by it, and with norms
 * (else NULL) by norms[row]. Codes may change while they are read; all else must be where a float may be, and of its full size.
 */
enum { WM_PQ_TOGETHER = 8 };
typedef struct {
    const uint8_t *codes;
    const float *codebooks, *projection, *norms;
    uint64_t codes_size, codebooks_size, projection_size, norms_size; /* how many elements each has; 0 of NULL */
    uint64_t n_rows, pieces, n_centroids, width;
} wm_pq;
/* Decodes `count` rows to out[0, out_size), out_size = count * dims: those from `first` on, or with rows not NULL rows[0, count).
 * With a projection `scratch` has n_scratch floats, WM_PQ_TOGETHER * dims of them for each thread. Returns -1 when done, or the
 * position, among all codes, of one that is not below n_centroids; or -2 for rows that there are not, too little scratch, or
 * sizes that are not those of such codes. */
int64_t wm_pq_decode(const wm_pq *pq, const uint64_t *rows, uint64_t first, uint64_t count, float *out, uint64_t out_size,
                     float *scratch, uint64_t n_scratch, int threads);
/* out[i] = sum over j of table[j * n_centroids + code j of row first + i], in the order of j in float32, for i < count;
 * table_size = pieces * n_centroids. Returns as above. */
int64_t wm_pq_sums(const wm_pq *pq, const float *table, uint64_t table_size, uint64_t first, uint64_t count, float *out,
                   int threads);

/* ------------------------------------------------------------------------------------------------ scan faults
 * What a scan of an index found wrong. Python words the message; `code` says what, the numbers say where.
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
    WM_FAULT_JSON_SYNTAX = 1,      /* at: where */
    WM_FAULT_JSON_UTF8 = 2,        /* at: opening quote of the string */
    WM_FAULT_JSON_SURROGATE = 3,   /* a lone \ud800-\udfff escape; at: the string */
    WM_FAULT_JSON_KEY = 4,         /* unknown or repeated key within a tensor's object; row, at: the key */
    WM_FAULT_JSON_MISSING = 5,     /* a tensor without dtype, shape or data_offsets; row, at: end of its object */
    WM_FAULT_JSON_NUMBER = 6,      /* not a non-negative integer below 2^64; row, at */
    WM_FAULT_JSON_TRAILING = 7,    /* something but spaces after the closing brace; at */
    WM_FAULT_JSON_DTYPE = 8,       /* a dtype that is not in the list; row, at: the string */
    WM_FAULT_JSON_METADATA = 9,    /* __metadata__ repeated, not an object, or nested deeper than 64; at */
    WM_FAULT_CAPACITY = 10,        /* more tensors (row) or dimensions than the arrays hold */
    WM_FAULT_DIMS = 11,            /* more than 255 dimensions; row, at */
    /* tables of tensors */
    WM_FAULT_TABLE_TRUNCATED = 31, /* row, actual: end, expected: bytes of the file from where the data begins */
    WM_FAULT_TABLE_DTYPE = 32,     /* row, actual: the code */
    WM_FAULT_TABLE_NDIM = 33,      /* row, actual */
    WM_FAULT_TABLE_UNUSED_DIM = 34, /* row, actual: a dimension past ndim that is not 0 */
    WM_FAULT_TABLE_OVERFLOW = 35,  /* row: product of the shape, or its bytes, exceeds 2^63 - 1 */
    WM_FAULT_TABLE_RANGE = 36,     /* row, actual: end, expected: size of the data section */
    WM_FAULT_TABLE_ALIGN = 37,     /* row, actual: offset, expected: alignment */
    WM_FAULT_TABLE_OVERLAP = 38,   /* row, actual: offset, expected: end of the tensor before it */
    WM_FAULT_TABLE_HOLE = 39,      /* row (n: after the last), actual: offset, expected: where the last one ended */
    WM_FAULT_TABLE_SIZE = 40,      /* row, actual: declared bytes, expected: bytes by shape and dtype */
    WM_FAULT_NAME_RANGE = 41,      /* row: the name runs past its section; at */
    WM_FAULT_NAME_UTF8 = 42,       /* row */
    WM_FAULT_NAME_HASH = 43,       /* row, actual: stored, expected: computed */
    WM_FAULT_NAME_DUPLICATE = 44,  /* row, expected: the earlier row */
    WM_FAULT_NAME_FLOOD = 45,      /* hashes collide too much to tell duplicates quickly */
    WM_FAULT_MEMORY = 46,          /* no memory for the scan's own table */
    WM_FAULT_COLUMN = 47,          /* a column is shorter than the table: an error of the caller */
    /* headers in the encoding of bincode; at: where the integer, string, tag or count begins */
    WM_FAULT_BIN_END = 48,         /* the header ends within an integer; actual: bytes left, expected: bytes needed */
    WM_FAULT_BIN_INTEGER = 49,     /* actual: a first byte of 254 or 255 */
    WM_FAULT_BIN_OPTION = 50,      /* actual: a tag that is neither 0 nor 1 */
    WM_FAULT_BIN_COUNT = 51,       /* actual: a count or length, expected: the most that the bytes left could hold */
    WM_FAULT_BIN_UTF8 = 52,        /* a string of the metadata */
    WM_FAULT_BIN_DTYPE = 53,       /* row, actual: the code, expected: number of codes */
    WM_FAULT_BIN_INDEX = 54,       /* row: entry of the map, actual: its index, expected: number of tensors */
    WM_FAULT_BIN_ALIAS = 55,       /* row: entry of the map, actual: an index that an earlier entry has */
    WM_FAULT_BIN_MAP = 56,         /* actual: entries of the map, expected: number of tensors */
    /* layers of CNN v2 */
    WM_FAULT_LAYER_ZERO = 64,      /* row, at: kernel_size, in_channels or out_channels that is 0 */
    /* records of AMB; at: where the field stands, from the start of the file */
    WM_FAULT_AMB_END = 72,         /* row: the section ends within a field; actual: bytes left, expected: bytes needed */
    WM_FAULT_AMB_DATA = 73,        /* row: data_size (actual) is more than the section has left (expected) */
    WM_FAULT_AMB_NAMES = 74,       /* row: names that together have more bytes (actual) than allowed (expected) */
    WM_FAULT_AMB_PADDING = 75,     /* row, actual: a byte of padding that is not 0 */
    WM_FAULT_AMB_UNPADDED = 76,    /* row: of the last record's padding `actual` bytes are there, not `expected` */
    WM_FAULT_AMB_QUANT_TYPE = 77,  /* row, actual, expected */
    WM_FAULT_AMB_BLOCK_SIZE = 78,  /* row, actual, expected: a multiple of it, or 0 */
    WM_FAULT_AMB_SCALE_TYPE = 79,  /* row, actual */
    WM_FAULT_AMB_SCHEME_SIZE = 80, /* row, actual: data_size, expected: by shape, block size and type of the scales */
    WM_FAULT_AMB_READ = 81,        /* at: what cannot be read; actual: errno, or 0 where the file ends */
    /* quantised blocks of different kinds */
    WM_FAULT_ADAPTIVE_SIZE = 96,   /* actual: bytes of the data, expected: bytes by the mask */
    WM_FAULT_ADAPTIVE_MASK = 97,   /* row: a block whose kind is 3 */
    WM_FAULT_ADAPTIVE_PADDING = 98 /* bits of the mask behind the last block (row) that are not 0; actual: the byte */
};

/* ------------------------------------------------------------------------------------------ adaptive blocks
 * Blocks of different kinds, [mask][scales][codes], block_size a multiple of 8. The mask has 2 bits for each block, the first
 * in the lowest bits of byte 0 and 0 after the last: 0 int4, 1 int5, 2 float16. Scales are those of the int4 and int5 blocks
 * in their order; the codes of every block, 4, 5 or 16 bits an element, the last block whole, follow in the order of blocks.
 */
/* Numbers of a plan for n elements: what decoding has to know of all blocks, in memory of its own. First the numbers of int5 and
 * of float16 blocks in all; then the same before every 1024th block, from block 0 on; then the mask, padded to whole numbers. */
uint64_t wm_adaptive_plan_size(uint64_t block_size, uint64_t n);
/* Checks data of `size` bytes as n elements, by their mask, which is all that is read, once; and fills plan[0, n_plan). So
 * whatever becomes of the mask later, in a file that somebody writes to, the plan is consistent. Returns 0, or -1 with *fault:
 * ADAPTIVE_SIZE, ADAPTIVE_MASK, ADAPTIVE_PADDING; NONE when there are no such blocks, or n_plan is not the size of their plan. */
int wm_adaptive_check(const uint8_t *data, uint64_t size, int scale_type, uint64_t block_size, uint64_t n, uint64_t *plan,
                      uint64_t n_plan, wm_fault *fault);
/* As wm_blocks_decode, of such data, by the plan that was made of them; their mask is not looked at. Returns 0, and then every
 * element was written; -1 when the size is not that by the plan, the range not within the n elements, or the plan none that
 * wm_adaptive_check made; or -2 when data and out overlap. A block of float16 is what wm_f16_to_f32 makes of it. */
int wm_adaptive_decode(const uint8_t *data, uint64_t size, int scale_type, uint64_t block_size, uint64_t n,
                       const uint64_t *plan, uint64_t n_plan, uint64_t first, void *out, uint64_t count, int half,
                       int threads);
/* Puts such data together from all blocks in each kind, as wm_blocks_encode made them: of block b that of kind kinds[b]. Returns
 * 0, or -1 when a kind or a size is not as it should be. */
int64_t wm_adaptive_encode(const uint8_t *kinds, uint64_t blocks, int scale_type, uint64_t block_size, const uint8_t *int4,
                           uint64_t int4_size, const uint8_t *int5, uint64_t int5_size, const uint8_t *halves,
                           uint64_t halves_size, uint8_t *out, uint64_t out_size);

/* ------------------------------------------------------------------------------------------------ columns
 * The columns of a table of tensors, for a scan to fill. Tensor i: its name is names[bounds[i], bounds[i+1]), dtype[i] an index
 * into the format's list of types, its dimensions are dims[dim_bounds[i], dim_bounds[i+1]), and its data lies from begin[i] to
 * end[i]; `end` is NULL where the format declares none. How much the columns hold: names_cap bytes of names, cap + 1 bounds
 * and dim_bounds, cap of dtype, begin and end, dims_cap dims.
 */
typedef struct {
    uint64_t cap, dims_cap, names_cap;
    uint8_t *names;
    uint32_t *bounds;
    uint8_t *dtype;
    uint64_t *dims;
    uint32_t *dim_bounds;
    uint64_t *begin, *end;
} wm_columns;
/* Lays the columns out in one piece of memory, as large as their capacities call for. Returns 0, or -1 when it has too few
 * words. */
int wm_columns_place(wm_columns *columns, uint64_t *memory, uint64_t words);


/* ------------------------------------------------------------------------------------------------ safetensors
 * Scans the JSON header json[0, len) of a safetensors file, `{` to `}` and trailing spaces (0x20), strictly, and turns it
 * into columns, tensors in the order of the text, names unescaped, dtype an index into the list of names below, begin and end
 * the data_offsets. Keys of a tensor's object may come in any order, each once. "__metadata__" is stepped over (its JSON
 * syntax checked, nesting bounded) and its span given, for Python to parse. Duplicate tensor names are not looked for here
 * (see wm_columns_check).
 *
 * `dtypes` holds the known names, n_dtypes of them, each in a field of 16 bytes padded with zero bytes.
 * Capacities: names_cap >= len bytes. A tensor takes at least 48 bytes of text and a dimension 2, so cap = len / 48 + 1 and
 * dims_cap = len / 2 are always enough. Returns 0, or -1 with *fault filled. Numbers are JSON integers without sign, fraction
 * or exponent. names must not overlap json.
 */
typedef struct {
    uint64_t n_tensors, n_dims, names_len;
    uint64_t metadata_begin, metadata_end; /* span of the value of __metadata__; begin 0 when there is none */
    uint64_t data_end;                     /* the largest end */
    uint64_t backwards;                    /* the first tensor whose end lies before its begin; n_tensors when none does */
    int32_t ordered;                       /* 1 when the text lists the tensors by begin, then by end */
} wm_safetensors;
int wm_safetensors_scan(const uint8_t *json, uint64_t len, const uint8_t *dtypes, uint64_t n_dtypes,
                        const wm_columns *columns, wm_safetensors *out, wm_fault *fault);

/* How deep objects and arrays lie within each other in text[0, len), JSON or not: of what is JSON up to some byte, this is never
 * less than how deep a reader goes before it stops there. Brackets within strings do not count. */
uint64_t wm_json_depth(const uint8_t *text, uint64_t len);

/* ------------------------------------------------------------------------------------------------- BinTensors
 * Scans the header of a BinTensors file, header[0, len), in one of its two layouts (1 the specification's, 2 the current
 * one, 3: the first of them that fits) and turns it into columns, rows in the order of the file's list of
 * tensors. dtype[i] is the format's code, 0 to 14. Structure alone is checked, not ranges, uniqueness of names
 * or their UTF-8 (see wm_columns_check); strings of the metadata are UTF-8. The bytes must not change meanwhile.
 *
 * Capacities: names names_cap >= len bytes, bounds and dim_bounds cap + 1, dtype, begin, end cap, dims dims_cap, below
 * 2^32 - 1, as is len. A tensor takes at least 5 bytes, so cap = len / 5 + 1 and dims_cap = len are always enough. A file with
 * more than cap tensors is a fault CAPACITY with `at`, where tensor cap begins. Returns 0, or -1 with *fault filled, the first
 * one of the layout that could be read further; that is out->layout. After the faults BIN_ALIAS, BIN_INDEX and BIN_MAP the
 * columns of layout 1, read alone, are filled but for the names.
 */
typedef struct {
    uint64_t n_tensors, n_dims, names_len;
    uint64_t metadata_count;               /* pairs of the metadata */
    uint64_t metadata_begin, metadata_end; /* where they lie; begin 0 when there is no metadata, not even an empty one */
    uint64_t map_begin;                    /* where the map of names begins; 0 in the current layout */
    uint64_t data_end;                     /* the largest end */
    uint64_t end;                          /* where padding begins */
    uint64_t wide;                         /* where an integer takes more bytes than it needs; len when none does */
    int32_t layout;
    int32_t part;                          /* with a fault: the part of the header that was being read */
    int32_t complete;                      /* 1 when nothing but a proper padding follows what was read */
    uint64_t progress;                     /* how far the reading went, for comparisons */
    int32_t keys_in_doubt;                 /* 1 when keys of the metadata repeat, or their hashes collide too much to tell */
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
int wm_bintensors_scan(const uint8_t *header, uint64_t len, int layouts, const wm_columns *columns,
                       wm_bintensors *out, wm_fault *fault);

/* ------------------------------------------------------------------------------------------------------- CNN v2
 * Turns n layer records of 20 bytes, which lie in records[0, len), into columns: names
 * "layer.<i>.weight", dtype 0, dims out, in, k, k, and offsets in bytes from the first weight on, without wrapping around.
 * No dimension is 0; whether the rest agrees is for wm_columns_check to say. Capacities: at least 32 bytes of names for each
 * layer, n tensors and 4 * n dims. Returns 0, or -1 with *fault filled: LAYER_ZERO, CAPACITY (more layers than the bounds can
 * count), COLUMN (columns or records are fewer). names must not overlap records.
 */
typedef struct {
    uint64_t names_len;
    uint64_t counted; /* sum of weight_count */
    uint64_t needed;  /* sum of out * in * k * k, or 2^64 - 1 where it is more */
} wm_cnn;
int wm_cnn_layers(const uint8_t *records, uint64_t len, uint64_t n, const wm_columns *columns, wm_cnn *out,
                  wm_fault *fault);

/* --------------------------------------------------------------------------------------------------------- AMB
 * Walks the records of an AMB file, in its bytes [begin, end), and turns them into columns, offsets relative to `begin`. Reads a window of some kilobytes at each record's header, and nothing of the data but the
 * header of quantised data: by pread from the descriptor fd or, with fd -1, from memory. dtype[i] is the format's code, 0
 * to 8, but 9 for quantised int8. All of a record is checked but its name (see wm_columns_check); of adaptive data, the size
 * within bounds. The first padding byte that is not 0 and the absence of padding at the end are faults, or with `lax` noted.
 *
 * Capacities as of wm_bintensors_scan, and all may be 0 but for the bounds: the walk goes on where they do not suffice, out
 * has what they would have to be, and the columns hold the first records alone. Returns 0, or -1 with *fault filled and
 * the number of sound records in out->n_tensors.
 */
typedef struct {
    int32_t fd;
    int32_t lax;
    const uint8_t *data; /* with fd -1: the file, of `size` bytes */
    uint64_t size;
    uint64_t begin, end;
    uint64_t origin;          /* padding goes to multiples of 8 from here on: 0, or begin */
    uint64_t max_tensors;     /* one more is a fault CAPACITY */
    uint64_t max_names;       /* of all names together; below 2^32 - 1 */
    uint64_t bare_block_size; /* of blocks without a header, */
    uint64_t bare_scale;      /* and bytes of a scale in them; 0: there are no such blocks */
} wm_amb_section;
typedef struct {
    uint64_t n_tensors, n_dims, names_len;
    uint64_t odd_padding; /* where padding is not 0; 0 for nowhere */
    uint64_t unpadded;    /* where the padding of the last record should be and is not; 0 when it is there */
    int32_t part;         /* with a fault: the field that it is about */
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

/* ------------------------------------------------------------------------------------------------- finalfusion
 * Lists of strings as its vocabularies have them: each entry is a u32 length, that many bytes, and `tail` bytes: 0 after
 * words, 8 after n-grams, whose index they are.
 */
/* Walks as many of `count` entries as lie whole in data[0, len), from data[0] on. Returns the bytes that they take, and
 * their number in *walked: a list may be walked in pieces. */
uint64_t wm_fifu_skip(const uint8_t *data, uint64_t len, uint64_t count, uint32_t tail, uint64_t *walked);
/* Walks `count` n-grams with their indices (tail 8). Fills bounds (count + 1 entries, gap 12: string i is data[bounds[i],
 * bounds[i+1] - 12)) and indices (count entries). What lies past 2^32 - 5 bytes does not fit. Returns the number of bytes
 * walked, or -1 - i when n-gram i does not fit. */
int64_t wm_fifu_ngrams(const uint8_t *data, uint64_t len, uint64_t count, uint32_t *bounds, uint64_t *indices);

/* ------------------------------------------------------------------------------------------- tables of tensors
 * Checks of a whole index in one call, by the same rules whether it lies in columns or in records. Of every row: dtype known,
 * number of dimensions in bounds, unused dimensions 0, bytes without overflow and, where an end is declared, as many as that
 * says, range, alignment, rising order without overlap, holes of at most max_gap bytes; with `lax` not 0 order, overlap and holes
 * are not looked at. A tensor that ends past `data_size`, the size of the data section from which offsets count, is TABLE_RANGE;
 * 2^64 - 1 where the format declares none. One that ends past `room`, the bytes of the file from there on, is TABLE_TRUNCATED.
 */
typedef struct {
    uint64_t min_ndim, max_ndim;
    uint64_t alignment; /* a power of two; every offset must be a multiple; 0 or 1 for none */
    uint64_t max_gap;   /* bytes of padding allowed before a tensor and after the last: 0 back to back */
    uint8_t bits[256];  /* by dtype code: bits of one element; 0: no such code; or WM_BITS_DECLARED */
} wm_rules;
/* For a dtype whose tensors take the bytes from their begin to their end, whatever their shape: so do quantised ones. */
enum { WM_BITS_DECLARED = 255 };
/* Checks the first n tensors of the columns, which have n_dims dimensions and names_len bytes of names together, and that the
 * names are unique and, with `utf8` not 0, UTF-8. columns->end may be NULL. Returns 0, or -1 with *fault filled. */
int wm_columns_check(const wm_columns *columns, uint64_t n, uint64_t n_dims, uint64_t names_len, int utf8,
                     const wm_rules *rules, uint64_t data_size, uint64_t room, int lax, wm_fault *fault);
/* The first of n tensors that is called `name`, by one pass; or -1. */
int64_t wm_columns_find(const wm_columns *columns, uint64_t n, uint64_t names_len, const uint8_t *name, uint64_t name_len);
/* Checks an index as EMBD has it, in index[0, len): n records of 32 bytes (u32 name_hash, u8 dtype, u8 ndim, u16 name_length,
 * 4 x u32 shape, u64 offset), then their names back to back, each UTF-8, hashed right, and unique. Returns the bytes that the
 * names take, or -1 with *fault filled. */
int64_t wm_records_check(const uint8_t *index, uint64_t len, uint64_t n, const wm_rules *rules, uint64_t data_size,
                         uint64_t room, int lax, wm_fault *fault);
/* The first record of such an index whose stored hash, length and name are those of `name`, by one pass; or -1. */
int64_t wm_records_find(const uint8_t *index, uint64_t len, uint64_t n, const uint8_t *name, uint64_t name_len);
/* Checks `count` pairs "u16 klen, u16 vlen, key, value" in data[0, len): structure, UTF-8, keys unique, and that they end
 * where data ends. Returns 0, or -1 with *fault: NAME_RANGE (row: the pair that does not fit, or count when bytes are
 * left, at: where), NAME_UTF8, NAME_DUPLICATE, NAME_FLOOD (all but the uniqueness of the keys has been checked), MEMORY. */
int wm_pairs_check(const uint8_t *data, uint64_t len, uint64_t count, wm_fault *fault);

/* ----------------------------------------------------------------------------------------------------- files */
/* Maps size bytes of the file behind fd. `kind` is 0: read-only and shared; 1: private and writable; 2: read-only and
 * private, for sealed memory. Keeps no descriptor. Returns the address, or NULL with an errno in *error (ENOSYS on systems
 * without mmap). */
uint8_t *wm_map(int fd, uint64_t size, int kind, int *error);
/* Ends a mapping. */
void wm_unmap(uint8_t *map, uint64_t size);
/* Tells the kernel how the pages of a mapping will be touched: 0 as it thinks best, 1 here and there, 2 from the beginning
 * to the end. Returns 0 or an errno (ENOSYS on systems without such advice). */
int wm_advise(uint8_t *map, uint64_t map_size, int advice);
/* Asks the kernel to bring in size bytes from `offset` on of a mapping of map_size bytes; returns at once. 0 or an errno. */
int wm_will_need(const uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size);
/* Brings in these bytes and maps their pages, so that touching them is no fault; returns when they are there. Where the
 * system cannot (Linux before 5.14, other systems), does what wm_will_need does. Where the mapping was advised that it is
 * touched here and there, `scattered` must not be 0, or each page would be a read of its own. Returns 0 or an errno: EFAULT
 * when the file has become shorter, and nothing worse then. */
int wm_populate(const uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size, int scattered);

/* What a file was when it was opened. */
typedef struct {
    int fd;
    uint32_t mode; /* its kind and permissions, as stat has them */
    uint64_t size, device, inode;
    int64_t mtime_ns; /* since the epoch, modulo 2^64 */
} wm_file;
/* Looks at the file behind a descriptor. Returns 0 or an errno (ENOSYS on systems where Python has to look). */
int wm_look(int fd, wm_file *file);
/* 1 when the file behind file->fd still has this size and modification time, 0 when not, -errno on failure. */
int wm_unchanged(const wm_file *file);
