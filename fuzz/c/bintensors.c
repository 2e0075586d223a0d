/* The scan of a BinTensors header: a byte for the layouts and the room that the columns have, then the header. */
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    const uint64_t choice = take(&in, 1);
    const uint64_t room = choice >> 2; /* 0: always enough */
    wm_columns columns;
    wm_bintensors found;
    wm_fault fault;
    new_columns(&columns, room ? room % 8 : in.size / 5 + 1, room ? room / 8 : in.size, in.size);
    const int failed = wm_bintensors_scan(in.data, in.size, (int)(choice & 3), &columns, &found, &fault);
    if (failed) {
        CHECK(fault.code != WM_FAULT_NONE && fault.at <= in.size);
    } else if (found.layout) {
        check_columns(&columns, found.n_tensors, found.n_dims, found.names_len);
        CHECK(found.metadata_begin <= found.metadata_end && found.metadata_end <= found.end);
        CHECK(found.map_begin <= found.end && found.end <= in.size && found.wide <= in.size);
        CHECK(found.layout == 1 || found.layout == 2);
    }
    free_columns(&columns);
    return 0;
}
