/* Decoding of quantised blocks, eight elements at a time (NEON), and rounding to float16.
 *
 * Field j of eight begins at bit (bits * j) % 8 of byte bits * j / 8 and lies within two bytes. So both bytes go to lane j of
 * 16 bits; shifting the lane up until the field's sign is its highest bit, and down again, leaves q, which is widened,
 * converted and multiplied.
 */
#include "../intblock.h"

#if WM_ARM
#include <arm_neon.h>

enum { LANES = 8, LOAD = 8 };

typedef struct {
    uint8x16_t place; /* which two bytes go to each lane */
    int16x8_t shift;  /* and how far up they are moved */
} decoder;

static inline decoder make_decoder(int bits) {
    uint8_t place[2 * LANES];
    int16_t shift[LANES];
    for (int j = 0; j < LANES; j++) {
        place[2 * j] = (uint8_t)(bits * j / 8);
        place[2 * j + 1] = (uint8_t)(bits * j / 8 + 1);
        shift[j] = (int16_t)(16 - bits - bits * j % 8);
    }
    return (decoder){vld1q_u8(place), vld1q_s16(shift)};
}

/* Eight values, of fields that begin with the first of these eight bytes. */
WM_INLINE void decode(const decoder *d, uint8x8_t bytes, float32x4_t scale, int bits, int half, uint8_t *out) {
    int16x8_t q;
    if (bits == 8) {
        q = vmovl_s8(vreinterpret_s8_u8(bytes));
    } else {
        const uint8x16_t placed = vqtbl1q_u8(vcombine_u8(bytes, bytes), d->place);
        const int16x8_t up = vshlq_s16(vreinterpretq_s16_u8(placed), d->shift);
        q = bits == 4 ? vshrq_n_s16(up, 12) : vshrq_n_s16(up, 11);
    }
    const float32x4_t low = vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(q))), scale);
    const float32x4_t high = vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_high_s16(q))), scale);
    if (half) {
        vst1_u8(out, vreinterpret_u8_f16(vcvt_f16_f32(low)));
        vst1_u8(out + 8, vreinterpret_u8_f16(vcvt_f16_f32(high)));
    } else {
        vst1q_u8(out, vreinterpretq_u8_f32(low));
        vst1q_u8(out + 16, vreinterpretq_u8_f32(high));
    }
}

WM_INLINE float32x4_t load_scale_lanes(const uint8_t *at, int scale_type) {
    return scale_type == WM_SCALE_FP16 ? vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(load_le16(at))))
                                       : vdupq_n_f32(float_of_bits(load_le32(at)));
}

/* Eight values for each of `groups` groups, with whole loads. */
WM_INLINE void decode_groups(const decoder *d, float32x4_t scale, const uint8_t *codes, uint64_t groups, int bits, int half,
                             uint8_t *out) {
    for (uint64_t i = 0; i < groups; i++, codes += bits, out += LANES * value_bytes(half))
        decode(d, vld1_u8(codes), scale, bits, half, out);
}

/* Run r, of any length, with any scale, and however near the end of the data. */
WM_INLINE void decode_one(const wm_runs *w, uint64_t r, int bits, int half, uint8_t *out) {
    const uint8_t *codes = w->codes + r * w->stride, *scales = w->scales + r * w->scale_stride;
    const uint64_t step = (uint64_t)(bits), room = (uint64_t)(w->end - codes), size = value_bytes(half);
    if (scale_is_odd(scales, w->scale_type)) {
        decode_odd(w, r, out);
        return;
    }
    const decoder d = make_decoder(bits);
    const float32x4_t scale = load_scale_lanes(scales, w->scale_type);
    /* A load takes eight bytes, whatever the codes take: those near the end of the data are copied first. */
    const uint64_t fit = room < LOAD ? 0 : (room - LOAD) / step + 1, whole = fit < w->len / LANES ? fit : w->len / LANES;
    decode_groups(&d, scale, codes, whole, bits, half, out);
    codes += whole * step;
    out += whole * LANES * size;
    for (uint64_t left = w->len - whole * LANES; left;) {
        const uint64_t n = left < LANES ? left : LANES;
        uint8_t bytes[LOAD] = {0}, values[LANES * sizeof(float)];
        memcpy(bytes, codes, code_bytes(bits, n));
        decode(&d, vld1_u8(bytes), scale, bits, half, values);
        memcpy(out, values, n * size);
        left -= n, codes += step, out += n * size;
    }
}

/* Up to `runs` runs that need no such care, of `len` codes; returns how many there were before an odd scale. */
WM_INLINE uint64_t decode_plain(const wm_runs *w, uint64_t runs, int bits, uint64_t len, int scale_type, int half, uint8_t *out) {
    const uint8_t *scales = w->scales, *codes = w->codes;
    const uint64_t scale_stride = w->scale_stride, stride = w->stride;
    const decoder d = make_decoder(bits);
    uint64_t r = 0;
    for (; r < runs; r++, scales += scale_stride, codes += stride, out += len * value_bytes(half)) {
        if (scale_is_odd(scales, scale_type)) break;
        decode_groups(&d, load_scale_lanes(scales, scale_type), codes, len / LANES, bits, half, out);
    }
    return r;
}

WM_INLINE void decode_runs(const wm_runs *runs, int bits, int half, uint8_t *out) {
    for (wm_runs w = *runs; w.runs;) {
        uint64_t plain = w.len % LANES ? 0 : wm_runs_within(&w, LOAD);
        if (plain && w.len == 32 && w.scale_type == WM_SCALE_FP16) /* the usual block */
            plain = decode_plain(&w, plain, bits, 32, WM_SCALE_FP16, half, out);
        else if (plain)
            plain = decode_plain(&w, plain, bits, w.len, w.scale_type, half, out);
        wm_runs_skip(&w, plain, &out);
        if (w.runs) { /* one that is odd, or near the end */
            decode_one(&w, 0, bits, half, out);
            wm_runs_skip(&w, 1, &out);
        }
    }
}

void intblock_arm_neon(const wm_runs *runs, void *out) {
    DECODE_EACH_KIND(decode_runs, runs, out)
}

void narrow_arm_neon(const float *values, uint64_t n, uint8_t *out) {
    for (; n >= LANES; n -= LANES, values += LANES, out += 2 * LANES) {
        vst1_u8(out, vreinterpret_u8_f16(vcvt_f16_f32(vld1q_f32(values))));
        vst1_u8(out + 8, vreinterpret_u8_f16(vcvt_f16_f32(vld1q_f32(values + 4))));
    }
    narrow_portable(values, n, out);
}
#endif
