/* FNV-1a 32 of many names, 64 at a time, in eight groups of eight lanes (AVX2).
 *
 * One name is `for (i = 0; i < len; i++) hash = (hash ^ name[i]) * PRIME`. A lane is a name. Each step needs the same byte
 * of LANES names in LANES lanes, while the names lie far apart. A gather would cost a load for each lane and step. So
 * sixteen bytes of each name are loaded at once and transposed, a quarter of the loads for four bytes a lane. The groups of
 * lanes, 64 names together, hide the time that a multiplication takes.
 *
 * Names differ in length. As long as all 64 have sixteen bytes left, nothing is masked. Then lanes drop out one by one, and
 * blends keep their hash; fewer than MIN_LANES are finished one after another, so that one long name does not carry 63 idle
 * lanes along.
 *
 * Sixteen bytes are loaded of every name, wherever it ends, so that no branch is needed. Names lie in rising order: when the
 * sixteen bytes of the last one lie within the blob, so do those of all others. That is the one check.
 */
#include "core/internal.h"

#if WM_X86
#include <immintrin.h>

#define TARGET WM_TARGET("avx2,popcnt")
enum { BATCH = 64, LANES = 8, GROUPS = BATCH / LANES, BLOCK = 16, WORDS = BLOCK / 4, MIN_LANES = 8 };

/* Notes where n <= BATCH names begin, and returns where the next one does. */
WM_INLINE const uint8_t *locate_names(const uint8_t *first, const uint32_t *lengths, uint32_t gap, uint64_t n,
                                      const uint8_t **names) {
    for (uint64_t i = 0; i < n; i++) {
        PREFETCH(first + WM_AHEAD); /* some forty names ahead: the CPU does not predict loads in pieces */
        names[i] = first;
        first += (uint64_t)lengths[i] + gap;
    }
    return first;
}

/* Finishes the names whose bit is set in `unfinished`, from byte `at` on. */
TARGET WM_INLINE void finish_names(uint64_t unfinished, const uint8_t *const *names, const uint32_t *lengths, uint64_t at,
                                   uint32_t *out) {
    for (; unfinished; unfinished &= unfinished - 1) {
        int i = (int)_mm_popcnt_u64((unfinished & ~(unfinished - 1)) - 1); /* the lowest bit that is set */
        out[i] = fnv1a32_more(out[i], names[i] + at, lengths[i] - at);
    }
}

TARGET WM_INLINE __m128i load(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }

/* Bytes [at, at + 16) of eight names: lane i of words[k] holds bytes 4k to 4k + 3 of name i. */
TARGET WM_INLINE void load_block(const uint8_t *const *names, uint64_t at, __m256i words[WORDS]) {
    __m256i rows[4]; /* rows[j]: names j and 4 + j */
    for (int j = 0; j < 4; j++)
        rows[j] = _mm256_inserti128_si256(_mm256_castsi128_si256(load(names[j] + at)), load(names[4 + j] + at), 1);
    /* Transpose the four by four words of each half. */
    __m256i a = _mm256_unpacklo_epi32(rows[0], rows[1]), b = _mm256_unpackhi_epi32(rows[0], rows[1]);
    __m256i c = _mm256_unpacklo_epi32(rows[2], rows[3]), d = _mm256_unpackhi_epi32(rows[2], rows[3]);
    words[0] = _mm256_unpacklo_epi64(a, c);
    words[1] = _mm256_unpackhi_epi64(a, c);
    words[2] = _mm256_unpacklo_epi64(b, d);
    words[3] = _mm256_unpackhi_epi64(b, d);
}

/* Up to sixteen steps of all groups, as many as the longest name needs, from byte `at` on. With `masked` not 0, lanes whose
 * name has ended keep their hash. */
TARGET WM_INLINE void hash_block(const uint8_t *const *names, uint32_t at, const __m256i lengths[GROUPS], uint32_t longest,
                                 int masked, __m256i hash[GROUPS]) {
    const __m256i prime = _mm256_set1_epi32((int)FNV_PRIME_32), low = _mm256_set1_epi32(255), one = _mm256_set1_epi32(1);
    __m256i words[GROUPS][WORDS], position = _mm256_set1_epi32((int)at);
    for (int g = 0; g < GROUPS; g++) load_block(names + LANES * g, at, words[g]);
    for (int k = 0; k < WORDS; k++) {
        if (masked && longest <= at + 4 * (uint32_t)k) return;
        for (int byte = 0; byte < 4; byte++) {
            for (int g = 0; g < GROUPS; g++) {
                __m256i mixed = _mm256_xor_si256(hash[g], _mm256_and_si256(words[g][k], low));
                __m256i next = _mm256_mullo_epi32(mixed, prime);
                hash[g] = masked ? _mm256_blendv_epi8(hash[g], next, _mm256_cmpgt_epi32(lengths[g], position)) : next;
                words[g][k] = _mm256_srli_epi32(words[g][k], 8);
            }
            position = _mm256_add_epi32(position, one);
        }
    }
}

/* The hashes of 64 names, in rising order in memory; `room` bytes may be read from the start of the last one on. */
TARGET static void hash_batch(const uint8_t *const *names, const uint32_t *lengths, uint64_t room, uint32_t *out) {
    __m256i hash[GROUPS], length[GROUPS];
    uint32_t shortest = UINT32_MAX, longest = 0;
    for (int i = 0; i < BATCH; i++) {
        shortest = lengths[i] < shortest ? lengths[i] : shortest;
        longest = lengths[i] > longest ? lengths[i] : longest;
    }
    for (int g = 0; g < GROUPS; g++) {
        hash[g] = _mm256_set1_epi32((int)FNV_OFFSET_32);
        /* Comparisons are signed; no position reaches 2^31. */
        length[g] = _mm256_min_epu32(_mm256_loadu_si256((const __m256i *)(lengths + LANES * g)), _mm256_set1_epi32(INT32_MAX));
    }
    if (room > INT32_MAX) room = INT32_MAX;
    uint64_t at = 0, unfinished;
    for (; room - at >= BLOCK && shortest - at >= BLOCK; at += BLOCK) hash_block(names, (uint32_t)at, length, longest, 0, hash);
    for (;; at += BLOCK) {
        unfinished = 0;
        const __m256i position = _mm256_set1_epi32((int)at);
        for (int g = 0; g < GROUPS; g++) {
            __m256 longer = _mm256_castsi256_ps(_mm256_cmpgt_epi32(length[g], position));
            unfinished |= (uint64_t)_mm256_movemask_ps(longer) << LANES * g;
        }
        if (_mm_popcnt_u64(unfinished) < MIN_LANES || room - at < BLOCK) break;
        hash_block(names, (uint32_t)at, length, longest, 1, hash);
    }
    for (int g = 0; g < GROUPS; g++) _mm256_storeu_si256((__m256i *)(out + LANES * g), hash[g]);
    finish_names(unfinished, names, lengths, at, out);
}

TARGET void fnv1a32_x86_avx2(const uint8_t *first, const uint8_t *end, const uint32_t *lengths, uint32_t gap, uint64_t n,
                             uint32_t *out) {
    const uint8_t *names[BATCH];
    for (; n >= BATCH; n -= BATCH, lengths += BATCH, out += BATCH) {
        first = locate_names(first, lengths, gap, BATCH, names);
        hash_batch(names, lengths, (uint64_t)(end - names[BATCH - 1]), out);
    }
    fnv1a32_portable(first, end, lengths, gap, n, out);
}
#endif
