/* CRC-32, from the definition to sixteen bytes a step.
 *
 * 1. The definition. Read the message as one long polynomial M whose coefficients are bits, and let P be the polynomial
 *    x^32 + x^26 + x^23 + x^22 + x^16 + x^12 + x^11 + x^10 + x^8 + x^7 + x^5 + x^4 + x^2 + x + 1. The CRC is the
 *    remainder of M * x^32 divided by P, in arithmetic modulo 2: addition and subtraction are both XOR, and nothing
 *    carries. A message that begins with zeros must differ from the same one without them, so the first 32 bits are
 *    inverted, and the result too. (The kernels take and return the register without these inversions.)
 *
 *    This CRC is *reflected*: the lowest bit of each byte comes first, as on a serial line. So in a 32-bit word bit 31 is
 *    the coefficient of x^0 and bit 0 that of x^31; multiplying by x shifts right, and P without x^32 is 0xEDB88320.
 *
 * 2. Bit by bit, as in school: bring down the next bit, multiply by x, and subtract P when x^32 came up.
 *
 *        uint32_t crc32_bits(uint32_t state, const uint8_t *data, size_t len) {
 *            for (; len; len--) {
 *                state ^= *data++;
 *                for (int i = 0; i < 8; i++) state = state & 1 ? state >> 1 ^ 0xEDB88320 : state >> 1;
 *            }
 *            return state;
 *        }
 *
 * 3. Byte by byte. The value that the inner loop XORs into the upper bits depends on the low eight bits alone: a table holds
 *    all 256. One look-up a byte, but each waits for the last.
 *
 *        for (; len; len--) state = slices[0][(state ^ *data++) & 255] ^ state >> 8;
 *
 * 4. Sixteen bytes a step ("slicing"). Remainders of sums are sums of remainders. So the register after sixteen bytes is
 *    the XOR of what each byte would leave alone: slices[k][byte] for a byte that k others follow. The old register is
 *    XORed into the first four bytes. Sixteen look-ups, none of which waits for another: crc32_portable.
 *
 * x86/crc32_fold.h explains the kernels for CPUs that multiply polynomials.
 */
#include "core/crc32_constants.h"
#include "core/internal.h"

/* slices[k][b]: the register b after k + 1 zero bytes. It is the sum of the registers of b's bits, so the compiler makes each
 * table of eight constants: SUMS_n lists the sums of s and any of n constants, the highest bit first. */
#define SUMS_1(s, h) s, s ^ h
#define SUMS_2(s, g, h) SUMS_1(s, h), SUMS_1(s ^ g, h)
#define SUMS_3(s, f, g, h) SUMS_2(s, g, h), SUMS_2(s ^ f, g, h)
#define SUMS_4(s, e, f, g, h) SUMS_3(s, f, g, h), SUMS_3(s ^ e, f, g, h)
#define SUMS_5(s, d, e, f, g, h) SUMS_4(s, e, f, g, h), SUMS_4(s ^ d, e, f, g, h)
#define SUMS_6(s, c, d, e, f, g, h) SUMS_5(s, d, e, f, g, h), SUMS_5(s ^ c, d, e, f, g, h)
#define SUMS_7(s, b, c, d, e, f, g, h) SUMS_6(s, c, d, e, f, g, h), SUMS_6(s ^ b, c, d, e, f, g, h)
#define TABLE(a, b, c, d, e, f, g, h) {SUMS_7(0, b, c, d, e, f, g, h), SUMS_7(a, b, c, d, e, f, g, h)}
static const uint32_t slices[16][256] = {CRC32_SLICES(TABLE)};
static const uint32_t powers[8][16] = {CRC32_POWERS};

/* The CRC of four bytes that `after` more bytes follow. */
static inline uint32_t slice4(uint32_t four, int after) {
    return (slices[after + 3][four & 255] ^ slices[after + 2][four >> 8 & 255]) ^
           (slices[after + 1][four >> 16 & 255] ^ slices[after][four >> 24]);
}

/* Few bytes. */
static inline uint32_t take_few(uint32_t state, const uint8_t *data, size_t len) {
    for (; len >= 4; data += 4, len -= 4) state = slice4(load_le32(data) ^ state, 0);
    for (; len; len--) state = slices[0][(state ^ *data++) & 255] ^ state >> 8;
    return state;
}

uint32_t crc32_portable(uint32_t state, const uint8_t *data, size_t len) {
    for (; len >= 16; data += 16, len -= 16) {
        /* Only the first four bytes wait for the register, so the others are summed before them. */
        uint32_t tail = slice4(load_le32(data + 4), 8);
        tail ^= slice4(load_le32(data + 8), 4) ^ slice4(load_le32(data + 12), 0);
        state = tail ^ slice4(load_le32(data) ^ state, 12);
    }
    return take_few(state, data, len);
}

/* ------------------------------------------------------------------------------------------------ combining
 * Let B, of n bytes, follow A. Each byte of B multiplies A's remainder by x^8, and B's own remainder is added; the
 * inversions at both ends cancel out. So crc(AB) = crc(A) * x^(8n) + crc(B), all modulo P.
 */

/* a * b modulo P, without branches that a CPU could predict wrong: no sum waits for another, as it would if `a` were reduced in each. */
static uint32_t multiply(uint32_t a, uint32_t b) {
    uint64_t product = 0; /* bit i is the coefficient of x^(63 - i) */
    for (int i = 0; i < 32; i++) product ^= ((uint64_t)a << (i + 1)) & (0 - (uint64_t)(b >> i & 1));
    return slice4((uint32_t)product, 0) ^ (uint32_t)(product >> 32);
}

uint32_t wm_crc32_combine(uint32_t crc1, uint32_t crc2, uint64_t len2) {
    /* P is primitive: the powers of x repeat after 2^32 - 1, so the exponent 8 * len2 counts modulo that. There 2^32 is 1:
     * the halves of len2 are added, and multiplying by 8 rotates. Each of the exponent's eight hexadecimal digits picks a
     * power from the table, which leaves at most eight products. */
    uint64_t folded = (len2 >> 32) + (len2 & 0xFFFFFFFF);
    uint32_t n = (uint32_t)(folded + (folded >> 32));
    n = n << 3 | n >> 29;
    for (int k = 0; n; k++, n >>= 4)
        if (n & 15) crc1 = multiply(crc1, powers[k][n & 15]);
    return crc1 ^ crc2;
}

/* -------------------------------------------------------------------------------------------------- threads */
/* Starting a thread and waiting for it takes 20 to 50 microseconds, in which a running one does half a mebibyte with PCLMULQDQ and
 * up to four with the wider kernels. */
static const uint64_t BYTES_A_THREAD = 4 << 20;

typedef struct {
    wm_crc32_fn *crc32;
    const uint8_t *data;
    uint32_t crc[WM_MAX_PARTS];
    uint64_t len[WM_MAX_PARTS];
} parts;

static void run_part(void *context, int part, uint64_t begin, uint64_t end) {
    parts *p = context;
    p->len[part] = end - begin;
    p->crc[part] = ~p->crc32(~0u, p->data + begin, (size_t)(end - begin));
}

uint32_t wm_crc32(uint32_t crc, const uint8_t *data, uint64_t len, int threads) {
    if (len < 8) return ~take_few(~crc, data, (size_t)len); /* done before a kernel would be reached */
    wm_crc32_fn *crc32 = wm_variants_in_use()->crc32;
    if (threads < 2 || len < 2 * BYTES_A_THREAD) return ~crc32(~crc, data, (size_t)len);
    parts p = {.crc32 = crc32, .data = data};
    int n = wm_run_parts(run_part, &p, len, 4096, BYTES_A_THREAD, threads); /* parts of whole pages */
    for (int i = 0; i < n; i++) crc = wm_crc32_combine(crc, p.crc[i], p.len[i]);
    return crc;
}
