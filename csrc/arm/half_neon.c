/* Converts halves to floats on arm64, eight at a time. FCVTL does what half.c spells out, and ignores the modes that flush
 * subnormal numbers to zero. No streaming stores: these CPUs notice that whole lines are written and do not read them.
 */
#include "core/internal.h"

#if WM_ARM
#include <arm_neon.h>

enum { LANES = 8, STEP = 4 * LANES };
enum { F16, BF16 };

WM_INLINE void widen(const uint8_t *in, float *out, int kind) {
    const uint16x8_t halves = vreinterpretq_u16_u8(vld1q_u8(in));
    if (kind == F16) {
        vst1q_f32(out, vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(halves))));
        vst1q_f32(out + 4, vcvt_high_f32_f16(vreinterpretq_f16_u16(halves)));
    } else {
        vst1q_f32(out, vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(halves), 16)));
        vst1q_f32(out + 4, vreinterpretq_f32_u32(vshll_high_n_u16(halves, 16)));
    }
}

WM_INLINE void convert(const uint8_t *in, float *out, uint64_t n, int kind) {
    for (; n >= STEP; in += 2 * STEP, out += STEP, n -= STEP)
        for (int i = 0; i < STEP; i += LANES) widen(in + 2 * i, out + i, kind);
    for (; n >= LANES; in += 2 * LANES, out += LANES, n -= LANES) widen(in, out, kind);
    (kind == F16 ? f16_to_f32_portable : bf16_to_f32_portable)(in, out, n, 0);
}

void f16_to_f32_arm_neon(const uint8_t *in, float *out, uint64_t n, int storing) { convert(in, out, n, F16); }

void bf16_to_f32_arm_neon(const uint8_t *in, float *out, uint64_t n, int storing) { convert(in, out, n, BF16); }
#endif
