/* The decoding of groups, compiled for AVX-512. */
#include "../groups_value.h"

#if WM_X86
#include <immintrin.h>

#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#define NAME groups_x86_avx512

TARGET WM_INLINE void round_halves(const float *values, uint8_t *to) {
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtps_ph(_mm512_loadu_ps(values), _MM_FROUND_TO_NEAREST_INT));
}

#include "../groups.h"
#endif
