/* The index of an EMBD file: three bytes of parameters and the size of the data in four, then records and names. Names are
 * looked up also in an index that the check refused. */
#include "target.h"

enum { RECORD = 32 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wm_rules rules = {1, 4, 0, 0, {32, 16, 16, 8, 4, 0, 8, 64}};
    input in = {data, size};
    const uint64_t n = take(&in, 1), shift = take(&in, 1) % 8, choice = take(&in, 1), data_size = take(&in, 4);
    rules.alignment = (uint64_t)1 << shift;
    rules.max_gap = choice & 1 ? 0 : 63;
    wm_fault fault = {0};
    const int64_t used = wm_records_check(in.data, in.size, n, &rules, data_size, data_size, choice >> 1 & 1, &fault);
    CHECK((used < 0) == (fault.code != WM_FAULT_NONE));
    if (n > in.size / RECORD) {
        CHECK(used < 0 && wm_records_find(in.data, in.size, n, in.data, 0) == -1);
        return 0;
    }
    const uint8_t *names = in.data + n * RECORD;
    const uint64_t names_len = in.size - n * RECORD;
    CHECK(used <= (int64_t)names_len);
    uint64_t at = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *record = in.data + i * RECORD;
        const uint64_t length = load_le16(record + 6);
        if (length > names_len - at) break;
        const int64_t found = wm_records_find(in.data, in.size, n, names + at, length);
        CHECK(found < (int64_t)n && (used < 0 || found == (int64_t)i));
        if (used >= 0) CHECK(load_le64(record + 24) % ((uint64_t)1 << shift) == 0 && load_le64(record + 24) <= data_size);
        at += length;
    }
    CHECK(used < 0 || used == (int64_t)at);
    return 0;
}
