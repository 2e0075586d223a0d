/* Encodes what changed between two versions of a tensor as blocks of zstd (RFC 8878). What zstd's own compressor searches for is
 * known here: bytes that are not zero, and zeros between them. So a sequence is some bytes and one zero as literals, and a match
 * that repeats that zero, always at the offset of 1 that a frame begins with. Blocks know nothing of each other. */
#include "zstd.h"

enum {
    LL_KINDS = 36,
    ML_KINDS = 53,
    SHORTEST = 3,      /* bytes of a match */
    FEW = 32,          /* sequences for which the usual distribution does */
    SINGLE = 256,      /* literals that are one stream instead of four */
    CROWDED = 4,       /* a block has at most one literal for so many bytes, */
    SHARE = 8,         /* and one byte that is not zero for so many, but for small blocks */
    LINE = 64,         /* bytes of which some differ or none */
    SMALL = 1024,      /* bytes of these */
    WEIGHTS_MOST = 128 /* weights that can be written as they are, and bytes of them packed */
};

/* ------------------------------------------------------------------------------------------------- bits, read from the end */
typedef struct {
    uint8_t *out;
    uint64_t word;
    unsigned used;
} writer;

static void store_le64(uint8_t *p, uint64_t v) {
    for (unsigned i = 0; i < 8; i++) p[i] = (uint8_t)(v >> 8 * i);
}

/* Writes up to 56 bits in all between two calls of `flush`. */
WM_INLINE void put(writer *w, uint64_t value, unsigned n) {
    w->word |= value << w->used;
    w->used += n;
}

/* Writes 8 bytes, of which the next ones replace those that were not full. */
WM_INLINE void flush(writer *w) {
    store_le64(w->out, w->word);
    w->out += w->used >> 3;
    w->word >>= w->used & ~7U;
    w->used &= 7;
}

/* Marks the end; returns it. */
static uint8_t *end_of(writer *w) {
    put(w, 1, 1);
    flush(w);
    if (w->used) w->out++;
    return w->out;
}

/* ------------------------------------------------------------------------------------------------------ tables of states */
typedef struct {
    int log; /* 0: there is one symbol, which takes no bits */
    uint16_t states[1 << LL_LOG];
    uint32_t wide[256]; /* of a symbol: state + this, above bit 16, is the number of bits to write */
    int32_t at[256];    /* and this is added to what is left of the state, for the place of the next one */
} coder;

static void make_coder(coder *c, const int16_t *weights, unsigned count, int log) {
    uint8_t symbols[1 << LL_LOG], bits[1 << LL_LOG];
    uint16_t next[1 << LL_LOG], filled[256];
    const unsigned size = 1U << log;
    unsigned total = 0;
    c->log = log;
    spread(weights, count, log, symbols, next, bits);
    for (unsigned s = 0; s < count; s++) {
        const unsigned n = weights[s] < 0 ? 1 : (unsigned)weights[s];
        filled[s] = (uint16_t)total;
        if (!n) continue;
        const unsigned most = (unsigned)log - (n > 1 ? high_bit(n - 1) : 0);
        c->wide[s] = (most << 16) - (n << most);
        c->at[s] = (int32_t)total - (int32_t)n;
        total += n;
    }
    for (unsigned i = 0; i < size; i++) c->states[filled[symbols[i]]++] = (uint16_t)(size + i);
}

/* The state before the symbol that is decoded last. */
static unsigned first_state(const coder *c, unsigned symbol) {
    if (!c->log) return 1;
    const uint32_t wide = c->wide[symbol], n = (wide + (1U << 15)) >> 16;
    return c->states[(int32_t)(((n << 16) - wide) >> n) + c->at[symbol]];
}

WM_INLINE unsigned next_state(const coder *c, unsigned state, unsigned symbol, writer *w) {
    if (!c->log) return state;
    const unsigned n = (state + c->wide[symbol]) >> 16;
    put(w, state & ((1U << n) - 1), n);
    return c->states[(int32_t)(state >> n) + c->at[symbol]];
}

WM_INLINE void put_state(const coder *c, unsigned state, writer *w) { put(w, state & ((1U << c->log) - 1), (unsigned)c->log); }

/* Makes weights of counts, whose sum is a power of two: each symbol that occurs has one at least. */
static void weigh(const uint32_t *counts, unsigned count, uint64_t total, int log, int16_t *weights) {
    int left = 1 << log;
    unsigned most = 0;
    for (unsigned s = 0; s < count; s++) {
        const uint64_t share = (((uint64_t)counts[s] << log) + total / 2) / total;
        weights[s] = (int16_t)(counts[s] ? (share ? share : 1) : 0);
        left -= weights[s];
        if (counts[s] > counts[most]) most = s;
    }
    while (left < 0) { /* from the largest, which are many times as large */
        unsigned from = most;
        for (unsigned s = 0; s < count; s++)
            if (weights[s] > weights[from]) from = s;
        weights[from]--, left++;
    }
    weights[most] = (int16_t)(weights[most] + left);
}

/* Writes a distribution; returns its end. */
static uint8_t *put_distribution(uint8_t *out, const int16_t *weights, unsigned count, int log) {
    writer w = {out, 0, 0};
    int left = (1 << log) + 1, edge = 1 << log;
    unsigned wide = (unsigned)log + 1, s = 0;
    put(&w, (uint64_t)log - 5, 4);
    while (s < count && left > 1) {
        const int weight = weights[s++], most = 2 * edge - 1 - left;
        left -= weight;
        const int value = weight + 1 >= edge ? weight + 1 + most : weight + 1;
        put(&w, (uint64_t)value, wide - (value < most));
        while (left < edge) wide--, edge >>= 1;
        if (!weight) { /* how many more have none */
            unsigned more = 0;
            while (s < count && !weights[s]) s++, more++;
            for (; more >= 3; more -= 3) put(&w, 3, 2), flush(&w);
            put(&w, more, 2);
        }
        flush(&w);
    }
    if (w.used) w.out++;
    return w.out;
}

/* Makes the coder of the codes of sequences, and writes what the decoder needs for it: returns the end, and the mode. */
static uint8_t *put_table(uint8_t *out, coder *c, const uint32_t *counts, unsigned kinds, uint64_t total, const int8_t *usual,
                          unsigned *mode) {
    int16_t weights[64];
    unsigned count = 0, several = 0;
    for (unsigned s = 0; s < kinds; s++)
        if (counts[s]) count = s + 1, several++;
    if (several == 1) {
        c->log = 0;
        *out = (uint8_t)(count - 1);
        *mode = 1;
        return out + 1;
    }
    if (total < FEW) {
        for (unsigned s = 0; s < kinds; s++) weights[s] = usual[s];
        make_coder(c, weights, kinds, 6);
        *mode = 0;
        return out;
    }
    int log = (int)high_bit(total) - 1;
    if (log > LL_LOG) log = LL_LOG;
    if (log < 7) log = several > 16 ? 7 : log < 5 ? 5 : log;
    weigh(counts, count, total, log, weights);
    make_coder(c, weights, count, log);
    *mode = 2;
    return put_distribution(out, weights, count, log);
}

/* ------------------------------------------------------------------------------------------------------------- literals */
/* Writes the weights of symbols by states, of which there are two in turns; returns the end, or NULL where that does not help. */
static uint8_t *pack_weights(uint8_t *out, const uint8_t *given, unsigned n) {
    uint32_t counts[HUF_LOG + 2] = {0};
    int16_t weights[HUF_LOG + 2];
    unsigned count = 0, several = 0;
    coder c;
    for (unsigned i = 0; i < n; i++) counts[given[i]]++;
    for (unsigned s = 0; s < HUF_LOG + 2; s++)
        if (counts[s]) count = s + 1, several++;
    if (several < 2 || n < 3) return NULL;
    weigh(counts, count, n, WEIGHT_LOG, weights);
    make_coder(&c, weights, count, WEIGHT_LOG);
    writer w = {put_distribution(out, weights, count, WEIGHT_LOG), 0, 0};
    unsigned state[2];
    for (unsigned i = n; i-- > 0;) {
        state[i & 1] = i + 2 < n ? next_state(&c, state[i & 1], given[i], &w) : first_state(&c, given[i]);
        flush(&w);
    }
    put_state(&c, state[1], &w);
    put_state(&c, state[0], &w);
    return end_of(&w);
}

/* Chooses how many bits each literal gets: as many as its share of all asks for, then fewer as long as there are words. Returns
 * the most of them, or 0 for a single symbol. */
static unsigned choose_lengths(const uint32_t *counts, unsigned count, uint64_t total, uint8_t *lengths) {
    int left = 1 << HUF_LOG;
    unsigned most = 0, several = 0;
    for (unsigned s = 0; s < count; s++) {
        unsigned n = 0;
        while (counts[s] && n < HUF_LOG && ((uint64_t)counts[s] << n) < total) n++;
        lengths[s] = (uint8_t)n;
        if (counts[s]) left -= 1 << (HUF_LOG - n), several++;
    }
    if (several < 2) return 0;
    while (left < 0) /* there are many rare ones: others get more bits, the longest first */
        for (unsigned n = HUF_LOG - 1; n && left < 0; n--)
            for (unsigned s = 0; s < count && left < 0; s++)
                if (counts[s] && lengths[s] == n) lengths[s]++, left += 1 << (HUF_LOG - 1 - n);
    for (int pass = 0; left; pass++) /* those first that are nearly common enough */
        for (unsigned s = 0; s < count && left; s++)
            if (counts[s] && lengths[s] > 1 && 1 << (HUF_LOG - lengths[s]) <= left &&
                (pass || ((uint64_t)counts[s] << lengths[s]) * 2 >= 3 * total))
                left -= 1 << (HUF_LOG - lengths[s]), lengths[s]--;
    for (unsigned s = 0; s < count; s++)
        if (counts[s] && lengths[s] > most) most = lengths[s];
    return most;
}

/* Writes literals, as they are or in fewer bits; returns the end. */
static uint8_t *put_literals(uint8_t *out, const uint8_t *literals, uint64_t n) {
    uint32_t counts[256] = {0}, starts[HUF_LOG + 2] = {0};
    uint8_t lengths[256], weights[256];
    uint16_t codes[256];
    unsigned count = 0;
    for (uint64_t i = 0; i < n; i++) counts[literals[i]]++;
    for (unsigned s = 0; s < 256; s++)
        if (counts[s]) count = s + 1;
    const unsigned log = n > 32 ? choose_lengths(counts, count, n, lengths) : 0, wide = n < SINGLE ? 3 : n < 16384 ? 4 : 5;
    while (log) {
        for (unsigned s = 0; s < count; s++) {
            weights[s] = (uint8_t)(counts[s] ? log + 1 - lengths[s] : 0);
            if (weights[s]) starts[weights[s]] += 1U << (weights[s] - 1);
        }
        for (unsigned weight = 1, at = 0; weight <= log; weight++) {
            const unsigned room = starts[weight];
            starts[weight] = at, at += room;
        }
        for (unsigned s = 0; s < count; s++)
            if (weights[s])
                codes[s] = (uint16_t)(starts[weights[s]] >> (weights[s] - 1)), starts[weights[s]] += 1U << (weights[s] - 1);
        /* The weights of all symbols but the last one. */
        uint8_t *const begin = out + wide, *p = pack_weights(begin + 1, weights, count - 1);
        if (p && p - begin <= WEIGHTS_MOST && (count - 1 > WEIGHTS_MOST || (uint64_t)(p - begin) <= count / 2)) {
            *begin = (uint8_t)(p - begin - 1);
        } else if (count - 1 <= WEIGHTS_MOST) {
            *begin = (uint8_t)(127 + count - 1);
            for (unsigned i = 0; i < count - 1; i += 2)
                begin[1 + i / 2] = (uint8_t)(weights[i] << 4 | (i + 1 < count - 1 ? weights[i + 1] : 0));
            p = begin + 1 + count / 2;
        } else {
            break;
        }
        const unsigned streams = wide == 3 ? 1 : 4;
        const uint64_t part = streams == 1 ? n : (n + 3) / 4;
        uint8_t *const sizes = p;
        if (streams == 4) p += 6;
        for (unsigned i = 0; i < streams; i++) {
            writer w = {p, 0, 0};
            const uint64_t end = (i + 1) * part < n ? (i + 1) * part : n;
            for (uint64_t j = end; j-- > i * part;) {
                put(&w, codes[literals[j]], lengths[literals[j]]);
                if (w.used > 40) flush(&w);
            }
            flush(&w);
            uint8_t *const stop = end_of(&w);
            if (i < 3 && streams == 4) sizes[2 * i] = (uint8_t)(stop - p), sizes[2 * i + 1] = (uint8_t)((stop - p) >> 8);
            p = stop;
        }
        const uint64_t packed = (uint64_t)(p - begin), bits = wide == 3 ? 10 : wide == 4 ? 14 : 18;
        if (packed >= n) break;
        const uint64_t head = 2 | (uint64_t)(wide == 3 ? 0 : wide - 2) << 2 | n << 4 | packed << (4 + bits);
        for (unsigned i = 0; i < wide; i++) out[i] = (uint8_t)(head >> 8 * i);
        return p;
    }
    const unsigned head = n < 32 ? 1 : n < 4096 ? 2 : 3;
    const uint64_t value = head == 1 ? n << 3 : head == 2 ? 1 << 2 | n << 4 : 3 << 2 | n << 4;
    for (unsigned i = 0; i < head; i++) out[i] = (uint8_t)(value >> 8 * i);
    memcpy(out + head, literals, n);
    return out + head + n;
}

/* --------------------------------------------------------------------------------------------------------------- blocks */
typedef struct {
    uint32_t some, above; /* literals before the match, and its bytes above the shortest */
    uint8_t of_some, of_above;
} sequence;

typedef struct {
    sequence sequences[BLOCK / CROWDED + 64];
    uint32_t lines[BLOCK / LINE + 1];
    uint32_t places[BLOCK / SHARE + 256];
    uint8_t values[BLOCK / SHARE + 256];
    uint8_t literals[BLOCK / CROWDED + 64];
    coder lengths, matches;
    uint8_t of_length[64], of_match[128]; /* codes of small lengths, and of matches above the shortest one */
    uint8_t packed[2 * BLOCK + 4096];
} encoder;

static void fill_codes(uint8_t *codes, unsigned most, const uint8_t *bits) {
    for (unsigned s = 0, at = 0; at < most; s++)
        for (unsigned i = 0; i < 1U << bits[s] && at < most; i++) codes[at++] = (uint8_t)s;
}

/* Whether a length is a short one is hard to guess, so nothing here branches on it. */
WM_INLINE unsigned length_code(const encoder *e, uint32_t some) {
    const unsigned few = e->of_length[some < 64 ? some : 63], many = high_bit(some) + 19;
    return some < 64 ? few : many;
}

WM_INLINE unsigned match_code(const encoder *e, uint32_t above) {
    const unsigned few = e->of_match[above < 128 ? above : 127], many = high_bit(above | 1) + 36;
    return above < 128 ? few : many;
}

/* Lists the bytes that differ; returns their number, or UINT64_MAX when they are too many. What differs is hard to guess: lines
 * and then words are listed without a branch, and counted or not. */
static uint64_t list_changes(encoder *e, const uint8_t *a, const uint8_t *b, uint64_t n) {
    const uint64_t most = n / SHARE + 8, whole = n / LINE * LINE;
    uint64_t count = 0, n_lines = 0;
    for (uint64_t i = 0; i < whole; i += LINE) {
        uint64_t any = 0;
        for (unsigned j = 0; j < LINE; j += 8) any |= load_le64(a + i + j) ^ load_le64(b + i + j);
        e->lines[n_lines] = (uint32_t)i;
        n_lines += any != 0;
    }
    for (uint64_t k = 0; k < n_lines; k++) {
        uint64_t words[LINE / 8], n_words = 0;
        uint32_t at[LINE / 8];
        for (uint32_t i = e->lines[k], end = i + LINE; i < end; i += 8) {
            const uint64_t word = load_le64(a + i) ^ load_le64(b + i);
            words[n_words] = word, at[n_words] = i;
            n_words += word != 0;
        }
        for (uint64_t j = 0; j < n_words; j++) {
            uint64_t word = words[j];
            do {
                const unsigned first = high_bit(word & (0 - word)) & ~7U;
                e->places[count] = at[j] + first / 8, e->values[count++] = (uint8_t)(word >> first);
                word &= ~(UINT64_C(255) << first);
            } while (word);
        }
        if (count > most) return UINT64_MAX;
    }
    for (uint64_t i = whole; i < n; i++)
        if (a[i] != b[i]) e->places[count] = (uint32_t)i, e->values[count++] = a[i] ^ b[i];
    return count > most ? UINT64_MAX : count;
}

/* Makes a block of the bytes that differ; returns its bytes, 0 when it is not shorter than it would be as it is. */
static uint64_t encode_block(encoder *e, uint64_t count, uint64_t n) {
    const uint64_t most = n / CROWDED;
    uint64_t n_literals = 0, n_sequences = 0, begun = 0, at = 0;
    uint32_t lengths[LL_KINDS] = {0}, matches[ML_KINDS] = {0};
    for (uint64_t i = 0; i <= count; i++) {
        const uint64_t place = i < count ? e->places[i] : n, gap = place - at;
        if (n_literals + SHORTEST + 1 > most + 16) return 0;
        if (gap > SHORTEST) {
            e->literals[n_literals++] = 0;
            const uint32_t some = (uint32_t)(n_literals - begun), above = (uint32_t)gap - 1 - SHORTEST;
            const unsigned of_some = length_code(e, some), of_above = match_code(e, above);
            e->sequences[n_sequences++] = (sequence){some, above, (uint8_t)of_some, (uint8_t)of_above};
            lengths[of_some]++, matches[of_above]++;
            begun = n_literals;
        } else {
            for (uint64_t j = 0; j < gap; j++) e->literals[n_literals++] = 0;
        }
        if (i < count) e->literals[n_literals++] = e->values[i];
        at = place + 1;
    }
    uint8_t *p = put_literals(e->packed, e->literals, n_literals);
    if (n_sequences < 128)
        *p++ = (uint8_t)n_sequences;
    else
        *p++ = (uint8_t)((n_sequences >> 8) + 128), *p++ = (uint8_t)n_sequences;
    if (!n_sequences) return (uint64_t)(p - e->packed) < n ? (uint64_t)(p - e->packed) : 0;
    uint8_t *const modes = p++;
    unsigned of_lengths, of_matches;
    p = put_table(p, &e->lengths, lengths, LL_KINDS, n_sequences, LL_USUAL, &of_lengths);
    *p++ = 0; /* the only offset: the one used before */
    p = put_table(p, &e->matches, matches, ML_KINDS, n_sequences, ML_USUAL, &of_matches);
    *modes = (uint8_t)(of_lengths << 6 | 1 << 4 | of_matches << 2);
    writer w = {p, 0, 0};
    unsigned length_state = 1, match_state = 1;
    for (uint64_t i = n_sequences; i-- > 0;) {
        const sequence q = e->sequences[i];
        const unsigned length = q.of_some, match = q.of_above;
        if (i + 1 == n_sequences) {
            match_state = first_state(&e->matches, match);
            length_state = first_state(&e->lengths, length);
        } else {
            match_state = next_state(&e->matches, match_state, match, &w);
            length_state = next_state(&e->lengths, length_state, length, &w);
        }
        put(&w, q.some & ((1U << LL_BITS[length]) - 1), LL_BITS[length]);
        put(&w, q.above & ((1U << ML_BITS[match]) - 1), ML_BITS[match]);
        flush(&w);
    }
    put_state(&e->matches, match_state, &w);
    put_state(&e->lengths, length_state, &w);
    const uint64_t size = (uint64_t)(end_of(&w) - e->packed);
    return size < n ? size : 0;
}

uint64_t wm_frame_encode_room(void) { return sizeof(encoder); }

uint64_t wm_frame_encode(uint8_t *room, const uint8_t *before, const uint8_t *after, uint64_t n, int last, uint8_t *out) {
    encoder *const e = (encoder *)(void *)room;
    uint8_t *p = out;
    fill_codes(e->of_length, sizeof e->of_length, LL_BITS);
    fill_codes(e->of_match, sizeof e->of_match, ML_BITS);
    for (uint64_t at = 0; at < n || (last && at == 0); at += BLOCK) {
        const uint64_t some = n - at < BLOCK ? n - at : BLOCK, count = list_changes(e, before + at, after + at, some);
        const uint32_t ends = last && n - at <= BLOCK;
        uint64_t size = 1;
        uint32_t head = ends | 1U << 1 | (uint32_t)some << 3; /* one byte, some times */
        if (count == UINT64_MAX) return 0;
        if (!some) {
            head = ends, size = 0;
        } else if (!count) {
            e->packed[0] = 0;
        } else {
            size = encode_block(e, count, some);
            head = ends | 2U << 1 | (uint32_t)size << 3;
            if (!size && some >= SMALL) return 0;
            if (!size) { /* as they are */
                for (uint64_t i = 0; i < some; i++) e->packed[i] = before[at + i] ^ after[at + i];
                size = some;
                head = ends | (uint32_t)size << 3;
            }
        }
        p[0] = (uint8_t)head, p[1] = (uint8_t)(head >> 8), p[2] = (uint8_t)(head >> 16);
        memcpy(p + 3, e->packed, size);
        p += 3 + size;
    }
    return (uint64_t)(p - out);
}

uint64_t wm_frame_encode_files(uint8_t *room, const wm_two_files *files, uint8_t *before, uint8_t *after, uint64_t n, int last,
                               uint8_t *out) {
    const wm_readable a = {files->fd, NULL, NULL}, b = {files->other, NULL, NULL};
    uint8_t *p = out;
    for (uint64_t at = 0; at < n; at += BLOCK) {
        const uint64_t some = n - at < BLOCK ? n - at : BLOCK;
        uint64_t error;
        if (wm_read_at(&a, before, some, some, files->at + at, &error) < some) return 0;
        if (wm_read_at(&b, after + at, some, some, files->other_at + at, &error) < some) return 0;
        const uint64_t made = wm_frame_encode(room, before, after + at, some, last && n - at <= BLOCK, p);
        if (!made) return 0;
        p += made;
    }
    return (uint64_t)(p - out);
}
