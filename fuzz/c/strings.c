/* Lists of strings behind their lengths, as vocabularies have them: how many and how wide in three bytes, then the list. It is
 * walked, checked, and an index of hashes is built over it in which every string has to be found; one of finalfusion's lists,
 * with and without indices, is walked over the same bytes. */
#include "target.h"
#include "core/utf8.h"

static void check_index(const uint8_t *data, uint64_t len, const uint32_t *bounds, uint64_t n, uint32_t gap) {
    uint64_t capacity = 1, duplicate = 0, original = 0;
    while (capacity - capacity / 4 < n) capacity *= 2;
    uint32_t *slots = new_array(capacity, sizeof *slots);
    const int64_t twins = wm_index_build(data, len, bounds, n, gap, slots, capacity, &duplicate, &original);
    CHECK(twins >= -2 && twins != -1);
    if (twins > 0) CHECK(original < duplicate && duplicate < n);
    const wm_index index = {data, len, bounds, n, gap, slots, capacity};
    for (uint64_t i = 0; i < n && twins != -2; i++) {
        const uint64_t length = bounds[i + 1] - gap - bounds[i];
        const int64_t found = wm_index_lookup(&index, data + bounds[i], length);
        CHECK(found >= 0 && found <= (int64_t)i && (twins > 0 || found == (int64_t)i));
    }
    /* With any content of the slots, a look-up ends with a number of the list or none. */
    if (len >= capacity * sizeof *slots) {
        memcpy(slots, data, capacity * sizeof *slots);
        const int64_t found = wm_index_lookup(&index, data, len < 9 ? len : 9);
        CHECK(found >= -1 && found < (int64_t)n);
    }
    free(slots);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    const uint64_t asked = take(&in, 2), choice = take(&in, 1);
    const int width = choice & 1 ? 2 : 4;
    const uint64_t count = choice & 2 ? asked : asked % 64;
    uint32_t *bounds = new_array(count + 1, sizeof *bounds);
    const int64_t walked = wm_walk_strings(in.data, in.size, count, width, bounds);
    CHECK(walked == wm_walk_strings(in.data, in.size, count, width, NULL));
    CHECK(walked <= (int64_t)in.size && walked >= -(int64_t)count);
    if (walked >= 0) {
        const int64_t bad = wm_utf8_strings(in.data, in.size, bounds, count, (uint32_t)width);
        CHECK(bad >= -1 && bad < (int64_t)count);
        for (uint64_t i = 0; i < count; i++) {
            const int valid = wm_utf8_valid(in.data + bounds[i], bounds[i + 1] - (uint32_t)width - bounds[i]);
            CHECK(bad < 0 || i<(uint64_t)bad ? valid : i>(uint64_t) bad || !valid);
        }
        check_index(in.data, in.size, bounds, count, (uint32_t)width);
    }
    uint64_t *indices = new_array(count, sizeof *indices), entries = 0;
    const int64_t ngrams = wm_finalfusion_ngrams(in.data, in.size, count, bounds, indices);
    CHECK(ngrams <= (int64_t)in.size && ngrams >= -(int64_t)count);
    const uint64_t skipped = wm_finalfusion_skip(in.data, in.size, count, 8, &entries);
    CHECK(skipped <= in.size && entries <= count);
    CHECK(ngrams < 0 ? entries == (uint64_t)(-1 - ngrams) : entries == count && skipped == (uint64_t)ngrams);
    const uint64_t words = wm_finalfusion_skip(in.data, in.size, count, 0, &entries);
    CHECK(words <= in.size && (width == 2 || (walked >= 0) == (entries == count)));
    free(indices);
    free(bounds);
    return 0;
}
