/* Counts the file calls of a program, its threads, and the processes that it makes, and acts at one of them: loaded by LD_PRELOAD.

   FAULTS_PLAN names a file of `struct plan`, which all of them share; only calls below the directory FAULTS_ROOT count. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NOTHING, KILL_BEFORE, KILL_WITHIN, REFUSE };
enum { FILES = 4096, PATH = 240, NOTED = 16384 };

/* tests/faults/harness.py has the same. */
struct note {
    int64_t size; /* of the file, behind the call */
    int32_t pid, tid;
    char call[16], path[PATH], other[PATH];
};

struct plan {
    _Atomic uint64_t calls; /* made so far */
    uint64_t at, times;     /* the first that is acted on, and how many are refused */
    _Atomic uint64_t acted;
    uint32_t action, error;
    uint32_t noting; /* whether calls are noted */
    _Atomic uint32_t noted;
    char only[64]; /* if it is not empty: calls count if their path has this in it */
    _Atomic uint64_t asked, granted; /* syncs that began while they are held, and how many of these may end */
    _Atomic uint32_t held;           /* whether syncs are: a disk whose time a test gives, or that hangs */
    struct note notes[NOTED];
};

static struct plan *plan;
static char root[PATH];
static char paths[FILES][PATH]; /* of open files below the root */

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (real == NULL) { \
        real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name); \
    }

__attribute__((constructor)) static void
begin(void)
{
    const char *name = getenv("FAULTS_PLAN"), *under = getenv("FAULTS_ROOT");
    if (name == NULL || under == NULL) {
        return;
    }
    int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC, 0);
    if (fd >= 0) {
        void *found = mmap(NULL, sizeof(struct plan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        syscall(SYS_close, fd);
        plan = found == MAP_FAILED ? NULL : found;
        snprintf(root, sizeof root, "%s", under);
    }
}

static int
is_below(const char *path)
{
    return plan != NULL && path != NULL && strncmp(path, root, strlen(root)) == 0 && strstr(path, plan->only) != NULL;
}

static const char *
path_of(int fd)
{
    return plan != NULL && fd >= 0 && fd < FILES && paths[fd][0] ? paths[fd] : NULL;
}

/* Count a call; returns what to do with it. A call that is refused has errno set. */
static int
act(void)
{
    uint64_t number = atomic_fetch_add(&plan->calls, 1) + 1;
    if (plan->action == NOTHING || number < plan->at) {
        return NOTHING;
    }
    if (plan->action == REFUSE) {
        if (number - plan->at >= plan->times) {
            return NOTHING;
        }
        atomic_fetch_add(&plan->acted, 1);
        errno = (int)plan->error;
        return REFUSE;
    }
    if (atomic_fetch_add(&plan->acted, 1)) {
        return NOTHING; /* one is dead already */
    }
    if (plan->action == KILL_BEFORE) {
        kill(getpid(), SIGKILL);
        for (;;) {
            pause();
        }
    }
    return KILL_WITHIN;
}

static void
die(int what)
{
    if (what == KILL_WITHIN) {
        kill(getpid(), SIGKILL);
        for (;;) {
            pause();
        }
    }
}

static void
note(const char *call, const char *path, const char *other, int fd)
{
    uint32_t place;
    if (!plan->noting || (place = atomic_fetch_add(&plan->noted, 1)) >= NOTED) {
        return;
    }
    struct note *one = &plan->notes[place];
    struct stat found = {0};
    one->size = fd >= 0 && fstat(fd, &found) == 0 ? found.st_size : -1;
    one->pid = getpid();
    one->tid = (int32_t)syscall(SYS_gettid);
    snprintf(one->path, PATH, "%s", path);
    snprintf(one->other, PATH, "%s", other);
    snprintf(one->call, sizeof one->call, "%s", call);
}

/* Opening */

static int
opened(int fd, const char *path, int flags, int there)
{
    if (fd >= 0 && fd < FILES) {
        snprintf(paths[fd], PATH, "%s", path);
    }
    if (fd >= 0) {
        note((flags & O_CREAT) && !there ? "create" : "open", path, "", fd);
    }
    return fd;
}

static int
open_below(const char *path, int flags, mode_t mode)
{
    int there = syscall(SYS_faccessat, AT_FDCWD, path, F_OK) == 0, what = act();
    if (what == REFUSE) {
        return -1;
    }
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    die(what);
    return opened(fd, path, flags, there);
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        if (is_below(path)) { \
            return open_below(path, flags, mode); \
        } \
        return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

/* Calls on open files */

ssize_t
write(int fd, const void *data, size_t size)
{
    REAL(ssize_t, "write", int, const void *, size_t)
    if (path_of(fd) == NULL) {
        return real(fd, data, size);
    }
    int what = act();
    if (what == REFUSE) {
        return -1;
    }
    ssize_t done = real(fd, data, what == KILL_WITHIN ? size / 2 : size);
    die(what);
    note("write", paths[fd], "", fd);
    return done;
}

#define PWRITE(name) \
    ssize_t name(int fd, const void *data, size_t size, off_t place) \
    { \
        REAL(ssize_t, #name, int, const void *, size_t, off_t) \
        if (path_of(fd) == NULL) { \
            return real(fd, data, size, place); \
        } \
        int what = act(); \
        if (what == REFUSE) { \
            return -1; \
        } \
        ssize_t done = real(fd, data, what == KILL_WITHIN ? size / 2 : size, place); \
        die(what); \
        note("pwrite", paths[fd], "", fd); \
        return done; \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

/* Wait as long as the disk that is played takes for a sync. */
static void
take_time(void)
{
    if (plan->held) {
        for (uint64_t turn = atomic_fetch_add(&plan->asked, 1); plan->held && plan->granted <= turn;) {
            usleep(500);
        }
    }
}

#define ON_FILE(name) \
    int name(int fd) \
    { \
        REAL(int, #name, int) \
        if (path_of(fd) == NULL) { \
            return real(fd); \
        } \
        take_time(); \
        int what = act(); \
        if (what == REFUSE) { \
            return -1; \
        } \
        int result = real(fd); \
        die(what); \
        note(#name, paths[fd], "", fd); \
        return result; \
    }
ON_FILE(fsync)
ON_FILE(fdatasync)

#define TRUNCATE(name) \
    int name(int fd, off_t size) \
    { \
        REAL(int, #name, int, off_t) \
        if (path_of(fd) == NULL) { \
            return real(fd, size); \
        } \
        int what = act(); \
        if (what == REFUSE) { \
            return -1; \
        } \
        int result = real(fd, size); \
        die(what); \
        note("ftruncate", paths[fd], "", fd); \
        return result; \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

/* A close that is refused has closed all the same, as Linux has it. */
int
close(int fd)
{
    REAL(int, "close", int)
    if (path_of(fd) == NULL) {
        return real(fd);
    }
    int what = act(), error = errno;
    paths[fd][0] = 0;
    int result = real(fd);
    die(what);
    errno = what == REFUSE ? error : errno;
    return what == REFUSE ? -1 : result;
}

/* A descriptor's copy is of the same file. */
#define COPY(name) \
    int name(int fd, int command, ...) \
    { \
        REAL(int, #name, int, int, ...) \
        va_list more; \
        va_start(more, command); \
        void *argument = va_arg(more, void *); \
        va_end(more); \
        int result = real(fd, command, argument); \
        if ((command == F_DUPFD || command == F_DUPFD_CLOEXEC) && result >= 0 && result < FILES && path_of(fd) != NULL) { \
            memcpy(paths[result], paths[fd], PATH); \
        } \
        return result; \
    }
COPY(fcntl)
COPY(fcntl64)

/* Calls on names */

#define ON_NAME(name, note_it, declared, given) \
    int name declared \
    { \
        REAL(int, #name, TYPES_##name) \
        if (!is_below(path)) { \
            return real given; \
        } \
        int what = act(); \
        if (what == REFUSE) { \
            return -1; \
        } \
        int result = real given; \
        die(what); \
        if (result == 0) { \
            note_it; \
        } \
        return result; \
    }
#define TYPES_unlink const char *
#define TYPES_rmdir const char *
#define TYPES_mkdir const char *, mode_t
#define TYPES_rename const char *, const char *
#define TYPES_link const char *, const char *
ON_NAME(unlink, note("unlink", path, "", -1), (const char *path), (path))
ON_NAME(rmdir, note("rmdir", path, "", -1), (const char *path), (path))
ON_NAME(mkdir, note("mkdir", path, "", -1), (const char *path, mode_t mode), (path, mode))
ON_NAME(rename, note("rename", path, other, -1), (const char *path, const char *other), (path, other))
ON_NAME(link, note("link", path, other, -1), (const char *path, const char *other), (path, other))
