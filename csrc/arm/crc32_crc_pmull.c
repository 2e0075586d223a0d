#include "../internal.h"
#if WM_ARM
uint32_t crc32_arm_crc_pmull(uint32_t s, const uint8_t *d, size_t n) { return crc32_portable(s, d, n); }
uint32_t crc32_arm_pmull(uint32_t s, const uint8_t *d, size_t n) { return crc32_portable(s, d, n); }
#endif
