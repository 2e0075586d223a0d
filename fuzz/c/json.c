/* The reader of JSON text, whatever stands in it: a string, a number, and stepping over a value. */
#include "formats/json.h"
#include "target.h"
#include "core/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    wm_fault fault = {0};
    wm_json json = {data, data + size, &fault, 0};
    uint8_t *out = new_array(size, 1);
    uint64_t length = 0, value = 0;
    const uint8_t *end = wm_json_string(&json, data, out, &length);
    CHECK(!end || (end <= data + size && length + 2 <= (uint64_t)(end - data) && wm_utf8_valid(out, length)));
    end = wm_json_u64(&json, data, &value);
    if (end) {
        char digits[24];
        CHECK((uint64_t)(end - data) == (uint64_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)value));
        CHECK(memcmp(digits, data, (size_t)(end - data)) == 0);
    }
    if (size && *data == '{') {
        end = wm_json_skip(&json, data, out);
        CHECK(!end || (end <= data + size && end[-1] == '}'));
        CHECK(!end || wm_json_depth(data, (uint64_t)(end - data)) <= WM_JSON_DEPTH);
    }
    CHECK(wm_json_depth(data, size) <= size);
    free(out);
    return 0;
}
