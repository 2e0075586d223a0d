/* Walks through the lists of strings in finalfusion vocabularies.
 *
 * A list is `count` entries one after another, each a length in four bytes, that many bytes, and with n-grams an index in
 * eight bytes more. Where an entry begins is known only when the one before it has been read, and nothing else in a file
 * tells reliably where a list ends: writers have got the length of the chunk around it wrong. So the list is walked.
 *
 * It may be of any length, and is walked in pieces where it need not be in memory as a whole: wm_finalfusion_skip stops before the
 * first entry that does not lie whole in its piece. wm_finalfusion_ngrams walks a list that is there, and notes where each string
 * is and its index.
 *
 * Every check compares a length with what is left, which cannot wrap. Each entry takes four bytes at least, so a walk ends
 * after len / 4 entries whatever `count` says.
 */
#include "internal.h"

enum { PREFIX = 4, INDEX = 8 };

uint64_t wm_finalfusion_skip(const uint8_t *data, uint64_t len, uint64_t count, uint32_t tail, uint64_t *walked) {
    uint64_t pos = 0, i = 0;
    for (; i < count; i++) {
        uint64_t left = len - pos;
        if (left < PREFIX || left - PREFIX < tail) break;
        uint64_t length = read_once(load_le32(data + pos));
        if (length > left - PREFIX - tail) break;
        pos += PREFIX + length + tail;
    }
    *walked = i;
    return pos;
}

int64_t wm_finalfusion_ngrams(const uint8_t *data, uint64_t len, uint64_t count, uint32_t *bounds, uint64_t *indices) {
    uint64_t pos = 0, most = UINT32_MAX - PREFIX; /* bounds are 32 bits wide, and the last one lies four bytes past the end */
    if (len > most) len = most;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t left = len - pos;
        if (left < PREFIX + INDEX) return -1 - (int64_t)i;
        uint64_t length = read_once(load_le32(data + pos));
        if (length > left - PREFIX - INDEX) return -1 - (int64_t)i;
        bounds[i] = (uint32_t)(pos + PREFIX);
        pos += PREFIX + length;
        indices[i] = load_le64(data + pos);
        pos += INDEX;
    }
    bounds[count] = (uint32_t)(pos + PREFIX);
    return (int64_t)pos;
}
