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

#define MOST_AT_ONCE 8 /* records that are delivered here in one step */

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
    int is_held = got == NULL ? -1 : PyObject_IsTrue(got); /* gevent's and eventlet's locks return 1 where a thread has them already */
    Py_XDECREF(got);
    if (is_held > 0) {
        return lock;
    }
    Py_DECREF(lock);
    return is_held < 0 ? NULL : call(stream, text__wait);
}

/* Tell whether a record may be delivered at once: nobody is at it, and nothing stands before it. */
static int
is_next(PyObject *stream, PyObject *held)
{
    return held != Py_None && GET(stream, stream, _through) == Py_True && GET(stream, stream, _delivering) == Py_False
        && PyTuple_CheckExact(GET(stream, stream, _takers)) && PyObject_Size(GET(stream, stream, _queue)) == 0;
}

/* Tell whether a taker is a journal that can be written to directly: its file is open, and it gives positions (see `at_the_end`). */
static int
is_open_journal(PyObject *taker)
{
    if ((PyObject *)Py_TYPE(taker) != journal_type || GET(taker, journal, _unsynced) != Py_None || GET(taker, journal, _syncs) != Py_False) {
        return 0;
    }
    return PyLong_AsLong(GET(taker, journal, fd)) >= 0 && PyLong_AsLong(GET(taker, journal, at_the_end)) == 0;
}

/* Return a list of records. */
static PyObject *
list_of(PyObject *const *records, Py_ssize_t count)
{
    PyObject *list = PyList_New(count);
    for (Py_ssize_t place = 0; list != NULL && place < count; place++) {
        PyList_SET_ITEM(list, place, Py_NewRef(records[place]));
    }
    return list;
}

/* Set a record's number. */
static int
number_record(PyObject *record, PyObject *number)
{
    if (is_a(record, op_begin_type) || is_a(record, op_end_type) || is_a(record, accounted_type)) {
        put((PyObject **)((char *)record + at_n), Py_NewRef(number));
        return 0;
    }
    return PyObject_SetAttr(record, text_n, number);
}

/* Return the lines of records, numbered from a journal's next; *last* becomes the number of the last, a new reference. */
static PyObject *
lines_of(PyObject *journal, PyObject *const *records, Py_ssize_t count, PyObject **last)
{
    PyObject *lines[MOST_AT_ONCE], *all = NULL, *number = Py_NewRef(GET(journal, journal, last));
    Py_ssize_t made = 0, size = 0;
    for (; made < count; made++) {
        PyObject *next = PyNumber_Add(number, one);
        Py_DECREF(number);
        if ((number = next) == NULL) {
            break;
        }
        if (number_record(records[made], number) < 0 || (lines[made] = line_of(records[made], GET(journal, journal, _seed))) == NULL) {
            break;
        }
        size += PyBytes_GET_SIZE(lines[made]);
    }
    if (made == count) {
        all = count == 1 ? Py_NewRef(lines[0]) : PyBytes_FromStringAndSize(NULL, size);
    }
    char *into = all == NULL || count == 1 ? NULL : PyBytes_AS_STRING(all);
    for (Py_ssize_t place = 0; place < made; place++) {
        if (into != NULL) {
            memcpy(into, PyBytes_AS_STRING(lines[place]), (size_t)PyBytes_GET_SIZE(lines[place]));
            into += PyBytes_GET_SIZE(lines[place]);
        }
        Py_DECREF(lines[place]);
    }
    if (all == NULL) {
        Py_CLEAR(number);
    }
    *last = number;
    return all;
}

/* Write a journal's next lines to its file; takes the reference of *data*. */
static int
write_out(PyObject *journal, PyObject *data)
{
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
    return size < 0 ? -1 : 0;
}

/* Give the file up after an error of the disk, of memory or of the stack, and keep the records; any other goes on. */
static int
poison(PyObject *journal, PyObject *const *records, Py_ssize_t count)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (is_programs(error, trace)
        || !(PyErr_GivenExceptionMatches(kind, PyExc_OSError) || PyErr_GivenExceptionMatches(kind, PyExc_MemoryError)
            || PyErr_GivenExceptionMatches(kind, PyExc_RecursionError))) {
        PyErr_Restore(kind, error, trace);
        return -1;
    }
    PyObject *batch = list_of(records, count);
    PyObject *more[3] = {journal, error, batch};
    int result = batch == NULL ? -1 : done(PyObject_VectorcallMethod(text__poison, more, 3, NULL));
    Py_XDECREF(batch);
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return result;
}

/* As `Journal.take`. */
static int
take(PyObject *journal, PyObject *const *records, Py_ssize_t count)
{
    PyObject *number, *data = lines_of(journal, records, count, &number);
    if (data == NULL || write_out(journal, data) < 0) {
        Py_XDECREF(number);
        return poison(journal, records, count);
    }
    SET(journal, journal, last, number);
    SET(journal, journal, dirty, Py_NewRef(Py_True));
    return 0;
}

/* Count a fault of a taker; an interrupt goes on. After one, or where no memory was found, its records wait for whoever comes next. */
static int
taken_badly(PyObject *stream, PyObject *const *records, Py_ssize_t count)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    int ours = PyErr_GivenExceptionMatches(kind, PyExc_Exception) && !is_programs(error, trace);
    while ((!ours || PyErr_GivenExceptionMatches(kind, PyExc_MemoryError)) && count-- > 0) {
        if (done(call_with(GET(stream, stream, _queue), text_appendleft, records[count])) < 0) {
            PyErr_Clear();
        }
    }
    if (!ours) {
        PyErr_Restore(kind, error, trace);
        return -1;
    }
    int result = done(call_with(stream, text_fault, error));
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return result;
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

/* Return those of some records that a taker wants. */
static PyObject *
wanted_of(PyObject *wants, PyObject *const *records, Py_ssize_t count)
{
    PyObject *found[MOST_AT_ONCE];
    Py_ssize_t size = 0;
    for (Py_ssize_t place = 0; place < count; place++) {
        int wanted = is_wanted(wants, records[place]);
        if (wanted < 0) {
            return NULL;
        }
        if (wanted) {
            found[size++] = records[place];
        }
    }
    return size == 0 ? Py_NewRef(no_entries) : list_of(found, size);
}

/* As `Stream._deliver` of a few records, none of which has entries. */
static int
deliver(PyObject *stream, PyObject *const *records, Py_ssize_t count)
{
    PyObject *takers = Py_NewRef(GET(stream, stream, _takers));
    int result = 0;
    SET(stream, stream, _delivering, Py_NewRef(Py_True));
    for (Py_ssize_t place = 0; result == 0 && place < PyTuple_GET_SIZE(takers); place++) {
        PyObject *pair = PyTuple_GET_ITEM(takers, place), *taker = PyTuple_GET_ITEM(pair, 0);
        if (is_open_journal(taker)) {
            result = take(taker, records, count);
        } else {
            PyObject *batch = PyErr_Occurred() ? NULL : wanted_of(PyTuple_GET_ITEM(pair, 1), records, count);
            result = batch == NULL ? -1 : batch == no_entries ? 0 : done(call_with(taker, text_take, batch));
            Py_XDECREF(batch);
        }
        if (result < 0) {
            result = taken_badly(stream, records, count);
        }
    }
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

/* Deliver a step's records and end it; nothing else is queued, and nobody delivers. */
static int
deliver_and_leave(PyObject *stream, PyObject *held, PyObject *const *records, Py_ssize_t count)
{
    int result = deliver(stream, records, count);
    if (result == 0 && PyObject_Size(GET(stream, stream, _queue)) != 0) { /* something within queued more */
        result = done(call(stream, text__deliver));
    }
    result = release(held, result);
    if (result == 0 && PyObject_Size(GET(stream, stream, _queue)) != 0 && GET(stream, stream, _awake) != Py_True) {
        result = done(call(stream, text__rouse));
    }
    return result;
}

/* Tell whether a step is within another one of this thread's that delivers what it puts. */
static int
is_within(PyObject *stream, PyObject *held)
{
    return held != Py_None && GET(stream, stream, _delivering) == Py_True;
}

/* Put the last records of a step, deliver them, and end the step. */
static int
put_and_leave(PyObject *stream, PyObject *held, PyObject *const *records, Py_ssize_t count)
{
    if (is_next(stream, held)) {
        return deliver_and_leave(stream, held, records, count);
    }
    PyErr_Clear();
    int put_there = 0;
    for (Py_ssize_t place = 0; put_there == 0 && place < count; place++) {
        put_there = done(call_with(GET(stream, stream, _queue), text_append, records[place]));
    }
    return (is_within(stream, held) ? release(held, put_there) : leave(stream, held)) < 0 || put_there < 0 ? -1 : 0;
}

/* As `Stream.leave` after a step that put a few records. */
static PyObject *
leave_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 2 || kwnames != NULL || !is_a(args[0], stream_type) || args[1] == Py_None
        || GET(args[0], stream, _through) != Py_True) {
        PLAINLY;
    }
    if (is_within(args[0], args[1])) {
        return release(args[1], 0) < 0 ? NULL : Py_NewRef(Py_None);
    }
    if (GET(args[0], stream, _delivering) != Py_False || !is_tuple(GET(args[0], stream, _takers))) {
        PLAINLY;
    }
    PyObject *stream = args[0], *held = args[1], *queue = Py_NewRef(GET(stream, stream, _queue)), *records[MOST_AT_ONCE];
    Py_ssize_t count = PySequence_Size(queue), taken = 0;
    int few = count > 0 && count <= MOST_AT_ONCE;
    for (Py_ssize_t place = 0; few && place < count; place++) {
        PyObject *record = PySequence_GetItem(queue, place);
        few = record != NULL && !is_a(record, entries_type);
        Py_XDECREF(record);
    }
    if (!few) {
        PyErr_Clear();
        Py_DECREF(queue);
        PLAINLY;
    }
    while (taken < count && (records[taken] = call(queue, text_popleft)) != NULL) {
        taken++;
    }
    Py_DECREF(queue);
    PyErr_Clear(); /* another thread was quicker: it delivers the rest */
    int result = deliver_and_leave(stream, held, records, taken);
    while (taken-- > 0) {
        Py_DECREF(records[taken]);
    }
    if (result < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* As `Stream.together`: what the steps within it put is delivered at its end, unless log lines too are to be delivered at once. */
static PyObject *
together_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 2 || kwnames != NULL || !is_a(args[0], stream_type) || GET(args[0], stream, _through) != Py_True
        || PyUnicode_CompareWithASCIIString(GET(args[0], stream, _write), "all") == 0) {
        PLAINLY;
    }
    PyObject *stream = Py_NewRef(args[0]), *held = enter(stream), *result = NULL;
    if (held != NULL && (held == Py_None || GET(stream, stream, _delivering) != Py_False)) { /* each step is by itself, or within another */
        result = PyObject_CallNoArgs(args[1]);
        if (held != Py_None && release(held, 0) < 0) {
            Py_CLEAR(result);
        }
    } else if (held != NULL) {
        SET(stream, stream, _delivering, Py_NewRef(Py_True));
        result = PyObject_CallNoArgs(args[1]);
        SET(stream, stream, _delivering, Py_NewRef(Py_False));
        if (leave(stream, held) < 0) {
            Py_CLEAR(result);
        }
    }
    Py_XDECREF(held);
    Py_DECREF(stream);
    return result;
}
