/* CRC-32 by multiplication without carries (PCLMULQDQ); and by this and plain additions at once (AVX2).
 *
 * Folding. Let R be 128 bits of the message, and let the next place of interest lie D bits behind it. Only the remainder
 * modulo P counts, so anything equal to R * x^D modulo P may replace it. With R = L * x^64 + H (two halves of 64 bits) that is
 *     L * (x^(D + 64) mod P) + H * (x^D mod P),
 * two products of 64 by 32 bits. Their sum fits 128 bits again: XORed onto the 128 bits at distance D, it takes R's place.
 * So the message shrinks from the front, 128 bits a step, until 128 bits are left. For D = 128 that is
 *
 *     for (x = load(data); len >= 32; data += 16, len -= 16) x = fold_block(x, load(data + 16), k1);
 *
 * crc32_fold.h runs eight such registers side by side, D = 1024: a product takes several cycles, and seven others begin
 * meanwhile.
 *
 * Reflection. The lowest bit of a register is the highest power of x: bit k of 128 is the coefficient of x^(127 - k),
 * bit k of 64 that of x^(63 - k). The message's first bytes lie lowest and are its highest powers, so a plain load is
 * right, and the *low* quadword is L. Bit i + j of a product is the coefficient of x^(126 - i - j), not x^(127 - i - j): a
 * product comes out multiplied by x, and the exponent of every constant is lower by one to make up for it.
 *
 * The end. 128 bits R to the 32 of R * x^32 mod P:
 *   - Fold L alone: S = L * (x^96 mod P) + H * x^32 has degree 95 at most. It is kept multiplied by x^32, in the
 *     lower 96 bits of the register, so that its upper 64 coefficients are the low quadword.
 *   - Barrett: q = floor(S / P) = floor(floor(S / x^32) * floor(x^95 / P) / x^63), exactly, as nothing carries. Then
 *     the remainder is the 32 lowest coefficients of S + q * P; multiplied by x^32 they are the third 32-bit word.
 *
 * One inline function is compiled twice: for SSE, and for AVX, whose instructions write to a third register and load from
 * any address. The multiplications limit both, but a core shared with another thread gains from fewer instructions.
 */
#include "../internal.h"

#if WM_X86
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

TARGET uint32_t crc32_x86_pclmulqdq(uint32_t state, const uint8_t *data, size_t len) { return any_length(state, data, len); }

#define ADDING WM_TARGET("avx2,pclmul")
ADDING uint32_t crc32_x86_pclmulqdq_avx2(uint32_t state, const uint8_t *data, size_t len) {
    return any_length(state, data, len);
}

/* ------------------------------------------------------------------------------------------------ additions
 * One unit multiplies and limits folding. Additions do a part of the work in the units that it leaves idle.
 *
 * Let S be P or a multiple of it. Modulo 2 a square has no mixed terms, S(x)^2 = S(x^2), so S(x^256) = S(x)^256 is a multiple too. If
 * S has degree n and a term x^e beside x^n, each 32 bytes of the message, dropped, need a copy added n - e times 32 bytes later, for
 * every such e. That takes no constants and no shifts.
 *
 * With S = P there are fourteen copies, the nearest six registers on and the farthest 32. A block is 40 registers: the first eight
 * are added to the others, which are multiplied. Bytes a nanosecond on a Sapphire Rapids at 4, 16 and 64 KiB: 30, 30, 31, and 25, 25,
 * 25 by multiplication alone.
 */
enum { BLOCK = 40 * 32 };

ADDING WM_INLINE __m256i load_ymm(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

typedef struct {
    __m256i s0, s1, s2, s3, s4, s5, s6, s7;
} sources;

/* Register t of a block, a constant, with the sources that have a copy there: bit d - 1 of P, reflected, is the term x^(32 - d). */
#define ADD_SOURCE(c) \
    if (t - c <= 32 && (uint64_t)CRC32_REFLECTED << 1 >> (t - c) & 1) v = _mm256_xor_si256(v, s->s##c)
ADDING WM_INLINE void put_register(__m256i *out, const uint8_t *block, const sources *s, int t) {
    __m256i v = load_ymm(block + 32 * t);
    ADD_SOURCE(0);
    ADD_SOURCE(1);
    ADD_SOURCE(2);
    ADD_SOURCE(3);
    ADD_SOURCE(4);
    ADD_SOURCE(5);
    ADD_SOURCE(6);
    ADD_SOURCE(7);
    _mm256_storeu_si256(out, v);
}

ADDING WM_INLINE eight fold_registers(eight r, const uint8_t *block, const sources *s, int t, vector k) {
    __m256i made[4];
    put_register(made, block, s, t);
    put_register(made + 1, block, s, t + 1);
    put_register(made + 2, block, s, t + 2);
    put_register(made + 3, block, s, t + 3);
#if defined(__GNUC__)
    __asm__("" : "+m"(made)); /* through memory: taking halves out of registers needs the unit that multiplies */
#endif
    return fold_eight(r, (const uint8_t *)made, k);
}

/* For EIGHT bytes or more. */
ADDING WM_NOINLINE uint32_t add_few(uint32_t state, const uint8_t *data, size_t len) {
    const vector k8 = K8, k24 = EACH(24); /* eight blocks of 16 bytes, and over the sources, which are sixteen */
    eight r = load_eight(state, data);
    data += EIGHT;
    len -= EIGHT;
    for (; len >= BLOCK; data += BLOCK, len -= BLOCK) {
        if (len >= AHEAD + BLOCK) prefetch(data + AHEAD, BLOCK);
        sources s = {load_ymm(data),       load_ymm(data + 32),  load_ymm(data + 64),  load_ymm(data + 96),
                     load_ymm(data + 128), load_ymm(data + 160), load_ymm(data + 192), load_ymm(data + 224)};
        s.s6 = _mm256_xor_si256(s.s6, s.s0);
        s.s7 = _mm256_xor_si256(s.s7, s.s1);
        r = fold_registers(r, data, &s, 8, k24);
        r = fold_registers(r, data, &s, 12, k8);
        r = fold_registers(r, data, &s, 16, k8);
        r = fold_registers(r, data, &s, 20, k8);
        r = fold_registers(r, data, &s, 24, k8);
        r = fold_registers(r, data, &s, 28, k8);
        r = fold_registers(r, data, &s, 32, k8);
        r = fold_registers(r, data, &s, 36, k8);
    }
    return finish_eight(r, data, len);
}

/* ------------------------------------------------------------------------------------------------ a ring
 * The multiple of P of least degree with five terms, found by gen_crc32.py, is S(x) = x^300 + x^155 + x^117 + x^89 + 1. So 32 bytes of
 * the message equal their own copies 145, 183, 211 and 300 times 32 bytes later. A ring holds the last 300 registers; the next one
 * is the message XORed with four of the ring, and takes the place of the one 300 before:
 *
 *     ring[i] ^= message ^ ring[i - 145] ^ ring[i - 183] ^ ring[i - 211], each index modulo 300.
 *
 * Two streams. A block is divided in two: additions fold its first part, multiplications its second. Each step takes some of
 * both. At the end of the first part the ring's registers are XORed into the last 9600 bytes, not into each other: these bytes
 * then stand for the whole part. wm_crc32_combine puts both parts together.
 *
 * Both streams of a block together cost half a microsecond beside its steps: a ring of zeros at its start, and at its end 9600
 * bytes to multiply. So the kernel above takes inputs below 110 KiB; on a Sapphire Rapids both take as long for 128 KiB, and the
 * ring 29 us for 1 MiB where the other takes 34. A block ends at 4 MiB, since an operating system that reads a file ahead serves one
 * place better than two that lie far apart.
 *
 * Each register that is added takes five loads, which limit that; and PCLMULQDQ the other part. Bytes a cycle by multiplication alone
 * and with the ring, by the models of llvm-mca 14, data in the first cache: 4.0 and 8.7 on a Haswell, 7.7 and 12.3 on a Skylake, 4.0
 * and 11.3 on a Zen 3. GB/s with data in the second-level cache (1 MiB) and in memory (256 MiB): 15.5, 15.1 and 49.9, 28.4 on a Zen 5.
 */
enum {
    RING = CRC32_ADD_4, /* registers of 32 bytes, as are the other distances */
    NEAR = CRC32_ADD_1,
    MIDDLE = CRC32_ADD_2,
    FAR = CRC32_ADD_3,
    ADDED = 5,            /* registers that a step adds; divides RING and NEAR */
    FOLDED_STEP = 2 * 16, /* bytes that it folds by multiplication */
    ADDED_TURN = RING * 32,
    FOLDED_TURN = RING / ADDED * FOLDED_STEP,
    TURN = ADDED_TURN + FOLDED_TURN,
    WORTH_WHILE = 10 * TURN,
    MOST_TURNS = (4 << 20) / TURN
};

typedef struct {
    const uint8_t *added, *folded; /* what comes next of each part */
    vector x0, x1;
} streams;

/* Adds the message and the registers at three distances to one of the ring. */
ADDING WM_INLINE void add(__m256i *to, const uint8_t *message, ptrdiff_t near, ptrdiff_t middle, ptrdiff_t far) {
    __m256i two = _mm256_xor_si256(load_ymm(message), load_ymm(to));
    __m256i others = _mm256_xor_si256(load_ymm(to + near), load_ymm(to + middle));
    _mm256_store_si256(to, _mm256_xor_si256(_mm256_xor_si256(two, load_ymm(to + far)), others));
}

/* Steps that make the ring's registers from `at` until `end`, or a little further; returns the next one. */
ADDING WM_INLINE __m256i *take(streams *s, __m256i *at, const __m256i *end, ptrdiff_t near, ptrdiff_t middle, ptrdiff_t far) {
    for (; at < end; at += ADDED, s->added += ADDED * 32, s->folded += FOLDED_STEP) {
        prefetch(s->added + AHEAD, ADDED * 32);
        prefetch(s->folded + AHEAD, FOLDED_STEP);
        add(at, s->added, near, middle, far);
        add(at + 1, s->added + 32, near, middle, far);
        add(at + 2, s->added + 64, near, middle, far);
        add(at + 3, s->added + 96, near, middle, far);
        add(at + 4, s->added + 128, near, middle, far);
        s->x0 = fold(s->x0, load(s->folded), K2);
        s->x1 = fold(s->x1, load(s->folded + 16), K2);
    }
    return at;
}

ADDING WM_NOINLINE uint32_t add_ring(uint32_t state, const uint8_t *data, size_t len) {
    /* Aligned: a load that crosses lines of the cache counts twice, and every second one would. */
    const size_t before = (0 - (uintptr_t)data) % sizeof(__m256i);
    state = crc32_x86_pclmulqdq_avx2(state, data, before);
    data += before;
    len -= before;
    do {
        const size_t turns = len / TURN < MOST_TURNS ? len / TURN : MOST_TURNS;
        const size_t added = turns * ADDED_TURN, folded = turns * FOLDED_TURN;
        streams s = {.added = data, .folded = data + added};
        /* Behind the ring lie copies of its first registers, for steps that read past its end, and zeros up to RING - NEAR
         * registers for the last turn. */
        __m256i ring[2 * RING - NEAR];
        memset(ring, 0, sizeof ring);
        ring[0] = _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)state));
        for (size_t turn = 1; turn < turns; turn++) {
            /* Registers at a distance lie behind in the ring or, of the turn before, ahead. */
            __m256i *at = take(&s, ring, ring + NEAR, RING - NEAR, RING - MIDDLE, RING - FAR);
            memcpy(ring + RING, ring, (ADDED - 1) * sizeof *ring);
            at = take(&s, at, ring + MIDDLE, -NEAR, RING - MIDDLE, RING - FAR);
            at = take(&s, at, ring + FAR, -NEAR, -MIDDLE, RING - FAR);
            take(&s, at, ring + RING, -NEAR, -MIDDLE, -FAR);
        }
        /* The last turn takes in the turn before alone. */
        memset(ring + RING, 0, (ADDED - 1) * sizeof *ring);
        take(&s, ring, ring + RING, RING - NEAR, RING - MIDDLE, RING - FAR);
        uint8_t last[FOLDED_STEP];
        _mm_storeu_si128((vector *)last, s.x0);
        _mm_storeu_si128((vector *)(last + 16), s.x1);
        const uint32_t first = add_few(0, (const uint8_t *)ring, ADDED_TURN);
        state = wm_crc32_combine(first, crc32_x86_pclmulqdq_avx2(0, last, FOLDED_STEP), folded);
        data += added + folded;
        len -= added + folded;
    } while (len >= WORTH_WHILE);
    return len < EIGHT ? crc32_x86_pclmulqdq_avx2(state, data, len) : add_few(state, data, len);
}

ADDING uint32_t crc32_x86_mixed_pclmulqdq_avx2(uint32_t state, const uint8_t *data, size_t len) {
    if (len < EIGHT + BLOCK) return crc32_x86_pclmulqdq_avx2(state, data, len);
    return len < WORTH_WHILE ? add_few(state, data, len) : add_ring(state, data, len);
}
#endif
