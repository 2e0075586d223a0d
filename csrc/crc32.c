/* CRC-32, from the definition to sixteen bytes a step.
 *
 * 1. The definition. Read the message as one long polynomial M over GF(2), a coefficient a bit, and let P be the
 *    fixed polynomial x^32 + x^26 + x^23 + x^22 + x^16 + x^12 + x^11 + x^10 + x^8 + x^7 + x^5 + x^4 + x^2 + x + 1.
 *    The CRC is the remainder of M * x^32 divided by P: addition and subtraction are both XOR, there are no carries,
 *    and the remainder has 32 bits. To tell a message from the same one with zeros before it, the first 32 bits are
 *    inverted, and so is the result.
 *
 *    This CRC is *reflected*: the lowest bit of each byte comes first, as on a serial line, so the whole arithmetic
 *    is mirrored. In a 32-bit word bit 31 is the coefficient of x^0 and bit 0 that of x^31; multiplying by x shifts
 *    right, and P without its leading term is 0xEDB88320.
 *
 * 2. Bit by bit. The register r holds the remainder so far. For each bit of the message: XOR it into bit 0 of r (the
 *    coefficient of x^31), multiply by x and, when x^32 came up, subtract P:
 *        r ^= bit;  r = r & 1 ? r >> 1 ^ 0xEDB88320 : r >> 1;
 *
 * 3. Byte by byte. Eight such steps depend on the low eight bits only and are linear, so a table of 256 entries does
 *    them at once: r = slices[0][(r ^ byte) & 255] ^ r >> 8. One look-up a byte, each waiting for
 *    the last.
 *
 * 4. Sixteen bytes a step ("slicing"). By linearity the register after sixteen bytes is the XOR of what each byte
 *    contributes alone, and a byte followed by k others contributes slices[k][byte]. The four bytes of the old
 *    register are first XORed into the first four of the message. Sixteen look-ups that do not wait for one another.
 *
 * The variants for CPUs that multiply without carries are explained in x86/crc32_pclmulqdq.c. gen_crc32.py writes the
 * tables.
 */
#include "crc32_tables.h"
#include "internal.h"

/* What four bytes contribute, with `after` more bytes behind them. */
static inline uint32_t slice4(uint32_t four, int after) {
    return (slices[after + 3][four & 255] ^ slices[after + 2][four >> 8 & 255]) ^
           (slices[after + 1][four >> 16 & 255] ^ slices[after][four >> 24]);
}

uint32_t crc32_portable(uint32_t state, const uint8_t *data, size_t len) {
    for (; len >= 16; data += 16, len -= 16) {
        /* Only the first four bytes wait for the register: the others are summed before, and it comes in last. */
        uint32_t rest = slice4(load_le32(data + 4), 8);
        rest ^= slice4(load_le32(data + 8), 4) ^ slice4(load_le32(data + 12), 0);
        state = rest ^ slice4(load_le32(data) ^ state, 12);
    }
    for (; len >= 4; data += 4, len -= 4) state = slice4(load_le32(data) ^ state, 0);
    for (; len; len--) state = slices[0][(state ^ *data++) & 255] ^ state >> 8;
    return state;
}

/* ------------------------------------------------------------------------------------------------ combining
 * Let A be followed by B of n bytes. In the register A's remainder is multiplied by x^(8n) and B's is added; the
 * inversions at both ends cancel out. So crc(AB) = crc(A) * x^(8n) + crc(B), all modulo P.
 */

/* a * b modulo P, without branches: the time does not depend on the values. */
static uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (int i = 31; i >= 0; i--) { /* bit i of b is the coefficient of x^(31 - i) */
        product ^= a & (0u - (b >> i & 1));
        a = a >> 1 ^ (0xEDB88320u & (0u - (a & 1)));
    }
    return product;
}

uint32_t wm_crc32_combine(uint32_t crc1, uint32_t crc2, uint64_t len2) {
    /* P is primitive, so the powers of x repeat after 2^32 - 1: only 8 * len2 modulo that counts. There 2^32 is 1,
     * hence the halves are added, and multiplying by 8 rotates. The exponent's eight hexadecimal digits each name a
     * power in the table; at most eight products remain. */
    uint64_t folded = (len2 >> 32) + (len2 & 0xFFFFFFFF);
    uint32_t n = (uint32_t)(folded + (folded >> 32));
    n = n << 3 | n >> 29;
    for (int k = 0; n; k++, n >>= 4)
        if (n & 15) crc1 = multiply(crc1, powers[k][n & 15]);
    return crc1 ^ crc2;
}

/* -------------------------------------------------------------------------------------------------- threads */
/* A thread takes some 20 microseconds to start and to end: one that runs already does half a mebibyte meanwhile with
 * PCLMULQDQ, and more than one with the wider kernels. */
static const uint64_t BYTES_A_THREAD = 2 << 20;

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
    wm_crc32_fn *crc32 = wm_variants_in_use()->crc32;
    if (threads < 2 || len < 2 * BYTES_A_THREAD) return ~crc32(~crc, data, (size_t)len);
    parts p = {.crc32 = crc32, .data = data};
    int n = wm_run_parts(run_part, &p, len, 4096, BYTES_A_THREAD, threads); /* parts of whole pages */
    for (int i = 0; i < n; i++) crc = wm_crc32_combine(crc, p.crc[i], p.len[i]);
    return crc;
}
