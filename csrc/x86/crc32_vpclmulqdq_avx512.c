/* CRC-32 by multiplication without carries, four blocks at once (VPCLMULQDQ, AVX-512); and by two units of the CPU at once: this
 * multiplication, and 8 x 8 bit matrices (GF2P8AFFINEQB).
 *
 * crc32_pclmulqdq.c explains folding by multiplication. Where one unit multiplies and limits it, as in AMD's CPUs, another unit
 * folds every third block of 64 bytes.
 *
 * Folding by matrices. Take one byte of a block, and the bytes at the same place in four later blocks. The bits of these
 * four are 32 powers of x modulo P, which has degree 32: if they are linearly independent, every polynomial modulo P is the
 * sum of some of them, in one way. So our byte, a sum of eight other powers, may be replaced by bytes XORed onto the four,
 * each an 8 x 8 bit matrix times ours. At another place in the blocks one power of x multiplies them all, so the same
 * matrices serve all 64 bytes, and four GF2P8AFFINEQB fold a block onto four others. gen_crc32.py finds distances at which
 * the powers are independent, and the matrices.
 *
 * The pattern. A step is three blocks. Two are folded by multiplication, one by matrices onto those 1, 2, 4 and 6 steps
 * later. Six steps, 1152 bytes, are a window, and registers hold the blocks of the last window. A new block of the first kind
 * takes in the one a window before it; a new block of the second kind takes in four earlier ones of its kind.
 *
 * The end. A copy of the next window takes in what the last one still has to give. The copy then stands for all bytes before
 * it, and folding by multiplication goes on from there. That costs an estimated 140 cycles, which the loop gains in 9 KiB by the
 * model below; so multiplication alone takes short inputs.
 *
 * Why two to one. By LLVM's model of AMD's Zen 4 that ratio keeps all four vector pipes busy. On Intel's cores both kinds of
 * folding share two ports with the XORs, and multiplication alone is faster. Bytes a cycle that llvm-mca 19 finds for the loops
 * compiled by gcc 12, with the data in the first cache:
 *                                    znver4             icelake-server   sapphirerapids
 *   multiplication                   16.0               31.9             31.9
 *   with matrices                    21.3 (bound 24)    32.0             32.0
 *
 * GB/s in the second-level cache (1 MiB) and in memory: 97 and 16 against 76 and 16 with matrices on a Sapphire Rapids; on a Zen 5
 * matrices reach 88 to 100, where zlib-ng, which multiplies alone, reaches 65 to 70.
 *
 * WEIGHTMAP_EMULATE_AVX512ICL replaces the two instructions that came with Ice Lake and Zen 4, so that CPUs with AVX-512 but
 * without them can test everything else: VPCLMULQDQ becomes four PCLMULQDQ, GF2P8AFFINEQB goes bit by bit, as it is defined.
 */
#include "../internal.h"

#if WM_X86
#include "crc32_x86.h"

typedef __m512i vector;
#define EACH(n) _mm512_broadcast_i32x4(FOLD(n))
#define K1 EACH(4)
#define K2 EACH(8)
#define K4 EACH(16)
#define K8 EACH(32)

#if defined(WEIGHTMAP_EMULATE_AVX512ICL)
#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl,pclmul")
#define LANE(a, b, imm, i) _mm_clmulepi64_si128(_mm512_extracti32x4_epi32(a, i), _mm512_extracti32x4_epi32(b, i), imm)
#define PAIR(a, b, imm, i) _mm256_set_m128i(LANE(a, b, imm, i + 1), LANE(a, b, imm, i))
#define CLMUL(a, b, imm) _mm512_inserti64x4(_mm512_castsi256_si512(PAIR(a, b, imm, 0)), PAIR(a, b, imm, 2), 1)
/* Bit i of a byte of the result is the parity of that byte of x ANDed with byte 7 - i of the matrix beside it. */
TARGET WM_INLINE vector affine(vector x, vector matrix) {
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
TARGET WM_INLINE vector affine(vector x, vector matrix) { return _mm512_gf2p8affine_epi64_epi8(x, matrix, 0); }
#endif

TARGET WM_INLINE vector load(const uint8_t *p) { return _mm512_loadu_si512((const void *)p); }

TARGET WM_INLINE vector xor3(vector a, vector b, vector c) {
    enum { XOR_OF_THREE = 0x96 };
    return _mm512_ternarylogic_epi64(a, b, c, XOR_OF_THREE);
}

/* fold_block in each of the four blocks of a register. */
TARGET WM_INLINE vector fold(vector r, vector next, vector k) { return xor3(CLMUL(r, k, 0x00), CLMUL(r, k, 0x11), next); }

TARGET WM_INLINE vector begin(vector x, uint32_t state) {
    return _mm512_xor_si512(x, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
}

TARGET WM_INLINE __m128i one_block(vector x) {
    const __m128i k1 = FOLD(1), k2 = FOLD(2);
    __m128i even = fold_block(_mm512_castsi512_si128(x), _mm512_extracti32x4_epi32(x, 2), k2);
    __m128i odd = fold_block(_mm512_extracti32x4_epi32(x, 1), _mm512_extracti32x4_epi32(x, 3), k2);
    return fold_block(even, odd, k1);
}

#include "crc32_fold.h"

TARGET uint32_t crc32_x86_vpclmulqdq_avx512(uint32_t state, const uint8_t *data, size_t len) {
    return len < FOUR ? crc32_x86_pclmulqdq_avx2(state, data, len) : fold_all(state, data, len);
}

enum { STEP = 3 * 64, WINDOW = 6 * STEP, WORTH_WHILE = 16 << 10 };

/* Step i: a and b fold by multiplication; the new block `to` takes in those of its kind 6, 4, 2 and 1 steps before. */
#define TAKE_STEP(i, a, b, to, before6, before4, before2, before1)                                    \
    do {                                                                                              \
        if (prefetches) prefetch(data + AHEAD + STEP * (i), STEP);                                    \
        a = fold(a, load(data + STEP * (i)), k);                                                      \
        b = fold(b, load(data + STEP * (i) + 64), k);                                                 \
        vector taken = xor3(load(data + STEP * (i) + 128), affine(before6, m6), affine(before4, m4)); \
        to = xor3(taken, affine(before2, m2), affine(before1, m1));                                   \
    } while (0)

#define TAKE_WINDOW()                             \
    do {                                          \
        TAKE_STEP(0, a0, b0, x0, x0, x2, x4, x5); \
        TAKE_STEP(1, a1, b1, x1, x1, x3, x5, x0); \
        TAKE_STEP(2, a2, b2, x2, x2, x4, x0, x1); \
        TAKE_STEP(3, a3, b3, x3, x3, x5, x1, x2); \
        TAKE_STEP(4, a4, b4, x4, x4, x0, x2, x3); \
        TAKE_STEP(5, a5, b5, x5, x5, x1, x3, x4); \
    } while (0)

TARGET WM_INLINE void store_step(uint8_t *to, vector a, vector b, vector m) {
    _mm512_storeu_si512(to, a);
    _mm512_storeu_si512(to + 64, b);
    _mm512_storeu_si512(to + 128, m);
}

/* `prefetches` is a constant. Zen 4 reads ahead better by itself: without prefetching it reached 60, 53 and 31 GB/s of 1, 16 and
 * 512 MiB, with it 57, 46 and 25; reading alone, 64 bytes at a time, 30 of 512 MiB. */
TARGET WM_INLINE uint32_t mixed(uint32_t state, const uint8_t *data, size_t len, int prefetches) {
    const vector k = EACH(72); /* a window: 18 blocks of 512 bits are 72 of 128 */
    const vector m1 = _mm512_set1_epi64(CRC32_AFFINE_1), m2 = _mm512_set1_epi64(CRC32_AFFINE_2);
    const vector m4 = _mm512_set1_epi64(CRC32_AFFINE_4), m6 = _mm512_set1_epi64(CRC32_AFFINE_6);
    const vector none = _mm512_setzero_si512();
    vector a0 = none, a1 = none, a2 = none, a3 = none, a4 = none, a5 = none; /* by multiplication, two a step */
    vector b0 = none, b1 = none, b2 = none, b3 = none, b4 = none, b5 = none;
    vector x0 = none, x1 = none, x2 = none, x3 = none, x4 = none, x5 = none; /* by matrices, one a step */

    TAKE_WINDOW(); /* the first: there is nothing to take in */
    a0 = begin(a0, state);
    data += WINDOW;
    len -= WINDOW;
    for (; len >= 2 * WINDOW; data += WINDOW, len -= WINDOW) TAKE_WINDOW();

    /* Once more, but new blocks take in nothing from each other: they are message, for the plain kernel to read. */
    vector y0, y1, y2, y3, y4, y5;
    TAKE_STEP(0, a0, b0, y0, x0, x2, x4, x5);
    TAKE_STEP(1, a1, b1, y1, x1, x3, x5, none);
    TAKE_STEP(2, a2, b2, y2, x2, x4, none, none);
    TAKE_STEP(3, a3, b3, y3, x3, x5, none, none);
    TAKE_STEP(4, a4, b4, y4, x4, none, none, none);
    TAKE_STEP(5, a5, b5, y5, x5, none, none, none);
    uint8_t last[WINDOW];
    store_step(last, a0, b0, y0);
    store_step(last + STEP, a1, b1, y1);
    store_step(last + 2 * STEP, a2, b2, y2);
    store_step(last + 3 * STEP, a3, b3, y3);
    store_step(last + 4 * STEP, a4, b4, y4);
    store_step(last + 5 * STEP, a5, b5, y5);
    state = crc32_x86_vpclmulqdq_avx512(0, last, WINDOW);
    return crc32_x86_vpclmulqdq_avx512(state, data + WINDOW, len - WINDOW);
}

TARGET uint32_t crc32_x86_mixed_avx512(uint32_t state, const uint8_t *data, size_t len) {
    return len < WORTH_WHILE ? crc32_x86_vpclmulqdq_avx512(state, data, len) : mixed(state, data, len, 1);
}

TARGET uint32_t crc32_x86_mixed_avx512_zen4(uint32_t state, const uint8_t *data, size_t len) {
    return len < WORTH_WHILE ? crc32_x86_vpclmulqdq_avx512(state, data, len) : mixed(state, data, len, 0);
}
#endif
