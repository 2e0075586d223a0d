/* CRC-32 by PCLMULQDQ, a block in a register of 16 bytes: see crc32_fold.h. */
#include "core/internal.h"

#if WM_X86
#include "x86/crc32_x86.h"

#define KERNEL crc32_x86_pclmulqdq
#define TARGET WM_TARGET("sse4.2,pclmul")
typedef __m128i vector;
#define EACH(n) FOLD(n)
#define K1 EACH(1)
#define K2 EACH(2)
#define K4 EACH(4)
#define K8 EACH(8)
#define K16 EACH(16)

TARGET WM_INLINE vector load(const uint8_t *p) { return load_block(p); }
TARGET WM_INLINE vector begin(vector x, uint32_t state) { return _mm_xor_si128(x, _mm_cvtsi32_si128((int)state)); }
TARGET WM_INLINE vector fold(vector x, vector next, vector k) { return fold_block(x, next, k); }
/* c<i>, if bit n - i of P is one, added to x. */
#define ADD(x, n, i) (CRC32_P >> ((n) - (i)) & 1 ? _mm_xor_si128(x, c##i) : (x))
#define SPREAD_4(n) ADD(ADD(ADD(ADD(AT(n), n, 0), n, 1), n, 2), n, 3)
#define SPREAD(n) ADD(ADD(ADD(ADD(SPREAD_4(n), n, 4), n, 5), n, 6), n, 7)
TARGET WM_INLINE __m128i one_block(vector x) { return x; }

#include "x86/crc32_fold.h"
#endif
