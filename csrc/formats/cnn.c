/* Turns the layers of a CNN v2 file, n records of five u32,
 *
 *     kernel_size | in_channels | out_channels | weight_offset | weight_count
 *
 * into the columns of a table of tensors. Layer i gets the name "layer.<i>.weight" and the shape [out_channels,
 * in_channels, kernel_size, kernel_size]. The file counts in halves (float16), columns count in bytes. 64-bit arithmetic
 * keeps sums and products of u32 from wrapping around.
 *
 * wm_columns_check checks counts, order and ranges, as for every format. It allows empty tensors, which this format does
 * not have, so this scan refuses dimensions of 0.
 */
#include "core/internal.h"

enum { RECORD = 20, MAX_NAME = 32, DIMS = 4, HALF = 2 };

/* Writes "layer.<number>.weight", at most MAX_NAME bytes, and returns how many they are. */
static uint64_t write_name(uint8_t *to, uint32_t number) {
    uint8_t digits[10]; /* as many as the largest u32 has */
    int first = (int)sizeof digits;
    do digits[--first] = (uint8_t)('0' + number % 10);
    while (number /= 10);
    uint64_t count = sizeof digits - (uint64_t)first;
    memcpy(to, "layer.", 6);
    memcpy(to + 6, digits + first, count);
    memcpy(to + 6 + count, ".weight", 7);
    return 6 + count + 7;
}

int wm_cnn_layers(const uint8_t *records, uint64_t len, uint64_t n, const wm_columns *columns, wm_cnn *out, wm_fault *fault) {
    const wm_columns *c = columns;
    *out = (wm_cnn){0};
    wm_fail(fault, WM_FAULT_NONE, 0, 0, 0, 0);
    if (n > len / RECORD || n > c->names_cap / MAX_NAME || n > c->cap || n > c->dims_cap / DIMS)
        return wm_fail(fault, WM_FAULT_COLUMN, 0, 0, n, len / RECORD);
    if (n > UINT32_MAX / MAX_NAME) return wm_fail(fault, WM_FAULT_CAPACITY, n, 0, n, UINT32_MAX / MAX_NAME);
    uint64_t *dims = c->dims;
    c->bounds[0] = 0;
    c->dim_bounds[0] = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *record = records + RECORD * i;
        uint64_t kernel = load_le32(record), in = load_le32(record + 4), channels = load_le32(record + 8);
        uint64_t offset = load_le32(record + 12), count = load_le32(record + 16);
        if (!kernel || !in || !channels)
            return wm_fail(fault, WM_FAULT_LAYER_ZERO, i, RECORD * i + (!kernel ? 0 : !in ? 4 : 8), 0, 1);
        dims[0] = channels;
        dims[1] = in;
        dims[2] = dims[3] = kernel;
        dims += DIMS;
        c->dim_bounds[i + 1] = (uint32_t)(DIMS * (i + 1));
        c->dtype[i] = 0;
        c->begin[i] = HALF * offset;
        c->end[i] = HALF * (offset + count);
        out->counted = add_capped(out->counted, count);
        out->needed = add_capped(out->needed, mul_capped(mul_capped(channels, in), kernel * kernel));
        out->names_len += write_name(c->names + out->names_len, (uint32_t)i);
        c->bounds[i + 1] = (uint32_t)out->names_len;
    }
    return 0;
}
