/* Blocks of different kinds: six bytes of parameters, then mask, scales and codes. What the check passes is decoded, from every
 * place on, to both types; then the mask is changed behind the check's back, as a writer to a mapped file might. */
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    const uint64_t block = 8 * take(&in, 1), n = take(&in, 2), first = take(&in, 2), choice = take(&in, 1);
    const uint64_t blocks = block ? n / block + (n % block != 0) : 0, n_places = 2 * (blocks / 1024 + 2);
    uint64_t *places = new_array(n_places, sizeof *places);
    wm_fault fault = {0};
    if (wm_adaptive_check(in.data, in.size, (int)(choice & 1), block, n, places, n_places, &fault) == 0 && first <= n) {
        const int half = choice >> 1 & 1;
        uint8_t *own = new_array(in.size, 1), *out = new_array(n - first, half ? 2 : 4);
        if (in.size) memcpy(own, in.data, in.size);
        for (int turn = 0; turn < 2; turn++) {
            CHECK(wm_adaptive_decode(own, in.size, (int)(choice & 1), block, n, places, n_places, first, out, n - first, half,
                                     1) == 0);
            for (uint64_t i = 0; i < (blocks + 3) / 4; i++) own[i] ^= (uint8_t)(choice + 37 * i);
        }
        free(own);
        free(out);
    }
    free(places);
    return 0;
}
