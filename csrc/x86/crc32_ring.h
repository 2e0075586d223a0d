/* CRC-32 by multiplication without carries and by additions at once, for long inputs. Each width of multiplication includes this
 * template once; crc32_pclmulqdq.c explains why additions fold.
 *
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
 * bytes to multiply. A block ends at 4 MiB, since an operating system that reads a file ahead serves one place better than two that
 * lie far apart.
 *
 * GB/s on a Zen 5, data in the second-level cache (1 MiB) and in memory (256 MiB):
 *                                                multiplied    with the ring
 *   PCLMULQDQ, 16 bytes                          15.5, 15.1    49.9, 28.4
 *   VPCLMULQDQ, 32 bytes                         30.9, 28.3    62.0, 32.1
 * The loads limit both: five for each register that is added, two a cycle. Bytes a cycle by the models of llvm-mca 14, data in
 * the first cache: PCLMULQDQ 4.0 and 8.7 on a Haswell, 7.7 and 12.3 on a Skylake, 4.0 and 11.3 on a Zen 3; VPCLMULQDQ 8.0 and 14.2
 * on a Zen 3.
 *
 * A file defines before it includes this one what crc32_fold.h asks for, and:
 *
 *   ADDING                     the instructions that functions may use, AVX2 among them
 *   FOLDED                     how many registers a step multiplies
 *   fold_step(x, p)            folds the registers x[0], x[1], ... onto as many that begin at p
 *   WORTH_WHILE                bytes from which a ring is; three turns at least
 *   fewer(state, data, len)    the kernel for fewer bytes
 */
enum {
    RING = CRC32_ADD_4, /* registers of 32 bytes, as are the other distances */
    NEAR = CRC32_ADD_1,
    MIDDLE = CRC32_ADD_2,
    FAR = CRC32_ADD_3,
    ADDED = 5, /* registers that a step adds; divides RING and NEAR */
    FOLDED_STEP = FOLDED * (int)sizeof(vector),
    ADDED_TURN = RING * 32,
    FOLDED_TURN = RING / ADDED * FOLDED_STEP,
    TURN = ADDED_TURN + FOLDED_TURN,
    MOST_TURNS = (4 << 20) / TURN
};

typedef struct {
    const uint8_t *added, *folded; /* what comes next of each part */
    vector x[FOLDED];
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
        fold_step(s->x, s->folded);
    }
    return at;
}

ADDING WM_NOINLINE uint32_t add_ring(uint32_t state, const uint8_t *data, size_t len) {
    /* Aligned: a load that crosses lines of the cache counts twice, and every second one would. */
    const size_t before = (0 - (uintptr_t)data) % sizeof(__m256i);
    state = fewer(state, data, before);
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
        uint8_t last[FOLDED_STEP]; /* a copy: what has an address does not stay in registers */
        memcpy(last, s.x, FOLDED_STEP);
        const uint32_t first = fewer(0, (const uint8_t *)ring, ADDED_TURN), second = fewer(0, last, FOLDED_STEP);
        state = wm_crc32_combine(first, second, folded);
        data += added + folded;
        len -= added + folded;
    } while (len >= WORTH_WHILE);
    return fewer(state, data, len);
}
