/* Folding by multiplication, one block in a register, of any length: for the files of PCLMULQDQ, whose first one explains it. */
#include "crc32_x86.h"

#define TARGET WM_TARGET("sse4.2,pclmul")
typedef __m128i vector;
#define EACH(n) FOLD(n)
#define K1 EACH(1)
#define K2 EACH(2)
#define K4 EACH(4)
#define K8 EACH(8)

TARGET WM_INLINE vector load(const uint8_t *p) { return load_block(p); }
TARGET WM_INLINE vector fold(vector r, vector next, vector k) { return fold_block(r, next, k); }
TARGET WM_INLINE vector begin(vector x, uint32_t state) { return _mm_xor_si128(x, _mm_cvtsi32_si128((int)state)); }
TARGET WM_INLINE __m128i one_block(vector x) { return x; }

#include "crc32_fold.h"

/* 4 to 15 bytes, moved to the end of 128 bits. The zeros in front leave nothing, since the register is XORed onto the first
 * four bytes, wherever those lie. Two loads that overlap replace a loop. */
TARGET WM_INLINE uint32_t crc_4_to_15(uint32_t state, const uint8_t *data, size_t len) {
    if (len >= 8) {
        int past = 8 * ((int)len - 8); /* bits beyond the first eight bytes */
        uint64_t first = load_le64(data) ^ state;
        uint64_t low = first << (56 - past) << 8; /* two shifts, as one by 64 is not defined */
        uint64_t high = load_le64(data + len - 8) ^ (uint64_t)state >> past;
        return reduce(_mm_set_epi64x((int64_t)high, (int64_t)low));
    }
    int past = 8 * ((int)len - 4);
    uint32_t first = load_le32(data) ^ state;
    uint32_t low = first << (24 - past) << 8;
    uint32_t high = load_le32(data + len - 4) ^ state >> past;
    return reduce(_mm_set_epi64x((int64_t)((uint64_t)high << 32 | low), 0));
}

TARGET WM_INLINE uint32_t any_length(uint32_t state, const uint8_t *data, size_t len) {
    if (len >= FOUR) return fold_all(state, data, len);
    if (len >= 16) return finish_blocks(begin(load(data), state), data + 16, len - 16);
    return len < 4 ? crc32_portable(state, data, len) : crc_4_to_15(state, data, len);
}

/* A step of the ring of additions, see crc32_add.h. */
enum { FOLDED = 2 };
TARGET WM_INLINE void fold_step(vector *x, const uint8_t *p) {
    x[0] = fold(x[0], load(p), K2);
    x[1] = fold(x[1], load(p + 16), K2);
}
