/* What all variants of the decoding of groups share: see groups.h. */
#ifndef WEIGHTMAP_GROUPS_VALUE_H
#define WEIGHTMAP_GROUPS_VALUE_H
#include "floats.h"

enum { LANES = 16, PLANES = 8, TILE = LANES * PLANES, ACROSS = 32 };
enum { ALONG_COLUMNS = 0, ALONG_ROWS = 1 };
enum { AS_FLOAT32 = 0, AS_FLOAT16 = 1, AS_BFLOAT16 = 2 };

/* AWQ: the output, of the eight of a word, whose code is each nibble. */
static const uint8_t output_of_nibble[8] = {0, 2, 4, 6, 1, 3, 5, 7};

/* float32 to bfloat16: the nearest, ties to even; a NaN keeps its sign alone. */
static inline uint16_t narrow_to_bfloat16(float value) {
    const uint32_t bits = bits_of_float(value), rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? (bits >> 16 & 0x8000) | 0x7FC0 : rounded);
}

/* groups.c: the columns from `from` on of rows [begin, end), each element by itself. */
void wm_grouped_one_by_one(const wm_grouped *w, uint64_t begin, uint64_t end, uint64_t from);

#endif
