/* Walks through lists of length-prefixed strings.
 *
 * The position of a string is known only when the length of the one before it has been read, so a list can only be
 * walked from its beginning. The walk notes where each string begins; after it, any string is reached directly.
 *
 * Every check compares a length with what is left (`length > len - pos`), which cannot wrap, never a sum with the end.
 * Each string takes at least its prefix, so a walk ends after len / width strings whatever `count` says, and a table of
 * bounds that has room for `count` strings is never overrun.
 */
#include "internal.h"

/* Bounds are 32 bits wide and the last one lies `gap` bytes past the end: what cannot be expressed does not fit. */
static uint64_t reach(uint64_t len, uint32_t gap, const uint32_t *bounds) {
    uint64_t most = UINT32_MAX - gap;
    return bounds && len > most ? most : len;
}

int64_t wm_walk_strings(const uint8_t *data, uint64_t len, uint64_t count, int width, uint32_t *bounds) {
    if (width != 2 && width != 4 && width != 8) return -1;
    uint32_t gap = (uint32_t)width;
    uint64_t pos = 0;
    len = reach(len, gap, bounds);
    for (uint64_t i = 0; i < count; i++) {
        if (len - pos < gap) return -1 - (int64_t)i;
        const uint8_t *p = data + pos;
        uint64_t length = read_once(width == 2 ? load_le16(p) : width == 4 ? load_le32(p) : load_le64(p));
        pos += gap;
        if (length > len - pos) return -1 - (int64_t)i;
        if (bounds) bounds[i] = (uint32_t)pos;
        pos += length;
    }
    if (bounds) bounds[count] = (uint32_t)(pos + gap);
    return (int64_t)pos;
}
