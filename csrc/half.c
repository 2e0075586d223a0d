/* Halves to floats: the entry points, and the conversions in plain C.
 *
 *              sign  exponent (bias)  fraction
 *   float16       1        5   (15)         10
 *   bfloat16      1        8  (127)          7
 *   float32       1        8  (127)         23
 *
 * bfloat16 is the upper half of float32, so it is moved there and nothing else. float16 is a format of its own. Its sign
 * goes to the top, exponent and fraction together move up by 13, and the exponent, whose bias was 15, grows by 112. Two
 * exponents are special: 31 means infinity or NaN and becomes 255, by another 112; 0 means a multiple of 2^-24, which
 * float32 has as an ordinary number. A NaN keeps its bits and becomes quiet, that is, gets the highest bit of its
 * fraction: so do the instructions of all CPUs, and so IEEE 754 wants it of a conversion.
 */
#include "intblock.h" /* widen_half_bits */

static inline void store32(float *out, uint32_t bits) { memcpy(out, &bits, sizeof bits); }

void f16_to_f32_portable(const uint8_t *in, float *out, uint64_t n, int stream) {
    for (uint64_t i = 0; i < n; i++) store32(out + i, widen_half_bits(load_le16(in + 2 * i)));
}

void bf16_to_f32_portable(const uint8_t *in, float *out, uint64_t n, int stream) {
    for (uint64_t i = 0; i < n; i++) store32(out + i, (uint32_t)load_le16(in + 2 * i) << 16);
}

/* ---------------------------------------------------------------------------------------------- entry points */
/* 4 MiB of output, in the third-level cache 0.3 ms of work: many times what starting a thread takes. */
enum { FLOATS_A_THREAD = 1 << 20 };

typedef struct {
    wm_half_fn *convert;
    const uint8_t *in;
    float *out;
    int stream;
} work;

static void run_part(void *context, int part, uint64_t begin, uint64_t end) {
    const work *w = context;
    w->convert(w->in + 2 * begin, w->out + begin, end - begin, w->stream);
}

static int convert_all(wm_half_fn *convert, const uint8_t *in, float *out, uint64_t n, int threads) {
    const uintptr_t read = (uintptr_t)in, written = (uintptr_t)out;
    if (n == 0) return 0; /* there may be no pointers */
    if (read < written + n * sizeof *out && written < read + 2 * n) return -1;
    work w = {convert, in, out, wm_stream_worthwhile(n * sizeof *out)};
    wm_run_parts(run_part, &w, n, 1024, FLOATS_A_THREAD, threads); /* parts of whole pages */
    return 0;
}

int wm_f16_to_f32(const uint8_t *in, float *out, uint64_t n, int threads) {
    return convert_all(wm_variants_in_use()->f16_to_f32, in, out, n, threads);
}

int wm_bf16_to_f32(const uint8_t *in, float *out, uint64_t n, int threads) {
    return convert_all(wm_variants_in_use()->bf16_to_f32, in, out, n, threads);
}
