/* CRC-32 by multiplication without carries (PCLMULQDQ).
 *
 * Folding. Let R be 128 bits of the message, and let the next place of interest lie D bits behind it. Only the remainder
 * modulo P counts, so anything equal to R * x^D modulo P may replace it. With R = L * x^64 + H (two halves of 64 bits) that is
 *     L * (x^(D + 64) mod P) + H * (x^D mod P),
 * two products of 64 by 32 bits. Their sum fits 128 bits again: XORed onto the 128 bits at distance D, it takes R's place.
 * So the message shrinks from the front, 128 bits a step, until 128 bits are left. For D = 128 that is
 *
 *     for (x = load(data); len >= 32; data += 16, len -= 16) x = fold_block(x, load(data + 16), k1);
 *
 * The kernel runs eight such registers side by side, D = 1024: a product takes several cycles, and seven others begin
 * meanwhile.
 *
 * Reflection. The lowest bit of a register is the highest power of x: bit k of 128 is the coefficient of x^(127 - k),
 * bit k of 64 that of x^(63 - k). The message's first bytes lie lowest and are its highest powers, so a plain load is
 * right, and the *low* quadword is L. Bit i + j of a product is the coefficient of x^(126 - i - j), not x^(127 - i - j): a
 * product comes out multiplied by x, and the exponent of every constant is lower by one to make up for it.
 *
 * The end. 128 bits R to the 32 of R * x^32 mod P:
 *   - Fold L alone: S = L * (x^96 mod P) + H * x^32 has degree 95 at most. It is kept multiplied by x^32, in the
 *     lower 96 bits of the register, so that its upper 64 coefficients are the low quadword.
 *   - Barrett: q = floor(S / P) = floor(floor(S / x^32) * floor(x^95 / P) / x^63), exactly, as nothing carries. Then
 *     the remainder is the 32 lowest coefficients of S + q * P; multiplied by x^32 they are the third 32-bit word.
 *
 * One inline function is compiled twice: for SSE, and for AVX, whose instructions write to a third register and load from
 * any address. The multiplications limit both, but a core shared with another thread gains from fewer instructions.
 */
#include "../internal.h"

#if WM_X86
#include "crc32_x86.h"

#define TARGET WM_TARGET("sse4.2,pclmul")

/* 4 to 15 bytes, moved to the end of 128 bits. The zeros in front leave nothing, since the register is XORed onto the first
 * four bytes, wherever those lie. Two loads that overlap replace a loop. */
TARGET WM_INLINE uint32_t crc_4_to_15(uint32_t state, const uint8_t *data, size_t len) {
    if (len >= 8) {
        int past = 8 * ((int)len - 8); /* bits beyond the first eight bytes */
        uint64_t first = load_le64(data) ^ state;
        uint64_t low = first << (56 - past) << 8; /* two shifts, as one by 64 is not defined */
        uint64_t high = load_le64(data + len - 8) ^ (uint64_t)state >> past;
        return reduce(_mm_set_epi64x((int64_t)high, (int64_t)low));
    }
    int past = 8 * ((int)len - 4);
    uint32_t first = load_le32(data) ^ state;
    uint32_t low = first << (24 - past) << 8;
    uint32_t high = load_le32(data + len - 4) ^ state >> past;
    return reduce(_mm_set_epi64x((int64_t)((uint64_t)high << 32 | low), 0));
}

TARGET WM_INLINE uint32_t crc32_folding(uint32_t state, const uint8_t *data, size_t len) {
    if (len < 4) return crc32_portable(state, data, len);
    if (len < 16) return crc_4_to_15(state, data, len);

    const __m128i k1 = FOLD(1);
    __m128i x0 = _mm_xor_si128(load_block(data), _mm_cvtsi32_si128((int)state));
    data += 16;
    len -= 16;
    if (len >= 112) {
        const __m128i k8 = FOLD(8), k4 = FOLD(4), k2 = FOLD(2);
        __m128i x1 = load_block(data), x2 = load_block(data + 16), x3 = load_block(data + 32), x4 = load_block(data + 48);
        __m128i x5 = load_block(data + 64), x6 = load_block(data + 80), x7 = load_block(data + 96);
        data += 112;
        len -= 112;
        for (; len >= 128; data += 128, len -= 128) {
            _mm_prefetch((const char *)data + AHEAD, _MM_HINT_T0);
            _mm_prefetch((const char *)data + AHEAD + 64, _MM_HINT_T0);
            x0 = fold_block(x0, load_block(data), k8);
            x1 = fold_block(x1, load_block(data + 16), k8);
            x2 = fold_block(x2, load_block(data + 32), k8);
            x3 = fold_block(x3, load_block(data + 48), k8);
            x4 = fold_block(x4, load_block(data + 64), k8);
            x5 = fold_block(x5, load_block(data + 80), k8);
            x6 = fold_block(x6, load_block(data + 96), k8);
            x7 = fold_block(x7, load_block(data + 112), k8);
        }
        x4 = fold_block(x0, x4, k4);
        x5 = fold_block(x1, x5, k4);
        x6 = fold_block(x2, x6, k4);
        x7 = fold_block(x3, x7, k4);
        x0 = fold_block(fold_block(x4, x6, k2), fold_block(x5, x7, k2), k1);
    }
    return finish_blocks(x0, data, len);
}

TARGET uint32_t crc32_x86_pclmulqdq(uint32_t state, const uint8_t *data, size_t len) { return crc32_folding(state, data, len); }

WM_TARGET("avx2,pclmul") uint32_t crc32_x86_pclmulqdq_avx2(uint32_t state, const uint8_t *data, size_t len) {
    return crc32_folding(state, data, len);
}
#endif
