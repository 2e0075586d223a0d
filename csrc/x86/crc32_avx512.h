/* What the CRC-32 kernels with 64-byte registers share: crc32_vpclmulqdq.c and crc32_mixed.c.
 *
 * Compiled with WEIGHTMAP_EMULATE_AVX512ICL, the two instructions that came with Ice Lake and Zen 4 are done by others, so
 * that everything else can be tested on CPUs that have AVX-512 without them: VPCLMULQDQ as four PCLMULQDQ, GF2P8AFFINEQB
 * bit by bit, as its definition says.
 */
#ifndef WEIGHTMAP_X86_CRC32_AVX512_H
#define WEIGHTMAP_X86_CRC32_AVX512_H
#include <immintrin.h>

#include "../crc32_constants.h"
#include "../internal.h"

#define FOLD(n) _mm_set_epi64x((int64_t)CRC32_FOLD_##n##_HIGH, (int64_t)CRC32_FOLD_##n##_LOW)
#define FOLD_ZMM(n) _mm512_broadcast_i32x4(FOLD(n))
enum { AHEAD = 4096 }; /* as in crc32_pclmulqdq.c */

#if defined(WEIGHTMAP_EMULATE_AVX512ICL)
#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl,pclmul")
#define LANE(a, b, imm, i) _mm_clmulepi64_si128(_mm512_extracti32x4_epi32(a, i), _mm512_extracti32x4_epi32(b, i), imm)
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
/* Bit i of a byte of the result is the parity of that byte of x ANDed with byte 7 - i of the matrix beside it. */
TARGET WM_INLINE __m512i affine(__m512i x, __m512i matrix) {
    uint8_t in[64], rows[64], out[64] = {0};
    _mm512_storeu_si512(in, x);
    _mm512_storeu_si512(rows, matrix);
    for (int at = 0; at < 64; at++)
        for (int i = 0; i < 8; i++) {
            unsigned common = in[at] & rows[(at & ~7) + 7 - i], parity = 0;
            for (; common; common >>= 1) parity ^= common & 1;
            out[at] |= (uint8_t)(parity << i);
        }
    return _mm512_loadu_si512(out);
}
#else
#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl,pclmul,vpclmulqdq,gfni")
TARGET WM_INLINE __m512i clmul_low(__m512i a, __m512i b) { return _mm512_clmulepi64_epi128(a, b, 0x00); }
TARGET WM_INLINE __m512i clmul_high(__m512i a, __m512i b) { return _mm512_clmulepi64_epi128(a, b, 0x11); }
TARGET WM_INLINE __m512i affine(__m512i x, __m512i matrix) { return _mm512_gf2p8affine_epi64_epi8(x, matrix, 0); }
#endif

TARGET WM_INLINE __m512i load(const uint8_t *p) { return _mm512_loadu_si512((const void *)p); }

TARGET WM_INLINE __m512i xor3(__m512i a, __m512i b, __m512i c) {
    enum { XOR_OF_THREE = 0x96 };
    return _mm512_ternarylogic_epi64(a, b, c, XOR_OF_THREE);
}

/* `next` with `r` folded onto it, at the distance that `k` is for. */
TARGET WM_INLINE __m512i fold(__m512i r, __m512i next, __m512i k) { return xor3(clmul_low(r, k), clmul_high(r, k), next); }

TARGET WM_INLINE void prefetch(const uint8_t *data, int bytes) {
    for (int line = 0; line < bytes; line += 64) _mm_prefetch((const char *)data + AHEAD + line, _MM_HINT_T0);
}
#endif
