/* Shared by the CRC-32 kernels with 64-byte registers: crc32_vpclmulqdq.c and crc32_mixed.c.
 *
 * WEIGHTMAP_EMULATE_AVX512ICL replaces the two instructions that came with Ice Lake and Zen 4, so that CPUs with AVX-512 but
 * without them can test everything else: VPCLMULQDQ becomes four PCLMULQDQ, GF2P8AFFINEQB goes bit by bit, as it is defined.
 */
#ifndef WEIGHTMAP_X86_CRC32_AVX512_H
#define WEIGHTMAP_X86_CRC32_AVX512_H
#include "crc32_x86.h"

#define FOLD_ZMM(n) _mm512_broadcast_i32x4(FOLD(n))

#if defined(WEIGHTMAP_EMULATE_AVX512ICL)
#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl,pclmul")
#define LANE(a, b, imm, i) _mm_clmulepi64_si128(_mm512_extracti32x4_epi32(a, i), _mm512_extracti32x4_epi32(b, i), imm)
#define PAIR(a, b, imm, i) _mm256_set_m128i(LANE(a, b, imm, i + 1), LANE(a, b, imm, i))
#define CLMUL(a, b, imm) _mm512_inserti64x4(_mm512_castsi256_si512(PAIR(a, b, imm, 0)), PAIR(a, b, imm, 2), 1)
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
#define CLMUL(a, b, imm) _mm512_clmulepi64_epi128(a, b, imm)
TARGET WM_INLINE __m512i affine(__m512i x, __m512i matrix) { return _mm512_gf2p8affine_epi64_epi8(x, matrix, 0); }
#endif

TARGET WM_INLINE __m512i load(const uint8_t *p) { return _mm512_loadu_si512((const void *)p); }

TARGET WM_INLINE __m512i xor3(__m512i a, __m512i b, __m512i c) {
    enum { XOR_OF_THREE = 0x96 };
    return _mm512_ternarylogic_epi64(a, b, c, XOR_OF_THREE);
}

/* fold_block in each of the four blocks of a register. */
TARGET WM_INLINE __m512i fold(__m512i r, __m512i next, __m512i k) { return xor3(CLMUL(r, k, 0x00), CLMUL(r, k, 0x11), next); }

TARGET WM_INLINE void prefetch(const uint8_t *ahead, int bytes) {
    for (int line = 0; line < bytes; line += 64) _mm_prefetch((const char *)ahead + line, _MM_HINT_T0);
}
#endif
