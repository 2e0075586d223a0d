/* A hash index over a list of strings: an array of `capacity` slots of 32 bits. In full, without the bounds below:
 *
 *     for (slot = home_slot(hash(name)); slots[slot] != FREE; slot = the next one)
 *         if (string slots[slot] equals name) return slots[slot];
 *     the name is missing, and building puts it into this free slot
 *
 * Hash. The home slot is the top bits of FNV-1a 32 * 2^32 / golden ratio: they depend on all bits of the hash, while FNV's own
 * low bits depend only on the low bits of the text.
 *
 * Slots. A string's number needs only the low bits of a slot. The bits above hold the same bits of the hash, a tag that rules
 * out nearly all other strings without loading their text. A slot of all ones is free: no number has all of its bits set,
 * because the bits have room for n, and numbers end at n - 1.
 *
 * Probing. A cache line holds 16 slots. Probes go round the home line first, at most one cache miss, then on to other lines at
 * growing distances (1, 3, 6, ... lines: triangular numbers reach every line of a power of two). Unlike linear probing this
 * builds no long runs, so even at a load of 3/4 chance never reaches MAX_PROBES.
 *
 * Floods. FNV-1a has no secret, so anyone can make thousands of names with one hash, which would cost quadratic time. Building
 * gives up after MAX_PROBES slots or MAX_COMPARES different strings with the same tag, and the caller takes another
 * structure. The same bound holds for look-ups, so they end even in a table of junk.
 *
 * Prefetch. Home slots are scattered over memory. Names are hashed a chunk ahead, so the line of the name AHEAD names later
 * is prefetched and has arrived when its turn comes.
 */
#include "core/internal.h"

enum { LINE = 16, MAX_PROBES = 16 * LINE, MAX_COMPARES = 64, CHUNK = 1024, AHEAD = 16 };
#define FREE 0xFFFFFFFFu
#define GOLDEN 0x9E3779B9u

typedef struct {
    const uint8_t *data;
    uint64_t len;
    const uint32_t *bounds;
    uint64_t n;
    uint32_t gap;
    uint64_t capacity;
    uint32_t number_mask; /* the bits of a slot that hold the number */
} strings;

/* Fills *s. Returns 0 when the arguments cannot belong to a table. */
static int describe(strings *s, const uint8_t *data, uint64_t len, const uint32_t *bounds, uint64_t n, uint32_t gap,
                    uint64_t capacity) {
    /* A power of two up to 2^32 with room for n strings and a third more. */
    if (capacity == 0 || (capacity & (capacity - 1)) || capacity > (uint64_t)1 << 32) return 0;
    if (n > capacity - capacity / 4) return 0;
    uint32_t mask = (uint32_t)n; /* n < 2^32; fill all bits below its highest */
    for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
    *s = (strings){data, len, bounds, n, gap, capacity, mask};
    return 1;
}

static inline uint64_t home_slot(uint32_t hash, uint64_t capacity) { return hash * GOLDEN * capacity >> 32; }

/* The slot of a probe after `line` whole lines and i slots of this one. */
static inline uint64_t probe_slot(uint64_t home, unsigned line, unsigned i, uint64_t capacity) {
    uint64_t begin = (home & ~(uint64_t)(LINE - 1)) + (uint64_t)LINE * (line * (line + 1) / 2);
    return (begin + ((home + i) & (LINE - 1))) & (capacity - 1);
}

/* Compares string `number` with name[0, length). Number and bounds may be junk, so both are checked. */
static int same_string(const strings *s, uint32_t number, const uint8_t *name, uint64_t length) {
    if (number >= s->n) return 0;
    uint64_t begin = s->bounds[number], end = s->bounds[number + (uint64_t)1];
    if (begin + s->gap > end || end - s->gap > s->len || end - s->gap - begin != length) return 0;
    return length == 0 || memcmp(s->data + begin, name, length) == 0;
}

enum { PRESENT, MISSING, FLOOD };

/* Walks from the home slot to the name (FOUND, *number is set) or to a free slot (MISSING, *slot is set). */
static inline int probe(const strings *s, const uint32_t *slots, uint32_t hash, const uint8_t *name, uint64_t length,
                        uint64_t *slot, uint32_t *number) {
    uint64_t home = home_slot(hash, s->capacity);
    int compares = 0;
    for (unsigned line = 0; line < MAX_PROBES / LINE; line++) {
        for (unsigned i = 0; i < LINE; i++) {
            *slot = probe_slot(home, line, i, s->capacity);
            uint32_t entry = slots[*slot];
            if (entry == FREE) return MISSING;
            if ((entry ^ hash) & ~s->number_mask) continue;
            *number = entry & s->number_mask;
            if (same_string(s, *number, name, length)) return PRESENT;
            if (++compares > MAX_COMPARES) return FLOOD;
        }
    }
    return FLOOD;
}

/* Writes the lengths of up to CHUNK strings; returns 0 when one of them does not lie in the data. */
static int chunk_lengths(const uint32_t *bounds, uint64_t n, uint64_t len, uint32_t gap, uint32_t *lengths) {
    int good = 1;
    for (uint64_t i = 0; i < n; i++) {
        good &= (uint64_t)bounds[i] + gap <= bounds[i + 1];
        lengths[i] = bounds[i + 1] - gap - bounds[i];
    }
    return good && bounds[n] - gap <= len; /* rising order: the last end is the greatest */
}

int64_t wm_index_build(const uint8_t *data, uint64_t len, const uint32_t *bounds, uint64_t n, uint32_t gap, uint32_t *slots,
                       uint64_t capacity, uint64_t *duplicate, uint64_t *original) {
    strings s;
    if (!describe(&s, data, len, bounds, n, gap, capacity)) return -1;
    memset(slots, 0xFF, capacity * sizeof *slots);
    int64_t duplicates = 0;
    for (uint64_t first = 0; first < n; first += CHUNK) {
        uint32_t lengths[CHUNK], hashes[CHUNK];
        uint64_t count = n - first < CHUNK ? n - first : CHUNK;
        if (!chunk_lengths(bounds + first, count, len, gap, lengths)) return -1;
        wm_fnv1a32_run(data + bounds[first], data + (bounds[first + count] - gap), lengths, gap, count, hashes);
        for (uint64_t i = 0; i < count; i++) {
            if (i + AHEAD < count) PREFETCH(&slots[home_slot(hashes[i + AHEAD], capacity)]);
            uint64_t slot;
            uint32_t twin;
            int outcome = probe(&s, slots, hashes[i], data + bounds[first + i], lengths[i], &slot, &twin);
            if (outcome == MISSING) {
                slots[slot] = (hashes[i] & ~s.number_mask) | (uint32_t)(first + i);
            } else if (outcome == PRESENT) {
                if (!duplicates++) {
                    if (duplicate) *duplicate = first + i;
                    if (original) *original = twin;
                }
            } else {
                return -2;
            }
        }
    }
    return duplicates;
}

int64_t wm_index_lookup(const wm_index *index, const uint8_t *name, uint64_t name_len) {
    strings s;
    uint64_t slot;
    uint32_t number;
    if (!describe(&s, index->data, index->len, index->bounds, index->n, index->gap, index->capacity)) return -1;
    if (probe(&s, index->slots, wm_fnv1a32(name, name_len), name, name_len, &slot, &number) != PRESENT) return -1;
    return number;
}

int wm_index_find_many(const uint8_t *data, uint64_t len, const uint32_t *bounds, uint64_t n, uint32_t gap,
                       const uint32_t *slots, uint64_t capacity, const uint8_t *names, uint64_t names_len,
                       const uint32_t *name_bounds, uint64_t n_names, int64_t *out) {
    strings s;
    if (!describe(&s, data, len, bounds, n, gap, capacity)) return -1;
    for (uint64_t first = 0; first < n_names; first += CHUNK) {
        uint32_t lengths[CHUNK], hashes[CHUNK];
        uint64_t count = n_names - first < CHUNK ? n_names - first : CHUNK;
        if (!chunk_lengths(name_bounds + first, count, names_len, 0, lengths)) return -1;
        const uint8_t *name = names + name_bounds[first];
        wm_fnv1a32_run(name, names + name_bounds[first + count], lengths, 0, count, hashes);
        for (uint64_t i = 0; i < count; name += lengths[i], i++) {
            uint64_t slot;
            uint32_t number;
            out[first + i] = -1;
            if (i + AHEAD < count) PREFETCH(&slots[home_slot(hashes[i + AHEAD], capacity)]);
            if (probe(&s, slots, hashes[i], name, lengths[i], &slot, &number) == PRESENT) out[first + i] = number;
        }
    }
    return 0;
}
