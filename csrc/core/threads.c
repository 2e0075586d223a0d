/* Divides work among threads, for kernels that are called without the GIL.
 *
 * Threads live for one call. Starting one and waiting for it takes 20 to 50 microseconds, so each kernel says how much work is
 * worth that. Keeping threads between calls would save little of it and break in a process that forks.
 */
#if !defined(_WIN32)
#include <pthread.h>
#include <stdatomic.h>
#define SHARED _Atomic
#else /* one thread does it all */
#define SHARED
#endif

#include "core/internal.h"

typedef struct {
    wm_piece_fn *run;
    void *context;
    uint64_t n, piece;
    SHARED uint64_t next, failed;
} work;

typedef struct {
    work *of;
    int number;
    uint64_t failed; /* the piece; UINT64_MAX: none */
} taker;

static void *take(void *arg) {
    taker *t = arg;
    work *w = t->of;
    const uint64_t count = ceil_div(w->n, w->piece);
    t->failed = UINT64_MAX;
    while (!w->failed) {
        const uint64_t i = w->next++;
        if (i >= count) break;
        const uint64_t begin = i * w->piece, end = i + 1 < count ? begin + w->piece : w->n;
        if (w->run(w->context, t->number, begin, end)) t->failed = i, w->failed = 1;
    }
    return NULL;
}

int wm_run_pieces(wm_piece_fn *run, void *context, uint64_t n, uint64_t piece, int threads) {
    work w = {.run = run, .context = context, .n = n, .piece = piece};
    taker takers[WM_MAX_PARTS] = {{.of = &w}};
    int count = 1, first = -1;
    if (n == 0) return -1;
#if !defined(_WIN32)
    pthread_t started[WM_MAX_PARTS];
    const uint64_t pieces = ceil_div(n, piece);
    while (count < threads && count < WM_MAX_PARTS && (uint64_t)count < pieces) {
        takers[count] = (taker){.of = &w, .number = count};
        if (pthread_create(&started[count], NULL, take, &takers[count])) break; /* fewer do it all */
        count++;
    }
#endif
    take(&takers[0]);
#if !defined(_WIN32)
    for (int i = 1; i < count; i++) pthread_join(started[i], NULL);
#endif
    for (int i = 0; i < count; i++)
        if (takers[i].failed != UINT64_MAX && (first < 0 || takers[i].failed < takers[first].failed)) first = i;
    return first;
}

typedef struct {
    wm_part_fn *run;
    void *context;
    uint64_t size;
} parts;

static int run_part(void *context, int thread, uint64_t begin, uint64_t end) {
    const parts *p = context;
    p->run(p->context, (int)(begin / p->size), begin, end);
    return 0;
}

int wm_run_parts(wm_part_fn *run, void *context, uint64_t n, uint64_t align, uint64_t min, int threads) {
    const uint64_t max = min ? n / min : n;
    const uint64_t asked_for = threads < 1 ? 1 : threads > WM_MAX_PARTS ? WM_MAX_PARTS : (uint64_t)threads;
    const uint64_t count = asked_for < max ? asked_for : max;
    if (count < 2) {
        run(context, 0, 0, n);
        return 1;
    }
    const uint64_t each = count > WM_MAX_PARTS / 8 ? WM_MAX_PARTS / count : 8;
    parts p = {run, context, ceil_div(n, count * each)};
    if (align > 1) p.size = ceil_div(p.size, align) * align;
    (void)wm_run_pieces(run_part, &p, n, p.size, (int)count);
    return (int)ceil_div(n, p.size);
}
