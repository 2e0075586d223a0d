/* SWAR, "SIMD within a register": eight bytes are looked at as one 64-bit word.
 *
 * A mark is bit 7 of a byte. The tests below set the mark of each byte that has the property asked for. Subtraction
 * borrows from the bytes above a marked one and may mark these wrongly, but never those below it: the lowest mark is
 * always right, and so is the absence of marks. That survives OR, but not inversion. Words are loaded little-endian, so
 * the lowest byte is the first.
 */
#ifndef WEIGHTMAP_SWAR_H
#define WEIGHTMAP_SWAR_H
#include "internal.h"

#define SWAR_ONES 0x0101010101010101u
#define SWAR_MARKS 0x8080808080808080u

/* Marks the bytes below `limit` (1 to 0x80). */
static inline uint64_t swar_below(uint64_t word, uint8_t limit) {
    return (word - SWAR_ONES * limit) & ~word & SWAR_MARKS;
}

/* Marks the bytes equal to `byte`. */
static inline uint64_t swar_equal(uint64_t word, uint8_t byte) { return swar_below(word ^ SWAR_ONES * byte, 1); }

/* Position (0 to 7) of the lowest mark; there is one. */
static inline unsigned swar_first(uint64_t marks) {
#if defined(__GNUC__)
    return (unsigned)__builtin_ctzll(marks) >> 3;
#else
    unsigned i = 0;
    while (!(marks & 0xFF)) marks >>= 8, i++;
    return i;
#endif
}

#endif
