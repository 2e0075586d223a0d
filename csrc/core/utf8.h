/* Strict UTF-8. */
#ifndef WEIGHTMAP_UTF8_H
#define WEIGHTMAP_UTF8_H
#include "core/internal.h"

/* 1 when no byte of p[0, len) has its high bit set. */
int wm_ascii(const uint8_t *p, uint64_t len);

/* 1 when p[0, len) is UTF-8 by the Unicode standard, 0 when not. */
int wm_utf8_valid(const uint8_t *p, uint64_t len);

static inline int utf8_continues(uint8_t byte) { return (byte & 0xC0) == 0x80; }

/* Length (2 to 4) of the character that begins at p with a byte of 0x80 or more, or 0 when none does. By table 3-7 of the
 * Unicode standard: ranges of the second byte exclude overlong forms (after E0, F0), surrogates (after ED) and what lies
 * above U+10FFFF (after F4). */
static inline unsigned utf8_sequence(const uint8_t *p, const uint8_t *end) {
    uint8_t lead = p[0];
    if (lead < 0xC2 || lead > 0xF4) return 0;
    if (lead < 0xE0) return end - p >= 2 && utf8_continues(p[1]) ? 2 : 0;
    if (lead < 0xF0) {
        if (end - p < 3 || !utf8_continues(p[1]) || !utf8_continues(p[2])) return 0;
        if (lead == 0xE0 && p[1] < 0xA0) return 0;
        if (lead == 0xED && p[1] > 0x9F) return 0;
        return 3;
    }
    if (end - p < 4 || !utf8_continues(p[1]) || !utf8_continues(p[2]) || !utf8_continues(p[3])) return 0;
    if (lead == 0xF0 && p[1] < 0x90) return 0;
    if (lead == 0xF4 && p[1] > 0x8F) return 0;
    return 4;
}

#endif
