/* Decodes quantised blocks, eight elements at a time (NEON), and rounds floats to float16: see decode_block.h.
 *
 * Of eight fields, field j begins at bit (bits * j) % 8 of byte bits * j / 8 and lies within two bytes. A table look-up
 * brings both bytes into the 16-bit lane j. The lane is shifted up until the field's sign is its highest bit, and down
 * again: that leaves q, which is widened, converted and multiplied by the scale.
 */
#include "quant/intblock.h"

#if WM_ARM
#include <arm_neon.h>

#define TARGET
#define SUFFIX arm_neon
#define STREAMS 0
#define DECODES_MIXED 0
enum { LANES = 8, LOAD = 8 };
typedef struct {
    float32x4_t low, high;
} vector;

typedef struct {
    uint8x16_t place; /* the two bytes of each lane */
    int16x8_t shift;  /* how far each lane moves up */
    float32x4_t scale;
} decoder;

WM_INLINE decoder make_decoder(int bits) {
    uint8_t place[2 * LANES];
    int16_t shift[LANES];
    for (int j = 0; j < LANES; j++) {
        place[2 * j] = (uint8_t)(bits * j / 8);
        place[2 * j + 1] = (uint8_t)(bits * j / 8 + 1);
        shift[j] = (int16_t)(16 - bits - bits * j % 8);
    }
    return (decoder){.place = vld1q_u8(place), .shift = vld1q_s16(shift)};
}

WM_INLINE void set_scale(decoder *d, const uint8_t *at, int scale_type, int bits) {
    d->scale = scale_type == WM_SCALE_FP16 ? vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(load_le16(at))))
                                           : vdupq_n_f32(float_of_bits(load_le32(at)));
}

WM_INLINE vector decode(const decoder *d, const uint8_t *codes, int bits) {
    const uint8x8_t bytes = vld1_u8(codes);
    int16x8_t q;
    if (bits == 8) {
        q = vmovl_s8(vreinterpret_s8_u8(bytes));
    } else {
        const uint8x16_t placed = vqtbl1q_u8(vcombine_u8(bytes, bytes), d->place);
        const int16x8_t up = vshlq_s16(vreinterpretq_s16_u8(placed), d->shift);
        q = bits == 4 ? vshrq_n_s16(up, 12) : vshrq_n_s16(up, 11);
    }
    return (vector){vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(q))), d->scale),
                    vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_high_s16(q))), d->scale)};
}

WM_INLINE void store(vector values, int half, uint8_t *out) {
    if (half) {
        vst1_u8(out, vreinterpret_u8_f16(vcvt_f16_f32(values.low)));
        vst1_u8(out + 8, vreinterpret_u8_f16(vcvt_f16_f32(values.high)));
    } else {
        vst1q_u8(out, vreinterpretq_u8_f32(values.low));
        vst1q_u8(out + 16, vreinterpretq_u8_f32(values.high));
    }
}

#include "quant/decode_block.h"

void narrow_arm_neon(const float *values, uint64_t n, uint8_t *out) {
    for (; n >= LANES; n -= LANES, values += LANES, out += 2 * LANES) {
        vst1_u8(out, vreinterpret_u8_f16(vcvt_f16_f32(vld1q_f32(values))));
        vst1_u8(out + 8, vreinterpret_u8_f16(vcvt_f16_f32(vld1q_f32(values + 4))));
    }
    narrow_portable(values, n, out);
}
#endif
