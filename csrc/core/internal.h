/* Shared by all C files: target attributes, unaligned little-endian loads, the table of variants, threads. */
#ifndef WEIGHTMAP_INTERNAL_H
#define WEIGHTMAP_INTERNAL_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/kernels.h"

/* ---------------------------------------------------------------------------------------- architecture
 * A target attribute on each function compiles it for its instruction set, so no file needs its own flags. MSVC has no such
 * attribute and allows every intrinsic everywhere.
 */
#if defined(__x86_64__) || defined(_M_X64)
#define WM_X86 1
#include <xmmintrin.h> /* SSE, which every x86-64 has */
#elif defined(__aarch64__) && !defined(__AARCH64EB__) && defined(__GNUC__)
/* clang before 16 has these intrinsics only when the whole file is compiled for them. */
#if !defined(__clang__) || __clang_major__ >= 16 || (defined(__ARM_FEATURE_CRC32) && defined(__ARM_FEATURE_AES))
#define WM_ARM 1
#endif
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define WM_TARGET(features)
#define WM_INLINE static __forceinline
#define WM_NOINLINE static __declspec(noinline)
#else
#define WM_TARGET(features) __attribute__((target(features)))
#define WM_INLINE \
    static inline __attribute__((always_inline))     /* a call in place of it would be an error, not a hidden slow path */
#define WM_NOINLINE static __attribute__((noinline)) /* a long path, so that short ones need not save registers for it */
#endif

/* ------------------------------------------------------------------------------------------------ loads
 * Little-endian loads from any alignment. C allows memcpy alone for that; compilers make a single instruction of it.
 */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define WM_BIG_ENDIAN 1
static inline uint16_t load_le16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static inline uint32_t load_le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t load_le64(const uint8_t *p) { return (uint64_t)load_le32(p) | (uint64_t)load_le32(p + 4) << 32; }
#else
#define WM_BIG_ENDIAN 0
static inline uint16_t load_le16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint32_t load_le32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint64_t load_le64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
#endif

/* Returns the value and keeps the compiler from loading it again: a mapped file may change, and the value that was checked
 * must be the one that is used. */
static inline uint64_t read_once(uint64_t value) {
#if defined(__GNUC__)
    __asm__ volatile("" : "+r"(value));
#endif
    return value;
}

#if defined(_MSC_VER) && !defined(__clang__)
#define ATOMIC volatile /* MSVC reads and writes a volatile pointer or word whole and in order */
#else
#define ATOMIC _Atomic
#endif

/* Asks for the line of memory at an address. A hint: it never faults. */
#if defined(__GNUC__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

/* Ends streaming stores, if any: later writes become visible after them. */
static inline void end_streaming(int streamed) {
#if WM_X86
    if (streamed) _mm_sfence();
#else
    (void)streamed;
#endif
}

/* Whether two pieces of memory overlap. */
static inline int wm_overlap(const void *a, uint64_t a_size, const void *b, uint64_t b_size) {
    const uint64_t first = (uint64_t)(uintptr_t)a, second = (uint64_t)(uintptr_t)b;
    return a_size && b_size && first < second + b_size && second < first + a_size;
}

/* n / d, rounded up. */
static inline uint64_t ceil_div(uint64_t n, uint64_t d) { return n / d + (n % d != 0); }
/* a + b and a * b, or the largest value where they would wrap around. No size in a file equals that. */
static inline uint64_t add_capped(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }
static inline uint64_t mul_capped(uint64_t a, uint64_t b) { return b && a > UINT64_MAX / b ? UINT64_MAX : a * b; }

/* Fills *fault (unless it is NULL) and returns -1, so that a check is one line: return wm_fail(...). */
static inline int wm_fail(wm_fault *fault, int32_t code, uint64_t row, uint64_t at, uint64_t actual, uint64_t expected) {
    if (fault) *fault = (wm_fault){code, row, at, actual, expected};
    return -1;
}

/* Reads `min` to `max` bytes of a file from `at` on (read_at.c): by `read` if it is not NULL, else by pread. Returns the number of
 * bytes; if it is less than `min`, *error is an errno, or 0 at the end of the file. */
typedef struct {
    int fd;
    wm_read read;
    void *context;
} wm_readable;
uint64_t wm_read_at(const wm_readable *file, uint8_t *out, uint64_t min, uint64_t max, uint64_t at, uint64_t *error);

/* Fills row i of `out`, and the sums besides, from the first n bytes of entry i, at most WM_NPY_FIRST: see wm_npy. */
void wm_npy_add(const wm_zip_entries *entries, uint64_t i, const uint8_t *data, uint64_t n, wm_npy *out);

/* Writes the unwritten bytes (quantize_file.c). Returns 0, or -1 with *f filled. */
int wm_write_now(const wm_unwritten *w, wm_outcome *f);

/* Bytes of a number of a kind, WM_FLOAT32 and the others. */
static inline uint64_t wm_kind_size(int kind) { return kind == WM_FLOAT64 ? 8 : kind == WM_FLOAT32 ? 4 : 2; }

/* ------------------------------------------------------------------------------------------ CPU features
 * One bit each, set only when the operating system saves the registers too.
 */
enum {
    WM_SSE42 = 1 << 0, /* with SSSE3 and SSE4.1 */
    WM_PCLMULQDQ = 1 << 1,
    WM_AVX2 = 1 << 2,   /* with BMI2, FMA and F16C */
    WM_AVX512 = 1 << 3, /* F, BW, DQ, VL */
    WM_VPCLMULQDQ = 1 << 4,
    WM_ARM_CRC32 = 1 << 5,
    WM_ARM_PMULL = 1 << 6
};
uint32_t wm_cpu_features(void); /* cpu.c */

/* --------------------------------------------------------------------------------------- the variants in use
 * One struct of pointers for each tier, filled when the module is loaded. Selecting a tier swaps one pointer, so a call that
 * runs meanwhile ends with the variant that it began with.
 */
/* Takes and returns the register itself, without the inversions at both ends. Any length, 0 too. */
typedef uint32_t wm_crc32_fn(uint32_t state, const uint8_t *data, size_t len);
/* Hashes n names, `gap` bytes between each two, all within [first, end). Reads nothing outside. */
typedef void wm_fnv1a32_fn(const uint8_t *first, const uint8_t *end, const uint32_t *lengths, uint32_t gap, uint64_t n,
                           uint32_t *out);
/* How a kernel stores its output. */
enum {
    WM_CACHED,   /* in the ordinary way */
    WM_STREAMED, /* past the caches, whole lines at a time, so that memory is not read before it is written */
    WM_FETCHED   /* in the ordinary way, to lines that are prefetched */
};
/* Converts n halves to floats; `out` is aligned, `in` need not be. */
typedef void wm_half_fn(const uint8_t *in, float *out, uint64_t n, int storing);
/* Decodes `runs` runs of `len` >= 1 codes of 4, 5 or 8 bits: out[r * len + i] = scale r * code i of run r. Scale r lies at
 * scales + r * scale_stride, its codes at codes + r * stride. Reads nothing at or past `end`. `out` holds float32 or, with
 * `half` not 0, float16, rounded as by wm_narrow_fn. */
typedef struct {
    const uint8_t *scales, *codes, *end;
    uint64_t scale_stride, stride, runs, len;
    int scale_type, bits, half;
    int storing; /* WM_STREAMED does not touch the bytes of a line before `out` */
} wm_runs;
typedef void wm_intblock_fn(const wm_runs *runs, void *out);
/* Decodes whole blocks of different kinds (see adaptive.c) up to the first that needs care, steps over them in *blocks, and
 * returns their number: 0 from a variant that decodes none. */
typedef struct {
    const uint8_t *mask, *scales, *codes; /* the next scale and the next codes; the mask from block 0 on */
    const uint8_t *scales_end, *end;
    uint64_t next, last, len; /* blocks [next, last) of len elements, a multiple of 8 */
    int scale_type, half;
} wm_mixed;
typedef uint64_t wm_mixed_fn(wm_mixed *blocks, void *out);
/* Decodes n whole blocks of ggml's type of this number, which exists: see ggml_blocks.h. The kernel ggml_streamed always
 * streams, and the other never does. */
typedef void wm_ggml_fn(int type, const uint8_t *blocks, uint64_t n, float *out, int storing);
/* Quantises n whole blocks of finite floats to ggml's type of this number, one that wm_ggml_encodes. */
typedef void wm_ggml_quantize_fn(int type, const float *x, uint64_t n, uint8_t *out);
/* Stores lines of 64 bytes, past the caches if the CPU can; `out` begins with a line. */
typedef void wm_stream_fn(const float *values, float *out, uint64_t lines);
/* Rounds n floats to float16, ties to even; `out` need not be aligned. */
typedef void wm_narrow_fn(const float *values, uint64_t n, uint8_t *out);
/* Elements that are read several times: x holds `count` of them, from `first` on. Unless these are all, `fill` replaces them by
 * a window with element `at`; windows begin and end at multiples of 256, so that no sum depends on them. */
typedef struct wm_window {
    const float *x;
    uint64_t first, count;
    void (*fill)(struct wm_window *window, uint64_t at);
} wm_window;
/* Quantises blocks of n finite floats, each to a scale and n codes, `stride` bytes apart; fills the sums of the squared errors.
 * `which` numbers the blocks, from 0 on if it is NULL. `grid` holds codes to try for the element of largest magnitude; the scales of
 * short blocks are searched from `top` down to `bottom`. With a `window` only the scale of its n elements is searched and stored;
 * with a `scale` only codes are. */
enum { WM_GRID = 32 };
typedef struct {
    float grid[WM_GRID];
    float top, bottom;
    int bits, scale_type;
    uint64_t stride;
    wm_window *window;
    const float *scale;
} wm_quantizing;
typedef void wm_quantize_fn(const wm_quantizing *w, const float *x, const uint32_t *which, uint64_t blocks, uint64_t n,
                            uint8_t *out, double *errors);
/* quantize.c: the parameters for quantising blocks of `block` elements, 4, 5 or 8 bits each; they serve any number of blocks. */
wm_quantizing wm_quantizing_of(int bits, int scale_type, uint64_t block, uint64_t stride);
/* quantize.c: quantises n finite floats by it, the last block whole. */
void wm_quantize_finite(const wm_quantizing *how, uint64_t block, const float *x, uint64_t n, uint8_t *out, double *errors);

/* Adds to `sums` the differences between two arrays of n floats or, if `wide`, doubles: the number of elements with different bits,
 * the largest magnitude and the sum of squares, each in parts. A NaN makes the squares NaN and is ignored as a magnitude. */
enum { WM_APART = 16 };
typedef struct {
    uint64_t count;
    double max[WM_APART], squares[WM_APART];
    int nan; /* the caller's: whether elements that differ made the squares NaN */
} wm_apart;
typedef void wm_differ_fn(const void *a, const void *b, uint64_t n, int wide, wm_apart *sums);

/* sums[v] = vectors[v][0] * row 0 + vectors[v][1] * row 1 + ... of a dims x dims matrix, for v < count. */
typedef void wm_combine_rows_fn(const float *matrix, const float *vectors, unsigned count, uint64_t dims, float *sums);

/* Decodes rows [begin, end) of codes with scales and zero points of groups: see groups.h. */
typedef struct {
    const uint8_t *words;
    const uint32_t *group;
    const float *scales, *zeros, *values; /* the last are 0 to 15 */
    uint8_t *out;
    uint64_t rows, columns;
    int bits, packing, type;
    int in_runs, streaming; /* codes of at most 4 bits, one group for each RUN columns; and aligned lines */
} wm_grouped;
typedef void wm_groups_fn(const wm_grouped *w, uint64_t begin, uint64_t end);

/* Looks up n codes of `rows` rows, in blocks of `width`: see lookup.h. Codes have 4, 6 or 8 bits; the last two are bytes. Block b
 * uses table which[b], or b if `which` is NULL; a value has `bytes` bytes. Rows of codes lie `codes_apart` bytes apart, rows of
 * values `out_apart`. Output may be streamed if its lines and blocks are aligned to 64 bytes. With `numbers` other than
 * WM_ANY_NUMBERS a value is (number - zeros[table]) * scales[table], rounded; `zeros` may be NULL. */
enum { WM_ANY_NUMBERS, WM_INTEGERS, WM_E4M3 };
typedef struct {
    const uint8_t *codes, *tables, *which;
    uint8_t *out;
    uint64_t n, width, rows, codes_apart, out_apart;
    int bits, bytes, high_first, streaming;
    const float *scales, *zeros;
    int numbers, type;
} wm_looked;
typedef void wm_lookup_fn(const wm_looked *rows);
/* Makes n tables of `codes` values each, a multiple of 16: (values[q] - zeros[at]) * scales[at] * factor + biases[at] for at = i *
 * step. `zeros` and `biases` may be NULL: there are none. */
typedef struct {
    const float *values, *scales, *zeros, *biases;
    uint8_t *out;
    uint64_t n, step;
    unsigned codes;
    int type;
    float factor;
} wm_tabled;
typedef void wm_tables_fn(const wm_tabled *tables);

/* The kernels that have variants: the type and the name of each. */
#define WM_KERNELS(KERNEL)                     \
    KERNEL(wm_crc32_fn, crc32)                 \
    KERNEL(wm_fnv1a32_fn, fnv1a32)             \
    KERNEL(wm_half_fn, f16_to_f32)             \
    KERNEL(wm_half_fn, bf16_to_f32)            \
    KERNEL(wm_intblock_fn, intblock)           \
    KERNEL(wm_mixed_fn, mixed)                 \
    KERNEL(wm_ggml_fn, ggml)                   \
    KERNEL(wm_ggml_fn, ggml_streamed)          \
    KERNEL(wm_ggml_quantize_fn, ggml_quantize) \
    KERNEL(wm_stream_fn, stream)               \
    KERNEL(wm_narrow_fn, narrow)               \
    KERNEL(wm_quantize_fn, quantize)           \
    KERNEL(wm_differ_fn, differ)               \
    KERNEL(wm_combine_rows_fn, combine_rows)   \
    KERNEL(wm_groups_fn, groups)               \
    KERNEL(wm_lookup_fn, lookup)               \
    KERNEL(wm_tables_fn, tables)
#define WM_FIELDS(type, kernel) \
    type *kernel;               \
    const char *kernel##_name;
typedef struct {
    WM_KERNELS(WM_FIELDS)
} wm_variants;
const wm_variants *wm_variants_in_use(void); /* variants.c */
void wm_use_variants(const wm_variants *chosen);

/* FNV-1a: for each byte, hash = (hash ^ byte) * PRIME, beginning with OFFSET. See fnv1a.c. */
static const uint32_t FNV_OFFSET_32 = 0x811C9DC5, FNV_PRIME_32 = 0x01000193;
static const uint64_t FNV_OFFSET_64 = 0xCBF29CE484222325, FNV_PRIME_64 = 0x00000100000001B3;
/* Continues with the bytes p[0, len). */
static inline uint32_t fnv1a32_more(uint32_t hash, const uint8_t *p, uint64_t len) {
    for (uint64_t i = 0; i < len; i++) hash = (hash ^ p[i]) * FNV_PRIME_32;
    return hash;
}
/* fnv1a.c: the hashes of n names that the caller has already checked to lie within [first, end). */
wm_fnv1a32_fn wm_fnv1a32_run;

/* ------------------------------------------------------------------------------------------------ threads
 * Divides the work [0, n) into pieces. Each of at most `threads` threads (and WM_MAX_PARTS), numbered from 0, takes the next
 * piece until none is left, so that a thread that starts late or is held up does less. When run(context, thread, begin, end)
 * returns anything but 0, no thread takes another piece. Returns the thread whose piece failed, the first if several did; -1 if
 * none. Pieces are taken in order and ended when begun, so the first piece that fails is the same in every run.
 */
enum { WM_MAX_PARTS = 64 };
typedef int wm_piece_fn(void *context, int thread, uint64_t begin, uint64_t end);
int wm_run_pieces(wm_piece_fn *run, void *context, uint64_t n, uint64_t piece, int threads);

/* Divides the work [0, n) among up to `threads` threads with at least `min` each: into up to eight parts a thread, WM_MAX_PARTS in
 * all, that begin at multiples of `align`. Calls run(context, part, begin, end) for each part. Returns the number of parts when
 * all are done: 1 if dividing does not pay.
 */
typedef void wm_part_fn(void *context, int part, uint64_t begin, uint64_t end);
int wm_run_parts(wm_part_fn *run, void *context, uint64_t n, uint64_t align, uint64_t min, int threads);

/* names.c: 0 when no two of n names are equal; or -1 with *fault: NAME_DUPLICATE, NAME_FLOOD, MEMORY. Name i is
 * names[position[step * i], position[step * i + 1]), and hash[i] its FNV-1a 32. Positions lie in private memory, since the
 * lengths in a file may change. */
int wm_names_unique(const uint8_t *names, uint64_t n, const uint32_t *hash, const uint32_t *position, uint64_t step,
                    wm_fault *fault);
/* names.c: the same of n strings data[position[2 * i], position[2 * i + 1]), which the caller has checked to lie in data. */
int wm_keys_unique(const uint8_t *data, uint64_t n, const uint32_t *position, wm_fault *fault);

/* ----------------------------------------------------------------------------------------------- large outputs
 * How to store the output of a call that reads `input` bytes and writes `output`, over all threads. cpu.c has the measurements.
 */
int wm_how_to_store(uint64_t input, uint64_t output);
/* Prefetch distance of a kernel, in bytes: of its input when it streams, and of its output for WM_FETCHED, since a store waits for an
 * uncached line. */
enum { WM_AHEAD = 2048 };

/* The variants. A name states what the function requires. */
#define WM_DECLARE(type, kernel) type kernel##_portable;
WM_KERNELS(WM_DECLARE)
#if WM_X86
wm_crc32_fn crc32_x86_pclmulqdq, crc32_x86_vpclmulqdq_avx2, crc32_x86_vpclmulqdq_avx512;
wm_fnv1a32_fn fnv1a32_x86_avx2;
wm_half_fn f16_to_f32_x86_avx2, bf16_to_f32_x86_avx2;
wm_intblock_fn intblock_x86_avx2, intblock_x86_avx512;
wm_mixed_fn mixed_x86_avx2, mixed_x86_avx512;
wm_ggml_fn ggml_x86_avx2, ggml_x86_avx512;
wm_ggml_fn ggml_x86_avx2_streamed;
wm_ggml_quantize_fn ggml_quantize_x86_avx2, ggml_quantize_x86_avx512;
wm_stream_fn stream_x86_avx2, stream_x86_avx512;
wm_narrow_fn narrow_x86_avx2;
wm_quantize_fn quantize_x86_avx2, quantize_x86_avx512;
wm_differ_fn differ_x86_avx2;
wm_combine_rows_fn combine_rows_x86_avx2;
wm_groups_fn groups_x86_avx2, groups_x86_avx512;
wm_lookup_fn lookup_x86_avx2, lookup_x86_avx512;
wm_tables_fn tables_x86_avx2, tables_x86_avx512;
#elif WM_ARM
wm_crc32_fn crc32_arm_crc_pmull;
wm_crc32_fn crc32_arm_pmull;
wm_half_fn f16_to_f32_arm_neon, bf16_to_f32_arm_neon;
wm_intblock_fn intblock_arm_neon;
wm_ggml_fn ggml_arm_neon;
wm_narrow_fn narrow_arm_neon;
wm_quantize_fn quantize_arm_neon;
wm_groups_fn groups_arm_neon;
wm_lookup_fn lookup_arm_neon;
wm_tables_fn tables_arm_neon;
#endif

#endif
