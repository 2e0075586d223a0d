/* The search for the scales of sixteen blocks at once, each in a lane of its own: part of the template quantize_block.h.
 *
 * It runs in fixed point. A block is multiplied by 32767 / (its extreme element) and rounded to int16, so that one table of
 * inverse scales, as int16 too, serves all blocks: code c for the extreme element is c * 2^(15 - bits). Sums of products are
 * int32 and exact. For each block:
 *
 *     for (each inverse scale of the table) {
 *         q = clamp(round(y * inverse)), yq = sum(y q), qq = sum(q q);
 *         gain = yq^2 / qq;    the squares that the codes explain: the error is the rest of sum(y y)
 *     }
 *     refine, to qq / yq, each inverse scale whose error is nearly the least; twice more, among fewer;
 *     take the inverse scale of largest gain, and of the stored scales next to it the one of least error
 *
 * The table is so fine (see fill_table in quantize.c) that hardly a block has a better scale that this misses.
 *
 * A file defines before it includes the template:
 *
 *   lanes, words      sixteen floats; sixteen uint32
 *   lanes_load, lanes_store, lanes_all (one value in all), lanes_add, lanes_sub, lanes_mul, lanes_div, lanes_min, lanes_max
 *   lanes_pick        lanes_pick(a, b, x, y): where a > b, x; elsewhere y
 *   lanes_any         whether a >= b in any lane
 *   lanes_transpose   lanes_transpose(rows, at, to): elements at to at + 7 of each row, as eight vectors
 *   words_store, words_all, words_join
 *                     words_join(w, a, mask, shift): w | (the bits of a & mask) << shift
 *   correlate_lanes   sum(y q) and sum(q q) for an inverse scale in each lane, as floats; without `clips` no code is clamped
 */
enum { MOST = 256 }; /* elements of a block: sums stay below 2^28 */

typedef struct {
    float x[MOST][LANES];
    uint32_t y[MOST / 2][LANES]; /* two int16 each */
    float factor[LANES];         /* y = x * factor; 0 for a block that is left to search_scale */
    float squares[LANES];        /* sum(y y) */
    uint64_t n;
    int bits;
} sixteen;

/* An inverse scale in each lane: what its codes give. */
typedef struct {
    lanes yq, square, qq; /* the square of yq */
} attempt;

/* Rounded to an integer in the lowest bits, as float and in two's complement; subtract MAGIC for the float alone. */
#define MAGIC 0x1.8p23f
TARGET WM_INLINE lanes lanes_round(lanes v, float lowest, float highest) {
    return lanes_add(lanes_min(lanes_max(v, lanes_all(lowest)), lanes_all(highest)), lanes_all(MAGIC));
}

TARGET static void load_sixteen(sixteen *s, const float *x, uint64_t blocks) {
    const float *rows[LANES];
    for (uint64_t k = 0; k < LANES; k++) rows[k] = x + (k < blocks ? k : blocks - 1) * s->n;
    for (uint64_t i = 0; i < s->n; i += 8) lanes_transpose(rows, i, s->x + i);
    lanes extreme = lanes_all(0), most = lanes_all(0);
    for (uint64_t i = 0; i < s->n; i++) {
        const lanes v = lanes_load(s->x[i]), magnitude = lanes_max(v, lanes_sub(lanes_all(0), v));
        extreme = lanes_pick(magnitude, most, v, extreme);
        most = lanes_max(magnitude, most);
    }
    /* From 2^-40 to 2^40, so that squares are normal floats. */
    const lanes fits = lanes_pick(lanes_all(0x1p-40f), most, lanes_all(0),
                                  lanes_pick(most, lanes_all(0x1p40f), lanes_all(0), lanes_all(32767)));
    const lanes factor = lanes_div(fits, lanes_pick(fits, lanes_all(0), extreme, lanes_all(1)));
    lanes squares = lanes_all(0);
    for (uint64_t i = 0; i < s->n; i += 2) {
        const lanes a = lanes_round(lanes_mul(lanes_load(s->x[i]), factor), -32767, 32767);
        const lanes b = lanes_round(lanes_mul(lanes_load(s->x[i + 1]), factor), -32767, 32767);
        words_store(s->y[i / 2], words_join(words_join(words_all(0), a, 0xFFFF, 0), b, 0xFFFF, 16));
        const lanes c = lanes_sub(a, lanes_all(MAGIC)), d = lanes_sub(b, lanes_all(MAGIC));
        squares = lanes_add(squares, lanes_add(lanes_mul(c, c), lanes_mul(d, d)));
    }
    lanes_store(s->factor, factor);
    lanes_store(s->squares, squares);
}

/* Tries an inverse scale in each lane, as two equal int16. */
TARGET WM_INLINE attempt try_lanes(const sixteen *s, words inverse, int clips) {
    attempt a;
    correlate_lanes(s->y, s->n / 2, inverse, s->bits, clips, &a.yq, &a.qq);
    a.square = lanes_mul(a.yq, a.yq), a.qq = lanes_max(a.qq, lanes_all(1));
    return a;
}

/* The attempt of larger gain in each lane. */
TARGET WM_INLINE attempt better_lanes(attempt a, attempt b) {
    const lanes left = lanes_mul(a.square, b.qq), right = lanes_mul(b.square, a.qq);
    return (attempt){lanes_pick(left, right, a.yq, b.yq), lanes_pick(left, right, a.square, b.square),
                     lanes_pick(left, right, a.qq, b.qq)};
}

/* The gain from which on the error is at most 1 + margin times that of the best. */
TARGET WM_INLINE lanes least_gain(const sixteen *s, attempt best, float margin) {
    const lanes gain = lanes_div(best.square, best.qq);
    return lanes_sub(gain, lanes_mul(lanes_all(margin), lanes_sub(lanes_load(s->squares), gain)));
}

/* The inverse scales, for x, that the search finds. */
TARGET static lanes search_lanes(const sixteen *s, const wm_quantizing *w) {
    static const float margins[] = {0.05f, 0.03f, 0.01f};
    const attempt none = {lanes_all(1), lanes_all(0), lanes_all(1)};
    const lanes one = lanes_all((float)(1 << (30 - s->bits)));
    attempt rows[WM_ROWS], best = none;
    for (int row = 0; row < w->rows; row++) {
        const words inverse = words_all(w->table[row][0]);
        rows[row] = row <= w->clips ? try_lanes(s, inverse, 0) : try_lanes(s, inverse, 1);
        best = better_lanes(rows[row], best);
    }
    lanes least = least_gain(s, best, 0.3f);
    for (int row = 0; row < w->rows; row++) {
        if (w->table[row][1] == 0) continue;
        /* How far the better end of the row is above the least gain. */
        const lanes here = lanes_sub(rows[row].square, lanes_mul(least, rows[row].qq));
        const lanes next = lanes_sub(rows[row + 1].square, lanes_mul(least, rows[row + 1].qq)), above = lanes_max(here, next);
        if (!lanes_any(above, none.square)) continue;
        attempt found = none;
        for (int f = 1; f < WM_FINER; f++) {
            const words inverse = words_all(w->table[row][f]);
            found = better_lanes(row < w->clips ? try_lanes(s, inverse, 0) : try_lanes(s, inverse, 1), found);
        }
        found.square = lanes_pick(none.square, above, none.square, found.square);
        rows[row] = better_lanes(found, rows[row]);
        best = better_lanes(found, best);
    }
    for (int round = 0; round < 3; round++) {
        least = least_gain(s, best, margins[round]);
        for (int row = 0; row < w->rows; row++) {
            attempt *const a = rows + row;
            const lanes floor = lanes_mul(least, a->qq);
            if (!lanes_any(a->square, floor)) {
                *a = none;
                continue;
            }
            const lanes yq = lanes_pick(floor, a->square, lanes_all(1e30f), a->yq); /* then the inverse scale is 0 */
            const lanes fixed = lanes_round(lanes_mul(lanes_div(a->qq, yq), one), -32767, 32767);
            *a = try_lanes(s, words_join(words_join(words_all(0), fixed, 0xFFFF, 0), fixed, 0xFFFF, 16), 1);
            best = better_lanes(*a, best);
        }
    }
    return lanes_mul(lanes_div(best.qq, best.yq), lanes_load(s->factor));
}

/* The scales as they are stored of up to sixteen blocks; 0 for a block that needs search_scale. */
TARGET static void search_sixteen(const sixteen *s, const wm_quantizing *w, float scales[LANES]) {
    const float lowest = -(float)(1 << (s->bits - 1)), highest = -lowest - 1;
    const int half = w->scale_type == WM_SCALE_FP16;
    const lanes none = lanes_all(0), inverse = search_lanes(s, w);
    lanes xq = none, qq = none;
    for (uint64_t i = 0; i < s->n; i++) {
        const lanes x = lanes_load(s->x[i]);
        const lanes q = lanes_sub(lanes_round(lanes_mul(x, inverse), lowest, highest), lanes_all(MAGIC));
        xq = lanes_add(xq, lanes_mul(x, q));
        qq = lanes_add(qq, lanes_mul(q, q));
    }
    lanes scale = lanes_div(xq, lanes_max(qq, lanes_all(1)));
    const lanes magnitude = lanes_max(scale, lanes_sub(none, scale));
    /* Rounded to the eleven bits of a float16. A subnormal one is too coarse for the best scale. */
    const lanes split = lanes_mul(scale, lanes_all(8193));
    if (half) scale = lanes_sub(split, lanes_sub(split, scale));
    scale = lanes_pick(magnitude, lanes_all(half ? 0x1p-14f : 0), scale, none);
    scale = lanes_pick(lanes_all(half ? 65000.0f : FLT_MAX), magnitude, scale, none);
    const lanes factor = lanes_load(s->factor), fits = lanes_max(factor, lanes_sub(none, factor));
    lanes_store(scales, lanes_pick(fits, none, scale, none));
}

/* Writes the codes of the blocks whose scale is not 0, and their errors: eight codes are `bits` bytes. The scale becomes 0
 * where the codes fit so well that its last bits matter, as those of integers or of a single element that is not 0. */
TARGET static void write_sixteen(const sixteen *s, const wm_quantizing *w, float scales[LANES], uint64_t blocks, uint8_t *out,
                                 float errors[LANES]) {
    const float lowest = -(float)(1 << (s->bits - 1)), highest = -lowest - 1;
    const uint32_t mask = (1u << s->bits) - 1;
    const lanes stored_scale = lanes_load(scales), magnitude = lanes_max(stored_scale, lanes_sub(lanes_all(0), stored_scale));
    const lanes scale = lanes_pick(magnitude, lanes_all(0), stored_scale, lanes_all(1));
    lanes error = lanes_all(0);
    for (uint64_t at = 0; at < s->n; at += 8) {
        words low = words_all(0), high = words_all(0);
        uint32_t lows[LANES], highs[LANES];
        for (unsigned i = 0; i < 8; i++) {
            const lanes x = lanes_load(s->x[at + i]), rounded = lanes_round(lanes_div(x, scale), lowest, highest);
            const lanes d = lanes_sub(x, lanes_mul(scale, lanes_sub(rounded, lanes_all(MAGIC))));
            const unsigned shift = i * (unsigned)s->bits;
            error = lanes_add(error, lanes_mul(d, d));
            if (shift < 32) low = words_join(low, rounded, mask, shift);
            if (shift + (unsigned)s->bits > 32)
                high = words_join(high, rounded, mask, shift - 30); /* two bits lower than its place */
        }
        words_store(lows, low);
        words_store(highs, high);
        for (uint64_t k = 0; k < blocks; k++) {
            uint8_t *to = out + k * w->stride + at / 8 * (uint64_t)s->bits;
            if (scales[k] == 0) continue;
            for (unsigned i = 0; i < 4; i++) to[i] = (uint8_t)(lows[k] >> 8 * i);
            if (s->bits == 5) to[4] = (uint8_t)(highs[k] >> 2);
        }
    }
    const lanes none = lanes_all(0), factor = lanes_load(s->factor), fine = lanes_mul(error, lanes_mul(factor, factor));
    const lanes tiny = lanes_mul(lanes_load(s->squares), lanes_all(0x1p-17f)),
                kept = lanes_pick(tiny, fine, none, stored_scale);
    lanes_store(errors, error);
    lanes_store(scales, lanes_pick(error, none, kept, stored_scale));
}
