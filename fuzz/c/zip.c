/* The directory of a ZIP archive: two bytes where it begins in the input, one how many entries it has, then the archive up to its
 * end record. */
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    const uint64_t place = take(&in, 2), count = take(&in, 1), end = place < in.size ? place : in.size, len = in.size - end;
    uint8_t *file = new_array(end, 1), *central = new_array(len, 1);
    if (end) memcpy(file, in.data, end);
    if (len) memcpy(central, in.data + end, len);
    const wm_zip_source source = {-1, file, end, NULL, NULL};
    wm_zip_entries out = {.count = count};
    out.names = new_array(len, 1);
    out.bounds = new_array(count + 1, sizeof *out.bounds);
    out.method = new_array(count, sizeof *out.method);
    out.crc = new_array(count, sizeof *out.crc), out.later = new_array(count, 1);
    out.stored = new_array(count, sizeof *out.stored), out.size = new_array(count, sizeof *out.size);
    out.offset = new_array(count, sizeof *out.offset), out.data = new_array(count, sizeof *out.data);
    wm_columns columns;
    new_columns(&columns, count, 8 * count, len);
    wm_npy npy = {.columns = &columns, .fortran = new_array(count, 1)};
    wm_fault fault;
    if (wm_zip_scan(&source, central, len, &out, &npy, &fault)) {
        CHECK(fault.code != WM_FAULT_NONE && fault.row <= count);
    } else {
        for (uint64_t i = 0; i < count; i++) {
            CHECK(out.bounds[i] <= out.bounds[i + 1] && out.bounds[i + 1] <= len);
            CHECK(out.offset[i] < out.data[i] && out.data[i] <= end && out.stored[i] <= end - out.data[i]);
        }
        if (!wm_zip_order(&out, NULL, end, &fault))
            for (uint64_t i = 1; i < count; i++) CHECK(out.data[i - 1] + out.stored[i - 1] <= out.offset[i]);
        CHECK(npy.names_len <= len && npy.n_dims <= columns.dims_cap);
        for (uint64_t i = 0; i < count; i++) {
            CHECK(columns.bounds[i] <= columns.bounds[i + 1] && columns.dim_bounds[i] <= columns.dim_bounds[i + 1]);
            CHECK(columns.begin[i] <= columns.end[i] && columns.end[i] <= end);
            CHECK(columns.dtype[i] == WM_NPY_ODD || columns.dtype[i] < npy.n_kinds);
        }
    }
    free_columns(&columns), free(npy.fortran);
    free(out.names), free(out.bounds), free(out.method), free(out.crc), free(out.later);
    free(out.stored), free(out.size), free(out.offset), free(out.data);
    free(file), free(central);
    return 0;
}
