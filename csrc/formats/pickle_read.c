/* The bytes of a pickle program, read from a file as they are needed, or lying in memory. See pickle.c. */
#include <stdlib.h>

#include "formats/pickle_read.h"

int wm_pickle_open(reader *r, const wm_pickle_source *source, wm_fault *fault) {
    wm_fail(fault, WM_FAULT_NONE, 0, 0, 0, 0);
    *r = (reader){.source = source, .fault = fault};
    if (source->fd < 0) {
        r->slot = source->data, r->filled = source->len;
        return 0;
    }
    r->room = malloc((size_t)SLOT * SLOTS);
    return r->room ? 0 : wm_fail(fault, WM_FAULT_MEMORY, 0, 0, (uint64_t)SLOT * SLOTS, 0);
}

void wm_pickle_close(reader *r) { free(r->room); }

int wm_pickle_turn(reader *r, uint64_t at) {
    const uint64_t number = at / SLOT, first = number * SLOT, remaining = r->source->len - first,
                   n = remaining < SLOT ? remaining : SLOT;
    uint8_t *const slot = r->room + number % SLOTS * SLOT;
    uint64_t *const loaded = &r->loaded[number % SLOTS];
    r->slot = slot, r->first = first, r->filled = n;
    if (*loaded == number + 1) return 0;
    *loaded = r->filled = 0;
    uint64_t error;
    const uint64_t filled = wm_read_at(&(wm_readable){r->source->fd, NULL, NULL}, slot, n, n, r->source->begin + first, &error);
    if (filled < n) {
        r->broken = 1;
        return wm_fail(r->fault, WM_FAULT_PICKLE_READ, 0, first + filled, error, first + n);
    }
    *loaded = number + 1, r->filled = n;
    return 0;
}

int wm_pickle_copy(reader *r, uint64_t at, uint64_t n, uint8_t *out) {
    while (n) {
        if (at - r->first >= r->filled && wm_pickle_turn(r, at)) return -1;
        const uint64_t remaining = r->first + r->filled - at, part = n < remaining ? n : remaining;
        memcpy(out, r->slot + (at - r->first), part);
        at += part, out += part, n -= part;
    }
    return 0;
}
