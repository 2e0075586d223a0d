/* What the C files share among themselves: unaligned little-endian loads, target attributes, the table of variants. */
#ifndef WEIGHTMAP_INTERNAL_H
#define WEIGHTMAP_INTERNAL_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"

/* Loads from any alignment. memcpy is the one way that C allows; compilers make a single instruction of it. */
static inline uint16_t load_le16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static inline uint32_t load_le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t load_le64(const uint8_t *p) { return (uint64_t)load_le32(p) | (uint64_t)load_le32(p + 4) << 32; }

/* Fills *fault (when there is one) and returns -1, so that a check is one line: return wm_fail(...). */
static inline int wm_fail(wm_fault *fault, int32_t code, uint64_t row, uint64_t at, uint64_t actual, uint64_t expected) {
    if (fault) *fault = (wm_fault){code, row, at, actual, expected};
    return -1;
}

#endif
