/* The hot path once more, in C: what nearly every call of `Op.log`, `think`, `chunk`, `account`, `end` and `SessionTreeBuilder.begin_op` does.
 *
 * The Python functions define what happens; each function here does the same for the plain case and hands everything else (other types,
 * keywords, faults, watchers, damage) to its Python twin, before it has changed anything. Both work on the same objects: fields of
 * msgspec Structs and of classes with slots are read at the offsets that their descriptors name. Without this module, or with
 * OPTREE_PURE=1, all goes the Python way; the tests hold both against each other.
 */

#include "module.h"
#include "objects.h"
#include "values.h"

/* Twins: what stands in a class in place of its function, and hands over to it. */

typedef struct {
    PyObject_HEAD
    vectorcallfunc run;
    vectorcallfunc quick;
    PyObject *const *instead;
    PyObject *plain;
    PyObject *weak;
} Twin;

/* What a quick function returns to leave a call to the Python function, before it has changed anything. */
#define NOT_PLAIN ((PyObject *)&TwinType)
#define PLAINLY return NOT_PLAIN

static PyTypeObject TwinType;

/* Return the core of a builder if it is one of ours, a new reference; NULL, without an error, if not. */
static PyObject *
core_of(PyObject *builder)
{
    PyObject *core = builder == NULL ? NULL : PyObject_GetAttr(builder, text_core);
    if (core == NULL) {
        PyErr_Clear();
        return NULL;
    }
    if (!is_a(core, core_type) || !is_a(GET(core, core, stream), stream_type)) {
        Py_CLEAR(core);
    }
    return core;
}

/* Count a call that found the stack full. */
static void
count_overflow(void)
{
    PyObject *count = PyObject_GetAttr(faults, text_stack), *more = count == NULL ? NULL : PyNumber_Add(count, one);
    if (more == NULL || PyObject_SetAttr(faults, text_stack, more) < 0) {
        PyErr_Clear();
    }
    Py_XDECREF(count);
    Py_XDECREF(more);
}

#include "stream.h"
#include "plain.h"
#include "entries.h"
#include "accounting.h"
#include "ops.h"
#include "calls.h"
#include "present.h"
#include "files.h"

/* Count what a quick function raised of its own, as the Python function's guard does; returns what it returns then. */
static PyObject *
guard(PyObject *self, PyObject *instead)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    int overflow = PyErr_GivenExceptionMatches(kind, PyExc_RecursionError);
    if (!overflow) {
        PyErr_NormalizeException(&kind, &error, &trace);
        if (trace != NULL && PyException_SetTraceback(error, trace) < 0) {
            PyErr_Clear();
        }
        PyObject *counted = PyObject_CallFunctionObjArgs(fault, self, error, NULL);
        if (counted == NULL && (overflow = PyErr_ExceptionMatches(PyExc_RecursionError) || PyErr_ExceptionMatches(PyExc_MemoryError))) {
            PyErr_Clear();
        } else if (counted == NULL) {
            instead = NULL;
        }
        Py_XDECREF(counted);
    }
    if (overflow) {
        count_overflow();
    }
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return Py_XNewRef(instead);
}

/* Call a twin: its quick function, or else the Python function. */
static PyObject *
run(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject *result = ((Twin *)twin)->quick(twin, args, nargsf, kwnames);
    if (result == NOT_PLAIN) {
        return PyObject_Vectorcall(((Twin *)twin)->plain, args, nargsf, kwnames);
    }
    if (result == NULL && ((Twin *)twin)->instead != NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
        return guard(args[0], *((Twin *)twin)->instead);
    }
    return result;
}

/* The type of twins */

static void
twin_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    if (((Twin *)self)->weak != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    Py_CLEAR(((Twin *)self)->plain);
    PyObject_GC_Del(self);
}

static int
twin_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Twin *)self)->plain);
    return 0;
}

static PyObject *
twin_get(PyObject *self, PyObject *object, PyObject *type)
{
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

static PyObject *
twin_getattr(PyObject *self, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        found = PyObject_GetAttr(((Twin *)self)->plain, name); /* its name, docstring, annotations */
    }
    return found;
}

/* Docstring and module are the Python function's, and not those that the type would give. */
static PyObject *
twin_told(PyObject *self, void *name)
{
    return PyObject_GetAttrString(((Twin *)self)->plain, name);
}

/* Others may note something on a function. */
static int
twin_setattr(PyObject *self, PyObject *name, PyObject *value)
{
    return PyObject_SetAttr(((Twin *)self)->plain, name, value);
}

static PyObject *
twin_repr(PyObject *self)
{
    return PyObject_Repr(((Twin *)self)->plain);
}

/* As a function: by its name. */
static PyObject *
twin_reduce(PyObject *self, PyObject *unused)
{
    return PyObject_GetAttrString(((Twin *)self)->plain, "__qualname__");
}

static PyMethodDef twin_methods[] = {
    {"__reduce__", twin_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef twin_told_of[] = {
    {"__class__", twin_told, NULL, NULL, "__class__"}, /* or `unittest.mock` with autospec does not take it for a method */
    {"__doc__", twin_told, NULL, NULL, "__doc__"},
    {"__module__", twin_told, NULL, NULL, "__module__"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef twin_members[] = {
    {"__wrapped__", T_OBJECT_EX, offsetof(Twin, plain), READONLY, "the Python function"},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject TwinType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "optree._speed._twins.Twin",
    .tp_basicsize = sizeof(Twin),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Twin, run),
    .tp_weaklistoffset = offsetof(Twin, weak),
    .tp_setattro = twin_setattr,
    .tp_repr = twin_repr,
    .tp_methods = twin_methods,
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = twin_dealloc,
    .tp_traverse = twin_traverse,
    .tp_descr_get = twin_get,
    .tp_getattro = twin_getattr,
    .tp_members = twin_members,
    .tp_getset = twin_told_of,
};

static const struct {
    const char *name;
    vectorcallfunc quick;
    PyObject *const *instead; /* what it returns if it fails; NULL for what is not behind the guard */
} TWINS[] = {
    {"log", log_twin, &nothing}, {"think", think_twin, &nothing}, {"chunk", chunk_twin, &nothing}, {"account", account_twin, &nothing},
    {"end", end_twin, &nothing}, {"begin_op", begin_op_twin, &unrecorded}, {"read_entries", read_entries_twin, NULL},
    {"leave", leave_twin, NULL}, {"together", together_twin, NULL}, {"_is_plain", is_plain_twin, NULL}, {"is_same", is_same_twin, NULL}, {"_bare", bare_twin, NULL}, {"_begun", begun_twin, NULL},
    {"__get__", exit_twin, NULL}, {"__enter__", enter_twin, NULL}, {"begin", begin_twin, NULL}, {"finish", finish_twin, NULL},
};

static PyObject *
twin(PyObject *module, PyObject *args)
{
    const char *name;
    PyObject *plain;
    if (!PyArg_ParseTuple(args, "sO:twin", &name, &plain)) {
        return NULL;
    }
    for (size_t which = 0; which < sizeof TWINS / sizeof *TWINS; which++) {
        if (strcmp(TWINS[which].name, name) == 0) {
            Twin *made = PyObject_GC_New(Twin, &TwinType);
            if (made != NULL) {
                made->run = run;
                made->quick = TWINS[which].quick;
                made->instead = TWINS[which].instead;
                made->plain = Py_NewRef(plain);
                made->weak = NULL;
                PyObject_GC_Track(made);
            }
            return (PyObject *)made;
        }
    }
    PyErr_Format(PyExc_LookupError, "no twin of %s", name);
    return NULL;
}

#define TAKE(name) \
    { \
        PyObject *found = PyDict_GetItemString(given, #name); \
        if (found == NULL) { \
            PyErr_SetString(PyExc_LookupError, #name); \
            return NULL; \
        } \
        put(&name, Py_NewRef(found)); \
    }

#define TAKE_FIELD(type, name) \
    if ((at_##type##_##name = offset_of(type##_type, #name)) < 0) { \
        goto missing; \
    }

/* Tell whether this is the interpreter whose objects are known here: of several in a process, only the first gets twins. */
static int
is_at_home(void)
{
    static PyInterpreterState *home;
    if (home == NULL) {
        home = PyInterpreterState_Get();
    }
    if (home != PyInterpreterState_Get()) {
        PyErr_SetString(PyExc_TypeError, "only a process's first interpreter has twins");
        return 0;
    }
    return 1;
}

static PyObject *
prepare(PyObject *module, PyObject *given)
{
    if (!is_at_home()) {
        return NULL;
    }
    if (!PyDict_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "prepare(names)");
        return NULL;
    }
    OBJECTS(TAKE)
    FIELDS(TAKE_FIELD)
    PyObject *const records[3] = {op_begin_type, op_end_type, accounted_type};
    for (int which = 0; which < 3; which++) {
        Py_ssize_t offset = offset_of(records[which], "n");
        if (offset < 0) {
            return NULL;
        }
        if (which > 0 && offset != at_n) {
            PyErr_SetString(PyExc_TypeError, "records keep n in different places");
            return NULL;
        }
        at_n = offset;
    }
    Py_RETURN_NONE;
missing:
    return NULL;
}

static PyObject *
prepare_journal(PyObject *module, PyObject *given)
{
    if (!is_at_home()) {
        return NULL;
    }
    put(&journal_type, Py_NewRef(given));
    JOURNAL_FIELDS(TAKE_FIELD)
    Py_RETURN_NONE;
missing:
    Py_CLEAR(journal_type); /* nothing is a journal then */
    return NULL;
}

static PyObject *
prepare_calls(PyObject *module, PyObject *given)
{
    if (!is_at_home()) {
        return NULL;
    }
    if (!PyDict_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "prepare_calls(names)");
        return NULL;
    }
    CALL_OBJECTS(TAKE)
    CALL_FIELDS(TAKE_FIELD)
    Py_RETURN_NONE;
missing:
    Py_CLEAR(scope_type); /* no call is plain then */
    return NULL;
}

static PyObject *
untracked(PyObject *module, PyObject *list)
{
    if (PyList_CheckExact(list)) {
        PyObject_GC_UnTrack(list);
    }
    return Py_NewRef(list);
}

static PyMethodDef METHODS[] = {
    {"untracked", untracked, METH_O, "Return a list, which the collector looks at no more."},
    {"prepare", prepare, METH_O, "Take the types and functions of the Python side; raises where they are not as they must be."},
    {"prepare_journal", prepare_journal, METH_O, "Take the type of journals; raises where it is not as it must be."},
    {"prepare_calls", prepare_calls, METH_O, "Take the types and functions of decorated calls; raises where they are not as they must be."},
    {"presence", presence, METH_VARARGS, "Return a function that tells which of given texts stand in a text."},
    {"opener", opener, METH_O, "Return a function that opens a file that stays open, given the Python function that does."},
    {"twin", twin, METH_VARARGS, "Return the quick twin of a method, given its name and itself."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, .m_name = "optree._speed._twins", .m_size = -1, .m_methods = METHODS};

PyMODINIT_FUNC
PyInit__twins(void)
{
    make_crc_table();
    nothing = Py_None;
#define INTERN(name) \
    if ((text_##name = PyUnicode_InternFromString(#name)) == NULL) { \
        return NULL; \
    }
    TEXTS(INTERN)
#undef INTERN
    if ((zero = PyLong_FromLong(0)) == NULL || (one = PyLong_FromLong(1)) == NULL || (thousand = PyFloat_FromDouble(1e3)) == NULL
        || (no_entries = PyTuple_New(0)) == NULL || (usual_severity = PyUnicode_InternFromString("VRB")) == NULL
        || PyType_Ready(&TwinType) < 0 || PyType_Ready(&PieceType) < 0 || PyType_Ready(&ExitType) < 0
        || (names_of_beginning = PyTuple_Pack(4, text_turn, text_parent, text_attributes, text_request)) == NULL) {
        return NULL;
    }
    return made(&MODULE);
}
