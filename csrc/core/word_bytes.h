/* SWAR, "SIMD within a register": tests eight bytes at once as one 64-bit word.
 *
 * A mark is bit 7 of a byte; each test marks the bytes for which it holds. Subtraction borrows from the bytes above a marked
 * one and may mark those wrongly, but none below it: the lowest mark is always right, and so is the absence of marks. That
 * survives OR, but not inversion. Words are loaded little-endian, so the lowest byte is the first.
 */
#ifndef WEIGHTMAP_WORD_BYTES_H
#define WEIGHTMAP_WORD_BYTES_H
#include "core/internal.h"

#define EVERY_BYTE_1 0x0101010101010101u
#define EVERY_MARK 0x8080808080808080u

/* Marks the bytes below `limit` (1 to 0x80). */
static inline uint64_t mark_below(uint64_t word, uint8_t limit) { return (word - EVERY_BYTE_1 * limit) & ~word & EVERY_MARK; }

/* Marks the bytes equal to `byte`. */
static inline uint64_t mark_equal(uint64_t word, uint8_t byte) { return mark_below(word ^ EVERY_BYTE_1 * byte, 1); }

/* Position of the lowest bit that is set; there is one. */
static inline unsigned lowest_bit(uint64_t word) {
#if defined(__GNUC__)
    return (unsigned)__builtin_ctzll(word);
#else
    unsigned i = 0;
    while (!(word & 1)) word >>= 1, i++;
    return i;
#endif
}

/* Position (0 to 7) of the lowest mark; there is one. */
static inline unsigned first_mark(uint64_t marks) { return lowest_bit(marks) >> 3; }

#endif
