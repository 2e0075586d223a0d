/* Rounding of LANES values, for the loops of lookup.h and groups.h. A file defines TARGET, SUFFIX, and round_halves(values, to), which
 * rounds LANES floats to float16, before it includes this one. */
#include "quant/coded_value.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

#define JOIN_NAMES(a, b) a##b
#define JOIN(a, b) JOIN_NAMES(a, b)

TARGET WM_INLINE void round_lanes(const float *values, int type, uint8_t *to) {
    if (type == AS_FLOAT16) {
        round_halves(values, to);
    } else if (type == AS_BFLOAT16) {
        uint16_t halves[LANES];
        for (int l = 0; l < LANES; l++) halves[l] = narrow_to_bfloat16(values[l]);
        memcpy(to, halves, sizeof halves);
    } else {
        memcpy(to, values, LANES * sizeof *values);
    }
}
