/* Questions to the kernel about the processes of this host (layer L0). */
#ifndef HETCCL_PROCESS_H
#define HETCCL_PROCESS_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static inline int64_t hetccl_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* /proc could not be asked: this process has no file descriptor left, say. */
#define HETCCL_TICKS_UNKNOWN UINT64_MAX

/* Start time of a process in clock ticks, 0 if there is none or it is a zombie: kill(pid, 0) cannot tell a zombie.
 * Source: proc(5), /proc/pid/stat; the fields are counted from the last ')' because the command name may hold
 * anything. */
static inline uint64_t hetccl_process_start_ticks(int64_t pid) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT || errno == ESRCH ? 0 : HETCCL_TICKS_UNKNOWN;
    ssize_t nbytes = read(fd, text, sizeof text - 1);
    close(fd);
    if (nbytes <= 0) return 0;
    text[nbytes] = 0;
    char *field = strrchr(text, ')');
    if (!field || strlen(field) < 3 || field[2] == 'Z' || field[2] == 'X') return 0;
    for (int i = 2; i < 22 && field; i++) field = strchr(field + 1, ' ');
    return field ? strtoull(field + 1, NULL, 10) : 0;
}

#endif
