/* Quantises to blocks of different kinds: see adaptive.c.
 *
 * A block begins as int4, and may become int5 and float16: more bytes, a smaller error. The edges of the lower convex hull of its
 * errors over its bytes are steps, at rates that fall along the hull. Taking all steps in order of their rates is optimal at every
 * total that they reach.
 *
 * All blocks are searched as int4. A block can save at most its error, so only blocks that may save as much a byte as the last
 * step that fits are searched as int5, and measured as float16. Both lie in the room until the kinds are chosen.
 */
#include "quant/intblock.h"

enum { INT4 = WM_INT4, INT5 = WM_INT5, HALF = WM_HALF, CHUNK = 512 };
enum { ELEMENTS_OF_A_PIECE = 1 << 14, MIN_BLOCK = 8 }; /* the second-level cache holds a piece */

/* Adds the squares of n numbers, each eighth to one of eight sums, so that compilers make vector code of any width. */
static void add_squares(const float *x, const float *y, uint64_t n, double sums[8]) {
    for (uint64_t i = 0; i + 8 <= n; i += 8)
        for (uint64_t k = 0; k < 8; k++) {
            const double d = (double)x[i + k] - (double)y[i + k];
            sums[k] += d * d;
        }
    for (uint64_t i = n - n % 8; i < n; i++) sums[i % 8] += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
}

/* Rounds to float16; a number too large becomes its largest, not infinity. */
static void write_halves(const float *x, uint64_t n, uint8_t *out) {
    wm_variants_in_use()->narrow(x, n, out);
    for (uint64_t at = 0, end; at < n; at = end) {
        int32_t large = 0;
        end = n - at < CHUNK ? n : at + CHUNK;
        for (uint64_t i = at; i < end; i++) large |= (int32_t)(bits_of_float(x[i]) & 0x7FFFFFFF) >= 0x477FF000; /* 65520 */
        for (uint64_t i = at; large && i < end; i++)
            if ((out[2 * i + 1] & 0x7F) == 0x7C && out[2 * i] == 0) out[2 * i] = 0xFF, out[2 * i + 1]--;
    }
}

/* The errors of blocks as float16. Many are rounded at once: short ones would be read from memory before they are there. */
static void measure_halves(const float *x, uint64_t n, uint64_t block, double *errors) {
    double sums[8] = {0};
    uint64_t remaining = block; /* of the block that sums are of */
    for (uint64_t m; n; n -= m) {
        uint8_t halves[2 * CHUNK];
        float back[CHUNK];
        m = n < CHUNK ? n : CHUNK;
        write_halves(x, m, halves);
        wm_variants_in_use()->f16_to_f32(halves, back, m, 0);
        for (uint64_t i = 0, part; i < m; i += part, x += part) {
            part = remaining < m - i ? remaining : m - i;
            add_squares(x, back + i, part, sums);
            remaining -= part;
            if (remaining && part < n - i) continue;
            *errors++ = sum_of_eight(sums);
            memset(sums, 0, sizeof sums);
            remaining = block;
        }
    }
}

/* A step of block `at` / 4, or where that is not one, of block at / 4 - blocks. The lowest bits say between which kinds. */
typedef struct {
    double rate;
    uint64_t at;
} step;
enum { TO_FIVE, TO_HALF, FROM_FIVE, STEPS };
static const uint8_t from_kind[STEPS] = {INT4, INT4, INT5}, to_kind[STEPS] = {INT5, HALF, HALF};

typedef struct {
    const float *x;
    uint64_t n, block, blocks;
    wm_quantizing how[2];
    uint64_t sizes[WM_KINDS], prices[STEPS]; /* bytes of a block of each kind, and of each step */
    double *errors;                          /* by kind; an unmeasured one has the best measured error */
    double lowest;                           /* no step of a lower rate is taken */
    step *steps;
    uint8_t *data[2], *kinds;  /* until they are chosen, how far each block is measured */
    int64_t bad[WM_MAX_PARTS]; /* for each thread, the element that is not finite */
} work;

static int is_legal(int scale_type, uint64_t block_size, uint64_t n) {
    return block_size && wm_blocks_size(5, scale_type, block_size, n) >= 0;
}

uint64_t wm_adaptive_room(int scale_type, uint64_t block_size, uint64_t n) {
    if (!is_legal(scale_type, block_size, n)) return 0;
    const uint64_t blocks = ceil_div(n, block_size);
    const uint64_t bytes = 2 * scale_bytes(scale_type) + code_bytes(4, block_size) + code_bytes(5, block_size) + 1;
    return blocks * (3 + 2 * sizeof(step) / 8) + ceil_div(blocks * bytes, 8);
}

static work work_of(const float *x, uint64_t n, int scale_type, uint64_t block, uint64_t *room) {
    const uint64_t blocks = ceil_div(n, block), scale = scale_bytes(scale_type);
    work w = {.x = x, .n = n, .block = block, .blocks = blocks, .errors = (double *)(void *)room};
    w.sizes[INT4] = scale + code_bytes(4, block), w.sizes[INT5] = scale + code_bytes(5, block), w.sizes[HALF] = 2 * block;
    for (int i = 0; i < STEPS; i++) w.prices[i] = w.sizes[to_kind[i]] - w.sizes[from_kind[i]];
    w.steps = (step *)(void *)(room + 3 * blocks);
    w.data[INT4] = (uint8_t *)(w.steps + 2 * blocks);
    w.data[INT5] = w.data[INT4] + blocks * w.sizes[INT4];
    w.kinds = w.data[INT5] + blocks * w.sizes[INT5];
    return w;
}

static uint64_t elements_of(const work *w, uint64_t begin, uint64_t end) {
    return (end * w->block < w->n ? end * w->block : w->n) - begin * w->block;
}

static int measure_four(void *context, int thread, uint64_t begin, uint64_t end) {
    work *w = context;
    const float *const x = w->x + begin * w->block;
    const int64_t bad = wm_first_not_finite(x, elements_of(w, begin, end));
    if (bad >= 0) return w->bad[thread] = (int64_t)(begin * w->block) + bad, -1;
    double *const errors = w->errors + begin;
    const size_t size = (end - begin) * sizeof *errors;
    wm_quantize_finite(&w->how[INT4], w->block, x, elements_of(w, begin, end), w->data[INT4] + begin * w->sizes[INT4], errors);
    memcpy(errors + INT5 * w->blocks, errors, size);
    memcpy(errors + HALF * w->blocks, errors, size);
    memset(w->kinds + begin, INT4, end - begin);
    return 0;
}

/* Measures the blocks that may have steps of the least rate. */
static int measure_more(void *context, int thread, uint64_t begin, uint64_t end) {
    const work *w = context;
    const wm_quantizing *const how = &w->how[INT5];
    double *const four = w->errors, *const five = four + w->blocks, *const half = five + w->blocks;
    const double least_four = w->lowest * (double)w->prices[TO_FIVE], least_five = w->lowest * (double)w->prices[FROM_FIVE];
    uint32_t which[ELEMENTS_OF_A_PIECE / MIN_BLOCK + 1];
    uint64_t whole = 0;
    for (uint64_t b = begin; b < end; b++) {
        if (w->kinds[b] != INT4 || four[b] < least_four) continue;
        w->kinds[b] = INT5;
        if (elements_of(w, b, b + 1) == w->block)
            which[whole++] = (uint32_t)(b - begin);
        else
            wm_quantize_finite(how, w->block, w->x + b * w->block, w->n - b * w->block, w->data[INT5] + b * w->sizes[INT5],
                               five + b);
    }
    wm_variants_in_use()->quantize(how, w->x + begin * w->block, which, whole, w->block, w->data[INT5] + begin * w->sizes[INT5],
                                   five + begin);
    for (uint64_t b = begin; b < end; b++) {
        uint64_t to = b;
        for (; to < end && w->kinds[to] == INT5 && five[to] >= least_five; to++) w->kinds[to] = HALF;
        if (to > b) measure_halves(w->x + b * w->block, elements_of(w, b, to), w->block, half + b);
        b = to;
        if (b < end && w->kinds[b] == INT5) half[b] = five[b];
    }
    return 0;
}

static uint64_t list_steps(const work *w) {
    const double *four = w->errors, *five = four + w->blocks, *half = five + w->blocks;
    const double to_five = (double)w->prices[TO_FIVE], to_half = (double)w->prices[FROM_FIVE];
    step *to = w->steps;
    for (uint64_t b = 0; b < w->blocks; b++) {
        const double first = (four[b] - five[b]) / to_five, second = (five[b] - half[b]) / to_half;
        if (first < second) { /* int5 does not lie on the hull */
            *to = (step){(four[b] - half[b]) / (to_five + to_half), 4 * b + TO_HALF};
            to += to->rate > 0;
        } else {
            *to = (step){first, 4 * b + TO_FIVE};
            to += first > 0;
            *to = (step){second, 4 * (w->blocks + b) + FROM_FIVE};
            to += second > 0;
        }
    }
    return (uint64_t)(to - w->steps);
}

/* At equal rates by number, so that a block's first step comes before its second. */
static int comes_before(const step *a, const step *b) {
    return (a->rate > b->rate) | ((a->rate == b->rate) & (a->at < b->at)); /* without a branch, which would be guessed */
}

static uint64_t price_of(const work *w, const step *s) { return w->prices[s->at % 4]; }
static uint8_t *kind_of(const work *w, const step *s) {
    return w->kinds + s->at / 4 - (s->at % 4 == FROM_FIVE ? w->blocks : 0);
}

static void take_step(const work *w, const step *s) {
    uint8_t *const kind = kind_of(w, s), to = to_kind[s->at % 4];
    *kind = to > *kind ? to : *kind; /* a block's steps may be taken in any order */
}

/* Moves the steps that come before the last one to the front; returns how many, and the sum of their prices. */
static uint64_t divide(const work *w, step *steps, uint64_t n, uint64_t *price) {
    const step last = steps[n - 1];
    uint64_t front = 0;
    for (uint64_t i = 0; i + 1 < n; i++) {
        const step s = steps[i];
        const uint64_t before = (uint64_t)comes_before(&s, &last);
        /* Member by member: a load of both would wait for two stores. It stays in front if it comes before. */
        steps[i].rate = steps[front].rate, steps[i].at = steps[front].at;
        steps[front].rate = s.rate, steps[front].at = s.at;
        *price += (0 - before) & price_of(w, &s);
        front += before;
    }
    steps[n - 1] = steps[front], steps[front] = last;
    return front;
}

/* Moves the steps that come first, and fit, to the front; returns where they end, at the next one. */
static step *fit(const work *w, step *next, const step *end, uint64_t *remaining) {
    /* Where a step and all before it fit, they stay in front; else the search goes on among those before it. */
    for (step *until = next + (end - next); next < until;) {
        step *const middle = next + (until - next) / 2, swapped = *middle;
        *middle = until[-1], until[-1] = swapped;
        uint64_t price = 0;
        const uint64_t before = divide(w, next, (uint64_t)(until - next), &price);
        price += price_of(w, next + before);
        if (price > *remaining) {
            until = next + before;
            continue;
        }
        *remaining -= price;
        next += before + 1;
    }
    return next;
}

/* Takes steps in order for as long as they fit; then up to CANDIDATES later ones that the remaining bytes pay for. */
static void choose(const work *w, step *end, uint64_t remaining) {
    enum { CANDIDATES = 64 };
    step candidates[CANDIDATES], *next = fit(w, w->steps, end, &remaining);
    memset(w->kinds, INT4, w->blocks);
    for (const step *s = w->steps; s < next; s++) take_step(w, s);
    unsigned count = 0;
    for (; next < end; next++) {
        if (price_of(w, next) > remaining || (count == CANDIDATES && !comes_before(next, &candidates[CANDIDATES - 1])))
            continue;
        unsigned at = count < CANDIDATES ? count++ : CANDIDATES - 1;
        for (; at && comes_before(next, &candidates[at - 1]); at--) candidates[at] = candidates[at - 1];
        candidates[at] = *next;
    }
    for (unsigned i = 0; i < count; i++) {
        const uint64_t price = price_of(w, &candidates[i]);
        if (price > remaining || *kind_of(w, &candidates[i]) != from_kind[candidates[i].at % 4]) continue;
        take_step(w, &candidates[i]);
        remaining -= price;
    }
}

/* Guesses, from a sample, a rate that the last fitting step will hardly fall below: int5 leaves a quarter of int4's error. */
static double guess_least(const work *w, uint64_t remaining) {
    const uint64_t every = w->blocks / 4096 + 1;
    step *end = w->steps;
    for (uint64_t b = 0; b < w->blocks; b += every) *end++ = (step){w->errors[b] / (double)w->prices[TO_FIVE], 4 * b + TO_FIVE};
    remaining /= every;
    const step *const next = fit(w, w->steps, end, &remaining);
    return next < end ? 0.72 * next->rate : 0;
}

/* Whether steps to int5 of at least the least rate leave bytes over, for which steps of a lower rate may be taken. */
static int too_few(const work *w, uint64_t steps, uint64_t remaining) {
    uint64_t price = 0;
    for (const step *s = w->steps; s < w->steps + steps; s++)
        price += s->at % 4 == TO_FIVE && s->rate >= w->lowest ? w->prices[TO_FIVE] : 0;
    return w->lowest > 0 && price < remaining;
}

static uint64_t size_of(const work *w) {
    uint64_t size = ceil_div(w->blocks, 4);
    for (uint64_t b = 0; b < w->blocks; b++) size += w->sizes[w->kinds[b]];
    return size;
}

int64_t wm_adaptive_choose(const float *x, uint64_t n, int scale_type, uint64_t block_size, uint64_t budget, uint64_t *room,
                           uint64_t room_size, int threads) {
    if (!is_legal(scale_type, block_size, n) || room_size != wm_adaptive_room(scale_type, block_size, n)) return -1;
    work w = work_of(x, n, scale_type, block_size, room);
    if (budget / w.sizes[INT4] < w.blocks) return -1;
    for (int kind = INT4; kind <= INT5; kind++) w.how[kind] = wm_quantizing_of(4 + kind, scale_type, block_size, w.sizes[kind]);
    const uint64_t piece = ELEMENTS_OF_A_PIECE / block_size + 1, remaining = budget - w.blocks * w.sizes[INT4];
    const int failed = wm_run_pieces(measure_four, &w, w.blocks, piece, threads);
    if (failed >= 0) return -2 - w.bad[failed];
    w.lowest = guess_least(&w, remaining);
    uint64_t steps = 0;
    for (int round = 0; round == 0 || too_few(&w, steps, remaining); round++) {
        if (round) w.lowest = round < 4 ? 0.8 * w.lowest : 0;
        wm_run_pieces(measure_more, &w, w.blocks, piece, threads);
        steps = list_steps(&w);
    }
    choose(&w, w.steps + steps, remaining);
    double lowest = 0;
    for (uint64_t b = 0; b < w.blocks; b++) lowest += w.errors[w.kinds[b] * w.blocks + b];
    for (int kind = INT4; kind <= HALF; kind++) {
        if (budget / w.sizes[kind] < w.blocks) continue;
        double error = 0;
        for (uint64_t b = 0; b < w.blocks; b++) error += w.errors[(uint64_t)kind * w.blocks + b];
        if (error >= lowest) continue;
        lowest = error;
        memset(w.kinds, kind, w.blocks);
    }
    return (int64_t)size_of(&w);
}

int wm_adaptive_encode(const float *x, uint64_t n, int scale_type, uint64_t block_size, uint64_t *room, uint64_t room_size,
                       uint8_t *out, uint64_t out_size) {
    if (!is_legal(scale_type, block_size, n) || room_size != wm_adaptive_room(scale_type, block_size, n)) return -1;
    const work w = work_of(x, n, scale_type, block_size, room);
    const uint64_t scale = scale_bytes(scale_type), mask = ceil_div(w.blocks, 4);
    uint64_t scales = 0;
    for (uint64_t b = 0; b < w.blocks; b++) {
        if (w.kinds[b] > HALF) return -1;
        scales += w.kinds[b] == HALF ? 0 : scale;
    }
    if (out_size != size_of(&w)) return -1;
    uint8_t *to_scales = out + mask, *to_codes = to_scales + scales;
    memset(out, 0, mask);
    for (uint64_t b = 0; b < w.blocks; b++) {
        const int kind = w.kinds[b];
        out[b / 4] = (uint8_t)(out[b / 4] | kind << 2 * (b % 4));
        if (kind == HALF) {
            const uint64_t here = elements_of(&w, b, b + 1);
            write_halves(x + b * w.block, here, to_codes);
            memset(to_codes + 2 * here, 0, w.sizes[HALF] - 2 * here);
            to_codes += w.sizes[HALF];
            continue;
        }
        const uint8_t *block = w.data[kind] + b * w.sizes[kind];
        memcpy(to_scales, block, scale);
        memcpy(to_codes, block + scale, w.sizes[kind] - scale);
        to_scales += scale, to_codes += w.sizes[kind] - scale;
    }
    return 0;
}
