/* The walk through an ONNX model, and the numbers of a tensor: parameters of five bytes, then the file. With an odd first byte
 * the walk reads by descriptor, and must find the same as in memory. */
#if defined(__linux__)
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>
#endif
#include "target.h"

/* Capacities of names, tensors, dimensions, files and kept bytes, and the walk's limit of tensors. */
typedef struct {
    uint64_t names, tensors, dims, files, kept, most;
} room;

static int walk(wm_onnx_file file, room r, wm_onnx *found, wm_fault *fault) {
    wm_columns columns;
    new_columns(&columns, r.tensors, r.dims, r.names);
    file.max_tensors = r.most, file.max_names = file.max_kept = UINT32_MAX - 1;
    file.at = new_array(r.tensors, sizeof *file.at);
    file.files = new_array(r.files, sizeof *file.files);
    file.kept = new_array(r.kept, 1);
    file.files_cap = r.files, file.kept_cap = r.kept;
    const int failed = wm_onnx_scan(&file, &columns, found, fault);
    if (!failed && found->n_tensors <= r.tensors && found->n_dims <= r.dims && found->names_len <= r.names)
        check_columns(&columns, found->n_tensors, found->n_dims, found->names_len);
    for (uint64_t i = 0; !failed && i < found->n_files && i < r.files; i++)
        CHECK(file.files[i].path + file.files[i].path_len <= file.size && file.files[i].row < found->n_tensors);
    free(file.at), free(file.files), free(file.kept);
    free_columns(&columns);
    return failed;
}

static int same(const wm_onnx *a, const wm_onnx *b) {
    return a->n_tensors == b->n_tensors && a->n_dims == b->n_dims && a->names_len == b->names_len && a->n_files == b->n_files &&
           a->kept_len == b->kept_len && a->n_strings == b->n_strings && a->n_sparse == b->n_sparse &&
           a->n_nested == b->n_nested && a->n_unread == b->n_unread && a->n_numbers == b->n_numbers &&
           a->n_unlisted == b->n_unlisted && a->number == b->number && a->message == b->message;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint64_t FIELDS[] = {4, 5, 7, 10, 11}, BITS[] = {6, 8, 16, 32, 64};
    input in = {data, size};
    const uint64_t flags = take(&in, 1), names = take(&in, 1), cap = take(&in, 1), number = take(&in, 1), count = take(&in, 1);
    const room asked = {names, cap, cap, cap % 3, names, flags & 2 ? 3 : UINT32_MAX - 2};
    wm_onnx found, again;
    wm_fault fault, other;
    wm_onnx_file file = {.fd = -1, .data = in.data, .size = in.size, .lax = (flags & 4) != 0};
    const int failed = walk(file, asked, &found, &fault);
    CHECK(failed == (fault.code == WM_FAULT_NONE ? 0 : -1));
    if (!failed) { /* with the required room, the result is the same */
        const room needed = {found.names_len, found.n_tensors, found.n_dims, found.n_files, found.kept_len, asked.most};
        CHECK(walk(file, needed, &again, &other) == 0 && same(&found, &again));
    }
#if defined(__linux__)
    if (flags & 1) {
        static int descriptor = -1;
        if (descriptor < 0) descriptor = memfd_create("onnx", 0);
        CHECK(ftruncate(descriptor, 0) == 0 && pwrite(descriptor, in.data, in.size, 0) == (ssize_t)in.size);
        file.fd = descriptor, file.data = NULL;
        CHECK(walk(file, asked, &again, &other) == failed && same(&found, &again));
        CHECK(fault.code == other.code && fault.row == other.row && fault.at == other.at && fault.actual == other.actual);
    }
#endif
    const uint64_t field = FIELDS[number % 5], bits = field == 4 ? 32 : field == 10 ? 64 : BITS[number / 5 % 5];
    uint8_t *out = new_array((count * bits + 7) / 8, 1);
    CHECK(wm_onnx_numbers(in.data, in.size, field, bits, count, out, &fault) == (fault.code == WM_FAULT_NONE ? 0 : -1));
    free(out);
    return 0;
}
