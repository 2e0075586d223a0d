/* Copies of rows of a matrix, and sums of rows as unit vectors:
 *
 *     for (r = 0; r < count; r++)
 *         for (i = 0; i < dims; i++) sum[i] += matrix[rows[r]][i];
 *
 * The rows of words and n-grams lie far apart in a matrix that no cache holds, so nearly all the time is waiting for memory.
 * The list says which rows come next, so each is prefetched some rows ahead of its turn.
 *
 * Results must not depend on the CPU: an element's terms are added in the order of the rows, in float32. Elements do not
 * depend on one another, so compilers make vector code of the inner loop. Four rows are added at a time, so that the sum is
 * loaded and stored once for the four. Wider vectors than every CPU has gained a tenth from the caches and nothing from
 * memory when measured, so there are no variants.
 */
#include <math.h>

#include "core/floats.h"

enum { TOGETHER = 4, ROWS_AHEAD = 12, ROWS_A_THREAD = 4096 };

static inline float load_f32(const uint8_t *p) { return float_of_bits(load_le32(p)); }

/* Adds up to TOGETHER rows to `sum`. */
static void add_rows(const uint8_t *const *rows, unsigned count, uint64_t dims, float *restrict sum) {
    if (count == TOGETHER) {
        const uint8_t *restrict a = rows[0], *restrict b = rows[1], *restrict c = rows[2], *restrict d = rows[3];
        for (uint64_t i = 0; i < dims; i++)
            sum[i] = sum[i] + load_f32(a + 4 * i) + load_f32(b + 4 * i) + load_f32(c + 4 * i) + load_f32(d + 4 * i);
        return;
    }
    for (unsigned k = 0; k < count; k++) {
        const uint8_t *restrict row = rows[k];
        for (uint64_t i = 0; i < dims; i++) sum[i] += load_f32(row + 4 * i);
    }
}

/* Divides x by its L2 norm and returns the norm. The squares are added in double precision: element i's to sum i % 8 of eight. A
 * vector of zeros stays one. */
static float unit_vector(float *x, uint64_t dims) {
    double sums[8] = {0};
    uint64_t i = 0;
    for (; i + 8 <= dims; i += 8)
        for (int k = 0; k < 8; k++) sums[k] += (double)x[i + k] * x[i + k];
    for (int k = 0; i < dims; i++, k++) sums[k] += (double)x[i] * x[i];
    const double even = (sums[0] + sums[2]) + (sums[4] + sums[6]), odd = (sums[1] + sums[3]) + (sums[5] + sums[7]);
    const float norm = (float)sqrt(even + odd);
    if (norm != 0)
        for (i = 0; i < dims; i++) x[i] /= norm;
    return norm;
}

typedef struct {
    const uint8_t *matrix;
    uint64_t dims;
    const uint64_t *rows, *bounds, *places;
    float *out, *norms;
} work;

static inline void prefetch_row(const uint8_t *row, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += 64) PREFETCH(row + at);
}

static void sum_part(void *context, int number, uint64_t begin, uint64_t end) {
    const work *w = context;
    const uint64_t stride = w->dims * sizeof(float), last = w->bounds[end];
    for (uint64_t i = begin; i < end; i++) {
        float *sum = w->out + (w->places ? w->places[i] : i) * w->dims;
        memset(sum, 0, stride);
        for (uint64_t at = w->bounds[i], stop = w->bounds[i + 1]; at < stop;) {
            const uint64_t count = stop - at < TOGETHER ? stop - at : TOGETHER;
            const uint8_t *rows[TOGETHER];
            for (uint64_t k = 0; k < count; k++) {
                rows[k] = w->matrix + w->rows[at + k] * stride;
                if (at + k + ROWS_AHEAD < last) prefetch_row(w->matrix + w->rows[at + k + ROWS_AHEAD] * stride, stride);
            }
            add_rows(rows, (unsigned)count, w->dims, sum);
            at += count;
        }
        const float norm = unit_vector(sum, w->dims);
        if (w->norms) w->norms[i] = norm;
    }
}

int64_t wm_unit_sums(const uint8_t *matrix, uint64_t size, uint64_t dims, const uint64_t *rows, uint64_t n_rows,
                     const uint64_t *bounds, const uint64_t *places, uint64_t n, float *out, uint64_t out_rows, float *norms,
                     int threads) {
    if (dims > size / sizeof(float) && n_rows) return -2;
    const uint64_t height = dims ? size / (dims * sizeof(float)) : 0;
    for (uint64_t i = 0; i < n; i++) {
        if (bounds[i] > bounds[i + 1] || bounds[i + 1] > n_rows || (places ? places[i] : i) >= out_rows) return -2;
        for (uint64_t k = bounds[i]; k < bounds[i + 1]; k++)
            if (rows[k] >= height) return (int64_t)i;
    }
    work w = {matrix, dims, rows, bounds, places, out, norms};
    wm_run_parts(sum_part, &w, n, 1, n_rows ? n * (uint64_t)ROWS_A_THREAD / n_rows + 1 : n, threads);
    return -1;
}

typedef struct {
    const uint8_t *matrix;
    uint64_t row_bytes, height;
    const int64_t *rows;
    uint8_t *out;
} gather_work;

static void gather_part(void *context, int number, uint64_t begin, uint64_t end) {
    const gather_work *w = context;
    for (uint64_t i = begin; i < end; i++) {
        uint8_t *to = w->out + i * w->row_bytes;
        if (i + ROWS_AHEAD < end) {
            const uint64_t next = (uint64_t)w->rows[i + ROWS_AHEAD];
            if (next < w->height) prefetch_row(w->matrix + next * w->row_bytes, w->row_bytes);
        }
        if ((uint64_t)w->rows[i] < w->height)
            memcpy(to, w->matrix + (uint64_t)w->rows[i] * w->row_bytes, w->row_bytes);
        else
            memset(to, 0, w->row_bytes);
    }
}

int wm_gather_rows(const uint8_t *matrix, uint64_t size, uint64_t row_bytes, const int64_t *rows, uint64_t n, uint8_t *out,
                   uint64_t out_size, int threads) {
    if (row_bytes == 0) return 0;
    if (n > out_size / row_bytes) return -1;
    gather_work w = {matrix, row_bytes, size / row_bytes, rows, out};
    wm_run_parts(gather_part, &w, n, 1, ((uint64_t)4 << 20) / row_bytes + 1, threads);
    return 0;
}
