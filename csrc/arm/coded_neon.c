/* Values of codes by tables, and the decoding of groups, for NEON. */
#include "quant/groups_value.h"

#if WM_ARM
#include <arm_neon.h>

#define TARGET
#define SUFFIX arm_neon
#define NIBBLES 1
#define BYTES 0

WM_INLINE void round_halves(const float *values, uint8_t *to) {
    for (int l = 0; l < LANES; l += 4) {
        const uint16x4_t halves = vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(values + l)));
        vst1_u8(to + 2 * l, vreinterpret_u8_u16(halves));
    }
}

typedef uint8x16x4_t line;

WM_INLINE void store_line(line values, uint8_t *out, int streaming) {
    for (int i = 0; i < 4; i++) vst1q_u8(out + 16 * i, values.val[i]);
}

WM_INLINE void split_nibbles(const uint8_t *codes, int high_first, uint8x16_t at[2]) {
    const uint8x16_t both = vld1q_u8(codes), low = vandq_u8(both, vdupq_n_u8(15)), high = vshrq_n_u8(both, 4);
    const uint8x16x2_t pairs = high_first ? vzipq_u8(high, low) : vzipq_u8(low, high);
    at[0] = pairs.val[0], at[1] = pairs.val[1];
}

typedef struct {
    uint8x16x2_t of[2]; /* the lower bytes of the halves, and the upper ones */
} nibbles_2;

WM_INLINE nibbles_2 load_nibbles_2(const uint8_t *first, const uint8_t *second) {
    return (nibbles_2){{vld2q_u8(first), vld2q_u8(second)}};
}

WM_INLINE line look_nibbles_2(nibbles_2 t, const uint8_t *codes, int high_first, int tables) {
    uint8x16_t at[2];
    line result;
    split_nibbles(codes, high_first, at);
    for (int i = 0; i < 2; i++) {
        const uint8x16x2_t pairs = vzipq_u8(vqtbl1q_u8(t.of[i].val[0], at[i]), vqtbl1q_u8(t.of[i].val[1], at[i]));
        result.val[2 * i] = pairs.val[0], result.val[2 * i + 1] = pairs.val[1];
    }
    return result;
}

typedef uint8x16x4_t nibbles_4; /* byte k of each float */

WM_INLINE nibbles_4 load_nibbles_4(const uint8_t *table) { return vld4q_u8(table); }

WM_INLINE line look_nibbles_4(nibbles_4 t, const uint8_t *codes, int high_first) {
    uint8_t both[16] = {0}, values[LANES * sizeof(float)];
    uint8x16_t at[2];
    uint8x16x4_t bytes;
    line result;
    memcpy(both, codes, 8);
    split_nibbles(both, high_first, at);
    for (int k = 0; k < 4; k++) bytes.val[k] = vqtbl1q_u8(t.val[k], at[0]);
    vst4q_u8(values, bytes);
    for (int i = 0; i < 4; i++) result.val[i] = vld1q_u8(values + 16 * i);
    return result;
}

#include "quant/coded_lanes.h"

#include "quant/lookup.h"

#include "quant/groups.h"
#endif
