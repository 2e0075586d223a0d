/* The scan of a safetensors header: a byte for the room that the columns have, then the text. */
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint8_t dtypes[][16] = {"F32", "F16", "BF16", "I8", "U8", "I16", "I32", "I64", "BOOL", "F64", "F8_E4M3"};
    input in = {data, size};
    const uint64_t room = take(&in, 1);
    wm_columns columns;
    wm_safetensors found;
    wm_fault fault;
    /* Mostly always enough; else very few, which must be a fault, not an overrun. */
    new_columns(&columns, room ? room % 16 : in.size / 48 + 1, room ? room / 16 : in.size / 2, in.size);
    const int failed =
        wm_safetensors_scan(in.data, in.size, dtypes[0], sizeof dtypes / sizeof *dtypes, &columns, &found, &fault);
    CHECK(failed == (fault.code == WM_FAULT_NONE ? 0 : -1));
    if (failed) {
        CHECK(fault.at <= in.size);
    } else {
        check_columns(&columns, found.n_tensors, found.n_dims, found.names_len);
        CHECK(found.metadata_begin <= found.metadata_end && found.metadata_end <= in.size);
        CHECK(found.backwards <= found.n_tensors);
    }
    free_columns(&columns);
    return 0;
}
