/* Codes to values by tables: the loops, compiled once for each instruction set.
 *
 * A table has the value of each code in a block. A table of 16 values fits in one or two registers, one of 256 halves in eight: then
 * one instruction looks up all codes of a vector. Where registers are too small, integers and float8 numbers are computed, which is
 * faster than looking them up one by one. A file defines, besides what coded_lanes.h needs, and only where it pays:
 *
 *   NIBBLES      1 if there are: nibbles_2, tables of 16 halves for 32 codes, and nibbles_4, a table of 16 floats for 16 codes,
 *                with load_nibbles_2(table of the first 16 codes, table of the others), load_nibbles_4(table),
 *                look_nibbles_2(tables, codes, high_first) and look_nibbles_4(table, codes, high_first): a line
 *   BYTES        1 if there is: look_bytes_2(w, b, table, c, n, streaming), which makes halves of the first codes of block b in each
 *                row, whole lines of them, and returns of how many; the block has n codes, from number c on
 *   line         64 bytes of values, with store_line(line, out, streaming)
 *
 * The end of a block, and types without vectors, are looked up one by one.
 */
/* One row of codes of 4 bits. */
TARGET WM_INLINE void look_up_nibbles(const wm_looked *w, const uint8_t *codes, uint8_t *out, int bytes, int streaming) {
    const uint64_t table_bytes = (uint64_t)bytes << 4;
    uint64_t b = 0, c = 0;
#if NIBBLES
    if (bytes == 2 && (w->width == 16 || w->width == 32)) /* a line of one block or two */
        for (const uint64_t more = w->width == 16; c + 32 <= w->n; b += 1 + more, c += 32) {
            const uint8_t *first = w->tables + table_of(w, b) * table_bytes,
                          *second = w->tables + table_of(w, b + more) * table_bytes;
            store_line(look_nibbles_2(load_nibbles_2(first, second), codes + c / 2, w->high_first, 2), out + 2 * c, streaming);
        }
#endif
    for (; c < w->n; b++, c += w->width) {
        const uint64_t end = w->n - c < w->width ? w->n : c + w->width;
        const uint8_t *table = w->tables + table_of(w, b) * table_bytes;
        uint64_t at = c;
#if NIBBLES
        if (bytes == 2 && c % 2 == 0 && end - c >= 32) {
            const nibbles_2 t = load_nibbles_2(table, table);
            for (; at + 32 <= end; at += 32)
                store_line(look_nibbles_2(t, codes + at / 2, w->high_first, 1), out + 2 * at, streaming);
        } else if (bytes == 4 && c % 2 == 0 && end - c >= 16) {
            const nibbles_4 t = load_nibbles_4(table);
            for (; at + 16 <= end; at += 16)
                store_line(look_nibbles_4(t, codes + at / 2, w->high_first), out + 4 * at, streaming);
        }
#endif
        wm_look_up_some(codes, 4, w->high_first, at, end - at, table, (uint64_t)bytes, out + at * (uint64_t)bytes);
    }
}

/* Codes that are bytes. */
TARGET WM_INLINE void look_up_bytes(const wm_looked *looked, int bytes, int streaming) {
    const wm_looked of = *looked, *const w = &of; /* which no store changes */
    for (uint64_t b = 0, c = 0; c < w->n; b++, c += w->width) {
        const uint64_t n = w->n - c < w->width ? w->n - c : w->width;
        const uint8_t *table = w->tables + table_of(w, b) * ((uint64_t)bytes << w->bits);
        uint64_t i = 0;
#if BYTES
        if (bytes == 2) i = look_bytes_2(w, b, table, c, n, streaming);
#endif
        for (uint64_t r = 0; r < w->rows; r++)
            wm_look_up_some(w->codes + r * w->codes_apart, 8, 0, c + i, n - i, table, (uint64_t)bytes,
                            w->out + r * w->out_apart + (c + i) * (uint64_t)bytes);
    }
}

TARGET WM_INLINE void look_up_rows(const wm_looked *w, int bytes, int streaming) {
    for (uint64_t r = 0; r < w->rows; r++)
        look_up_nibbles(w, w->codes + r * w->codes_apart, w->out + r * w->out_apart, bytes, streaming);
}

TARGET void JOIN(lookup_, SUFFIX)(const wm_looked *w) {
    if (w->bits == 4 && w->bytes == 2)
        w->streaming ? look_up_rows(w, 2, 1) : look_up_rows(w, 2, 0);
    else if (w->bits == 4)
        w->streaming ? look_up_rows(w, 4, 1) : look_up_rows(w, 4, 0);
    else if (w->bytes == 2)
        w->streaming ? look_up_bytes(w, 2, 1) : look_up_bytes(w, 2, 0);
    else
        look_up_bytes(w, 4, 0);
}

TARGET WM_INLINE void make_tables(const wm_tabled *w, int type) {
    uint8_t *out = w->out;
    for (uint64_t i = 0; i < w->n; i++) {
        const float s = w->scales[i * w->step], z = w->zeros ? w->zeros[i * w->step] : 0;
        for (unsigned q = 0; q < w->codes; q += LANES, out += LANES * coded_bytes(type)) {
            float values[LANES];
            for (int l = 0; l < LANES; l++) values[l] = (w->values[q + (unsigned)l] - z) * s * w->factor;
            if (w->biases)
                for (int l = 0; l < LANES; l++) values[l] += w->biases[i * w->step];
            round_lanes(values, type, out);
        }
    }
}

TARGET void JOIN(tables_, SUFFIX)(const wm_tabled *w) {
    switch (w->type) {
    case AS_FLOAT16: make_tables(w, AS_FLOAT16); break;
    case AS_BFLOAT16: make_tables(w, AS_BFLOAT16); break;
    default: make_tables(w, AS_FLOAT32);
    }
}
