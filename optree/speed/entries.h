/* Log lines and reasoning: `Op.log`, `Op.think`, and what is made of their entries. */

/* As `Op.log` and `Op.think`: `rest` is what the entry's tuple ends on. */
static PyObject *
append_entry(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames, PyObject *rest)
{
    if (PyVectorcall_NARGS(nargsf) != 2 || kwnames != NULL || !is_a(args[0], op_type) || !PyUnicode_CheckExact(args[1])
        || !is_a(GET(args[0], op, _raw), (PyObject *)&PyList_Type)) {
        PLAINLY;
    }
    PyObject *self = args[0];
    PyObject *time = seconds(GET(self, op, _now));
    PyObject *entry = time == NULL ? NULL : PyTuple_New(rest == NULL ? 2 : 3);
    if (entry == NULL) {
        Py_XDECREF(time);
        return NULL;
    }
    PyTuple_SET_ITEM(entry, 0, time);
    PyTuple_SET_ITEM(entry, 1, Py_NewRef(args[1]));
    if (rest != NULL) {
        PyTuple_SET_ITEM(entry, 2, Py_NewRef(rest));
    }
    if (PyFloat_CheckExact(time)) {
        PyObject_GC_UnTrack(entry); /* it holds nothing that the collector walks */
    }
    int result = PyList_Append(GET(self, op, _raw), entry);
    Py_DECREF(entry);
    if (result < 0 || (GET(self, op, _clean) == Py_True && done(call(self, text__mark)) < 0)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
log_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    return append_entry(twin, args, nargsf, kwnames, NULL);
}

static PyObject *
think_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    return append_entry(twin, args, nargsf, kwnames, Py_None);
}

/* As `handles.read_entries`. */
static PyObject *
read_entries_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 1 || kwnames != NULL || !PyList_CheckExact(args[0])) {
        PLAINLY;
    }
    PyObject *batch = args[0];
    for (Py_ssize_t place = 0; place < PyList_GET_SIZE(batch); place++) {
        PyObject *raw = PyList_GET_ITEM(batch, place);
        Py_ssize_t parts = PyTuple_CheckExact(raw) ? PyTuple_GET_SIZE(raw) : 0;
        if ((parts != 2 && parts != 3 && parts != 5) || !PyFloat_CheckExact(PyTuple_GET_ITEM(raw, 0))) { /* no code of others runs below */
            PLAINLY;
        }
    }
    PyObject *logs = PyList_New(0), *chunks = PyList_New(0);
    int result = logs == NULL || chunks == NULL ? -1 : 0;
    for (Py_ssize_t place = 0; result == 0 && place < PyList_GET_SIZE(batch); place++) {
        PyObject *raw = PyList_GET_ITEM(batch, place);
        Py_ssize_t parts = PyTuple_GET_SIZE(raw);
        PyObject *time = PyNumber_Multiply(PyTuple_GET_ITEM(raw, 0), thousand), *entry = NULL;
        if (time != NULL && parts == 3) {
            PyObject *fields[2] = {PyTuple_GET_ITEM(raw, 1), time};
            entry = PyObject_Vectorcall(chunk_type, fields, 2, NULL);
        } else if (time != NULL) {
            PyObject *fields[5] = {time, usual_severity, PyTuple_GET_ITEM(raw, 1)};
            if (parts == 5) {
                fields[1] = PyTuple_GET_ITEM(raw, 2);
                fields[3] = PyTuple_GET_ITEM(raw, 3);
                fields[4] = PyTuple_GET_ITEM(raw, 4);
            }
            entry = PyObject_Vectorcall(log_type, fields, parts == 5 ? 5 : 3, NULL);
        }
        result = entry == NULL ? -1 : PyList_Append(parts == 3 ? chunks : logs, entry);
        Py_XDECREF(entry);
        Py_XDECREF(time);
    }
    PyObject *both = result < 0 ? NULL : PyTuple_Pack(2, logs, chunks);
    Py_XDECREF(logs);
    Py_XDECREF(chunks);
    return both;
}
