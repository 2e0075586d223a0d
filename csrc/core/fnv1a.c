/* FNV-1a (Fowler, Noll, Vo): XOR each byte into the hash, then multiply by a prime, modulo 2^32 or 2^64.
 *
 * A step needs the result of the one before it and takes about four cycles, nearly all of them waiting. One name cannot be
 * hashed faster than that, but eight names side by side can, since a CPU starts a multiplication each cycle.
 */
#include "core/internal.h"

uint32_t wm_fnv1a32(const uint8_t *data, uint64_t len) { return fnv1a32_more(FNV_OFFSET_32, data, len); }

uint64_t wm_fnv1a64(const uint8_t *data, uint64_t len) {
    uint64_t hash = FNV_OFFSET_64;
    for (uint64_t i = 0; i < len; i++) hash = (hash ^ data[i]) * FNV_PRIME_64;
    return hash;
}

/* Eight names side by side up to the end of the shortest, then the rest of each. */
void fnv1a32_portable(const uint8_t *first, const uint8_t *end, const uint32_t *lengths, uint32_t gap, uint64_t n,
                      uint32_t *out) {
    uint64_t i = 0;
    for (; n - i >= 8; i += 8) {
        const uint8_t *name[8];
        uint32_t hash[8], shortest = lengths[i];
        for (int k = 0; k < 8; k++) {
            name[k] = first;
            hash[k] = FNV_OFFSET_32;
            first += (uint64_t)lengths[i + k] + gap;
            if (lengths[i + k] < shortest) shortest = lengths[i + k];
        }
        for (uint32_t j = 0; j < shortest; j++)
            for (int k = 0; k < 8; k++) hash[k] = (hash[k] ^ name[k][j]) * FNV_PRIME_32;
        for (int k = 0; k < 8; k++) out[i + k] = fnv1a32_more(hash[k], name[k] + shortest, lengths[i + k] - shortest);
    }
    for (; i < n; i++) {
        out[i] = wm_fnv1a32(first, lengths[i]);
        first += (uint64_t)lengths[i] + gap;
    }
}

void wm_fnv1a32_run(const uint8_t *first, const uint8_t *end, const uint32_t *lengths, uint32_t gap, uint64_t n,
                    uint32_t *out) {
    wm_variants_in_use()->fnv1a32(first, end, lengths, gap, n, out);
}

int64_t wm_fnv1a32_many(const uint8_t *blob, uint64_t blob_len, const uint32_t *lengths, uint64_t n, uint32_t gap,
                        uint32_t *out) {
    /* First how many names fit, then all of them at once: the kernels need no check. Compilers make vector code of the sum
     * over a whole chunk. */
    enum { CHUNK = 1024 };
    uint64_t at = 0, fit = 0;
    while (n - fit >= CHUNK) {
        uint64_t sum = (uint64_t)gap * CHUNK;
        for (int i = 0; i < CHUNK; i++) sum += lengths[fit + i];
        if (sum > blob_len - at) break; /* at never passes blob_len */
        at += sum;
        fit += CHUNK;
    }
    while (fit < n && at <= blob_len && lengths[fit] <= blob_len - at) at += (uint64_t)lengths[fit++] + gap;
    wm_fnv1a32_run(blob, blob + blob_len, lengths, gap, fit, out);
    return fit == n ? -1 : (int64_t)fit;
}
