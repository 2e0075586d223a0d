/* Mapping a file, and noticing that it changed.
 *
 * Python's mmap module duplicates the descriptor of every file that it maps (until 3.13), so a thousand shards need a
 * thousand descriptors more, and cannot map without reserving swap. This maps with one system call and keeps nothing.
 */
#if !defined(_WIN32)
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#define _FILE_OFFSET_BITS 64
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#include "internal.h"

#if defined(_WIN32)

/* Python's mmap module maps the file there; an open file cannot be replaced. */
uint8_t *wm_map(int fd, uint64_t size, int cow, int *error) { return *error = 40, NULL; }
void wm_unmap(uint8_t *map, uint64_t size) {}
int wm_will_need(const uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size) { return 0; }
int wm_look(int fd, wm_file *file) { return 40; }
int wm_unchanged(const wm_file *file) { return 1; }

#else

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

uint8_t *wm_map(int fd, uint64_t size, int cow, int *error) {
    *error = EINVAL;
    if (size == 0 || size > SIZE_MAX) return NULL;
    /* A private writable mapping of a file larger than memory is refused unless it reserves nothing. */
    int prot = cow ? PROT_READ | PROT_WRITE : PROT_READ;
    int flags = cow ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
    void *map = mmap(NULL, (size_t)size, prot, flags, fd, 0);
    *error = map == MAP_FAILED ? errno : 0;
    return map == MAP_FAILED ? NULL : map;
}

void wm_unmap(uint8_t *map, uint64_t size) {
    if (map) munmap(map, (size_t)size);
}

int wm_will_need(const uint8_t *map, uint64_t map_size, uint64_t offset, uint64_t size) {
    if (!map || offset > map_size || size > map_size - offset) return EINVAL;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), start = offset - offset % page;
    return madvise((void *)(uintptr_t)(map + start), (size_t)(offset - start + size), MADV_WILLNEED) == 0 ? 0 : errno;
}

/* A file may claim any year: then the nanoseconds wrap around, and are still the same as long as the year is. */
static int64_t modified(const struct stat *st) {
#if defined(__APPLE__)
    struct timespec t = st->st_mtimespec;
#else
    struct timespec t = st->st_mtim;
#endif
    return (int64_t)((uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec);
}

int wm_look(int fd, wm_file *file) {
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
