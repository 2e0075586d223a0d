/* Compares every CRC-32, FNV-1a, half, block and row kernel of this architecture with the definitions, bit by bit. Needs no
 * Python, so that it can be cross-compiled and run under an emulator, or built with sanitisers. Inputs end with their own
 * allocation, where a sanitiser sees a read too far.
 */
#define _POSIX_C_SOURCE 200809L /* posix_memalign */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "quant/ggml.h"
#include "quant/groups_value.h"
#include "quant/intblock.h"

static int failures;

/* CRC-32 of test_quantize's output, on every architecture; a better search changes it. */
static const uint32_t QUANTIZED_CRC = 1320968063u;

static void check(int ok, const char *what, uint64_t detail) {
    if (ok) return;
    failures++;
    printf("FAILED %s (%llu)\n", what, (unsigned long long)detail);
}

static uint32_t crc_by_definition(uint32_t state, const uint8_t *data, size_t len) {
    for (size_t i = 0; i < len; i++) {
        state ^= data[i];
        for (int bit = 0; bit < 8; bit++) state = state & 1 ? state >> 1 ^ 0xEDB88320u : state >> 1;
    }
    return state;
}

static uint32_t fnv_by_definition(const uint8_t *data, size_t len) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < len; i++) hash = (uint32_t)((uint64_t)(hash ^ data[i]) * 16777619u);
    return hash;
}

static uint32_t next_random(void) { /* xorshift32: the same sequence everywhere */
    static uint32_t x = 0x9E3779B9;
    x ^= x << 13;
    x ^= x >> 17;
    return x ^= x << 5;
}

static void *allocate(size_t size) {
    void *memory = malloc(size ? size : 1);
    if (!memory) exit(2);
    return memory;
}

static void *allocate_lines(size_t size) {
    void *memory = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!memory) exit(2);
    return memory;
}

static uint8_t *random_bytes(size_t len) {
    uint8_t *bytes = allocate(len);
    for (size_t i = 0; i < len; i++) bytes[i] = (uint8_t)(next_random() >> 11);
    return bytes;
}

static void test_crc(const char *name, wm_crc32_fn *crc32) {
    /* Past 1100 the lengths lie around the ends of several steps, 512 bytes at most, and of blocks of 3 * 1024. */
    static const size_t more[] = {1535, 1536, 2047, 2048, 2049, 3071, 3072, 3073, 3455, 3456, 4096, 6144, 6145, 16384, 65535};
    for (size_t i = 0; i < 1100 + sizeof more / sizeof *more; i++) {
        size_t len = i < 1100 ? i : more[i - 1100];
        uint8_t *exact = random_bytes(len);
        uint32_t state = next_random();
        check(crc32(state, exact, len) == crc_by_definition(state, exact, len), name, len);
        for (size_t offset = 1; offset < 17 && offset < len; offset++)
            check(crc32(state, exact + offset, len - offset) == crc_by_definition(state, exact + offset, len - offset), name,
                  len);
        free(exact);
    }
}

static void test_combine(void) {
    for (int i = 0; i < 200; i++) {
        size_t len = next_random() % 3000, split = len ? next_random() % len : 0;
        uint8_t *data = random_bytes(len);
        uint32_t whole = wm_crc32(0, data, len, 1), first = wm_crc32(0, data, split, 1);
        check(wm_crc32_combine(first, wm_crc32(0, data + split, len - split, 1), len - split) == whole, "combine", len);
        free(data);
    }
    size_t len = (17u << 20) + 123; /* of which each thread takes four mebibytes at least */
    uint8_t *data = random_bytes(len);
    uint32_t crc = wm_crc32(7, data, len, 1);
    for (int threads = 0; threads <= 6; threads++) check(wm_crc32(7, data, len, threads) == crc, "threads", (uint64_t)threads);
    free(data);
}

static void test_fnv(const char *name, wm_fnv1a32_fn *fnv1a32) {
    for (uint32_t n = 0; n < 300; n += 1 + n / 7) {
        for (uint32_t kind = 0; kind < 4; kind++) {
            for (uint32_t gap = 0; gap <= 4; gap += 2) {
                static const uint32_t longest[] = {1, 8, 80, 3000};
                uint32_t *lengths = allocate((n + 1) * sizeof *lengths), *out = allocate((n + 1) * sizeof *out);
                size_t total = 0;
                for (uint32_t i = 0; i < n; i++) {
                    lengths[i] = kind == 3 && i % 9 ? i % 5 : next_random() % (longest[kind] + 1);
                    total += lengths[i] + (i + 1 < n ? gap : 0);
                }
                uint8_t *blob = random_bytes(total);
                fnv1a32(blob, blob + total, lengths, gap, n, out);
                size_t at = 0;
                for (uint32_t i = 0; i < n; i++) {
                    check(out[i] == fnv_by_definition(blob + at, lengths[i]), name, n);
                    at += lengths[i] + gap;
                }
                free(blob), free(lengths), free(out);
            }
        }
    }
}

/* By powers of two, in double, which holds every value exactly; a NaN by its bits. */
static uint32_t f16_by_definition(uint32_t half) {
    uint32_t exponent = half >> 10 & 31, fraction = half & 1023, sign = half >> 15 << 31;
    if (exponent == 31) return sign | 0x7F800000u | fraction << 13 | (fraction ? 0x00400000u : 0);
    double value = exponent ? 1024 + fraction : fraction;
    for (uint32_t i = 1; i < exponent; i++) value *= 2;
    float single = (float)(value / 16777216);
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    return sign | bits;
}

static uint32_t bf16_by_definition(uint32_t half) { return half << 16; }

/* n halves: the first is `first`, and each is 40503 more than the last, an odd step that reaches all patterns. Input and output
 * end with their allocations; the input begins `shift` bytes into its own, the output `skew` floats. */
static void test_halves(const char *name, wm_half_fn *convert, uint32_t (*definition)(uint32_t), uint32_t first, size_t n,
                        size_t shift, size_t skew, int storing) {
    size_t in_len = shift + 2 * n, out_len = (skew + n) * sizeof(float);
    uint8_t *in = allocate(in_len);
    float *out = allocate(out_len);
    memset(out, 0xA5, out_len);
    for (size_t i = 0; i < n; i++) {
        uint32_t half = (first + (uint32_t)i * 40503u) & 0xFFFF;
        in[shift + 2 * i] = (uint8_t)half;
        in[shift + 2 * i + 1] = (uint8_t)(half >> 8);
    }
    convert(in + shift, out + skew, n, storing);
    for (size_t i = 0; i < skew + n; i++) {
        uint32_t bits;
        memcpy(&bits, out + i, sizeof bits);
        check(bits == (i < skew ? 0xA5A5A5A5u : definition((first + (uint32_t)(i - skew) * 40503u) & 0xFFFF)), name, i);
    }
    free(in), free(out);
}

static void test_half(const char *name, wm_half_fn *convert, uint32_t (*definition)(uint32_t)) {
    for (int storing = WM_CACHED; storing <= WM_FETCHED; storing++) {
        test_halves(name, convert, definition, 0, 65536, 0, 0, storing);
        for (size_t n = 0; n <= 300; n++) /* shift and skew take every value beside many lengths */
            test_halves(name, convert, definition, next_random(), n, n % 5, n * 7 % 16, storing);
        for (size_t shift = 0; shift < 64; shift++)
            for (size_t skew = 0; skew < 16; skew++)
                test_halves(name, convert, definition, next_random(), 140 + shift, shift, skew, storing);
    }
}

/* The entry points, at sizes that are divided among threads. */
static void test_half_threads(void) {
    enum { N = (3 << 20) + 77 };
    uint8_t *in = random_bytes(2 * (size_t)N);
    float *one = allocate(N * sizeof *one), *many = allocate(N * sizeof *many);
    for (int threads = -1; threads <= 5; threads++) {
        wm_f16_to_f32(in, one, N, 1);
        wm_f16_to_f32(in, many, N, threads);
        check(!memcmp(one, many, N * sizeof *one), "f16_to_f32 threads", (uint64_t)threads);
        wm_bf16_to_f32(in, one, N, 1);
        wm_bf16_to_f32(in, many, N, threads);
        check(!memcmp(one, many, N * sizeof *one), "bf16_to_f32 threads", (uint64_t)threads);
    }
    free(in), free(one), free(many);
}

/* Field k of a stream, bit by bit. */
static int field_by_definition(const uint8_t *codes, uint64_t k, int bits) {
    int value = 0;
    for (int i = 0; i < bits; i++) {
        uint64_t bit = k * (uint64_t)bits + (uint64_t)i;
        value |= (codes[bit / 8] >> bit % 8 & 1) << i;
    }
    return value >> (bits - 1) ? value - (1 << bits) : value;
}

/* Random runs; their data end where an allocation ends, and so does the output, of float16 or of float32, which begins `skew`
 * bytes into a line. Every eighth scale is NaN or infinite. */
static void test_runs(const char *name, wm_intblock_fn *decode, int bits, int scale_type, uint64_t runs, uint64_t len, int half,
                      int storing, uint64_t skew) {
    const uint64_t scale = scale_bytes(scale_type), stride = scale + code_bytes(bits, len), n = runs * len;
    uint8_t *data = random_bytes(runs * stride);
    const uint64_t item = value_bytes(half);
    void *memory;
    if (posix_memalign(&memory, 64, skew + n * item)) exit(2);
    uint8_t *const place = (uint8_t *)memory + skew;
    memset(memory, 0xA5, skew);
    for (uint64_t r = 0; r < runs; r++)
        if (scale_type == WM_SCALE_FP16 && r % 8 == 3) data[r * stride + 1] |= 0x7C;
    wm_runs w = {.scales = data,
                 .codes = data + scale,
                 .end = data + runs * stride,
                 .scale_stride = stride,
                 .stride = stride,
                 .runs = runs,
                 .len = len,
                 .scale_type = scale_type,
                 .bits = bits,
                 .half = half,
                 .storing = storing};
    decode(&w, place);
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *run = data + i / len * stride;
        const float expected = load_scale(run, scale_type) * (float)field_by_definition(run + scale, i % len, bits);
        const int nan = expected != expected;
        if (half)
            check(load_le16(place + 2 * i) == (nan ? 0x7E00 : narrow_float(expected)), name, i);
        else
            check(load_le32(place + 4 * i) == (nan ? 0x7FC00000 : bits_of_float(expected)), name, i);
    }
    for (uint64_t i = 0; i < skew; i++) check(((uint8_t *)memory)[i] == 0xA5, name, i);
    free(data), free(memory);
}

/* Blocks of random kinds, odd scales among them, in allocations of exactly their size: a variant decodes blocks right, stops
 * only where it may, and continues after a skipped block. */
static void test_mixed(const char *name, wm_mixed_fn *decode) {
    enum { BLOCKS = 150, LONGEST = 72 };
    uint64_t decoded = 0;
    for (uint64_t len = 8; len <= LONGEST; len += 8)
        for (int type = 0; type < 4; type++) {
            const int scale_type = type % 2, half = type / 2;
            uint8_t mask[(BLOCKS + 3) / 4] = {0};
            uint64_t scale_at[BLOCKS + 1] = {0}, codes_at[BLOCKS + 1] = {0};
            for (int b = 0; b < BLOCKS; b++) {
                const int kind = (int)(next_random() % 3);
                mask[b / 4] = (uint8_t)(mask[b / 4] | kind << 2 * (b % 4));
                scale_at[b + 1] = scale_at[b] + (kind == WM_HALF ? 0 : scale_bytes(scale_type));
                codes_at[b + 1] = codes_at[b] + (kind == WM_HALF ? 2 * len : code_bytes(4 + kind, len));
            }
            const uint64_t scales = scale_at[BLOCKS], size = scales + codes_at[BLOCKS], item = value_bytes(half);
            uint8_t *data = random_bytes(size), *out = allocate_lines(BLOCKS * len * item);
            wm_mixed m = {.mask = mask,
                          .scales = data,
                          .codes = data + scales,
                          .scales_end = data + scales,
                          .end = data + size,
                          .last = BLOCKS,
                          .len = len,
                          .scale_type = scale_type,
                          .half = half};
            while (m.next < BLOCKS) {
                const uint64_t from = m.next, done = decode(&m, out + from * len * item);
                decoded += done;
                check(m.next == from + done && m.scales == data + scale_at[m.next] &&
                          m.codes == data + scales + codes_at[m.next],
                      name, from);
                for (uint64_t b = from; b < m.next; b++)
                    for (uint64_t i = 0; i < len; i++) {
                        const int kind = wm_kind_at(mask, b);
                        const uint8_t *codes = data + scales + codes_at[b], *at = out + (b * len + i) * item;
                        float value = kind == WM_HALF ? widen_half(load_le16(codes + 2 * i))
                                                      : load_scale(data + scale_at[b], scale_type) *
                                                            (float)field_by_definition(codes, i, 4 + kind);
                        check(half ? load_le16(at) == narrow_float(value) : load_le32(at) == bits_of_float(value), name, b);
                    }
                if (m.next == BLOCKS) break;
                m.next++;
                m.scales = data + scale_at[m.next], m.codes = data + scales + codes_at[m.next];
            }
            free(data), free(out);
        }
    check(decode == mixed_portable ? decoded == 0 : decoded > 9 * 4 * BLOCKS * 3 / 4, name, decoded);
}

static void test_intblock(const char *name, wm_intblock_fn *decode) {
    for (int bits = 4; bits <= 8; bits += bits == 5 ? 3 : 1)
        for (int type = 0; type < 4; type++) /* of the scale, and of the output */
            for (uint64_t len = 1; len < 150; len += len < 40 ? 1 : 7)
                for (uint64_t runs = 1; runs < 20; runs += 6) {
                    test_runs(name, decode, bits, type % 2, runs, len, type / 2, len % 2 ? WM_FETCHED : WM_CACHED,
                              next_random() % 16 * 4);
                    /* Streamed to every possible place of an element. */
                    for (uint64_t skew = 0; skew < 64; skew += value_bytes(type / 2))
                        if (len % 8 == 0 || skew % 16 == 0)
                            test_runs(name, decode, bits, type % 2, runs, len, type / 2, 1, skew);
                }
}

/* Every finite float16, the points half-way between two, and their neighbours, are rounded as arithmetic in double says. */
static void test_narrow(const char *name, wm_narrow_fn *narrow) {
    for (uint32_t half = 0; half < 0x7BFF; half++) {
        const float low = widen_half(half), high = widen_half(half + 1), middle = (low + high) / 2; /* all exact */
        const uint32_t m = bits_of_float(middle);
        const float values[9] = {low,  middle,  float_of_bits(m - 1),  float_of_bits(m + 1),
                                 -low, -middle, -float_of_bits(m - 1), -float_of_bits(m + 1),
                                 high};
        const uint32_t up = half + 1, even = half % 2 ? up : half;
        const uint32_t wanted[9] = {half, even, half, up, half | 0x8000, even | 0x8000, half | 0x8000, up | 0x8000, up};
        uint8_t out[18];
        narrow(values, 9, out);
        for (int i = 0; i < 9; i++) check(load_le16(out + 2 * i) == wanted[i], name, half);
    }
    const float odd[] = {65519.99f, 65520.0f, 1e38f, float_of_bits(0x7F800000), float_of_bits(0x7FC00000), 1e-45f, 0, -0.0f};
    const uint16_t wanted[] = {0x7BFF, 0x7C00, 0x7C00, 0x7C00, 0x7E00, 0, 0, 0x8000};
    uint8_t out[16];
    narrow(odd, 8, out);
    for (int i = 0; i < 8; i++) check(load_le16(out + 2 * i) == wanted[i], name, (uint64_t)i);
}

/* The way through the buffer and past the caches, wherever the output lies; any range by any number of threads. */
static void test_blocks(void) {
    enum { N = 10000, SIZE = 24 };
    const uint64_t size = (uint64_t)wm_blocks_size(5, WM_SCALE_FP16, SIZE, N);
    uint8_t *data = random_bytes(size), *to = allocate(N * sizeof(float) + 64);
    uint8_t *halves = allocate(N * 2);
    float *whole = allocate(N * sizeof(float));
    check(wm_blocks_decode(data, size, 5, WM_SCALE_FP16, SIZE, N, 0, whole, N, 0, 1) == 0, "blocks", 0);
    check(wm_blocks_decode(data, size, 5, WM_SCALE_FP16, SIZE, N, 0, halves, N, 1, 1) == 0, "blocks", 1);
    for (uint64_t shift = 0; shift < 64; shift += 2)
        for (int half = shift % 4 != 0; half < 2; half++) {
            wm_sink sink = {to + shift, half, 1};
            wm_runs w = {.scales = data,
                         .codes = data + 2,
                         .end = data + size,
                         .scale_stride = 17,
                         .stride = 17,
                         .runs = N / SIZE,
                         .len = SIZE,
                         .scale_type = WM_SCALE_FP16,
                         .bits = 5};
            wm_decode_runs(&sink, &w);
            const uint8_t *expected = half ? halves : (const uint8_t *)whole;
            check(!memcmp(to + shift, expected, N / SIZE * SIZE * value_bytes(half)), "streamed blocks", shift);
        }
    for (uint64_t first = 0; first < N; first += 997) {
        check(wm_blocks_decode(data, size, 5, WM_SCALE_FP16, SIZE, N, first, to, N - first, 0, 3) == 0, "range", first);
        check(!memcmp(to, whole + first, (N - first) * sizeof(float)), "range", first);
    }
    check(wm_blocks_decode(data, size - 1, 5, WM_SCALE_FP16, SIZE, N, 0, whole, N, 0, 1) == -1, "size", 0);
    check(wm_blocks_decode(data, size, 5, WM_SCALE_FP16, SIZE, N, 1, whole, N, 0, 1) == -1, "range", 1);
    free(data), free(to), free(halves), free(whole);
}

/* Quantises floats in memory to all the bytes of wm_blocks_size; returns whether that is done. */
static int encode(const float *x, uint64_t n, wm_blocks blocks, uint8_t *out, uint64_t size, int threads) {
    const wm_numbers numbers = {.memory = (const uint8_t *)x, .size = n * sizeof *x, .kind = WM_FLOAT32, .n = n};
    const uint64_t room_size = wm_quantize_room(&numbers, &blocks, threads);
    uint8_t *room = allocate_lines(room_size);
    double sums[2];
    wm_outcome outcome = {WM_DONE, 0, 0};
    if (!blocks.block_size) {
        wm_search_scale(&numbers, &blocks, room, room_size, &outcome);
        const uint32_t scale = blocks.scale_type == WM_SCALE_FP16 ? narrow_float(blocks.scale) : bits_of_float(blocks.scale);
        for (uint64_t i = 0; i < scale_bytes(blocks.scale_type); i++, size--) *out++ = (uint8_t)(scale >> 8 * i);
    }
    if (outcome.what == WM_DONE)
        wm_quantize_numbers(&numbers, &blocks, out, size, sums, room, room_size, NULL, threads, &outcome);
    free(room);
    return outcome.what == WM_DONE;
}

/* Floats of many magnitudes, the same on every architecture, must be quantised to the same bytes. */
static void test_quantize(void) {
    enum { N = 9001, SIZE = 40 };
    uint32_t seed = 1, crc = 0;
    float *x = allocate(N * sizeof *x), *back = allocate(N * sizeof *back);
    for (int i = 0; i < N; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed * 0x1p-30f * (i / 1000 % 3 == 1 ? 0x1p-120f : i / 1000 % 3 == 2 ? 0x1p100f : 1.0f);
    }
    for (int bits = 4; bits <= 8; bits += bits == 5 ? 3 : 1)
        for (int scale_type = 0; scale_type < 2; scale_type++)
            for (uint64_t size = 0; size <= SIZE; size += SIZE) {
                const uint64_t bytes = (uint64_t)wm_blocks_size(bits, scale_type, size, N);
                uint8_t *data = allocate(bytes);
                check(encode(x, N, (wm_blocks){-1, bits, scale_type, size, 0}, data, bytes, 2), "encode", bytes);
                check(wm_blocks_decode(data, bytes, bits, scale_type, size, N, 0, back, N, 0, 1) == 0, "decode", bytes);
                crc = wm_crc32(crc, data, bytes, 1);
                free(data);
            }
    check(crc == QUANTIZED_CRC, "quantised bytes", crc);

    uint64_t plan[64];
    const uint64_t n_room = wm_adaptive_room(1, SIZE, N), n_plan = wm_adaptive_plan_size(SIZE, N);
    uint64_t *room = allocate(n_room * sizeof *room);
    if (!room || n_plan > sizeof plan / sizeof *plan) exit(2);
    const int64_t size = wm_adaptive_choose(x, N, 1, SIZE, N, room, n_room, 2);
    const uint64_t total = (uint64_t)size;
    check(size > 0 && wm_adaptive_choose(x, N, 1, SIZE, N / 2, room, n_room, 2) == -1, "adaptive", total);
    uint8_t *packed = allocate(total);
    if (!packed || wm_adaptive_choose(x, N, 1, SIZE, N, room, n_room, 1) != size) exit(2);
    check(wm_adaptive_encode(x, N, 1, SIZE, room, n_room, packed, total - 1) == -1, "adaptive", total);
    check(wm_adaptive_encode(x, N, 1, SIZE, room, n_room, packed, total) == 0, "adaptive", total);
    free(room);
    check(wm_adaptive_check(packed, total, 1, SIZE, N, plan, n_plan, NULL) == 0, "adaptive", plan[0]);
    for (uint64_t first = 0; first < N; first += 1234)
        check(wm_adaptive_decode(packed, total, 1, SIZE, N, plan, n_plan, first, back, N - first, first % 2 == 1, 2) == 0,
              "adaptive", first);
    free(packed), free(back), free(x);
}

static float next_float(void) { return (float)(int32_t)next_random() * 0x1p-30f; }

/* A number that is not NaN. */
static void check_rounded(const uint8_t *found, float value, int type, const char *name, uint64_t at) {
    const uint32_t all = bits_of_float(value);
    uint16_t half = narrow_float(value);
    if (type == AS_BFLOAT16) half = (uint16_t)((all + 0x7FFF + (all >> 16 & 1)) >> 16);
    const void *wanted = type == AS_FLOAT32 ? (const void *)&value : (const void *)&half;
    check(!memcmp(found, wanted, coded_bytes(type)), name, at);
}

/* Groups of codes end to end, and of nibbles in AWQ's order, in allocations of exactly their size: every type, whole and
 * partial tiles. A scale is any bits but those of a NaN, whose sign another order of operands may change. */
static void test_groups(const char *name, wm_groups_fn *decode) {
    static const struct {
        uint64_t rows, columns;
        int bits, packing;
    } cases[] = {{8, 32, 4, ALONG_ROWS},      {264, 45, 4, ALONG_ROWS},    {136, 64, 4, ALONG_COLUMNS},
                 {296, 96, 3, ALONG_COLUMNS}, {128, 48, 2, ALONG_COLUMNS}, {264, 36, 8, ALONG_COLUMNS},
                 {136, 64, 5, ALONG_COLUMNS}, {128, 32, 1, ALONG_COLUMNS}};
    static const unsigned nibble[] = {0, 4, 1, 5, 2, 6, 3, 7};
    static const float values[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    enum { GROUPS = 3 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int way = 0; way < 6; way++) {
            const int type = way % 3, in_runs = way / 3 && cases[i].bits <= 4;
            const uint64_t rows = cases[i].rows, columns = cases[i].columns, bits = (uint64_t)cases[i].bits;
            const uint64_t bytes = type == AS_FLOAT32 ? 4 : 2, size = rows * columns * bits / 8;
            uint8_t *words = random_bytes(size), *out = allocate(rows * columns * bytes);
            uint32_t *group = allocate(columns * sizeof *group);
            float *scales = allocate(GROUPS * rows * sizeof *scales), *zeros = allocate(GROUPS * rows * sizeof *zeros);
            for (uint64_t c = 0; c < columns; c++) group[c] = in_runs && c % RUN ? group[c - 1] : next_random() % GROUPS;
            for (uint64_t k = 0; k < GROUPS * rows; k++) {
                const uint32_t any = next_random();
                scales[k] = float_of_bits((any & 0x7F800000) == 0x7F800000 ? any & 0x807FFFFF : any);
                zeros[k] = (float)(next_random() % 16);
            }
            const wm_grouped w = {words,   group,     scales,           zeros, values,  out, rows,
                                  columns, (int)bits, cases[i].packing, type,  in_runs, 0};
            decode(&w, 0, rows);
            for (uint64_t o = 0; o < rows; o++)
                for (uint64_t c = 0; c < columns; c++) {
                    uint32_t q = 0;
                    for (uint64_t b = 0; b < bits; b++) { /* bit by bit */
                        uint64_t bit = c * bits + b, word = bit / 32 * rows + o;
                        if (cases[i].packing == ALONG_ROWS) bit = 4 * nibble[o % 8] + b, word = c * (rows / 8) + o / 8;
                        q |= (uint32_t)(words[4 * word + bit % 32 / 8] >> bit % 8 & 1) << b;
                    }
                    const float value = scales[group[c] * rows + o] * ((float)q - zeros[group[c] * rows + o]);
                    check_rounded(out + bytes * (o * columns + c), value, type, name, o * columns + c);
                }
            free(words), free(out), free(group), free(scales), free(zeros);
        }
}

/* Rows of codes in blocks, in allocations of exactly their size: numbered tables and others, both orders of halves, every width. */
static void test_lookup(const char *name, wm_lookup_fn *look_up) {
    static const uint64_t widths[] = {1, 2, 7, 16, 31, 32, 33, 64, 80, 200};
    for (size_t i = 0; i < sizeof widths / sizeof *widths * 16; i++) {
        const uint64_t width = widths[i / 16], n = 3 * width + i % 3 * width / 2 + 1, blocks = ceil_div(n, width);
        const int bits = i & 1 ? 4 : i / 16 % 2 ? 6 : 8, bytes = i & 2 ? 4 : 2, high_first = i & 1 && i & 8;
        const uint64_t rows = 1 + i % 5 / 2, apart = bits == 4 ? (n + 1) / 2 : n, out_apart = n * (uint64_t)bytes;
        uint8_t *codes = random_bytes(rows * apart), *which = i & 4 ? random_bytes(blocks) : NULL;
        uint8_t *tables = random_bytes((uint64_t)bytes << bits << 8), *out = allocate(rows * out_apart);
        const wm_looked looked = {codes, tables, which,      out, n,    width, rows,           apart, out_apart,
                                  bits,  bytes,  high_first, 0,   NULL, NULL,  WM_ANY_NUMBERS, 0};
        for (uint64_t at = 0; bits > 4 && at < rows * n; at++) codes[at] &= (1u << bits) - 1;
        look_up(&looked);
        for (uint64_t at = 0; at < rows * n; at++) {
            const uint64_t c = at % n, block = c / width, table = which ? which[block] : block;
            uint64_t code = codes[at / n * apart + (bits == 4 ? c / 2 : c)];
            if (bits == 4) code = (c % 2 == 1) != high_first ? code / 16 : code % 16;
            const uint8_t *wanted = tables + ((table << bits) + code) * (uint64_t)bytes;
            check(!memcmp(out + at * (uint64_t)bytes, wanted, (size_t)bytes), name, at);
        }
        free(codes), free(which), free(tables), free(out);
    }
}

/* Integers and float8 numbers, all 256 of them, times scales of every kind: as in tables, whether they are looked up or computed. */
static void test_numbers(const char *name, wm_lookup_fn *look_up) {
    enum { BLOCKS = 200, WIDTH = 300, N = BLOCKS * WIDTH, BOTH = 2 };
    static const uint32_t scale_bits[] = {0x7FC00123, 0xFF800000, 0x7F7FFFFF, 0x7B800000,
                                          0x00000001, 0x80400000, 0x80000000, 0x477FE000};
    for (int i = 0; i < 12; i++) {
        const int numbers = i % 2 ? WM_E4M3 : WM_INTEGERS, type = i / 2 % 2 ? AS_FLOAT16 : AS_BFLOAT16, way = i / 4;
        uint8_t *codes = random_bytes(BOTH * N), *which = way == 1 ? random_bytes(BLOCKS) : NULL;
        uint8_t *tables = allocate(2 * 256 * 256), *out = allocate(2 * BOTH * N);
        float values[256], scales[256], zeros[256];
        for (unsigned q = 0; q < 256; q++) {
            const float least = 0x1p-9f, fraction = (float)(q & 7); /* by the definition of the format */
            const int exponent = (int)(q >> 3 & 15);
            float number = (q & 0x7F) == 0x7F ? float_of_bits(0x7FC00000)
                           : exponent         ? (8 + fraction) * least
                                              : fraction * least;
            for (int e = 1; e < exponent; e++) number *= 2;
            values[q] =
                numbers == WM_INTEGERS ? (float)(int8_t)(uint8_t)q : float_of_bits(bits_of_float(number) | (q & 0x80) << 24);
            scales[q] = float_of_bits(q < 8 ? scale_bits[q] : next_random());
            zeros[q] = q % 16 ? (float)(int)(next_random() % 256) - 128 : float_of_bits(0x7F800000);
        }
        for (unsigned q = 64; q < 256; q++) scales[q] = (float)(next_random() % 1000) / 3e5f;
        const wm_tabled made = {values, scales, way == 2 ? zeros : NULL, NULL, tables, 256, 1, 256, type, 1};
        tables_portable(&made);
        const wm_looked rows = {
            codes, tables, which, out, N, WIDTH, BOTH, N, 2 * N, 8, 2, 0, 0, scales, way == 2 ? zeros : NULL, numbers, type};
        look_up(&rows);
        for (uint64_t c = 0; c < BOTH * N; c++) {
            const uint64_t table = which ? which[c % N / WIDTH] : c % N / WIDTH;
            check(!memcmp(out + 2 * c, tables + 2 * (256 * table + codes[c]), 2), name, c);
        }
        free(codes), free(which), free(tables), free(out);
    }
}

/* The tables of some blocks, in every type, with zero points, biases and without, and with a second factor. */
static void test_tables(const char *name, wm_tables_fn *make) {
    enum { BLOCKS = 5, CODES = 48, STEP = 3 };
    float values[CODES], scales[BLOCKS * STEP], zeros[BLOCKS * STEP];
    for (size_t i = 0; i < 96; i++) {
        const int type = (int)(i % 3), zeroed = i / 3 % 2, biased = i / 12 % 2;
        const uint64_t bytes = coded_bytes(type);
        const float factor = i / 6 % 2 ? 0.3f : 1;
        for (size_t q = 0; q < CODES; q++) values[q] = (float)(next_random() % 256) - 128;
        for (size_t k = 0; k < BLOCKS * STEP; k++) {
            const uint32_t any = next_random();
            scales[k] = float_of_bits((any & 0x7F800000) == 0x7F800000 ? any & 0x807FFFFF : any);
            zeros[k] = (float)(next_random() % 16);
        }
        uint8_t *out = allocate(BLOCKS * CODES * bytes);
        const wm_tabled tables = {values, scales, zeroed ? zeros : NULL, biased ? values : NULL, out, BLOCKS, STEP, CODES,
                                  type,   factor};
        make(&tables);
        for (uint64_t k = 0; k < BLOCKS * CODES; k++) {
            const uint64_t at = k / CODES * STEP;
            float value = (values[k % CODES] - (zeroed ? zeros[at] : 0)) * scales[at] * factor;
            if (biased) value += values[at];
            check_rounded(out + bytes * k, value, type, name, k);
        }
        free(out);
    }
}

/* Products with a square matrix of every size up to 40, of one vector and of several, in allocations of exactly their size. */
static void test_products(const char *name, wm_combine_rows_fn *combine) {
    for (uint64_t dims = 1; dims <= 40; dims++)
        for (unsigned count = 1; count <= WM_PQ_TOGETHER; count += WM_PQ_TOGETHER - 1) {
            float *matrix = allocate(dims * dims * sizeof *matrix), *x = allocate(count * dims * sizeof *x);
            float *sums = allocate(count * dims * sizeof *sums);
            for (uint64_t i = 0; i < dims * dims; i++) matrix[i] = next_float();
            for (uint64_t i = 0; i < count * dims; i++) x[i] = next_float();
            combine(matrix, x, count, dims, sums);
            for (uint64_t at = 0; at < count * dims; at++) {
                float sum = 0;
                for (uint64_t k = 0; k < dims; k++) {
                    const float product = x[at / dims * dims + k] * matrix[k * dims + at % dims];
                    sum += product;
                }
                check(memcmp(&sum, &sums[at], sizeof sum) == 0, name, dims);
            }
            free(matrix), free(x), free(sums);
        }
}

/* Random bytes as words of every length up to 40, and their n-grams' rows summed, in allocations of exactly their size. */
static void test_words(void) {
    enum { ROWS = 16, DIMS = 19 };
    float matrix[ROWS * DIMS], out[DIMS], norm;
    for (int i = 0; i < ROWS * DIMS; i++) matrix[i] = next_float();
    for (int kind = WM_SUBWORDS_BUCKET; kind <= WM_SUBWORDS_FASTTEXT; kind++)
        for (uint32_t len = 0; len <= 40; len++) {
            const wm_subwords subwords = {.kind = kind, .min_n = 1 + len % 3, .max_n = 1 + len % 9, .size = ROWS};
            const uint32_t bounds[2] = {0, len};
            uint64_t row_bounds[2];
            uint8_t *text = allocate(len);
            for (uint32_t i = 0; i < len; i++) text[i] = (uint8_t)next_random();
            const int64_t total = wm_subword_rows(&subwords, text, len, bounds, 1, NULL, 0, row_bounds);
            check((total == -1) == (subwords.max_n < subwords.min_n), "range of n-grams", len);
            if (total >= 0) {
                uint64_t *rows = allocate((uint64_t)total * sizeof *rows + 1);
                check(wm_subword_rows(&subwords, text, len, bounds, 1, rows, (uint64_t)total, row_bounds) == total, "rows",
                      len);
                check(wm_unit_sums((const uint8_t *)matrix, sizeof matrix, DIMS, rows, (uint64_t)total, row_bounds, NULL, 1,
                                   out, 1, &norm, 1) == -1,
                      "sums", len);
                check((norm > 0) == (total > 0), "norm", len);
                free(rows);
            }
            free(text);
        }
}

/* The work of every thread: kernels over shared data, its own index over shared strings, and large memory taken and given
 * back. */
enum { SHARED = 1 << 16, THREADS = 4, ROUNDS = 30 };
static uint8_t shared[SHARED];
static uint32_t shared_bounds[SHARED / 16 + 1];

static void *work_beside_others(void *arg) {
    uint32_t *slots = allocate(8192 * sizeof *slots);
    float *floats = allocate(SHARED / 2 * sizeof *floats);
    uint64_t *wrong = arg;
    const uint32_t crc = crc_by_definition(0xFFFFFFFF, shared, SHARED) ^ 0xFFFFFFFF;
    for (int round = 0; round < ROUNDS; round++) {
        *wrong += wm_crc32(0, shared, SHARED, 2) != crc;
        *wrong += wm_f16_to_f32(shared, floats, SHARED / 2, 2) != 0;
        *wrong += wm_index_build(shared, SHARED, shared_bounds, SHARED / 16, 0, slots, 8192, NULL, NULL) < 0;
        const wm_index index = {shared, SHARED, shared_bounds, SHARED / 16, 0, slots, 8192};
        *wrong += wm_index_lookup(&index, shared + 160, 16) != 10;
        uint8_t *memory = wm_memory_new((uint64_t)(1 + round % 3) << 21);
        if (memory) memory[0] = memory[(1 << 21) - 1] = 1;
        wm_memory_free(memory);
    }
    free(slots), free(floats);
    return NULL;
}

/* Threads that work beside one another, while another chooses one instruction set after the other. */
static void test_concurrency(void) {
    pthread_t threads[THREADS];
    uint64_t wrong[THREADS] = {0};
    for (size_t i = 0; i < SHARED; i++) shared[i] = (uint8_t)(next_random() >> 11);
    for (uint32_t i = 0; i <= SHARED / 16; i++) shared_bounds[i] = 16 * i;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work_beside_others, &wrong[i])) exit(2);
    for (int round = 0; round < 50 * ROUNDS; round++)
        if (wm_isa_select(round % 5) == 0) check(wm_variant("crc32") != NULL, "variant", (uint64_t)round);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        check(wrong[i] == 0, "beside others", wrong[i]);
    }
}

/* Random blocks of every type, every fifth perhaps with odd scales, in an allocation of exactly their size: the bits of the
 * portable variant, which tests in Python compare with definitions. */
static void test_ggml(const char *name, wm_ggml_fn *decode) {
    enum { BLOCKS = 60 };
    for (int type = 0; type < 64; type++) {
        const uint64_t elements = (uint64_t)wm_ggml_elements(type), bytes = (uint64_t)wm_ggml_bytes(type);
        if (!elements) continue;
        uint8_t *data = random_bytes(BLOCKS * bytes);
        float *found = allocate_lines(BLOCKS * elements * sizeof *found),
              *expected = allocate(BLOCKS * elements * sizeof *found);
        decode(type, data, BLOCKS, found, type % 2 ? WM_FETCHED : WM_CACHED);
        ggml_portable(type, data, BLOCKS, expected, WM_CACHED);
        for (uint64_t i = 0; i < BLOCKS * elements; i++)
            check(bits_of_float(found[i]) == bits_of_float(expected[i]), name, (uint64_t)type << 32 | i);
        free(data), free(found), free(expected);
    }
}

/* Every type with a quantiser, for numbers of many magnitudes: the bytes of the portable variant. */
static void test_ggml_quantize(const char *name, wm_ggml_quantize_fn *quantize) {
    enum { ELEMENTS = 256 * 20 };
    float *x = allocate(ELEMENTS * sizeof *x);
    for (int type = 0; type < 64; type++) {
        if (!wm_ggml_encodes(type)) continue;
        const uint64_t blocks = ELEMENTS / (uint64_t)wm_ggml_elements(type), size = blocks * (uint64_t)wm_ggml_bytes(type);
        for (int i = 0; i < ELEMENTS; i++)
            x[i] = (float)(int32_t)next_random() * (i % 512 < 256 ? 0x1p-31f : 0x1p-40f) * (float)(1 + i / 256);
        uint8_t *found = allocate(size), *expected = allocate(size);
        quantize(type, x, blocks, found);
        ggml_quantize_portable(type, x, blocks, expected);
        check(!memcmp(found, expected, size), name, (uint64_t)type);
        free(found), free(expected);
    }
    free(x);
}

/* A file of these bytes that nobody else can open. */
static FILE *file_of(const void *data, size_t size) {
    FILE *file = tmpfile();
    if (!file || fwrite(data, 1, size, file) != size || fflush(file)) exit(2);
    return file;
}

/* From files: the same results as from memory, and the bytes of an earlier call, by any number of threads. */
static void test_files(void) {
    enum { N = 2000000, EACH = 4096, PIECES = (N + EACH - 1) / EACH, LATE = 100000 };
    static float x[N], y[N];
    static uint64_t from[PIECES], counts[PIECES];
    for (int i = 0; i < N; i++) x[i] = (float)(int32_t)next_random() * 0x1p-31f, y[i] = i % 7 ? x[i] : -x[i];
    for (uint64_t i = 0; i < PIECES; i++) {
        from[i] = i * EACH * sizeof *x;
        counts[i] = i + 1 < PIECES ? EACH : N - i * EACH;
    }
    FILE *const a = file_of(x, sizeof x), *const b = file_of(y, sizeof y);
    const uint64_t size = (uint64_t)wm_blocks_size(4, WM_SCALE_FP16, 32, N);
    uint8_t *const expected = allocate(size), *const out = allocate(size), *const late = random_bytes(LATE);
    uint8_t *const written = allocate(LATE);
    const wm_blocks blocks = {-1, 4, WM_SCALE_FP16, 32, 0};
    check(encode(x, N, blocks, expected, size, 1), "from memory", 0);
    const wm_numbers numbers = {.fd = fileno(a), .size = sizeof x, .kind = WM_FLOAT32, .n = N};
    wm_blocks of_memory = {-1, 5, WM_SCALE_FP32, 0, 0}, of_file = of_memory;
    const wm_numbers memory = {.memory = (const uint8_t *)x, .size = sizeof x, .kind = WM_FLOAT32, .n = N};
    const wm_pairs pairs = {fileno(a), fileno(b), WM_FLOAT32, from, from, counts, PIECES, EACH * sizeof *x};
    for (int threads = 1; threads <= 4; threads++) {
        FILE *const target = file_of("", 0);
        const wm_unwritten earlier = {fileno(target), late, LATE, 0, threads % 2};
        const uint64_t room_size = wm_quantize_room(&numbers, &blocks, threads);
        uint8_t *const room = allocate_lines(room_size);
        double sums[2];
        wm_outcome outcome;
        memset(out, 0, size);
        wm_search_scale(&memory, &of_memory, room, room_size, &outcome);
        wm_search_scale(&numbers, &of_file, room, room_size, &outcome);
        check(outcome.what == WM_DONE && of_file.scale != 0 && of_file.scale == of_memory.scale, "a scale from a file", 0);
        wm_quantize_numbers(&numbers, &blocks, out, size, sums, room, room_size, &earlier, threads, &outcome);
        check(outcome.what == WM_DONE && !memcmp(out, expected, size), "quantised from a file", (uint64_t)threads);
        rewind(target);
        check(fread(written, 1, LATE, target) == LATE && !memcmp(written, late, LATE), "written meanwhile", (uint64_t)threads);
        free(room);
        fclose(target);

        static int64_t different[PIECES];
        static double found[2 * PIECES];
        const uint64_t compare_size = 2 * pairs.max * (uint64_t)threads;
        uint8_t *const compare_room = allocate_lines(compare_size);
        wm_differing_files(&pairs, different, found, compare_room, compare_size, threads, &outcome);
        check(outcome.what == WM_DONE, "compared", (uint64_t)threads);
        for (uint64_t i = 0; i < PIECES; i++) {
            double largest, squares;
            const int64_t count = wm_differing((const uint8_t *)(x + i * EACH), (const uint8_t *)(y + i * EACH), counts[i],
                                               WM_FLOAT32, &largest, &squares);
            check(different[i] == count && found[2 * i] == largest && found[2 * i + 1] == squares, "differences", i);
        }
        free(compare_room);

        const uint64_t gaps[] = {0, 5, 100, 100 + EACH, sizeof x - 9, sizeof x};
        const wm_summed part = {.fd = fileno(a), .at = 3, .size = sizeof x - 3, .gaps = gaps, .n_gaps = 3};
        const uint64_t sum_size = WM_SUM_ROOM * (uint64_t)threads;
        uint8_t *const sum_room = allocate(sum_size);
        uint32_t crc = 7;
        uint8_t filled[3] = {0};
        wm_crc32_of_part(&part, filled, 3, &crc, sum_room, sum_size, threads, &outcome);
        check(outcome.what == WM_DONE && crc == wm_crc32(7, (const uint8_t *)x + 3, sizeof x - 3, 1), "summed", crc);
        check(filled[0] && filled[1] && filled[2], "gaps", (uint64_t)threads);
        free(sum_room);
    }
    free(expected), free(out), free(late), free(written);
    fclose(a), fclose(b);
}

/* Runs a test and prints the outcome: one of an entry point, and one of a variant of a kernel. */
#define REPORT(name, call)                                                \
    do {                                                                  \
        const int before = failures;                                      \
        call;                                                             \
        printf("%-34s %s\n", name, failures == before ? "ok" : "FAILED"); \
    } while (0)
#define VARIANT(test, kernel, ...) REPORT(#kernel, test(#kernel, kernel, ##__VA_ARGS__))
#define LOOKUPS(variant)                         \
    do {                                         \
        VARIANT(test_lookup, lookup_##variant);  \
        VARIANT(test_numbers, lookup_##variant); \
        VARIANT(test_tables, tables_##variant);  \
    } while (0)

static void test_entry_points(void) {
    for (int tier = 0; wm_isa_name(tier); tier++) {
        if (wm_isa_select(tier)) continue;
        check(wm_isa_selected() == tier, "select", (uint64_t)tier);
        printf("tier %s: %s, %s, %s, %s\n", wm_isa_name(tier), wm_variant("crc32"), wm_variant("fnv1a32"),
               wm_variant("f16_to_f32"), wm_variant("bf16_to_f32"));
        REPORT("combine and threads", test_combine());
        REPORT("halves and threads", test_half_threads());
        REPORT("ranges of blocks", test_blocks());
        REPORT("quantisation", test_quantize());
        REPORT("files and threads", test_files());
    }
    REPORT("concurrency", test_concurrency());
}

/* Each variant by itself, on one thread. */
static void test_variants(void) {
    uint32_t cpu = wm_cpu_features();
    VARIANT(test_crc, crc32_portable);
    VARIANT(test_fnv, fnv1a32_portable);
    VARIANT(test_half, f16_to_f32_portable, f16_by_definition);
    VARIANT(test_half, bf16_to_f32_portable, bf16_by_definition);
    VARIANT(test_intblock, intblock_portable);
    VARIANT(test_mixed, mixed_portable);
    VARIANT(test_narrow, narrow_portable);
    VARIANT(test_ggml, ggml_portable);
    VARIANT(test_ggml_quantize, ggml_quantize_portable);
    VARIANT(test_products, combine_rows_portable);
    VARIANT(test_groups, groups_portable);
    LOOKUPS(portable);
    REPORT("words", test_words());
#if WM_X86
    if (cpu & WM_AVX2) VARIANT(test_groups, groups_x86_avx2);
    if (cpu & WM_AVX512) VARIANT(test_groups, groups_x86_avx512);
    if (cpu & WM_AVX2) LOOKUPS(x86_avx2);
    if (cpu & WM_AVX512) LOOKUPS(x86_avx512);
    if (cpu & WM_AVX2) VARIANT(test_products, combine_rows_x86_avx2);
    if (cpu & WM_PCLMULQDQ && cpu & WM_SSE42) VARIANT(test_crc, crc32_x86_pclmulqdq);
#if defined(WEIGHTMAP_EMULATE_VPCLMULQDQ)
    const uint32_t multiplies = WM_PCLMULQDQ;
#else
    const uint32_t multiplies = WM_VPCLMULQDQ;
#endif
    if (cpu & multiplies && cpu & WM_AVX2) VARIANT(test_crc, crc32_x86_vpclmulqdq_avx2);
    if (cpu & multiplies && cpu & WM_AVX512) VARIANT(test_crc, crc32_x86_vpclmulqdq_avx512);
    if (cpu & WM_AVX2) VARIANT(test_fnv, fnv1a32_x86_avx2);
    if (cpu & WM_AVX2) VARIANT(test_half, f16_to_f32_x86_avx2, f16_by_definition);
    if (cpu & WM_AVX2) VARIANT(test_half, bf16_to_f32_x86_avx2, bf16_by_definition);
    if (cpu & WM_AVX2) VARIANT(test_intblock, intblock_x86_avx2);
    if (cpu & WM_AVX2) VARIANT(test_mixed, mixed_x86_avx2);
    if (cpu & WM_AVX512) VARIANT(test_mixed, mixed_x86_avx512);
    if (cpu & WM_AVX2) VARIANT(test_narrow, narrow_x86_avx2);
    if (cpu & WM_AVX512) VARIANT(test_intblock, intblock_x86_avx512);
    if (cpu & WM_AVX2) VARIANT(test_ggml, ggml_x86_avx2);
    if (cpu & WM_AVX512) VARIANT(test_ggml, ggml_x86_avx512);
    if (cpu & WM_AVX2) VARIANT(test_ggml, ggml_x86_avx2_streamed);
    if (cpu & WM_AVX2) VARIANT(test_ggml_quantize, ggml_quantize_x86_avx2);
    if (cpu & WM_AVX512) VARIANT(test_ggml_quantize, ggml_quantize_x86_avx512);
#elif WM_ARM
    VARIANT(test_groups, groups_arm_neon);
    LOOKUPS(arm_neon);
    VARIANT(test_intblock, intblock_arm_neon);
    VARIANT(test_narrow, narrow_arm_neon);
    VARIANT(test_ggml, ggml_arm_neon);
    VARIANT(test_half, f16_to_f32_arm_neon, f16_by_definition);
    VARIANT(test_half, bf16_to_f32_arm_neon, bf16_by_definition);
    if (cpu & WM_ARM_CRC32 && cpu & WM_ARM_PMULL) {
        VARIANT(test_crc, crc32_arm_crc_pmull);
        VARIANT(test_crc, crc32_arm_pmull);
    } else {
        printf("this CPU lacks CRC32 or PMULL: their kernels were not run\n");
    }
#endif
}

/* With the argument "threads" only tests that start threads, for the thread sanitiser. */
int main(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "threads")) test_variants();
    test_entry_points();
    if (failures) {
        printf("%d checks failed\n", failures);
        return 1;
    }
    printf("all checks passed\n");
    return 0;
}
