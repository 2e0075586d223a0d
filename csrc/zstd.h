/* What the decoder and the encoder of zstd's frames (RFC 8878) share: sizes, and tables of states. */
#ifndef WEIGHTMAP_ZSTD_H
#define WEIGHTMAP_ZSTD_H
#include "internal.h"

enum {
    BLOCK = 128 << 10, /* most bytes that a block of a frame may have */
    LL_LOG = 9,        /* most bits of a state: of lengths of literals, offsets, lengths of matches */
    OF_LOG = 8,
    ML_LOG = 9,
    HUF_LOG = 11, /* most bits of a literal */
    WEIGHT_LOG = 6,
};

static unsigned high_bit(uint64_t v) {
    unsigned n = 0;
#if defined(__GNUC__)
    n = 63 - (unsigned)__builtin_clzll(v);
#else
    while (v >>= 1) n++;
#endif
    return n;
}

static const uint8_t LL_BITS[36] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  1,  1,
                                    1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const uint8_t ML_BITS[53] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  0,  0, 0,
                                    0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const int8_t LL_USUAL[36] = {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1,  1,  2,  2,
                                    2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
static const int8_t ML_USUAL[53] = {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
                                    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1};
static const int8_t OF_USUAL[29] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1};

/* Spreads symbols over the states: symbols[i], and what leads to the next state. 0 when they do not fit. */
static int spread(const int16_t *weights, unsigned count, int log, uint8_t *symbols, uint16_t *next, uint8_t *wide) {
    const unsigned size = 1U << log, step = (size >> 1) + (size >> 3) + 3, mask = size - 1;
    uint16_t seen[256];
    unsigned high = size, at = 0;
    for (unsigned s = 0; s < count; s++) {
        seen[s] = (uint16_t)(weights[s] < 0 ? 1 : weights[s]);
        if (weights[s] < 0) symbols[--high] = (uint8_t)s;
    }
    for (unsigned s = 0; s < count; s++)
        for (int i = 0; i < weights[s]; i++) {
            symbols[at] = (uint8_t)s;
            do at = (at + step) & mask;
            while (at >= high);
        }
    if (at) return 0;
    for (unsigned i = 0; i < size; i++) {
        const unsigned n = seen[symbols[i]]++;
        wide[i] = (uint8_t)((unsigned)log - high_bit(n));
        next[i] = (uint16_t)((n << wide[i]) - size);
    }
    return 1;
}

#endif
