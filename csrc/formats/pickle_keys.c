/* Repeated keys of a dictionary in a pickle program, and members of a set: Python keeps one of them, and a walk would show both.
 * See pickle.c.
 *
 * The keys of one dictionary go into a hash table, of three slots for two keys. A slot has the place of a key in the arena, and above
 * it bits of its hash, so that few others are compared. The hash has no secret: keys made to collide are refused after MAX_PROBES
 * slots, which others never need.
 */
#include <stdlib.h>

#include "formats/pickle_keys.h"

enum { MAX_PROBES = 1024, PLACE_BITS = 40, PIECE = 256, LOCAL = 64, NESTED = 4 };
#define PLACES (((uint64_t)1 << PLACE_BITS) - 1)

typedef struct {
    reader *in;
    const uint64_t *arena;
    uint64_t bytes, limit; /* of keys that were looked at */
} keys;

/* A value as Python compares it: truth values and whole floats count as the equal integers. */
static value plain(const uint64_t *arena, uint64_t at) {
    value v;
    double real;
    memcpy(&v, arena + at, sizeof v);
    if (v.kind == BOOLEAN) v.kind = INTEGER;
    if (v.kind != REAL) return v;
    memcpy(&real, &v.at, sizeof real);
    const int whole = real >= -0x1p63 && real < 0x1p63 && real == (double)(int64_t)real;
    return whole ? (value){INTEGER, 0, (uint64_t)(int64_t)real} : v;
}

/* Whether a value is n bytes of the program. */
static int is_spelled(value v) { return v.kind == TEXT || v.kind == BYTES || v.kind == LATIN || v.kind == LONG; }

static uint64_t mix(uint64_t hash, uint64_t more) {
    hash = (hash ^ more) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

/* Counts the bytes looked at. Returns 0, or the fault when they exceed the bound. */
static int spend(keys *k, uint64_t bytes) { return (k->bytes += bytes) > k->limit ? WM_FAULT_PICKLE_NAMES : 0; }

/* Adds a value to a hash. Returns 0, a fault, or -1. */
static int add_hash(keys *k, value v, unsigned depth, uint64_t *hash) {
    uint8_t piece[PIECE];
    int failed = spend(k, is_spelled(v) || v.kind == TUPLE ? v.n : 0);
    *hash = mix(*hash, (uint64_t)v.kind << 32 | v.n);
    if (v.kind == TUPLE) {
        for (uint64_t i = 0; i < v.n && depth && !failed; i++)
            failed = add_hash(k, plain(k->arena, v.at + i * VALUE_WORDS), depth - 1, hash);
    } else if (is_spelled(v)) {
        for (uint64_t at = 0, n; at < v.n && !failed; at += n) {
            n = v.n - at < PIECE ? v.n - at : PIECE;
            failed = wm_pickle_copy(k->in, v.at + at, n, piece);
            for (uint64_t i = 0; i < n && !failed; i++) *hash = (*hash ^ piece[i]) * 0x100000001b3u;
        }
    } else {
        *hash = mix(*hash, v.at);
    }
    return failed;
}

/* Compares two values: sets *equal. Returns 0, a fault, or -1. */
static int compare(keys *k, value a, value b, unsigned depth, int *equal) {
    uint8_t pieces[2][PIECE];
    *equal = a.kind == b.kind && a.n == b.n && a.kind != ODD && (a.at == b.at || is_spelled(a) || (a.kind == TUPLE && depth));
    if (!*equal || a.at == b.at) return 0;
    int failed = spend(k, a.n);
    for (uint64_t i = 0; i < a.n && a.kind == TUPLE && *equal && !failed; i++)
        failed = compare(k, plain(k->arena, a.at + i * VALUE_WORDS), plain(k->arena, b.at + i * VALUE_WORDS), depth - 1, equal);
    for (uint64_t at = 0, n; at < a.n && is_spelled(a) && *equal && !failed; at += n) {
        n = a.n - at < PIECE ? a.n - at : PIECE;
        failed = wm_pickle_copy(k->in, a.at + at, n, pieces[0]) || wm_pickle_copy(k->in, b.at + at, n, pieces[1]) ? -1 : 0;
        *equal = !failed && memcmp(pieces[0], pieces[1], n) == 0;
    }
    return failed;
}

/* Enters a key, or finds another one that equals it. */
static int enter(keys *k, uint64_t place, uint64_t *table, uint64_t slots) {
    const value key = plain(k->arena, place);
    uint64_t hash = 0, probes = 0;
    int failed = add_hash(k, key, NESTED, &hash), equal = 0;
    hash = mix(hash, 0);
    uint64_t slot = (hash >> 32) * slots >> 32;
    for (; !failed && table[slot]; slot = slot + 1 < slots ? slot + 1 : 0) {
        if (++probes > MAX_PROBES) return WM_FAULT_PICKLE_NAMES;
        if ((table[slot] ^ hash << PLACE_BITS) & ~PLACES) continue;
        failed = compare(k, key, plain(k->arena, table[slot] & PLACES), NESTED, &equal);
        if (equal) return WM_FAULT_PICKLE_REPEATED;
    }
    if (!failed) table[slot] = place | hash << PLACE_BITS;
    return failed;
}

int wm_pickle_keys(reader *in, const uint64_t *arena, container c, uint64_t step, uint64_t *bytes, uint64_t limit) {
    keys k = {in, arena, *bytes, limit};
    uint64_t local[LOCAL] = {0};
    const uint64_t slots = c.count / step / 2 * 3 + 3;
    if (slots > UINT32_MAX || c.last > PLACES / 2) return WM_FAULT_MEMORY;
    uint64_t *const table = slots <= LOCAL ? local : calloc((size_t)slots, sizeof *table);
    int failed = table ? 0 : WM_FAULT_MEMORY;
    for (uint64_t at = c.first; at && !failed; at = arena[at]) {
        for (uint64_t i = 0; i < arena[at + 1] && !failed; i += step) /* a chunk has whole pairs */
            failed = enter(&k, at + CHUNK_WORDS + i * VALUE_WORDS, table, slots);
    }
    if (table != local) free(table);
    *bytes = k.bytes;
    return failed;
}
