/* CRC-32 by folding, for registers of any width; crc32_pclmulqdq.c explains it. Each width includes this template once.
 *
 * A product takes several cycles, and a new one begins in each, so eight registers fold side by side. (Four are enough for AMD's
 * CPUs. On Ice Lake a fold takes longer than four of them take to begin.) Prefetching ends with the data: lines behind it would push
 * others out of the first cache.
 *
 * A file defines before it includes this one:
 *
 *   TARGET              the instructions that functions may use
 *   vector              the register; load(p) loads one
 *   fold(r, next, k)    folds each block of 128 bits of r onto that of next
 *   EACH(n)             the constants of folding by n blocks, in each block of a register
 *   K1, K2, K4, K8      these for one, two, four and eight registers
 *   begin(x, state)     x with the state added to the first bytes
 *   one_block(x)        folds the blocks of x onto its last one
 */
enum { REGISTER = sizeof(vector), FOUR = 4 * REGISTER, EIGHT = 8 * REGISTER };
typedef struct {
    vector x0, x1, x2, x3;
} four;
typedef struct {
    four a, b;
} eight;

TARGET WM_INLINE four load_four(const uint8_t *p) {
    return (four){load(p), load(p + REGISTER), load(p + 2 * REGISTER), load(p + 3 * REGISTER)};
}

TARGET WM_INLINE four fold_four(four r, four next, vector k) {
    return (four){fold(r.x0, next.x0, k), fold(r.x1, next.x1, k), fold(r.x2, next.x2, k), fold(r.x3, next.x3, k)};
}

TARGET WM_INLINE eight load_eight(uint32_t state, const uint8_t *p) {
    eight r = {load_four(p), load_four(p + FOUR)};
    r.a.x0 = begin(r.a.x0, state);
    return r;
}

TARGET WM_INLINE eight fold_eight(eight r, const uint8_t *p, vector k) {
    return (eight){fold_four(r.a, load_four(p), k), fold_four(r.b, load_four(p + FOUR), k)};
}

/* `r` stands for all bytes before `data`. */
TARGET WM_INLINE uint32_t finish_four(four r, const uint8_t *data, size_t len) {
    if (len >= FOUR) {
        r = fold_four(r, load_four(data), K4);
        data += FOUR;
        len -= FOUR;
    }
    vector x = fold(fold(r.x0, r.x2, K2), fold(r.x1, r.x3, K2), K1);
    for (; len >= REGISTER; data += REGISTER, len -= REGISTER) x = fold(x, load(data), K1);
    return finish_blocks(one_block(x), data, len);
}

TARGET WM_INLINE uint32_t finish_eight(eight r, const uint8_t *data, size_t len) {
    const vector k8 = K8;
    for (; len >= AHEAD + EIGHT; data += EIGHT, len -= EIGHT) {
        prefetch(data + AHEAD, EIGHT);
        r = fold_eight(r, data, k8);
    }
    for (; len >= EIGHT; data += EIGHT, len -= EIGHT) r = fold_eight(r, data, k8);
    return finish_four(fold_four(r.a, r.b, K4), data, len);
}

/* For FOUR bytes or more. */
TARGET WM_INLINE uint32_t fold_all(uint32_t state, const uint8_t *data, size_t len) {
    if (len >= EIGHT) return finish_eight(load_eight(state, data), data + EIGHT, len - EIGHT);
    four r = load_four(data);
    r.x0 = begin(r.x0, state);
    return finish_four(r, data + FOUR, len - FOUR);
}
