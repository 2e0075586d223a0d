/* Shared by the CRC-32 kernels of x86-64: folding one block of 128 bits; crc32_pclmulqdq.c explains it. */
#ifndef WEIGHTMAP_X86_CRC32_X86_H
#define WEIGHTMAP_X86_CRC32_X86_H
#include <immintrin.h>

#include "../crc32_constants.h"
#include "../internal.h"

#define FOLD(n) _mm_set_epi64x((int64_t)CRC32_FOLD_##n##_HIGH, (int64_t)CRC32_FOLD_##n##_LOW)
/* Distance in bytes at which the kernels prefetch: the best one measured for data in memory, harmless in caches. The
 * hardware prefetches only within a page of 4 KiB; this crosses into the next. */
enum { AHEAD = 4096 };

/* Folds `r` onto `next`; `k` holds the constants for the distance between them. */
WM_TARGET("sse4.2,pclmul") WM_INLINE __m128i fold_block(__m128i r, __m128i next, __m128i k) {
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(r, k, 0x00), next), _mm_clmulepi64_si128(r, k, 0x11));
}
#endif
