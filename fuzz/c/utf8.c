/* UTF-8, against a reader of one character after another that is written from the standard's table of ranges. */
#include "core/utf8.h"
#include "target.h"

static int by_definition(const uint8_t *p, uint64_t len) {
    while (len) {
        static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
        const unsigned n = *p < 0x80 ? 1 : *p >> 5 == 6 ? 2 : *p >> 4 == 14 ? 3 : *p >> 3 == 30 ? 4 : 0;
        if (n == 0 || n > len) return 0;
        uint32_t c = n == 1 ? *p : *p & (0xFFu >> (n + 1));
        for (unsigned i = 1; i < n; i++) {
            if (p[i] >> 6 != 2) return 0;
            c = c << 6 | (p[i] & 0x3F);
        }
        if (c < least[n] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return 0;
        p += n;
        len -= n;
    }
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int high = 0;
    for (size_t i = 0; i < size; i++) high |= data[i] >> 7;
    CHECK(wm_utf8_valid(data, size) == by_definition(data, size));
    CHECK(wm_ascii(data, size) == !high);
    return 0;
}
