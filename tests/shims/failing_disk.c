// Makes one operation on the files of a folder fail, for tests: a library for LD_PRELOAD.
//
//   FAILING_DISK_DIR   the folder; operations on other files pass
//   FAILING_DISK_AT    the number of the operation that fails, from 1; 0: none
//   FAILING_DISK_KIND  eio: this operation fails with EIO, and later ones pass
//                      enospc: this write and all later ones fail with ENOSPC
//                      short: this write stores half of its bytes, and all later ones fail with ENOSPC
//   FAILING_DISK_LOG   a file that gets one byte for each operation
//
// Operations are writes, truncations, renames and syncs.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum verdict { PASS, FAIL, HALF };
enum kind { EIO_ONCE, FULL, SHORT };

static const char *dir;
static long fail_at;
static enum kind kind;
static int log_fd = -1;
static atomic_long operations;

__attribute__((constructor)) static void start(void) {
    const char *at = getenv("FAILING_DISK_AT"), *how = getenv("FAILING_DISK_KIND"), *log = getenv("FAILING_DISK_LOG");
    dir = getenv("FAILING_DISK_DIR");
    fail_at = at ? atol(at) : 0;
    kind = how && !strcmp(how, "enospc") ? FULL : how && !strcmp(how, "short") ? SHORT : EIO_ONCE;
    if (log) log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

static int is_below(const char *path) { return dir && !strncmp(path, dir, strlen(dir)); }

static int is_file_below(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return is_below(path);
}

static enum verdict next(int is_write) {
    long n = atomic_fetch_add(&operations, 1) + 1;
    if (log_fd >= 0) syscall(SYS_write, log_fd, ".", 1);
    if (!fail_at || n < fail_at) return PASS;
    if (kind == EIO_ONCE) {
        if (n > fail_at) return PASS;
        errno = EIO;
        return FAIL;
    }
    if (!is_write) return PASS;
    if (kind == SHORT && n == fail_at) return HALF;
    errno = ENOSPC;
    return FAIL;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define WRITE(name, parameters, arguments)                                          \
    ssize_t name parameters {                                                       \
        if (is_file_below(fd)) {                                                    \
            enum verdict v = next(1);                                               \
            if (v == FAIL) return -1;                                               \
            if (v == HALF && count > 1) count /= 2;                                 \
        }                                                                           \
        return REAL(name) arguments;                                                \
    }

WRITE(write, (int fd, const void *bytes, size_t count), (fd, bytes, count))
WRITE(pwrite, (int fd, const void *bytes, size_t count, off_t at), (fd, bytes, count, at))
WRITE(pwrite64, (int fd, const void *bytes, size_t count, off64_t at), (fd, bytes, count, at))
WRITE(writev, (int fd, const struct iovec *bytes, int count), (fd, bytes, count))

#define CHANGE(name, is_write, parameters, arguments)                               \
    int name parameters {                                                           \
        if (is_file_below(fd) && next(is_write) == FAIL) return -1;                 \
        return REAL(name) arguments;                                                \
    }

CHANGE(ftruncate, 1, (int fd, off_t length), (fd, length))
CHANGE(ftruncate64, 1, (int fd, off64_t length), (fd, length))
CHANGE(fallocate, 1, (int fd, int mode, off_t at, off_t length), (fd, mode, at, length))
CHANGE(fallocate64, 1, (int fd, int mode, off64_t at, off64_t length), (fd, mode, at, length))
CHANGE(fsync, 0, (int fd), (fd))
CHANGE(fdatasync, 0, (int fd), (fd))
CHANGE(sync_file_range, 0, (int fd, off64_t at, off64_t length, unsigned flags), (fd, at, length, flags))

int rename(const char *from, const char *to) {
    if ((is_below(from) || is_below(to)) && next(1) == FAIL) return -1;
    return REAL(rename)(from, to);
}
