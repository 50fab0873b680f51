/* Refuses a program threads, forks, memory and files, once it has asked for that: loaded by LD_PRELOAD.

   Memory is refused to a thread that has called getpgrp, and only where it grows (with refuse_memory 1) or is asked for with zeros: msgspec
   0.22 ends the process where a text that it reads finds none. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

int refuse_threads, refuse_forks, refuse_memory, backwards, over_quota;

extern void *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);

static __thread int denied;
static _Atomic long all;
_Atomic int refused_allocations;

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (real == NULL) { \
        real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name); \
    }

static int
is_refused(void)
{
    int refused = denied && refuse_memory && atomic_fetch_add(&all, 1) % 23 == 22;
    return refused ? (refused_allocations++, 1) : 0;
}

void *
calloc(size_t count, size_t size)
{
    return is_refused() ? (errno = ENOMEM, NULL) : __libc_calloc(count, size);
}

void *
realloc(void *old, size_t size)
{
    return refuse_memory == 1 && is_refused() ? (errno = ENOMEM, NULL) : __libc_realloc(old, size);
}

pid_t
getpgrp(void)
{
    denied = 1;
    return 1;
}

int
pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*start)(void *), void *argument)
{
    REAL(int, "pthread_create", pthread_t *, const pthread_attr_t *, void *(*)(void *), void *)
    return refuse_threads ? EAGAIN : real(thread, how, start, argument);
}

pid_t
fork(void)
{
    REAL(pid_t, "fork", void)
    return refuse_forks ? (errno = EAGAIN, -1) : real();
}

int
clock_gettime(clockid_t clock, struct timespec *now)
{
    static _Atomic long calls;
    REAL(int, "clock_gettime", clockid_t, struct timespec *)
    int result = real(clock, now);
    if (backwards && clock == CLOCK_REALTIME && result == 0) {
        now->tv_sec -= 3600 + atomic_fetch_add(&calls, 1);
    }
    return result;
}

ssize_t
write(int fd, const void *data, size_t size)
{
    REAL(ssize_t, "write", int, const void *, size_t)
    char name[64], path[256];
    if (over_quota) {
        static const char digits[] = "0123456789";
        char *into = stpcpy(name, "/proc/self/fd/");
        if (fd >= 100) {
            *into++ = digits[fd / 100 % 10];
        }
        if (fd >= 10) {
            *into++ = digits[fd / 10 % 10];
        }
        *into++ = digits[fd % 10];
        *into = 0;
        ssize_t found = readlink(name, path, sizeof path - 1);
        path[found > 0 ? found : 0] = 0;
        if (strstr(path, "/base") != NULL) {
            errno = EDQUOT;
            return -1;
        }
    }
    return real(fd, data, size);
}
