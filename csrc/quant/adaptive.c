/* Blocks of different kinds in one tensor: [mask][scales][codes].
 *
 * The mask has two bits for each block, the first block in the lowest bits of byte 0: 0 int4, 1 int5, 2 float16. The kinds of
 * all earlier blocks determine where a block's scale and codes lie. The work in full:
 *
 *     for (b = 0; b < blocks; b++) {
 *         decode block b by its kind, from `scales` and `codes`;
 *         if (kind(b) != HALF) scales += scale_bytes;
 *         codes += bytes of a block of this kind;
 *     }
 *
 * To begin anywhere, wm_adaptive_check counts the kinds once, 32 blocks in a step, and keeps the counts before every 1024th
 * block; a range counts on from there. A variant then decodes whole blocks (wm_mixed_fn); the code here decodes parts of
 * blocks and the rest left by the variant, successive blocks of one kind together.
 *
 * The data may lie in a file that changes. So the mask is copied before it is checked, and the copy with the counts is the
 * plan for finding blocks: sizes once checked stay consistent. A change of scales and codes changes values, but every value
 * is still written.
 */
#include "quant/intblock.h"

enum { INT4 = WM_INT4, INT5 = WM_INT5, HALF = WM_HALF, WRONG = WM_WRONG, KINDS = WM_KINDS };
enum { CHUNK = 2048, ELEMENTS_A_THREAD = 1 << 20 };

static const int bits_of_kind[KINDS] = {4, 5, 16, 0};

/* Counts the set bits of x, in which every other bit is 0. */
static uint64_t count_pairs(uint64_t x) {
    x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0Fu;
    return x * 0x0101010101010101u >> 56;
}

/* Adds the kinds of blocks [from, to) to the counts; `from` is a multiple of 4. */
static void count_kinds(const uint8_t *mask, uint64_t from, uint64_t to, uint64_t counts[KINDS]) {
    const uint64_t every_other = 0x5555555555555555u;
    for (; from + 32 <= to; from += 32) {
        const uint64_t word = load_le64(mask + from / 4), low = word & every_other, high = word >> 1 & every_other;
        const uint64_t five = count_pairs(low & ~high), half = count_pairs(high & ~low), wrong = count_pairs(low & high);
        counts[INT4] += 32 - five - half - wrong;
        counts[INT5] += five;
        counts[HALF] += half;
        counts[WRONG] += wrong;
    }
    for (; from < to; from++) counts[wm_kind_at(mask, from)]++;
}

static uint64_t codes_size(const uint64_t counts[KINDS], uint64_t block) {
    return counts[INT4] * code_bytes(4, block) + counts[INT5] * code_bytes(5, block) + counts[HALF] * 2 * block;
}

static int is_legal(int scale_type, uint64_t block_size, uint64_t n) {
    return block_size && wm_blocks_size(5, scale_type, block_size, n) >= 0;
}

/* A plan: the totals of int5 and float16 blocks; the same counts before every STEP-th block, so that finding a block takes
 * counting within one step; the mask. */
enum { STEP = 1024, TOTALS = 2 };

static uint64_t mask_size(uint64_t blocks) { return ceil_div(blocks, 4); }
static uint64_t mask_at(uint64_t blocks) { return TOTALS + 2 * (blocks / STEP + 1); }
static uint64_t plan_size(uint64_t blocks) { return mask_at(blocks) + ceil_div(mask_size(blocks), 8); }

uint64_t wm_adaptive_plan_size(uint64_t block_size, uint64_t n) { return plan_size(block_size ? ceil_div(n, block_size) : 0); }

static uint64_t size_by_kinds(uint64_t blocks, const uint64_t counts[KINDS], int scale_type, uint64_t block_size) {
    const uint64_t scales = (counts[INT4] + counts[INT5]) * scale_bytes(scale_type);
    return mask_size(blocks) + scales + codes_size(counts, block_size);
}

int wm_adaptive_check(const uint8_t *data, uint64_t size, int scale_type, uint64_t block_size, uint64_t n, uint64_t *plan,
                      uint64_t n_plan, wm_fault *fault) {
    if (!is_legal(scale_type, block_size, n)) return wm_fail(fault, WM_FAULT_NONE, 0, 0, 0, 0);
    const uint64_t blocks = ceil_div(n, block_size), mask_len = mask_size(blocks);
    uint64_t counts[KINDS] = {0}, *pair = plan + TOTALS;
    if (n_plan != plan_size(blocks)) return wm_fail(fault, WM_FAULT_NONE, 0, 0, 0, 0);
    if (size < mask_len) return wm_fail(fault, WM_FAULT_ADAPTIVE_SIZE, 0, 0, size, mask_len);
    plan[n_plan - 1] = 0; /* pads the mask; without blocks it is a count */
    uint8_t *mask = (uint8_t *)(plan + mask_at(blocks));
    if (mask_len) memcpy(mask, data, mask_len);
    for (uint64_t b = 0; b <= blocks; pair += 2) {
        pair[0] = counts[INT5], pair[1] = counts[HALF];
        const uint64_t to = blocks - b < STEP ? blocks : b + STEP;
        count_kinds(mask, b, to, counts);
        b += STEP;
    }
    plan[0] = counts[INT5], plan[1] = counts[HALF];
    if (counts[WRONG]) {
        uint64_t i = 0;
        while (i + 1 < blocks && wm_kind_at(mask, i) != WRONG) i++;
        return wm_fail(fault, WM_FAULT_ADAPTIVE_MASK, i, i / 4, WRONG, 0);
    }
    if (blocks % 4 && mask[mask_len - 1] >> 2 * (blocks % 4))
        return wm_fail(fault, WM_FAULT_ADAPTIVE_PADDING, blocks, mask_len - 1, mask[mask_len - 1], 0);
    const uint64_t expected = size_by_kinds(blocks, counts, scale_type, block_size);
    if (size != expected) return wm_fail(fault, WM_FAULT_ADAPTIVE_SIZE, 0, 0, size, expected);
    return 0;
}

/* ------------------------------------------------------------------------------------------------ decoding */
typedef struct {
    const uint8_t *mask, *scales, *codes, *end;
    const uint64_t *pairs;
    uint8_t *out;
    uint64_t block, first;
    int scale_type, half;
    uint8_t failed[WM_MAX_PARTS]; /* by part */
} work;

uint64_t mixed_portable(wm_mixed *blocks, void *out) { return 0; }

static void put_halves(wm_sink *sink, const uint8_t *halves, uint64_t n) {
    float values[CHUNK];
    for (uint64_t part; n; n -= part, halves += 2 * part) {
        part = n < CHUNK ? n : CHUNK;
        wm_variants_in_use()->f16_to_f32(halves, values, part, 0);
        wm_sink_put(sink, values, part);
    }
}

/* Finds the beginning of a block by the plan. Returns 0 for a plan whose counts contradict each other. */
static int find_block(const work *w, uint64_t block, const uint8_t **scales, const uint8_t **codes) {
    const uint64_t step = block / STEP, five = w->pairs[2 * step], halves = w->pairs[2 * step + 1];
    if (five > step * STEP || halves > step * STEP - five) return 0;
    uint64_t counts[KINDS] = {[INT4] = step * STEP - five - halves, [INT5] = five, [HALF] = halves};
    count_kinds(w->mask, step * STEP, block, counts);
    *scales = w->scales + (counts[INT4] + counts[INT5]) * scale_bytes(w->scale_type);
    *codes = w->codes + codes_size(counts, w->block);
    return 1;
}

/* Decodes elements [at, stop). Returns 1; or 0 if the plan leads out of the data, leaving some elements unwritten. */
static int decode_elements(const work *w, uint64_t at, uint64_t stop, wm_sink *sink) {
    uint64_t block = at / w->block;
    const uint8_t *scales, *codes;
    if (!find_block(w, block, &scales, &codes)) return 0;
    wm_mixed_fn *const decode = wm_variants_in_use()->mixed;
    while (at < stop) {
        if (at == block * w->block && stop / w->block > block) {
            wm_mixed whole = {.mask = w->mask,
                              .scales = scales,
                              .codes = codes,
                              .scales_end = w->codes,
                              .end = w->end,
                              .next = block,
                              .last = stop / w->block,
                              .len = w->block,
                              .scale_type = w->scale_type,
                              .half = w->half};
            const uint64_t done = decode(&whole, sink->next) * w->block;
            sink->next += done * value_bytes(w->half);
            at += done, block = whole.next, scales = whole.scales, codes = whole.codes;
            if (at == stop) break;
        }
        const int kind = wm_kind_at(w->mask, block);
        uint64_t next = block + 1;
        while (next * w->block < stop && wm_kind_at(w->mask, next) == kind) next++;
        const uint64_t origin = block * w->block, until = next * w->block < stop ? next * w->block : stop;
        const uint64_t size = (next - block) * (kind == HALF ? 2 * w->block : code_bytes(bits_of_kind[kind], w->block));
        if (kind == WRONG || codes > w->end || size > (uint64_t)(w->end - codes)) return 0;
        if (kind == HALF) {
            put_halves(sink, codes + 2 * (at - origin), until - at);
        } else {
            const uint64_t used = (next - block) * scale_bytes(w->scale_type);
            if (scales > w->codes || used > (uint64_t)(w->codes - scales)) return 0;
            wm_runs runs = {.scales = scales,
                            .codes = codes,
                            .end = w->end,
                            .len = w->block,
                            .scale_stride = scale_bytes(w->scale_type),
                            .stride = code_bytes(bits_of_kind[kind], w->block),
                            .scale_type = w->scale_type,
                            .bits = bits_of_kind[kind]};
            wm_decode_range(sink, &runs, at - origin, until - origin);
            scales += used;
        }
        codes += size;
        at = until;
        block = next;
    }
    return 1;
}

static void decode_part(void *context, int number, uint64_t begin, uint64_t end) {
    work *w = context;
    uint8_t *const last = w->out + end * value_bytes(w->half);
    wm_sink sink = {w->out + begin * value_bytes(w->half), w->half, WM_FETCHED};
    w->failed[number] = !decode_elements(w, w->first + begin, w->first + end, &sink);
    if (w->failed[number]) memset(sink.next, 0, (size_t)(last - sink.next)); /* never hand out old content */
}

int wm_adaptive_decode(const uint8_t *data, uint64_t size, int scale_type, uint64_t block_size, uint64_t n,
                       const uint64_t *plan, uint64_t n_plan, uint64_t first, void *out, uint64_t count, int half,
                       int threads) {
    if (!is_legal(scale_type, block_size, n) || first > n || count > n - first) return -1;
    const uint64_t blocks = ceil_div(n, block_size);
    if (n_plan != plan_size(blocks)) return -1;
    const uint64_t five = plan[0], halves = plan[1];
    if (five > blocks || halves > blocks - five) return -1;
    const uint64_t counts[KINDS] = {[INT4] = blocks - five - halves, [INT5] = five, [HALF] = halves};
    if (size != size_by_kinds(blocks, counts, scale_type, block_size)) return -1;
    if (count == 0) return 0;
    if (wm_overlap(data, size, out, count * value_bytes(half))) return -2;
    work w = {.mask = (const uint8_t *)(plan + mask_at(blocks)),
              .scales = data + mask_size(blocks),
              .end = data + size,
              .pairs = plan + TOTALS,
              .out = out,
              .block = block_size,
              .first = first,
              .scale_type = scale_type,
              .half = half};
    w.codes = w.scales + (counts[INT4] + counts[INT5]) * scale_bytes(scale_type);
    const int parts = wm_run_parts(decode_part, &w, count, 1024, ELEMENTS_A_THREAD, threads); /* of whole pages */
    for (int i = 0; i < parts; i++)
        if (w.failed[i]) return -1;
    return 0;
}
