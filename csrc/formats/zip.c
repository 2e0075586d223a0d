/* The directory of a ZIP archive, as torch.save and numpy.savez write them: checked, and turned into columns.
 *
 * An archive lists its entries twice. The central directory, at the end of the file, has for each one
 *
 *     "PK\1\2" .. u16 flags, method .. u32 crc | u32 stored, size | u16 name_length, extra_length, comment_length .. u32 offset | name ..
 *
 * and at that offset the entry begins with its own header, "PK\3\4", which repeats most of this, and its bytes. Programs that
 * trust different headers would see different archives, so both are read here and must agree. Sizes and offsets beyond 32 bits are
 * 0xFFFFFFFF in the fields, and stand in an "extra field" of type 1. A writer that did not know size and checksum in advance leaves
 * zeros in the header (flag 8), in the fields or, as numpy does for a stream, in the extra field; the central directory is complete.
 *
 * All readers must see the same name. Some end it at a zero byte; a name beyond ASCII is UTF-8 with flag 0x800, and code page 437
 * for many readers without it; an extra field of type 0x7075 has another name, which some readers prefer.
 *
 * The central directory is in private memory. The headers are read one at a time, by pread or a function in its place, or from
 * the memory of a buffer.
 */
#include <stdlib.h>

#include "core/internal.h"

enum { CENTRAL = 46, LOCAL = 30, ENCRYPTED = 1, LATER = 8, UTF8 = 0x800, STORED = 0 };
/* Bytes read past the needed ones, for an extra field and the header of an array. */
enum { READ_AHEAD = 224, HEADER_ROOM = LOCAL + 65535 + READ_AHEAD };
enum { WIDE_FIELD = 1, NAME_FIELD = 0x7075 };
static const uint32_t WIDE = 0xffffffff;

typedef struct {
    uint64_t stored, size, offset;
} extent;

typedef struct {
    const wm_zip_source *source;
    uint8_t *buffer; /* HEADER_ROOM bytes; NULL over memory */
    wm_fault *fault;
    uint64_t row, start, filled; /* the buffer's part of the file */
} scan;

static int fail(const scan *s, int code, uint64_t at, uint64_t actual, uint64_t expected) {
    return wm_fail(s->fault, code, s->row, at, actual, expected);
}

/* The bytes [at, at + n) of the file, which the caller knows to lie before the directory; NULL, with the fault filled, when they
 * cannot be read. */
static const uint8_t *look(scan *s, uint64_t at, uint64_t n) {
    const wm_zip_source *file = s->source;
    if (!s->buffer) return file->data + at;
    if (at < s->start || at - s->start > s->filled || n > s->filled - (at - s->start)) {
        const uint64_t remaining = file->end - at, max = remaining < n + READ_AHEAD ? remaining : n + READ_AHEAD;
        uint64_t error;
        s->start = at;
        s->filled = wm_read_at(&(wm_readable){file->fd, file->read, file->context}, s->buffer, n, max, at, &error);
        if (s->filled < n) return fail(s, WM_FAULT_ZIP_READ, at + s->filled, error, at + n), NULL;
    }
    return s->buffer + (at - s->start);
}

/* The first extra field of a type in extra[0, len), and its length in *n; NULL without one. */
static const uint8_t *find_field(const uint8_t *extra, uint64_t len, uint32_t type, uint64_t *n) {
    for (uint64_t at = 0; len - at >= 4; at += 4 + *n) {
        *n = load_le16(extra + at + 2);
        if (*n > len - at - 4) return NULL;
        if (load_le16(extra + at) == type) return extra + at + 4;
    }
    return NULL;
}

/* Replaces the fields of `e` that are too narrow from the extra field of type 1 in extra[0, len). Returns 0 when it lacks one. */
static int widen(const uint8_t *extra, uint64_t len, extent *e) {
    uint64_t *const fields[] = {&e->size, &e->stored, &e->offset}; /* in this order, only the needed ones */
    if (e->size != WIDE && e->stored != WIDE && e->offset != WIDE) return 1;
    uint64_t n, used = 0;
    const uint8_t *field = find_field(extra, len, WIDE_FIELD, &n);
    if (!field) return 0;
    for (int i = 0; i < 3; i++) {
        if (*fields[i] != WIDE) continue;
        if (n - used < 8) return 0;
        *fields[i] = load_le64(field + used);
        used += 8;
    }
    return 1;
}

/* Why readers may disagree about the name of the entry at `c` of the central directory: a WM_ZIP_ constant, or 0. */
static int ambiguous(const uint8_t *c, uint64_t name_len, uint64_t extra_len) {
    uint64_t n;
    uint8_t high = 0;
    for (uint64_t i = 0; i < name_len; i++) {
        if (!c[CENTRAL + i]) return WM_ZIP_ENDED;
        high |= c[CENTRAL + i];
    }
    if (high & 0x80 && !(load_le16(c + 8) & UTF8)) return WM_ZIP_UNMARKED;
    return find_field(c + CENTRAL + name_len, extra_len, NAME_FIELD, &n) ? WM_ZIP_RENAMED : 0;
}

/* Checks that the entry's own header agrees with the central directory at `c`; *data is where its bytes begin. */
static int check_header(scan *s, const uint8_t *c, const extent *e, uint64_t *data) {
    const uint64_t end = s->source->end, name_len = load_le16(c + 28);
    if (e->offset > end || end - e->offset < LOCAL + name_len) return fail(s, WM_FAULT_ZIP_RANGE, 0, e->offset, end);
    const uint8_t *h = look(s, e->offset, LOCAL + name_len);
    if (!h) return -1;
    const uint64_t extra_len = load_le16(h + 28), room = end - e->offset - LOCAL - name_len;
    const uint32_t flags = load_le16(h + 6), crc = load_le32(h + 14), stored = load_le32(h + 18), size = load_le32(h + 22);
    if (load_le32(h) != 0x04034b50 || flags != load_le16(c + 8) || load_le16(h + 8) != load_le16(c + 10) ||
        load_le16(h + 26) != name_len || memcmp(h + LOCAL, c + CENTRAL, name_len))
        return fail(s, WM_FAULT_ZIP_HEADER, e->offset, 0, 0);
    const uint64_t begin = e->offset + LOCAL + name_len + extra_len;
    if (extra_len > room) return fail(s, WM_FAULT_ZIP_RANGE, 0, begin, end);
    if (e->stored > room - extra_len)
        return fail(s, WM_FAULT_ZIP_RANGE, 0, e->stored > UINT64_MAX - begin ? UINT64_MAX : begin + e->stored, end);
    *data = begin;
    extent local = {stored, size, 0};
    if (stored == WIDE || size == WIDE) {
        h = look(s, e->offset + LOCAL + name_len, extra_len);
        if (!h) return -1;
        if (!widen(h, extra_len, &local)) return fail(s, WM_FAULT_ZIP_HEADER, e->offset, 0, 0);
    }
    if ((flags & LATER) && !crc && !local.stored && !local.size) return 0;
    const int same_crc = crc == load_le32(c + 16) || ((flags & LATER) && !crc);
    if (!same_crc || local.stored != e->stored || local.size != e->size) return fail(s, WM_FAULT_ZIP_HEADER, e->offset, 1, 0);
    return 0;
}

/* Reads the header of the array in entry i, if its bytes are stored. */
static int read_array(scan *s, const wm_zip_entries *entries, uint64_t i, wm_npy *out) {
    const uint64_t size = entries->size[i], n = size < WM_NPY_FIRST ? size : WM_NPY_FIRST;
    const int stored = entries->method[i] == STORED && entries->stored[i] == size;
    const uint8_t *data = stored ? look(s, entries->data[i], n) : NULL;
    if (stored && !data) return -1;
    wm_npy_add(entries, i, data, stored ? n : 0, out);
    return 0;
}

static int walk(scan *s, const uint8_t *central, uint64_t len, const wm_zip_entries *out, wm_npy *arrays) {
    uint64_t at = 0, names = 0;
    out->bounds[0] = 0;
    if (arrays) {
        arrays->n_dims = arrays->names_len = arrays->n_kinds = 0;
        arrays->columns->bounds[0] = arrays->columns->dim_bounds[0] = 0;
    }
    for (; s->row < out->count; s->row++) {
        const uint64_t i = s->row;
        if (len - at < CENTRAL || load_le32(central + at) != 0x02014b50) return fail(s, WM_FAULT_ZIP_DIRECTORY, at, 0, 0);
        const uint8_t *c = central + at;
        const uint64_t name_len = load_le16(c + 28), extra_len = load_le16(c + 30), remaining = len - at - CENTRAL;
        const uint64_t whole = name_len + extra_len + load_le16(c + 32);
        extent e = {load_le32(c + 20), load_le32(c + 24), load_le32(c + 42)};
        if (whole > remaining) return fail(s, WM_FAULT_ZIP_DIRECTORY, at, whole, remaining);
        if (!widen(c + CENTRAL + name_len, extra_len, &e)) return fail(s, WM_FAULT_ZIP_DIRECTORY, at, 0, 0);
        if (load_le16(c + 8) & ENCRYPTED) return fail(s, WM_FAULT_ZIP_ENCRYPTED, at, 0, 0);
        const int reason = ambiguous(c, name_len, extra_len);
        if (reason) return fail(s, WM_FAULT_ZIP_NAME, at, (uint64_t)reason, 0);
        if (check_header(s, c, &e, &out->data[i])) return -1;
        memcpy(out->names + names, c + CENTRAL, name_len); /* names are part of the directory, so there is room */
        names += name_len;
        out->bounds[i + 1] = (uint32_t)names;
        out->method[i] = load_le16(c + 10);
        out->later[i] = (load_le16(c + 8) & LATER) != 0;
        out->crc[i] = load_le32(c + 16);
        out->stored[i] = e.stored, out->size[i] = e.size, out->offset[i] = e.offset;
        if (arrays && read_array(s, out, i, arrays)) return -1;
        at += CENTRAL + whole;
    }
    return at == len ? 0 : fail(s, WM_FAULT_ZIP_DIRECTORY, at, len - at, 0);
}

int wm_zip_scan(const wm_zip_source *source, const uint8_t *central, uint64_t len, const wm_zip_entries *out, wm_npy *arrays,
                wm_fault *fault) {
    scan s = {source, NULL, fault, 0, 0, 0};
    wm_fail(fault, WM_FAULT_NONE, 0, 0, 0, 0);
    if (len > UINT32_MAX) return fail(&s, WM_FAULT_COLUMN, 0, len, UINT32_MAX);
    if ((source->fd >= 0 || source->read) && !(s.buffer = malloc(HEADER_ROOM)))
        return fail(&s, WM_FAULT_MEMORY, 0, HEADER_ROOM, 0);
    const int failed = walk(&s, central, len, out, arrays);
    free(s.buffer);
    return failed;
}

int wm_zip_order(const wm_zip_entries *entries, const uint64_t *order, uint64_t end, wm_fault *fault) {
    uint64_t last = 0, gap = 0, gap_at = 0;
    wm_fail(fault, WM_FAULT_NONE, 0, 0, 0, 0);
    for (uint64_t i = 0, later = 0;; i++) {
        const int is_directory = i == entries->count;
        const uint64_t row = is_directory || !order ? i : order[i], begin = is_directory ? end : entries->offset[row];
        if (begin < last) return wm_fail(fault, WM_FAULT_ZIP_OVERLAP, row, begin, begin, last);
        const uint64_t remaining = begin - last;
        const int descriptor = later && remaining >= 12 && remaining <= 24 && remaining % 4 == 0;
        if (remaining && !descriptor && !gap) gap = remaining, gap_at = last;
        if (is_directory) break;
        last = entries->data[row] + entries->stored[row], later = entries->later[row];
    }
    return gap ? wm_fail(fault, WM_FAULT_ZIP_GAP, 0, gap_at, gap, 0) : 0;
}
