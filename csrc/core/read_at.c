/* Reads a file at a position: the only call of the system that scans of headers need. */
#if !defined(_WIN32)
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#define _FILE_OFFSET_BITS 64
#include <unistd.h>
#endif
#include <errno.h>

#include "core/internal.h"

static int64_t read_some(const wm_readable *file, uint8_t *out, uint64_t count, uint64_t at) {
    if (file->read) {
        const int64_t got = file->read(file->context, out, count, at);
        if (got < 0) errno = EIO;
        return got;
    }
#if defined(_WIN32)
    return 0;
#else
    return pread(file->fd, out, count, (off_t)at);
#endif
}

uint64_t wm_read_at(const wm_readable *file, uint8_t *out, uint64_t min, uint64_t max, uint64_t at, uint64_t *error) {
    uint64_t filled = 0;
    *error = 0;
    while (filled < min) {
        const int64_t got = read_some(file, out + filled, max - filled, at + filled);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) *error = (uint64_t)errno;
        if (got <= 0) break;
        filled += (uint64_t)got;
    }
    return filled;
}
