/* The pickle machine: the input is a program. It is run, and its result is counted and turned into columns. */
#include "target.h"

enum { MAX_WORDS = 1 << 16, MAX_NAMES = 1 << 20 };
static const uint64_t MAX_BEGIN = 1ULL << 62;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *program = new_array(size, 1); /* its own allocation, so that reading behind it is noticed */
    if (size) memcpy(program, data, size);
    const uint64_t words = 4 * size + size / 256 + 1024;
    const wm_pickle_source source = {-1, program, 0, size, size % 2};
    uint64_t *arena = new_array(words, sizeof *arena);
    wm_pickle found;
    wm_fault fault;
    if (wm_pickle_run(&source, arena, words, &found, &fault)) {
        CHECK(fault.code != WM_FAULT_NONE);
    } else if (!wm_pickle_walk(&source, arena, MAX_WORDS, MAX_NAMES, NULL, NULL, NULL, &found, &fault)) {
        CHECK(found.end <= size);
        const uint64_t n = found.n_tensors, n_dims = found.n_dims, names_len = found.names_len, n_values = found.n_values;
        const uint64_t count = found.n_storages;
        wm_pickle_storages storages = {.prefix = program};
        storages.names = new_array(count * WM_PICKLE_KEY, 1);
        storages.bounds = new_array(count + 1, sizeof *storages.bounds);
        storages.at = new_array(count, sizeof *storages.at);
        storages.nbytes = new_array(count, sizeof *storages.nbytes);
        storages.item = new_array(count, 1), storages.type = new_array(count, 1);
        uint64_t cursor = found.storages;
        CHECK(!wm_pickle_list(&source, arena, &cursor, count, &storages, &fault));
        for (uint64_t i = 0; i < count; i++)
            CHECK(storages.at[i] <= size && storages.bounds[i] <= storages.bounds[i + 1] && storages.item[i]);
        uint64_t *begins = new_array(count, sizeof *begins); /* storages one after another */
        for (uint64_t i = 0, begin = 0; i < count; begin += storages.nbytes[i++]) begins[i] = begin < MAX_BEGIN ? begin : 0;
        wm_columns columns;
        new_columns(&columns, n, n_dims, names_len);
        wm_pickle_tensors tensors = {&columns, begins, NULL};
        if (found.n_strided) tensors.strides = new_array(n_dims, sizeof *tensors.strides);
        wm_pickle_values values = {.cap = n_values, .names_cap = found.value_names_len};
        values.names = new_array(found.value_names_len, 1);
        values.bounds = new_array(n_values + 1, sizeof *values.bounds);
        values.kind = new_array(n_values, 1);
        values.length = new_array(n_values, sizeof *values.length);
        values.at = new_array(n_values, sizeof *values.at);
        uint8_t *path = new_array(found.longest, 1);
        CHECK(!wm_pickle_walk(&source, arena, MAX_WORDS, MAX_NAMES, &tensors, &values, path, &found, &fault));
        CHECK(found.n_tensors == n && found.n_dims == n_dims && found.names_len == names_len && found.n_values == n_values);
        check_columns(&columns, n, n_dims, names_len);
        for (uint64_t i = 0; i < n; i++) CHECK(columns.begin[i] <= columns.end[i]);
        free_columns(&columns);
        free(storages.names), free(storages.bounds), free(storages.at), free(storages.nbytes), free(storages.item),
            free(storages.type);
        free(begins), free(tensors.strides), free(path);
        free(values.names), free(values.bounds), free(values.kind), free(values.length), free(values.at);
    }
    free(arena);
    free(program);
    return 0;
}
