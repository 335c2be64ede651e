/* A slow disk, a clock that is set and a machine that sleeps, for the program alone: in any other that it is loaded into
 * it does nothing.
 *   SOAK_FSYNC_MS    how long a sync takes longer
 *   SOAK_RECEIPT_MS  how long the first sync of a process takes longer besides
 *   SOAK_STEP_MS     by how much the wall clock is off, from
 *   SOAK_STEP_AT_MS  this moment of the monotonic clock on
 *   SOAK_SLEPT_AT_MS the moment of the monotonic clock from which on the machine has slept for 5 s */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int (*real_clock)(clockid_t, struct timespec *);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static long long sync_ms, receipt_ms, step_ms, step_at_ms, slept_at_ms;

static long long number(const char *name) {
    const char *text = getenv(name);
    return text ? atoll(text) : 0;
}

__attribute__((constructor)) static void begin(void) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    real_clock = dlsym(RTLD_NEXT, "clock_gettime");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    path[length > 0 ? length : 0] = 0;
    const char *name = strrchr(path, '/');
    if (!name || strcmp(name, "/xtask")) return;
    sync_ms = number("SOAK_FSYNC_MS");
    receipt_ms = number("SOAK_RECEIPT_MS");
    step_ms = number("SOAK_STEP_MS");
    step_at_ms = number("SOAK_STEP_AT_MS");
    slept_at_ms = number("SOAK_SLEPT_AT_MS");
}

static void wait_ms(long long ms) {
    struct timespec length = {ms / 1000, ms % 1000 * 1000000};
    while (ms > 0 && nanosleep(&length, &length) != 0) {}
}

int fsync(int fd) {
    wait_ms(sync_ms + receipt_ms);
    receipt_ms = 0;
    return real_fsync(fd);
}

int fdatasync(int fd) { wait_ms(sync_ms); return real_fdatasync(fd); }

static int is_past(long long ms) {
    struct timespec mono;
    real_clock(CLOCK_MONOTONIC, &mono);
    return mono.tv_sec * 1000LL + mono.tv_nsec / 1000000 >= ms;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (!real_clock) real_clock = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real_clock(clock, at);
    if (code == 0 && clock == CLOCK_REALTIME && step_ms != 0 && is_past(step_at_ms)) {
        long long ns = at->tv_nsec + step_ms % 1000 * 1000000;
        at->tv_sec += step_ms / 1000 + (ns < 0 ? -1 : ns / 1000000000);
        at->tv_nsec = ns < 0 ? ns + 1000000000 : ns % 1000000000;
    }
    if (code == 0 && clock == CLOCK_BOOTTIME && slept_at_ms != 0 && is_past(slept_at_ms)) at->tv_sec += 5;
    return code;
}
