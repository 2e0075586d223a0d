/* CRC-32 by multiplication without carries (PCLMULQDQ), and by plain additions at once: see crc32_add.h.
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
 */
#include "../internal.h"

#if WM_X86
#include "crc32_xmm.h"

TARGET uint32_t crc32_x86_pclmulqdq(uint32_t state, const uint8_t *data, size_t len) { return any_length(state, data, len); }

enum { WORTH_WHILE = 40 << 10 };
typedef __m128i adder;
#define ADDING TARGET
#define OVER EACH(12)
#define OVER_FRONT EACH(149)
#define OVER_BACK EACH(63)
#define XOR(a, b) _mm_xor_si128(a, b)
#define load_adder(p) load(p)
#define fewest crc32_x86_pclmulqdq

#include "crc32_add.h"

TARGET uint32_t crc32_x86_mixed_pclmulqdq(uint32_t state, const uint8_t *data, size_t len) { return add_any(state, data, len); }
#endif
