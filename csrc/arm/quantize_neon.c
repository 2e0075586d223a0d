/* The search for scales, compiled for NEON: sixteen lanes are four registers. */
#include "core/internal.h"

#if WM_ARM
#include <arm_neon.h>
#define TARGET
#define NAME quantize_arm_neon
#define EACH for (int r = 0; r < 4; r++)

typedef struct {
    float32x4_t v[4];
} lanes;
typedef struct {
    uint32x4_t v[4];
} words;
#define FOUR(name, intrinsic)                    \
    WM_INLINE lanes name(lanes a, lanes b) {     \
        EACH a.v[r] = intrinsic(a.v[r], b.v[r]); \
        return a;                                \
    }
FOUR(lanes_add, vaddq_f32)
FOUR(lanes_sub, vsubq_f32)
FOUR(lanes_mul, vmulq_f32)
FOUR(lanes_div, vdivq_f32)
FOUR(lanes_min, vminq_f32)
FOUR(lanes_max, vmaxq_f32)
WM_INLINE lanes lanes_sqrt(lanes a) {
    EACH a.v[r] = vsqrtq_f32(a.v[r]);
    return a;
}
WM_INLINE lanes lanes_load(const float *from) {
    lanes a;
    EACH a.v[r] = vld1q_f32(from + 4 * r);
    return a;
}
WM_INLINE void lanes_store(float *to, lanes a) { EACH vst1q_f32(to + 4 * r, a.v[r]); }
WM_INLINE lanes lanes_all(float value) {
    lanes a;
    EACH a.v[r] = vdupq_n_f32(value);
    return a;
}
WM_INLINE lanes lanes_pick(lanes a, lanes b, lanes x, lanes y) {
    EACH y.v[r] = vbslq_f32(vcgtq_f32(a.v[r], b.v[r]), x.v[r], y.v[r]);
    return y;
}
WM_INLINE uint32_t lanes_which(lanes a, lanes b) {
    const uint32x4_t bits = {1, 2, 4, 8};
    uint32_t which = 0;
    EACH which |= vaddvq_u32(vandq_u32(vcgeq_f32(a.v[r], b.v[r]), bits)) << 4 * r;
    return which;
}
WM_INLINE void lanes_transpose(const float *const rows[16], uint64_t at, float (*to)[16]) {
    for (int k = 0; k < 16; k++)
        for (int i = 0; i < 8; i++) to[i][k] = rows[k][at + (uint64_t)i];
}
WM_INLINE words words_all(uint32_t value) {
    words w;
    EACH w.v[r] = vdupq_n_u32(value);
    return w;
}
WM_INLINE words words_join(words w, lanes a, uint32_t mask, unsigned shift) {
    EACH w.v[r] =
        vorrq_u32(w.v[r], vshlq_u32(vandq_u32(vreinterpretq_u32_f32(a.v[r]), vdupq_n_u32(mask)), vdupq_n_s32((int32_t)shift)));
    return w;
}
WM_INLINE words words_pair(lanes a, lanes b) {
    words w;
    EACH w.v[r] = vsliq_n_u32(vreinterpretq_u32_f32(a.v[r]), vreinterpretq_u32_f32(b.v[r]), 16);
    return w;
}
WM_INLINE void words_store(uint32_t *to, words w) { EACH vst1q_u32(to + 4 * r, w.v[r]); }

/* Adds the products of the two elements of a lane. */
WM_INLINE void correlate_lanes(const uint32_t (*y)[16], uint64_t pairs, const words inverse[2], int bits, lanes yq[2],
                               lanes qq[2]) {
    const int16x8_t lowest = vdupq_n_s16((int16_t)-(1 << (bits - 1)));
    const int16x8_t highest = vdupq_n_s16((int16_t)((1 << (bits - 1)) - 1)), down = vdupq_n_s16((int16_t)(bits - 15));
    for (int k = 0; k < 2; k++) {
        int32x4_t a[4], b[4];
        EACH a[r] = b[r] = vdupq_n_s32(0);
        for (uint64_t i = 0; i < pairs; i++) EACH {
                const int16x8_t values = vreinterpretq_s16_u32(vld1q_u32(y[i] + 4 * r));
                int16x8_t q = vrshlq_s16(vqrdmulhq_s16(values, vreinterpretq_s16_u32(inverse[k].v[r])), down);
                q = vminq_s16(vmaxq_s16(q, lowest), highest);
                a[r] = vaddq_s32(a[r], vpaddq_s32(vmull_s16(vget_low_s16(values), vget_low_s16(q)), vmull_high_s16(values, q)));
                b[r] = vaddq_s32(b[r], vpaddq_s32(vmull_s16(vget_low_s16(q), vget_low_s16(q)), vmull_high_s16(q, q)));
            }
        EACH yq[k].v[r] = vcvtq_f32_s32(a[r]);
        EACH qq[k].v[r] = vcvtq_f32_s32(b[r]);
    }
}

#include "quant/quantize_block.h"
#endif
