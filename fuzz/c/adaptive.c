/* Blocks of different kinds: six bytes of parameters, then mask, scales and codes. Blocks that pass the check are decoded, from
 * every place on, to both types. Then the mask is changed, as a writer to a mapped file might, which must have no effect; and
 * then the plan, as no caller should: an error, and still every byte of the output is written. */
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    const uint64_t block = 8 * take(&in, 1), n = take(&in, 2), first = take(&in, 2), choice = take(&in, 1);
    const uint64_t blocks = block ? n / block + (n % block != 0) : 0, n_plan = wm_adaptive_plan_size(block, n);
    uint64_t *plan = new_array(n_plan, sizeof *plan);
    wm_fault fault = {0};
    const int scale_type = (int)(choice & 1), half = choice >> 1 & 1;
    if (wm_adaptive_check(in.data, in.size, scale_type, block, n, plan, n_plan, &fault) == 0 && first <= n) {
        const uint64_t bytes = (n - first) * (half ? 2 : 4);
        uint8_t *own = new_array(in.size, 1), *out[2] = {new_array(bytes, 1), new_array(bytes, 1)};
        if (in.size) memcpy(own, in.data, in.size);
        for (int broken = 0; broken < 2; broken++) {
            for (int turn = 0; turn < 2; turn++) {
                if (bytes) memset(out[turn], turn ? 0xFF : 0, bytes);
                const int done =
                    wm_adaptive_decode(own, in.size, scale_type, block, n, plan, n_plan, first, out[turn], n - first, half, 1);
                CHECK(done == 0 || (broken && done == -1));
                for (uint64_t i = 0; i < (blocks + 3) / 4; i++) own[i] ^= (uint8_t)(choice + 37 * i);
            }
            CHECK(bytes == 0 || memcmp(out[0], out[1], bytes) == 0);
            for (uint64_t i = 2; i < n_plan; i++) plan[i] ^= choice >> 2 & 7 ? choice << 8 * (i % 8) : 0;
        }
        free(own);
        free(out[0]), free(out[1]);
    }
    free(plan);
    return 0;
}
