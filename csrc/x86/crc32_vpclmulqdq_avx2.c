/* CRC-32 by multiplication without carries, two blocks at once (VPCLMULQDQ, AVX2): for CPUs without AVX-512. Intel's multiply alone;
 * AMD's, Zen 3, add beside it.
 *
 * WEIGHTMAP_EMULATE_AVX512ICL replaces the instruction by two PCLMULQDQ, for CPUs without it.
 */
#include "../internal.h"

#if WM_X86
#include "crc32_x86.h"

#if defined(WEIGHTMAP_EMULATE_AVX512ICL)
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

TARGET WM_INLINE vector load(const uint8_t *p) { return load_ymm(p); }
TARGET WM_INLINE vector begin(vector x, uint32_t state) {
    return _mm256_xor_si256(x, _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)state)));
}
TARGET WM_INLINE vector fold(vector r, vector next, vector k) {
    return _mm256_xor_si256(_mm256_xor_si256(CLMUL(r, k, 0x00), next), CLMUL(r, k, 0x11));
}
TARGET WM_INLINE __m128i one_block(vector x) {
    return fold_block(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1), FOLD(1));
}

#include "crc32_fold.h"

TARGET uint32_t crc32_x86_vpclmulqdq_avx2(uint32_t state, const uint8_t *data, size_t len) {
    return len < FOUR ? crc32_x86_pclmulqdq_avx2(state, data, len) : fold_all(state, data, len);
}

enum { FOLDED = 3, WORTH_WHILE = 72 << 10 };

TARGET WM_INLINE void fold_step(vector *x, const uint8_t *p) {
    const vector k = EACH(6); /* three registers */
    x[0] = fold(x[0], load(p), k);
    x[1] = fold(x[1], load(p + 32), k);
    x[2] = fold(x[2], load(p + 64), k);
}

typedef vector adder;
#define ADDING TARGET
#define OVER EACH(24)
#define OVER_FRONT EACH(298)
#define OVER_BACK EACH(126)
#define XOR(a, b) _mm256_xor_si256(a, b)
#define load_adder(p) load(p)
#define fewest crc32_x86_vpclmulqdq_avx2
#include "crc32_add.h"

TARGET uint32_t crc32_x86_mixed_vpclmulqdq_avx2(uint32_t state, const uint8_t *data, size_t len) {
    return add_any(state, data, len);
}
#endif
