/* The layers of a CNN v2 file: a byte for the number of layers, or 0 for all, then their records. */
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    const uint64_t asked = take(&in, 1), n = asked ? asked : in.size / 20;
    wm_columns columns;
    wm_cnn found;
    wm_fault fault;
    new_columns(&columns, n, 4 * n, 32 * n);
    const int failed = wm_cnn_layers(in.data, in.size, n, &columns, &found, &fault);
    CHECK(failed == (fault.code == WM_FAULT_NONE ? 0 : -1));
    if (!failed) {
        check_columns(&columns, n, 4 * n, found.names_len);
        for (uint64_t i = 0; i < n; i++) CHECK(columns.begin[i] <= columns.end[i] && columns.end[i] < (uint64_t)1 << 34);
    }
    free_columns(&columns);
    return 0;
}
