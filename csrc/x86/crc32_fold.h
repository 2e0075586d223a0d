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

/* For FOUR bytes or more. */
TARGET WM_INLINE uint32_t fold_all(uint32_t state, const uint8_t *data, size_t len) {
    const vector k4 = K4;
    vector x0 = begin(load(data), state), x1 = load(data + REGISTER);
    vector x2 = load(data + 2 * REGISTER), x3 = load(data + 3 * REGISTER);
    data += FOUR;
    len -= FOUR;
    if (len >= FOUR) {
        const vector k8 = K8;
        vector x4 = load(data), x5 = load(data + REGISTER), x6 = load(data + 2 * REGISTER), x7 = load(data + 3 * REGISTER);
        data += FOUR;
        len -= FOUR;
#define FOLD_EIGHT()                                  \
    do {                                              \
        x0 = fold(x0, load(data), k8);                \
        x1 = fold(x1, load(data + REGISTER), k8);     \
        x2 = fold(x2, load(data + 2 * REGISTER), k8); \
        x3 = fold(x3, load(data + 3 * REGISTER), k8); \
        x4 = fold(x4, load(data + 4 * REGISTER), k8); \
        x5 = fold(x5, load(data + 5 * REGISTER), k8); \
        x6 = fold(x6, load(data + 6 * REGISTER), k8); \
        x7 = fold(x7, load(data + 7 * REGISTER), k8); \
        data += EIGHT;                                \
        len -= EIGHT;                                 \
    } while (0)
        while (len >= AHEAD + EIGHT) {
            prefetch(data + AHEAD, EIGHT);
            FOLD_EIGHT();
        }
        while (len >= EIGHT) FOLD_EIGHT();
        x0 = fold(x0, x4, k4);
        x1 = fold(x1, x5, k4);
        x2 = fold(x2, x6, k4);
        x3 = fold(x3, x7, k4);
        if (len >= FOUR) {
            x0 = fold(x0, load(data), k4);
            x1 = fold(x1, load(data + REGISTER), k4);
            x2 = fold(x2, load(data + 2 * REGISTER), k4);
            x3 = fold(x3, load(data + 3 * REGISTER), k4);
            data += FOUR;
            len -= FOUR;
        }
    }
    x0 = fold(fold(x0, x2, K2), fold(x1, x3, K2), K1);
    for (; len >= REGISTER; data += REGISTER, len -= REGISTER) x0 = fold(x0, load(data), K1);
    return finish_blocks(one_block(x0), data, len);
}
