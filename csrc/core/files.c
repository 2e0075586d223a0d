/* Maps files, and notices that one has changed.
 *
 * Python's mmap module duplicates the descriptor of each file that it maps (until 3.13), so a thousand shards take a thousand
 * descriptors more, and it cannot map without reserving swap. This is one system call and keeps no descriptor.
 */
#if !defined(_WIN32)
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#define _FILE_OFFSET_BITS 64
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/statfs.h>
#include <sys/syscall.h>
#endif
#endif

#include "core/internal.h"

#if defined(_WIN32)

/* Here Python's mmap module maps files, and an open file cannot be replaced. */
uint8_t *wm_map(int fd, uint64_t size, int kind, int *error) { return *error = 40, NULL; }
void wm_unmap(uint8_t *map, uint64_t size) {}
int wm_advise(uint8_t *map, uint64_t map_size, int advice) { return 40; }
int wm_will_need(const uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size) { return 0; }
int wm_populate(const uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size, int scattered) { return 0; }
int wm_drop(uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size, int kind) { return 40; }
int wm_resident(const uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size, uint8_t *pages, uint64_t n) {
    return 40;
}
int64_t wm_cached(int fd, uint64_t offset, uint64_t size) { return -40; }
int64_t wm_file_system(int fd) { return -40; }
void wm_begin_flush(int fd, uint64_t offset, uint64_t size) {}
uint64_t wm_read_runs(int fd, const uint64_t *starts, uint64_t n, uint64_t length, uint64_t gap, uint8_t *out, int *error) {
    return *error = 40, 0;
}
uint64_t wm_page_size(void) { return 4096; }
int wm_fstat(int fd, wm_file *file) { return 40; }
int wm_unchanged(const wm_file *file) { return 1; }

#else

#define READ_AHEAD ((uint64_t)256 << 10)

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

uint8_t *wm_map(int fd, uint64_t size, int kind, int *error) {
    *error = EINVAL;
    if (size == 0 || size > SIZE_MAX || kind < 0 || kind > 3) return NULL;
    /* A private writable mapping of a file larger than memory is refused unless it reserves nothing. */
    int prot = kind & 1 ? PROT_READ | PROT_WRITE : PROT_READ;
    /* Before Linux 6.7 sealed memory cannot be mapped shared, not even read-only. A private mapping shows the same pages as
     * long as nobody writes to them. */
    int flags = kind == 0 ? MAP_SHARED : kind == 1 ? MAP_PRIVATE | MAP_NORESERVE : MAP_PRIVATE;
    if (kind == 3) flags |= MAP_ANONYMOUS;
    void *map = mmap(NULL, (size_t)size, prot, flags, fd, 0);
    *error = map == MAP_FAILED ? errno : 0;
    return map == MAP_FAILED ? NULL : map;
}

void wm_unmap(uint8_t *map, uint64_t size) {
    if (map) munmap(map, (size_t)size);
}

int wm_advise(uint8_t *map, uint64_t map_size, int advice) {
    static const int kinds[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL};
    if (!map || advice < 0 || advice >= (int)(sizeof kinds / sizeof *kinds)) return EINVAL;
    return madvise(map, (size_t)map_size, kinds[advice]) == 0 ? 0 : errno;
}

/* madvise for the pages that hold size bytes from `offset` on; it takes the address of a page. */
static int advise_pages(const uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size, int advice) {
    if (!map || offset > map_size || size > map_size - offset) return EINVAL;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)map + (uintptr_t)offset, start = begin - begin % page;
    return madvise((void *)start, (size_t)(begin - start + size), advice) == 0 ? 0 : errno;
}

/* In steps: the kernel reads no more at once than one request to the disk holds, and drops the rest. */
int wm_will_need(const uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size) {
    int error = 0;
    for (uint64_t at = 0; at < size && !error; at += READ_AHEAD) {
        uint64_t step = size - at < READ_AHEAD ? size - at : READ_AHEAD;
        error = advise_pages(map, map_size, offset + at, step, MADV_WILLNEED);
    }
    return error;
}

int wm_populate(const uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size, int scattered) {
    /* A mapping without the kernel's read-ahead asks for it. (With read-ahead this would cost more than it gains.) */
    if (scattered) wm_will_need(map, map_size, offset, size);
#if defined(__linux__)
    /* 22 is MADV_POPULATE_READ, which older headers lack. A kernel without it says EINVAL, a sandbox that forbids it may say
     * ENOSYS or EPERM. A file that has become too short or unreadable gives EFAULT or EHWPOISON: advice would not help. */
    int error = advise_pages(map, map_size, offset, size, 22);
    if (error != EINVAL && error != ENOSYS && error != EPERM) return error;
#endif
    return wm_will_need(map, map_size, offset, size);
}

uint64_t wm_page_size(void) { return (uint64_t)sysconf(_SC_PAGESIZE); }

#if defined(__linux__)
/* Headers older than the kernel lack these. */
enum { ADVICE_PAGEOUT = 21, CALL_CACHESTAT = 451 };

int wm_drop(uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size, int kind) {
    if (kind < 0 || kind > 1) return EINVAL;
    return advise_pages(map, map_size, offset, size, kind ? ADVICE_PAGEOUT : MADV_DONTNEED);
}

int wm_resident(const uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size, uint8_t *pages, uint64_t n) {
    if (!map || size == 0 || offset > map_size || size > map_size - offset) return EINVAL;
    uintptr_t page = (uintptr_t)wm_page_size(), begin = (uintptr_t)map + (uintptr_t)offset, start = begin - begin % page;
    if (n != (begin - start + size + page - 1) / page) return EINVAL;
    if (mincore((void *)start, (size_t)(begin - start + size), pages) != 0) return errno;
    for (uint64_t i = 0; i < n; i++) pages[i] &= 1; /* the other bits are reserved */
    return 0;
}

int64_t wm_cached(int fd, uint64_t offset, uint64_t size) {
    uint64_t range[2] = {offset, size}, counts[5] = {0}; /* cached, dirty, being written, evicted, evicted recently */
    if (size == 0) return 0;                             /* to the kernel, all of the file */
    return syscall(CALL_CACHESTAT, fd, range, counts, 0) == 0 ? (int64_t)counts[0] : -errno;
}

int64_t wm_file_system(int fd) {
    struct statfs status;
    return fstatfs(fd, &status) == 0 ? (int64_t)(uint32_t)status.f_type : -errno;
}

void wm_begin_flush(int fd, uint64_t offset, uint64_t size) {
#if defined(SYNC_FILE_RANGE_WRITE)
    (void)sync_file_range(fd, (off_t)offset, (off_t)size, SYNC_FILE_RANGE_WRITE);
#endif
}
#else
int wm_drop(uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size, int kind) { return ENOSYS; }
int wm_resident(const uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size, uint8_t *pages, uint64_t n) {
    return ENOSYS;
}
int64_t wm_cached(int fd, uint64_t offset, uint64_t size) { return -ENOSYS; }
int64_t wm_file_system(int fd) { return -ENOSYS; }
void wm_begin_flush(int fd, uint64_t offset, uint64_t size) {}
#endif

/* ------------------------------------------------------------------------------------------------ runs of bytes */
/* Bytes of pages requested ahead of reading them */
#define AHEAD ((uint64_t)4 << 20)

/* The runs from the first one on that lie in about AHEAD bytes of pages. */
static uint64_t batch(const uint64_t *starts, uint64_t n, uint64_t length, uint64_t page) {
    uint64_t i = 0, pages = 0;
    for (; i < n && pages < AHEAD; i++) pages += length + page;
    return i;
}

/* Bytes between two runs are read with them, up to this many times a run. */
enum { TIMES = 8 };

/* Asks the kernel to read the pages of runs, and of gaps below `gap` bytes, in steps that it does not cut off. */
static void ask(int fd, const uint64_t *starts, uint64_t n, uint64_t length, uint64_t gap, uint64_t page) {
#if defined(__linux__)
    uint64_t first = n ? starts[0] : 0, last = n ? starts[n - 1] + length : 0;
    if (last - first < 16 * AHEAD) { /* asking costs little, and mostly all of it is in memory */
        if (wm_cached(fd, first, last - first) == (int64_t)((last + page - 1) / page - first / page)) return;
    }
    for (uint64_t i = 0; i < n;) {
        uint64_t begin = starts[i] / page * page, end = starts[i] + length;
        for (i++; i < n && starts[i] / page * page < end + gap && starts[i] + length > end; i++) end = starts[i] + length;
        for (; begin < end; begin += READ_AHEAD) {
            if (posix_fadvise(fd, (off_t)begin, (off_t)(end - begin < READ_AHEAD ? end - begin : READ_AHEAD),
                              POSIX_FADV_WILLNEED))
                return;
        }
    }
#endif
}

uint64_t wm_read_runs(int fd, const uint64_t *starts, uint64_t n, uint64_t length, uint64_t gap, uint8_t *out, int *error) {
    const uint64_t page = wm_page_size();
    const wm_readable file = {fd, NULL, NULL};
    *error = 0;
    if (length == 0 || length > INT64_MAX || (n && starts[n - 1] > INT64_MAX - length)) return 0;
    const uint64_t many = mul_capped(TIMES, length < page ? page : length);
    gap = gap < page ? page : gap < many ? gap : many;
    uint64_t requested = batch(starts, n, length, page);
    ask(fd, starts, requested, length, gap, page);
    for (uint64_t i = 0, batch_end = 0; i < n; i++) {
        if (i == batch_end) { /* the pages of the next batch are read while this one is copied */
            const uint64_t more = batch(starts + requested, n - requested, length, page);
            batch_end = requested;
            ask(fd, starts + requested, more, length, gap, page);
            requested += more;
        }
        uint64_t number;
        const uint64_t got = wm_read_at(&file, out + i * length, length, length, starts[i], &number);
        if (got < length) return *error = (int)number, i * length + got;
    }
    return n * length;
}

/* A file may claim any year. The nanoseconds then wrap around, but equal times still compare equal. */
static int64_t modified(const struct stat *st) {
#if defined(__APPLE__)
    struct timespec t = st->st_mtimespec;
#else
    struct timespec t = st->st_mtim;
#endif
    return (int64_t)((uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec);
}

int wm_fstat(int fd, wm_file *file) {
    struct stat st;
    if (fstat(fd, &st) != 0) return errno;
    *file = (wm_file){fd, (uint32_t)st.st_mode, (uint64_t)st.st_size, (uint64_t)st.st_dev, (uint64_t)st.st_ino, modified(&st)};
    return 0;
}

int wm_unchanged(const wm_file *file) {
    struct stat st;
    if (fstat(file->fd, &st) != 0) return -errno;
    return (uint64_t)st.st_size == file->size && modified(&st) == file->mtime_ns;
}

#endif
