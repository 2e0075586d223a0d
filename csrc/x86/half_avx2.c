/* Halves to floats (AVX2, F16C), eight at a time. The work in full is `for (i = 0; i < n; i++) out[i] = widen(in[i])`.
 *
 * VCVTPH2PS gives the same bits as widen_half_bits (floats.h) for every input, whatever the CPU's rounding mode and its modes
 * that take subnormal numbers for zero.
 *
 * Vectors are stored from the start of a cache line on: one that lies across two lines costs two stores, and when streaming,
 * memory takes a line in one piece only if all of it was written. convert_few converts the elements before the first line and
 * after the last vector.
 *
 * Vectors have 256 bits. Those of 512 gain nothing, since stores to the caches are the limit, and they lower the clock of
 * some CPUs, for other code too: on Cascade Lake they were slower by a tenth for data in the second-level cache.
 */
#include "core/internal.h"

#if WM_X86
#include <immintrin.h>

#define TARGET WM_TARGET("avx2,f16c")

enum { LANES = 8, STEP = 4 * LANES, LINE = 64 };
enum { F16, BF16 };

TARGET WM_INLINE __m256 widen(__m128i halves, int kind) {
    if (kind == F16) return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

TARGET WM_INLINE __m256 load(const uint8_t *in, int kind) { return widen(_mm_loadu_si128((const __m128i *)in), kind); }

TARGET WM_INLINE void convert_few(const uint8_t *in, float *out, uint64_t n, int kind) {
    for (; n >= LANES; in += 2 * LANES, out += LANES, n -= LANES) _mm256_storeu_ps(out, load(in, kind));
    (kind == F16 ? f16_to_f32_portable : bf16_to_f32_portable)(in, out, n, 0);
}

TARGET WM_INLINE void convert(const uint8_t *in, float *out, uint64_t n, int kind, int storing) {
    uint64_t head = (0 - (uintptr_t)out) % LINE / sizeof *out;
    if (head > n) head = n;
    convert_few(in, out, head, kind);
    in += 2 * head, out += head, n -= head;
    for (; n >= STEP; in += 2 * STEP, out += STEP, n -= STEP) {
        /* These may lie outside. Where the caches hold all, they would take a seventh of the speed. */
        if (storing != WM_CACHED) PREFETCH(in + WM_AHEAD);
        for (int at = 0; storing == WM_FETCHED && at < 4 * STEP; at += LINE) PREFETCH((const uint8_t *)out + WM_AHEAD + at);
        for (int i = 0; i < STEP; i += LANES) {
            if (storing == WM_STREAMED)
                _mm256_stream_ps(out + i, load(in + 2 * i, kind));
            else
                _mm256_store_ps(out + i, load(in + 2 * i, kind));
        }
    }
    convert_few(in, out, n, kind);
    if (storing == WM_STREAMED) _mm_sfence(); /* streamed stores have no order: finish them before anyone sees the result */
}

#define WM_HALF_FUNCTION(name, kind)                                           \
    TARGET void name(const uint8_t *in, float *out, uint64_t n, int storing) { \
        switch (storing) {                                                     \
        case WM_STREAMED: convert(in, out, n, kind, WM_STREAMED); break;       \
        case WM_FETCHED: convert(in, out, n, kind, WM_FETCHED); break;         \
        default: convert(in, out, n, kind, WM_CACHED);                         \
        }                                                                      \
    }

WM_HALF_FUNCTION(f16_to_f32_x86_avx2, F16)
WM_HALF_FUNCTION(bf16_to_f32_x86_avx2, BF16)
#endif
