/* CRC-32 by multiplication without carries, four times as wide (VPCLMULQDQ, AVX-512).
 *
 * The algorithm is that of crc32_pclmulqdq.c, which explains it. A zmm register holds four blocks of 128 bits and
 * folds each onto the block at distance D; four registers are 256 bytes a step, D = 2048. VPTERNLOG adds both
 * products and the next 64 bytes at once. At the end the sixteen blocks are folded to one, and the rest is the plain
 * kernel's: its register after some bytes is the 128 bits that stand for them, so it simply goes on with these 16
 * bytes and then the message.
 *
 * Compiled with WEIGHTMAP_EMULATE_VPCLMULQDQ, the one instruction is done as four PCLMULQDQ, so that everything else
 * can be tested on CPUs that have AVX-512 without it.
 */
#include "../internal.h"

#if WM_X86
#include <immintrin.h>

#include "../crc32_constants.h"

#define FOLD(n) _mm_set_epi64x((int64_t)CRC32_FOLD_##n##_HIGH, (int64_t)CRC32_FOLD_##n##_LOW)
enum { AHEAD = 4096 }; /* as in crc32_pclmulqdq.c */
#define FOLD_ZMM(n) _mm512_broadcast_i32x4(FOLD(n))

#if defined(WEIGHTMAP_EMULATE_VPCLMULQDQ)
#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl,pclmul")
#define LANE(a, b, imm, i) \
    _mm_clmulepi64_si128(_mm512_extracti32x4_epi32(a, i), _mm512_extracti32x4_epi32(b, i), imm)
TARGET WM_INLINE __m512i clmul_low(__m512i a, __m512i b) {
    __m512i r = _mm512_castsi128_si512(LANE(a, b, 0x00, 0));
    r = _mm512_inserti32x4(r, LANE(a, b, 0x00, 1), 1);
    r = _mm512_inserti32x4(r, LANE(a, b, 0x00, 2), 2);
    return _mm512_inserti32x4(r, LANE(a, b, 0x00, 3), 3);
}
TARGET WM_INLINE __m512i clmul_high(__m512i a, __m512i b) {
    __m512i r = _mm512_castsi128_si512(LANE(a, b, 0x11, 0));
    r = _mm512_inserti32x4(r, LANE(a, b, 0x11, 1), 1);
    r = _mm512_inserti32x4(r, LANE(a, b, 0x11, 2), 2);
    return _mm512_inserti32x4(r, LANE(a, b, 0x11, 3), 3);
}
#else
#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl,pclmul,vpclmulqdq")
TARGET WM_INLINE __m512i clmul_low(__m512i a, __m512i b) { return _mm512_clmulepi64_epi128(a, b, 0x00); }
TARGET WM_INLINE __m512i clmul_high(__m512i a, __m512i b) { return _mm512_clmulepi64_epi128(a, b, 0x11); }
#endif

TARGET WM_INLINE __m512i fold(__m512i r, __m512i next, __m512i k) {
    enum { XOR_OF_THREE = 0x96 };
    return _mm512_ternarylogic_epi64(clmul_low(r, k), clmul_high(r, k), next, XOR_OF_THREE);
}

TARGET WM_INLINE __m512i load(const uint8_t *p) { return _mm512_loadu_si512((const void *)p); }

TARGET WM_INLINE __m128i fold_block(__m128i r, __m128i next, __m128i k) {
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(r, k, 0x00), next), _mm_clmulepi64_si128(r, k, 0x11));
}

TARGET uint32_t crc32_x86_vpclmulqdq_avx512(uint32_t state, const uint8_t *data, size_t len) {
    if (len < 256) return crc32_x86_pclmulqdq_avx2(state, data, len);

    __m512i x0 = _mm512_xor_si512(load(data), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    __m512i x1 = load(data + 64), x2 = load(data + 128), x3 = load(data + 192);
    const __m512i k16 = FOLD_ZMM(16), k8 = FOLD_ZMM(8), k4 = FOLD_ZMM(4);
    data += 256;
    len -= 256;
    for (; len >= 256; data += 256, len -= 256) {
        for (int line = 0; line < 256; line += 64) _mm_prefetch((const char *)data + AHEAD + line, _MM_HINT_T0);
        x0 = fold(x0, load(data), k16);
        x1 = fold(x1, load(data + 64), k16);
        x2 = fold(x2, load(data + 128), k16);
        x3 = fold(x3, load(data + 192), k16);
    }
    x0 = fold(fold(x0, x2, k8), fold(x1, x3, k8), k4);
    for (; len >= 64; data += 64, len -= 64) x0 = fold(x0, load(data), k4);

    const __m128i k1 = FOLD(1), k2 = FOLD(2);
    __m128i even = fold_block(_mm512_castsi512_si128(x0), _mm512_extracti32x4_epi32(x0, 2), k2);
    __m128i odd = fold_block(_mm512_extracti32x4_epi32(x0, 1), _mm512_extracti32x4_epi32(x0, 3), k2);
    uint8_t block[16];
    _mm_storeu_si128((__m128i *)block, fold_block(even, odd, k1));
    return crc32_x86_pclmulqdq_avx2(crc32_x86_pclmulqdq_avx2(0, block, 16), data, len);
}
#endif
