/* Divides work among threads, for kernels that are called without the GIL.
 *
 * Threads live for one call. Starting one and waiting for it takes 20 microseconds, so each kernel says how much work is worth
 * that. Keeping threads between calls would save little of it and break in a process that forks.
 */
#include "internal.h"

#if defined(_WIN32) /* one thread does it all */
int wm_run_parts(wm_part_fn *run, void *context, uint64_t n, uint64_t align, uint64_t least, int threads) {
    run(context, 0, 0, n);
    return 1;
}
#else
#include <pthread.h>

typedef struct {
    pthread_t thread;
    wm_part_fn *run;
    void *context;
    int number;
    uint64_t begin, end;
} part;

static void *run_part(void *arg) {
    part *p = arg;
    p->run(p->context, p->number, p->begin, p->end);
    return NULL;
}

int wm_run_parts(wm_part_fn *run, void *context, uint64_t n, uint64_t align, uint64_t least, int threads) {
    part parts[WM_MAX_PARTS];
    int started[WM_MAX_PARTS];
    uint64_t most = least ? n / least : n;
    int count = threads > WM_MAX_PARTS ? WM_MAX_PARTS : threads;
    if (count > 0 && (uint64_t)count > most) count = (int)most;
    uint64_t size = count > 1 ? n / (uint64_t)count : n;
    if (align > 1) size -= size % align;
    if (count < 2 || size == 0) {
        run(context, 0, 0, n);
        return 1;
    }
    for (int i = count - 1; i >= 0; i--) { /* the last part takes what division left over */
        uint64_t begin = size * (uint64_t)i;
        parts[i] = (part){.run = run, .context = context, .number = i, .begin = begin, .end = begin + size};
        if (i == count - 1) parts[i].end = n;
        started[i] = i > 0 && pthread_create(&parts[i].thread, NULL, run_part, &parts[i]) == 0;
    }
    /* The caller does the first part, and every part whose thread could not be started. */
    for (int i = 0; i < count; i++)
        if (!started[i]) run_part(&parts[i]);
    for (int i = 1; i < count; i++)
        if (started[i]) pthread_join(parts[i].thread, NULL);
    return count;
}
#endif
