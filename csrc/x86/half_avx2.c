/* Halves to floats (AVX2, F16C): see half_x86.h. */
#include "core/internal.h"

#if WM_X86
#define TARGET WM_TARGET("avx2,f16c")
#include "x86/half_x86.h"

TARGET WM_INLINE void convert_few(const uint8_t *in, float *out, uint64_t n, int kind) {
    for (; n >= LANES; in += 2 * LANES, out += LANES, n -= LANES) _mm256_storeu_ps(out, load(in, kind));
    (kind == F16 ? f16_to_f32_portable : bf16_to_f32_portable)(in, out, n, 0);
}

WM_HALF_FUNCTION(f16_to_f32_x86_avx2, F16)
WM_HALF_FUNCTION(bf16_to_f32_x86_avx2, BF16)
#endif
