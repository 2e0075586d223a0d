/* The `codes` of ggml_blocks.h in an AVX2 register; AVX-512 uses them too. */
#include <immintrin.h>

typedef __m256i codes;

TARGET WM_INLINE __m128i load16(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }
TARGET WM_INLINE codes load32(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }

TARGET WM_INLINE codes nibbles(const uint8_t *p) {
    const __m128i both = load16(p);
    const __m256i split = _mm256_inserti128_si256(_mm256_castsi128_si256(both), _mm_srli_epi16(both, 4), 1);
    return _mm256_and_si256(split, _mm256_set1_epi8(15));
}

TARGET WM_INLINE codes nibbles8(const uint8_t *p) {
    const __m128i both = load16(p), low = _mm_and_si128(both, _mm_set1_epi8(15));
    const __m128i high = _mm_and_si128(_mm_srli_epi16(both, 4), _mm_set1_epi8(15));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi64(low, high)), _mm_unpackhi_epi64(low, high), 1);
}

TARGET WM_INLINE codes of_words(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    return _mm256_set_epi64x((long long)d, (long long)c, (long long)b, (long long)a);
}

/* The mask removes the bits that a neighbouring byte shifts in. */
TARGET WM_INLINE codes field(codes c, int shift, int mask) {
    const __m256i moved = shift < 0 ? _mm256_slli_epi16(c, -shift) : shift > 0 ? _mm256_srli_epi16(c, shift) : c;
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)mask));
}

TARGET WM_INLINE codes plus(codes c, int n) { return _mm256_add_epi8(c, _mm256_set1_epi8((char)n)); }
TARGET WM_INLINE codes add(codes a, codes b) { return _mm256_add_epi8(a, b); }
TARGET WM_INLINE codes lookup(const int8_t *table, codes c) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load16((const uint8_t *)table)), c);
}
TARGET WM_INLINE float half_at(const uint8_t *p) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(load_le16(p)))); }
