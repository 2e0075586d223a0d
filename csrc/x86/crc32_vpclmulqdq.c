/* CRC-32 by multiplication without carries, four times as wide (VPCLMULQDQ, AVX-512).
 *
 * crc32_pclmulqdq.c explains the algorithm. A zmm register holds four blocks of 128 bits and folds each onto the block at
 * distance D; eight registers are 512 bytes a step, D = 4096. VPTERNLOG adds both products and the next 64 bytes at once.
 * (Four registers keep AMD's multiplier busy; on Intel a fold takes longer than four of them take to begin.) At the end the
 * blocks are folded to one. Its 128 bits stand for all bytes so far, and the narrower kernel's end goes on with them.
 */
#include "../internal.h"

#if WM_X86
#include "crc32_avx512.h"

TARGET uint32_t crc32_x86_vpclmulqdq_avx512(uint32_t state, const uint8_t *data, size_t len) {
    if (len < 256) return crc32_x86_pclmulqdq_avx2(state, data, len);

    const __m512i k16 = FOLD_ZMM(16), k8 = FOLD_ZMM(8), k4 = FOLD_ZMM(4);
    __m512i x0 = _mm512_xor_si512(load(data), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    __m512i x1 = load(data + 64), x2 = load(data + 128), x3 = load(data + 192);
    data += 256;
    len -= 256;
    if (len >= 256) {
        const __m512i k32 = FOLD_ZMM(32);
        __m512i x4 = load(data), x5 = load(data + 64), x6 = load(data + 128), x7 = load(data + 192);
        data += 256;
        len -= 256;
        for (; len >= 512; data += 512, len -= 512) {
            prefetch(data + AHEAD, 512);
            x0 = fold(x0, load(data), k32);
            x1 = fold(x1, load(data + 64), k32);
            x2 = fold(x2, load(data + 128), k32);
            x3 = fold(x3, load(data + 192), k32);
            x4 = fold(x4, load(data + 256), k32);
            x5 = fold(x5, load(data + 320), k32);
            x6 = fold(x6, load(data + 384), k32);
            x7 = fold(x7, load(data + 448), k32);
        }
        x0 = fold(x0, x4, k16);
        x1 = fold(x1, x5, k16);
        x2 = fold(x2, x6, k16);
        x3 = fold(x3, x7, k16);
        if (len >= 256) {
            x0 = fold(x0, load(data), k16);
            x1 = fold(x1, load(data + 64), k16);
            x2 = fold(x2, load(data + 128), k16);
            x3 = fold(x3, load(data + 192), k16);
            data += 256;
            len -= 256;
        }
    }
    x0 = fold(fold(x0, x2, k8), fold(x1, x3, k8), k4);
    for (; len >= 64; data += 64, len -= 64) x0 = fold(x0, load(data), k4);

    const __m128i k1 = FOLD(1), k2 = FOLD(2);
    __m128i even = fold_block(_mm512_castsi512_si128(x0), _mm512_extracti32x4_epi32(x0, 2), k2);
    __m128i odd = fold_block(_mm512_extracti32x4_epi32(x0, 1), _mm512_extracti32x4_epi32(x0, 3), k2);
    return finish_blocks(fold_block(even, odd, k1), data, len);
}
#endif
