/* The block types of ggml (GGUF): their sizes, and helpers of the files that decode and quantise them.
 *
 * A type cuts each row of a tensor into blocks of 32 to 256 elements. A block has its own scales and decodes by itself.
 */
#ifndef WEIGHTMAP_GGML_H
#define WEIGHTMAP_GGML_H
#include "quant/intblock.h"

/* X(name, its number in a file, elements of a block, bytes of a block, whether the scales of block b are finite) */
#define WM_GGML_TYPES(X)                                                   \
    X(q4_0, 2, 32, 18, half_is_finite(b))                                  \
    X(q4_1, 3, 32, 20, half_is_finite(b) && half_is_finite(b + 2))         \
    X(q5_0, 6, 32, 22, half_is_finite(b))                                  \
    X(q5_1, 7, 32, 24, half_is_finite(b) && half_is_finite(b + 2))         \
    X(q8_0, 8, 32, 34, half_is_finite(b))                                  \
    X(q2_k, 10, 256, 84, half_is_finite(b + 80) && half_is_finite(b + 82)) \
    X(q3_k, 11, 256, 110, half_is_finite(b + 108))                         \
    X(q4_k, 12, 256, 144, half_is_finite(b) && half_is_finite(b + 2))      \
    X(q5_k, 13, 256, 176, half_is_finite(b) && half_is_finite(b + 2))      \
    X(q6_k, 14, 256, 210, half_is_finite(b + 208))                         \
    X(iq2_xxs, 16, 256, 66, half_is_finite(b))                             \
    X(iq2_xs, 17, 256, 74, half_is_finite(b))                              \
    X(iq3_xxs, 18, 256, 98, half_is_finite(b))                             \
    X(iq1_s, 19, 256, 50, half_is_finite(b))                               \
    X(iq4_nl, 20, 32, 18, half_is_finite(b))                               \
    X(iq3_s, 21, 256, 110, half_is_finite(b))                              \
    X(iq2_s, 22, 256, 82, half_is_finite(b))                               \
    X(iq4_xs, 23, 256, 136, half_is_finite(b))                             \
    X(iq1_m, 29, 256, 56, (iq1_m_scale(b) & 0x7C00) != 0x7C00)             \
    X(tq1_0, 34, 256, 54, half_is_finite(b + 52))                          \
    X(tq2_0, 35, 256, 66, half_is_finite(b + 64))                          \
    X(mxfp4, 39, 32, 17, 1)                                                \
    X(nvfp4, 40, 64, 36, 1)                                                \
    X(q1_0, 41, 128, 18, half_is_finite(b))                                \
    X(q2_0, 42, 64, 18, half_is_finite(b))

#define WM_GGML_NUMBER(name, number, elements, bytes, finite) WM_GGML_##name = number,
enum { WM_GGML_TYPES(WM_GGML_NUMBER) };
#undef WM_GGML_NUMBER
enum { WM_GGML_MOST = 256 }; /* elements of a block */

static inline int half_is_finite(const uint8_t *p) { return (load_le16(p) & 0x7C00) != 0x7C00; }
/* The scale of an iq1_m block: the top four bits of each of its last four 16-bit numbers. */
static inline uint16_t iq1_m_scale(const uint8_t *b) {
    return (uint16_t)(b[49] >> 4 | b[51] >> 4 << 4 | b[53] >> 4 << 8 | b[55] >> 4 << 12);
}

/* Code books, filled by wm_ggml_fill_grids at load: groups of eight or four values; of iq1 times 8, and once 1 more, once 1 less. */
typedef struct {
    uint8_t iq2_xxs[256][8], iq2_xs[512][8], iq2_s[1024][8], iq1[4096][8];
    uint8_t iq3_xxs[256][4], iq3_s[512][4];
} wm_grids;
extern wm_grids wm_ggml_grids;
void wm_ggml_fill_grids(void);

#endif
