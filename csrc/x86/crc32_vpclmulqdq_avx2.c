/* CRC-32 by VPCLMULQDQ, two blocks in a register of 32 bytes, for CPUs without AVX-512: see crc32_fold.h.
 *
 * WEIGHTMAP_EMULATE_VPCLMULQDQ replaces the instruction by two PCLMULQDQ, to test the kernel on a CPU without it.
 */
#include "core/internal.h"

#if WM_X86
#include "x86/crc32_x86.h"

#define KERNEL crc32_x86_vpclmulqdq_avx2
#if defined(WEIGHTMAP_EMULATE_VPCLMULQDQ)
#define TARGET WM_TARGET("avx2,pclmul")
#define LANE(a, b, imm, i) _mm_clmulepi64_si128(_mm256_extracti128_si256(a, i), _mm256_extracti128_si256(b, i), imm)
#define CLMUL(a, b, imm) _mm256_set_m128i(LANE(a, b, imm, 1), LANE(a, b, imm, 0))
#else
#define TARGET WM_TARGET("avx2,pclmul,vpclmulqdq")
#define CLMUL(a, b, imm) _mm256_clmulepi64_epi128(a, b, imm)
#endif
typedef __m256i vector;
#define EACH(n) _mm256_broadcastsi128_si256(FOLD(n))
#define K1 EACH(2)
#define K2 EACH(4)
#define K4 EACH(8)
#define K8 EACH(16)

TARGET WM_INLINE vector load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
TARGET WM_INLINE vector begin(vector x, uint32_t state) {
    return _mm256_xor_si256(x, _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)state)));
}
TARGET WM_INLINE vector fold(vector x, vector next, vector k) {
    return _mm256_xor_si256(_mm256_xor_si256(CLMUL(x, k, 0x00), next), CLMUL(x, k, 0x11));
}
TARGET WM_INLINE __m128i one_block(vector x) {
    return fold_block(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1), FOLD(1));
}

#include "x86/crc32_fold.h"
#endif
