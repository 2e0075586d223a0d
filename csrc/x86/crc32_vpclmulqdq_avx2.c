/* CRC-32 by multiplication without carries, twice as wide (VPCLMULQDQ, AVX2): for CPUs without AVX-512.
 *
 * crc32_pclmulqdq.c explains the algorithm. A ymm register holds two blocks of 128 bits; eight of them are 256 bytes a step,
 * D = 2048. Long inputs go through crc32_mixed_vpclmulqdq_avx2.c.
 */
#include "../internal.h"

#if WM_X86
#include "crc32_avx2.h"

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
