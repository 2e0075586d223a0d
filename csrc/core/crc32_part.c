/* The CRC-32 of a part of a file, and whether its padding is zero: each step lies in the second-level cache when it is summed.
 *
 * A file is read by pread, not mapped: one that is truncated meanwhile gives a short read instead of SIGBUS.
 */
#include "core/internal.h"

/* A thread is worth two mebibytes, and takes that many at a time. */
static const uint64_t PIECE = 2 << 20;

typedef struct {
    const wm_summed *in;
    uint8_t ATOMIC *filled; /* threads may share a gap */
    uint8_t *room;
    uint64_t piece;
    uint32_t crcs[WM_MAX_PARTS]; /* of pieces */
    wm_outcome failures[WM_MAX_PARTS];
} work;

/* The first gap that ends behind byte `at`. */
static uint64_t first_gap(const wm_summed *in, uint64_t at) {
    uint64_t low = 0, high = in->n_gaps;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (in->gaps[2 * middle + 1] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Checks the parts of gaps in bytes [at, at + size), from gap i on; returns the first gap that ends past them. */
static uint64_t look_at_gaps(work *w, uint64_t i, const uint8_t *data, uint64_t at, uint64_t size) {
    const wm_summed *in = w->in;
    for (; i < in->n_gaps && in->gaps[2 * i] < at + size; i++) {
        const uint64_t end = in->gaps[2 * i + 1] < at + size ? in->gaps[2 * i + 1] : at + size;
        uint8_t any = 0;
        for (uint64_t k = in->gaps[2 * i] > at ? in->gaps[2 * i] : at; k < end; k++) any |= data[k - at];
        if (any) w->filled[i] = 1;
        if (in->gaps[2 * i + 1] > at + size) break;
    }
    return i;
}

static int sum_piece(void *context, int thread, uint64_t begin, uint64_t end) {
    work *w = context;
    const wm_summed *in = w->in;
    const wm_readable file = {in->fd, NULL, NULL};
    uint8_t *const room = w->room + (uint64_t)thread * WM_SUM_ROOM;
    uint64_t gap = first_gap(in, in->at + begin);
    uint32_t crc = 0;
    for (uint64_t done = begin, n; done < end; done += n) {
        const uint64_t at = in->at + done;
        const uint8_t *const data = in->memory ? in->memory + at : room;
        n = end - done < WM_SUM_ROOM ? end - done : WM_SUM_ROOM;
        if (!in->memory) {
            uint64_t error;
            const uint64_t got = wm_read_at(&file, room, n, n, at, &error);
            if (got < n) return w->failures[thread] = (wm_outcome){WM_UNREADABLE, at + got, (int)error}, -1;
        }
        crc = wm_crc32(crc, data, n, 1);
        gap = look_at_gaps(w, gap, data, at, n);
    }
    w->crcs[begin / w->piece] = crc;
    return 0;
}

void wm_crc32_of_part(const wm_summed *in, uint8_t *filled, uint64_t n_filled, uint32_t *crc, uint8_t *room, uint64_t room_size,
                      int threads, wm_outcome *outcome) {
    work w = {.in = in, .filled = (uint8_t ATOMIC *)filled, .room = room};
    *outcome = (wm_outcome){WM_UNFIT, 0, 0};
    if (n_filled != in->n_gaps || in->at > INT64_MAX || in->size > INT64_MAX - in->at) return;
    if (in->memory && (in->at > in->memory_size || in->size > in->memory_size - in->at)) return;
    if (!in->memory && room_size < WM_SUM_ROOM) return;
    const uint64_t rooms = in->memory ? WM_MAX_PARTS : room_size / WM_SUM_ROOM;
    const int max = (uint64_t)(threads < 1 ? 1 : threads) < rooms ? threads : (int)rooms;
    const uint64_t each = ceil_div(in->size, WM_MAX_PARTS * PIECE) * PIECE;
    w.piece = max > 1 ? each : in->size;
    const int failed = wm_run_pieces(sum_piece, &w, in->size, w.piece, max);
    *outcome = failed < 0 ? (wm_outcome){WM_DONE, 0, 0} : w.failures[failed];
    for (uint64_t begin = 0; failed < 0 && begin < in->size; begin += w.piece) {
        const uint64_t remaining = in->size - begin;
        *crc = wm_crc32_combine(*crc, w.crcs[begin / w.piece], remaining < w.piece ? remaining : w.piece);
    }
}
