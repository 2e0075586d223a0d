/* CRC-32 by PCLMULQDQ and additions at once; crc32_mixed_avx2.h explains it. */
#include "../internal.h"

#if WM_X86
#include "crc32_x86.h"

#define TARGET WM_TARGET("avx2,pclmul")
#define MIXED crc32_x86_mixed_pclmulqdq_avx2
#define PLAIN crc32_x86_pclmulqdq_avx2
typedef __m128i folded_type;
enum { FOLDED = 2 };

TARGET WM_INLINE void fold_step(__m128i *x, const uint8_t *p) {
    const __m128i k = FOLD(2);
    x[0] = fold_block(x[0], load_block(p), k);
    x[1] = fold_block(x[1], load_block(p + 16), k);
}

#include "crc32_mixed_avx2.h"
#endif
