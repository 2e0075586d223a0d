/* The pickle machine: the input is a program. It is run, and what it leaves is counted and turned into columns. */
#include "target.h"

enum { MOST = 1 << 16, MOST_NAMES = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *program = new_array(size, 1); /* of its own, so that reading behind it is noticed */
    if (size) memcpy(program, data, size);
    const uint64_t words = 8 * size + 1024;
    uint64_t *arena = new_array(words, sizeof *arena);
    wm_pickle found;
    wm_fault fault;
    if (wm_pickle_run(program, size, arena, words, &found, &fault)) {
        CHECK(fault.code != WM_FAULT_NONE);
    } else if (!wm_pickle_walk(program, size, arena, MOST, MOST_NAMES, NULL, NULL, NULL, &found, &fault)) {
        CHECK(found.end <= size);
        const uint64_t n = found.n_tensors, n_dims = found.n_dims, names_len = found.names_len, n_values = found.n_values;
        wm_pickle_tensors tensors;
        new_columns(&tensors.columns, n, n_dims, names_len);
        tensors.storage = new_array(n, sizeof *tensors.storage);
        tensors.strides = new_array(n_dims, sizeof *tensors.strides);
        wm_pickle_values values = {.cap = n_values, .names_cap = found.value_names_len};
        values.names = new_array(found.value_names_len, 1);
        values.bounds = new_array(n_values + 1, sizeof *values.bounds);
        values.kind = new_array(n_values, 1);
        values.length = new_array(n_values, sizeof *values.length);
        values.at = new_array(n_values, sizeof *values.at);
        uint8_t *path = new_array(found.longest, 1);
        CHECK(!wm_pickle_walk(program, size, arena, MOST, MOST_NAMES, &tensors, &values, path, &found, &fault));
        CHECK(found.n_tensors == n && found.n_dims == n_dims && found.names_len == names_len && found.n_values == n_values);
        check_columns(&tensors.columns, n, n_dims, names_len);
        const uint64_t count = found.n_storages;
        uint64_t *key = new_array(count, sizeof *key), *nbytes = new_array(count, sizeof *nbytes);
        uint32_t *key_len = new_array(count, sizeof *key_len);
        uint8_t *item = new_array(count, 1);
        wm_pickle_list_storages(arena, &found, key, key_len, nbytes, item);
        for (uint64_t i = 0; i < count; i++) CHECK(key[i] <= size && key_len[i] <= size - key[i] && item[i]);
        for (uint64_t i = 0; i < n; i++) {
            CHECK(tensors.storage[i] < count && tensors.columns.begin[i] <= tensors.columns.end[i]);
            CHECK(tensors.columns.end[i] <= nbytes[tensors.storage[i]]);
        }
        free(key), free(nbytes), free(key_len), free(item);
        free_columns(&tensors.columns);
        free(tensors.storage), free(tensors.strides), free(path);
        free(values.names), free(values.bounds), free(values.kind), free(values.length), free(values.at);
    }
    free(arena);
    free(program);
    return 0;
}
