/* The interface of the C module: this file, scans.h for the indexes of files, and archives.h for archives.
 *
 * The C compiler reads all three, and so does cffi, without the lines that begin with '#'. So there are no macros, constants are
 * enums, and the contract of every function stands here.
 *
 * Rules that hold for every function
 *   - It holds no lock, touches no Python and keeps no state but the table of chosen variants: calls run without the GIL.
 *   - It takes a length for every pointer, in and out, and checks before it reads or writes. A length of 0 allows a null
 *     pointer.
 *   - It is total: any bytes give a result or an error code, and no bytes a crash or an endless loop.
 *   - Multi-byte integers in files are little-endian and may lie at any alignment.
 */
#ifndef WEIGHTMAP_KERNELS_H
#define WEIGHTMAP_KERNELS_H
#include "core/scans.h"

#include "core/archives.h"
#endif

/* ------------------------------------------------------------------------------------------ instruction sets
 * A tier is a named set of CPU features; each contains the one before it. Tiers: on x86 "portable" < "sse4" < "avx2" <
 * "avx512" < "avx512icl" (VPCLMULQDQ); on arm64 "portable" < "neon" (CRC32 and PMULL). Each kernel uses the best
 * variant whose features both the chosen tier and the CPU have; "avx2" uses VPCLMULQDQ too where the CPU has it.
 */
const char *wm_isa_name(int tier); /* the tier's name; NULL when there is no such tier on this architecture */
int wm_isa_available(int tier);    /* 1 when this CPU has all features of the tier */
int wm_isa_selected(void);         /* the tier in use; the best available one after loading */
int wm_isa_select(int tier);       /* use this tier from now on, in all threads; 0, or -1 when not available */
uint64_t wm_stream_least(void);    /* bytes read and written from which outputs bypass the caches; UINT64_MAX: never */
/* The function in use for a kernel of internal.h, for long inputs: "crc32_x86_pclmulqdq" for "crc32"; NULL for another name. */
const char *wm_variant(const char *name);

/* --------------------------------------------------------------------------------------------------- CRC-32
 * The CRC-32 of zlib, PNG and Ethernet: reflected polynomial 0xEDB88320, initial value and final XOR 0xFFFFFFFF.
 */
/* CRC of `data` appended to bytes whose CRC is `crc` (0 for none). Uses up to `threads` threads, fewer for small inputs. */
uint32_t wm_crc32(uint32_t crc, const uint8_t *data, uint64_t len, int threads);
/* CRC of A followed by B, from crc1 of A, crc2 of B and the length of B. O(log len2). */
uint32_t wm_crc32_combine(uint32_t crc1, uint32_t crc2, uint64_t len2);

/* These add built-in functions to the module weightmap._kernels, for short inputs, where the call is the cost, and for work on
 * Python's own objects (python/builtin.h). They alone touch Python; weightmap.core.native calls each once. Return 0, or -1.
 * crc32(data, value=0, *, threads=1), fnv1a32(data), fnv1a64(data), with their documentation in this order, signature first,
 * ended by NULL; these texts must stay in memory. */
int wm_python_functions(const char *const *docs);
/* Descriptor, own, map_file, new_memory and with_temporary: see python/owners.c. */
int wm_python_owners(void);
/* finder and placer: see python/lookups.c. */
int wm_python_lookups(void);
/* dlpack: see python/dlpack.c. */
int wm_python_dlpack(void);

/* --------------------------------------------------------------------------------------------------- FNV-1a */
uint32_t wm_fnv1a32(const uint8_t *data, uint64_t len);
uint64_t wm_fnv1a64(const uint8_t *data, uint64_t len);
/* FNV-1a 32 of n names in `blob`, `gap` bytes between each two (0: back to back; 2 or 4: each name follows a length prefix
 * that the caller has read already, and blob starts at the first byte of the first name). Name i has lengths[i] bytes.
 * Returns -1 when done, or the number of the first name that does not fit in `blob` (hashes before it are written). */
int64_t wm_fnv1a32_many(const uint8_t *blob, uint64_t blob_len, const uint32_t *lengths, uint64_t n, uint32_t gap,
                        uint32_t *out);

/* ------------------------------------------------------------------------------------------- large memory
 * Memory of at least `size` bytes for a large array, with undefined contents, in huge pages where the system has them. NULL
 * when there is none, and on systems other than Linux. */
void *wm_memory_new(uint64_t size);
/* Frees it, or keeps it for the next such array, as memory that the system may reclaim. */
void wm_memory_free(void *memory);

/* --------------------------------------------------------------------------------------------------- halves
 * Convert n little-endian elements of 16 bits, in[0, 2n), at any alignment, to floats out[0, n). Use up to `threads` threads,
 * fewer for little work. No bit of the result depends on the CPU. Return 0, or -1 when `in` and `out` overlap.
 */
/* IEEE 754 binary16, exactly: zeros, subnormal numbers and infinities too. A NaN keeps its sign and its fraction, moved up by
 * 13 bits, and becomes quiet: bit 22 is set. */
int wm_f16_to_f32(const uint8_t *in, float *out, uint64_t n, int threads);
/* bfloat16: the bits move up by 16; a signalling NaN stays one. */
int wm_bf16_to_f32(const uint8_t *in, float *out, uint64_t n, int threads);
/* Rounds n floats to binary16, to nearest, ties to even: out[0, 2n), little-endian. A NaN becomes quiet. */
int wm_f32_to_f16(const float *in, uint8_t *out, uint64_t n);

/* ---------------------------------------------------------------------------------------------------- lookups
 * Codes with scales of blocks of `height` rows and `width` columns:
 *   out[r][c] = (values[code of row r, column c] - zeros[b]) * scales[b] * factor + biases[b]
 * in float32, as type 0, or rounded once, ties to even, to float16 (type 1) or bfloat16 (type 2). Row r begins at codes + r *
 * row_bytes, with codes of 1 to 8 bits end to end, lowest bits first; with `high_first`, codes of 4 bits, the high half first.
 * `values` has 2^bits numbers. Blocks at the edges may be smaller, and the first ones begin `before` rows earlier. b numbers the
 * blocks row by row; with `which`, it is which[number of the block], for at most 256 scales. `zeros` and `biases` may be NULL.
 * Uses up to `threads` threads, fewer for little work. Returns 0; -1 for sizes that do not fit together, or a block without a
 * scale; -2 when `out` overlaps an input; -3 without memory.
 */
int wm_lookup(const uint8_t *codes, uint64_t codes_size, int bits, int high_first, uint64_t row_bytes, uint64_t rows,
              uint64_t columns, uint64_t before, uint64_t height, uint64_t width, const float *values, const float *scales,
              const float *zeros, const float *biases, uint64_t n_scales, const uint8_t *which, uint64_t n_which, float factor,
              int type, uint8_t *out, uint64_t out_size, int threads);

/* Integers of 1 to 8 bits with scales and zero points of groups, and codes that lie transposed:
 *   out[o][c] = scales[group[c]][o] * (q - zeros[group[c]][o])
 * in float32, as type 0, or rounded once, ties to even, to float16 (type 1) or bfloat16 (type 2). `words` are little-endian words of
 * 32 bits at any address: with `packing` 0 (columns * bits / 32, rows), the codes of each output end to end, lowest bits first; with
 * 1 (columns, rows / 8), nibbles in the order of AWQ. `n_scales` is a multiple of `rows`. Uses up to `threads` threads, fewer for
 * little work. Returns 0; -1 for sizes that do not fit together, or a group without scales; or -2 when `out` overlaps an input.
 */
int wm_groups_decode(const uint8_t *words, uint64_t words_size, int bits, int packing, const uint32_t *group, uint64_t columns,
                     const float *scales, const float *zeros, uint64_t n_scales, uint64_t rows, int type, uint8_t *out,
                     uint64_t out_size, int threads);

/* ------------------------------------------------------------------------------------------ quantised blocks
 * Integers q of `bits` bits in two's complement: value = scale * q, one multiplication of float32. A scale of type 0 is a
 * float32, of type 1 a float16, widened exactly. Codes lie back to back, the first in the lowest bits of byte 0.
 *   block_size > 0   [scale][codes] for each block_size elements, the last block whole; even for 4 bits, a multiple of 8 for 5,
 *                    at most 2^32
 *   block_size 0     one scale, then the codes of all elements
 * NaN, from a scale of NaN or infinity times 0, is the float32 0x7FC00000 on every CPU.
 */
/* Bytes of n elements, for 4, 5 or 8 bits; or -1 for other bits, an illegal block size, or n above 2^56. */
int64_t wm_blocks_size(int bits, int scale_type, uint64_t block_size, uint64_t n);
/* Decodes elements [first, first + count) of the n elements in data[0, size), at any alignment, to float32 or, with `half` not
 * 0, to float16, rounded from it with ties to even. `out` is aligned for its type. Uses up to `threads` threads. Returns 0, -1
 * for a size other than wm_blocks_size or a range outside the n elements, or -2 when data and out overlap. */
int wm_blocks_decode(const uint8_t *data, uint64_t size, int bits, int scale_type, uint64_t block_size, uint64_t n,
                     uint64_t first, void *out, uint64_t count, int half, int threads);

/* Returns how many of n elements of a kind differ in their bytes, or -1 for an unknown kind. *largest becomes their largest
 * absolute difference, in float64, and *squares the sum of the squared differences; NaN if one of these is. Both arrays may lie
 * at any alignment. */
enum { WM_FLOAT32 = 0, WM_FLOAT64 = 1, WM_FLOAT16 = 2, WM_BFLOAT16 = 3 };
int64_t wm_differing(const uint8_t *a, const uint8_t *b, uint64_t n, int kind, double *largest, double *squares);

/* The index of the first element that is NaN or infinite, or -1. */
int64_t wm_first_not_finite(const float *x, uint64_t n);
/* The sum of the squares of x[0, n), in float64; the same on every CPU. */
double wm_sum_of_squares(const float *x, uint64_t n);

/* ------------------------------------------------------------------------------------------- blocks of ggml
 * The block types of GGUF files, by ggml's numbers: 2 is Q4_0. Every type that gguf-py 0.19 decodes is known, and q1_0 and q2_0.
 */
/* Elements and bytes of a block; 0 for an unknown type. */
int wm_ggml_elements(int type);
int wm_ggml_bytes(int type);
/* Like wm_blocks_decode, for n elements in whole blocks. Every NaN among the values is the float32 0x7FC00000. */
int wm_ggml_decode(const uint8_t *data, uint64_t size, int type, uint64_t n, uint64_t first, void *out, uint64_t count,
                   int half, int threads);
/* Whether wm_ggml_encode knows a type: q4_0 to q8_0, q2_k to q6_k, iq4_nl and mxfp4. */
int wm_ggml_encodes(int type);
/* Quantises x[0, n), whole blocks, to such data in out[0, out_size). q4_0 to q8_0 get the bytes of gguf-py; for the others
 * a search minimises the squared error. Bytes depend neither on the CPU nor on the number of threads. A scale too
 * large for float16 becomes the largest finite one. `errors`, unless NULL, gets the sum of the squared errors of each block.
 * Returns -1 when done, the index of the first element that is NaN or infinite (nothing is written then), or -2 for a type or
 * sizes that do not fit. */
int64_t wm_ggml_encode(const float *x, uint64_t n, int type, uint8_t *out, uint64_t out_size, double *errors, uint64_t n_errors,
                       int threads);

/* ---------------------------------------------------------------------------------- quantising from file to file
 * n little-endian numbers of a kind, at any alignment, from byte `at` on of a file or, if `memory` is not NULL, of `size` bytes of
 * stable memory.
 */
typedef struct {
    int fd;
    const uint8_t *memory;
    uint64_t size, at;
    int kind; /* WM_FLOAT32 ... */
    uint64_t n;
} wm_numbers;
/* Blocks of ggml's type or, if it is -1, as of wm_blocks_size. A search finds scales of small squared error; codes are the nearest to
 * x / scale (in float32, ties to even) within range. A block of zeros gets a scale of 0; a scale too large for its type becomes the
 * largest finite one. With a block_size of 0, wm_search_scale fills in `scale`. */
typedef struct {
    int type, bits, scale_type;
    uint64_t block_size;
    float scale;
} wm_blocks;
/* Bytes still to be written to a file. `flush` not 0: the disk begins with them at once, if the system can. */
typedef struct {
    int fd;
    const uint8_t *data;
    uint64_t size, at;
    int flush;
} wm_unwritten;
/* The outcome: done; number `at` is the first that is NaN or infinite; a file failed at byte `at`, with an errno (0: it ends there);
 * or the arguments do not fit. */
enum { WM_DONE = 0, WM_NOT_FINITE = 1, WM_UNREADABLE = 2, WM_UNWRITABLE = 3, WM_UNFIT = 4, WM_OTHER_UNREADABLE = 5 };
typedef struct {
    int what;
    uint64_t at;
    int error;
} wm_outcome;
/* Bytes of `room` that up to `threads` threads need to quantise these numbers; 0 for unknown kinds of numbers or blocks. */
uint64_t wm_quantize_room(const wm_numbers *numbers, const wm_blocks *blocks, int threads);
/* Searches the one scale of all numbers, which it reads several times. Takes the `room` of one thread. */
void wm_search_scale(const wm_numbers *numbers, wm_blocks *blocks, uint8_t *room, uint64_t room_size, wm_outcome *outcome);
/* Quantises the numbers to out[0, out_size): exactly their blocks, or all codes behind one scale. The bytes do not depend on the
 * CPU or the number of threads. Also writes the bytes that an earlier call left, unless NULL. Sums up the squared errors and the
 * squares. Up to `threads` threads work, as `room` allows. */
void wm_quantize_numbers(const wm_numbers *numbers, const wm_blocks *blocks, uint8_t *out, uint64_t out_size, double sums[2],
                         uint8_t *room, uint64_t room_size, const wm_unwritten *earlier, int threads, wm_outcome *outcome);

/* n pieces of two files: counts[i] numbers of a kind, at most `max` bytes (a multiple of 8), from bytes from_a[i] and from_b[i] on. */
typedef struct {
    int a, b, kind;
    const uint64_t *from_a, *from_b, *counts;
    uint64_t n, max;
} wm_pairs;
/* Compares them as wm_differing does: counts[i], results[2 * i] and results[2 * i + 1] become its results for piece i. A thread
 * needs 2 * max bytes of `room`, aligned to 8: `room` and `threads` limit the number of threads, and little work takes fewer. */
void wm_differing_files(const wm_pairs *pairs, int64_t *counts, double *results, uint8_t *room, uint64_t room_size, int threads,
                        wm_outcome *outcome);

/* -------------------------------------------------------------------------------------- checksum of a part of a file
 * Bytes [at, at + size) of a file or, if `memory` is not NULL, of memory_size bytes of stable memory; and the n_gaps ranges of
 * padding in it, from byte gaps[2 * i] up to gaps[2 * i + 1], in rising order and apart.
 */
typedef struct {
    int fd;
    const uint8_t *memory;
    uint64_t memory_size, at, size;
    const uint64_t *gaps;
    uint64_t n_gaps;
} wm_summed;
enum { WM_SUM_ROOM = 262144 };
/* Continues *crc, the CRC-32 of the bytes before, over these; filled[i] becomes 1 if gap i has a byte here that is not 0. A
 * thread needs WM_SUM_ROOM bytes of `room`: it and `threads` limit their number, and few bytes take fewer. */
void wm_crc32_of_part(const wm_summed *in, uint8_t *filled, uint64_t n_filled, uint32_t *crc, uint8_t *room, uint64_t room_size,
                      int threads, wm_outcome *outcome);

/* ------------------------------------------------------------------------------- length-prefixed strings
 * `bounds` describes n strings in `data`: string i is data[bounds[i], bounds[i+1] - gap), so bounds has n + 1 entries
 * and `gap` is the width of the length prefix that stands before each string (0 when there is none).
 */
/* Walks `count` strings from data[0] on, each behind a little-endian length of `width` (2, 4 or 8) bytes. Fills `bounds`, unless
 * it is NULL, with count + 1 entries as above for gap = width (strings beyond 2^32 - width bytes do not fit). Returns the
 * bytes walked, or -1 - i when string i does not fit. */
int64_t wm_walk_strings(const uint8_t *data, uint64_t len, uint64_t count, int width, uint32_t *bounds);
/* Checks that each of the n strings is strict UTF-8 (no overlong forms, no surrogates, at most U+10FFFF). Returns -1, or the
 * number of the first string with other bytes, or with bounds outside of data or not in rising order. */
int64_t wm_utf8_strings(const uint8_t *data, uint64_t len, const uint32_t *bounds, uint64_t n, uint32_t gap);

/* Builds a hash index over n strings (index.c). `capacity` is a power of two, at least 4/3 n and at most 2^32. Only
 * wm_index_lookup and wm_index_find_many read the slots. Of equal strings the first is kept. Returns the number of strings that equal an
 * earlier one (the first such in *duplicate, its earlier twin in *original); -1 for bounds that do not lie in data in rising
 * order or a bad capacity; or -2 when hashes collide so much (64 different strings of one hash, or 256 slots probed) that the
 * table would be slow, which only crafted strings cause. */
int64_t wm_index_build(const uint8_t *data, uint64_t len, const uint32_t *bounds, uint64_t n, uint32_t gap, uint32_t *slots,
                       uint64_t capacity, uint64_t *duplicate, uint64_t *original);
/* The number of the string equal to name[0, name_len), or -1. Safe for any contents of `data` and `slots`. */
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
/* wm_index_lookup for many names at once: name i is names[name_bounds[i], name_bounds[i+1]); out[i] = number or -1.
 * Returns 0, or -1 for name_bounds that do not lie in names in rising order or a bad capacity. */
int wm_index_find_many(const uint8_t *data, uint64_t len, const uint32_t *bounds, uint64_t n, uint32_t gap,
                       const uint32_t *slots, uint64_t capacity, const uint8_t *names, uint64_t names_len,
                       const uint32_t *name_bounds, uint64_t n_names, int64_t *out);

/* ---------------------------------------------------------------------------------------------------- subwords
 * Rows of the character n-grams of words that are not in a vocabulary. The n-grams of a text have min_n to max_n characters; they
 * are listed from each character on in turn, the longest first. Kinds:
 *   bucket    row = first_row + (FNV-1a 64 over the number of characters as u64 and each as u32, modulo size, a power of two)
 *   fastText  row = first_row + (FNV-1a 32 over the UTF-8, a byte taken as signed by the XOR, modulo size < 2^32)
 *   explicit  row = first_row + indices[number of the n-gram in the index]; an n-gram that is not there has no row
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
/* Writes the rows of the n-grams of n texts: for text i = texts[bounds[i], bounds[i+1]), brackets "<" and ">" included, to
 * rows[row_bounds[i], row_bounds[i+1]). row_bounds has n + 1 entries. Returns the number of rows; when it exceeds cap,
 * `rows` is filled only in part, and the caller repeats the call with more room. Returns -1 for bounds that do not lie in
 * texts in rising order or a bad kind, or -2 - i when text i has more than WM_NGRAMS_MOST n-grams, with or without rows. */
int64_t wm_subword_rows(const wm_subwords *subwords, const uint8_t *texts, uint64_t len, const uint32_t *bounds, uint64_t n,
                        uint64_t *rows, uint64_t cap, uint64_t *row_bounds);
/* Sums of rows, each divided by its L2 norm; a sum of zeros stays one. The matrix lies in matrix[0, size), rows of dims float32
 * at any alignment. Sum i adds the rows rows[bounds[i], bounds[i+1]), of n_rows in all, in this order in float32. It goes to
 * row places[i] (or i with places NULL) of `out`, which has out_rows rows; places do not repeat. norms[i], unless norms is
 * NULL, gets its norm, computed in double precision. Returns -1 when done, the number of the first sum with a row outside the
 * matrix, or -2 for bad bounds or places. */
int64_t wm_unit_sums(const uint8_t *matrix, uint64_t size, uint64_t dims, const uint64_t *rows, uint64_t n_rows,
                     const uint64_t *bounds, const uint64_t *places, uint64_t n, float *out, uint64_t out_rows, float *norms,
                     int threads);

/* Copies rows of row_bytes from matrix[0, size) to out[0, out_size): row i is row rows[i], or zeros when rows[i] is negative or
 * too large. Returns 0, or -1 when out is too small for n rows. */
int wm_gather_rows(const uint8_t *matrix, uint64_t size, uint64_t row_bytes, const int64_t *rows, uint64_t n, uint8_t *out,
                   uint64_t out_size, int threads);

/* ---------------------------------------------------------------------------------------- product quantisation
 * n_rows rows of `pieces` codes. Piece j of a row is the `width` floats codebooks[j][code], one of n_centroids. The row is then
 * multiplied by the projection, unless NULL (transposed, dims x dims for dims = pieces * width), and by norms[row], unless
 * norms is NULL. Codes may change while they are read; all floats are aligned and of their full size.
 */
enum { WM_PQ_TOGETHER = 8 };
typedef struct {
    const uint8_t *codes;
    const float *codebooks, *projection, *norms;
    uint64_t codes_size, codebooks_size, projection_size, norms_size; /* how many elements each has; 0 for NULL */
    uint64_t n_rows, pieces, n_centroids, width;
} wm_pq;
/* Decodes `count` rows to out[0, out_size), out_size = count * dims: rows[0, count) or, with rows NULL, those from `first` on. A
 * projection needs n_scratch floats in `scratch`, WM_PQ_TOGETHER * dims for each thread. Returns -1 when done; the position,
 * among all codes, of one that is not below n_centroids; or -2 for missing rows, too little scratch, or sizes that do not
 * fit. */
int64_t wm_pq_decode(const wm_pq *pq, const uint64_t *rows, uint64_t first, uint64_t count, float *out, uint64_t out_size,
                     float *scratch, uint64_t n_scratch, int threads);
/* out[i] = sum over j of table[j * n_centroids + code j of row first + i], in the order of j in float32, for i < count;
 * table_size = pieces * n_centroids. Returns as above. */
int64_t wm_pq_sums(const wm_pq *pq, const float *table, uint64_t table_size, uint64_t first, uint64_t count, float *out);

/* ------------------------------------------------------------------------------------------ adaptive blocks
 * Blocks of different kinds, [mask][scales][codes]; block_size is a multiple of 8. The mask has 2 bits for each block, the first
 * block in the lowest bits of byte 0: 0 int4, 1 int5, 2 float16; bits after the last block are 0. Then come the scales of the
 * int4 and int5 blocks, and the codes of every block, 4, 5 or 16 bits an element, the last block whole.
 */
/* The number of entries in a plan for n elements. A plan is a private copy of the facts that decoding needs: the total of
 * int5 and of float16 blocks; the same counts before every 1024th block, from block 0 on; the mask, padded to whole numbers. */
uint64_t wm_adaptive_plan_size(uint64_t block_size, uint64_t n);
/* Checks data of `size` bytes as n elements by their mask, reads nothing else, and the mask once; fills plan[0, n_plan). So the
 * plan is consistent even if the file changes. Returns 0, or -1 with *fault: ADAPTIVE_SIZE, ADAPTIVE_MASK, ADAPTIVE_PADDING;
 * NONE for arguments that allow no such blocks, or when n_plan is not the size of the plan. */
int wm_adaptive_check(const uint8_t *data, uint64_t size, int scale_type, uint64_t block_size, uint64_t n, uint64_t *plan,
                      uint64_t n_plan, wm_fault *fault);
/* Like wm_blocks_decode, for such data, by the plan made for them; does not read their mask. Returns 0 when every element was
 * written; -1 for another size than the plan's, a range outside the n elements, or a plan that wm_adaptive_check did not make; or
 * -2 when data and out overlap. A block of float16 is decoded as by wm_f16_to_f32. */
int wm_adaptive_decode(const uint8_t *data, uint64_t size, int scale_type, uint64_t block_size, uint64_t n,
                       const uint64_t *plan, uint64_t n_plan, uint64_t first, void *out, uint64_t count, int half, int threads);
/* Chooses a kind for each block of n elements, so that scales and codes take at most `budget` bytes and the squared error is small;
 * up to `threads` threads. Leaves its choice in `room`, wm_adaptive_room numbers, for wm_adaptive_encode. Returns the size of the
 * data; -1 for sizes that do not fit, or a budget too small for int4; -2 - i for an element i that is not finite. */
uint64_t wm_adaptive_room(int scale_type, uint64_t block_size, uint64_t n);
int64_t wm_adaptive_choose(const float *x, uint64_t n, int scale_type, uint64_t block_size, uint64_t budget, uint64_t *room,
                           uint64_t room_size, int threads);
/* Writes the data, out[0, out_size), of the same elements and their room. An element too large for float16 becomes its largest
 * number. Returns 0, or -1 for another size than wm_adaptive_choose returned. */
int wm_adaptive_encode(const float *x, uint64_t n, int scale_type, uint64_t block_size, uint64_t *room, uint64_t room_size,
                       uint8_t *out, uint64_t out_size);

/* ---------------------------------------------------------------------------------------------------- ranges */
/* Joins n ranges, starts[i] to stops[i] of file files[i], in order of file and start, into reads, in place; sizes[i] becomes the
 * bytes of ranges in read i, each counted once. Ranges that touch, overlap or lie closer than `gap` are one read, while it is at
 * most `ratio` times their bytes. Empty ranges make no read. Returns the number of reads. */
uint64_t wm_join_ranges(uint32_t *files, uint64_t *starts, uint64_t *stops, uint64_t *sizes, uint64_t n, uint64_t gap,
                        double ratio);

/* --------------------------------------------------------------------------------------------------- staging
 * Pieces of a file, or with fd -1 of memory, to be copied to out[0, out_size): sizes[i] bytes from from[i] on, to to[i] on.
 */
typedef struct {
    int fd;
    const uint8_t *memory;
    uint64_t memory_size;
    const uint64_t *from, *to, *sizes;
    uint8_t *out;
    uint64_t out_size;
} wm_staging;
/* Copies n pieces with up to `threads` threads; crcs[i], unless `crcs` is NULL, becomes the CRC-32 of the bytes of piece i as they
 * are in `out`. Returns -1 when all are there, else the number of a piece that is not, with *error: an errno, or 0 when the file
 * ends within it; -1, and nothing is copied, for a piece that does not fit. (ENOSYS on Windows.) */
int64_t wm_stage(const wm_staging *staging, uint64_t n, uint32_t *crcs, int threads, int *error);
/* Asks that memory lies on a NUMA node, and moves its pages there: whole pages, as far as there is room. Returns 0 or an errno
 * (ENOSYS on systems other than Linux). */
int wm_prefer_node(uint8_t *memory, uint64_t size, int node);

/* ----------------------------------------------------------------------------------------------------- files */
/* Maps size bytes of the file behind fd, which it does not keep. `kind` 0: read-only and shared; 1: private and writable; 2:
 * read-only and private, for sealed memory; 3: private and writable memory, without a file (fd is -1). Returns the address, or NULL
 * with an errno in *error (ENOSYS without mmap). */
uint8_t *wm_map(int fd, uint64_t size, int kind, int *error);
/* Ends a mapping. */
void wm_unmap(uint8_t *map, uint64_t size);
/* Advises the kernel how a mapping will be read: 0 normally, 1 at random, 2 in sequence. Returns 0 or an errno (ENOSYS on
 * systems without such advice). */
int wm_advise(uint8_t *map, uint64_t map_size, int advice);
/* Asks the kernel to read size bytes from `offset` on of a mapping of map_size bytes; returns at once. 0 or an errno. */
int wm_will_need(const uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size);
/* Reads these bytes and maps their pages, so that touching them causes no page fault; returns when they are there. On systems
 * that cannot (Linux before 5.14, others than Linux) it does what wm_will_need does. For a mapping advised as random,
 * `scattered` must not be 0, or each page would be its own read. Returns 0 or an errno: EFAULT when the file has become
 * shorter. */
int wm_populate(const uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size, int scattered);

/* Unmaps the pages that hold size bytes from `offset` on of a mapping, without changing its content. `kind` 0: of a shared
 * mapping, for posix_fadvise drops no page that is mapped; 1: of a private one, whose changed pages stay: the kernel takes the
 * others back itself (Linux from 5.4 on, where the file is ours or may be written). Returns 0 or an errno. */
int wm_drop(uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size, int kind);
/* Writes for each page that holds one of size bytes from `offset` on of a mapping whether it is in memory: 1 or 0. n is the
 * number of these pages. Returns 0 or an errno (ENOSYS on systems other than Linux). */
int wm_resident(const uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size, uint8_t *pages, uint64_t n);
/* How many pages that hold one of size bytes from `offset` on of a file are in the page cache; or -errno: ENOSYS on systems
 * other than Linux, and before 6.5. */
int64_t wm_cached(int fd, uint64_t offset, uint64_t size);
/* The type of the file system of a file, from statfs; or -errno (ENOSYS on systems other than Linux). */
int64_t wm_file_system(int fd);
/* Starts writing size bytes of a file from `offset` on to the disk, and does not wait: a hint, on Linux alone. */
void wm_begin_flush(int fd, uint64_t offset, uint64_t size);
/* Reads n runs of `length` bytes each from a file, which begin at starts[i] in rising order, one after another into out. Asks
 * the kernel for their pages ahead, gaps of less than `gap` bytes included, which on a disk takes less time.
 * Returns the bytes read: fewer where the file ends, and with an errno in *error where it cannot be read (ENOSYS without pread). */
uint64_t wm_read_runs(int fd, const uint64_t *starts, uint64_t n, uint64_t length, uint64_t gap, uint8_t *out, int *error);
/* Bytes of a page of memory. */
uint64_t wm_page_size(void);

/* The state of a file when it was opened. */
typedef struct {
    int fd;
    uint32_t mode; /* its kind and permissions, as stat has them */
    uint64_t size, device, inode;
    int64_t mtime_ns; /* since the epoch, modulo 2^64 */
} wm_file;
/* Fills *file. Returns 0 or an errno (ENOSYS on systems where Python calls fstat itself). */
int wm_fstat(int fd, wm_file *file);
/* 1 when the file behind file->fd still has this size and modification time, 0 when not, -errno on failure. */
int wm_unchanged(const wm_file *file);
