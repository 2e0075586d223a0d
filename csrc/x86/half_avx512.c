/* Halves to floats, eight at a time (AVX-512). As half_avx2.c, which explains it, but for both ends, which are done under
 * a mask: an element that is masked out is neither read nor written.
 *
 * Vectors are of 256 bits. Those of 512 gain nothing, since stores to the caches are the limit, and they lower the clock of
 * some CPUs, for what runs before and after too: on Cascade Lake they were slower by a tenth where all lay in the second
 * level.
 */
#include "../internal.h"

#if WM_X86
#include <immintrin.h>

#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl,f16c")
enum { LANES = 8, STEP = 4 * LANES, LINE = 64 };
enum { F16, BF16 };

TARGET WM_INLINE __m256 widen(__m128i halves, int kind) {
    if (kind == F16) return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

TARGET WM_INLINE __m128i load(const uint8_t *in) { return _mm_loadu_si128((const __m128i *)in); }

TARGET WM_INLINE void convert_few(const uint8_t *in, float *out, uint64_t n, int kind) {
    while (n) {
        const unsigned k = n < LANES ? (unsigned)n : LANES;
        const __mmask8 mask = (__mmask8)((1u << k) - 1);
        _mm256_mask_storeu_ps(out, mask, widen(_mm_maskz_loadu_epi16(mask, in), kind));
        in += 2 * k, out += k, n -= k;
    }
}

TARGET WM_INLINE void convert(const uint8_t *in, float *out, uint64_t n, int kind, int stream) {
    uint64_t head = (0 - (uintptr_t)out) % LINE / sizeof *out;
    if (head > n) head = n;
    convert_few(in, out, head, kind);
    in += 2 * head, out += head, n -= head;
    for (; n >= STEP; in += 2 * STEP, out += STEP, n -= STEP) {
        PREFETCH(in + WM_AHEAD);
        for (int line = 0; !stream && line < 4 * STEP; line += LINE) PREFETCH((const uint8_t *)out + WM_AHEAD + line);
        for (int i = 0; i < STEP; i += LANES) {
            if (stream)
                _mm256_stream_ps(out + i, widen(load(in + 2 * i), kind));
            else
                _mm256_store_ps(out + i, widen(load(in + 2 * i), kind));
        }
    }
    convert_few(in, out, n, kind);
    if (stream) _mm_sfence();
}

TARGET void f16_to_f32_x86_avx512(const uint8_t *in, float *out, uint64_t n, int stream) {
    if (stream)
        convert(in, out, n, F16, 1);
    else
        convert(in, out, n, F16, 0);
}

TARGET void bf16_to_f32_x86_avx512(const uint8_t *in, float *out, uint64_t n, int stream) {
    if (stream)
        convert(in, out, n, BF16, 1);
    else
        convert(in, out, n, BF16, 0);
}
#endif
