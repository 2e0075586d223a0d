/* Fills a staging buffer, from which a device copies, with pieces of a file: several threads, each with its own pieces.
 *
 * A file is read by pread, also where its pages are in memory: the kernel copies them from the page cache, at the speed of a
 * copy out of a mapping, without a fault for each page that is touched first. And a file that is truncated meanwhile gives a
 * short read, where a mapping would give SIGBUS. Only bytes that nobody can take away are copied from memory.
 *
 * A slice of a tensor may consist of runs of a few bytes. Those that lie within a page of each other are read together.
 */
#if !defined(_WIN32)
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#endif

#include "core/internal.h"

enum {
    STEP = 1 << 18,          /* bytes read before their checksum is computed: they are in the L2 cache of any CPU then */
    MAX_GAP = 4096,          /* runs that lie closer are read together */
    TOGETHER = 32768,        /* bytes of such a read: they fit on the stack of any thread */
    BYTES_A_THREAD = 1 << 18 /* least work of a thread */
};

#if defined(_WIN32)
int64_t wm_stage(const wm_staging *s, uint64_t n, uint32_t *crcs, int threads, int *error) { return *error = 40, 0; }
int wm_prefer_node(uint8_t *memory, uint64_t size, int node) { return 40; }
#else

typedef struct {
    const wm_staging *s;
    uint64_t n;
    uint32_t *crcs;
    /* The first piece that failed, and why; UINT64_MAX while none has. If several threads fail, the last one counts. */
    _Atomic uint64_t failed;
    _Atomic int error;
} work;

static int fail(work *w, uint64_t piece, int error) {
    atomic_store(&w->error, error);
    atomic_store(&w->failed, piece);
    return -1;
}

/* Reads size bytes of the file; 0, or -1 with an errno in *error: 0 when the file ends. */
static int read_all(int fd, uint8_t *out, uint64_t size, uint64_t at, int *error) {
    uint64_t number;
    const uint64_t got = wm_read_at(&(wm_readable){fd, NULL, NULL}, out, size, size, at, &number);
    return *error = (int)number, got < size ? -1 : 0;
}

/* One piece, in steps: each is in the cache when its checksum is computed. */
static int copy_piece(work *w, uint64_t i) {
    const wm_staging *s = w->s;
    uint8_t *out = s->out + s->to[i];
    uint32_t crc = 0;
    int error = 0;
    for (uint64_t done = 0, step; done < s->sizes[i]; done += step) {
        step = s->sizes[i] - done < STEP ? s->sizes[i] - done : STEP;
        const uint64_t at = s->from[i] + done;
        if (s->fd < 0)
            memcpy(out + done, s->memory + at, step);
        else if (read_all(s->fd, out + done, step, at, &error))
            return fail(w, i, error);
        if (w->crcs) crc = wm_crc32(crc, out + done, step, 1);
    }
    if (w->crcs) w->crcs[i] = crc;
    return 0;
}

/* How many pieces from i on, below `last`, are read together: 1 unless they are small and close to each other. */
static uint64_t together(const wm_staging *s, uint64_t i, uint64_t last) {
    uint64_t n = 1, end = s->from[i] + s->sizes[i];
    if (s->fd < 0) return 1;
    for (; i + n < last; n++) {
        const uint64_t begin = s->from[i + n], size = s->sizes[i + n];
        if (begin < end || begin - end >= MAX_GAP || size > TOGETHER || begin + size - s->from[i] > TOGETHER) break;
        end = begin + size;
    }
    return n;
}

static int copy_together(work *w, uint64_t i, uint64_t n) {
    const wm_staging *s = w->s;
    const uint64_t first = s->from[i];
    uint8_t room[TOGETHER];
    int error = 0;
    if (read_all(s->fd, room, s->from[i + n - 1] + s->sizes[i + n - 1] - first, first, &error)) return fail(w, i, error);
    for (; n; n--, i++) {
        memcpy(s->out + s->to[i], room + (s->from[i] - first), s->sizes[i]);
        if (w->crcs) w->crcs[i] = wm_crc32(0, s->out + s->to[i], s->sizes[i], 1);
    }
    return 0;
}

/* A thread takes the pieces that begin within its part of all bytes. */
static void copy_part(void *context, int number, uint64_t begin, uint64_t end) {
    work *w = context;
    const uint64_t *sizes = w->s->sizes;
    uint64_t first = 0, last, at = 0;
    for (; first < w->n && at < begin; first++) at += sizes[first];
    for (last = first; last < w->n && at < end; last++) at += sizes[last];
    for (uint64_t n; first < last && atomic_load(&w->failed) == UINT64_MAX; first += n) {
        n = together(w->s, first, last);
        if (n > 1 ? copy_together(w, first, n) : copy_piece(w, first)) return;
    }
}

int64_t wm_stage(const wm_staging *s, uint64_t n, uint32_t *crcs, int threads, int *error) {
    work w = {.s = s, .n = n, .crcs = crcs, .failed = UINT64_MAX};
    uint64_t total = 0;
    *error = -1;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t size = s->sizes[i];
        if (s->to[i] > s->out_size || size > s->out_size - s->to[i]) return (int64_t)i;
        if (s->from[i] > INT64_MAX || size > INT64_MAX - s->from[i]) return (int64_t)i;
        if (s->fd < 0 && (s->from[i] > s->memory_size || size > s->memory_size - s->from[i])) return (int64_t)i;
        total = add_capped(total, size);
        if (crcs) crcs[i] = 0; /* of no bytes */
    }
    *error = 0;
    if (total) wm_run_parts(copy_part, &w, total, 1, BYTES_A_THREAD, threads);
    const uint64_t failed = atomic_load(&w.failed);
    if (failed == UINT64_MAX) return -1;
    *error = atomic_load(&w.error);
    return (int64_t)failed;
}

int wm_prefer_node(uint8_t *memory, uint64_t size, int node) {
#if defined(__linux__) && defined(SYS_mbind)
    enum { PREFERRED = 1, MOVE = 2, MAX_NODES = 1024 }; /* of <numaif.h>, which is a separate package */
    unsigned long nodes[MAX_NODES / (8 * sizeof(long))] = {0};
    if (node < 0 || node >= MAX_NODES - 1) return EINVAL;
    nodes[(unsigned)node / (8 * sizeof *nodes)] = 1ul << (unsigned)node % (8 * sizeof *nodes);
    const uint64_t page = wm_page_size(), skip = (0 - (uint64_t)(uintptr_t)memory) % page;
    if (size <= skip) return 0;
    return syscall(SYS_mbind, memory + skip, (size - skip) / page * page, PREFERRED, nodes, (unsigned long)MAX_NODES, MOVE)
               ? errno
               : 0;
#else
    return ENOSYS;
#endif
}
#endif
