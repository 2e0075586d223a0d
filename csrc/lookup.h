/* Codes to values by tables: the loops, compiled once for each instruction set.
 *
 * A table holds what each code stands for in a block. Tables of 16 values fit in one or two registers, those of 256 halves in eight:
 * then one instruction looks up all codes of a vector. Where registers are too small, the values of integers and of float8 numbers are
 * computed, which is faster than looking them up one by one. A file defines, besides what coded_lanes.h needs, and only where it pays:
 *
 *   NIBBLES      1 if there are: nibbles_2, tables of 16 halves for 32 codes, and nibbles_4, a table of 16 floats for 16 codes,
 *                with load_nibbles_2(table of the first 16 codes, table of the others), load_nibbles_4(table),
 *                look_nibbles_2(tables, codes, high_first) and look_nibbles_4(table, codes, high_first): a line
 *   BYTES        1 if there is: look_bytes_2(w, b, table, c, n, streaming), which makes halves of the first codes of block b in each
 *                row, whole lines of them, and returns of how many; the block has n codes, from number c on
 *   line         64 bytes of values, with store_line(line, out, streaming)
 *
 * What is left of a block, and what has no vectors, is looked up one by one.
 */
TARGET WM_INLINE void look_up_blocks(const wm_looked *w, int bits, int bytes, int streaming) {
    const uint64_t table_bytes = (uint64_t)bytes << bits;
    uint64_t b = 0, c = 0;
#if NIBBLES
    if (bits == 4 && bytes == 2 && (w->width == 16 || w->width == 32) && w->rows == 1) /* a line of one block or two */
        for (const uint64_t more = w->width == 16; c + 32 <= w->n; b += 1 + more, c += 32) {
            const uint64_t first = w->which ? w->which[b] : b, second = w->which ? w->which[b + more] : b + more;
            const nibbles_2 t = load_nibbles_2(w->tables + first * table_bytes, w->tables + second * table_bytes);
            store_line(look_nibbles_2(t, w->codes + c / 2, w->high_first, 2), w->out + 2 * c, streaming);
        }
#endif
    for (; c < w->n; b++, c += w->width) {
        const uint64_t n = w->n - c < w->width ? w->n - c : w->width;
        const uint8_t *table = w->tables + (w->which ? w->which[b] : b) * table_bytes;
        uint64_t i = 0;
#if BYTES
        if (bits == 8 && bytes == 2) i = look_bytes_2(w, b, table, c, n, streaming);
#endif
        for (uint64_t r = 0; r < w->rows; r++) {
            const uint8_t *codes = w->codes + r * w->codes_apart;
            uint8_t *out = w->out + r * w->out_apart + c * (uint64_t)bytes;
#if NIBBLES
            if (bits == 4 && c % 2 == 0) {
                i = 0;
                if (bytes == 2 && n >= 32) {
                    const nibbles_2 t = load_nibbles_2(table, table);
                    for (; i + 32 <= n; i += 32)
                        store_line(look_nibbles_2(t, codes + (c + i) / 2, w->high_first, 1), out + 2 * i, streaming);
                } else if (bytes == 4 && n >= 16) {
                    const nibbles_4 t = load_nibbles_4(table);
                    for (; i + 16 <= n; i += 16)
                        store_line(look_nibbles_4(t, codes + (c + i) / 2, w->high_first), out + 4 * i, streaming);
                }
            }
#endif
            wm_look_up_some(codes, bits, w->high_first, c + i, n - i, table, (uint64_t)bytes, out + i * (uint64_t)bytes);
        }
    }
}

TARGET void JOIN(lookup_, SUFFIX)(const wm_looked *w) {
    if (w->bits == 4 && w->bytes == 2)
        w->streaming ? look_up_blocks(w, 4, 2, 1) : look_up_blocks(w, 4, 2, 0);
    else if (w->bits == 4)
        w->streaming ? look_up_blocks(w, 4, 4, 1) : look_up_blocks(w, 4, 4, 0);
    else if (w->bytes == 2)
        w->streaming ? look_up_blocks(w, 8, 2, 1) : look_up_blocks(w, 8, 2, 0);
    else
        look_up_blocks(w, 8, 4, 0);
}

TARGET WM_INLINE void make_tables(const wm_tabled *w, int type) {
    uint8_t *out = w->out;
    for (uint64_t i = 0; i < w->n; i++) {
        const float s = w->scales[i * w->step], z = w->zeros ? w->zeros[i * w->step] : 0;
        for (unsigned q = 0; q < w->codes; q += LANES, out += LANES * coded_bytes(type)) {
            float values[LANES];
            for (int l = 0; l < LANES; l++) values[l] = (w->values[q + (unsigned)l] - z) * s;
            if (w->factor != 1)
                for (int l = 0; l < LANES; l++) values[l] *= w->factor;
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
