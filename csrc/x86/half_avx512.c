/* Halves to floats, sixteen at a time (AVX-512). As half_avx2.c, which explains it, but for both ends, which are done
 * under a mask: an element that is masked out is neither read nor written.
 */
#include "../internal.h"

#if WM_X86
#include <immintrin.h>

#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl")
enum { LANES = 16, STEP = 4 * LANES, LINE = 64 };
enum { F16, BF16 };

TARGET WM_INLINE __m512 widen(__m256i halves, int kind) {
    if (kind == F16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

TARGET WM_INLINE __m256i load(const uint8_t *in) { return _mm256_loadu_si256((const __m256i *)in); }

/* Fewer than 16 elements. */
TARGET WM_INLINE void convert_few(const uint8_t *in, float *out, uint64_t n, int kind) {
    const __mmask16 mask = (__mmask16)((1u << n) - 1);
    _mm512_mask_storeu_ps(out, mask, widen(_mm256_maskz_loadu_epi16(mask, in), kind));
}

TARGET WM_INLINE void convert(const uint8_t *in, float *out, uint64_t n, int kind, int stream) {
    uint64_t head = (0 - (uintptr_t)out) % LINE / sizeof *out;
    if (head > n) head = n;
    if (head) convert_few(in, out, head, kind);
    in += 2 * head, out += head, n -= head;
    for (; n >= STEP; in += 2 * STEP, out += STEP, n -= STEP) {
        if (stream) {
            PREFETCH(in + WM_AHEAD);
            PREFETCH(in + WM_AHEAD + LINE);
        }
        for (int i = 0; i < STEP; i += LANES) {
            if (stream) {
                _mm512_stream_ps(out + i, widen(load(in + 2 * i), kind));
            } else {
                PREFETCH((const uint8_t *)(out + i) + WM_AHEAD);
                _mm512_store_ps(out + i, widen(load(in + 2 * i), kind));
            }
        }
    }
    for (; n >= LANES; in += 2 * LANES, out += LANES, n -= LANES) _mm512_store_ps(out, widen(load(in), kind));
    if (n) convert_few(in, out, n, kind);
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
