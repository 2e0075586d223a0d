/* Product quantisation.
 *
 * A vector is cut into `pieces` of equal width. Each place has a codebook of n_centroids vectors of that width, and a piece is
 * stored as the number of the nearest one, a single byte: a vector of 300 floats may take 100 bytes or fewer. Decoding looks
 * them up,
 *
 *     for (j = 0; j < pieces; j++) y[j * width ...] = codebook j, row code[j];
 *
 * and then
 *   - with a projection P, x = y Pt undoes a rotation that made the pieces equally hard to store;
 *   - with norms, x = x * norm of the row, since unit vectors were stored.
 * The projection is given transposed: x is the sum of its rows, each times an element of y, added in their order in float32
 * from 0 on. So the bits of a row depend neither on the CPU nor on the rows decoded with it.
 *
 * The dot product of a vector q with every row needs no decoding. A table holds the dot products of q's piece j with each row
 * of codebook j; for each row the numbers that its codes pick from this table add up to the dot product.
 *
 * Codes lie in a mapped file that may change while they are read. Each is loaded once (volatile keeps the compiler from
 * loading it again), compared with n_centroids, and used as loaded.
 */
#include "quant/combine_rows.h"

enum { ROWS_A_THREAD = 1 << 14 };

void combine_rows_portable(const float *matrix, const float *vectors, unsigned count, uint64_t dims, float *sums) {
    combine_rows_body(matrix, vectors, count, dims, sums);
}

static inline uint32_t load_code(const uint8_t *p) { return *(const volatile uint8_t *)p; }

typedef struct {
    const wm_pq *pq;
    const uint64_t *rows;
    uint64_t first;
    float *out;
    float *scratch;            /* WM_PQ_TOGETHER vectors for each thread */
    int64_t bad[WM_MAX_PARTS]; /* by thread: the position, among all codes, of one that is too large */
} work;

/* Looks up the pieces of a row. Returns -1, or the position of a code that is too large. */
static int64_t take_pieces(const wm_pq *pq, uint64_t row, float *y) {
    for (uint64_t j = 0, at = row * pq->pieces; j < pq->pieces; j++, at++) {
        const uint32_t code = load_code(pq->codes + at);
        if (code >= pq->n_centroids) return (int64_t)at;
        memcpy(y + j * pq->width, pq->codebooks + (j * pq->n_centroids + code) * pq->width, pq->width * sizeof(float));
    }
    return -1;
}

static int decode_piece(void *context, int thread, uint64_t begin, uint64_t end) {
    work *w = context;
    const wm_pq *pq = w->pq;
    const uint64_t dims = pq->pieces * pq->width;
    wm_combine_rows_fn *const combine_rows = wm_variants_in_use()->combine_rows;
    for (uint64_t i = begin; i < end;) {
        const unsigned count = end - i < WM_PQ_TOGETHER ? (unsigned)(end - i) : WM_PQ_TOGETHER;
        float *x = w->out + i * dims, *y = pq->projection ? w->scratch + (uint64_t)thread * WM_PQ_TOGETHER * dims : x;
        for (unsigned k = 0; k < count; k++) {
            const uint64_t row = w->rows ? w->rows[i + k] : w->first + i + k;
            if ((w->bad[thread] = take_pieces(pq, row, y + k * dims)) >= 0) return -1;
        }
        if (pq->projection) combine_rows(pq->projection, y, count, dims, x);
        for (unsigned k = 0; pq->norms && k < count; k++) {
            const float norm = pq->norms[w->rows ? w->rows[i + k] : w->first + i + k];
            for (uint64_t e = 0; e < dims; e++) x[k * dims + e] *= norm;
        }
        i += count;
    }
    return 0;
}

/* a * b = size, without wrapping around. */
static int is_product(uint64_t a, uint64_t b, uint64_t size) { return b ? size % b == 0 && size / b == a : size == 0; }

/* Whether the arrays have the sizes that the numbers call for. */
static int is_whole(const wm_pq *pq) {
    const uint64_t max = (uint64_t)1 << 30, dims = pq->pieces * pq->width;
    if (pq->pieces > max || pq->width > max || pq->n_centroids > max || dims > max) return 0;
    return is_product(pq->n_rows, pq->pieces, pq->codes_size) && is_product(dims, pq->n_centroids, pq->codebooks_size) &&
           (!pq->projection || pq->projection_size == dims * dims) && (!pq->norms || pq->norms_size == pq->n_rows);
}

int64_t wm_pq_decode(const wm_pq *pq, const uint64_t *rows, uint64_t first, uint64_t count, float *out, uint64_t out_size,
                     float *scratch, uint64_t n_scratch, int threads) {
    const uint64_t dims = pq->pieces * pq->width, room = dims * WM_PQ_TOGETHER;
    if (!is_whole(pq) || !is_product(count, dims, out_size)) return -2;
    if (!rows && (first > pq->n_rows || count > pq->n_rows - first)) return -2;
    if (rows)
        for (uint64_t i = 0; i < count; i++)
            if (rows[i] >= pq->n_rows) return -2;
    if (pq->projection && n_scratch < room) return -2;
    work w = {.pq = pq, .rows = rows, .first = first, .out = out, .scratch = scratch};
    if (threads > WM_MAX_PARTS) threads = WM_MAX_PARTS;
    if (pq->projection && room && threads > 1 && (uint64_t)threads > n_scratch / room) threads = (int)(n_scratch / room);
    const uint64_t min = pq->projection ? ROWS_A_THREAD / 64 : ROWS_A_THREAD;
    const int failed = wm_run_pieces(decode_piece, &w, count, min, threads);
    return failed < 0 ? -1 : w.bad[failed];
}

/* Eight rows side by side: a row's sum is one chain of additions, and eight chains do not wait for one another. */
int64_t wm_pq_sums(const wm_pq *pq, const float *table, uint64_t table_size, uint64_t first, uint64_t count, float *out) {
    enum { TOGETHER = 8 };
    if (!is_whole(pq) || table_size != pq->pieces * pq->n_centroids) return -2;
    if (first > pq->n_rows || count > pq->n_rows - first) return -2;
    const uint64_t pieces = pq->pieces, n = pq->n_centroids;
    for (uint64_t i = 0; i < count; i += TOGETHER) {
        const unsigned rows = count - i < TOGETHER ? (unsigned)(count - i) : TOGETHER;
        const uint8_t *codes = pq->codes + (first + i) * pieces;
        float sums[TOGETHER] = {0};
        for (uint64_t j = 0; j < pieces; j++)
            for (unsigned k = 0; k < rows; k++) {
                const uint32_t code = load_code(codes + k * pieces + j);
                if (code >= n) return (int64_t)((first + i + k) * pieces + j);
                sums[k] += table[j * n + code];
            }
        memcpy(out + i, sums, rows * sizeof(float));
    }
    return -1;
}
