/* CRC-32 as in crc32_pclmulqdq.c, compiled for AVX2: instructions write to a third register and load from any address, and
 * registers to add are twice as wide.
 */
#include "../internal.h"

#if WM_X86
#include "crc32_xmm.h"

#define ADDING WM_TARGET("avx2,pclmul")
ADDING uint32_t crc32_x86_pclmulqdq_avx2(uint32_t state, const uint8_t *data, size_t len) {
    return any_length(state, data, len);
}

enum { WORTH_WHILE = 32 << 10 };
typedef __m256i adder;
#define OVER EACH(20)
#define OVER_FRONT EACH(294)
#define OVER_BACK EACH(126)
#define XOR(a, b) _mm256_xor_si256(a, b)
#define load_adder(p) load_ymm(p)
#define fewest crc32_x86_pclmulqdq_avx2

#include "crc32_add.h"

ADDING uint32_t crc32_x86_mixed_pclmulqdq_avx2(uint32_t state, const uint8_t *data, size_t len) {
    return add_any(state, data, len);
}
#endif
