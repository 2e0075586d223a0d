/* Shared by all variants that decode groups: see groups.h. */
#ifndef WEIGHTMAP_GROUPS_VALUE_H
#define WEIGHTMAP_GROUPS_VALUE_H
#include "quant/coded_value.h"

enum { TILE = 128, RUN = 32 }; /* outputs that are decoded together, and columns */
enum { ALONG_COLUMNS = 0, ALONG_ROWS = 1 };

/* Eight codes of at most 3 bits, one behind the other, as nibbles. */
static inline uint32_t eight_nibbles(uint32_t x, int bits) {
    const uint32_t four = (1u << 4 * bits) - 1, two = (1u << 2 * bits) - 1, one = (1u << bits) - 1;
    x = (x & four) | (x >> 4 * bits & four) << 16;
    x = (x & two * 0x10001) | (x & (two << 2 * bits) * 0x10001) << (8 - 2 * bits);
    return (x & one * 0x1010101) | (x & (one << bits) * 0x1010101) << (4 - bits);
}

/* groups.c: the columns from `from` on of rows [begin, end), each element by itself. */
void wm_grouped_one_by_one(const wm_grouped *w, uint64_t begin, uint64_t end, uint64_t from);

#endif
