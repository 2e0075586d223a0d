/* Halves (float16, bfloat16) to floats, and back: the entry points, and the conversions in plain C. floats.h draws the three types.
 * bfloat16 is the upper half of a float32, so its bits move up by 16; widen_half_bits converts a float16.
 */
#include "core/floats.h"

void f16_to_f32_portable(const uint8_t *in, float *out, uint64_t n, int storing) {
    for (uint64_t i = 0; i < n; i++) out[i] = widen_half(load_le16(in + 2 * i));
}

void bf16_to_f32_portable(const uint8_t *in, float *out, uint64_t n, int storing) {
    for (uint64_t i = 0; i < n; i++) out[i] = float_of_bits((uint32_t)load_le16(in + 2 * i) << 16);
}

/* 4 MiB of output, 0.3 ms of work in the third-level cache: many times the cost of starting a thread. */
enum { FLOATS_A_THREAD = 1 << 20 };

typedef struct {
    wm_half_fn *convert;
    const uint8_t *in;
    float *out;
    int storing;
} work;

static void run_part(void *context, int part, uint64_t begin, uint64_t end) {
    const work *w = context;
    w->convert(w->in + 2 * begin, w->out + begin, end - begin, w->storing);
}

static int convert_all(wm_half_fn *convert, const uint8_t *in, float *out, uint64_t n, int threads) {
    if (n == 0) return 0; /* pointers may be NULL */
    if (wm_overlap(in, 2 * n, out, n * sizeof *out)) return -1;
    work w = {convert, in, out, wm_how_to_store(2 * n, n * sizeof *out)};
    wm_run_parts(run_part, &w, n, 1024, FLOATS_A_THREAD, threads); /* parts of whole pages */
    return 0;
}

int wm_f16_to_f32(const uint8_t *in, float *out, uint64_t n, int threads) {
    return convert_all(wm_variants_in_use()->f16_to_f32, in, out, n, threads);
}

int wm_bf16_to_f32(const uint8_t *in, float *out, uint64_t n, int threads) {
    return convert_all(wm_variants_in_use()->bf16_to_f32, in, out, n, threads);
}

int wm_f32_to_f16(const float *in, uint8_t *out, uint64_t n) {
    if (n == 0) return 0;
    if (wm_overlap(in, n * sizeof *in, out, 2 * n)) return -1;
    wm_variants_in_use()->narrow(in, n, out);
    return 0;
}
