/* The pairs of keys and values of an EMBD file's metadata: their number in two bytes, then the pairs. */
#include "target.h"
#include "core/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    const uint64_t count = take(&in, 2);
    wm_fault fault = {0};
    const int failed = wm_pairs_check(in.data, in.size, count, &fault);
    CHECK(failed == (fault.code == WM_FAULT_NONE ? 0 : -1));
    if (failed) return 0;
    uint64_t at = 0;
    for (uint64_t i = 0; i < count; i++) {
        CHECK(in.size - at >= 4);
        const uint64_t key = load_le16(in.data + at), value = load_le16(in.data + at + 2);
        CHECK(key + value <= in.size - at - 4 && wm_utf8_valid(in.data + at + 4, key));
        at += 4 + key + value;
    }
    CHECK(at == in.size);
    return 0;
}
