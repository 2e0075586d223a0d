/* Runs one kernel once, inside a function by the name of `measured`, for counting its instructions under valgrind:
 *
 *     valgrind --tool=callgrind --toggle-collect=measured instructions KERNEL TIER FILE COUNT SIZE
 *
 * FILE holds the input, COUNT the number of elements, names or records in it, SIZE the bytes of a name, or those of the data
 * that an index speaks of. Prints the name of the tier. Needs no Python; see tests/robustness/test_guard.py.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "intblock.h"

typedef struct {
    const char *kernel;
    uint8_t *data;
    uint64_t len, count, size;
    uint32_t *lengths;
    void *out;
} job;

/* Blocks of 32, past the caches, to where numpy lets a large array begin: 16 bytes into a line. */
static int stream_int4(const job *j) {
    wm_runs w = {.scales = j->data,
                 .codes = j->data + 2,
                 .end = j->data + j->len,
                 .scale_stride = 18,
                 .stride = 18,
                 .runs = j->count / 32,
                 .len = 32,
                 .scale_type = WM_SCALE_FP16,
                 .bits = 4,
                 .storing = WM_STREAMED};
    wm_sink sink = {(uint8_t *)j->out + (16 - (uintptr_t)j->out) % 64, 0, 1};
    wm_decode_runs(&sink, &w);
    wm_sink_done(&sink);
    return 0;
}

/* Quantises floats to blocks of 32. */
static int quantize(const job *j, int bits) {
    const uint64_t size = j->count / 32 * (2 + 4 * (uint64_t)bits);
    return wm_blocks_encode((const float *)j->data, j->count, bits, WM_SCALE_FP16, 32, j->out, size, NULL, 0, 1) != -1;
}

/* Returns 0 when the kernel was content with its input. */
__attribute__((noinline)) int measured(const job *j) {
    static const wm_rules rules = {1, 4, 64, 63, {32}};
    wm_fault fault;
    if (!strcmp(j->kernel, "crc32")) return *(uint32_t *)j->out = wm_crc32(0, j->data, j->len, 1), 0;
    if (!strcmp(j->kernel, "fnv1a32_many")) return wm_fnv1a32_many(j->data, j->len, j->lengths, j->count, 0, j->out) != -1;
    if (!strcmp(j->kernel, "f16_to_f32")) return wm_f16_to_f32(j->data, j->out, j->count, 1);
    if (!strcmp(j->kernel, "bf16_to_f32")) return wm_bf16_to_f32(j->data, j->out, j->count, 1);
    if (!strcmp(j->kernel, "int4")) return wm_blocks_decode(j->data, j->len, 4, 1, 32, j->count, 0, j->out, j->count, 0, 1);
    if (!strcmp(j->kernel, "int5")) return wm_blocks_decode(j->data, j->len, 5, 1, 32, j->count, 0, j->out, j->count, 0, 1);
    if (!strcmp(j->kernel, "int4_streamed")) return stream_int4(j);
    if (!strcmp(j->kernel, "quantize_int4")) return quantize(j, 4);
    if (!strcmp(j->kernel, "quantize_int5")) return quantize(j, 5);
    if (!strcmp(j->kernel, "records_check"))
        return wm_records_check(j->data, j->len, j->count, &rules, j->size, j->size, 0, &fault) < 0;
    if (!strcmp(j->kernel, "records_find")) /* a name that is not there: every record is looked at */
        return wm_records_find(j->data, j->len, j->count, (const uint8_t *)"no such name", 12) != -1;
    return 1;
}

static int tier_named(const char *name) {
    for (int tier = 0; wm_isa_name(tier); tier++) {
        if (!strcmp(wm_isa_name(tier), name)) return tier;
    }
    return -1;
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    int tier = tier_named(argv[2]);
    if (tier < 0 || wm_isa_select(tier) != 0) return puts("no such tier here"), 0;
    job j = {.kernel = argv[1], .count = strtoull(argv[4], NULL, 10), .size = strtoull(argv[5], NULL, 10)};
    FILE *file = fopen(argv[3], "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) return 2;
    j.len = (uint64_t)ftell(file);
    rewind(file);
    /* Room for a float of each element; lengths of names, all alike; both touched before anything is counted. */
    j.data = malloc(j.len + 1);
    j.out = calloc(j.count + 16, 4);
    j.lengths = malloc((j.count + 1) * sizeof *j.lengths);
    if (!j.data || !j.out || !j.lengths || fread(j.data, 1, j.len, file) != j.len) return 2;
    for (uint64_t i = 0; i < j.count; i++) j.lengths[i] = (uint32_t)j.size;
    fclose(file);
    int failed = measured(&j);
    puts(failed ? "the kernel refused its input" : wm_isa_name(wm_isa_selected()));
    free(j.data);
    free(j.out);
    free(j.lengths);
    return 0;
}
