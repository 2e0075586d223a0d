/* Decodes ggml's blocks with NEON: see ggml_blocks.h. */
#include "quant/ggml.h"

#if WM_ARM
#include <arm_neon.h>

#define TARGET
#define SUFFIX arm_neon
#define ODD ggml_portable

typedef uint8x16x2_t codes;

WM_INLINE codes pair(uint8x16_t low, uint8x16_t high) { return (codes){{low, high}}; }
WM_INLINE codes load32(const uint8_t *p) { return pair(vld1q_u8(p), vld1q_u8(p + 16)); }
WM_INLINE codes nibbles(const uint8_t *p) {
    const uint8x16_t both = vld1q_u8(p);
    return pair(vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8(both, 4));
}
WM_INLINE codes nibbles8(const uint8_t *p) {
    const codes split = nibbles(p);
    return pair(vcombine_u8(vget_low_u8(split.val[0]), vget_low_u8(split.val[1])),
                vcombine_u8(vget_high_u8(split.val[0]), vget_high_u8(split.val[1])));
}
WM_INLINE codes of_words(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    return pair(vcombine_u8(vcreate_u8(a), vcreate_u8(b)), vcombine_u8(vcreate_u8(c), vcreate_u8(d)));
}
WM_INLINE codes field(codes c, int shift, int mask) {
    const int8x16_t up = vdupq_n_s8((int8_t)-shift);
    const uint8x16_t masks = vdupq_n_u8((uint8_t)mask);
    return pair(vandq_u8(vshlq_u8(c.val[0], up), masks), vandq_u8(vshlq_u8(c.val[1], up), masks));
}
WM_INLINE codes add(codes a, codes b) { return pair(vaddq_u8(a.val[0], b.val[0]), vaddq_u8(a.val[1], b.val[1])); }
WM_INLINE codes plus(codes c, int n) { return add(c, pair(vdupq_n_u8((uint8_t)n), vdupq_n_u8((uint8_t)n))); }
/* 255 where a bit is set. */
WM_INLINE codes where_set(uint32_t word) {
    const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    return pair(vtstq_u8(vcombine_u8(vdup_n_u8((uint8_t)word), vdup_n_u8((uint8_t)(word >> 8))), bit),
                vtstq_u8(vcombine_u8(vdup_n_u8((uint8_t)(word >> 16)), vdup_n_u8((uint8_t)(word >> 24))), bit));
}
WM_INLINE codes bits(uint32_t word, int value) { return field(where_set(word), 0, value); }
WM_INLINE codes negate(codes c, uint32_t word) {
    const codes all = where_set(word);
    return pair(vsubq_u8(veorq_u8(c.val[0], all.val[0]), all.val[0]), vsubq_u8(veorq_u8(c.val[1], all.val[1]), all.val[1]));
}
WM_INLINE codes lookup(const int8_t *table, codes c) {
    const uint8x16_t values = vreinterpretq_u8_s8(vld1q_s8(table));
    return pair(vqtbl1q_u8(values, c.val[0]), vqtbl1q_u8(values, c.val[1]));
}
WM_INLINE float half_at(const uint8_t *p) {
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(load_le16(p)))), 0);
}

/* Four floats of each half of eight numbers. */
WM_INLINE float32x4_t lower(int16x8_t n) { return vcvtq_f32_s32(vmovl_s16(vget_low_s16(n))); }
WM_INLINE float32x4_t upper(int16x8_t n) { return vcvtq_f32_s32(vmovl_s16(vget_high_s16(n))); }

WM_INLINE void put_eight(float *out, uint8x8_t c, float s) {
    const int16x8_t n = vmovl_s8(vreinterpret_s8_u8(c));
    vst1q_f32(out, vmulq_n_f32(lower(n), s));
    vst1q_f32(out + 4, vmulq_n_f32(upper(n), s));
}
WM_INLINE void put_eight_sum(float *out, uint8x8_t c, float s, float x) {
    const int16x8_t n = vmovl_s8(vreinterpret_s8_u8(c));
    const float32x4_t offset = vdupq_n_f32(x);
    vst1q_f32(out, vaddq_f32(vmulq_n_f32(lower(n), s), offset));
    vst1q_f32(out + 4, vaddq_f32(vmulq_n_f32(upper(n), s), offset));
}
WM_INLINE void products(float *out, uint64_t v, uint64_t w, float a, float b) {
    put_eight(out, vcreate_u8(v), a);
    put_eight(out + 8, vcreate_u8(w), b);
}
WM_INLINE void put(float *out, codes c, float s, float t) {
    put_eight(out, vget_low_u8(c.val[0]), s);
    put_eight(out + 8, vget_high_u8(c.val[0]), s);
    put_eight(out + 16, vget_low_u8(c.val[1]), t);
    put_eight(out + 24, vget_high_u8(c.val[1]), t);
}
WM_INLINE void put_sum(float *out, codes c, float s, float x, float t, float y) {
    put_eight_sum(out, vget_low_u8(c.val[0]), s, x);
    put_eight_sum(out + 8, vget_high_u8(c.val[0]), s, x);
    put_eight_sum(out + 16, vget_low_u8(c.val[1]), t, y);
    put_eight_sum(out + 24, vget_high_u8(c.val[1]), t, y);
}

/* 85 and 170 are less than one and two thirds of 256. */
WM_INLINE void put_trits(float *out, int step, const uint8_t *p, int n, float d) {
    uint8x16_t c = vld1q_u8(p);
    for (int k = 0; k < n; k++, c = vmulq_u8(c, vdupq_n_u8(3))) {
        /* Comparisons give 0 or -1: their sum is the digit negated, and its complement the digit less 1. */
        const uint8x16_t digit = vmvnq_u8(vaddq_u8(vcgtq_u8(c, vdupq_n_u8(85)), vcgtq_u8(c, vdupq_n_u8(170))));
        put_eight(out + step * k, vget_low_u8(digit), d);
        put_eight(out + step * k + 8, vget_high_u8(digit), d);
    }
}

#include "quant/ggml_blocks.h"
#endif
