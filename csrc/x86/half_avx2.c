/* Halves to floats, eight at a time (AVX2, F16C).
 *
 * VCVTPH2PS is the conversion that half.c writes out, with the same bits for every input. It looks neither at the CPU's
 * rounding mode nor at its modes that take subnormal numbers for zero.
 *
 * Vectors are stored where lines of the cache begin: one that lies across two costs two stores, and when streaming,
 * memory takes a line in one piece only when all of it was written. So the elements before the first such place are done
 * one by one.
 */
#include "../internal.h"

#if WM_X86
#include <immintrin.h>

#define TARGET WM_TARGET("avx2,f16c")
enum { LANES = 8, STEP = 4 * LANES, LINE = 64 };
enum { F16, BF16 };

TARGET WM_INLINE __m256 widen(const uint8_t *in, int kind) {
    const __m128i halves = _mm_loadu_si128((const __m128i *)in);
    if (kind == F16) return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

TARGET WM_INLINE void convert(const uint8_t *in, float *out, uint64_t n, int kind, int stream) {
    uint64_t head = (0 - (uintptr_t)out) % LINE / sizeof *out;
    if (head > n) head = n;
    (kind == F16 ? f16_to_f32_portable : bf16_to_f32_portable)(in, out, head, 0);
    in += 2 * head, out += head, n -= head;
    for (; n >= STEP; in += 2 * STEP, out += STEP, n -= STEP) {
        PREFETCH(in + WM_AHEAD); /* this and the next may lie outside: a prefetch is a hint and never faults */
        for (int line = 0; !stream && line < 4 * STEP; line += LINE) PREFETCH((const uint8_t *)out + WM_AHEAD + line);
        for (int i = 0; i < STEP; i += LANES) {
            if (stream)
                _mm256_stream_ps(out + i, widen(in + 2 * i, kind));
            else
                _mm256_store_ps(out + i, widen(in + 2 * i, kind));
        }
    }
    for (; n >= LANES; in += 2 * LANES, out += LANES, n -= LANES) _mm256_store_ps(out, widen(in, kind));
    (kind == F16 ? f16_to_f32_portable : bf16_to_f32_portable)(in, out, n, 0);
    if (stream) _mm_sfence(); /* streamed stores come in no order: all are done before anybody is told */
}

TARGET void f16_to_f32_x86_avx2(const uint8_t *in, float *out, uint64_t n, int stream) {
    if (stream)
        convert(in, out, n, F16, 1);
    else
        convert(in, out, n, F16, 0);
}

TARGET void bf16_to_f32_x86_avx2(const uint8_t *in, float *out, uint64_t n, int stream) {
    if (stream)
        convert(in, out, n, BF16, 1);
    else
        convert(in, out, n, BF16, 0);
}
#endif
