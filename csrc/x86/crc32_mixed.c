/* CRC-32 by two units of the CPU at once: multiplication without carries, and 8 x 8 bit matrices (GF2P8AFFINEQB).
 *
 * crc32_pclmulqdq.c explains folding by multiplication. The one unit that multiplies limits it, so here another unit folds
 * every third block of 64 bytes.
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
 * it, and the plain kernel goes on from there. That costs an estimated 140 cycles, which the loop gains in 9 KiB by the model
 * below; so the plain kernel takes short inputs.
 *
 * Why two to one. By LLVM's model of AMD's Zen 4 that ratio keeps all four vector pipes busy. By its models of Intel's cores
 * both kinds of folding share two ports with the XORs, and nothing is gained or lost. Bytes a cycle that llvm-mca 19 finds
 * for the loops compiled by gcc 12, with the data in the first cache:
 *                                                znver4             icelake-server   sapphirerapids
 *   crc32_vpclmulqdq.c                           16.0               31.9             31.9
 *   this one                                     21.3 (bound 24)    32.0             32.0
 *
 * On a Zen 5 it runs at 88 to 100 GB/s, where zlib-ng runs at 65 to 70.
 */
#include "../internal.h"

#if WM_X86
#include "crc32_avx512.h"

enum { STEP = 3 * 64, WINDOW = 6 * STEP, WORTH_WHILE = 16 << 10 };

/* Step i: a and b fold by multiplication; the new block `to` takes in those of its kind 6, 4, 2 and 1 steps before. */
#define TAKE_STEP(i, a, b, to, before6, before4, before2, before1)                                     \
    do {                                                                                               \
        if (prefetches) prefetch(data + AHEAD + STEP * (i), STEP);                                     \
        a = fold(a, load(data + STEP * (i)), k);                                                       \
        b = fold(b, load(data + STEP * (i) + 64), k);                                                  \
        __m512i taken = xor3(load(data + STEP * (i) + 128), affine(before6, m6), affine(before4, m4)); \
        to = xor3(taken, affine(before2, m2), affine(before1, m1));                                    \
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

TARGET WM_INLINE void store_step(uint8_t *to, __m512i a, __m512i b, __m512i m) {
    _mm512_storeu_si512(to, a);
    _mm512_storeu_si512(to + 64, b);
    _mm512_storeu_si512(to + 128, m);
}

/* `prefetches` is a constant: a branch in each step would cost what it saves. */
TARGET WM_INLINE uint32_t mixed(uint32_t state, const uint8_t *data, size_t len, int prefetches) {
    const __m512i k = FOLD_ZMM(72); /* a window: 18 blocks of 512 bits are 72 of 128 */
    const __m512i m1 = _mm512_set1_epi64(CRC32_AFFINE_1), m2 = _mm512_set1_epi64(CRC32_AFFINE_2);
    const __m512i m4 = _mm512_set1_epi64(CRC32_AFFINE_4), m6 = _mm512_set1_epi64(CRC32_AFFINE_6);
    const __m512i none = _mm512_setzero_si512();
    __m512i a0 = none, a1 = none, a2 = none, a3 = none, a4 = none, a5 = none; /* by multiplication, two a step */
    __m512i b0 = none, b1 = none, b2 = none, b3 = none, b4 = none, b5 = none;
    __m512i x0 = none, x1 = none, x2 = none, x3 = none, x4 = none, x5 = none; /* by matrices, one a step */

    TAKE_WINDOW(); /* the first: there is nothing to take in */
    a0 = _mm512_xor_si512(a0, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    data += WINDOW;
    len -= WINDOW;
    for (; len >= 2 * WINDOW; data += WINDOW, len -= WINDOW) TAKE_WINDOW();

    /* Once more, but new blocks take in nothing from each other: they are message, for the plain kernel to read. */
    __m512i y0, y1, y2, y3, y4, y5;
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
    if (len < WORTH_WHILE) return crc32_x86_vpclmulqdq_avx512(state, data, len);
    return wm_crc32_prefetches() ? mixed(state, data, len, 1) : mixed(state, data, len, 0);
}
#endif
