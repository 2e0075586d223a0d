/* Shared by the CRC-32 kernels with 32-byte registers that multiply both halves of one at once (VPCLMULQDQ).
 *
 * WEIGHTMAP_EMULATE_AVX512ICL replaces that instruction by two PCLMULQDQ, for CPUs without it.
 */
#ifndef WEIGHTMAP_X86_CRC32_AVX2_H
#define WEIGHTMAP_X86_CRC32_AVX2_H
#include "crc32_x86.h"

#if defined(WEIGHTMAP_EMULATE_AVX512ICL)
#define TARGET WM_TARGET("avx2,pclmul")
#define LANE(a, b, imm, i) _mm_clmulepi64_si128(_mm256_extracti128_si256(a, i), _mm256_extracti128_si256(b, i), imm)
#define CLMUL(a, b, imm) _mm256_set_m128i(LANE(a, b, imm, 1), LANE(a, b, imm, 0))
#else
#define TARGET WM_TARGET("avx2,pclmul,vpclmulqdq")
#define CLMUL(a, b, imm) _mm256_clmulepi64_epi128(a, b, imm)
#endif
#define FOLD_YMM(n) _mm256_broadcastsi128_si256(FOLD(n))

TARGET WM_INLINE __m256i load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* fold_block in both blocks of a register. */
TARGET WM_INLINE __m256i fold(__m256i r, __m256i next, __m256i k) {
    return _mm256_xor_si256(_mm256_xor_si256(CLMUL(r, k, 0x00), next), CLMUL(r, k, 0x11));
}
#endif
