/* Shared by the CRC-32 kernels of x86-64: folding blocks of 128 bits, and the end of every kernel; crc32_pclmulqdq.c explains both. */
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

WM_TARGET("sse4.2,pclmul") WM_INLINE __m128i load_block(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }

WM_INLINE void prefetch(const uint8_t *p, int bytes) {
    for (int line = 0; line < bytes; line += 64) _mm_prefetch((const char *)p + line, _MM_HINT_T0);
}

WM_TARGET("avx2") WM_INLINE __m256i load_ymm(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* The remainder of r * x^32. */
WM_TARGET("sse4.2,pclmul") WM_INLINE uint32_t reduce(__m128i r) {
    const __m128i x95_barrett = _mm_set_epi64x((int64_t)CRC32_BARRETT, CRC32_X95);
    const __m128i p = _mm_cvtsi64_si128(CRC32_P);
    __m128i s = _mm_xor_si128(_mm_clmulepi64_si128(r, x95_barrett, 0x00), _mm_srli_si128(r, 8));
    __m128i q = _mm_clmulepi64_si128(s, x95_barrett, 0x10);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(s, _mm_clmulepi64_si128(q, p, 0x00)), 2);
}

/* Shuffles for the last n bytes, 1 to 15. Loaded from crc32_shifts + n they move a register's bytes up by 16 - n, loaded from
 * crc32_shifts + 16 + n down by n. A byte with its top bit set makes a zero. */
static const uint8_t crc32_shifts[48] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
                                         0x80, 0x80, 0x80, 0x80, 0,    1,    2,    3,    4,    5,    6,    7,
                                         8,    9,    10,   11,   12,   13,   14,   15,   0x80, 0x80, 0x80, 0x80,
                                         0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80};

/* x stands for all bytes before `data`; 0 to 15 remain, and at least 16 bytes lie before them in memory. */
WM_TARGET("sse4.2,pclmul") WM_INLINE uint32_t finish(__m128i x, const uint8_t *data, size_t len, __m128i k1) {
    if (len) {
        /* x followed by len bytes is 16 + len bytes: fold the first len of them onto the last 16. */
        __m128i last = load_block(data + len - 16);
        __m128i up = load_block(crc32_shifts + len), down = load_block(crc32_shifts + 16 + len);
        __m128i head = _mm_shuffle_epi8(x, up);
        /* where `down` picks zeros, the bytes of the message stand */
        __m128i tail = _mm_blendv_epi8(_mm_shuffle_epi8(x, down), last, down);
        x = fold_block(head, tail, k1);
    }
    return reduce(x);
}

/* x stands for all bytes before `data`, at least 16 of them. */
WM_TARGET("sse4.2,pclmul") WM_INLINE uint32_t finish_blocks(__m128i x, const uint8_t *data, size_t len) {
    const __m128i k1 = FOLD(1);
    for (; len >= 16; data += 16, len -= 16) x = fold_block(x, load_block(data), k1);
    return finish(x, data, len, k1);
}
#endif
