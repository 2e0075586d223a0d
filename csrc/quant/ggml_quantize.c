/* Quantises arrays to ggml's blocks, in parallel, and measures the error of each block; ggml_quantize.h does one block. */
#define TARGET
#define NAME ggml_quantize_portable
#include "quant/ggml_quantize.h"

enum { ELEMENTS_OF_A_PIECE = 1 << 14 };

int wm_ggml_encodes(int type) {
    switch (type) {
    case WM_GGML_q4_0:
    case WM_GGML_q4_1:
    case WM_GGML_q5_0:
    case WM_GGML_q5_1:
    case WM_GGML_q8_0:
    case WM_GGML_q2_k:
    case WM_GGML_q3_k:
    case WM_GGML_q4_k:
    case WM_GGML_q5_k:
    case WM_GGML_q6_k:
    case WM_GGML_iq4_nl:
    case WM_GGML_mxfp4: return 1;
    default: return 0;
    }
}

typedef struct {
    const float *x;
    int type;
    uint64_t elements, bytes;
    uint8_t *out;
    double *errors;
    int64_t bad[WM_MAX_PARTS]; /* for each thread, the element that is not finite */
} work;

/* The sum of the squares of n differences, in eight parts, which compilers add side by side. */
static double error_of(const float *x, const float *values, uint64_t n) {
    double sums[8] = {0};
    for (uint64_t i = 0; i < n; i += 8)
        for (int k = 0; k < 8; k++) {
            const double difference = (double)x[i + (uint64_t)k] - (double)values[i + (uint64_t)k];
            sums[k] += difference * difference;
        }
    return sum_of_eight(sums);
}

static int encode_checked(void *context, int thread, uint64_t begin, uint64_t end) {
    work *w = context;
    const wm_variants *use = wm_variants_in_use();
    const uint64_t first = begin * w->elements;
    const int64_t bad = wm_first_not_finite(w->x + first, (end - begin) * w->elements);
    if (bad >= 0) return w->bad[thread] = (int64_t)first + bad, -1;
    use->ggml_quantize(w->type, w->x + begin * w->elements, end - begin, w->out + begin * w->bytes);
    const uint64_t together = WM_GGML_MOST / w->elements; /* blocks that are decoded at a time */
    for (uint64_t b = begin; w->errors && b < end; b += together) {
        float values[WM_GGML_MOST];
        const uint64_t n = end - b < together ? end - b : together;
        use->ggml(w->type, w->out + b * w->bytes, n, values, WM_CACHED);
        for (uint64_t i = 0; i < n; i++)
            w->errors[b + i] = error_of(w->x + (b + i) * w->elements, values + i * w->elements, w->elements);
    }
    return 0;
}

int64_t wm_ggml_encode(const float *x, uint64_t n, int type, uint8_t *out, uint64_t out_size, double *errors, uint64_t n_errors,
                       int threads) {
    if (!wm_ggml_encodes(type)) return -2;
    const uint64_t elements = (uint64_t)wm_ggml_elements(type), bytes = (uint64_t)wm_ggml_bytes(type), blocks = n / elements;
    if (n % elements || n > (uint64_t)1 << 56 || out_size != blocks * bytes || (errors && n_errors != blocks)) return -2;
    work w = {.x = x, .type = type, .elements = elements, .bytes = bytes, .out = out, .errors = errors};
    const int failed = wm_run_pieces(encode_checked, &w, blocks, ELEMENTS_OF_A_PIECE / elements, threads);
    return failed < 0 ? -1 : w.bad[failed];
}
