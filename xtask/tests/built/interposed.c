/* Stands between the program and the C library: a disk that is slow, a machine that was asleep,
   a start that takes long, a wait or a thread that is refused, files without mode bits,
   a list of children with gaps, words that find no room. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Signals cut no second short. */
static void pass(int seconds) {
    struct timespec left = {seconds, 0};
    while (nanosleep(&left, &left) != 0) {}
}

static int synced; /* seconds that a sync took without their passing */

/* INTERPOSED_SUSPENDED=PATH: once that file is there, five seconds more have passed on the clock that goes on in suspend.
   INTERPOSED_STANDSTILL=PATH: once that file is there, an hour more has passed on every clock but the wall's. */
int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, at);
    const char *path = getenv("INTERPOSED_SUSPENDED");
    if (path && clock == CLOCK_BOOTTIME && access(path, F_OK) == 0) at->tv_sec += 5;
    at->tv_sec += synced;
    path = getenv("INTERPOSED_STANDSTILL");
    if (path && clock != CLOCK_REALTIME && access(path, F_OK) == 0) at->tv_sec += 3600;
    return result;
}

/* INTERPOSED_SLOW_SYNC=SECONDS: so long does it take to sync a receipt that has no name yet, by every clock; a second of it
   passes.
   INTERPOSED_NO_SYNC=PATH: that folder cannot be synced. */
int fsync(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fsync");
    const char *slow = getenv("INTERPOSED_SLOW_SYNC"), *no = getenv("INTERPOSED_NO_SYNC");
    char link[64], name[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = slow || no ? readlink(link, name, sizeof name - 1) : -1;
    if (length < 4) return real(fd);
    name[length] = 0;
    if (slow && strcmp(name + length - 4, ".new") == 0) {
        pass(1);
        synced = atoi(slow) - 1;
    }
    if (no && strcmp(name, no) == 0) {
        errno = EIO;
        return -1;
    }
    return real(fd);
}

/* Whether this is the second process of a run. */
static int is_runner(void) {
    char line[4096];
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t length = file ? fread(line, 1, sizeof line, file) : 0;
    if (file) fclose(file);
    return memmem(line, length, "internal-runner", 15) != NULL;
}

/* INTERPOSED_SLOW_START=SECONDS: so long does it take until the second process of a run does anything. */
__attribute__((constructor)) static void start(void) {
    const char *seconds = getenv("INTERPOSED_SLOW_START");
    if (seconds && is_runner()) pass(atoi(seconds));
}

/* INTERPOSED_NO_POLL=PATH: once that file is there, the second process of a run cannot wait for anything. */
int poll(struct pollfd *fds, nfds_t count, int timeout) {
    static int (*real)(struct pollfd *, nfds_t, int);
    if (!real) real = dlsym(RTLD_NEXT, "poll");
    const char *path = getenv("INTERPOSED_NO_POLL");
    if (path && access(path, F_OK) == 0 && is_runner()) {
        errno = ENOMEM;
        return -1;
    }
    return real(fds, count, timeout);
}

/* INTERPOSED_SLOW_SPAWN=NAME: a second passes between the start of a program of that name and the moment at which that is known. */
int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                 char *const arguments[], char *const environment[]) {
    static int (*real)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[],
                       char *const[]);
    if (!real) real = dlsym(RTLD_NEXT, "posix_spawnp");
    int result = real(pid, file, actions, attributes, arguments, environment);
    const char *program = getenv("INTERPOSED_SLOW_SPAWN");
    const char *name = strrchr(file, '/');
    if (program && name && strcmp(name + 1, program) == 0) pass(1);
    return result;
}

/* INTERPOSED_NO_THREADS=ANYTHING: no thread can be had. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*routine)(void *), void *argument) {
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!real) real = dlsym(RTLD_NEXT, "pthread_create");
    return getenv("INTERPOSED_NO_THREADS") ? EAGAIN : real(thread, attributes, routine, argument);
}

/* INTERPOSED_NO_CHILDREN=PATH: until that file is there, the kernel's lists of children skip all of them.
   INTERPOSED_UNREADABLE=PART: what has that part in its path cannot be opened to read.
   INTERPOSED_HELD=PART, INTERPOSED_GO=PATH: opening what has that part in its path to write makes PATH.held and waits until
   PATH is there. */
int open64(const char *path, int flags, ...) {
    static int (*real)(const char *, int, ...);
    if (!real) real = dlsym(RTLD_NEXT, "open64");
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    const char *there = getenv("INTERPOSED_NO_CHILDREN");
    const char *part = getenv("INTERPOSED_UNREADABLE");
    if (part && (flags & O_ACCMODE) == O_RDONLY && strstr(path, part)) {
        errno = EIO;
        return -1;
    }
    const char *held = getenv("INTERPOSED_HELD"), *go = getenv("INTERPOSED_GO");
    if (held && go && (flags & O_ACCMODE) != O_RDONLY && strstr(path, held)) {
        char sign[4096];
        snprintf(sign, sizeof sign, "%s.held", go);
        close(real(sign, O_WRONLY | O_CREAT, 0600));
        while (access(go, F_OK) != 0) usleep(10000);
    }
    size_t length = strlen(path);
    int skips = there && length > 9 && strcmp(path + length - 9, "/children") == 0 && access(there, F_OK) != 0;
    return real(skips ? "/dev/null" : path, flags, mode);
}

/* INTERPOSED_NO_MODES=ANYTHING: open files keep the mode that they have, as on a file system without mode bits. */
int fchmod(int fd, mode_t mode) {
    static int (*real)(int, mode_t);
    if (!real) real = dlsym(RTLD_NEXT, "fchmod");
    return getenv("INTERPOSED_NO_MODES") ? 0 : real(fd, mode);
}

/* INTERPOSED_LOST=WORD: there is no room for what has that word and goes to stdout. */
ssize_t write(int fd, const void *bytes, size_t length) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    const char *word = getenv("INTERPOSED_LOST");
    if (word && fd == 1 && memmem(bytes, length, word, strlen(word))) {
        errno = ENOSPC;
        return -1;
    }
    return real(fd, bytes, length);
}

/* INTERPOSED_UNHEARD=WORD: what one process of a run tells another is lost where it begins with that word. */
ssize_t send(int fd, const void *bytes, size_t length, int flags) {
    static ssize_t (*real)(int, const void *, size_t, int);
    if (!real) real = dlsym(RTLD_NEXT, "send");
    const char *word = getenv("INTERPOSED_UNHEARD");
    if (word && length > strlen(word) + 2 && memcmp((const char *)bytes + 2, word, strlen(word)) == 0) return length;
    return real(fd, bytes, length, flags);
}
