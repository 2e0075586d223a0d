/* The interface of the C module: this file and scans.h, which scans the indexes of files.
 *
 * Both are read twice: by the C compiler, and by cffi, which gets them without the lines that begin with '#'.
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
#include "scans.h"
#endif

/* ------------------------------------------------------------------------------------------ instruction sets
 * A tier is a named set of CPU features; each contains the one before it. Tiers: on x86 "portable" < "sse4" < "avx2" <
 * "avx512" < "avx512icl" (VPCLMULQDQ, GFNI, VBMI); on arm64 "portable" < "neon" (CRC32 and PMULL). Each kernel uses
 * the best variant whose features lie within the chosen tier and within the CPU.
 */
const char *wm_isa_name(int tier);    /* the tier's name; NULL when there is no such tier on this architecture */
int wm_isa_available(int tier);       /* 1 when this CPU has all features of the tier */
int wm_isa_selected(void);            /* the tier in use; the best available one after loading */
int wm_isa_select(int tier);          /* use this tier from now on, in all threads; 0, or -1 when not available */
const char *wm_crc32_variant(void);   /* name of the function in use for long inputs: "crc32_x86_pclmulqdq", ... */
const char *wm_fnv1a32_variant(void); /* the same for batches of names */
const char *wm_f16_to_f32_variant(void);
const char *wm_bf16_to_f32_variant(void);
const char *wm_intblock_variant(void);     /* and for quantised blocks */
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
int64_t wm_first_not_finite(const float *x, uint64_t n);
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
int64_t wm_index_build(const uint8_t *data, uint64_t len, const uint32_t *bounds, uint64_t n, uint32_t gap, uint32_t *slots,
                       uint64_t capacity, uint64_t *duplicate, uint64_t *original);
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
    uint64_t size;          /* of the hashed kinds */
    uint64_t first_row;     /* added modulo 2^64 */
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
                       const uint64_t *plan, uint64_t n_plan, uint64_t first, void *out, uint64_t count, int half, int threads);
/* Puts such data together from all blocks in each kind, as wm_blocks_encode made them: of block b that of kind kinds[b]. Returns
 * 0, or -1 when a kind or a size is not as it should be. */
int64_t wm_adaptive_encode(const uint8_t *kinds, uint64_t blocks, int scale_type, uint64_t block_size, const uint8_t *int4,
                           uint64_t int4_size, const uint8_t *int5, uint64_t int5_size, const uint8_t *halves,
                           uint64_t halves_size, uint8_t *out, uint64_t out_size);

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
int wm_fstat(int fd, wm_file *file);
/* 1 when the file behind file->fd still has this size and modification time, 0 when not, -errno on failure. */
int wm_unchanged(const wm_file *file);
