/* Walks through lists of strings, each of which follows its own length.
 *
 * Only the length of a string says where the next one begins, so a list is walked from its beginning, once; the walk notes
 * where each string lies, and from then on any string is reached directly. The work in full, for lengths of four bytes:
 *
 *     for (pos = 0, i = 0; i < count; i++) {
 *         bounds[i] = pos + 4;
 *         pos += 4 + load_le32(data + pos);
 *     }
 *
 * In vocabularies of finalfusion a tail of eight bytes follows each n-gram, its index.
 *
 * Every check compares a length with the bytes that are left, which cannot wrap around as a sum could. Each string takes at
 * least the bytes of its length, so a walk ends after len / width strings, whatever `count` says.
 */
#include "core/internal.h"

/* Walks the strings that lie whole in data[0, len), at most `count`; returns their bytes, and their number in *walked. */
WM_INLINE uint64_t walk(const uint8_t *data, uint64_t len, uint64_t count, uint64_t width, uint64_t tail, uint32_t *bounds,
                        uint64_t *indices, uint64_t *walked) {
    uint64_t pos = 0, i = 0;
    for (; i < count; i++) {
        if (len - pos < width + tail) break;
        const uint64_t min = pos + width + tail; /* known before the length is loaded, for which each turn waits */
        const uint8_t *p = data + pos;
        const uint64_t length = read_once(width == 2 ? load_le16(p) : width == 4 ? load_le32(p) : load_le64(p));
        if (length > len - min) break;
        if (bounds) bounds[i] = (uint32_t)(pos + width);
        if (indices) indices[i] = load_le64(p + width + length);
        pos = min + length;
    }
    *walked = i;
    return pos;
}

/* Bounds have 32 bits, and the last one lies `gap` bytes past the end: a string that they cannot express does not fit. */
static uint64_t reach(uint64_t len, uint32_t gap, const uint32_t *bounds) {
    uint64_t max = UINT32_MAX - gap;
    return bounds && len > max ? max : len;
}

int64_t wm_walk_strings(const uint8_t *data, uint64_t len, uint64_t count, int width, uint32_t *bounds) {
    if (width != 2 && width != 4 && width != 8) return -1;
    uint64_t walked, pos = walk(data, reach(len, (uint32_t)width, bounds), count, (uint64_t)width, 0, bounds, NULL, &walked);
    if (walked < count) return -1 - (int64_t)walked;
    if (bounds) bounds[count] = (uint32_t)pos + (uint32_t)width;
    return (int64_t)pos;
}

enum { PREFIX = 4, INDEX = 8 };

uint64_t wm_finalfusion_skip(const uint8_t *data, uint64_t len, uint64_t count, uint32_t tail, uint64_t *walked) {
    return walk(data, len, count, PREFIX, tail, NULL, NULL, walked);
}

int64_t wm_finalfusion_ngrams(const uint8_t *data, uint64_t len, uint64_t count, uint32_t *bounds, uint64_t *indices) {
    uint64_t walked, pos = walk(data, reach(len, PREFIX, bounds), count, PREFIX, INDEX, bounds, indices, &walked);
    if (walked < count) return -1 - (int64_t)walked;
    bounds[count] = (uint32_t)pos + PREFIX;
    return (int64_t)pos;
}
