/* The search for the scales of short blocks, two times sixteen at once, each in its own lane: part of the template
 * quantize_block.h.
 *
 * It runs in fixed point: a block is multiplied by 32767 / (its extreme element) and rounded to int16, and inverse scales are
 * whole numbers m: y gets the code q = clamp(round(y * m / UNIT)). Sums of products are exact in int32. An attempt is an m with
 * its sums:
 *
 *     yq = sum(y q), qq = sum(q q);    E(m) = sum((y - q * UNIT / m)^2)
 *     least of these codes: sum(y y) - yq^2 / qq, with the scale yq / qq
 *
 * An attempt rules out others around it. Let m' be the best inverse scale of its own codes q', with the error E'. The rest
 * y - q' s' is orthogonal to q', so with these codes at the scale of m the error is E' + (s - s')^2 sum(q' q'), and E(m) is not
 * above that, because it has the nearest codes. Since s'^2 sum(q' q') = sum(y y) - E' and (s - s') / s' = (m' - m) / m:
 *
 *     E' >= E(m) - ((m' - m) / m)^2 * sum(y y)
 *
 * So nothing below a goal lies nearer to m than m * sqrt((E(m) - goal) / sum(y y)). The search walks from the finest scales on,
 * out of each such interval into the next, with a goal a little below the least error so far:
 *
 *     at = TOP;
 *     while (at > BOTTOM) {
 *         m = at - step;                                       a guess, so that the interval around m reaches up to `at`
 *         r = m * sqrt((E(m) - goal) / sum(y y));
 *         if (m + r >= at) at = m - r;                         ruled out up to here
 *         else keep [m - r, m + r], and halve the gap next;    `at` jumps to its lower end when it comes there
 *     }
 *
 * It ends with the least error of all scales between TOP and BOTTOM, but for TOLERANCE and the rounding to int16. Two walk at
 * once: one along negative scales from TOP down; one along positive ones from TOP to where no code is clamped, and, because both
 * signs give one error there, from BOTTOM up until they meet. TOP is where clamping the extreme element costs as much as all
 * elements do after a few attempts.
 *
 * A file defines before it includes the template:
 *
 *   lanes, words      sixteen floats; sixteen uint32
 *   lanes_load, lanes_store, lanes_all (one value in all), lanes_add, lanes_sub, lanes_mul, lanes_div, lanes_min, lanes_max,
 *   lanes_sqrt
 *   lanes_pick        lanes_pick(a, b, x, y): where a > b, x; elsewhere y
 *   lanes_which       the lanes where a >= b, one bit each
 *   lanes_transpose   lanes_transpose(rows, at, to): elements at to at + 7 of each row, as eight vectors
 *   words_store, words_all, words_join, words_pair
 *                     words_join(w, a, mask, shift): w | (the bits of a & mask) << shift
 *                     words_pair(a, b): the lowest sixteen bits of a and those of b above them
 *   correlate_lanes   sum(y q) and sum(q q) for two inverse scales in each lane, as floats
 */
enum { MAX_BLOCK = 256 }; /* elements of a block: sums stay below 2^28 */
enum { GROUPS = 2 };      /* the steps of one do not wait for those of the other */
/* Once no more than PARK_BELOW of sixteen searches go on, they are parked until enough can go on together. */
enum { PARK_BELOW = 3, MAX_PARKED = GROUPS * (LANES + PARK_BELOW) };
/* An inverse scale of ONE gives the extreme element the lowest code. */
#define ONE 16384.0f
#define UNREACHED 65536.0f /* all inverse scales */
#define TOLERANCE 0.0002f
/* Codes may fit so well that the last bits of the scale matter, as for integers or a single element that is not 0. A block whose
 * error is a smaller part of its squares is left to search_scale. */
#define MIN_PART 0x1p-12f

typedef struct {
    float x[MAX_BLOCK][LANES];
    uint32_t y[MAX_BLOCK / 2][LANES]; /* two int16 each */
    float factor[LANES];              /* y = x * factor; 0 for a block that is left to search_scale */
    float squares[LANES];             /* sum(y y) */
    uint64_t n;
    int bits;
} sixteen;

typedef struct {
    lanes yq, qq, gain; /* yq^2 / qq: the squares that the codes explain */
} attempt;

/* Positions are inverse scales. All from `at` to BOTTOM, or to the other walker, remain to be ruled out, except from `upper` down
 * to `far`. */
typedef struct {
    lanes at, upper, far, next; /* the position of the next attempt */
} walker;

typedef struct {
    attempt best;
    walker negative, positive;
} progress;

typedef struct {
    const sixteen *block;
    lanes of_gain, of_yq, of_qq; /* what makes them parts of r^2 */
    progress now;
    uint32_t valid, going; /* lanes, one bit each: lanes with a block; lanes that go on */
} search;

enum { NUMBERS = sizeof(progress) / sizeof(lanes) };
typedef struct {
    float numbers[NUMBERS][MAX_PARKED];
    uint64_t at[MAX_PARKED], count;
} parked;

/* Rounded to an integer in the lowest bits, as float and in two's complement; subtract MAGIC for the float alone. */
#define MAGIC 0x1.8p23f
TARGET WM_INLINE lanes lanes_round(lanes v, float lowest, float highest) {
    return lanes_add(lanes_min(lanes_max(v, lanes_all(lowest)), lanes_all(highest)), lanes_all(MAGIC));
}
TARGET WM_INLINE lanes lanes_whole(lanes v) { return lanes_sub(lanes_add(v, lanes_all(MAGIC)), lanes_all(MAGIC)); }
TARGET WM_INLINE lanes lanes_negative(lanes v) { return lanes_sub(lanes_all(0), v); }
TARGET WM_INLINE lanes lanes_magnitude(lanes v) { return lanes_max(v, lanes_negative(v)); }

TARGET static void load_sixteen(sixteen *s, const float *x, const uint64_t *at, uint64_t blocks) {
    const float *rows[LANES];
    for (uint64_t k = 0; k < LANES; k++) rows[k] = x + at[k < blocks ? k : blocks - 1] * s->n;
    for (uint64_t i = 0; i < s->n; i += 8) lanes_transpose(rows, i, s->x + i);
    lanes extreme = lanes_all(0), peak = lanes_all(0);
    for (uint64_t i = 0; i < s->n; i++) {
        const lanes v = lanes_load(s->x[i]), magnitude = lanes_magnitude(v);
        extreme = lanes_pick(magnitude, peak, v, extreme);
        peak = lanes_max(magnitude, peak);
    }
    /* From 2^-40 to 2^40, so that squares are normal floats. */
    const lanes fits = lanes_pick(lanes_all(0x1p-40f), peak, lanes_all(0),
                                  lanes_pick(peak, lanes_all(0x1p40f), lanes_all(0), lanes_all(32767)));
    const lanes factor = lanes_div(fits, lanes_pick(fits, lanes_all(0), extreme, lanes_all(1)));
    lanes squares = lanes_all(0);
    for (uint64_t i = 0; i < s->n; i += 2) {
        const lanes a = lanes_add(lanes_mul(lanes_load(s->x[i]), factor), lanes_all(MAGIC));
        const lanes b = lanes_add(lanes_mul(lanes_load(s->x[i + 1]), factor), lanes_all(MAGIC));
        words_store(s->y[i / 2], words_pair(a, b));
        const lanes c = lanes_sub(a, lanes_all(MAGIC)), d = lanes_sub(b, lanes_all(MAGIC));
        squares = lanes_add(squares, lanes_add(lanes_mul(c, c), lanes_mul(d, d)));
    }
    lanes_store(s->factor, factor);
    lanes_store(s->squares, squares);
}

/* Tries two whole numbers as inverse scales in each lane. */
TARGET WM_INLINE void try_lanes(const sixteen *s, int bits, lanes first, lanes second, attempt a[2]) {
    const lanes one = lanes_add(first, lanes_all(MAGIC)), other = lanes_add(second, lanes_all(MAGIC));
    const words inverse[2] = {words_pair(one, one), words_pair(other, other)};
    lanes yq[2], qq[2];
    correlate_lanes(s->y, s->n / 2, inverse, bits, yq, qq);
    for (int k = 0; k < 2; k++) a[k] = (attempt){yq[k], qq[k], lanes_div(lanes_mul(yq[k], yq[k]), qq[k])};
}

TARGET WM_INLINE attempt better_lanes(attempt a, attempt b) {
    return (attempt){lanes_pick(a.gain, b.gain, a.yq, b.yq), lanes_pick(a.gain, b.gain, a.qq, b.qq), lanes_max(a.gain, b.gain)};
}

/* The number by which y * inverse is divided to give a code. */
static inline float unit_of(int bits) { return (float)(1 << (30 - bits)); }
/* The inverse scale that gives the extreme element this code. */
static inline float inverse_of(int bits, float code) { return code * (float)(1 << (15 - bits)); }

TARGET WM_INLINE void set_going(search *s) {
    s->going = s->valid & lanes_which(lanes_add(s->now.negative.at, s->now.positive.at), lanes_all(0x1p-20f));
}

TARGET WM_INLINE void prepare_search(search *s, const sixteen *block, uint64_t blocks) {
    const lanes unit = lanes_all(unit_of(block->bits)), per_square = lanes_div(lanes_all(1), lanes_load(block->squares));
    s->block = block;
    s->valid = (1u << blocks) - 1;
    s->of_gain = lanes_mul(per_square, lanes_all(1 - TOLERANCE));
    s->of_yq = lanes_mul(lanes_mul(per_square, unit), lanes_all(2));
    s->of_qq = lanes_mul(lanes_mul(per_square, unit), unit);
}

TARGET WM_INLINE void begin_search(search *s, const wm_quantizing *w) {
    const sixteen *const block = s->block;
    const lanes none = lanes_all(0), unsearched = lanes_all(-UNREACHED), squares = lanes_load(block->squares);
    /* The extreme element at the lowest and at the highest code. */
    const float highest = (float)((1 << (block->bits - 1)) - 1);
    attempt a[2];
    try_lanes(block, block->bits, lanes_all(-ONE), lanes_all(inverse_of(block->bits, highest)), a);
    s->now.best = better_lanes(a[1], a[0]);
    const lanes root = lanes_sqrt(lanes_max(lanes_sub(squares, s->now.best.gain), lanes_all(1)));
    const lanes remaining = lanes_max(lanes_sub(lanes_all(32767), root), lanes_all(16384)); /* of the extreme element */
    const lanes top = lanes_min(lanes_div(lanes_all(ONE * 32767), remaining), lanes_all(w->top));
    const lanes begin = lanes_pick(squares, none, top, unsearched), step = lanes_mul(root, lanes_all(0.1f));
    const lanes other = lanes_mul(begin, lanes_all(highest / (highest + 1)));
    s->now.negative = (walker){begin, unsearched, none, lanes_whole(lanes_sub(begin, step))};
    s->now.positive = (walker){other, unsearched, none, lanes_whole(lanes_sub(other, step))};
    set_going(s);
}

/* Until they go on, their blocks get a scale of 1. */
TARGET static void park_search(parked *p, const search *s, const uint64_t *at, float scales[LANES]) {
    float numbers[NUMBERS][LANES];
    lanes now[NUMBERS];
    memcpy(now, &s->now, sizeof now);
    for (int i = 0; i < NUMBERS; i++) lanes_store(numbers[i], now[i]);
    for (uint32_t remaining = s->going; remaining; remaining &= remaining - 1) {
        const uint32_t k = (bits_of_float((float)(remaining & (0 - remaining))) >> 23) - 127; /* the lowest bit */
        for (int i = 0; i < NUMBERS; i++) p->numbers[i][p->count] = numbers[i][k];
        p->at[p->count++] = at[k];
        scales[k] = 1;
    }
}

/* Goes on with the parked searches from `first` on. */
TARGET WM_INLINE void resume_search(search *s, const parked *p, uint64_t first) {
    lanes now[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) now[i] = lanes_load(p->numbers[i] + first);
    memcpy(&s->now, now, sizeof now);
    set_going(s);
}

/* 1 - goal / sum(y y), more than MAX_EXPLAINED for a block that is left. */
#define MAX_EXPLAINED (1 - (1 - TOLERANCE) * MIN_PART)
TARGET WM_INLINE lanes explained_by(const search *s) {
    return lanes_add(lanes_mul(s->now.best.gain, s->of_gain), lanes_all(TOLERANCE));
}

/* Rules out what an attempt proves to be no better than the goal; returns the step to the next. */
TARGET WM_INLINE lanes rule_out(const search *s, walker *v, float sign, attempt a, lanes explained) {
    /* r^2 of E(m) = sum(y y) - 2 (UNIT / m) yq + (UNIT / m)^2 qq, without a division. An r of 2 or more, which rounding may take
     * away, leads past whole numbers. */
    const lanes m = v->next, peak = lanes_mul(m, explained), cross = lanes_mul(a.yq, s->of_yq);
    const lanes linear = lanes_mul(m, sign < 0 ? lanes_add(peak, cross) : lanes_sub(peak, cross));
    const lanes radius = lanes_sqrt(lanes_max(lanes_add(linear, lanes_mul(a.qq, s->of_qq)), lanes_all(4)));
    const lanes up = lanes_add(m, radius), down = lanes_sub(m, radius), none = lanes_all(-UNREACHED);
    const lanes joined = lanes_min(down, lanes_pick(v->upper, down, v->far, v->at));
    const lanes upper = lanes_pick(v->upper, down, none, v->upper); /* after the two intervals joined */
    v->upper = lanes_pick(v->at, up, up, upper);
    v->far = lanes_pick(v->at, up, down, v->far);
    v->at = lanes_pick(v->at, up, v->at, joined);
    return lanes_min(lanes_mul(radius, lanes_all(0.6f)), lanes_mul(lanes_sub(v->at, v->upper), lanes_all(0.5f)));
}

/* The position of the next attempt, a whole number; a walker that has ended tries the last again. */
TARGET WM_INLINE lanes next_of(const walker *v, lanes step, lanes end) {
    return lanes_pick(v->at, end, lanes_whole(lanes_max(lanes_sub(v->at, step), end)), v->next);
}

TARGET WM_INLINE void step_search(search *s, const wm_quantizing *w, int bits) {
    walker *const a = &s->now.negative, *const b = &s->now.positive;
    const lanes none = lanes_all(0), bottom = lanes_all(w->bottom);
    attempt tried[2];
    try_lanes(s->block, bits, lanes_negative(a->next), b->next, tried);
    s->now.best = better_lanes(better_lanes(tried[0], tried[1]), s->now.best);
    const lanes explained = explained_by(s); /* a lane that is left ends at once */
    const lanes goal = lanes_pick(explained, lanes_all(MAX_EXPLAINED), lanes_all(UNREACHED), explained);
    const lanes step = rule_out(s, a, -1, tried[0], goal), far = rule_out(s, b, 1, tried[1], goal);
    /* From where no code is clamped, on to BOTTOM: from there positions are negative. */
    const lanes clip = lanes_all(inverse_of(bits, (float)(1 << (bits - 1)) - 0.5f));
    const lanes jumps = lanes_pick(clip, b->at, b->at, none);
    b->at = lanes_pick(jumps, none, lanes_negative(bottom), b->at);
    b->upper = lanes_pick(jumps, none, lanes_all(-UNREACHED), b->upper);
    const lanes remaining = lanes_negative(b->at);
    a->next = next_of(a, step, lanes_max(bottom, remaining));
    b->next = next_of(b, lanes_pick(jumps, none, lanes_all(0.05f * ONE), far), lanes_negative(a->at));
    set_going(s);
}

/* The scales as they are stored of up to sixteen blocks; 0 for a block that is left to search_scale. */
TARGET WM_INLINE void end_search(const search *s, const wm_quantizing *w, float scales[LANES]) {
    const int half = w->scale_type == WM_SCALE_FP16;
    const lanes none = lanes_all(0), scale = lanes_div(s->now.best.yq, lanes_mul(s->now.best.qq, lanes_load(s->block->factor)));
    /* Rounded to the eleven bits of a float16. A subnormal one is too coarse for the best scale. */
    const lanes split = lanes_mul(scale, lanes_all(8193)), rounded = half ? lanes_sub(split, lanes_sub(split, scale)) : scale;
    const lanes magnitude = lanes_magnitude(scale);
    const lanes large = lanes_pick(magnitude, lanes_all(half ? 0x1p-14f : 0x1p-126f), rounded, none);
    const lanes fits = lanes_pick(lanes_all(half ? 65000.0f : 0x1p126f), magnitude, large, none);
    lanes_store(scales, lanes_pick(explained_by(s), lanes_all(MAX_EXPLAINED), none, fits));
}

static inline int more_than(uint32_t which, int limit) {
    for (; limit; limit--) which &= which - 1;
    return which != 0;
}

TARGET WM_INLINE void search_by(search *s, int groups, const wm_quantizing *w, int limit, int bits) {
    for (int more = 1; more;) {
        more = 0;
        for (int g = 0; g < groups; g++) {
            if (!more_than(s[g].going, limit)) continue;
            step_search(&s[g], w, bits);
            more = 1;
        }
    }
}

/* Searches until no more than `limit` lanes of each go on. The number of bits is a constant for the compiler. */
TARGET static void search_groups(search *s, int groups, const wm_quantizing *w, int limit) {
    if (w->bits == 4)
        search_by(s, groups, w, limit, 4);
    else
        search_by(s, groups, w, limit, 5);
}

/* Writes the codes of blocks, and their errors: eight codes are `bits` bytes. Blocks with a scale of 0 remain to be written. */
TARGET static void write_sixteen(const sixteen *s, const wm_quantizing *w, const float scales[LANES], const uint64_t *at,
                                 uint64_t blocks, uint8_t *out, float errors[LANES]) {
    const float lowest = -(float)(1 << (s->bits - 1)), highest = -lowest - 1;
    const uint32_t mask = (1u << s->bits) - 1;
    const lanes stored_scale = lanes_load(scales);
    const lanes scale = lanes_pick(lanes_magnitude(stored_scale), lanes_all(0), stored_scale, lanes_all(1));
    lanes error = lanes_all(0);
    for (uint64_t from = 0; from < s->n; from += 8) {
        words low = words_all(0), high = words_all(0);
        uint32_t lows[LANES], highs[LANES];
        for (unsigned i = 0; i < 8; i++) {
            const lanes x = lanes_load(s->x[from + i]), rounded = lanes_round(lanes_div(x, scale), lowest, highest);
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
            uint8_t *to = out + at[k] * w->stride + from / 8 * (uint64_t)s->bits;
            for (unsigned i = 0; i < 4; i++) to[i] = (uint8_t)(lows[k] >> 8 * i);
            if (s->bits == 5) to[4] = (uint8_t)(highs[k] >> 2);
        }
    }
    lanes_store(errors, error);
}
