/* A record on its way: its line, and the step that delivers it. */

/* The journal's line */

static uint32_t crc_table[8][256];

static void
make_crc_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++) {
            value = value & 1 ? 0xEDB88320u ^ (value >> 1) : value >> 1;
        }
        crc_table[0][byte] = value;
    }
    for (int row = 1; row < 8; row++) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t before = crc_table[row - 1][byte];
            crc_table[row][byte] = crc_table[0][before & 255] ^ (before >> 8);
        }
    }
}

/* CRC-32 as zlib has it, eight bytes at a time. */
static uint32_t
crc32(uint32_t seed, const unsigned char *data, Py_ssize_t size)
{
    uint32_t crc = ~seed;
    for (; size >= 8; size -= 8, data += 8) {
        crc ^= (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        crc = crc_table[7][crc & 255] ^ crc_table[6][crc >> 8 & 255] ^ crc_table[5][crc >> 16 & 255] ^ crc_table[4][crc >> 24]
            ^ crc_table[3][data[4]] ^ crc_table[2][data[5]] ^ crc_table[1][data[6]] ^ crc_table[0][data[7]];
    }
    while (size--) {
        crc = crc_table[0][(crc ^ *data++) & 255] ^ (crc >> 8);
    }
    return ~crc;
}

static PyObject *spare_buffer; /* NULL while somebody writes to it */

/* Return a record's JSON in a bytearray, as `values.dumps` does. */
static PyObject *
encoded(PyObject *record)
{
    PyObject *buffer = spare_buffer != NULL ? spare_buffer : PyByteArray_FromStringAndSize(NULL, 0);
    spare_buffer = NULL;
    PyObject *arguments[] = {record, buffer};
    PyObject *done = buffer == NULL ? NULL : PyObject_Vectorcall(encode_into, arguments, 2, NULL);
    if (done == NULL) {
        Py_CLEAR(buffer);
    }
    Py_XDECREF(done);
    return buffer;
}

static void
give_back(PyObject *buffer)
{
    if (spare_buffer == NULL && PyByteArray_GET_SIZE(buffer) < KEPT_BYTES) {
        spare_buffer = buffer;
    } else {
        Py_DECREF(buffer);
    }
}

/* As `records.line`. */
static PyObject *
line_of(PyObject *record, PyObject *seed)
{
    PyObject *body = encoded(record);
    if (body == NULL || PyByteArray_GET_SIZE(body) == 0 || PyByteArray_GET_SIZE(body) - 1 > MAX_TEXT) {
        if (body == NULL && !PyErr_ExceptionMatches(PyExc_Exception)) {
            return NULL;
        }
        PyErr_Clear();
        Py_XDECREF(body);
        return PyObject_CallFunctionObjArgs(plain_line, record, seed, NULL);
    }
    unsigned long start = PyLong_AsUnsignedLongMask(seed);
    Py_ssize_t size = PyByteArray_GET_SIZE(body) - 1;
    PyObject *line = PyErr_Occurred() ? NULL : PyBytes_FromStringAndSize(NULL, size + 17);
    if (line != NULL) {
        static const char hex[] = "0123456789abcdef";
        const char *from = PyByteArray_AS_STRING(body);
        char *into = PyBytes_AS_STRING(line);
        uint32_t crc = crc32((uint32_t)start, (const unsigned char *)from, size);
        memcpy(into, from, (size_t)size);
        into += size;
        memcpy(into, ",\"c\":\"", 6);
        for (int digit = 0; digit < 8; digit++) {
            into[6 + digit] = hex[crc >> (28 - 4 * digit) & 15];
        }
        memcpy(into + 14, "\"}\n", 3);
    }
    give_back(body);
    return line;
}

/* As `Stream.enter`: the lock, or None. */
static PyObject *
enter(PyObject *stream)
{
    PyObject *lock = GET(stream, stream, _lock);
    if (lock == NULL) {
        return PyObject_GetAttrString(stream, "_lock"); /* says what is missing */
    }
    Py_INCREF(lock);
    PyObject *got = call_with(lock, text_acquire, Py_False);
    if (got == Py_True) {
        Py_DECREF(got);
        return lock;
    }
    Py_DECREF(lock);
    if (got == NULL) {
        return NULL;
    }
    Py_DECREF(got);
    return call(stream, text__wait);
}

/* Tell whether a record may be delivered at once: nobody is at it, and nothing stands before it. */
static int
is_next(PyObject *stream, PyObject *held)
{
    return held != Py_None && GET(stream, stream, _through) == Py_True && GET(stream, stream, _delivering) == Py_False
        && PyTuple_CheckExact(GET(stream, stream, _takers)) && PyObject_Size(GET(stream, stream, _queue)) == 0;
}

/* Tell whether a taker is a journal that can be written to directly: its file is open, and its writer owns the session. */
static int
is_open_journal(PyObject *taker)
{
    if ((PyObject *)Py_TYPE(taker) != journal_type || GET(taker, journal, _unsynced) != Py_None || GET(taker, journal, _syncs) != Py_False) {
        return 0;
    }
    return PyLong_AsLong(GET(taker, journal, fd)) >= 0 && PyLong_AsLong(GET(taker, journal, ordinal)) == 0;
}

/* As `Journal.take` of one record. */
static int
take(PyObject *journal, PyObject *record)
{
    PyObject *number = PyNumber_Add(GET(journal, journal, last), one);
    if (number == NULL) {
        return -1;
    }
    put((PyObject **)((char *)record + at_n), Py_NewRef(number));
    PyObject *data = line_of(record, GET(journal, journal, _seed));
    if (data == NULL) {
        Py_DECREF(number);
        return -1;
    }
    PyObject *fd = Py_NewRef(GET(journal, journal, fd)), *function = Py_NewRef(GET(journal, journal, _write));
    PyObject *args[2] = {fd, data};
    PyObject *written = PyObject_Vectorcall(function, args, 2, NULL);
    Py_DECREF(function);
    Py_ssize_t size = written == NULL ? -1 : PyLong_AsSsize_t(written);
    Py_XDECREF(written);
    if (size < 0 && !PyErr_Occurred()) {
        size = 0; /* another system's write, which says nothing of use */
    }
    if (size >= 0 && size < PyBytes_GET_SIZE(data)) {
        PyObject *rest = PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + size, PyBytes_GET_SIZE(data) - size);
        PyObject *more[3] = {GET(journal, journal, _os), fd, rest};
        size = rest == NULL ? -1 : done(PyObject_VectorcallMethod(text_write_all, more, 3, NULL));
        Py_XDECREF(rest);
    }
    Py_DECREF(fd);
    Py_DECREF(data);
    if (size < 0) {
        Py_DECREF(number);
        if (!PyErr_ExceptionMatches(PyExc_OSError)) {
            return -1;
        }
        PyObject *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        PyErr_NormalizeException(&kind, &error, &trace);
        if (is_programs(error, trace)) {
            PyErr_Restore(kind, error, trace);
            return -1;
        }
        PyObject *batch = PyList_New(1);
        if (batch != NULL) {
            PyList_SET_ITEM(batch, 0, Py_NewRef(record));
        }
        PyObject *more[3] = {journal, error, batch};
        int result = batch == NULL ? -1 : done(PyObject_VectorcallMethod(text__poison, more, 3, NULL));
        Py_XDECREF(batch);
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        return result;
    }
    SET(journal, journal, last, number);
    SET(journal, journal, dirty, Py_NewRef(Py_True));
    return 0;
}

/* Count a fault of a taker; an interrupt goes on, and its record waits for whoever comes next. */
static int
taken_badly(PyObject *stream, PyObject *record, PyObject *batch)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (PyErr_GivenExceptionMatches(kind, PyExc_Exception) && !is_programs(error, trace)) {
        int result = done(call_with(stream, text_fault, error));
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        return result;
    }
    for (Py_ssize_t place = batch == NULL ? 0 : PyList_GET_SIZE(batch) - 1; place >= 0; place--) {
        PyObject *back = Py_NewRef(batch == NULL ? record : PyList_GET_ITEM(batch, place));
        if (done(call_with(GET(stream, stream, _queue), text_appendleft, back)) < 0) {
            PyErr_Clear();
        }
        Py_DECREF(back);
    }
    PyErr_Restore(kind, error, trace);
    return -1;
}

/* As `Wants.has` of a record that has no entries; -1 for an error. */
static int
is_wanted(PyObject *wants, PyObject *record)
{
    if (!is_a(wants, wants_type)) {
        return 1;
    }
    int found = PySet_Contains(GET(wants, wants, kinds), (PyObject *)Py_TYPE(record));
    return found == 1 && is_a(record, op_end_type) && GET(wants, wants, failures) == Py_True ? GET(record, op_end, status) != text_ok : found;
}

/* As `Stream._deliver` of one record. */
static int
deliver(PyObject *stream, PyObject *record)
{
    PyObject *takers = Py_NewRef(GET(stream, stream, _takers)), *batch = NULL; /* one for all: a journal may put a gap before the record */
    int result = 0;
    SET(stream, stream, _delivering, Py_NewRef(Py_True));
    for (Py_ssize_t place = 0; result == 0 && place < PyTuple_GET_SIZE(takers); place++) {
        PyObject *pair = PyTuple_GET_ITEM(takers, place), *taker = PyTuple_GET_ITEM(pair, 0);
        int wanted = is_wanted(PyTuple_GET_ITEM(pair, 1), record);
        if (wanted <= 0) {
            result = wanted;
        } else if (batch == NULL && is_open_journal(taker)) {
            result = take(taker, record);
        } else {
            if (batch == NULL && !PyErr_Occurred() && (batch = PyList_New(1)) != NULL) {
                PyList_SET_ITEM(batch, 0, Py_NewRef(record));
            }
            result = PyErr_Occurred() ? -1 : done(call_with(taker, text_take, batch));
        }
        if (result < 0) {
            result = taken_badly(stream, record, batch);
        }
    }
    Py_XDECREF(batch);
    SET(stream, stream, _delivering, Py_NewRef(Py_False));
    Py_DECREF(takers);
    return result;
}

/* Release the lock of a step, whatever else is under way. */
static int
release(PyObject *held, int result)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    if (done(call(held, text_release)) < 0) {
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        return -1;
    }
    PyErr_Restore(kind, error, trace);
    return result;
}

/* End a step that puts nothing more: as `Stream.leave`. */
static int
leave(PyObject *stream, PyObject *held)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    if (done(call_with(stream, text_leave, held)) < 0) {
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        return -1;
    }
    PyErr_Restore(kind, error, trace);
    return kind == NULL ? 0 : -1;
}

/* Put the last record of a step, deliver it, and end the step. */
static int
put_and_leave(PyObject *stream, PyObject *held, PyObject *record)
{
    if (!is_next(stream, held)) {
        PyErr_Clear();
        int put_there = done(call_with(GET(stream, stream, _queue), text_append, record));
        return leave(stream, held) < 0 || put_there < 0 ? -1 : 0;
    }
    int result = deliver(stream, record);
    if (result == 0 && PyObject_Size(GET(stream, stream, _queue)) != 0) { /* something within queued more */
        result = done(call(stream, text__deliver));
    }
    result = release(held, result);
    if (result == 0 && PyObject_Size(GET(stream, stream, _queue)) != 0 && GET(stream, stream, _awake) != Py_True) {
        result = done(call(stream, text__rouse));
    }
    return result;
}
