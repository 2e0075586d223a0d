/* Halves to floats (AVX-512): see half_x86.h. A few elements are converted under a mask: those outside are neither read nor
 * written.
 */
#include "core/internal.h"

#if WM_X86
#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl,f16c")
#include "x86/half_x86.h"

TARGET WM_INLINE void convert_few(const uint8_t *in, float *out, uint64_t n, int kind) {
    while (n) {
        const unsigned k = n < LANES ? (unsigned)n : LANES;
        const __mmask8 mask = (__mmask8)((1u << k) - 1);
        _mm256_mask_storeu_ps(out, mask, widen(_mm_maskz_loadu_epi16(mask, in), kind));
        in += 2 * k, out += k, n -= k;
    }
}

WM_HALF_FUNCTION(f16_to_f32_x86_avx512, F16)
WM_HALF_FUNCTION(bf16_to_f32_x86_avx512, BF16)
#endif
