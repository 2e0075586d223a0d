/* Values of codes, shared by all variants of lookup.h and groups.h. */
#ifndef WEIGHTMAP_CODED_VALUE_H
#define WEIGHTMAP_CODED_VALUE_H
#include "core/floats.h"

enum { LANES = 16, LINE = 64 }; /* values that are rounded together, and bytes of values that are looked up together */
enum { AS_FLOAT32 = 0, AS_FLOAT16 = 1, AS_BFLOAT16 = 2 };

/* float32 to bfloat16: the nearest, ties to even; a NaN keeps its sign alone. Without a comparison, so that gcc makes vectors of it. */
static inline uint16_t narrow_to_bfloat16(float value) {
    const uint32_t bits = bits_of_float(value), rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const uint32_t nan = 0 - ((0x7F800000 - (bits & 0x7FFFFFFF)) >> 31); /* all bits of one */
    return (uint16_t)((rounded & ~nan) | (((bits >> 16 & 0x8000) | 0x7FC0) & nan));
}

/* The number of the table of block b. */
static inline uint64_t table_of(const wm_looked *w, uint64_t b) { return w->which ? w->which[b] : b; }

/* How far ahead to prefetch codes of 8 bits: to those that the next call looks up in the same blocks. No CPU predicts them, since
 * rows lie apart. */
static inline uint64_t ahead_of(const wm_looked *w) { return w->rows > 1 ? w->rows * w->codes_apart : WM_AHEAD; }

static inline uint64_t coded_bytes(int type) { return type == AS_FLOAT32 ? 4 : 2; }

/* Values of n codes from code number `from` on, one after another. A code is a byte; or four bits, of which a byte has two, the
 * first in its low half or, with `high_first`, in the other. */
static inline void wm_look_up_some(const uint8_t *restrict codes, int bits, int high_first, uint64_t from, uint64_t n,
                                   const uint8_t *restrict table, uint64_t bytes, uint8_t *restrict out) {
    uint64_t i = 0;
    if (bits == 8) {
        for (codes += from; i < n / 8 * 8; i += 8) {
            const uint64_t eight = load_le64(codes + i);
            for (unsigned k = 0; k < 8; k++) memcpy(out + bytes * (i + k), table + bytes * (eight >> 8 * k & 255), bytes);
        }
        for (; i < n; i++) memcpy(out + bytes * i, table + bytes * codes[i], bytes);
        return;
    }
    for (; i < n; i++) {
        const uint64_t at = from + i;
        const unsigned code = codes[at / 2] >> 4 * ((int)(at % 2) ^ high_first) & 15;
        memcpy(out + bytes * i, table + bytes * code, bytes);
    }
}

#endif
