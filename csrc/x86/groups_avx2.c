/* The decoding of groups, compiled for AVX2 and F16C. */
#include "../groups_value.h"

#if WM_X86
#include <immintrin.h>

#define TARGET WM_TARGET("avx2,f16c")
#define NAME groups_x86_avx2

TARGET WM_INLINE void round_halves(const float *values, uint8_t *to) {
    for (int l = 0; l < LANES; l += 8)
        _mm_storeu_si128((__m128i *)(void *)(to + 2 * l),
                         _mm256_cvtps_ph(_mm256_loadu_ps(values + l), _MM_FROUND_TO_NEAREST_INT));
}

#include "../groups.h"
#endif
