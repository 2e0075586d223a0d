/* What the C files share among themselves: unaligned little-endian loads, target attributes, the table of variants. */
#ifndef WEIGHTMAP_INTERNAL_H
#define WEIGHTMAP_INTERNAL_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"

/* ---------------------------------------------------------------------------------------- architecture
 * Variants are compiled by target attribute, function by function, so that no file needs flags of its own. MSVC
 * allows every intrinsic everywhere and has no such attribute.
 */
#if defined(__x86_64__) || defined(_M_X64)
#define WM_X86 1
#elif defined(__aarch64__) && !defined(__AARCH64EB__) && defined(__GNUC__)
/* clang before 16 has the intrinsics only when the whole file may use them. */
#if !defined(__clang__) || __clang_major__ >= 16 || (defined(__ARM_FEATURE_CRC32) && defined(__ARM_FEATURE_AES))
#define WM_ARM 1
#endif
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define WM_TARGET(features)
#define WM_INLINE static __forceinline
#else
#define WM_TARGET(features) __attribute__((target(features)))
#define WM_INLINE static inline __attribute__((always_inline)) /* an error when it cannot be: no hidden slow path */
#endif

/* ------------------------------------------------------------------------------------------------ loads
 * Loads from any alignment. memcpy is the one way that C allows; compilers make a single instruction of it.
 */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
static inline uint16_t load_le16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static inline uint32_t load_le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t load_le64(const uint8_t *p) { return (uint64_t)load_le32(p) | (uint64_t)load_le32(p + 4) << 32; }
#else
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

/* The value itself, loaded once: what lies in a mapped file may change meanwhile, and the value that was checked has to be the
 * one that is used. This keeps the compiler from loading it again. */
static inline uint64_t read_once(uint64_t value) {
#if defined(__GNUC__)
    __asm__ volatile("" : "+r"(value));
#endif
    return value;
}

/* Asks for a line of memory that will be needed soon. */
#if defined(__GNUC__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

/* Fills *fault (when there is one) and returns -1, so that a check is one line: return wm_fail(...). */
static inline int wm_fail(wm_fault *fault, int32_t code, uint64_t row, uint64_t at, uint64_t actual, uint64_t expected) {
    if (fault) *fault = (wm_fault){code, row, at, actual, expected};
    return -1;
}

/* ------------------------------------------------------------------------------------------ CPU features
 * One bit each; a bit is set only when the operating system keeps the registers too.
 */
enum {
    WM_SSE42 = 1 << 0, /* with SSSE3 and SSE4.1 */
    WM_PCLMULQDQ = 1 << 1,
    WM_AVX2 = 1 << 2,   /* with BMI2, FMA and F16C */
    WM_AVX512 = 1 << 3, /* F, BW, DQ, VL */
    WM_VPCLMULQDQ = 1 << 4,
    WM_GFNI = 1 << 5,
    WM_VBMI = 1 << 6,
    WM_ARM_CRC32 = 1 << 8,
    WM_ARM_PMULL = 1 << 9,
    WM_STREAMING = 1 << 10 /* not an instruction: one core streams as fast as memory takes it */
};
uint32_t wm_cpu_features(void); /* cpu.c: what this CPU has; asks the CPU at every call */

/* --------------------------------------------------------------------------------------- the variants in use
 * A kernel with variants has one pointer here. The structs are filled once, at load, one for each tier; selecting a
 * tier swaps one pointer, so a call that runs meanwhile ends with the variant it began with.
 */
/* Takes and returns the shift register itself, without the inversions at both ends. Any length, 0 too. */
typedef uint32_t wm_crc32_fn(uint32_t state, const uint8_t *data, size_t len);
/* Hashes n names that lie back to back, `gap` bytes between two, all within [first, end). Reads nothing outside. */
typedef void wm_fnv1a32_fn(const uint8_t *first, const uint8_t *end, const uint32_t *lengths, uint32_t gap, uint64_t n,
                           uint32_t *out);
/* Converts n halves to floats. `in` may lie anywhere, `out` where a float may. With `stream` not 0 the output goes past
 * the caches. */
typedef void wm_half_fn(const uint8_t *in, float *out, uint64_t n, int stream);
/* Decodes `runs` runs of `len` >= 1 codes of 4, 5 or 8 bits each: out[r * len + i] = scale r * code i of those that begin at
 * codes + r * stride. Scale r lies at scales + r * scale_stride. Reads nothing at or past `end`, where the data ends. `out` is
 * of float32 or, with `half` not 0, of float16, to which the products are rounded as by wm_narrow_fn. */
typedef struct {
    const uint8_t *scales, *codes, *end;
    uint64_t scale_stride, stride, runs, len;
    int scale_type, bits, half;
    int stream; /* store past the caches; the bytes of a line that lie before `out` are not touched */
} wm_runs;
typedef void wm_intblock_fn(const wm_runs *runs, void *out);
/* Blocks of different kinds, in whole: see adaptive.c. Decodes as many of them as have nothing that needs care, steps over them
 * in *blocks, and returns how many they were: 0 from a variant that can do none. */
typedef struct {
    const uint8_t *mask, *scales, *codes; /* the next scale and the next codes; the mask from block 0 on */
    const uint8_t *scales_end, *end;
    uint64_t next, last, len; /* blocks [next, last), of len elements each, which is a multiple of 8 */
    int scale_type, half;
} wm_mixed;
typedef uint64_t wm_mixed_fn(wm_mixed *blocks, void *out);
/* Rounds n floats to float16, of two equally near ones to the even one; `out` may lie anywhere. */
typedef void wm_narrow_fn(const float *values, uint64_t n, uint8_t *out);
/* Writes a scale and n codes, of n finite floats; returns the sum of the squared errors. `grid` has WM_GRID codes that the
 * element of largest magnitude may be given. */
enum { WM_GRID = 32 };
typedef double wm_quantize_fn(const float *x, uint64_t n, const float *grid, int bits, int scale_type, uint8_t *out);

/* sums[v] = vectors[v][0] * row 0 + vectors[v][1] * row 1 + ... of a matrix of dims rows, all of dims elements, for v < count. */
typedef void wm_combine_rows_fn(const float *matrix, const float *vectors, unsigned count, uint64_t dims, float *sums);

typedef struct {
    wm_crc32_fn *crc32;
    const char *crc32_name;
    wm_fnv1a32_fn *fnv1a32;
    const char *fnv1a32_name;
    wm_half_fn *f16_to_f32;
    const char *f16_to_f32_name;
    wm_half_fn *bf16_to_f32;
    const char *bf16_to_f32_name;
    wm_intblock_fn *intblock;
    const char *intblock_name;
    wm_mixed_fn *mixed;
    const char *mixed_name;
    wm_narrow_fn *narrow;
    const char *narrow_name;
    wm_quantize_fn *quantize;
    const char *quantize_name;
    wm_combine_rows_fn *combine_rows;
    const char *combine_rows_name;
} wm_variants;
const wm_variants *wm_variants_in_use(void); /* select.c */

/* The FNV-1a 32 hashes of n names that the caller has already checked to lie within [first, end). */
static inline void wm_fnv1a32_run(const uint8_t *first, const uint8_t *end, const uint32_t *lengths, uint32_t gap, uint64_t n,
                                  uint32_t *out) {
    wm_variants_in_use()->fnv1a32(first, end, lengths, gap, n, out);
}

/* ------------------------------------------------------------------------------------------------ threads
 * Divides the work [0, n) into at most `threads` parts (and WM_MAX_PARTS), each of at least `least` and beginning at a
 * multiple of `align`, and calls run(context, part, begin, end) for each, in threads of their own where there are any.
 * Returns the number of parts when all are done: 1 when dividing is not worth while.
 */
enum { WM_MAX_PARTS = 64 };
typedef void wm_part_fn(void *context, int part, uint64_t begin, uint64_t end);
int wm_run_parts(wm_part_fn *run, void *context, uint64_t n, uint64_t align, uint64_t least, int threads);

/* names.c: 0 when no two of n names are equal; or -1 with *fault: NAME_DUPLICATE, NAME_FLOOD, MEMORY. Name i, whose FNV-1a 32 is
 * hash[i], is names[position[step * i], position[step * i + 1]); lengths are not read again from a file, which may be changing. */
int wm_names_unique(const uint8_t *names, uint64_t n, const uint32_t *hash, const uint32_t *position, uint64_t step,
                    wm_fault *fault);
/* names.c: 0 when no two of n strings data[position[2 * i], position[2 * i + 1]) are equal; or -1 with *fault: NAME_DUPLICATE,
 * NAME_FLOOD, MEMORY. The caller has checked that they lie in data. */
int wm_keys_unique(const uint8_t *data, uint64_t n, const uint32_t *position, wm_fault *fault);

/* ----------------------------------------------------------------------------------------------- large outputs
 * Whether an output of so many bytes, over all threads, is better streamed: stored past the caches, whole lines at a
 * time, so that memory need not be read before it is written. select.c tells when.
 */
int wm_stream_worthwhile(uint64_t bytes);
/* How far ahead, in bytes, a kernel prefetches its input, which is worth a tenth, in the caches too, and, when it does not
 * stream, its output, since a store to a line that no cache has waits for it: that is worth a third beyond the caches. An
 * address past the end does no harm. */
enum { WM_AHEAD = 2048 };

/* The variants; a name states what the function requires. */
wm_crc32_fn crc32_portable;
wm_fnv1a32_fn fnv1a32_portable;
wm_half_fn f16_to_f32_portable, bf16_to_f32_portable;
wm_intblock_fn intblock_portable;
wm_mixed_fn mixed_portable;
wm_narrow_fn narrow_portable;
wm_quantize_fn quantize_portable;
wm_combine_rows_fn combine_rows_portable;
#if WM_X86
wm_crc32_fn crc32_x86_pclmulqdq;
wm_crc32_fn crc32_x86_pclmulqdq_avx2;
wm_crc32_fn crc32_x86_vpclmulqdq_avx512;
wm_crc32_fn crc32_x86_mixed_avx512;
wm_fnv1a32_fn fnv1a32_x86_avx2;
wm_fnv1a32_fn fnv1a32_x86_avx512;
wm_half_fn f16_to_f32_x86_avx2, bf16_to_f32_x86_avx2;
wm_half_fn f16_to_f32_x86_avx512, bf16_to_f32_x86_avx512;
wm_intblock_fn intblock_x86_avx2, intblock_x86_avx512;
wm_mixed_fn mixed_x86_avx2, mixed_x86_avx512;
wm_narrow_fn narrow_x86_avx2;
wm_quantize_fn quantize_x86_avx2, quantize_x86_avx512;
wm_combine_rows_fn combine_rows_x86_avx2;
#elif WM_ARM
wm_crc32_fn crc32_arm_crc_pmull;
wm_crc32_fn crc32_arm_pmull;
wm_half_fn f16_to_f32_arm_neon, bf16_to_f32_arm_neon;
wm_intblock_fn intblock_arm_neon;
wm_narrow_fn narrow_arm_neon;
#endif

#endif
