/* UTF-8 checks. The work in full:
 *
 *     for (p = begin; p < end; p += n)
 *         if (!(n = *p < 0x80 ? 1 : utf8_sequence(p, end))) return 0;
 *
 * Names of tensors and most tokens are ASCII: every byte is below 0x80. So the OR of many bytes tells at once whether any has
 * its high bit set, and only then are characters checked one by one.
 *
 * For a list of strings the OR runs over whole groups of strings with the lengths between them: a length below 128 has no
 * high bit either, and where a byte has one, the strings of its group are checked one by one.
 */
#include "core/utf8.h"
#include "core/word_bytes.h"

/* The OR of 64 bytes as one word. Compilers make vector code of it. */
static inline uint64_t or_of_64(const uint8_t *p) {
    uint64_t words[8], any = 0;
    memcpy(words, p, 64);
    for (int i = 0; i < 8; i++) any |= words[i];
    return any;
}

int wm_ascii(const uint8_t *p, uint64_t len) {
    uint64_t any = 0;
    for (; len >= 64; p += 64, len -= 64)
        if ((any |= or_of_64(p)) & EVERY_MARK) return 0;
    for (; len >= 8; p += 8, len -= 8) any |= load_le64(p);
    for (; len; p++, len--) any |= *p;
    return !(any & EVERY_MARK);
}

int wm_utf8_valid(const uint8_t *p, uint64_t len) {
    if (!len) return 1; /* p may be null */
    const uint8_t *end = p + len;
    for (;;) {
        while (end - p >= 64 && !(or_of_64(p) & EVERY_MARK)) p += 64;
        while (end - p >= 8 && !(load_le64(p) & EVERY_MARK)) p += 8;
        /* A high bit is set within the next eight bytes, or fewer than eight are left: eight single steps, then try words
         * again. */
        for (int i = 0; i < 8; i++) {
            if (p == end) return 1;
            if (*p < 0x80) {
                p++;
                continue;
            }
            unsigned n = utf8_sequence(p, end);
            if (!n) return 0;
            p += n;
        }
    }
}

/* 1 when the n strings lie in [0, len), one after another. */
static int bounds_rise(const uint32_t *bounds, uint64_t n, uint64_t len, uint32_t gap) {
    int good = 1;
    for (uint64_t i = 0; i < n; i++) good &= (uint64_t)bounds[i] + gap <= bounds[i + 1];
    /* In rising order the last end is the greatest. */
    return good && (n == 0 || bounds[n] - gap <= len);
}

int64_t wm_utf8_strings(const uint8_t *data, uint64_t len, const uint32_t *bounds, uint64_t n, uint32_t gap) {
    enum { GROUP = 256 };
    for (uint64_t first = 0; first < n; first += GROUP) {
        uint64_t count = n - first < GROUP ? n - first : GROUP;
        const uint32_t *group = bounds + first;
        if (bounds_rise(group, count, len, gap)) {
            uint64_t bytes = group[count] - gap - group[0];
            if (bytes == 0 || wm_ascii(data + group[0], bytes)) continue;
        }
        for (uint64_t i = 0; i < count; i++) {
            if (!bounds_rise(group + i, 1, len, gap)) return (int64_t)(first + i);
            uint64_t bytes = group[i + 1] - gap - group[i];
            if (bytes && !wm_utf8_valid(data + group[i], bytes)) return (int64_t)(first + i);
        }
    }
    return -1;
}
