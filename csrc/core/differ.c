/* Compares the elements of two tensors of one type: how many differ in their bytes, by how much at most, and the sum of the
 * squared differences.
 *
 *     for (i = 0; i < n; i++)
 *         if (the bytes of a[i] and b[i] differ)
 *             count++, d = a[i] - b[i] in float64, largest = max(largest, |d|), squares += d * d;
 *
 * A NaN among the differences makes the largest one and the squares NaN. Equal pieces, which most pieces of similar files are,
 * take one memcmp. differ_block.h compares the others.
 */
#define TARGET
#define NAME differ_portable
#define WIDTH 2
#include "core/differ_block.h"

static uint64_t count_halves(const uint8_t *a, const uint8_t *b, uint64_t n) {
    uint16_t x[PIECE], y[PIECE], count = 0;
    memcpy(x, a, 2 * n), memcpy(y, b, 2 * n);
    for (uint64_t i = 0; i < n; i++) count = (uint16_t)(count + (x[i] != y[i]));
    return count;
}

static double sum_of(const double parts[WM_APART]) {
    double sum = 0;
    for (int k = 0; k < WM_APART; k++) sum += parts[k];
    return sum;
}

/* Makes values 0 where the bytes of both elements are equal: infinities and NaN do not differ then. */
static void level(const uint8_t *a, const uint8_t *b, uint64_t n, uint64_t size, uint64_t width, uint8_t *x, uint8_t *y) {
    for (uint64_t i = 0; i < n; i++)
        if (memcmp(a + i * size, b + i * size, size) == 0) memset(x + i * width, 0, width), memset(y + i * width, 0, width);
}

int64_t wm_differing(const uint8_t *a, const uint8_t *b, uint64_t n, int kind, double *largest, double *squares) {
    union {
        float floats[PIECE];
        uint8_t bytes[8 * PIECE];
    } x, y;
    const wm_variants *v = wm_variants_in_use();
    const uint64_t size = wm_kind_size(kind), width = size == 8 ? 8 : 4;
    const int halves = size == 2, native = !halves && !WM_BIG_ENDIAN;
    wm_apart all = {0};
    if (kind < WM_FLOAT32 || kind > WM_BFLOAT16) return -1;
    for (uint64_t at = 0; at < n; at += PIECE) {
        const uint64_t m = n - at < PIECE ? n - at : PIECE;
        const uint8_t *one = a + at * size, *other = b + at * size;
        if (memcmp(one, other, m * size) == 0) continue;
        if (halves) {
            wm_half_fn *const widen = kind == WM_FLOAT16 ? v->f16_to_f32 : v->bf16_to_f32;
            widen(one, x.floats, m, 0), widen(other, y.floats, m, 0);
        }
        for (uint64_t i = 0; !halves && !native && i < m * size; i++) {
            x.bytes[i] = one[i - i % size + size - 1 - i % size];
            y.bytes[i] = other[i - i % size + size - 1 - i % size];
        }
        wm_apart sums = all;
        v->differ(native ? one : x.bytes, native ? other : y.bytes, m, size == 8, &sums);
        double sum = sum_of(sums.squares);
        if (sum != sum && !all.nan) {
            if (native) memcpy(x.bytes, one, m * size), memcpy(y.bytes, other, m * size);
            level(one, other, m, size, width, x.bytes, y.bytes);
            sums = all;
            v->differ(x.bytes, y.bytes, m, size == 8, &sums);
            sum = sum_of(sums.squares);
            sums.nan = sum != sum;
        }
        sums.count = all.count + (halves ? count_halves(one, other, m) : sums.count - all.count);
        all = sums;
    }
    double max = 0;
    for (int k = 0; k < WM_APART; k++) max = all.max[k] > max ? all.max[k] : max;
    *squares = sum_of(all.squares);
    *largest = all.nan ? *squares : max;
    return (int64_t)all.count;
}
