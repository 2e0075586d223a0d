/* Compares the elements of two tensors of one type: how many differ in their bytes, and by how much at most.
 *
 *     for (i = 0; i < n; i++)
 *         if (the bytes of a[i] and b[i] differ) count++, largest = max(largest, |a[i] - b[i]|), in float64;
 *
 * A difference that is NaN makes the largest one NaN. Equal pieces, most of those of similar files, take one memcmp.
 */
#include "floats.h"

enum { PIECE = 1024, ABREAST = 4 }; /* elements; comparisons at a time */

/* The largest magnitude of n differences, as the bits of a float64, which grow with it: NaN is beyond infinity. The numbers of
 * the differences [n, n + ABREAST) are 0. */
static uint64_t largest_of(const double *difference, uint64_t n) {
    const uint64_t magnitude = 0x7FFFFFFFFFFFFFFFu;
    uint64_t most[ABREAST] = {0}, bits[ABREAST];
    for (uint64_t i = 0; i < n; i += ABREAST) {
        memcpy(bits, difference + i, sizeof bits);
        for (int k = 0; k < ABREAST; k++) most[k] = (bits[k] & magnitude) > most[k] ? bits[k] & magnitude : most[k];
    }
    for (int k = 1; k < ABREAST; k++) most[0] = most[k] > most[0] ? most[k] : most[0];
    return most[0];
}

/* Fills the differences of n values, and returns how many have different bits. Two loops that compilers make vector code of. */
#define COMPARE(name, float_type, bits_type)                                                                                 \
    static uint64_t name(const float_type *a, const float_type *b, const bits_type *of_a, const bits_type *of_b, uint64_t n, \
                         double *difference) {                                                                               \
        bits_type count = 0;                                                                                                 \
        for (uint64_t i = 0; i < n; i++) difference[i] = (double)a[i] - (double)b[i];                                        \
        for (uint64_t i = 0; i < n; i++) count += of_a[i] != of_b[i];                                                        \
        return count;                                                                                                        \
    }
COMPARE(compare_halves, float, uint16_t)
COMPARE(compare_floats, float, uint32_t)
COMPARE(compare_doubles, double, uint64_t)

int64_t wm_differing(const uint8_t *a, const uint8_t *b, uint64_t n, int kind, double *largest) {
    union {
        float floats[PIECE];
        double doubles[PIECE];
        uint32_t bits[PIECE];
        uint64_t wide[PIECE];
    } x, y;
    uint16_t halves[2][PIECE];
    double difference[PIECE + ABREAST];
    const wm_variants *v = wm_variants_in_use();
    const uint64_t infinite = 0x7FF0000000000000u, size = kind == WM_FLOAT64 ? 8 : kind == WM_FLOAT32 ? 4 : 2;
    uint64_t count = 0, most = 0;
    if (kind < WM_FLOAT32 || kind > WM_BFLOAT16) return -1;
    for (uint64_t at = 0; at < n; at += PIECE) {
        const uint64_t m = n - at < PIECE ? n - at : PIECE;
        const uint8_t *one = a + at * size, *other = b + at * size;
        if (memcmp(one, other, m * size) == 0) continue;
        for (uint64_t i = 0; i < m; i++) {
            if (size == 2) halves[0][i] = load_le16(one + 2 * i), halves[1][i] = load_le16(other + 2 * i);
            if (size == 4) x.bits[i] = load_le32(one + 4 * i), y.bits[i] = load_le32(other + 4 * i);
            if (size == 8) x.wide[i] = load_le64(one + 8 * i), y.wide[i] = load_le64(other + 8 * i);
        }
        if (size == 2) {
            wm_half_fn *const widen = kind == WM_FLOAT16 ? v->f16_to_f32 : v->bf16_to_f32;
            widen(one, x.floats, m, 0), widen(other, y.floats, m, 0);
            count += compare_halves(x.floats, y.floats, halves[0], halves[1], m, difference);
        } else if (size == 4) {
            count += compare_floats(x.floats, y.floats, x.bits, y.bits, m, difference);
        } else {
            count += compare_doubles(x.doubles, y.doubles, x.wide, y.wide, m, difference);
        }
        memset(difference + m, 0, ABREAST * sizeof *difference);
        uint64_t found = largest_of(difference, m);
        if (found > infinite) { /* two equal NaN do not differ */
            for (uint64_t i = 0; i < m; i++)
                if (memcmp(one + i * size, other + i * size, size) == 0) difference[i] = 0;
            found = largest_of(difference, m);
        }
        most = found > most ? found : most;
    }
    if (most > infinite) most = 0x7FF8000000000000u;
    memcpy(largest, &most, sizeof most);
    return (int64_t)count;
}
