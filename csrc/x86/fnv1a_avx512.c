/* FNV-1a 32 of many names, 64 at a time (AVX-512).
 *
 * A lane is a name. Each step needs the same byte of sixteen names in sixteen lanes, while the names lie far apart.
 * Gathering four bytes a lane would do, but a gather costs a load a lane; loading sixteen bytes of each name and
 * transposing takes a quarter of the loads. Four groups of sixteen lanes side by side hide the time that a
 * multiplication takes.
 *
 * Names differ in length. As long as all 64 have sixteen bytes left nothing is masked; then lanes drop out one by
 * one, keeping their hash. When few are left they are finished one after another, so that one long name does not
 * carry 63 idle lanes along.
 *
 * Sixteen bytes are loaded of every name, wherever it ends, for no branch is then needed. Names lie in rising order,
 * so when the sixteen bytes of the last one lie within the blob, so do those of all others: that is the one check.
 */
#include "../internal.h"

#if WM_X86
#include <immintrin.h>

#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl,popcnt")
enum { LANES = 16, GROUPS = 4, BATCH = LANES * GROUPS, BLOCK = 16, WORDS = BLOCK / 4, FEW = 8 };
static const uint32_t OFFSET = 0x811C9DC5, PRIME = 0x01000193;

/* Bytes [at, at + 16) of sixteen names: lane i of words[k] holds bytes 4k to 4k + 3 of name i. */
TARGET WM_INLINE void load_block(const uint8_t *const *names, uint64_t at, __m512i words[WORDS]) {
    __m512i rows[4]; /* rows[j]: its quarter q is name 4q + j */
    for (int j = 0; j < 4; j++) {
        rows[j] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(names[j] + at)));
        for (int q = 1; q < 4; q++)
            rows[j] = _mm512_mask_broadcast_i32x4(rows[j], (__mmask16)(15 << 4 * q),
                                                  _mm_loadu_si128((const __m128i *)(names[4 * q + j] + at)));
    }
    /* Transpose the four by four words of each quarter. */
    __m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]), b = _mm512_unpackhi_epi32(rows[0], rows[1]);
    __m512i c = _mm512_unpacklo_epi32(rows[2], rows[3]), d = _mm512_unpackhi_epi32(rows[2], rows[3]);
    words[0] = _mm512_unpacklo_epi64(a, c);
    words[1] = _mm512_unpackhi_epi64(a, c);
    words[2] = _mm512_unpacklo_epi64(b, d);
    words[3] = _mm512_unpackhi_epi64(b, d);
}

/* Sixteen steps of all groups, or as many as the longest name needs, from the byte `at` on. With `masked` 0 every lane
 * takes part, or else those whose name is longer. Meanwhile the block at `next_at` is loaded, a group for every four
 * steps: multiplications wait for one another, loads and transpositions use units that would idle. A byte is taken out of
 * its word by a shuffle, which such a unit does too; shifts would take their turn with the multiplications. */
TARGET WM_INLINE void hash_block(const uint8_t *const *names, uint32_t at, uint64_t next_at, const __m512i lengths[GROUPS],
                                 uint32_t longest, int masked, __m512i words[GROUPS][WORDS], __m512i next[GROUPS][WORDS],
                                 __m512i hash[GROUPS]) {
    const __m512i prime = _mm512_set1_epi32((int)PRIME), one = _mm512_set1_epi32(1);
    __m512i position = _mm512_set1_epi32((int)at);
    for (int k = 0; k < WORDS; k++) {
        if (masked && longest <= at + 4 * (uint32_t)k) return;
        load_block(names + LANES * k, next_at, next[k]);
        for (int byte = 0; byte < 4; byte++) {
            /* Byte `byte` of each word, zeros above it: an index with its top bit set gives 0. */
            const int first = (int)0x80808000 + byte;
            const __m512i pick = _mm512_broadcast_i32x4(_mm_setr_epi32(first, first + 4, first + 8, first + 12));
            for (int g = 0; g < GROUPS; g++) {
                __m512i mixed = _mm512_xor_si512(hash[g], _mm512_shuffle_epi8(words[g][k], pick));
                __mmask16 longer = masked ? _mm512_cmpgt_epu32_mask(lengths[g], position) : 0xFFFF;
                hash[g] = _mm512_mask_mullo_epi32(hash[g], longer, mixed, prime);
            }
            position = _mm512_add_epi32(position, one);
        }
    }
}

/* The lanes whose names have a byte at `at`. */
TARGET WM_INLINE uint64_t longer_than(const __m512i lengths[GROUPS], uint32_t at) {
    uint64_t lanes = 0;
    for (int g = 0; g < GROUPS; g++)
        lanes |= (uint64_t)_mm512_cmpgt_epu32_mask(lengths[g], _mm512_set1_epi32((int)at)) << LANES * g;
    return lanes;
}

/* The hashes of 64 names, in rising order in memory; `room` bytes may be read from the start of the last one on. */
TARGET static void hash_batch(const uint8_t *const *names, const uint32_t *lengths, uint64_t room, uint32_t *out) {
    __m512i hash[GROUPS], length[GROUPS], words[2][GROUPS][WORDS];
    for (int g = 0; g < GROUPS; g++) {
        hash[g] = _mm512_set1_epi32((int)OFFSET);
        length[g] = _mm512_loadu_si512((const void *)(lengths + LANES * g));
    }
    __m512i least = _mm512_min_epu32(_mm512_min_epu32(length[0], length[1]), _mm512_min_epu32(length[2], length[3]));
    __m512i most = _mm512_max_epu32(_mm512_max_epu32(length[0], length[1]), _mm512_max_epu32(length[2], length[3]));
    uint32_t shortest = _mm512_reduce_min_epu32(least), longest = _mm512_reduce_max_epu32(most);

    /* Blocks that may be loaded. Positions stay below 2^31; of longer names the rest has no lane. */
    uint64_t end = room < INT32_MAX ? room : INT32_MAX;
    if (longest < end) end = (uint64_t)longest + BLOCK - 1 < end ? (uint64_t)longest + BLOCK - 1 : end;
    end -= end % BLOCK;

    uint32_t at = 0;
    if (end)
        for (int g = 0; g < GROUPS; g++) load_block(names + LANES * g, 0, words[0][g]);
    for (int i = 0; at < end; at += BLOCK, i ^= 1) {
        uint64_t next_at = at + BLOCK < end ? at + BLOCK : at; /* at the end, something that may be loaded too */
        if (shortest >= at + BLOCK) {
            hash_block(names, at, next_at, length, longest, 0, words[i], words[i ^ 1], hash);
        } else {
            if (_mm_popcnt_u64(longer_than(length, at)) < FEW) break;
            hash_block(names, at, next_at, length, longest, 1, words[i], words[i ^ 1], hash);
        }
    }
    for (int g = 0; g < GROUPS; g++) _mm512_storeu_si512((void *)(out + LANES * g), hash[g]);
    for (uint64_t unfinished = longer_than(length, at); unfinished; unfinished &= unfinished - 1) {
        int i = (int)_mm_popcnt_u64((unfinished & (0 - unfinished)) - 1); /* the lowest bit that is set */
        uint32_t h = out[i];
        for (uint64_t j = at; j < lengths[i]; j++) h = (h ^ names[i][j]) * PRIME;
        out[i] = h;
    }
}

TARGET void fnv1a32_x86_avx512(const uint8_t *first, const uint8_t *end, const uint32_t *lengths, uint32_t gap, uint64_t n,
                               uint32_t *out) {
    const uint8_t *names[BATCH];
    for (; n >= BATCH; n -= BATCH, lengths += BATCH, out += BATCH) {
        for (int i = 0; i < BATCH; i++) {
            PREFETCH(first + WM_AHEAD); /* some forty names: they are read in pieces, which the CPU does not see coming */
            names[i] = first;
            first += (uint64_t)lengths[i] + gap;
        }
        hash_batch(names, lengths, (uint64_t)(end - names[BATCH - 1]), out);
    }
    if (n < BATCH / 4) { /* fewer are not worth a batch */
        fnv1a32_portable(first, end, lengths, gap, n, out);
        return;
    }
    /* The last batch is filled up with empty names. */
    uint32_t some_lengths[BATCH] = {0}, hashes[BATCH];
    for (uint64_t i = 0; i < BATCH; i++) {
        if (i < n) {
            some_lengths[i] = lengths[i];
            names[i] = first;
            first += (uint64_t)lengths[i] + gap;
        } else {
            names[i] = names[n - 1];
        }
    }
    hash_batch(names, some_lengths, (uint64_t)(end - names[BATCH - 1]), hashes);
    memcpy(out, hashes, n * sizeof *out);
}
#endif
