/* Log lines, reasoning and streamed answers: `Op.log`, `Op.think`, `Op.chunk`, and what is made of their entries. */

/* Append three items to a list, or none. */
static int
append_three(PyObject *list, PyObject *first, PyObject *second, PyObject *third)
{
    Py_ssize_t size = PyList_GET_SIZE(list);
    if (PyList_Append(list, first) == 0 && PyList_Append(list, second) == 0 && PyList_Append(list, third) == 0) {
        return 0;
    }
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyList_SetSlice(list, size, PyList_GET_SIZE(list), NULL);
    PyErr_Restore(kind, error, trace);
    return -1;
}

/* As `Op.log` and `Op.think` of nothing but a text; `mark` tells which. */
static PyObject *
append_entry(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames, PyObject *mark)
{
    if (PyVectorcall_NARGS(nargsf) != 2 || kwnames != NULL || !is_a(args[0], op_type) || !PyUnicode_CheckExact(args[1])
        || !is_a(GET(args[0], op, _raw), (PyObject *)&PyList_Type)) {
        PLAINLY;
    }
    PyObject *self = args[0];
    PyObject *raw = Py_NewRef(GET(self, op, _raw));
    PyObject *time = seconds(GET(self, op, _now));
    int result = time == NULL ? -1 : append_three(raw, time, args[1], mark);
    Py_XDECREF(time);
    Py_DECREF(raw);
    if (result < 0 || (GET(self, op, _clean) == Py_True && done(call(self, text__mark)) < 0)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
log_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    return append_entry(twin, args, nargsf, kwnames, Py_None);
}

static PyObject *
think_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    return append_entry(twin, args, nargsf, kwnames, Py_True);
}

/* As `Op.chunk` behind the first. */
static PyObject *
chunk_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 2 || !is_a(args[0], op_type) || !is_a(GET(args[0], op, _streamed), (PyObject *)&PyList_Type)
        || !PyUnicode_CheckExact(args[1]) || PyUnicode_GET_LENGTH(args[1]) > MAX_TEXT) {
        PLAINLY;
    }
    return append_entry(twin, args, nargsf, kwnames, Py_False);
}

/* As `handles.read_entries`. */
static PyObject *
read_entries_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 1 || kwnames != NULL || !PyList_CheckExact(args[0])) {
        PLAINLY;
    }
    PyObject *batch = args[0];
    Py_ssize_t size = PyList_GET_SIZE(batch);
    for (Py_ssize_t place = 0; place < size; place += 3) { /* no code of others runs after this */
        PyObject *more = place + 2 < size ? PyList_GET_ITEM(batch, place + 2) : NULL;
        if (more == NULL || !PyFloat_CheckExact(PyList_GET_ITEM(batch, place))
            || (more != Py_None && !PyBool_Check(more) && !(PyTuple_CheckExact(more) && PyTuple_GET_SIZE(more) == 3))) {
            PLAINLY;
        }
    }
    PyObject *logs = PyList_New(0), *chunks = PyList_New(0), *streamed = PyList_New(0);
    int result = logs == NULL || chunks == NULL || streamed == NULL ? -1 : 0;
    for (Py_ssize_t place = 0; result == 0 && place < size; place += 3) {
        PyObject *text = PyList_GET_ITEM(batch, place + 1), *more = PyList_GET_ITEM(batch, place + 2), *entry = NULL;
        if (more == Py_False) {
            result = PyList_Append(streamed, text);
            continue;
        }
        PyObject *time = PyFloat_FromDouble(PyFloat_AS_DOUBLE(PyList_GET_ITEM(batch, place)) * 1e3);
        if (time != NULL && more == Py_True) {
            PyObject *fields[2] = {text, time};
            entry = PyObject_Vectorcall(chunk_type, fields, 2, NULL);
        } else if (time != NULL && more == Py_None) {
            PyObject *fields[3] = {time, usual_severity, text};
            entry = PyObject_Vectorcall(log_type, fields, 3, NULL);
        } else if (time != NULL) {
            PyObject *fields[5] = {time, PyTuple_GET_ITEM(more, 0), text, PyTuple_GET_ITEM(more, 1), PyTuple_GET_ITEM(more, 2)};
            entry = PyObject_Vectorcall(log_type, fields, 5, NULL);
        }
        result = entry == NULL ? -1 : PyList_Append(more == Py_True ? chunks : logs, entry);
        Py_XDECREF(entry);
        Py_XDECREF(time);
    }
    PyObject *all = result < 0 ? NULL : PyTuple_Pack(3, logs, chunks, streamed);
    Py_XDECREF(logs);
    Py_XDECREF(chunks);
    Py_XDECREF(streamed);
    return all;
}
