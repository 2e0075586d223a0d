/* Mapping a file over memory that Python owns, and noticing that it changed.
 *
 * Python's mmap module duplicates the descriptor of every file that it maps (until 3.13), so a thousand shards need a thousand
 * descriptors more. Here Python makes an anonymous mapping of the right size, whose life numpy arrays then share, and
 * the file is mapped over it in place (MAP_FIXED): no descriptor is kept, and the object stays a plain `mmap.mmap`.
 */
#if !defined(_WIN32)
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#endif

#include "internal.h"

#if defined(_WIN32)

int wm_map_file(void *where, uint64_t size, int fd, int cow) { return 40; /* ENOSYS; Python maps the file itself */ }
int wm_file_unchanged(int fd, uint64_t size, int64_t mtime_ns) { return 1; /* an open file cannot be replaced there */ }

#else

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

int wm_map_file(void *where, uint64_t size, int fd, int cow) {
    if (!where || size == 0 || size > SIZE_MAX) return EINVAL;
    /* A private writable mapping of a file larger than memory is refused unless it reserves nothing. */
    int prot = cow ? PROT_READ | PROT_WRITE : PROT_READ;
    int flags = MAP_FIXED | (cow ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED);
    return mmap(where, (size_t)size, prot, flags, fd, 0) == MAP_FAILED ? errno : 0;
}

int wm_file_unchanged(int fd, uint64_t size, int64_t mtime_ns) {
    struct stat st;
    if (fstat(fd, &st) != 0) return -errno;
#if defined(__APPLE__)
    struct timespec t = st.st_mtimespec;
#else
    struct timespec t = st.st_mtim;
#endif
    return (uint64_t)st.st_size == size && (int64_t)t.tv_sec * 1000000000 + t.tv_nsec == mtime_ns;
}

#endif
