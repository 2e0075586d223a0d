/* CRC-32 by VPCLMULQDQ, four blocks in a register of 64 bytes: see crc32_fold.h.
 *
 * WEIGHTMAP_EMULATE_VPCLMULQDQ replaces the instruction by four PCLMULQDQ, to test the kernel on a CPU without it.
 */
#include "core/internal.h"

#if WM_X86
#include "x86/crc32_x86.h"

#define KERNEL crc32_x86_vpclmulqdq_avx512
#if defined(WEIGHTMAP_EMULATE_VPCLMULQDQ)
#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl,pclmul")
#define LANE(a, b, imm, i) _mm_clmulepi64_si128(_mm512_extracti32x4_epi32(a, i), _mm512_extracti32x4_epi32(b, i), imm)
#define PAIR(a, b, imm, i) _mm256_set_m128i(LANE(a, b, imm, i + 1), LANE(a, b, imm, i))
#define CLMUL(a, b, imm) _mm512_inserti64x4(_mm512_castsi256_si512(PAIR(a, b, imm, 0)), PAIR(a, b, imm, 2), 1)
#else
#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl,pclmul,vpclmulqdq")
#define CLMUL(a, b, imm) _mm512_clmulepi64_epi128(a, b, imm)
#endif
typedef __m512i vector;
#define EACH(n) _mm512_broadcast_i32x4(FOLD(n))
#define K1 EACH(4)
#define K2 EACH(8)
#define K4 EACH(16)
#define K8 EACH(32)

TARGET WM_INLINE vector load(const uint8_t *p) { return _mm512_loadu_si512((const void *)p); }
TARGET WM_INLINE vector begin(vector x, uint32_t state) {
    return _mm512_xor_si512(x, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
}
TARGET WM_INLINE vector fold(vector x, vector next, vector k) {
    enum { XOR_OF_THREE = 0x96 };
    return _mm512_ternarylogic_epi64(CLMUL(x, k, 0x00), CLMUL(x, k, 0x11), next, XOR_OF_THREE);
}
TARGET WM_INLINE __m128i one_block(vector x) {
    const __m128i even = fold_block(_mm512_castsi512_si128(x), _mm512_extracti32x4_epi32(x, 2), FOLD(2));
    const __m128i odd = fold_block(_mm512_extracti32x4_epi32(x, 1), _mm512_extracti32x4_epi32(x, 3), FOLD(2));
    return fold_block(even, odd, FOLD(1));
}

#include "x86/crc32_fold.h"
#endif
