/* FNV-1a 32 of many names, 64 at a time: shared by the kernels of both vector sizes.
 *
 * One name is `for (i = 0; i < len; i++) hash = (hash ^ name[i]) * PRIME`. A lane is a name. Each step needs the same byte
 * of LANES names in LANES lanes, while the names lie far apart. A gather would cost a load for each lane and step. So
 * sixteen bytes of each name are loaded at once and transposed, a quarter of the loads for four bytes a lane. The groups of
 * lanes, 64 names together, hide the time that a multiplication takes.
 *
 * Names differ in length. As long as all 64 have sixteen bytes left, nothing is masked. Then lanes drop out one by one and
 * keep their hash; fewer than MIN_LANES are finished one after another, so that one long name does not carry 63 idle
 * lanes along.
 *
 * Sixteen bytes are loaded of every name, wherever it ends, so that no branch is needed. Names lie in rising order: when the
 * sixteen bytes of the last one lie within the blob, so do those of all others. That is the one check.
 */
#include <immintrin.h>

#include "core/internal.h"

enum { BATCH = 64, BLOCK = 16, WORDS = BLOCK / 4, MIN_LANES = 8 };

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
WM_TARGET("popcnt")
WM_INLINE void finish_names(uint64_t unfinished, const uint8_t *const *names, const uint32_t *lengths, uint64_t at,
                            uint32_t *out) {
    for (; unfinished; unfinished &= unfinished - 1) {
        int i = (int)_mm_popcnt_u64((unfinished & ~(unfinished - 1)) - 1); /* the lowest bit that is set */
        out[i] = fnv1a32_more(out[i], names[i] + at, lengths[i] - at);
    }
}
