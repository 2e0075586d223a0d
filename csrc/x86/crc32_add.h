/* CRC-32 by multiplication without carries and by additions at once. Each width of multiplication includes this template once.
 *
 * One unit multiplies and limits folding. Additions do a part of the work in the units that it leaves idle.
 *
 * Let S be P or a multiple of it. Modulo 2 a square has no mixed terms, S(x)^2 = S(x^2), so S(x^256) = S(x)^256 is a multiple too. If
 * S has degree n and a term x^e beside x^n, each 32 bytes of the message, dropped, need a copy added n - e times 32 bytes later, for
 * every such e. That takes no constants and no shifts. The same goes for registers of 16 bytes, with S(x^128).
 *
 * A file defines before it includes this one what crc32_fold.h asks for, and:
 *
 *   ADDING                     the instructions that functions may use
 *   adder                      the register to add, of 16 or 32 bytes; load_adder(p) loads one, XOR(a, b) adds two
 *   OVER, OVER_FRONT           the constants of folding by FOUR and by eight, or FRONT, of these besides
 *   OVER_BACK                  those of folding by BACK of them
 *   FOLDED                     how many registers a step of the ring multiplies
 *   fold_step(x, p)            folds the registers x[0], x[1], ... onto as many that begin at p
 *   WORTH_WHILE                bytes from which the ring is; LONG at least
 *   fewest(state, data, len)   the kernel for less than a block
 */

/* ------------------------------------------------------------------------------------------------ a block
 * With S = P there are fourteen copies, the nearest six registers on and the farthest 32. A block is 40 registers: the first eight
 * are added to the others, which are multiplied. Bytes a nanosecond on a Zen 5 at 4 KiB, and by multiplication alone: PCLMULQDQ 21 and
 * 17, VPCLMULQDQ 41 and 34; with registers of 32 bytes PCLMULQDQ 30 and 25 on a Sapphire Rapids.
 */
enum { ADDER = sizeof(adder), BLOCK = 40 * ADDER, MADE = FOUR / ADDER };

typedef struct {
    adder s0, s1, s2, s3, s4, s5, s6, s7;
} sources;

/* Register t of a block, a constant, with the sources that have a copy there: bit d - 1 of P, reflected, is the term x^(32 - d). */
#define ADD_SOURCE(c) \
    if (t - c <= 32 && (uint64_t)CRC32_REFLECTED << 1 >> (t - c) & 1) v = XOR(v, s->s##c)
ADDING WM_INLINE adder make_register(const uint8_t *block, const sources *s, int t) {
    adder v = load_adder(block + t * ADDER);
    ADD_SOURCE(0);
    ADD_SOURCE(1);
    ADD_SOURCE(2);
    ADD_SOURCE(3);
    ADD_SOURCE(4);
    ADD_SOURCE(5);
    ADD_SOURCE(6);
    ADD_SOURCE(7);
    return v;
}

typedef struct {
    adder x[MADE];
} step;

ADDING WM_INLINE four fold_made(four r, step made, vector k) {
#if defined(__GNUC__)
    if (sizeof(adder) > sizeof(vector))
        __asm__("" : "+m"(made)); /* through memory: taking halves needs the unit that multiplies */
#endif
    return fold_four(r, load_four((const uint8_t *)made.x), k);
}

ADDING WM_INLINE four fold_registers(four r, const uint8_t *block, const sources *s, int t, vector k) {
    step made;
    made.x[0] = make_register(block, s, t);
    made.x[1] = make_register(block, s, t + 1);
    if (MADE == 4) {
        made.x[MADE - 2] = make_register(block, s, t + 2);
        made.x[MADE - 1] = make_register(block, s, t + 3);
    }
    return fold_made(r, made, k);
}

/* Folds four registers from t on; `over` folds the first step, which may lie further away. */
ADDING WM_INLINE four fold_next_four(four r, const uint8_t *block, const sources *s, int t, vector over) {
    r = fold_registers(r, block, s, t, over);
    return MADE == 2 ? fold_registers(r, block, s, t + 2, K4) : r;
}

/* ------------------------------------------------------------------------------------------------ a long block
 * The multiple of P of least degree with five terms, found by gen_crc32.py, is S(x) = x^300 + x^155 + x^117 + x^89 + 1. So a register
 * equals its own copies 145, 183, 211 and 300 registers later, or others 89, 117, 155 and 300 before it. Of a long block the first 145
 * are added to those behind them, the last 63 to those before them. What is added receives nothing itself, so that it is read where
 * it lies. The 300 between are multiplied: with VPCLMULQDQ 53 bytes a nanosecond of 16 KiB on a Zen 5, where blocks take 40, and these
 * multiplications alone would take 55.
 */
enum {
    RING = CRC32_ADD_4, /* registers, as are the other distances */
    NEAR = CRC32_ADD_1,
    MIDDLE = CRC32_ADD_2,
    FAR = CRC32_ADD_3,
    FRONT = NEAR,
    BACK = 63, /* a long block and FOUR are 16 KiB of registers of 32 bytes; at most RING - FAR */
    LONG = (FRONT + RING + BACK) * ADDER
};

/* What is multiplied: RING registers, with those before and behind them that are added. */
typedef struct {
    const uint8_t *first;
    const uint8_t *before; /* where the last `n_before` registers before the first one end: in the message, or in a ring */
    int n_before;
} multiplied;

/* Register t of them with the copies that it has: t is a constant, or stands for others with the same copies. */
#define ADD_BEFORE(n) \
    if (t >= (n) - m->n_before && t < (n)) v = XOR(v, load_adder(before - (n) * ADDER))
#define ADD_BEHIND(n) \
    if (t >= RING - (n) && t < RING - (n) + BACK) v = XOR(v, load_adder(p + (n) * ADDER))
ADDING WM_INLINE adder gather(const multiplied *m, ptrdiff_t at, int t) {
    const uint8_t *p = m->first + at, *before = m->before + at;
    adder v = load_adder(p);
    ADD_BEFORE(NEAR);
    ADD_BEFORE(MIDDLE);
    ADD_BEFORE(FAR);
    ADD_BEFORE(RING);
    ADD_BEHIND(RING - FAR);
    ADD_BEHIND(RING - MIDDLE);
    ADD_BEHIND(RING - NEAR);
    ADD_BEHIND(RING);
    return v;
}

/* Folds registers [from, to), which have the copies of the first ones. */
ADDING WM_INLINE four fold_range(four r, const multiplied *m, int from, int to, vector k) {
#if defined(__GNUC__)
#pragma GCC unroll 1
#endif
    for (ptrdiff_t at = from * ADDER; at < to * ADDER; at += FOUR) {
        step made;
        made.x[0] = gather(m, at, from);
        made.x[1] = gather(m, at + ADDER, from + 1);
        if (MADE == 4) {
            made.x[MADE - 2] = gather(m, at + 2 * ADDER, from + 2);
            made.x[MADE - 1] = gather(m, at + 3 * ADDER, from + 3);
        }
        r = fold_made(r, made, k);
    }
    return r;
}

/* Goes on until a register has other copies than the one before it, and takes the step that it lies in by itself. */
#define UNTIL(other)                            \
    do {                                        \
        const int step = (other) / MADE * MADE; \
        if (at > step) break;                   \
        r = fold_range(r, m, at, step, k4);     \
        at = step + MADE;                       \
        r = fold_range(r, m, step, at, k4);     \
    } while (0)

/* `over` folds over what lies before. */
ADDING WM_INLINE four fold_multiplied(four r, const multiplied *m, vector over) {
    const vector k4 = K4;
    int at = MADE;
    r = fold_range(r, m, 0, at, over);
    UNTIL(MIDDLE - FRONT);
    UNTIL(BACK);
    UNTIL(FAR - FRONT);
    UNTIL(NEAR);
    UNTIL(RING - FRONT);
    UNTIL(MIDDLE);
    UNTIL(NEAR + BACK);
    UNTIL(FAR);
    UNTIL(MIDDLE + BACK);
    UNTIL(FAR + BACK);
    return fold_four(fold_range(r, m, at, RING, k4), (four){0}, OVER_BACK);
}

/* For FOUR bytes or more. */
ADDING WM_NOINLINE uint32_t add_few(uint32_t state, const uint8_t *data, size_t len) {
    const vector k4 = K4;
    four r = load_four(data);
    r.x0 = begin(r.x0, state);
    data += FOUR;
    len -= FOUR;
    for (; len >= LONG; data += LONG, len -= LONG) {
        const multiplied m = {data + FRONT * ADDER, data + FRONT * ADDER, FRONT};
        r = fold_multiplied(r, &m, OVER_FRONT);
    }
    for (; len >= BLOCK; data += BLOCK, len -= BLOCK) {
        sources s = {
            load_adder(data),
            load_adder(data + ADDER),
            load_adder(data + 2 * ADDER),
            load_adder(data + 3 * ADDER),
            load_adder(data + 4 * ADDER),
            load_adder(data + 5 * ADDER),
            load_adder(data + 6 * ADDER),
            load_adder(data + 7 * ADDER),
        };
        s.s6 = XOR(s.s6, s.s0);
        s.s7 = XOR(s.s7, s.s1);
        r = fold_next_four(r, data, &s, 8, OVER);
        r = fold_next_four(r, data, &s, 12, k4);
        r = fold_next_four(r, data, &s, 16, k4);
        r = fold_next_four(r, data, &s, 20, k4);
        r = fold_next_four(r, data, &s, 24, k4);
        r = fold_next_four(r, data, &s, 28, k4);
        r = fold_next_four(r, data, &s, 32, k4);
        r = fold_next_four(r, data, &s, 36, k4);
    }
    for (; len >= FOUR; data += FOUR, len -= FOUR) r = fold_four(r, load_four(data), k4);
    return finish_four(r, data, len);
}

ADDING WM_INLINE uint32_t fewer(uint32_t state, const uint8_t *data, size_t len) {
    return len < FOUR + BLOCK ? fewest(state, data, len) : add_few(state, data, len);
}

/* ------------------------------------------------------------------------------------------------ a ring
 * By the same S a ring of the last 300 registers is all that remains: the next one is the message XORed with four of the ring, and
 * takes the place of the one 300 before:
 *
 *     ring[i] ^= message ^ ring[i - 145] ^ ring[i - 183] ^ ring[i - 211], each index modulo 300.
 *
 * Two streams. Of a part of the message multiplications fold the first bytes, additions those behind them. Each step takes some of
 * both. Behind them lie 300 registers to which the ring is added, as the front of a long block is, and its back; wm_crc32_combine
 * puts both streams together.
 *
 * All this costs 0.15 microseconds beside its steps and the 300 registers. A part ends at 4 MiB, since an operating system that reads
 * a file ahead serves one place better than two that lie far apart.
 *
 * GB/s on a Zen 5, data in the second-level cache (1 MiB) and in memory (64 MiB):
 *                                                multiplied    with the ring
 *   PCLMULQDQ, registers to add of 16 bytes      17.0, 16.6    33.1, 29.8
 *   PCLMULQDQ, of 32 bytes                       16.9, 16.6    54.0, 32.4
 *   VPCLMULQDQ, 32 bytes                         33.8, 32.2    67.2, 40.8
 * The loads limit both: five for each register that is added, two a cycle. Bytes a cycle by the models of llvm-mca 14, data in
 * the first cache: PCLMULQDQ 4.0 and 8.7 on a Haswell, 7.7 and 12.3 on a Skylake, 4.0 and 11.3 on a Zen 3; VPCLMULQDQ 8.0 and 14.2
 * on a Zen 3.
 */
enum {
    ADDED = 5, /* registers that a step adds; divides RING and NEAR */
    FOLDED_STEP = FOLDED * REGISTER,
    ADDED_STEP = ADDED * ADDER,
    MOST_STEPS = (4 << 20) / (ADDED_STEP + FOLDED_STEP),
    REST = FOLDED_STEP + (RING + BACK) * ADDER /* bytes of a part beside its steps */
};

typedef struct {
    const uint8_t *added, *folded; /* what comes next of each part */
    vector x[FOLDED];
} streams;

/* Adds the message and the registers at three distances to one of the ring. */
ADDING WM_INLINE void add(adder *to, const uint8_t *message, ptrdiff_t near, ptrdiff_t middle, ptrdiff_t far) {
    const adder two = XOR(load_adder(message), *to), others = XOR(to[near], to[middle]);
    *to = XOR(XOR(two, to[far]), others);
}

/* Steps that make the ring's registers from `at` until `end`, or a little further; returns the next one. */
ADDING WM_INLINE adder *take(streams *s, adder *at, const adder *end, ptrdiff_t near, ptrdiff_t middle, ptrdiff_t far) {
    for (; at < end; at += ADDED, s->added += ADDED_STEP, s->folded += FOLDED_STEP) {
        prefetch(s->added + AHEAD, ADDED_STEP);
        prefetch(s->folded + AHEAD, FOLDED_STEP);
        add(at, s->added, near, middle, far);
        add(at + 1, s->added + ADDER, near, middle, far);
        add(at + 2, s->added + 2 * ADDER, near, middle, far);
        add(at + 3, s->added + 3 * ADDER, near, middle, far);
        add(at + 4, s->added + 4 * ADDER, near, middle, far);
        fold_step(s->x, s->folded);
    }
    return at;
}

ADDING WM_NOINLINE uint32_t add_ring(uint32_t state, const uint8_t *data, size_t len) {
    /* Aligned: a load that crosses lines of the cache counts twice, and every second one would. */
    const size_t before = (0 - (uintptr_t)data) % ADDER;
    state = fewest(state, data, before);
    data += before;
    len -= before;
    do {
        const size_t all = (len - REST) / (ADDED_STEP + FOLDED_STEP), steps = all < MOST_STEPS ? all : MOST_STEPS;
        const uint8_t *const end = data + FOLDED_STEP + steps * (FOLDED_STEP + ADDED_STEP);
        streams s = {.added = end - steps * ADDED_STEP, .folded = data + FOLDED_STEP};
        fold_step(s.x, data); /* of zeros: what is indexed does not stay in registers */
        s.x[0] = begin(s.x[0], state);
        adder ring[RING + ADDED - 1]; /* behind it lie copies of its first registers, for steps that read past its end */
        memset(ring, 0, sizeof ring);
        for (adder *at = ring + (RING - steps * ADDED % RING) % RING; s.added < end; at = ring) {
            /* Registers at a distance lie behind in the ring or, of the turn before, ahead. */
            at = take(&s, at, ring + NEAR, RING - NEAR, RING - MIDDLE, RING - FAR);
            memcpy(ring + RING, ring, (ADDED - 1) * sizeof *ring);
            at = take(&s, at, ring + MIDDLE, -NEAR, RING - MIDDLE, RING - FAR);
            at = take(&s, at, ring + FAR, -NEAR, -MIDDLE, RING - FAR);
            take(&s, at, ring + RING, -NEAR, -MIDDLE, -FAR);
        }
        uint8_t last[FOUR]; /* a copy: nor does what has an address */
        memcpy(last, s.x, FOLDED_STEP);
        const size_t behind = steps * ADDED_STEP + (RING + BACK) * ADDER;
        const uint32_t first = wm_crc32_combine(fewest(0, last, FOLDED_STEP), 0, behind);
        const multiplied m = {end, (const uint8_t *)(ring + RING), RING};
        const four r = fold_multiplied((four){0}, &m, K4);
        memcpy(last, &r, FOUR);
        state = first ^ fewest(0, last, FOUR);
        len -= REST + steps * (ADDED_STEP + FOLDED_STEP);
        data = end + (RING + BACK) * ADDER;
    } while (len >= WORTH_WHILE);
    return fewer(state, data, len);
}

ADDING WM_INLINE uint32_t add_any(uint32_t state, const uint8_t *data, size_t len) {
    return len < WORTH_WHILE ? fewer(state, data, len) : add_ring(state, data, len);
}
