/* Stands between the program and the C library: a disk that is slow, a machine that was asleep. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* INTERPOSED_SUSPENDED=PATH: once that file is there, five seconds more have passed on the clock that goes on in suspend. */
int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, at);
    const char *path = getenv("INTERPOSED_SUSPENDED");
    if (path && clock == CLOCK_BOOTTIME && access(path, F_OK) == 0) at->tv_sec += 5;
    return result;
}

/* INTERPOSED_SLOW_SYNC=SECONDS: so long does it take to sync a receipt that has no name yet. */
int fsync(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fsync");
    const char *seconds = getenv("INTERPOSED_SLOW_SYNC");
    char link[64], name[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = seconds ? readlink(link, name, sizeof name - 1) : -1;
    if (length > 4 && memcmp(name + length - 4, ".new", 4) == 0) sleep(atoi(seconds));
    return real(fd);
}
