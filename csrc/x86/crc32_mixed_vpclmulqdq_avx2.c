/* CRC-32 by VPCLMULQDQ and additions at once; crc32_mixed_avx2.h explains it. */
#include "../internal.h"

#if WM_X86
#include "crc32_avx2.h"

#define MIXED crc32_x86_mixed_vpclmulqdq_avx2
#define PLAIN crc32_x86_vpclmulqdq_avx2
typedef __m256i folded_type;
enum { FOLDED = 3 };

TARGET WM_INLINE void fold_step(__m256i *x, const uint8_t *p) {
    const __m256i k = FOLD_YMM(6); /* three registers */
    x[0] = fold(x[0], load(p), k);
    x[1] = fold(x[1], load(p + 32), k);
    x[2] = fold(x[2], load(p + 64), k);
}

#include "crc32_mixed_avx2.h"
#endif
