/* Loaded into a node by LD_PRELOAD: what is written or synced hangs as long as the file HANG_FILE exists, as on a disk that does not
   answer. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static void hang(void) {
    const char *file = getenv("HANG_FILE");
    while (file && access(file, F_OK) == 0) usleep(1000);
}

int fdatasync(int fd) {
    hang();
    return syscall(SYS_fdatasync, fd);
}

int fsync(int fd) {
    hang();
    return syscall(SYS_fsync, fd);
}

ssize_t pwrite64(int fd, const void *from, size_t len, off64_t at) {
    hang();
    return syscall(SYS_pwrite64, fd, from, len, at);
}
