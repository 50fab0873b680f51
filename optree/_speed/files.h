/* Files that are opened: all calls of the system in one go, without the interpreter's lock, which each call in Python would give away. */

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#define MOST_DESCRIPTORS 1024
#define STANDARD_STREAMS 3

static unsigned long opened_before; /* guarded by the interpreter's lock */

/* Open a file that stays open, as `syscalls.posix.open_kept`; -1 and errno, -2 where a standard stream is closed. */
static int
opened_in_upper_half(const char *path, int flags, mode_t mode, int wanted)
{
    for (int stream = 0; stream < STANDARD_STREAMS; stream++) {
        if (fcntl(stream, F_GETFD) < 0) {
            return -2;
        }
    }
    int fd = open(path, flags | O_CLOEXEC, mode);
    if (fd < 0) {
        return -1;
    }
    int kept = fcntl(fd, F_DUPFD_CLOEXEC, wanted);
    if (kept < 0) {
        return fd; /* no such one is free: this one does */
    }
    close(fd);
    return kept;
}

/* `open_kept(path, flags[, mode])`, whose Python function is *plain*. */
static PyObject *
open_kept(PyObject *plain, PyObject *const *args, Py_ssize_t count)
{
    struct rlimit limit;
    PyObject *name, *path = NULL;
    int flags = count > 1 ? (int)PyLong_AsLong(args[1]) : 0, mode = count == 3 ? (int)PyLong_AsLong(args[2]) : 0600, fd;
    if (count < 2 || count > 3 || PyErr_Occurred() || getrlimit(RLIMIT_NOFILE, &limit) < 0) {
        PyErr_Clear(); /* the Python function says what is wrong */
        return PyObject_Vectorcall(plain, args, (size_t)count, NULL);
    }
    if ((name = PyOS_FSPath(args[0])) == NULL) { /* a path's own function is Python, where a handler may raise */
        return NULL;
    }
    if (!PyUnicode_FSConverter(name, &path)) {
        Py_DECREF(name);
        return NULL;
    }
    unsigned long half = (limit.rlim_cur > 0 && limit.rlim_cur < MOST_DESCRIPTORS ? (unsigned long)limit.rlim_cur : MOST_DESCRIPTORS) / 2;
    unsigned long wanted = half + opened_before++ % (half > 0 ? half : 1);
    if (PySys_Audit("open", "OOi", args[0], Py_None, flags) < 0) {
        Py_DECREF(path);
        Py_DECREF(name);
        return NULL;
    }
    int error;
    do {
        Py_BEGIN_ALLOW_THREADS
        errno = 0;
        fd = opened_in_upper_half(PyBytes_AS_STRING(path), flags, (mode_t)mode, wanted > STANDARD_STREAMS ? (int)wanted : STANDARD_STREAMS);
        error = errno;
        Py_END_ALLOW_THREADS
    } while (fd == -1 && error == EINTR && PyErr_CheckSignals() == 0);
    Py_DECREF(path);
    if (fd == -1 && !PyErr_Occurred()) {
        errno = error;
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, name); /* as `os.open` names it: people read it */
    }
    Py_DECREF(name);
    if (fd == -2) {
        return PyObject_Vectorcall(plain, args, (size_t)count, NULL);
    }
    if (fd >= 0) {
        PyObject *number = PyLong_FromLong(fd);
        if (number == NULL) {
            close(fd);
        }
        return number;
    }
    return NULL;
}

static PyMethodDef OPENER = {
    "open_kept", (PyCFunction)(void (*)(void))open_kept, METH_FASTCALL, "Open a file that stays open, as the Python function does.",
};

static PyObject *
opener(PyObject *module, PyObject *plain)
{
    return PyCFunction_New(&OPENER, plain);
}
