/* The walk through the records of an AMB file: parameters of seven bytes, then the file. With an odd first byte the walk reads
 * by descriptor, and must find the same as in memory. */
#if defined(__linux__)
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>
#endif
#include "target.h"

static int walk(const wm_amb_section *section, uint64_t cap, uint64_t dims_cap, uint64_t names_cap, wm_amb *found,
                wm_fault *fault) {
    wm_columns columns;
    new_columns(&columns, cap, dims_cap, names_cap);
    const int failed = wm_amb_walk(section, &columns, found, fault);
    if (!failed && found->n_tensors <= cap && found->n_dims <= dims_cap && found->names_len <= names_cap)
        check_columns(&columns, found->n_tensors, found->n_dims, found->names_len);
    free_columns(&columns);
    return failed;
}

static int same(const wm_amb *a, const wm_amb *b) {
    return a->n_tensors == b->n_tensors && a->n_dims == b->n_dims && a->names_len == b->names_len && a->part == b->part &&
           a->odd_padding == b->odd_padding && a->unpadded == b->unpadded;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    const uint64_t flags = take(&in, 1), begin = take(&in, 1), block_size = take(&in, 2), scale = take(&in, 1);
    const uint64_t cap = take(&in, 1), names_cap = take(&in, 1);
    wm_amb found, again;
    wm_fault fault, other;
    wm_amb_section section = {
        .fd = -1,
        .lax = flags >> 1 & 1,
        .data = in.data,
        .size = in.size,
        .end = in.size,
        .origin = flags & 4 ? begin % 8 : 0,
        .max_tensors = flags & 8 ? 3 : UINT32_MAX - 2,
        .max_names = flags & 16 ? 20 : UINT32_MAX - 1,
        .bare_block_size = block_size,
        .bare_scale = scale,
    };
    section.begin = begin < in.size ? begin : in.size;
    const int failed = walk(&section, cap, cap, names_cap, &found, &fault);
    CHECK(failed == (fault.code == WM_FAULT_NONE ? 0 : -1));
    if (!failed) /* with the required room, the result is the same */
        CHECK(walk(&section, found.n_tensors, found.n_dims, found.names_len, &again, &other) == 0 && same(&found, &again));
#if defined(__linux__)
    if (flags & 1) {
        static int file = -1;
        if (file < 0) file = memfd_create("amb", 0);
        CHECK(ftruncate(file, 0) == 0 && pwrite(file, in.data, in.size, 0) == (ssize_t)in.size);
        section.fd = file;
        section.data = NULL;
        section.size = 0;
        CHECK(walk(&section, cap, cap, names_cap, &again, &other) == failed);
        CHECK(fault.code == other.code && fault.row == other.row && fault.at == other.at && fault.actual == other.actual);
        CHECK(same(&found, &again));
    }
#endif
    return 0;
}
