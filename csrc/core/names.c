/* Whether names, or keys, are unique. In full:
 *
 *     for (i = 0; i < n; i++)
 *         for (j = 0; j < i; j++)
 *             if (name i equals name j) return duplicate;
 *
 * A hash table (open addressing, at most two slots of three in use) cuts the inner loop down to the few names that share a
 * slot. It is freed at the end: an open file keeps nothing of it. Someone may choose names that all fall into one slot, so a
 * search of more than PROBES slots, which other names never need, is an error.
 */
#include <stdlib.h>

#include "core/internal.h"
#include "core/utf8.h"

enum { PROBES = 64, AHEAD = 16 };

/* The top bits of hash * 2^64 / golden ratio, which depend on all bits of the hash. */
static inline uint64_t home_slot(uint32_t hash, int shift) { return hash * UINT64_C(0x9E3779B97F4A7C15) >> shift; }

int wm_names_unique(const uint8_t *names, uint64_t n, const uint32_t *hash, const uint32_t *position, uint64_t step,
                    wm_fault *fault) {
    uint32_t small[512], *slots = small;
    uint64_t capacity = 16;
    while (capacity < n + n / 2) capacity *= 2;
    if (capacity > 512 && !(slots = malloc(capacity * sizeof *slots)))
        return wm_fail(fault, WM_FAULT_MEMORY, 0, 0, capacity * sizeof *slots, 0);
    memset(slots, 0xFF, capacity * sizeof *slots);
    int result = 0;
    int shift = 64;
    for (uint64_t c = capacity; c > 1; c /= 2) shift--;
    for (uint64_t row = 0; row < n && result == 0; row++) {
        if (row + AHEAD < n) PREFETCH(&slots[home_slot(hash[row + AHEAD], shift)]);
        uint64_t slot = home_slot(hash[row], shift);
        int probes = 0;
        for (; slots[slot] != UINT32_MAX; slot = (slot + 1) & (capacity - 1)) {
            uint32_t other = slots[slot];
            uint32_t length = position[step * row + 1] - position[step * row];
            if (hash[other] == hash[row] && position[step * other + 1] - position[step * other] == length &&
                memcmp(names + position[step * other], names + position[step * row], length) == 0) {
                result = wm_fail(fault, WM_FAULT_NAME_DUPLICATE, row, 0, row, other);
                break;
            }
            if (++probes > PROBES) {
                result = wm_fail(fault, WM_FAULT_NAME_FLOOD, row, 0, probes, PROBES);
                break;
            }
        }
        slots[slot] = (uint32_t)row;
    }
    if (slots != small) free(slots);
    return result;
}

int wm_keys_unique(const uint8_t *data, uint64_t n, const uint32_t *position, wm_fault *fault) {
    enum { LOCAL = 64 };
    uint32_t local[LOCAL], *hash = local;
    if (n < 2) return 0;
    if (n >= UINT32_MAX / 8) return wm_fail(fault, WM_FAULT_CAPACITY, n, 0, n, UINT32_MAX / 8);
    if (n > LOCAL && !(hash = malloc(n * sizeof *hash))) return wm_fail(fault, WM_FAULT_MEMORY, 0, 0, n * sizeof *hash, 0);
    for (uint64_t i = 0; i < n; i++) hash[i] = wm_fnv1a32(data + position[2 * i], position[2 * i + 1] - position[2 * i]);
    int result = wm_names_unique(data, n, hash, position, 2, fault);
    if (hash != local) free(hash);
    return result;
}

int wm_pairs_check(const uint8_t *data, uint64_t len, uint64_t count, wm_fault *fault) {
    enum { LOCAL = 64 };
    uint32_t local[2 * LOCAL], *start = local;
    if (count > len / 4 || len >= UINT32_MAX) return wm_fail(fault, WM_FAULT_NAME_RANGE, len / 4, len, count, len / 4);
    if (count > LOCAL && !(start = malloc(2 * count * sizeof *start)))
        return wm_fail(fault, WM_FAULT_MEMORY, 0, 0, 2 * count * sizeof *start, 0);
    int result = -1;
    uint64_t pos = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t key = len - pos < 4 ? 0 : load_le16(data + pos), value = len - pos < 4 ? 0 : load_le16(data + pos + 2);
        if (len - pos < 4 || key + value > len - pos - 4) {
            wm_fail(fault, WM_FAULT_NAME_RANGE, i, pos, key + value, len - pos);
            goto done;
        }
        start[2 * i] = (uint32_t)(pos + 4);
        start[2 * i + 1] = (uint32_t)(pos + 4 + key);
        if (!wm_utf8_valid(data + pos + 4, key) || !wm_utf8_valid(data + pos + 4 + key, value)) {
            wm_fail(fault, WM_FAULT_NAME_UTF8, i, pos, 0, 0);
            goto done;
        }
        pos += 4 + key + value;
    }
    if (pos != len) {
        wm_fail(fault, WM_FAULT_NAME_RANGE, count, pos, pos, len);
        goto done;
    }
    result = wm_keys_unique(data, count, start, fault);
done:
    if (start != local) free(start);
    return result;
}
