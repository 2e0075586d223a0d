/* Quantisation: the division into blocks and among threads. quantize_block.h searches the scale of a block. */
#define TARGET
#define NAME quantize_portable
#include "quantize_block.h"

/* The grid: codes, whole or not, to try for the extreme one of n elements, half of them negative. They grow geometrically from
 * 0.55 to 1.2 of the largest code. Beyond that code the element is clipped; among many elements it pays to go further, since
 * all others gain from the finer scale. */
static void fill_grid(float grid[WM_GRID], int bits, uint64_t n) {
    const int each = WM_GRID / 2;
    double reach = 1.2;
    for (uint64_t m = 256; m <= n && reach < 64; m *= 2) reach *= 1.25;
    /* The step is the root of degree each - 1 of their ratio, by Newton's method. */
    double ratio = reach / 0.55, step = 1 + ratio / each;
    for (int i = 0; i < 50; i++) {
        double power = 1;
        for (int k = 0; k < each - 2; k++) power *= step;
        step -= (power * step - ratio) / ((each - 1) * power);
    }
    double code = 0.55 * (1 << (bits - 1));
    for (int k = 0; k < each; k++, code *= step) {
        grid[2 * k] = (float)-code;
        grid[2 * k + 1] = (float)code;
    }
}

enum { ELEMENTS_PER_THREAD = 1 << 14 }; /* about half a millisecond */

/* Writes a block of float16, without a scale. What is too large for float16 becomes the largest one, not infinity. */
static double write_halves(const float *x, uint64_t n, uint8_t *out) {
    double error = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t half = narrow_float(x[i]);
        if ((half & 0x7FFF) == 0x7C00) half--;
        const double difference = (double)x[i] - (double)widen_half(half);
        error += difference * difference;
        out[2 * i] = (uint8_t)half;
        out[2 * i + 1] = (uint8_t)(half >> 8);
    }
    return error;
}

typedef struct {
    const float *x;
    uint64_t n, block, stride; /* elements; elements and bytes of a block */
    int bits, scale_type;
    uint8_t *out;
    double *errors;
    float grid[WM_GRID];
} work;

static void encode_part(void *context, int part, uint64_t begin, uint64_t end) {
    const work *w = context;
    wm_quantize_fn *const quantize = wm_variants_in_use()->quantize;
    for (uint64_t b = begin; b < end; b++) {
        const float *x = w->x + b * w->block;
        const uint64_t left = w->n - b * w->block, n = left < w->block ? left : w->block;
        uint8_t *out = w->out + b * w->stride;
        if (n < w->block) memset(out, 0, w->stride); /* the last block: codes past the last element are 0 */
        const double error = w->bits == 16 ? write_halves(x, n, out) : quantize(x, n, w->grid, w->bits, w->scale_type, out);
        if (w->errors) w->errors[b] = error;
    }
}

int64_t wm_first_not_finite(const float *x, uint64_t n) {
    for (uint64_t i = 0; i < n;) {
        const uint64_t end = n - i < 1024 ? n : i + 1024;
        uint32_t most = 0; /* without branches, so that compilers make vector code */
        for (uint64_t k = i; k < end; k++) {
            const uint32_t magnitude = bits_of_float(x[k]) & 0x7FFFFFFF;
            most = magnitude > most ? magnitude : most;
        }
        for (; most >= 0x7F800000 && i < end; i++)
            if (!is_finite(x[i])) return (int64_t)i;
        i = end;
    }
    return -1;
}

int64_t wm_blocks_encode(const float *x, uint64_t n, int bits, int scale_type, uint64_t block_size, uint8_t *out,
                         uint64_t out_size, double *errors, uint64_t n_errors, int threads) {
    const int halves = bits == 16;
    const int64_t size = wm_blocks_size(halves ? 8 : bits, scale_type, block_size, n);
    if (size < 0 || (halves && !block_size)) return -2;
    const uint64_t block = block_size ? block_size : n;
    const uint64_t count = block_size ? ceil_div(n, block_size) : 1;
    const uint64_t stride = halves ? 2 * block : scale_bytes(scale_type) + code_bytes(bits, block);
    if (out_size != count * stride || (errors && n_errors != count)) return -2;
    const int64_t bad = wm_first_not_finite(x, n);
    if (bad >= 0) return bad;
    work w = {x, n, block, stride, bits, scale_type, out, errors, {0}};
    fill_grid(w.grid, bits, block);
    const uint64_t least = block ? ELEMENTS_PER_THREAD / block + 1 : 1;
    wm_run_parts(encode_part, &w, count, 1, least, threads);
    return -1;
}
