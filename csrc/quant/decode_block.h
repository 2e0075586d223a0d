/* Decodes quantised blocks in vectors. Each instruction set includes this template once.
 *
 * A run is one scale and `len` codes; intblock.h says how they lie. The work in full, as intblock.c does it, is
 *
 *     for (r = 0; r < runs; r++)
 *         for (i = 0; i < len; i++) *out++ = scale(r) * code(r, i);
 *
 * Here the inner loop takes LANES codes at a time. The rest is care at the edges: the end of the data, runs that do not fill
 * vectors, scales that are NaN or infinite, and output past the caches.
 *
 * A file defines before it includes this one:
 *
 *   TARGET, SUFFIX    the instructions that functions may use, and the end of their names
 *   NARROWER          if defined, the suffix of the variant with vectors of half the size
 *   LANES, LOAD       the values of a vector; the bytes that one load of codes reads, at least those of LANES codes
 *   vector            LANES values
 *   decoder           the state for all vectors of a run: make_decoder(bits), set_scale(decoder, address, scale_type, bits)
 *   decode            decode(decoder, codes, bits): a vector
 *   store             store(values, half, out): to memory, as float32, or rounded to float16 when `half` is not 0
 *   MASKS             if defined, it has its own decode_few, which decodes and stores fewer than LANES codes
 *   STREAMS           1 if there are stores past the caches; then also `stream` with start_stream, stream_next and end_stream
 *   DECODES_MIXED     1 if it decodes blocks of different kinds (adaptive.c) without a branch on the kind; then also
 *                     kinds_decoder, kind_decoder with make_kinds, make_kind and decode_kind
 *
 * The arguments bits, half and streaming are constants at each call, so that the compiler writes a loop for each case.
 */
enum { UNROLL = 4 };

#define JOIN_NAMES(a, b) a##b
#define JOIN(a, b) JOIN_NAMES(a, b)

/* Where vectors go: to memory in the ordinary way, or past the caches. An ordinary store to a line that no cache holds makes
 * the CPU read the line first. A streaming store does not, but it fills an aligned slot of the size of a vector, and outputs
 * rarely begin at one: large arrays of numpy begin 16 bytes into a line. So each vector is rotated until its last elements
 * come first. These wait for the next vector, and those that waited before take their place:
 *
 *     vectors        a b c d    e f g h
 *     rotated        c d a b    g h e f
 *     stored    w w  w w a b    c d e f
 *     waiting   w w  c d        g h
 *
 * Streaming begins at a slot that lies in the output as a whole: its elements that were stored before are read back and are
 * the first to wait. At the end those that wait are stored in the ordinary way.
 */
typedef struct {
    uint8_t *next; /* the place of the next vector; when streaming, the slot that it completes */
    int fetch;     /* whether lines of the output are prefetched */
#if STREAMS
    uint64_t waiting; /* bytes */
    stream carry;
#endif
} writer;

TARGET WM_INLINE writer open_writer(const wm_runs *runs, uint8_t *out, int half, int streaming) {
    writer w = {.next = out, .fetch = runs->storing == WM_FETCHED};
#if STREAMS
    if (streaming) {
        w.waiting = (uintptr_t)out % (LANES * value_bytes(half));
        w.next -= w.waiting;
        w.carry = start_stream(w.next, w.waiting, half);
    }
#endif
    return w;
}

/* Returns the place of the next element. */
TARGET WM_INLINE uint8_t *close_writer(const writer *w, int half, int streaming) {
#if STREAMS
    if (streaming) {
        uint8_t waiting[LANES * sizeof(float)];
        end_stream(&w->carry, half, waiting);
        memcpy(w->next, waiting, w->waiting);
        return w->next + w->waiting;
    }
#endif
    return w->next;
}

/* Stores vector number i from here on. */
TARGET WM_INLINE void put(writer *w, uint64_t i, vector values, int half, int streaming) {
    uint8_t *const out = w->next + i * LANES * value_bytes(half);
#if STREAMS
    if (streaming)
        stream_next(&w->carry, values, half, out);
    else
#endif
        store(values, half, out);
}

/* Decodes `count` vectors, with whole loads: four in one turn, whose codes take at most a line, so that neither the loop nor its
 * prefetches limit the speed. */
TARGET WM_INLINE void decode_vectors(const decoder *d, const uint8_t *codes, uint64_t count, int bits, int half, int streaming,
                                     writer *w) {
    const uint64_t step = (uint64_t)(LANES / 8 * bits), size = LANES * value_bytes(half);
    for (; count >= UNROLL; count -= UNROLL, codes += UNROLL * step, w->next += UNROLL * size) {
        if (streaming) PREFETCH(codes + WM_AHEAD);
        for (uint64_t at = 0; !streaming && w->fetch && at < UNROLL * size; at += 64) PREFETCH(w->next + at + WM_AHEAD);
        for (uint64_t i = 0; i < UNROLL; i++) put(w, i, decode(d, codes + i * step, bits), half, streaming);
    }
    for (uint64_t i = 0; i < count; i++, codes += step, w->next += size) {
        if (streaming || w->fetch) PREFETCH(streaming ? codes + WM_AHEAD : w->next + WM_AHEAD);
        put(w, 0, decode(d, codes, bits), half, streaming);
    }
}

#if !defined(MASKS)
/* Decodes and stores n < LANES codes, and reads no others. */
TARGET WM_INLINE void decode_few(const decoder *d, const uint8_t *codes, unsigned n, int bits, int half, uint8_t *out) {
    uint8_t bytes[LOAD] = {0}, values[LANES * sizeof(float)];
    memcpy(bytes, codes, code_bytes(bits, n));
    store(decode(d, bytes, bits), half, values);
    memcpy(out, values, n * value_bytes(half));
}
#endif

/* Decodes the first run: of any length, with any scale, however near the end of the data. */
TARGET WM_INLINE uint8_t *decode_one(const wm_runs *runs, int bits, int half, int streaming, uint8_t *out) {
    const uint8_t *codes = runs->codes;
    const uint64_t step = (uint64_t)(LANES / 8 * bits), room = (uint64_t)(runs->end - codes);
    if (!scale_is_finite(runs->scales, runs->scale_type)) {
        wm_runs one = *runs;
        one.runs = 1;
        intblock_portable(&one, out);
        return out + runs->len * value_bytes(half);
    }
    decoder d = make_decoder(bits);
    set_scale(&d, runs->scales, runs->scale_type, bits);
    const uint64_t fit = room < LOAD ? 0 : (room - LOAD) / step + 1, whole = fit < runs->len / LANES ? fit : runs->len / LANES;
    /* After UNROLL vectors the first slot lies in our output. */
    const uint64_t head = streaming && whole > UNROLL ? UNROLL : whole;
    writer w = open_writer(runs, out, half, 0);
    decode_vectors(&d, codes, head, bits, half, 0, &w);
    out = close_writer(&w, half, 0);
    if (streaming && whole > head) {
        w = open_writer(runs, out, half, 1);
        decode_vectors(&d, codes + head * step, whole - head, bits, half, 1, &w);
        out = close_writer(&w, half, 1);
    }
    codes += whole * step;
    for (uint64_t remaining = runs->len - whole * LANES; remaining; codes += step) {
        const unsigned n = remaining < LANES ? (unsigned)remaining : LANES;
        decode_few(&d, codes, n, bits, half, out);
        out += n * value_bytes(half);
        remaining -= n;
    }
    return out;
}

/* Decodes up to `count` runs of `len` codes that fill vectors and may be loaded whole; stops at a scale that is NaN or
 * infinite, and returns how many runs it decoded. */
TARGET WM_INLINE uint64_t decode_whole(const wm_runs *runs, uint64_t count, int bits, uint64_t len, int scale_type, int half,
                                       int streaming, uint8_t *out) {
    const uint8_t *scales = runs->scales, *codes = runs->codes;
    const uint64_t scale_stride = runs->scale_stride, stride = runs->stride;
    decoder d = make_decoder(bits);
    writer w = open_writer(runs, out, half, streaming);
    uint64_t r = 0;
    for (; r < count && scale_is_finite(scales, scale_type); r++, scales += scale_stride, codes += stride) {
        set_scale(&d, scales, scale_type, bits);
        decode_vectors(&d, codes, len / LANES, bits, half, streaming, &w);
    }
    close_writer(&w, half, streaming);
    return r;
}

TARGET WM_INLINE void decode_runs(const wm_runs *runs, int bits, int half, uint8_t *out) {
    const uint8_t *const first = out;
    const int streaming = STREAMS && runs->storing == WM_STREAMED;
    for (wm_runs w = *runs; w.runs;) {
        const int usual = !streaming && w.scale_type == WM_SCALE_FP16;
        uint64_t whole = w.len % LANES ? 0 : wm_runs_within(&w, LOAD);
        if (whole && usual && w.len == 32) /* the usual blocks */
            whole = decode_whole(&w, whole, bits, 32, WM_SCALE_FP16, half, 0, out);
        else if (whole && usual && w.len == 64)
            whole = decode_whole(&w, whole, bits, 64, WM_SCALE_FP16, half, 0, out);
        else if (whole && !streaming)
            whole = decode_whole(&w, whole, bits, w.len, w.scale_type, half, 0, out);
        else if (whole && (uintptr_t)out % (LANES * value_bytes(half)) <= (uint64_t)(out - first))
            whole = decode_whole(&w, whole, bits, w.len, w.scale_type, half, 1, out);
        else
            whole = 0; /* the first slot begins before our output */
        wm_runs_skip(&w, whole, &out);
        if (!w.runs) break;
        /* The first run, when streaming; or one whose scale is not finite, that does not fill vectors, or is near the end. */
        if (streaming)
            decode_one(&w, bits, half, 1, out);
        else
            decode_one(&w, bits, half, 0, out);
        wm_runs_skip(&w, 1, &out);
    }
}

TARGET void JOIN(intblock_, SUFFIX)(const wm_runs *runs, void *out) {
#if defined(NARROWER) /* short runs that fill vectors of half the size but not ours */
    if (runs->len % LANES == LANES / 2 && runs->len < 8 * LANES) {
        JOIN(intblock_, NARROWER)(runs, out);
        return;
    }
#endif
    switch (runs->bits + (runs->half ? 100 : 0)) {
    case 4: decode_runs(runs, 4, 0, out); break;
    case 5: decode_runs(runs, 5, 0, out); break;
    case 8: decode_runs(runs, 8, 0, out); break;
    case 104: decode_runs(runs, 4, 1, out); break;
    case 105: decode_runs(runs, 5, 1, out); break;
    default: decode_runs(runs, 8, 1, out);
    }
}

#if DECODES_MIXED
/* The CPU cannot predict the kind of a block, and a wrong prediction costs more than a block. So each block is decoded both as
 * integers and as float16, and a mask chooses. A block of float16 has no scale: the next block's is read and not used. */
TARGET WM_INLINE uint64_t decode_kinds(wm_mixed *blocks, int scale_type, int half, uint64_t len, uint8_t *out) {
    static const uint8_t steps[WM_KINDS] = {LANES / 2, LANES * 5 / 8, 2 * LANES, 0}; /* bytes of LANES codes */
    const uint8_t scale_steps[WM_KINDS] = {(uint8_t)scale_bytes(scale_type), (uint8_t)scale_bytes(scale_type), 0, 0};
    wm_mixed m = *blocks;
    const kinds_decoder kinds = make_kinds();
    for (uint64_t remaining = wm_mixed_within(&m, LOAD); remaining;
         remaining = --remaining ? remaining : wm_mixed_within(&m, LOAD)) {
        const int kind = wm_kind_at(m.mask, m.next);
        if (kind == WM_WRONG || !scale_is_finite(m.scales, scale_type)) break;
        const kind_decoder d = make_kind(&kinds, kind, m.scales, scale_type);
        for (uint64_t i = 0; i < len / LANES; i++, out += LANES * value_bytes(half)) {
            PREFETCH(out + WM_AHEAD);
            store(decode_kind(&d, m.codes + i * steps[kind], m.codes + i * 2 * LANES), half, out);
        }
        m.codes += len / LANES * steps[kind];
        m.scales += scale_steps[kind];
        m.next++;
    }
    const uint64_t done = m.next - blocks->next;
    *blocks = m;
    return done;
}

TARGET uint64_t JOIN(mixed_, SUFFIX)(wm_mixed *blocks, void *out) {
#if defined(NARROWER)
    if (blocks->len % LANES) return JOIN(mixed_, NARROWER)(blocks, out);
#endif
    if (blocks->len == 32 && blocks->scale_type == WM_SCALE_FP16 && !blocks->half) /* the usual block */
        return decode_kinds(blocks, WM_SCALE_FP16, 0, 32, out);
    if (blocks->half) return decode_kinds(blocks, blocks->scale_type, 1, blocks->len, out);
    return decode_kinds(blocks, blocks->scale_type, 0, blocks->len, out);
}
#endif
