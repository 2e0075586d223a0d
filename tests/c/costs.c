/* What opening an EMBD file of n tensors makes the CPU do: the index is checked, and the last name is looked up. To be
 * run by a tool that counts instructions within wm_records_check and wm_records_find.
 *
 *     costs N
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

enum { RECORD = 32, NAME = 24, DTYPES = 6 };

static void put(uint8_t *at, uint64_t value, int width) {
    for (int i = 0; i < width; i++) at[i] = (uint8_t)(value >> 8 * i);
}

int main(int argc, char **argv) {
    uint32_t n = argc == 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    uint64_t len = (uint64_t)n * (RECORD + NAME), used;
    static const uint8_t bits[DTYPES] = {32, 16, 16, 32, 64, 8};
    uint8_t *index = calloc(len ? len : 1, 1);
    if (!index) return 2;
    char name[NAME + 1] = "";
    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "model.layers.%011u", i);
        memcpy(index + (uint64_t)n * RECORD + (uint64_t)i * NAME, name, NAME);
        uint8_t *record = index + (uint64_t)i * RECORD; /* hash, dtype, dimensions, length of the name, 4 x shape, offset */
        put(record, wm_fnv1a32((const uint8_t *)name, NAME), 4);
        record[4] = 0;
        record[5] = 1;
        put(record + 6, NAME, 2);
        put(record + 8, 16, 4);
        put(record + 24, (uint64_t)i * 64, 8);
    }
    wm_fault fault;
    int failed = wm_records_check(index, len, n, bits, DTYPES, (uint64_t)n * 64, 64, 63, 0, &used, &fault);
    if (failed || used != (uint64_t)n * NAME) return printf("the index is refused: fault %d\n", (int)fault.code), 1;
    if (n && wm_records_find(index, len, n, (const uint8_t *)name, NAME) != (int64_t)n - 1) return puts("not found"), 1;
    free(index);
    return 0;
}
