/* Shared by the libFuzzer targets. Each target is one file: it turns the fuzzer's bytes into the arguments of a scanner, gives
 * it memory of exactly the size in the contract of kernels.h, each piece in its own allocation, where the address sanitiser
 * sees one byte too far, and checks the result by the contract.
 */
#ifndef WEIGHTMAP_FUZZ_TARGET_H
#define WEIGHTMAP_FUZZ_TARGET_H
#include <stdio.h>
#include <stdlib.h>

#include "core/internal.h"

/* A broken promise ends the run, and the fuzzer keeps the input. */
#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                \
        }                                                                           \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The fuzzer's bytes; parameters are taken from the front. */
typedef struct {
    const uint8_t *data;
    uint64_t size;
} input;

/* A little-endian integer of this many bytes, or of the remaining ones. */
static inline uint64_t take(input *in, unsigned bytes) {
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes && in->size; i++, in->data++, in->size--) value |= (uint64_t)*in->data << 8 * i;
    return value;
}

static inline void *new_array(uint64_t count, uint64_t width) {
    void *memory = malloc(count * width);
    CHECK(memory || count * width == 0);
    return memory;
}

static inline void new_columns(wm_columns *c, uint64_t cap, uint64_t dims_cap, uint64_t names_cap) {
    *c = (wm_columns){
        .cap = cap,
        .dims_cap = dims_cap,
        .names_cap = names_cap,
        .names = new_array(names_cap, 1),
        .bounds = new_array(cap + 1, sizeof(uint32_t)),
        .dtype = new_array(cap, 1),
        .dims = new_array(dims_cap, sizeof(uint64_t)),
        .dim_bounds = new_array(cap + 1, sizeof(uint32_t)),
        .begin = new_array(cap, sizeof(uint64_t)),
        .end = new_array(cap, sizeof(uint64_t)),
        .hashes = new_array(cap, sizeof(uint32_t)),
    };
}

static inline void free_columns(wm_columns *c) {
    free(c->names), free(c->bounds), free(c->dtype), free(c->dims), free(c->dim_bounds), free(c->begin), free(c->end);
    free(c->hashes);
}

/* After a scan without a fault, the columns must be consistent; and if the check of tables passes them, the tensors must lie
 * within the data and every name be found. */
static inline void check_columns(wm_columns *c, uint64_t n, uint64_t n_dims, uint64_t names_len) {
    static const wm_rules rules = {0, 64, 1, 7, {32, 16, 16, 8, 8, 16, 32, 64, 8, 16, 32, 64, 1, 8, 4, WM_BITS_DECLARED}};
    const uint64_t data_size = n ? c->end[n - 1] : 0;
    wm_fault fault;
    CHECK(n <= c->cap && n_dims <= c->dims_cap && names_len <= c->names_cap);
    CHECK(c->bounds[0] == 0 && c->bounds[n] == names_len && c->dim_bounds[0] == 0 && c->dim_bounds[n] == n_dims);
    for (uint64_t i = 0; i < n; i++) CHECK(c->bounds[i] <= c->bounds[i + 1] && c->dim_bounds[i] <= c->dim_bounds[i + 1]);
    for (int lax = 0; lax < 2; lax++) {
        if (wm_columns_check(c, n, n_dims, names_len, 1, &rules, data_size, data_size, lax, &fault)) continue;
        for (uint64_t i = 0; i < n; i++) {
            CHECK(c->begin[i] <= c->end[i] && c->end[i] <= data_size);
            if (i < 64)
                CHECK(wm_columns_find(c, n, names_len, c->names + c->bounds[i], c->bounds[i + 1] - c->bounds[i]) == (int64_t)i);
        }
    }
}

#endif
