#include "../internal.h"
#if WM_X86
uint32_t crc32_x86_pclmulqdq(uint32_t s, const uint8_t *d, size_t n) { return crc32_portable(s, d, n); }
uint32_t crc32_x86_vpclmulqdq_avx512(uint32_t s, const uint8_t *d, size_t n) { return crc32_portable(s, d, n); }
void fnv1a32_x86_avx512(const uint8_t *f, const uint8_t *e, const uint32_t *l, uint32_t g, uint64_t n, uint32_t *o) {
    fnv1a32_portable(f, e, l, g, n, o);
}
#endif
