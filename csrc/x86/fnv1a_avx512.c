/* FNV-1a 32 of many names, in four groups of sixteen lanes (AVX-512): see fnv1a_x86.h. */
#include "core/internal.h"

#if WM_X86
#include "x86/fnv1a_x86.h"

#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl,popcnt")
enum { LANES = 16, GROUPS = BATCH / LANES };

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

/* Up to sixteen steps of all groups, as many as the longest name needs, from byte `at` on. With `masked` not 0, lanes whose
 * name has ended keep their hash. Meanwhile the block at `next_at` is loaded, a group for every four steps: multiplications
 * wait for one another, while loads and transpositions use units that would idle. So does the shuffle that takes a byte out
 * of its word; a shift would compete with the multiplications. */
TARGET WM_INLINE void hash_block(const uint8_t *const *names, uint32_t at, uint64_t next_at, const __m512i lengths[GROUPS],
                                 uint32_t longest, int masked, __m512i words[GROUPS][WORDS], __m512i next[GROUPS][WORDS],
                                 __m512i hash[GROUPS]) {
    const __m512i prime = _mm512_set1_epi32((int)FNV_PRIME_32), one = _mm512_set1_epi32(1);
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
        hash[g] = _mm512_set1_epi32((int)FNV_OFFSET_32);
        length[g] = _mm512_loadu_si512((const void *)(lengths + LANES * g));
    }
    __m512i min = _mm512_min_epu32(_mm512_min_epu32(length[0], length[1]), _mm512_min_epu32(length[2], length[3]));
    __m512i max = _mm512_max_epu32(_mm512_max_epu32(length[0], length[1]), _mm512_max_epu32(length[2], length[3]));
    uint32_t shortest = _mm512_reduce_min_epu32(min), longest = _mm512_reduce_max_epu32(max);

    /* The end of the blocks that may be loaded. Positions stay below 2^31; finish_names takes the rest of longer names. */
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
            if (_mm_popcnt_u64(longer_than(length, at)) < MIN_LANES) break;
            hash_block(names, at, next_at, length, longest, 1, words[i], words[i ^ 1], hash);
        }
    }
    for (int g = 0; g < GROUPS; g++) _mm512_storeu_si512((void *)(out + LANES * g), hash[g]);
    finish_names(longer_than(length, at), names, lengths, at, out);
}

TARGET void fnv1a32_x86_avx512(const uint8_t *first, const uint8_t *end, const uint32_t *lengths, uint32_t gap, uint64_t n,
                               uint32_t *out) {
    const uint8_t *names[BATCH];
    for (; n >= BATCH; n -= BATCH, lengths += BATCH, out += BATCH) {
        first = locate_names(first, lengths, gap, BATCH, names);
        hash_batch(names, lengths, (uint64_t)(end - names[BATCH - 1]), out);
    }
    if (n < BATCH / 4) { /* too few for a batch */
        fnv1a32_portable(first, end, lengths, gap, n, out);
        return;
    }
    /* Empty names fill up the last batch. */
    uint32_t some_lengths[BATCH] = {0}, hashes[BATCH];
    memcpy(some_lengths, lengths, n * sizeof *lengths);
    locate_names(first, lengths, gap, n, names);
    for (uint64_t i = n; i < BATCH; i++) names[i] = names[n - 1];
    hash_batch(names, some_lengths, (uint64_t)(end - names[BATCH - 1]), hashes);
    memcpy(out, hashes, n * sizeof *out);
}
#endif
