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

TARGET WM_INLINE __m128i load(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }

/* The remainder of r * x^32. */
TARGET WM_INLINE uint32_t reduce(__m128i r) {
    const __m128i x95_barrett = _mm_set_epi64x((int64_t)CRC32_BARRETT, CRC32_X95);
    const __m128i p = _mm_cvtsi64_si128(CRC32_P);
    __m128i s = _mm_xor_si128(_mm_clmulepi64_si128(r, x95_barrett, 0x00), _mm_srli_si128(r, 8));
    __m128i q = _mm_clmulepi64_si128(s, x95_barrett, 0x10);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(s, _mm_clmulepi64_si128(q, p, 0x00)), 2);
}

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

/* Shuffles for the last n bytes, 1 to 15. Loaded from shifts + n they move a register's bytes up by 16 - n, loaded from
 * shifts + 16 + n down by n. A byte with its top bit set makes a zero. */
static const uint8_t shifts[48] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
                                   0x80, 0x80, 0x80, 0x80, 0,    1,    2,    3,    4,    5,    6,    7,
                                   8,    9,    10,   11,   12,   13,   14,   15,   0x80, 0x80, 0x80, 0x80,
                                   0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80};

/* x stands for all bytes before `data`; 0 to 15 remain, and at least 16 bytes lie before them in memory. */
TARGET WM_INLINE uint32_t finish(__m128i x, const uint8_t *data, size_t len, __m128i k1) {
    if (len) {
        /* x followed by len bytes is 16 + len bytes: fold the first len of them onto the last 16. */
        __m128i last = load(data + len - 16);
        __m128i up = load(shifts + len), down = load(shifts + 16 + len);
        __m128i head = _mm_shuffle_epi8(x, up);
        /* where `down` picks zeros, the bytes of the message stand */
        __m128i tail = _mm_blendv_epi8(_mm_shuffle_epi8(x, down), last, down);
        x = fold_block(head, tail, k1);
    }
    return reduce(x);
}

TARGET WM_INLINE uint32_t crc32_folding(uint32_t state, const uint8_t *data, size_t len) {
    if (len < 4) return crc32_portable(state, data, len);
    if (len < 16) return crc_4_to_15(state, data, len);

    const __m128i k1 = FOLD(1);
    __m128i x0 = _mm_xor_si128(load(data), _mm_cvtsi32_si128((int)state));
    data += 16;
    len -= 16;
    if (len >= 112) {
        const __m128i k8 = FOLD(8), k4 = FOLD(4), k2 = FOLD(2);
        __m128i x1 = load(data), x2 = load(data + 16), x3 = load(data + 32), x4 = load(data + 48);
        __m128i x5 = load(data + 64), x6 = load(data + 80), x7 = load(data + 96);
        data += 112;
        len -= 112;
        for (; len >= 128; data += 128, len -= 128) {
            _mm_prefetch((const char *)data + AHEAD, _MM_HINT_T0);
            _mm_prefetch((const char *)data + AHEAD + 64, _MM_HINT_T0);
            x0 = fold_block(x0, load(data), k8);
            x1 = fold_block(x1, load(data + 16), k8);
            x2 = fold_block(x2, load(data + 32), k8);
            x3 = fold_block(x3, load(data + 48), k8);
            x4 = fold_block(x4, load(data + 64), k8);
            x5 = fold_block(x5, load(data + 80), k8);
            x6 = fold_block(x6, load(data + 96), k8);
            x7 = fold_block(x7, load(data + 112), k8);
        }
        x4 = fold_block(x0, x4, k4);
        x5 = fold_block(x1, x5, k4);
        x6 = fold_block(x2, x6, k4);
        x7 = fold_block(x3, x7, k4);
        x0 = fold_block(fold_block(x4, x6, k2), fold_block(x5, x7, k2), k1);
    }
    for (; len >= 16; data += 16, len -= 16) x0 = fold_block(x0, load(data), k1);
    return finish(x0, data, len, k1);
}

TARGET uint32_t crc32_x86_pclmulqdq(uint32_t state, const uint8_t *data, size_t len) { return crc32_folding(state, data, len); }

WM_TARGET("avx2,pclmul") uint32_t crc32_x86_pclmulqdq_avx2(uint32_t state, const uint8_t *data, size_t len) {
    return crc32_folding(state, data, len);
}
#endif
