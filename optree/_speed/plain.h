/* Which values msgspec writes as they are: `values._is_plain`. */

static const int SHALLOW = 8; /* as values._SHALLOW */

/* As `values._names_headers`. */
static int
names_headers(PyObject *key)
{
    static const char *const word = "headers";
    Py_ssize_t size = PyUnicode_GET_LENGTH(key);
    Py_UCS4 last = size < 7 ? 0 : PyUnicode_READ_CHAR(key, size - 1);
    if (last != 's' && last != 'S') {
        return 0;
    }
    for (Py_ssize_t place = 0; place < 7; place++) {
        Py_UCS4 found = PyUnicode_READ_CHAR(key, size - 7 + place);
        if (found >= 128 || Py_TOLOWER(found) != word[place]) {
            return 0;
        }
    }
    return 1;
}

/* Tell whether there is *room* for the items of a container, and take it. */
static int
has_room(double *room, Py_ssize_t items)
{
    *room -= (double)items;
    return *room >= 0;
}

static int
is_plain(PyObject *value, long depth, double *room)
{
    if (PyUnicode_CheckExact(value)) {
        return PyUnicode_GET_LENGTH(value) <= MAX_TEXT;
    }
    if (PyLong_CheckExact(value)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow > 0) {
            (void)PyLong_AsUnsignedLongLong(value);
            overflow = PyErr_Occurred() != NULL;
            PyErr_Clear();
        }
        return !overflow && (number != -1 || !PyErr_Occurred());
    }
    if (value == Py_None || PyBool_Check(value)) {
        return 1;
    }
    if (depth > SHALLOW) {
        return 0;
    }
    if (PyDict_CheckExact(value)) {
        PyObject *key, *item;
        Py_ssize_t place = 0;
        if (!has_room(room, PyDict_GET_SIZE(value))) {
            return 0;
        }
        while (PyDict_Next(value, &place, &key, &item)) {
            if (!PyUnicode_CheckExact(key) || names_headers(key) || !is_plain(item, depth + 1, room)) {
                return 0;
            }
        }
        return 1;
    }
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
        if (!has_room(room, PySequence_Fast_GET_SIZE(value))) {
            return 0;
        }
        for (Py_ssize_t place = 0; place < PySequence_Fast_GET_SIZE(value); place++) {
            if (!is_plain(PySequence_Fast_GET_ITEM(value, place), depth + 1, room)) {
                return 0;
            }
        }
        return 1;
    }
    return PyFloat_CheckExact(value) && isfinite(PyFloat_AS_DOUBLE(value));
}

static PyObject *
is_plain_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 3 || kwnames != NULL || !PyLong_CheckExact(args[1]) || !PyList_CheckExact(args[2])
        || PyList_GET_SIZE(args[2]) != 1) {
        PLAINLY;
    }
    double room = PyFloat_AsDouble(PyList_GET_ITEM(args[2], 0));
    if (PyErr_Occurred()) {
        PyErr_Clear();
        PLAINLY;
    }
    return PyBool_FromLong(is_plain(args[0], PyLong_AsLong(args[1]), &room));
}

/* Return a value as JSON, in bytes; NULL, without an error, where that is not plain. */
static PyObject *
plain_json(PyObject *value)
{
    double room = 100000; /* as values.MAX_ITEMS */
    PyObject *body = is_plain(value, 0, &room) ? encoded(value) : NULL;
    PyObject *data = body == NULL ? NULL : PyBytes_FromStringAndSize(PyByteArray_AS_STRING(body), PyByteArray_GET_SIZE(body));
    if (body != NULL) {
        give_back(body);
    }
    PyErr_Clear();
    return data;
}

/* As `histories.is_same`; -1 where that is nested too deep for it. */
static int
is_same(PyObject *value, PyObject *copy, int depth)
{
    if (!Py_IS_TYPE(value, Py_TYPE(copy))) {
        return 0;
    }
    if (PyUnicode_CheckExact(value)) {
        return value == copy || PyUnicode_Compare(value, copy) == 0;
    }
    if (PyLong_CheckExact(value)) {
        return PyObject_RichCompareBool(value, copy, Py_EQ) == 1;
    }
    if (PyFloat_CheckExact(value)) {
        double one = PyFloat_AS_DOUBLE(value), other = PyFloat_AS_DOUBLE(copy);
        return isnan(one) ? isnan(other) : one == other && signbit(one) == signbit(other);
    }
    int same = depth > SHALLOW ? -1 : 1;
    if (PyDict_CheckExact(value)) {
        PyObject *key, *item, *known, *kept;
        Py_ssize_t place = 0, beside = 0;
        same = PyDict_GET_SIZE(value) == PyDict_GET_SIZE(copy) ? same : 0;
        while (same == 1 && PyDict_Next(value, &place, &key, &item) && PyDict_Next(copy, &beside, &known, &kept)) {
            same = PyUnicode_CheckExact(key) && PyUnicode_CheckExact(known) && is_same(key, known, depth) == 1 ? is_same(item, kept, depth + 1) : 0;
        }
        return same;
    }
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
        same = PySequence_Fast_GET_SIZE(value) == PySequence_Fast_GET_SIZE(copy) ? same : 0;
        for (Py_ssize_t place = 0; same == 1 && place < PySequence_Fast_GET_SIZE(value); place++) {
            same = is_same(PySequence_Fast_GET_ITEM(value, place), PySequence_Fast_GET_ITEM(copy, place), depth + 1);
        }
        return same;
    }
    return value == copy && (value == Py_None || PyBool_Check(value));
}

static PyObject *
is_same_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    int same = PyVectorcall_NARGS(nargsf) != 2 || kwnames != NULL ? -1 : is_same(args[0], args[1], 0);
    if (same < 0) {
        PLAINLY;
    }
    return PyBool_FromLong(same);
}

static int
is_container(PyObject *value)
{
    return PyDict_CheckExact(value) || PyList_CheckExact(value);
}

/* As `answers._bare`; NULL, without an error, where a container is not plain. */
static PyObject *
bare(PyObject *value)
{
    if (!is_container(value) || Py_EnterRecursiveCall(" in an answer")) {
        return NULL;
    }
    int is_object = PyDict_CheckExact(value);
    PyObject *made = is_object ? PyDict_Copy(value) : PyList_GetSlice(value, 0, PyList_GET_SIZE(value));
    PyObject *key, *item, *found;
    Py_ssize_t place = 0;
    while (is_object && made != NULL && PyDict_Next(value, &place, &key, &item)) {
        int result = PyUnicode_CheckExact(key) ? 0 : -1;
        if (result == 0 && item == Py_None) {
            result = PyDict_DelItem(made, key);
        } else if (result == 0 && is_container(item)) {
            result = (found = bare(item)) == NULL ? -1 : PyDict_SetItem(made, key, found);
            Py_XDECREF(found);
        }
        if (result < 0) {
            Py_CLEAR(made);
        }
    }
    for (place = 0; !is_object && made != NULL && place < PyList_GET_SIZE(made); place++) {
        item = PyList_GET_ITEM(made, place);
        if (is_container(item)) {
            if ((found = bare(item)) == NULL) {
                Py_CLEAR(made);
            } else {
                PyList_SetItem(made, place, found);
            }
        }
    }
    Py_LeaveRecursiveCall();
    return made;
}

static PyObject *
bare_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject *made = PyVectorcall_NARGS(nargsf) != 1 || kwnames != NULL ? NULL : bare(args[0]);
    if (made == NULL && !PyErr_Occurred()) {
        PLAINLY;
    }
    return made;
}
