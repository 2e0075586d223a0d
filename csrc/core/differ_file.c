/* Compares numbers of two files, in pieces that stay in the second-level cache: each thread reads the next piece of both. */
#include "core/internal.h"

enum { PER_THREAD = 4 << 20 /* fewest bytes worth a thread */ };

typedef struct {
    const wm_pairs *p;
    int64_t *counts;
    double *results;
    uint8_t *room;
    wm_outcome failures[WM_MAX_PARTS];
} work;

static int compare_piece(void *context, int thread, uint64_t i, uint64_t end) {
    work *w = context;
    const wm_pairs *p = w->p;
    wm_outcome *const outcome = &w->failures[thread];
    const uint64_t n = p->counts[i], size = n * wm_kind_size(p->kind);
    const wm_readable a = {p->a, NULL, NULL}, b = {p->b, NULL, NULL};
    uint8_t *const room = w->room + (uint64_t)thread * 2 * p->max, *const other = room + p->max;
    uint64_t error, got = wm_read_at(&a, room, size, size, p->from_a[i], &error);
    if (got < size) return *outcome = (wm_outcome){WM_UNREADABLE, p->from_a[i] + got, (int)error}, -1;
    got = wm_read_at(&b, other, size, size, p->from_b[i], &error);
    if (got < size) return *outcome = (wm_outcome){WM_OTHER_UNREADABLE, p->from_b[i] + got, (int)error}, -1;
    w->counts[i] = wm_differing(room, other, n, p->kind, w->results + 2 * i, w->results + 2 * i + 1);
    return 0;
}

void wm_differing_files(const wm_pairs *pairs, int64_t *counts, double *results, uint8_t *room, uint64_t room_size, int threads,
                        wm_outcome *outcome) {
    work w = {.p = pairs, .counts = counts, .results = results, .room = room};
    uint64_t total = 0;
    *outcome = (wm_outcome){WM_UNFIT, 0, 0};
    if (pairs->kind < WM_FLOAT32 || pairs->kind > WM_BFLOAT16 || pairs->max % sizeof(double) || pairs->max > INT64_MAX / 2)
        return;
    for (uint64_t i = 0; i < pairs->n; i++) {
        const uint64_t last = INT64_MAX - pairs->max, n = pairs->counts[i];
        if (n > pairs->max / wm_kind_size(pairs->kind) || pairs->from_a[i] > last || pairs->from_b[i] > last) return;
        total = add_capped(total, n * wm_kind_size(pairs->kind));
    }
    if (total && room_size / 2 < pairs->max) return;
    uint64_t max = threads < 1 ? 1 : (uint64_t)threads;
    max = max > total / PER_THREAD ? total / PER_THREAD : max;
    if (total) max = max > room_size / 2 / pairs->max ? room_size / 2 / pairs->max : max;
    const int failed = wm_run_pieces(compare_piece, &w, pairs->n, 1, (int)max);
    *outcome = failed < 0 ? (wm_outcome){WM_DONE, 0, 0} : w.failures[failed];
}
