/* The character n-grams of words, and the rows of a matrix that belong to them.
 *
 * A vocabulary with subwords has vectors for n-grams too. A word that it does not know gets the sum of the vectors of its
 * n-grams, as a unit vector (rowsum.c). The n-grams of "<ab>" of 2 and 3 characters, in the order of this file, are "<ab" "<a"
 * "ab>" "ab" "b>": from each character on, the longest first.
 *
 *     for (at = 0; at + min_n <= characters; at++)
 *         for (n = min(max_n, characters - at); n >= min_n; n--) *rows++ = row of characters [at, at + n);
 *
 * An explicit vocabulary lists its n-grams, and one that is not listed has no row. The other two hash: every n-gram has a row,
 * which it shares with others.
 *   bucket    FNV-1a 64 over the number of characters (8 bytes) and each character (4 bytes), low bits of the hash.
 *   fastText  FNV-1a 32 over the UTF-8, modulo the number of rows. fastText's XOR takes a byte for a signed number, so a byte
 *             of 0x80 or more flips all upper bits of the hash. That was a mistake once, and is the format now.
 *
 * FNV-1a multiplies by a prime P after each byte, and XOR with a byte of 0 changes nothing. So the zero bytes above a small
 * character, or number, need no steps of their own: ASCII costs one multiplication by P^4, not four by P.
 * The number of characters is hashed first, so no bucket's hash continues another's.
 *
 * The texts come with their brackets. They are UTF-8, but nothing here depends on it: a character is a byte and the bytes
 * 0x80 to 0xBF behind it. So a lone surrogate, which Python's str may hold and UTF-8 may not, is a character too.
 */
#include "core/internal.h"

#define P1 FNV_PRIME_64
#define P2 (P1 * P1)
#define P3 (P2 * P1)
#define P4 (P2 * P2)

static inline int continues(uint8_t byte) { return (byte & 0xC0) == 0x80; }

static inline const uint8_t *next_character(const uint8_t *p, const uint8_t *end) {
    do p++;
    while (p < end && continues(*p));
    return p;
}

/* The code point of the character at *p, which moves on to the next. Invalid bytes give some number, always the same. */
static inline uint32_t take_character(const uint8_t **p, const uint8_t *end) {
    const uint8_t lead = *(*p)++;
    if (lead < 0x80 && (*p == end || !continues(**p))) return lead;
    uint32_t c = lead < 0xE0 ? lead & 0x1F : lead < 0xF0 ? lead & 0x0F : lead & 0x07;
    while (*p < end && continues(**p)) c = c << 6 | (*(*p)++ & 0x3F);
    return c;
}

/* Adds one character to the hash. */
static inline uint64_t add_character(uint64_t hash, uint64_t c) {
    if (c < 0x100) return (hash ^ c) * P4;
    hash = (hash ^ (c & 0xFF)) * P1;
    if (c < 0x10000) return (hash ^ c >> 8) * P3;
    hash = (hash ^ (c >> 8 & 0xFF)) * P1;
    hash = (hash ^ (c >> 16 & 0xFF)) * P1;
    return (hash ^ c >> 24) * P1;
}

/* The hash of the n characters from p on, and before them of n. */
static uint64_t hash_bucket(const uint8_t *p, const uint8_t *end, uint64_t n) {
    uint64_t hash = FNV_OFFSET_64;
    for (unsigned shift = 0; shift < 64; shift += 8) hash = (hash ^ (n >> shift & 0xFF)) * P1;
    for (uint64_t i = 0; i < n; i++) hash = add_character(hash, take_character(&p, end));
    return hash;
}

/* ------------------------------------------------------------------------------------------------- n-grams
 * Each function writes the rows of the n-grams that begin at p, of `longest` down to min_n characters, to `rows` and returns
 * their number. Without room for all of them it writes none.
 */
static uint64_t bucket_rows(const wm_subwords *s, const uint8_t *p, const uint8_t *end, uint64_t longest, uint64_t *rows,
                            uint64_t room) {
    const uint64_t count = longest - s->min_n + 1;
    if (count <= room)
        for (uint64_t n = longest; n >= s->min_n; n--) *rows++ = (hash_bucket(p, end, n) & (s->size - 1)) + s->first_row;
    return count;
}

/* The hash of an n-gram continues the next shorter one's. */
static uint64_t fasttext_rows(const wm_subwords *s, const uint8_t *p, const uint8_t *end, uint64_t longest, uint64_t *rows,
                              uint64_t room) {
    const uint64_t count = longest - s->min_n + 1;
    if (count > room) return count;
    const uint32_t size = (uint32_t)s->size;
    uint32_t hash = FNV_OFFSET_32;
    for (uint64_t n = 1; n <= longest; n++) {
        for (const uint8_t *next = next_character(p, end); p < next; p++)
            hash = (hash ^ (uint32_t)(int32_t)(int8_t)*p) * FNV_PRIME_32;
        if (n >= s->min_n) rows[longest - n] = hash % size + s->first_row;
    }
    return count;
}

static uint64_t explicit_rows(const wm_subwords *s, const uint8_t *p, const uint8_t *end, uint64_t longest, uint64_t *rows,
                              uint64_t room) {
    const uint8_t *stop = p;
    for (uint64_t n = 0; n < longest; n++) stop = next_character(stop, end);
    uint64_t count = 0;
    for (uint64_t n = longest; n >= s->min_n; n--) {
        const int64_t number = wm_index_lookup(s->ngrams, p, (uint64_t)(stop - p));
        if (number >= 0 && (uint64_t)number < s->n_indices) {
            if (count < room) rows[count] = s->indices[number] + s->first_row;
            count++;
        }
        do stop--; /* back over one character */
        while (stop > p && continues(*stop));
    }
    return count;
}

int64_t wm_subword_rows(const wm_subwords *s, const uint8_t *texts, uint64_t len, const uint32_t *bounds, uint64_t n,
                        uint64_t *rows, uint64_t cap, uint64_t *row_bounds) {
    const int hashed = s->kind == WM_SUBWORDS_BUCKET || s->kind == WM_SUBWORDS_FASTTEXT;
    if (!hashed && (s->kind != WM_SUBWORDS_EXPLICIT || s->ngrams == NULL)) return -1;
    if (s->min_n == 0 || s->max_n < s->min_n || (hashed && s->size == 0)) return -1;
    if (s->kind == WM_SUBWORDS_BUCKET && (s->size & (s->size - 1))) return -1;
    if (s->kind == WM_SUBWORDS_FASTTEXT && s->size > 0xFFFFFFFF) return -1;
    uint64_t total = 0;
    row_bounds[0] = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (bounds[i] > bounds[i + 1] || bounds[i + 1] > len) return -1;
        const uint8_t *p = texts + bounds[i], *end = texts + bounds[i + 1];
        uint64_t remaining = 0; /* characters from p on */
        for (const uint8_t *q = p; q < end; q = next_character(q, end)) remaining++;
        uint64_t tried = 0;
        for (; remaining >= s->min_n; remaining--, p = next_character(p, end)) {
            const uint64_t longest = remaining < s->max_n ? remaining : s->max_n, room = total < cap ? cap - total : 0;
            tried += longest - s->min_n + 1;
            if (tried > WM_NGRAMS_MOST) return -2 - (int64_t)i;
            uint64_t *to = room ? rows + total : rows;
            if (s->kind == WM_SUBWORDS_BUCKET)
                total += bucket_rows(s, p, end, longest, to, room);
            else if (s->kind == WM_SUBWORDS_FASTTEXT)
                total += fasttext_rows(s, p, end, longest, to, room);
            else
                total += explicit_rows(s, p, end, longest, to, room);
        }
        row_bounds[i + 1] = total;
    }
    return (int64_t)total;
}
