/* Decodes frames of zstd (RFC 8878) block by block, for payloads that are mostly zero: what changed between two versions of a
 * tensor. The bytes that are not zero are kept as a list of their places, in which a match is a look-up and some additions: no
 * zero is ever written. XOR to the caller's bytes is one pass over that list. A payload with too many such bytes is kept as it
 * is, from there on. Dictionaries are refused, and a frame's own checksum is not compared: each tensor has one of its result.
 * Frames come from strangers: every length is checked where it is used. */
#include "zstd.h"

enum {
    SLACK = 32,   /* bytes that may be written behind a block, and read before or behind what is compressed */
    SPARSE = 16,  /* one byte of these may differ from zero in a payload that is kept as a list */
    LINE_LOG = 7, /* bytes for which there is one entry of the list to begin at */
};

typedef struct {
    uint32_t base; /* of the value */
    uint16_t next; /* base of the next state */
    uint8_t extra; /* bits of the value above its base */
    uint8_t bits;  /* of the next state */
} cell;

typedef struct {
    int log; /* -1: there is none yet */
    cell cells[1 << LL_LOG];
} table;

typedef struct {
    uint64_t window, block_max;
    uint64_t made;  /* end of the block that was decoded last, in the payload */
    uint64_t given; /* end of what the caller has */
    uint64_t repeated[3];
    int last;        /* whether that block is the last one */
    int huffman_log; /* 0: there is no table yet */
    /* A list of bytes that are not zero: place << 8 | byte, in order, and UINT64_MAX behind the last one. */
    int sparse;
    uint64_t *list, count, capacity, next; /* next: the first one that the caller has not got */
    uint32_t *lines, dropped; /* number of the first entry at or behind each line, those before `list` counted too */
    uint64_t line_mask, next_line;
    int lined; /* whether there are lines */
    /* Or the bytes as they are: those of the last block end at `at`, older ones lie behind them up to `old`. */
    uint8_t *history;
    uint64_t at, old, room;
    table literal_lengths, offsets, match_lengths;
    uint16_t huffman[1 << HUF_LOG]; /* symbol | bits << 8 */
    uint8_t literals[BLOCK + SLACK];
    uint8_t packed[SLACK + BLOCK + SLACK];
} decoder;

/* ------------------------------------------------------------------------------------------------ bits, from the end on */
typedef struct {
    const uint8_t *p, *low; /* the eight bytes of `word`; the lowest place that these may have */
    uint64_t word;
    unsigned used; /* bits of `word` that were read */
    int over;      /* whether more was asked for than there is */
} bits;

/* Begins at the end of n bytes; SLACK bytes before them may be read. 0 unless they end in a mark. */
static int bits_begin(bits *b, const uint8_t *data, uint64_t n) {
    if (!n || !data[n - 1]) return 0;
    b->low = data - 8;
    b->p = data + n - 8;
    b->word = load_le64(b->p);
    b->used = 8 - high_bit(data[n - 1]);
    b->over = 0;
    return 1;
}

WM_INLINE void bits_refill(bits *b) {
    uint64_t n = b->used >> 3;
    const uint64_t left = (uint64_t)(b->p - b->low);
    if (n > left) n = left, b->over = 1;
    b->p -= n;
    b->used &= 7;
    b->word = load_le64(b->p);
}

/* After a refill 57 bits may be read, each time up to 32. */
WM_INLINE uint64_t bits_read(bits *b, unsigned n) {
    const uint64_t v = b->word << (b->used & 63) >> 1 >> (63 - n);
    b->used += n;
    return v;
}

static int64_t bits_left(const bits *b) { return b->over ? -1 : (int64_t)(b->p - b->low) * 8 - (int64_t)b->used; }

/* ---------------------------------------------------------------------------------------------------- tables of states */
typedef struct {
    unsigned count;      /* of symbols */
    int log, usual_log;  /* most bits of a state */
    const int8_t *usual; /* the distribution that needs no words */
    unsigned n_usual;
    const uint8_t *extra; /* bits of each symbol; NULL: as many as its number */
    unsigned shortest;    /* value of the first symbol */
} kind;

static const kind LITERAL_LENGTHS = {36, LL_LOG, 6, LL_USUAL, 36, LL_BITS, 0};
static const kind OFFSETS = {32, OF_LOG, 5, OF_USUAL, 29, NULL, 1};
static const kind MATCH_LENGTHS = {53, ML_LOG, 6, ML_USUAL, 53, ML_BITS, 3};

/* Reads a distribution; returns the bytes that it takes, 0 when it is damaged. */
static uint64_t read_distribution(const uint8_t *data, uint64_t n, int most_log, unsigned most, int16_t *weights,
                                  unsigned *count, int *log) {
    uint64_t at = 4; /* in bits */
    if (!n) return 0;
    *log = (data[0] & 15) + 5;
    if (*log > most_log) return 0;
    int left = 1 << *log;
    unsigned symbol = 0;
    while (left > 0 && symbol < most) {
        const unsigned wide = high_bit((uint64_t)left + 1) + 1;
        uint32_t v = 0;
        for (unsigned i = 0; i < 4; i++)
            if ((at >> 3) + i < n) v |= (uint32_t)data[(at >> 3) + i] << 8 * i;
        v = v >> (at & 7) & ((1U << wide) - 1);
        const uint32_t low = v & ((1U << (wide - 1)) - 1), few = (1U << wide) - 2 - (uint32_t)left;
        at += wide;
        if (low < few)
            at--, v = low;
        else if (v >= 1U << (wide - 1))
            v -= few;
        const int weight = (int)v - 1;
        left -= weight < 0 ? 1 : weight;
        weights[symbol++] = (int16_t)weight;
        while (weight == 0) { /* how many more have none, by twos of bits */
            if (at >> 3 >= n) return 0;
            uint32_t more = data[at >> 3] >> (at & 7);
            if ((at >> 3) + 1 < n) more |= (uint32_t)data[(at >> 3) + 1] << (8 - (at & 7));
            more &= 3, at += 2;
            for (uint32_t i = 0; i < more && symbol < most; i++) weights[symbol++] = 0;
            if (more < 3) break;
        }
    }
    if (left || (at + 7) >> 3 > n) return 0;
    *count = symbol;
    return (at + 7) >> 3;
}

static cell cell_of(const kind *k, unsigned symbol, uint32_t base) {
    return (cell){base, 0, k->extra ? k->extra[symbol] : (uint8_t)symbol, 0};
}

/* The first value of a symbol, from that of the one before. */
static uint32_t base_after(const kind *k, unsigned symbol, uint32_t base) {
    return symbol ? base + (1U << (k->extra ? k->extra[symbol - 1] : symbol - 1)) : k->shortest;
}

static int build(table *t, const kind *k, const int16_t *weights, unsigned count, int log) {
    uint8_t symbols[1 << LL_LOG], wide[1 << LL_LOG];
    uint16_t next[1 << LL_LOG];
    cell cells[64];
    if (!spread(weights, count, log, symbols, next, wide)) return 0;
    uint32_t base = 0;
    for (unsigned s = 0; s < count; s++) cells[s] = cell_of(k, s, base = base_after(k, s, base));
    for (unsigned i = 0; i < 1U << log; i++) {
        cell one = cells[symbols[i]];
        one.next = next[i], one.bits = wide[i];
        t->cells[i] = one;
    }
    t->log = log;
    return 1;
}

/* Makes a table as its mode says; returns the bytes that it takes, or -1. */
static int64_t read_table(table *t, const kind *k, unsigned mode, const uint8_t *data, uint64_t n) {
    int16_t weights[64];
    unsigned count;
    int log;
    if (mode == 3) return t->log < 0 ? -1 : 0;
    if (mode == 1) {
        if (!n || data[0] >= k->count) return -1;
        uint32_t base = 0;
        for (unsigned s = 0; s <= data[0]; s++) base = base_after(k, s, base);
        t->log = 0;
        t->cells[0] = cell_of(k, data[0], base);
        return 1;
    }
    if (mode == 0) {
        for (unsigned s = 0; s < k->n_usual; s++) weights[s] = k->usual[s];
        return build(t, k, weights, k->n_usual, k->usual_log) ? 0 : -1;
    }
    const uint64_t taken = read_distribution(data, n, k->log, k->count, weights, &count, &log);
    return taken && build(t, k, weights, count, log) ? (int64_t)taken : -1;
}

/* ------------------------------------------------------------------------------------------------------------ literals */
/* Reads the weights of symbols, packed by states of their own; returns their number, or -1. */
static int packed_weights(const uint8_t *data, uint64_t n, uint8_t *found) {
    int16_t weights[13];
    uint8_t symbols[1 << WEIGHT_LOG], wide[1 << WEIGHT_LOG];
    uint16_t next[1 << WEIGHT_LOG];
    unsigned kinds;
    int log, count = 0;
    bits b;
    const uint64_t taken = read_distribution(data, n, WEIGHT_LOG, 13, weights, &kinds, &log);
    if (!taken || !spread(weights, kinds, log, symbols, next, wide) || !bits_begin(&b, data + taken, n - taken)) return -1;
    uint64_t state[2];
    for (int i = 0; i < 2; i++) state[i] = bits_read(&b, (unsigned)log);
    for (int i = 0;; i ^= 1) {
        if (bits_left(&b) < 0 || count >= 254) return -1;
        found[count++] = symbols[state[i]];
        bits_refill(&b);
        state[i] = next[state[i]] + bits_read(&b, wide[state[i]]);
        if (bits_left(&b) < 0) {
            found[count++] = symbols[state[i ^ 1]];
            return count;
        }
    }
}

/* Makes the table of literals; returns the bytes that its words take, or 0. */
static uint64_t read_huffman(decoder *d, const uint8_t *data, uint64_t n) {
    uint8_t weights[256];
    unsigned count, starts[HUF_LOG + 2] = {0};
    uint64_t taken, total = 0;
    if (!n) return 0;
    if (data[0] < 128) {
        taken = 1 + (uint64_t)data[0];
        const int got = taken > n ? -1 : packed_weights(data + 1, data[0], weights);
        if (got < 0) return 0;
        count = (unsigned)got;
    } else {
        count = data[0] - 127U;
        taken = 1 + (count + 1) / 2;
        if (taken > n) return 0;
        for (unsigned i = 0; i < count; i++) weights[i] = i & 1 ? data[1 + i / 2] & 15 : data[1 + i / 2] >> 4;
    }
    for (unsigned i = 0; i < count; i++) {
        if (weights[i] > HUF_LOG) return 0;
        if (weights[i]) total += 1U << (weights[i] - 1), starts[weights[i]]++;
    }
    if (!total) return 0;
    const unsigned log = high_bit(total) + 1;
    const uint64_t rest = (1U << log) - total;
    if (log > HUF_LOG || rest & (rest - 1)) return 0;
    weights[count++] = (uint8_t)(high_bit(rest) + 1); /* what is left is the last symbol's */
    starts[weights[count - 1]]++;
    for (unsigned w = 1, at = 0; w <= log; w++) {
        const unsigned wide = starts[w] << (w - 1);
        starts[w] = at, at += wide;
    }
    for (unsigned s = 0; s < count; s++) {
        const unsigned w = weights[s];
        if (!w) continue;
        for (unsigned i = 0; i < 1U << (w - 1); i++) d->huffman[starts[w] + i] = (uint16_t)(s | (log + 1 - w) << 8);
        starts[w] += 1U << (w - 1);
    }
    d->huffman_log = (int)log;
    return taken;
}

#define SYMBOL(b, out)                                                   \
    do {                                                                 \
        const unsigned v_ = codes[(b).word << ((b).used & 63) >> shift]; \
        (out) = (uint8_t)v_;                                             \
        (b).used += v_ >> 8;                                             \
    } while (0)

static int unpack_literals(const decoder *d, const uint8_t *data, uint64_t n, uint8_t *out, uint64_t size, unsigned streams) {
    const unsigned shift = 64 - (unsigned)d->huffman_log;
    const uint16_t *const codes = d->huffman;
    bits b[4];
    uint64_t at[4], end[4], begin = 0;
    if (streams == 4) {
        const uint64_t part = (size + 3) / 4;
        if (n < 10 || 3 * part > size) return 0;
        begin = 6;
        for (unsigned i = 0; i < 4; i++) {
            const uint64_t length = i < 3 ? load_le16(data + 2 * i) : n - begin;
            if (length > n - begin || !bits_begin(&b[i], data + begin, length)) return 0;
            begin += length;
            at[i] = i * part, end[i] = i < 3 ? (i + 1) * part : size;
        }
        for (; at[3] + 5 <= size; at[0] += 5, at[1] += 5, at[2] += 5, at[3] += 5) {
            for (unsigned i = 0; i < 4; i++) bits_refill(&b[i]);
            for (unsigned j = 0; j < 5; j++)
                for (unsigned i = 0; i < 4; i++) SYMBOL(b[i], out[at[i] + j]);
        }
    } else {
        if (!bits_begin(&b[0], data, n)) return 0;
        at[0] = 0, end[0] = size;
    }
    for (unsigned i = 0; i < streams; i++) {
        for (; at[i] < end[i]; at[i]++) {
            bits_refill(&b[i]);
            SYMBOL(b[i], out[at[i]]);
        }
        bits_refill(&b[i]);
        if (bits_left(&b[i])) return 0;
    }
    return 1;
}

typedef struct {
    const uint8_t *data;
    uint64_t n;
} span;

/* Decodes the literals of a block, and moves `in` behind them. */
static int read_literals(decoder *d, span *in, const uint8_t **literals, uint64_t *size) {
    const uint8_t *const p = in->data;
    if (!in->n) return 0;
    const unsigned type = p[0] & 3, form = p[0] >> 2 & 3;
    const uint64_t word = load_le64(p); /* SLACK bytes follow */
    uint64_t head, packed;
    if (type < 2) {
        head = form == 1 ? 2 : form == 3 ? 3 : 1;
        *size = head == 1 ? (word & 255) >> 3 : head == 2 ? (word & 0xFFFF) >> 4 : (word & 0xFFFFFF) >> 4;
        packed = type ? 1 : *size;
    } else {
        const unsigned wide = form < 2 ? 10 : form == 2 ? 14 : 18;
        head = form < 2 ? 3 : form == 2 ? 4 : 5;
        *size = word >> 4 & ((1U << wide) - 1);
        packed = word >> (4 + wide) & ((1U << wide) - 1);
    }
    if (*size > d->block_max || head + packed > in->n) return 0;
    *in = (span){p + head + packed, in->n - head - packed};
    if (type == 0) return *literals = p + head, 1;
    *literals = d->literals;
    if (type == 1) return memset(d->literals, p[head], *size), 1;
    uint64_t words = 0;
    if (type == 2 && !(words = read_huffman(d, p + head, packed))) return 0;
    if (type == 3 && !d->huffman_log) return 0;
    return *size && unpack_literals(d, p + head + words, packed - words, d->literals, *size, form ? 4 : 1);
}

/* ------------------------------------------------------------------------------------------------- the bytes, as a list
 * How many bytes differ from zero in the literals of a sequence is what a processor guesses wrong. So the first of these are added
 * without a branch: written, and then counted or not. In most matches none does. */
typedef struct {
    uint64_t *list, count, capacity, next_line, mask;
    uint32_t *lines, dropped;
    int lined;
} tail;

enum { SPARE = 8 }; /* entries that are free before each sequence */

static tail tail_of(const decoder *d) {
    return (tail){d->list, d->count, d->capacity, d->next_line, d->line_mask, d->lines, d->dropped, d->lined};
}

static void keep_tail(decoder *d, const tail *t) { d->count = t->count, d->next_line = t->next_line, d->lined = t->lined; }

/* Adds an entry if `one` is 1, nothing if it is 0. */
WM_INLINE void add(tail *t, uint64_t entry, uint64_t one) {
    t->list[t->count] = entry;
    t->count += one;
}

/* Says where to look for what comes before `end`: no later than at the next entry. */
WM_INLINE void list_lines(tail *t, uint64_t end, uint64_t entry) {
    const uint64_t line = end >> LINE_LOG;
    while (t->next_line <= line) t->lines[t->next_line++ & t->mask] = t->dropped + (uint32_t)entry;
}

/* Makes room for a sequence before `end`. 0 when the list has none. */
WM_INLINE int list_room(tail *t, uint64_t end) {
    if (t->lined) {
        for (unsigned i = 0; i < 2; i++) {
            t->lines[t->next_line & t->mask] = t->dropped + (uint32_t)t->count;
            t->next_line += t->next_line <= end >> LINE_LOG;
        }
        list_lines(t, end, t->count);
    }
    return t->count + SPARE < t->capacity;
}

/* Says where to look for what lies between two places, from the first match on that asks for it: those of our own frames do not. */
static void list_begin_lines(tail *t, uint64_t begin, uint64_t end) {
    t->next_line = begin >> LINE_LOG;
    for (uint64_t i = 0; i < t->count; i++) list_lines(t, t->list[i] >> 8, i);
    list_lines(t, end, t->count);
    t->lined = 1;
}

WM_INLINE int list_literals(tail *t, uint64_t to, const uint8_t *from, uint64_t n) {
    for (uint64_t i = 0; i < 2; i++) add(t, (to + i) << 8 | from[i], (n > i) & (from[i] != 0)); /* SLACK bytes follow */
    for (uint64_t i = 2; i < n; i++) {
        if (t->count + SPARE / 2 >= t->capacity) return 0;
        add(t, (to + i) << 8 | from[i], from[i] != 0);
    }
    t->list[t->count] = UINT64_MAX;
    return 1;
}

WM_INLINE int list_match(tail *t, uint64_t to, uint64_t offset, uint64_t n) {
    const uint64_t from = to - offset, begin = from << 8, end = (from + n) << 8, back = offset << 8;
    const int32_t near = (int32_t)(t->lines[from >> LINE_LOG & t->mask] - t->dropped);
    const uint64_t *p = t->list + (near < 0 ? 0 : near);
    for (unsigned j = 0; j < 3; j++) p += *p < begin;
    while (*p < begin) p++;
    for (; *p < end; p++) { /* what was added just now, too, where the match overlaps itself */
        if (t->count == t->capacity) return 0;
        add(t, *p + back, 1);
        t->list[t->count] = UINT64_MAX;
    }
    return 1;
}

/* Forgets what no match may reach, and the caller has. */
static void list_shorten(decoder *d) {
    const uint64_t end = d->made > d->window ? d->made - d->window : 0;
    uint64_t n = 0;
    while (n < d->next && d->list[n] < end << 8) n++;
    memmove(d->list, d->list + n, (d->count + 1 - n) * sizeof *d->list);
    d->count -= n, d->next -= n, d->dropped += (uint32_t)n;
}

/* Makes the bytes of a list: from then on they are kept as they are. */
static void list_end(decoder *d) {
    const uint64_t begin = d->made > d->window ? d->made - d->window : 0;
    const uint64_t kept = d->made - (begin < d->given ? begin : d->given);
    memset(d->history, 0, kept);
    for (uint64_t i = 0; i < d->count; i++)
        if (d->list[i] >> 8 >= d->made - kept) d->history[(d->list[i] >> 8) - (d->made - kept)] = (uint8_t)d->list[i];
    d->at = d->old = kept;
    d->sparse = 0;
}

/* --------------------------------------------------------------------------------------------------- or as they are */
/* Copies n bytes, and up to 15 more, to a place at least 16 bytes behind. */
WM_INLINE void copy_wide(uint8_t *to, const uint8_t *from, uint64_t n) {
    for (uint64_t i = 0; i < n; i += 16) memcpy(to + i, from + i, 16);
}

static void plain_match(decoder *d, uint64_t to, uint64_t offset, uint64_t n) {
    uint8_t *const h = d->history;
    if (to < offset) { /* it begins behind the end */
        for (; n && to < offset; n--, to++) h[to] = h[d->old - (offset - to)];
    }
    if (offset < 16) { /* a pattern, which is also one of a multiple of its length */
        const uint64_t some = n < 16 ? n : 16;
        for (uint64_t i = 0; i < some; i++) h[to + i] = h[to + i - offset];
        to += some, n -= some;
        offset *= (15 + offset) / offset;
    }
    copy_wide(h + to, h + to - offset, n);
}

/* ----------------------------------------------------------------------------------------------------------- sequences */
enum { DAMAGED = -1, CROWDED, DECODED };

typedef struct {
    uint32_t some, length; /* literals before the match, and its bytes */
    uint64_t offset;
} sequence;

/* The sequences of a block, on their way. */
typedef struct {
    bits b;
    uint64_t left, ll, of, ml, repeated[3];
} reader;

enum { AT_ONCE = 128 };

/* Reads what precedes the sequences, and moves `in` behind it: 0 when it is damaged. */
static int begin_sequences(decoder *d, span in, reader *r) {
    const uint8_t *const p = in.data;
    uint64_t head = 1;
    if (!in.n) return 0;
    if (p[0] < 128)
        r->left = p[0];
    else if (p[0] < 255)
        r->left = ((p[0] - 128U) << 8) + p[1], head = 2;
    else
        r->left = 0x7F00U + p[1] + ((uint64_t)p[2] << 8), head = 3;
    memcpy(r->repeated, d->repeated, sizeof r->repeated);
    if (!r->left) return in.n == 1;
    if (head + 1 > in.n || p[head] & 3) return 0;
    const unsigned modes = p[head++];
    table *const tables[3] = {&d->literal_lengths, &d->offsets, &d->match_lengths};
    const kind *const kinds[3] = {&LITERAL_LENGTHS, &OFFSETS, &MATCH_LENGTHS};
    for (unsigned i = 0; i < 3; i++) {
        const int64_t taken = read_table(tables[i], kinds[i], modes >> (6 - 2 * i) & 3, p + head, in.n - head);
        if (taken < 0) return 0;
        head += (uint64_t)taken;
    }
    if (!bits_begin(&r->b, p + head, in.n - head)) return 0;
    r->ll = bits_read(&r->b, (unsigned)d->literal_lengths.log);
    r->of = bits_read(&r->b, (unsigned)d->offsets.log);
    r->ml = bits_read(&r->b, (unsigned)d->match_lengths.log);
    return 1;
}

/* The next n bits, up to 32, of v, from which they go. */
#define TAKE(v, n) (taken = (v) >> 1 >> (63 - (n)), (v) <<= (n), taken)

/* Reads the next sequences, at most AT_ONCE; returns how many. What comes next is hard to guess, so nothing here branches on it. */
static uint64_t read_sequences(const decoder *d, reader *r, sequence *found) {
    const cell *const lls = d->literal_lengths.cells, *const ofs = d->offsets.cells, *const mls = d->match_lengths.cells;
    const uint64_t left = r->left, n = left < AT_ONCE ? left : AT_ONCE;
    bits b = r->b;
    uint64_t ll_state = r->ll, of_state = r->of, ml_state = r->ml, taken;
    uint64_t near[4] = {r->repeated[0], r->repeated[1], r->repeated[2], r->repeated[0] - 1};
    for (uint64_t i = 0; i < n; i++) {
        const cell *const ll = lls + ll_state, *const of = ofs + of_state, *const ml = mls + ml_state;
        const unsigned extra = of->extra + ml->extra + ll->extra;
        bits_refill(&b);
        uint64_t v = b.word << b.used;
        uint64_t offset = of->base + TAKE(v, of->extra);
        const uint32_t length = ml->base + (uint32_t)TAKE(v, ml->extra);
        b.used += extra;
        if (extra > 31) {
            b.used -= ll->extra;
            bits_refill(&b);
            v = b.word << b.used;
            b.used += ll->extra;
        }
        const uint32_t some = ll->base + (uint32_t)TAKE(v, ll->extra);
        if (i + 1 < left) { /* nothing follows the last one */
            ll_state = ll->next + TAKE(v, ll->bits);
            ml_state = ml->next + TAKE(v, ml->bits);
            of_state = of->next + TAKE(v, of->bits);
            b.used += ll->bits + ml->bits + of->bits;
        }
        if (offset > 3) {
            offset -= 3;
            near[2] = near[1], near[1] = near[0];
        } else { /* the number of an offset that was used before; without literals, of the one after that */
            const uint64_t which = offset - (some != 0), moved = 0 - (uint64_t)(which > 0), last = 0 - (uint64_t)(which > 1);
            offset = near[which];
            near[2] = (near[1] & last) | (near[2] & ~last);
            near[1] = (near[0] & moved) | (near[1] & ~moved);
        }
        near[0] = offset;
        near[3] = offset - 1;
        found[i] = (sequence){some, length, offset};
    }
    r->b = b;
    r->left = left - n;
    r->ll = ll_state, r->of = of_state, r->ml = ml_state;
    memcpy(r->repeated, near, sizeof r->repeated);
    return n;
}

WM_INLINE int run(decoder *d, span in, const uint8_t *literals, uint64_t n_literals, const int sparse) {
    /* Places are those of the payload, or of the history: `behind` bytes are before the first one. */
    const uint64_t begin = sparse ? d->made : d->at, behind = d->made - begin, limit = begin + d->block_max;
    const uint64_t window = d->window;
    uint64_t to = begin;
    sequence some[AT_ONCE];
    reader r;
    if (!begin_sequences(d, in, &r)) return DAMAGED;
    const int any = r.left != 0;
    tail t = tail_of(d);
    while (r.left) {
        const uint64_t n = read_sequences(d, &r, some);
        for (uint64_t i = 0; i < n; i++) {
            const sequence s = some[i];
            const uint64_t from = to + s.some;
            if (s.some > n_literals || (uint64_t)s.some + s.length > limit - to) return DAMAGED;
            const uint64_t most = from + behind < window ? from + behind : window;
            if (s.offset - 1 >= most) return DAMAGED;
            if (sparse) {
                if (!list_room(&t, from + s.length) || !list_literals(&t, to, literals, s.some)) return CROWDED;
                /* A zero, many times, adds nothing: all matches of our own frames are that. */
                const int zeros = s.offset == 1 && !(t.count && t.list[t.count - 1] >> 8 == from - 1);
                if (!zeros && !t.lined) list_begin_lines(&t, from > window ? from - window : 0, from + s.length);
                if (!zeros && !list_match(&t, from, s.offset, s.length)) return CROWDED;
            } else {
                copy_wide(d->history + to, literals, s.some);
                plain_match(d, from, s.offset, s.length);
            }
            literals += s.some, n_literals -= s.some;
            to = from + s.length;
        }
    }
    if (any) {
        bits_refill(&r.b);
        if (bits_left(&r.b)) return DAMAGED;
    }
    if (n_literals > limit - to) return DAMAGED;
    if (!sparse)
        memcpy(d->history + to, literals, n_literals);
    else if (!list_room(&t, to + n_literals) || !list_literals(&t, to, literals, n_literals))
        return CROWDED;
    to += n_literals;
    keep_tail(d, &t);
    memcpy(d->repeated, r.repeated, sizeof r.repeated);
    d->made += to - begin;
    if (!sparse) d->at = to;
    return DECODED;
}

static int run_list(decoder *d, span in, const uint8_t *literals, uint64_t n) { return run(d, in, literals, n, 1); }
static int run_plain(decoder *d, span in, const uint8_t *literals, uint64_t n) { return run(d, in, literals, n, 0); }

/* --------------------------------------------------------------------------------------------------------------- frames */
int wm_frame_header(const uint8_t *data, uint64_t n, wm_frame *frame) {
    static const uint8_t dictionaries[4] = {0, 1, 2, 4}, sizes[4] = {0, 2, 4, 8};
    if (n < 6 || load_le32(data) != 0xFD2FB528U || data[4] & 8) return 0;
    const unsigned flags = data[4], single = flags >> 5 & 1;
    const unsigned n_dictionary = dictionaries[flags & 3], n_size = flags >> 6 ? sizes[flags >> 6] : single;
    uint64_t at = 5, value = 0;
    if (n < at + !single + n_dictionary + n_size) return 0;
    if (!single) {
        const unsigned log = 10U + (data[at] >> 3);
        frame->window = (UINT64_C(1) << log) + (UINT64_C(1) << (log - 3)) * (data[at] & 7U);
        at++;
    }
    for (unsigned i = 0; i < n_dictionary; i++)
        if (data[at++]) return 0; /* a dictionary that nobody has */
    for (unsigned i = 0; i < n_size; i++) value |= (uint64_t)data[at++] << 8 * i;
    frame->size = n_size ? value + (n_size == 2 ? 256 : 0) : UINT64_MAX;
    if (single) frame->window = frame->size;
    frame->header = at;
    return 1;
}

static uint64_t list_capacity(uint64_t window) { return (window + 2 * BLOCK) / SPARSE; }

static uint64_t line_count(uint64_t window) { return UINT64_C(2) << high_bit((window + 2 * BLOCK) >> LINE_LOG); }

uint64_t wm_frame_room(uint64_t window) {
    return sizeof(decoder) + (list_capacity(window) + SPARE) * sizeof(uint64_t) + line_count(window) * sizeof(uint32_t) +
           window + 2 * BLOCK + 2 * SLACK;
}

void wm_frame_begin(uint8_t *room, uint64_t window, uint64_t declared, int sparse) {
    decoder *const d = (decoder *)(void *)room;
    memset(d, 0, offsetof(decoder, literal_lengths));
    d->literal_lengths.log = d->offsets.log = d->match_lengths.log = -1;
    d->window = window;
    d->block_max = declared < BLOCK ? declared : BLOCK;
    d->repeated[0] = 1, d->repeated[1] = 4, d->repeated[2] = 8;
    d->sparse = sparse;
    d->capacity = list_capacity(window);
    d->line_mask = line_count(window) - 1;
    d->list = (uint64_t *)(void *)(d + 1);
    d->lines = (uint32_t *)(void *)(d->list + d->capacity + SPARE);
    d->history = (uint8_t *)(d->lines + d->line_mask + 1);
    d->room = window + 2 * BLOCK + 2 * SLACK;
    d->list[0] = UINT64_MAX;
    memset(d->packed, 0, SLACK);
}

static int list_raw(decoder *d, const uint8_t *data, uint64_t n) {
    tail t = tail_of(d);
    if (!list_room(&t, d->made + n)) return 0;
    for (uint64_t i = 0; i < n; i++) {
        if (t.count == t.capacity) return 0;
        add(&t, (d->made + i) << 8 | data[i], data[i] != 0);
    }
    t.list[t.count] = UINT64_MAX;
    keep_tail(d, &t);
    return 1;
}

/* Decodes the next block, if it is in n bytes: returns the bytes that it takes, 0 when there are more of it, -1 when it is
 * damaged. The caller has all that was made before. */
static int64_t next_block(decoder *d, const uint8_t *in, uint64_t n) {
    if (n < 3) return 0;
    const uint32_t head = (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16;
    const unsigned type = head >> 1 & 3;
    const uint64_t size = head >> 3, stored = type == 1 ? 1 : size;
    if (type == 3 || size > d->block_max) return -1;
    if (n - 3 < stored) return 0;
    if (d->sparse && d->capacity - d->count < BLOCK / SPARSE) list_shorten(d);
    if (type == 2) {
        memcpy(d->packed + SLACK, in + 3, stored);
        memset(d->packed + SLACK + stored, 0, SLACK);
    }
    for (;;) {
        if (!d->sparse && d->at + BLOCK + SLACK > d->room) d->old = d->at, d->at = 0;
        int how = DECODED;
        const uint64_t count = d->count;
        if (type == 2) {
            span rest = {d->packed + SLACK, stored};
            const uint8_t *literals;
            uint64_t n_literals;
            if (!read_literals(d, &rest, &literals, &n_literals)) return -1;
            how = (d->sparse ? run_list : run_plain)(d, rest, literals, n_literals);
        } else if (d->sparse) {
            if (type ? in[3] && size : !list_raw(d, in + 3, size)) how = CROWDED;
        } else if (type) {
            memset(d->history + d->at, in[3], size);
        } else {
            memcpy(d->history + d->at, in + 3, size);
        }
        if (how == DAMAGED) return -1;
        if (how == DECODED) {
            if (type < 2) d->made += size;
            if (type < 2 && !d->sparse) d->at += size;
            break;
        }
        d->count = count, d->list[count] = UINT64_MAX; /* once more, without a list */
        list_end(d);
    }
    d->last = head & 1;
    return 3 + (int64_t)stored;
}

enum { AHEAD = 24 }; /* entries of the list: the CPU does not guess where the next bytes are */

/* Changes a byte of a block, and lists it. */
WM_INLINE void change(uint8_t *at, uint8_t by, wm_changes *changes) {
    *at ^= by;
    if (!changes) return;
    if (changes->count < changes->most) changes->list[changes->count] = (uint32_t)(at - changes->block) << 8 | *at;
    changes->count++;
}

/* Gives the caller the next n bytes, which were made. */
static void give(decoder *d, uint8_t *out, uint64_t n, int exclusive, wm_changes *changes) {
    if (d->sparse) {
        if (!exclusive) memset(out, 0, n);
        const uint64_t *p = d->list + d->next, end = (d->given + n) << 8;
        for (; d->next + AHEAD < d->count && p[AHEAD] < end; p++, d->next++) {
            PREFETCH(out + ((p[AHEAD] >> 8) - d->given));
            change(out + ((*p >> 8) - d->given), (uint8_t)*p, changes);
        }
        for (; *p < end; p++, d->next++) change(out + ((*p >> 8) - d->given), (uint8_t)*p, changes);
    } else {
        const uint8_t *const from = d->history + d->at - (d->made - d->given);
        if (!exclusive)
            memcpy(out, from, n);
        else if (changes)
            for (uint64_t i = 0; i < n; i++) {
                if (from[i]) change(out + i, from[i], changes);
            }
        else
            for (uint64_t i = 0; i < n; i++) out[i] ^= from[i];
    }
    d->given += n;
}

int wm_frame_decode(uint8_t *room, const uint8_t *in, uint64_t n, uint8_t *out, uint64_t size, int exclusive, uint64_t *taken,
                    uint64_t *made, wm_changes *changes) {
    decoder *const d = (decoder *)(void *)room;
    *taken = *made = 0;
    for (;;) {
        const uint64_t left = d->made - d->given, some = left < size - *made ? left : size - *made;
        give(d, out + *made, some, exclusive, changes);
        *made += some;
        if (d->given == d->made && d->last) return WM_FRAME_ENDED;
        if (*made == size) return WM_FRAME_FULL;
        const int64_t got = next_block(d, in + *taken, n - *taken);
        if (got <= 0) return got < 0 ? WM_FRAME_DAMAGED : WM_FRAME_HUNGRY;
        *taken += (uint64_t)got;
    }
}

int wm_change(uint8_t *block, uint64_t n, const uint32_t *list, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        if (list[i] >> 8 >= n) return 0;
        block[list[i] >> 8] = (uint8_t)list[i];
    }
    return 1;
}
