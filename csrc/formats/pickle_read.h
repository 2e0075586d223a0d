/* Reads the program of a pickle. See pickle_read.c. */
#ifndef WEIGHTMAP_PICKLE_READ_H
#define WEIGHTMAP_PICKLE_READ_H
#include "core/internal.h"

/* A program is read through slots of SLOT bytes, which pread fills: it need not lie in memory, and the file may change or shrink
 * meanwhile. Over memory, one slot is all of it. */
enum { SLOT = 1 << 14, SLOTS = 16 };
typedef struct {
    const wm_pickle_source *source;
    const uint8_t *slot; /* the bytes [first, first + filled) of the program */
    uint64_t first, filled;
    uint8_t *room; /* of all slots; NULL over memory */
    uint64_t loaded[SLOTS];
    wm_fault *fault;
    int broken; /* a read failed, and filled the fault */
} reader;

int wm_pickle_open(reader *r, const wm_pickle_source *source, wm_fault *fault);
void wm_pickle_close(reader *r);
/* Makes another slot current: the one with a byte of the program. Returns 0, or -1 when it cannot be read. */
int wm_pickle_turn(reader *r, uint64_t at);
/* Copies n bytes of the program, which the caller knows to be there. Returns 0, or -1 when they cannot be read. */
int wm_pickle_copy(reader *r, uint64_t at, uint64_t n, uint8_t *out);
#endif
