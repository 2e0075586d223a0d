/* Makes one system call of a process fail: loaded before libc (LD_PRELOAD), it stands in for the functions by which
 * files are opened, read, written, mapped and renamed.
 *
 * While armed it counts the calls of these functions in the whole process. Before the call with the chosen number it
 * does one of four things, told by `what`:
 *
 *     > 0          the call fails with this errno and does nothing (but close, which closes: as on Linux)
 *     SHORT        reads and writes take half of the bytes; the other calls are done as ever
 *     TRUNCATED    the file chosen by shim_victim is truncated, then the call is done
 *     KILLED       the process gets SIGKILL
 *
 * tests/faults/injection.py controls it through ctypes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SHORT = -1, TRUNCATED = -2, KILLED = -9 };
enum { MOST = 4096, LONGEST = 24 };

static atomic_int armed;
static atomic_long calls;
static long chosen; /* 0: no call; -1: every call */
static int what;
static char only[LONGEST];
static char victim[4096];
static long victim_size;
static char names[MOST][LONGEST];

/* Count the calls of one function, or of all (""), and let the fault happen at call number `nth`. */
void shim_arm(const char *function, long nth, int fault) {
    snprintf(only, sizeof only, "%s", function);
    chosen = nth;
    what = fault;
    calls = 0;
    armed = 1;
}

/* Which file TRUNCATED truncates, and to how many bytes. */
void shim_victim(const char *path, long size) {
    snprintf(victim, sizeof victim, "%s", path);
    victim_size = size;
}

/* Return how many calls were counted. */
long shim_disarm(void) {
    armed = 0;
    return calls;
}

/* Return the name of the call with this number, from 1 on. */
const char *shim_name(long number) { return number >= 1 && number <= MOST ? names[number - 1] : ""; }

/* Count a call; return 0 when it is to be done, SHORT when only half of it, else the errno that it fails with. */
static int fault_of(const char *name) {
    if (!armed || (only[0] && strcmp(only, name) != 0)) return 0;
    long number = ++calls;
    if (number <= MOST) snprintf(names[number - 1], LONGEST, "%s", name);
    if (chosen != -1 && number != chosen) return 0;
    if (what == KILLED) kill(getpid(), SIGKILL);
    if (what == TRUNCATED) {
        int before = errno;
        if (truncate(victim, victim_size) != 0) perror("truncate");
        errno = before;
        return 0;
    }
    return what;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* The replacement of a failing call. */
#define FAIL(fault)    \
    if (fault > 0) {   \
        errno = fault; \
        return -1;     \
    }

/* A function that does nothing when it fails. */
#define PLAIN(name, known_as, parameters, arguments) \
    int name parameters {                            \
        int fault = fault_of(known_as);              \
        FAIL(fault)                                  \
        return REAL(name) arguments;                 \
    }

/* One that reads or writes up to `size` bytes. */
#define SIZED(name, known_as, parameters, arguments) \
    ssize_t name parameters {                        \
        int fault = fault_of(known_as);              \
        FAIL(fault)                                  \
        if (fault == SHORT) size = (size + 1) / 2;   \
        return REAL(name) arguments;                 \
    }

/* One with a list of buffers: it takes half of the first. */
#define VECTOR(name, known_as, type)                                           \
    ssize_t name(int fd, const struct iovec *list, int count, type at) {       \
        int fault = fault_of(known_as);                                        \
        FAIL(fault)                                                            \
        if (fault == SHORT && count > 0) {                                     \
            struct iovec half = {list[0].iov_base, (list[0].iov_len + 1) / 2}; \
            return REAL(name)(fd, &half, 1, at);                               \
        }                                                                      \
        return REAL(name)(fd, list, count, at);                                \
    }

/* One that opens a file: its mode is there only when a file may be created. */
#define OPENING(name, parameters, arguments)                                    \
    int name parameters {                                                       \
        va_list rest;                                                           \
        va_start(rest, flags);                                                  \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                           \
        int fault = fault_of("open");                                           \
        FAIL(fault)                                                             \
        return REAL(name) arguments;                                            \
    }

OPENING(open, (const char *path, int flags, ...), (path, flags, mode))
OPENING(open64, (const char *path, int flags, ...), (path, flags, mode))
OPENING(openat, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
OPENING(openat64, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))

SIZED(read, "read", (int fd, void *data, size_t size), (fd, data, size))
SIZED(write, "write", (int fd, const void *data, size_t size), (fd, data, size))
SIZED(pread, "pread", (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
SIZED(pread64, "pread", (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))
SIZED(pwrite, "pwrite", (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
SIZED(pwrite64, "pwrite", (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
SIZED(sendfile64, "sendfile", (int to, int from, off64_t *at, size_t size), (to, from, at, size))
SIZED(copy_file_range, "copy_file_range", (int from, off64_t *from_at, int to, off64_t *to_at, size_t size, unsigned flags),
      (from, from_at, to, to_at, size, flags))
SIZED(readlink, "readlink", (const char *path, char *target, size_t size), (path, target, size))
/* Their second editions have flags behind the place. */
#define VECTOR2(name, known_as, type)                                               \
    ssize_t name(int fd, const struct iovec *list, int count, type at, int flags) { \
        int fault = fault_of(known_as);                                             \
        FAIL(fault)                                                                 \
        if (fault == SHORT && count > 0) {                                          \
            struct iovec half = {list[0].iov_base, (list[0].iov_len + 1) / 2};      \
            return REAL(name)(fd, &half, 1, at, flags);                             \
        }                                                                           \
        return REAL(name)(fd, list, count, at, flags);                              \
    }

VECTOR(preadv, "pread", off_t)
VECTOR(preadv64, "pread", off64_t)
VECTOR(pwritev, "pwrite", off_t)
VECTOR(pwritev64, "pwrite", off64_t)
VECTOR2(preadv2, "pread", off_t)
VECTOR2(preadv64v2, "pread", off64_t)
VECTOR2(pwritev2, "pwrite", off_t)
VECTOR2(pwritev64v2, "pwrite", off64_t)

PLAIN(fsync, "fsync", (int fd), (fd))
PLAIN(fdatasync, "fsync", (int fd), (fd))
PLAIN(fchmod, "fchmod", (int fd, mode_t mode), (fd, mode))
PLAIN(fchown, "fchown", (int fd, uid_t user, gid_t group), (fd, user, group))
PLAIN(ftruncate, "ftruncate", (int fd, off_t size), (fd, size))
PLAIN(ftruncate64, "ftruncate", (int fd, off64_t size), (fd, size))
PLAIN(fallocate, "fallocate", (int fd, int mode, off_t at, off_t size), (fd, mode, at, size))
PLAIN(fallocate64, "fallocate", (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size))
PLAIN(rename, "rename", (const char *from, const char *to), (from, to))
PLAIN(renameat, "rename", (int a, const char *from, int b, const char *to), (a, from, b, to))
PLAIN(link, "link", (const char *from, const char *to), (from, to))
PLAIN(linkat, "link", (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
PLAIN(unlink, "unlink", (const char *path), (path))
PLAIN(unlinkat, "unlink", (int folder, const char *path, int flags), (folder, path, flags))
PLAIN(stat, "stat", (const char *path, struct stat *st), (path, st))
PLAIN(stat64, "stat", (const char *path, struct stat64 *st), (path, st))
PLAIN(lstat, "lstat", (const char *path, struct stat *st), (path, st))
PLAIN(lstat64, "lstat", (const char *path, struct stat64 *st), (path, st))
PLAIN(fstat, "fstat", (int fd, struct stat *st), (fd, st))
PLAIN(fstat64, "fstat", (int fd, struct stat64 *st), (fd, st))
PLAIN(fstatat, "stat", (int folder, const char *path, struct stat *st, int flags), (folder, path, st, flags))
PLAIN(fstatat64, "stat", (int folder, const char *path, struct stat64 *st, int flags), (folder, path, st, flags))
/* Only of files: Python gets its own memory by mmap, too. */
#define MAPPING(name, type)                                                     \
    void *name(void *at, size_t size, int prot, int flags, int fd, type from) { \
        int fault = fd < 0 ? 0 : fault_of("mmap");                              \
        if (fault > 0) {                                                        \
            errno = fault;                                                      \
            return MAP_FAILED;                                                  \
        }                                                                       \
        return REAL(name)(at, size, prot, flags, fd, from);                     \
    }

MAPPING(mmap, off_t)
MAPPING(mmap64, off64_t)

/* These two return the error. */
int posix_fallocate(int fd, off_t at, off_t size) {
    int fault = fault_of("fallocate");
    return fault > 0 ? fault : REAL(posix_fallocate)(fd, at, size);
}

int posix_fallocate64(int fd, off64_t at, off64_t size) {
    int fault = fault_of("fallocate");
    return fault > 0 ? fault : REAL(posix_fallocate64)(fd, at, size);
}

int close(int fd) {
    int fault = fault_of("close");
    int done = REAL(close)(fd);
    if (fault > 0) {
        errno = fault;
        return -1;
    }
    return done;
}
