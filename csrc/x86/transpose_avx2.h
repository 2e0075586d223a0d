/* The transposition of eight by eight floats. */

/* Column i of elements at to at + 7 of eight rows goes to to + 16 * i. */
TARGET WM_INLINE void transpose_eight(const float *const rows[8], uint64_t at, float *to) {
    __m256 a[8], b[8];
    for (int k = 0; k < 8; k++) a[k] = _mm256_loadu_ps(rows[k] + at);
    for (int k = 0; k < 8; k += 2) { /* of two rows, columns 0 1 4 5 and 2 3 6 7 */
        b[k] = _mm256_unpacklo_ps(a[k], a[k + 1]);
        b[k + 1] = _mm256_unpackhi_ps(a[k], a[k + 1]);
    }
    for (int k = 0; k < 8; k += 4) /* of four rows, columns i and i + 4 */
        for (int j = 0; j < 2; j++) {
            a[k + 2 * j] = _mm256_shuffle_ps(b[k + j], b[k + j + 2], 0x44);
            a[k + 2 * j + 1] = _mm256_shuffle_ps(b[k + j], b[k + j + 2], 0xEE);
        }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + 16 * i, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(to + 16 * (i + 4), _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}
