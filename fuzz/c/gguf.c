/* The scan of a GGUF header: three bytes of parameters (version, byte order and the room that columns have; key-values; tensors),
 * then the header from its first key-value on. It is scanned whole, and once more in pieces, with the same result. */
#include "target.h"

enum { MIN_VALUE = 9, TENSOR = 20, DIMS = WM_GGUF_NDIM };
static wm_gguf_type types[WM_GGUF_TYPES];

typedef struct {
    wm_gguf gguf;
    wm_fault fault;
    int state;
} result;

/* Scans the first `len` bytes, and then as many more as the scan requests, until it ends. */
static result scan(const uint8_t *data, uint64_t size, uint64_t len, wm_gguf gguf, uint64_t room) {
    result r = {.gguf = gguf};
    const uint64_t cap = size / MIN_VALUE + 1;
    uint32_t *keys = new_array(2 * cap, sizeof *keys);
    for (;;) {
        uint8_t *piece = new_array(len, 1); /* its own allocation, so that reading behind it is noticed */
        if (len) memcpy(piece, data, len);
        r.state = wm_gguf_values(piece, len, keys, cap, &r.gguf, &r.fault);
        if (r.state == 0) {
            for (uint64_t i = 0; i < r.gguf.n_keys; i++) {
                CHECK(keys[2 * i] <= keys[2 * i + 1] && keys[2 * i + 1] <= len);
                const uint64_t key = keys[2 * i], last = keys[2 * i + 1];
                CHECK(wm_gguf_find(piece, len, keys, r.gguf.n_keys, piece + key, last - key) == (int64_t)i);
            }
            const uint64_t left = len - r.gguf.pos, rows = room ? room : left / TENSOR + 1;
            const uint64_t n = rows < r.gguf.n_tensors ? rows : r.gguf.n_tensors;
            wm_columns columns;
            new_columns(&columns, n, DIMS * n, left);
            r.state = wm_gguf_tensors(piece, len, types, &columns, &r.gguf, &r.fault);
            if (r.state == 0) {
                check_columns(&columns, r.gguf.n_tensors, r.gguf.n_dims, r.gguf.names_len);
                CHECK(r.gguf.end <= len && r.gguf.n_others <= (r.gguf.lax ? WM_GGUF_OTHERS : 0));
                for (uint64_t i = 0; i < r.gguf.n_tensors; i++)
                    CHECK(columns.begin[i] <= columns.end[i] && columns.end[i] <= r.gguf.data_end);
                wm_gguf_reach(&columns, size, &r.gguf);
                for (uint64_t i = 0; i < r.gguf.n_tensors; i++)
                    CHECK(columns.begin[i] <= columns.end[i] && columns.end[i] <= r.gguf.data_end &&
                          columns.dtype[i] < WM_GGUF_TYPES + r.gguf.n_others);
            }
            free_columns(&columns);
        }
        free(piece);
        if (r.state != 1) break;
        CHECK(r.gguf.needed > len && r.gguf.needed <= size);
        len = r.gguf.needed;
    }
    free(keys);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    const uint64_t choice = take(&in, 1), count = take(&in, 1), n_tensors = take(&in, 1);
    types[0] = (wm_gguf_type){1, 4};
    types[8] = (wm_gguf_type){32, 34};
    types[12] = (wm_gguf_type){256, 144};
    const wm_gguf begin = {.limit = in.size,
                           .count = count,
                           .n_tensors = n_tensors,
                           .version = choice & 1 ? 1 : 3,
                           .big = choice >> 1 & 1,
                           .lax = choice >> 5 & 1};
    const uint64_t room = choice >> 2 & 7;
    const result whole = scan(in.data, in.size, in.size, begin, room), parts = scan(in.data, in.size, 0, begin, room);
    CHECK(whole.state == parts.state && whole.state != 1);
    CHECK(whole.fault.code == parts.fault.code && whole.fault.at == parts.fault.at && whole.fault.row == parts.fault.row);
    CHECK((whole.state == 0) == (whole.fault.code == WM_FAULT_NONE) && whole.fault.at <= in.size);
    CHECK(whole.gguf.n_keys == parts.gguf.n_keys && whole.gguf.pos == parts.gguf.pos);
    if (whole.state == 0)
        CHECK(whole.gguf.end == parts.gguf.end && whole.gguf.data_end == parts.gguf.data_end &&
              whole.gguf.ordered == parts.gguf.ordered);
    /* Arrays and strings from any place on, which no caller would request after scanning the header. */
    const int64_t end = wm_gguf_array(in.data, in.size, count, begin.version, begin.big);
    CHECK(end == -1 || (end > (int64_t)count && (uint64_t)end <= in.size));
    uint32_t *bounds = new_array(n_tensors + 1, sizeof *bounds);
    const int64_t walked = wm_gguf_strings(in.data, in.size, n_tensors, begin.version, begin.big, bounds);
    CHECK(walked <= (int64_t)in.size && walked >= -1 - (int64_t)n_tensors);
    free(bounds);
    return 0;
}
