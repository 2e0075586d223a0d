/* Shared by the CRC-32 kernels of x86-64: folding a block of 128 bits. crc32_fold.h explains it. */
#include <immintrin.h>

#include "core/crc32_constants.h"
#include "core/internal.h"

#define FOLD(n) _mm_set_epi64x((int64_t)CRC32_FOLD_##n##_HIGH, (int64_t)CRC32_FOLD_##n##_LOW)

WM_TARGET("sse4.2") WM_INLINE __m128i load_block(const void *p) { return _mm_loadu_si128((const __m128i *)p); }

/* Folds x onto `next`; `k` holds the constants for the distance between them. */
WM_TARGET("sse4.2,pclmul") WM_INLINE __m128i fold_block(__m128i x, __m128i next, __m128i k) {
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), next), _mm_clmulepi64_si128(x, k, 0x11));
}
