/* Times and ids. */

/* Return a clock's time in seconds, as it gives it. */
static PyObject *
seconds(PyObject *clock)
{
    if (clock == wall && PyCFunction_CheckExact(clock) && PyCFunction_GET_FLAGS(clock) == METH_NOARGS) {
        return PyCFunction_GET_FUNCTION(clock)(PyCFunction_GET_SELF(clock), NULL); /* not the system's: time-machine replaces this one */
    }
    Py_INCREF(clock); /* its code may put another in its place */
    PyObject *now = PyObject_CallNoArgs(clock);
    Py_DECREF(clock);
    return now;
}

/* As `Core.now_ms`. */
static PyObject *
now_ms(PyObject *core)
{
    PyObject *time = seconds(GET(core, core, now));
    if (time == NULL) {
        return NULL;
    }
    PyObject *found = PyNumber_Multiply(time, thousand);
    Py_DECREF(time);
    if (found == NULL) {
        return NULL;
    }
    PyObject *latest = Py_NewRef(GET(core, core, _latest));
    int before = PyFloat_CheckExact(found) && PyFloat_CheckExact(latest) ? PyFloat_AS_DOUBLE(found) < PyFloat_AS_DOUBLE(latest)
                                                                         : PyObject_RichCompareBool(found, latest, Py_LT);
    if (before != 0) {
        Py_DECREF(found);
        if (before < 0) {
            Py_CLEAR(latest);
        }
        return latest;
    }
    Py_DECREF(latest);
    SET(core, core, _latest, Py_NewRef(found));
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

/* Return the milliseconds since an op began. */
static PyObject *
since_begin(PyObject *op)
{
    PyObject *now = monotonic_now();
    if (now == NULL) {
        return NULL;
    }
    PyObject *start = Py_NewRef(GET(op, op, _t0)), *found; /* read after the clock, which may be anybody's */
    if (PyFloat_CheckExact(now) && PyFloat_CheckExact(start)) {
        found = PyFloat_FromDouble((PyFloat_AS_DOUBLE(now) - PyFloat_AS_DOUBLE(start)) * 1e3);
    } else {
        PyObject *seconds = PyNumber_Subtract(now, start);
        found = seconds == NULL ? NULL : PyNumber_Multiply(seconds, thousand);
        Py_XDECREF(seconds);
    }
    Py_DECREF(start);
    Py_DECREF(now);
    return found;
}

/* Return `<text><between><number>`. */
static PyObject *
numbered(PyObject *text, char between, PyObject *number)
{
    int overflow = 0;
    long long value = PyUnicode_CheckExact(text) && PyUnicode_IS_COMPACT_ASCII(text) ? PyLong_AsLongLongAndOverflow(number, &overflow) : -1;
    if (overflow || value < 0) {
        PyErr_Clear();
        return PyUnicode_FromFormat("%S%c%S", text, between, number);
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
    if (!PyUnicode_CheckExact(txn) || !PyUnicode_IS_COMPACT_ASCII(txn) || !PyUnicode_IS_COMPACT_ASCII(path)) { /* `numbered` made the path */
        return PyUnicode_FromFormat("%S:%U", txn, path);
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
