/* Times and ids. */

/* Return a clock's time in seconds, a new float; `time.time` is asked directly. */
static PyObject *
seconds(PyObject *clock)
{
    if (clock == wall) {
        struct timespec now;
        if (clock_gettime(CLOCK_REALTIME, &now) == 0) {
            return PyFloat_FromDouble((double)((int64_t)now.tv_sec * 1000000000 + now.tv_nsec) / 1e9);
        }
    }
    return PyObject_CallNoArgs(clock);
}

/* As `Core.now_ms`. */
static PyObject *
now_ms(PyObject *core)
{
    PyObject *time = seconds(GET(core, core, now));
    if (time == NULL) {
        return NULL;
    }
    PyObject *latest = GET(core, core, _latest);
    double ms = PyFloat_AsDouble(time) * 1e3;
    Py_DECREF(time);
    double before = PyFloat_AsDouble(latest);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (ms < before) {
        return Py_NewRef(latest);
    }
    PyObject *found = PyFloat_FromDouble(ms);
    if (found != NULL) {
        SET(core, core, _latest, Py_NewRef(found));
    }
    return found;
}

/* Return the time that durations are measured from, as the module of handles has it: tests put a clock of their own there. */
static PyObject *
monotonic_now(void)
{
    PyObject *clock = PyDict_GetItemWithError(handles, text_monotonic);
    if (clock == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_NameError, "monotonic");
        }
        return NULL;
    }
    Py_INCREF(clock);
    PyObject *now = PyObject_CallNoArgs(clock);
    Py_DECREF(clock);
    return now;
}

/* Return the milliseconds since a monotonic time. */
static PyObject *
since(PyObject *start)
{
    PyObject *now = monotonic_now();
    if (now == NULL) {
        return NULL;
    }
    double seconds = PyFloat_AsDouble(now) - PyFloat_AsDouble(start);
    Py_DECREF(now);
    return PyErr_Occurred() ? NULL : PyFloat_FromDouble(seconds * 1e3);
}

/* Return `<text><between><number>`. */
static PyObject *
numbered(PyObject *text, char between, PyObject *number)
{
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (value == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (overflow || value < 0 || !PyUnicode_IS_COMPACT_ASCII(text)) {
        return PyUnicode_FromFormat("%U%c%S", text, between, number);
    }
    char digits[20];
    int first = sizeof digits;
    do {
        digits[--first] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    Py_ssize_t length = PyUnicode_GET_LENGTH(text), more = (Py_ssize_t)sizeof digits - first;
    PyObject *found = PyUnicode_New(length + 1 + more, 127);
    if (found != NULL) {
        char *into = (char *)PyUnicode_1BYTE_DATA(found);
        memcpy(into, PyUnicode_1BYTE_DATA(text), (size_t)length);
        into[length] = between;
        memcpy(into + length + 1, digits + first, (size_t)more);
    }
    return found;
}

/* Return `<txn>:<path>`. */
static PyObject *
node_id(PyObject *txn, PyObject *path)
{
    if (!PyUnicode_IS_COMPACT_ASCII(txn) || !PyUnicode_IS_COMPACT_ASCII(path)) {
        return PyUnicode_FromFormat("%U:%U", txn, path);
    }
    Py_ssize_t first = PyUnicode_GET_LENGTH(txn), second = PyUnicode_GET_LENGTH(path);
    PyObject *found = PyUnicode_New(first + 1 + second, 127);
    if (found != NULL) {
        char *into = (char *)PyUnicode_1BYTE_DATA(found);
        memcpy(into, PyUnicode_1BYTE_DATA(txn), (size_t)first);
        into[first] = ':';
        memcpy(into + first + 1, PyUnicode_1BYTE_DATA(path), (size_t)second);
    }
    return found;
}
