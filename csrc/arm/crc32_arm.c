/* CRC-32 on arm64: two kernels; choose() takes the one that suits the CPU.
 *
 * crc32_arm_crc_pmull uses the CRC instructions. Each takes eight bytes; one can begin every cycle, but its result needs
 * three cycles. So three streams run side by side, each through a third of a block of fixed size. At the end of the block
 * the first two registers must be moved past the bytes that follow them: multiplied by x^(8 * bytes). A PMULL by a
 * constant gives 64 bits, which a CRC instruction reduces modulo P. That instruction also multiplies by x^32, and
 * reflection by x (see x86/crc32_fold.h), so the constants are x^(8 * bytes - 33).
 *
 * crc32_arm_pmull folds as x86/crc32_fold.h does; two CRC instructions reduce the last 128 bits. It is the kernel for
 * Apple's cores, which have several units for multiplication.
 */
#include "core/internal.h"

#if WM_ARM
#include <arm_acle.h>
#include <arm_neon.h>

#include "core/crc32_constants.h"

#if defined(__clang__)
#define TARGET WM_TARGET("crc,aes")
#define CRC_8(state, byte) __builtin_arm_crc32b(state, byte)
#define CRC_32(state, word) __builtin_arm_crc32w(state, word)
#define CRC_64(state, words) __builtin_arm_crc32d(state, words)
#else
#define TARGET WM_TARGET("+crc,+crypto")
#define CRC_8(state, byte) __crc32b(state, byte)
#define CRC_32(state, word) __crc32w(state, word)
#define CRC_64(state, words) __crc32d(state, words)
#endif

/* Returns the 128-bit product of two 64-bit polynomials, not reduced. */
TARGET WM_INLINE uint64x2_t multiply(uint64_t a, uint64_t b) {
    return vreinterpretq_u64_p128(vmull_p64((poly64_t)a, (poly64_t)b));
}

/* Advances the CRC over any number of bytes, eight per instruction. */
TARGET WM_INLINE uint32_t crc_short(uint32_t state, const uint8_t *data, size_t len) {
    for (; len >= 8; data += 8, len -= 8) state = CRC_64(state, load_le64(data));
    if (len & 4) {
        state = CRC_32(state, load_le32(data));
        data += 4;
    }
    for (len &= 3; len; len--) state = CRC_8(state, *data++);
    return state;
}

/* Advances the CRC `a` over one block: three streams of `stride` bytes. */
TARGET WM_INLINE uint32_t crc_block(uint32_t a, const uint8_t *data, size_t stride, uint32_t skip_one, uint32_t skip_two) {
    uint32_t b = 0, c = 0;
    for (size_t i = 0; i < stride; i += 8) {
        a = CRC_64(a, load_le64(data + i));
        b = CRC_64(b, load_le64(data + stride + i));
        c = CRC_64(c, load_le64(data + 2 * stride + i));
    }
    uint64_t moved = vgetq_lane_u64(veorq_u64(multiply(a, skip_two), multiply(b, skip_one)), 0);
    return CRC_64(0, moved) ^ c;
}

TARGET uint32_t crc32_arm_crc_pmull(uint32_t state, const uint8_t *data, size_t len) {
    for (; len >= 3 * 1024; data += 3 * 1024, len -= 3 * 1024)
        state = crc_block(state, data, 1024, CRC32_SKIP_1024, CRC32_SKIP_2048);
    for (; len >= 3 * 128; data += 3 * 128, len -= 3 * 128) state = crc_block(state, data, 128, CRC32_SKIP_128, CRC32_SKIP_256);
    return crc_short(state, data, len);
}

TARGET WM_INLINE uint64x2_t load(const uint8_t *p) { return vreinterpretq_u64_u8(vld1q_u8(p)); }

/* Folds `r` onto `next`; `k` holds the constants for the distance between them. */
TARGET WM_INLINE uint64x2_t fold(uint64x2_t r, uint64x2_t next, uint64x2_t k) {
    uint64x2_t low = multiply(vgetq_lane_u64(r, 0), vgetq_lane_u64(k, 0));
    uint64x2_t high = vreinterpretq_u64_p128(vmull_high_p64(vreinterpretq_p64_u64(r), vreinterpretq_p64_u64(k)));
    return veorq_u64(veorq_u64(low, next), high);
}

#define FOLD(n) vcombine_u64(vcreate_u64(CRC32_FOLD_##n##_LOW), vcreate_u64(CRC32_FOLD_##n##_HIGH))

TARGET uint32_t crc32_arm_pmull(uint32_t state, const uint8_t *data, size_t len) {
    enum { REGISTERS = 8, STEP = 16 * REGISTERS };
    if (len < 2 * STEP) return crc_short(state, data, len);
    const uint64x2_t k8 = FOLD(8), k4 = FOLD(4), k2 = FOLD(2), k1 = FOLD(1);
    uint64x2_t x[REGISTERS];
    for (int i = 0; i < REGISTERS; i++) x[i] = load(data + 16 * i);
    x[0] = veorq_u64(x[0], vcombine_u64(vcreate_u64(state), vcreate_u64(0)));
    data += STEP;
    len -= STEP;
    for (; len >= STEP; data += STEP, len -= STEP)
        for (int i = 0; i < REGISTERS; i++) x[i] = fold(x[i], load(data + 16 * i), k8);
    for (int i = 0; i < 4; i++) x[i] = fold(x[i], x[i + 4], k4);
    uint64x2_t last = fold(fold(x[0], x[2], k2), fold(x[1], x[3], k2), k1);
    state = CRC_64(CRC_64(0, vgetq_lane_u64(last, 0)), vgetq_lane_u64(last, 1));
    return crc_short(state, data, len);
}
#endif
