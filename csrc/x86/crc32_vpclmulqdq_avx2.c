/* CRC-32 by multiplication without carries, twice as wide (VPCLMULQDQ, AVX2): for CPUs without AVX-512.
 *
 * crc32_pclmulqdq.c explains the algorithm. A ymm register holds two blocks of 128 bits; eight of them are 256 bytes a step,
 * D = 2048. WEIGHTMAP_EMULATE_AVX512ICL replaces the instruction by two PCLMULQDQ, for CPUs without it.
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
#define FOLD_YMM(n) _mm256_broadcastsi128_si256(FOLD(n))

TARGET WM_INLINE __m256i load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* fold_block in both blocks of a register. */
TARGET WM_INLINE __m256i fold(__m256i r, __m256i next, __m256i k) {
    return _mm256_xor_si256(_mm256_xor_si256(CLMUL(r, k, 0x00), next), CLMUL(r, k, 0x11));
}

TARGET uint32_t crc32_x86_vpclmulqdq_avx2(uint32_t state, const uint8_t *data, size_t len) {
    if (len < 256) return crc32_x86_pclmulqdq_avx2(state, data, len);

    const __m256i k16 = FOLD_YMM(16), k8 = FOLD_YMM(8), k4 = FOLD_YMM(4), k2 = FOLD_YMM(2);
    __m256i x0 = _mm256_xor_si256(load(data), _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)state)));
    __m256i x1 = load(data + 32), x2 = load(data + 64), x3 = load(data + 96);
    __m256i x4 = load(data + 128), x5 = load(data + 160), x6 = load(data + 192), x7 = load(data + 224);
    data += 256;
    len -= 256;
    for (; len >= 256; data += 256, len -= 256) {
        for (int line = 0; line < 256; line += 64) _mm_prefetch((const char *)data + AHEAD + line, _MM_HINT_T0);
        x0 = fold(x0, load(data), k16);
        x1 = fold(x1, load(data + 32), k16);
        x2 = fold(x2, load(data + 64), k16);
        x3 = fold(x3, load(data + 96), k16);
        x4 = fold(x4, load(data + 128), k16);
        x5 = fold(x5, load(data + 160), k16);
        x6 = fold(x6, load(data + 192), k16);
        x7 = fold(x7, load(data + 224), k16);
    }
    x0 = fold(x0, x4, k8);
    x1 = fold(x1, x5, k8);
    x2 = fold(x2, x6, k8);
    x3 = fold(x3, x7, k8);
    if (len >= 128) {
        x0 = fold(x0, load(data), k8);
        x1 = fold(x1, load(data + 32), k8);
        x2 = fold(x2, load(data + 64), k8);
        x3 = fold(x3, load(data + 96), k8);
        data += 128;
        len -= 128;
    }
    x0 = fold(fold(x0, x2, k4), fold(x1, x3, k4), k2);
    for (; len >= 32; data += 32, len -= 32) x0 = fold(x0, load(data), k2);
    return finish_blocks(fold_block(_mm256_castsi256_si128(x0), _mm256_extracti128_si256(x0, 1), FOLD(1)), data, len);
}
#endif
