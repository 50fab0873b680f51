/* The inner loops of OTLP's bytes, in C: log lines as events, and attributes that are numbers or texts met before.
 *
 * Each function returns None for anything else, and the Python one, which defines the bytes, does it all. Fields of msgspec Structs are
 * read at the offsets that their descriptors name. Without this module everything goes the Python way.
 */

#include "module.h"

/* What `prepare` is given. */

static PyObject *log_type, *unset;
static PyObject *fronts_of_severities; /* what stands between time and message, by severity */
static PyObject *message_key;          /* the field of the message's key */
static Py_ssize_t at_timestamp, at_severity, at_message, at_direction, at_details;

#define GET(object, name) (*(PyObject **)((char *)(object) + at_##name))

/* Bytes that grow */

typedef struct {
    unsigned char *data;
    size_t size, room;
    unsigned char first[4096];
} Bytes;

static void
start(Bytes *bytes)
{
    bytes->data = bytes->first;
    bytes->size = 0;
    bytes->room = sizeof bytes->first;
}

/* Make room for so many bytes more; false if there is none. */
static int
more(Bytes *bytes, size_t size)
{
    if (bytes->size + size <= bytes->room) {
        return 1;
    }
    size_t room = 2 * (bytes->size + size);
    unsigned char *data = bytes->data == bytes->first ? PyMem_Malloc(room) : PyMem_Realloc(bytes->data, room);
    if (data == NULL) {
        return 0;
    }
    if (bytes->data == bytes->first) {
        memcpy(data, bytes->first, bytes->size);
    }
    bytes->data = data;
    bytes->room = room;
    return 1;
}

static void
put(Bytes *bytes, const void *data, size_t size)
{
    memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

static void
put_varint(Bytes *bytes, uint64_t number)
{
    for (; number >= 128; number >>= 7) {
        bytes->data[bytes->size++] = (unsigned char)(number & 127) | 128;
    }
    bytes->data[bytes->size++] = (unsigned char)number;
}

static void
put_fixed64(Bytes *bytes, uint64_t number)
{
    for (int place = 0; place < 8; place++, number >>= 8) {
        bytes->data[bytes->size++] = (unsigned char)number;
    }
}

static size_t
varint_size(uint64_t number)
{
    size_t size = 1;
    for (; number >= 128; number >>= 7) {
        size++;
    }
    return size;
}

/* Return what was put as bytes if all went well, None if the Python way is to do it, and free the room. */
static PyObject *
finish(Bytes *bytes, int plain)
{
    PyObject *found = NULL;
    if (!PyErr_Occurred()) {
        found = plain ? PyBytes_FromStringAndSize((char *)bytes->data, (Py_ssize_t)bytes->size) : Py_NewRef(Py_None);
    }
    if (bytes->data != bytes->first) {
        PyMem_Free(bytes->data);
    }
    return found;
}

/* Log lines */

/* Put one line's event; false if it is none that has just a text. */
static int
put_line(Bytes *bytes, PyObject *entry, Py_ssize_t limit)
{
    static const size_t most = 64; /* tags, lengths and time, without the texts */
    if ((PyObject *)Py_TYPE(entry) != log_type || GET(entry, direction) != Py_None || GET(entry, details) != unset
        || !PyFloat_CheckExact(GET(entry, timestamp)) || !PyUnicode_CheckExact(GET(entry, message))) {
        return 0;
    }
    double time = PyFloat_AS_DOUBLE(GET(entry, timestamp)) * 1e6;
    PyObject *front = PyDict_GetItemWithError(fronts_of_severities, GET(entry, severity)), *text = GET(entry, message), *encoded = NULL;
    if (front == NULL || !(time >= 0.0 && time < 9.2e18)) {
        return 0;
    }
    const char *data = PyUnicode_IS_COMPACT_ASCII(text) ? (const char *)PyUnicode_1BYTE_DATA(text) : NULL;
    Py_ssize_t size = PyUnicode_GET_LENGTH(text);
    if (data == NULL) {
        if ((encoded = PyUnicode_AsUTF8String(text)) == NULL) {
            PyErr_Clear(); /* lone surrogates */
            return 0;
        }
        data = PyBytes_AS_STRING(encoded);
        size = PyBytes_GET_SIZE(encoded);
    }
    size_t front_size = (size_t)PyBytes_GET_SIZE(front), key_size = (size_t)PyBytes_GET_SIZE(message_key);
    int fits = (limit == 0 || size <= limit) && more(bytes, most + front_size + key_size + (size_t)size);
    if (fits) {
        size_t value = 1 + varint_size((uint64_t)size) + (size_t)size;       /* AnyValue: string */
        size_t pair = key_size + 1 + varint_size(value) + value;             /* KeyValue */
        size_t event = 9 + front_size + 1 + varint_size(pair) + pair;
        bytes->data[bytes->size++] = 0x5a; /* Span.events */
        put_varint(bytes, event);
        bytes->data[bytes->size++] = 0x09; /* Event.time_unix_nano */
        put_fixed64(bytes, (uint64_t)time);
        put(bytes, PyBytes_AS_STRING(front), front_size);
        bytes->data[bytes->size++] = 0x1a; /* Event.attributes */
        put_varint(bytes, pair);
        put(bytes, PyBytes_AS_STRING(message_key), key_size);
        bytes->data[bytes->size++] = 0x12; /* KeyValue.value */
        put_varint(bytes, value);
        bytes->data[bytes->size++] = 0x0a; /* AnyValue.string_value */
        put_varint(bytes, (uint64_t)size);
        put(bytes, data, (size_t)size);
    }
    Py_XDECREF(encoded);
    return fits;
}

static PyObject *
log_lines(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Py_ssize_t limit = given == 2 ? PyLong_AsSsize_t(args[1]) : -1;
    if (limit < 0 || !PyTuple_CheckExact(args[0]) || log_type == NULL) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    Bytes bytes;
    start(&bytes);
    int plain = 1;
    for (Py_ssize_t place = 0; plain && place < PyTuple_GET_SIZE(args[0]); place++) {
        plain = put_line(&bytes, PyTuple_GET_ITEM(args[0], place), limit);
    }
    return finish(&bytes, plain);
}

/* Attributes */

/* Put a number behind what stands before numbers of its size. */
static int
put_number(Bytes *bytes, PyObject *fronts, PyObject *value)
{
    unsigned char item[16];
    size_t size;
    if (PyFloat_CheckExact(value)) {
        double number = PyFloat_AS_DOUBLE(value);
        uint64_t bits;
        if (!isfinite(number)) {
            return 0;
        }
        memcpy(&bits, &number, sizeof bits);
        item[0] = 0x21;
        for (size = 1; size < 9; size++, bits >>= 8) {
            item[size] = (unsigned char)bits;
        }
    } else {
        int overflow = 0;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow || number < 0) {
            return 0;
        }
        uint64_t rest = (uint64_t)number;
        item[0] = 0x18;
        for (size = 1; rest >= 128; rest >>= 7) {
            item[size++] = (unsigned char)(rest & 127) | 128;
        }
        item[size++] = (unsigned char)rest;
    }
    PyObject *front = PyList_CheckExact(fronts) && (Py_ssize_t)size < PyList_GET_SIZE(fronts) ? PyList_GET_ITEM(fronts, size) : NULL;
    if (front == NULL || !PyBytes_CheckExact(front) || !more(bytes, (size_t)PyBytes_GET_SIZE(front) + size)) {
        return 0;
    }
    put(bytes, PyBytes_AS_STRING(front), (size_t)PyBytes_GET_SIZE(front));
    put(bytes, item, size);
    return 1;
}

/* Put one attribute; false if it is neither a number under a known key nor a text that is known. */
static int
put_attribute(Bytes *bytes, PyObject *pair, PyObject *kept, PyObject *fronts)
{
    if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2 || !PyUnicode_CheckExact(PyTuple_GET_ITEM(pair, 0))) {
        return 0;
    }
    PyObject *key = PyTuple_GET_ITEM(pair, 0), *value = PyTuple_GET_ITEM(pair, 1);
    if (PyLong_CheckExact(value) || PyFloat_CheckExact(value)) {
        PyObject *known = PyDict_GetItemWithError(fronts, key);
        return known != NULL && put_number(bytes, known, value);
    }
    PyObject *known = PyUnicode_CheckExact(value) ? PyDict_GetItemWithError(kept, pair) : NULL;
    if (known == NULL || !PyBytes_CheckExact(known) || !more(bytes, (size_t)PyBytes_GET_SIZE(known))) {
        return 0;
    }
    put(bytes, PyBytes_AS_STRING(known), (size_t)PyBytes_GET_SIZE(known));
    return 1;
}

static PyObject *
attributes(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 3 || !PyList_CheckExact(args[0]) || !PyDict_CheckExact(args[1]) || !PyDict_CheckExact(args[2])) {
        Py_RETURN_NONE;
    }
    Bytes bytes;
    start(&bytes);
    int plain = 1;
    for (Py_ssize_t place = 0; plain && place < PyList_GET_SIZE(args[0]); place++) {
        plain = put_attribute(&bytes, PyList_GET_ITEM(args[0], place), args[1], args[2]);
    }
    return finish(&bytes, plain);
}

/* Set-up */

static PyObject *
prepare(PyObject *module, PyObject *args)
{
    PyObject *type, *constant, *fronts, *key;
    if (!PyArg_ParseTuple(args, "OOO!S:prepare", &type, &constant, &PyDict_Type, &fronts, &key)) {
        return NULL;
    }
    PyObject *severity, *front;
    for (Py_ssize_t place = 0; PyDict_Next(fronts, &place, &severity, &front);) {
        if (!PyBytes_CheckExact(front)) {
            PyErr_SetString(PyExc_TypeError, "what stands before a message is bytes");
            return NULL;
        }
    }
    if ((at_timestamp = offset_of(type, "timestamp")) < 0 || (at_severity = offset_of(type, "severity")) < 0
        || (at_message = offset_of(type, "message")) < 0 || (at_direction = offset_of(type, "direction")) < 0
        || (at_details = offset_of(type, "details")) < 0) {
        return NULL;
    }
    Py_XSETREF(unset, Py_NewRef(constant));
    Py_XSETREF(fronts_of_severities, Py_NewRef(fronts));
    Py_XSETREF(message_key, Py_NewRef(key));
    Py_XSETREF(log_type, Py_NewRef(type));
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"prepare", prepare, METH_VARARGS, "prepare(LogEntry, UNSET, fronts, key): take what log lines are and what stands before their texts."},
    {"log_lines", (PyCFunction)(void (*)(void))log_lines, METH_FASTCALL, "log_lines(logs, limit): the events of log lines, or None."},
    {"attributes", (PyCFunction)(void (*)(void))attributes, METH_FASTCALL, "attributes(pairs, kept, fronts): the attributes, or None."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, .m_name = "optree_otel._quick", .m_size = -1, .m_methods = METHODS};

PyMODINIT_FUNC
PyInit__quick(void)
{
    return made(&MODULE);
}
