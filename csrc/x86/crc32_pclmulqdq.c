/* CRC-32 by multiplication without carries (PCLMULQDQ); and by this and plain additions at once (AVX2).
 *
 * Folding. Let R be 128 bits of the message, and let the next place of interest lie D bits behind it. Only the remainder
 * modulo P counts, so anything equal to R * x^D modulo P may replace it. With R = L * x^64 + H (two halves of 64 bits) that is
 *     L * (x^(D + 64) mod P) + H * (x^D mod P),
 * two products of 64 by 32 bits. Their sum fits 128 bits again: XORed onto the 128 bits at distance D, it takes R's place.
 * So the message shrinks from the front, 128 bits a step, until 128 bits are left. For D = 128 that is
 *
 *     for (x = load(data); len >= 32; data += 16, len -= 16) x = fold_block(x, load(data + 16), k1);
 *
 * crc32_fold.h runs eight such registers side by side, D = 1024: a product takes several cycles, and seven others begin
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
typedef __m128i vector;
#define EACH(n) FOLD(n)
#define K1 EACH(1)
#define K2 EACH(2)
#define K4 EACH(4)
#define K8 EACH(8)

TARGET WM_INLINE vector load(const uint8_t *p) { return load_block(p); }
TARGET WM_INLINE vector fold(vector r, vector next, vector k) { return fold_block(r, next, k); }
TARGET WM_INLINE vector begin(vector x, uint32_t state) { return _mm_xor_si128(x, _mm_cvtsi32_si128((int)state)); }
TARGET WM_INLINE __m128i one_block(vector x) { return x; }

#include "crc32_fold.h"

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

TARGET WM_INLINE uint32_t any_length(uint32_t state, const uint8_t *data, size_t len) {
    if (len >= FOUR) return fold_all(state, data, len);
    if (len >= 16) return finish_blocks(begin(load(data), state), data + 16, len - 16);
    return len < 4 ? crc32_portable(state, data, len) : crc_4_to_15(state, data, len);
}

TARGET uint32_t crc32_x86_pclmulqdq(uint32_t state, const uint8_t *data, size_t len) { return any_length(state, data, len); }

#define ADDING WM_TARGET("avx2,pclmul")
ADDING uint32_t crc32_x86_pclmulqdq_avx2(uint32_t state, const uint8_t *data, size_t len) {
    return any_length(state, data, len);
}

/* ------------------------------------------------------------------------------------------------ additions
 * One unit multiplies and limits folding. Additions do a part of the work in the units that it leaves idle.
 *
 * Let S be P or a multiple of it. Modulo 2 a square has no mixed terms, S(x)^2 = S(x^2), so S(x^256) = S(x)^256 is a multiple too. If
 * S has degree n and a term x^e beside x^n, each 32 bytes of the message, dropped, need a copy added n - e times 32 bytes later, for
 * every such e. That takes no constants and no shifts.
 *
 * With S = P there are fourteen copies, the nearest six registers on and the farthest 32. A block is 40 registers: the first eight
 * are added to the others, which are multiplied. Bytes a nanosecond on a Sapphire Rapids at 4, 16 and 64 KiB: 30, 30, 31, and 25, 25,
 * 25 by multiplication alone.
 */
enum { BLOCK = 40 * 32 };

typedef struct {
    __m256i s0, s1, s2, s3, s4, s5, s6, s7;
} sources;

/* Register t of a block, a constant, with the sources that have a copy there: bit d - 1 of P, reflected, is the term x^(32 - d). */
#define ADD_SOURCE(c) \
    if (t - c <= 32 && (uint64_t)CRC32_REFLECTED << 1 >> (t - c) & 1) v = _mm256_xor_si256(v, s->s##c)
ADDING WM_INLINE void put_register(__m256i *out, const uint8_t *block, const sources *s, int t) {
    __m256i v = load_ymm(block + 32 * t);
    ADD_SOURCE(0);
    ADD_SOURCE(1);
    ADD_SOURCE(2);
    ADD_SOURCE(3);
    ADD_SOURCE(4);
    ADD_SOURCE(5);
    ADD_SOURCE(6);
    ADD_SOURCE(7);
    _mm256_storeu_si256(out, v);
}

ADDING WM_INLINE eight fold_registers(eight r, const uint8_t *block, const sources *s, int t, vector k) {
    __m256i made[4];
    put_register(made, block, s, t);
    put_register(made + 1, block, s, t + 1);
    put_register(made + 2, block, s, t + 2);
    put_register(made + 3, block, s, t + 3);
#if defined(__GNUC__)
    __asm__("" : "+m"(made)); /* through memory: taking halves out of registers needs the unit that multiplies */
#endif
    return fold_eight(r, (const uint8_t *)made, k);
}

/* For EIGHT bytes or more. */
ADDING WM_NOINLINE uint32_t add_few(uint32_t state, const uint8_t *data, size_t len) {
    const vector k8 = K8, k24 = EACH(24); /* eight blocks of 16 bytes, and over the sources, which are sixteen */
    eight r = load_eight(state, data);
    data += EIGHT;
    len -= EIGHT;
    for (; len >= BLOCK; data += BLOCK, len -= BLOCK) {
        if (len >= AHEAD + BLOCK) prefetch(data + AHEAD, BLOCK);
        sources s = {load_ymm(data),       load_ymm(data + 32),  load_ymm(data + 64),  load_ymm(data + 96),
                     load_ymm(data + 128), load_ymm(data + 160), load_ymm(data + 192), load_ymm(data + 224)};
        s.s6 = _mm256_xor_si256(s.s6, s.s0);
        s.s7 = _mm256_xor_si256(s.s7, s.s1);
        r = fold_registers(r, data, &s, 8, k24);
        r = fold_registers(r, data, &s, 12, k8);
        r = fold_registers(r, data, &s, 16, k8);
        r = fold_registers(r, data, &s, 20, k8);
        r = fold_registers(r, data, &s, 24, k8);
        r = fold_registers(r, data, &s, 28, k8);
        r = fold_registers(r, data, &s, 32, k8);
        r = fold_registers(r, data, &s, 36, k8);
    }
    return finish_eight(r, data, len);
}

/* ------------------------------------------------------------------------------------------------ a ring
 * On a Sapphire Rapids it takes as long as the above for 128 KiB, and 29 us for 1 MiB where that takes 34. CPUs that multiply half as
 * often, as Haswell and AMD's do, gain more.
 */
enum { FOLDED = 2, WORTH_WHILE = 10 * 11520 };

ADDING WM_INLINE void fold_step(vector *x, const uint8_t *p) {
    x[0] = fold(x[0], load(p), K2);
    x[1] = fold(x[1], load(p + 16), K2);
}

ADDING WM_INLINE uint32_t fewer(uint32_t state, const uint8_t *data, size_t len) {
    return len < EIGHT + BLOCK ? crc32_x86_pclmulqdq_avx2(state, data, len) : add_few(state, data, len);
}

#include "crc32_ring.h"

ADDING uint32_t crc32_x86_mixed_pclmulqdq_avx2(uint32_t state, const uint8_t *data, size_t len) {
    return len < WORTH_WHILE ? fewer(state, data, len) : add_ring(state, data, len);
}
#endif
