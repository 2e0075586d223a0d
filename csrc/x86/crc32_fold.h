/* CRC-32 by multiplication without carries (PCLMULQDQ): the template of the kernels of x86-64. Three files include it, each named
 * after its instruction set, for registers of 16, 32 and 64 bytes.
 *
 * Folding. Let R be a block of 128 bits of the message, and let another block lie D bits behind it. Only the remainder modulo P
 * counts, so any multiple of P may be added to R * x^D. Split R into halves of 64 bits, L * x^64 + H. Then
 *     L * (x^(D + 64) mod P) + H * (x^D mod P)
 * has the same remainder as R * x^D. It is two products of 64 by 32 bits and fits into 128: XORed onto the block at distance D, it
 * replaces R. So each fold shortens the message by a block, until one is left.
 *
 * Registers. A wide register folds all its blocks at once. A product takes several cycles and a new one may begin in each, so a long
 * message is folded by eight registers side by side, each onto the place eight registers behind it.
 *
 * Spreading. P(x)^128 = P(x^128), and it is zero modulo P: a register of 128 bits may be XORed, instead of multiplied, onto those that
 * lie e registers behind it, for each bit e of CRC32_P but the lowest. Of 40 registers the first eight are spread over the others,
 * where multiplying limits the speed: that saves a fifth of the products.
 *
 * Reflection. The lowest bit of a block is the highest power of x: bit k of 128 is the coefficient of x^(127 - k), bit k of 64
 * that of x^(63 - k). The first bytes of the message lie lowest and are its highest powers, so a plain load is right, and the low
 * quadword is L. Bit i + j of a product is the coefficient of x^(126 - i - j), not of x^(127 - i - j): the product is multiplied by
 * x, and the exponent of every constant is lower by one to make up for that.
 *
 * The end. The last block R gives the 32 bits R * x^32 mod P in two steps:
 *   - Fold L alone: S = L * (x^96 mod P) + H * x^32 has degree 95 at most. It is kept multiplied by x^32, in the
 *     lower 96 bits of the register, so that its upper 64 coefficients are the low quadword.
 *   - Barrett: q = floor(S / P) = floor(floor(S / x^32) * floor(x^95 / P) / x^63), exactly, as nothing carries. Then
 *     the remainder is the 32 lowest coefficients of S + q * P; multiplied by x^32 they are the third 32-bit word.
 *
 * A file defines before it includes this one:
 *
 *   KERNEL              the name of the kernel
 *   TARGET              the instructions that it may use
 *   vector              the register
 *   load(p)             loads one from any address
 *   begin(x, state)     adds the state to the first four bytes of x
 *   fold(x, next, k)    folds each block of x onto that of next
 *   one_block(x)        folds the blocks of x onto its last one
 *   EACH(n)             the constants of folding by n blocks, in each block of a register
 *   K1, K2, K4, K8      those of folding by one, two, four and eight registers
 *   K16, SPREAD(n)      optional: those of folding by 16, and register n of 40 with what c0 to c7, the first eight, add to it
 */
enum { BLOCK = 16, REGISTER = sizeof(vector), STEP = 8 * REGISTER };

/* The remainder of x * x^32: the end, as above. */
TARGET WM_INLINE uint32_t reduce(__m128i x) {
    const __m128i x95_barrett = _mm_set_epi64x((int64_t)CRC32_BARRETT, CRC32_X95);
    const __m128i p = _mm_cvtsi64_si128(CRC32_P);
    const __m128i s = _mm_xor_si128(_mm_clmulepi64_si128(x, x95_barrett, 0x00), _mm_srli_si128(x, 8));
    const __m128i q = _mm_clmulepi64_si128(s, x95_barrett, 0x10);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(s, _mm_clmulepi64_si128(q, p, 0x00)), 2);
}

/* Folds the last 1 to 15 bytes, which lie before `end`, into x; at least a block lies before them in memory. The message left is x and
 * these bytes: fold its first `len` bytes onto its last block. */
TARGET WM_INLINE __m128i fold_rest(__m128i x, const uint8_t *end, size_t len) {
    /* Shuffles: loaded from shifts + n they move the bytes of a block up by 16 - n, from shifts + 16 + n down by n. -1 makes a zero. */
    static const int8_t shifts[48] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, /**/
                                      0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, /**/
                                      -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    const __m128i up = load_block(shifts + len), down = load_block(shifts + 16 + len);
    /* where `down` picks zeros, the bytes of the message stand */
    const __m128i last = _mm_blendv_epi8(_mm_shuffle_epi8(x, down), load_block(end - BLOCK), down);
    return fold_block(_mm_shuffle_epi8(x, up), last, FOLD(1));
}

/* Folds the eight registers n to n + 7 of NEXT into x0 to x7. */
#define FOLD_EIGHT(NEXT, n, k)                                                                                              \
    x0 = fold(x0, NEXT(n), k), x1 = fold(x1, NEXT(n + 1), k), x2 = fold(x2, NEXT(n + 2), k), x3 = fold(x3, NEXT(n + 3), k), \
    x4 = fold(x4, NEXT(n + 4), k), x5 = fold(x5, NEXT(n + 5), k), x6 = fold(x6, NEXT(n + 6), k), x7 = fold(x7, NEXT(n + 7), k)
#define AT(n) load(p + (n) * REGISTER)

/* Folds STEP bytes or more by eight registers, which begin at `data`, into one. Afterwards less than STEP bytes remain. */
TARGET WM_INLINE vector fold_steps(uint32_t state, const uint8_t **data, size_t *len) {
    const vector k8 = K8, k4 = K4, k2 = K2;
    const uint8_t *p = *data, *const end = p + *len;
    vector x0 = begin(AT(0), state), x1 = AT(1), x2 = AT(2), x3 = AT(3), x4 = AT(4), x5 = AT(5), x6 = AT(6), x7 = AT(7);
    p += STEP;
#ifdef K16
    for (; (size_t)(end - p) >= 5 * STEP; p += 5 * STEP) {
        const vector c0 = AT(0), c1 = AT(1), c2 = AT(2), c3 = AT(3), c4 = AT(4), c5 = AT(5);
        const vector c6 = _mm_xor_si128(AT(6), c0), c7 = _mm_xor_si128(AT(7), c1);
        FOLD_EIGHT(SPREAD, 8, K16), FOLD_EIGHT(SPREAD, 16, k8), FOLD_EIGHT(SPREAD, 24, k8), FOLD_EIGHT(SPREAD, 32, k8);
    }
#endif
    for (; (size_t)(end - p) >= STEP; p += STEP) FOLD_EIGHT(AT, 0, k8);
    *data = p;
    *len = (size_t)(end - p);
    x0 = fold(x0, x4, k4), x1 = fold(x1, x5, k4), x2 = fold(x2, x6, k4), x3 = fold(x3, x7, k4);
    return fold(fold(x0, x2, k2), fold(x1, x3, k2), K1);
}

TARGET uint32_t KERNEL(uint32_t state, const uint8_t *data, size_t len) {
    if (len < BLOCK) return crc32_portable(state, data, len);
    __m128i block; /* stands for all bytes before `data` */
    if (len < REGISTER) {
        block = _mm_xor_si128(load_block(data), _mm_cvtsi32_si128((int)state));
        data += BLOCK, len -= BLOCK;
    } else {
        vector x;
        if (len >= STEP)
            x = fold_steps(state, &data, &len);
        else
            x = begin(load(data), state), data += REGISTER, len -= REGISTER;
        for (; len >= REGISTER; data += REGISTER, len -= REGISTER) x = fold(x, load(data), K1);
        block = one_block(x);
    }
    for (; len >= BLOCK; data += BLOCK, len -= BLOCK) block = fold_block(block, load_block(data), FOLD(1));
    return reduce(len ? fold_rest(block, data + len, len) : block);
}
