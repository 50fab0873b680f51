/* Counts the bytecodes, calls and returns of some files' functions, as `Injection._at` does, and calls a Python function at one of them. */

#include <Python.h>
#include <string.h>

enum { FILES = 8 };

static const char *files[FILES]; /* what their names begin with */
static long long place, seen;
static PyObject *hit;
static void *before; /* where the last event was; the frame may be gone */
static int before_at;

static int
is_ours(PyFrameObject *frame)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    const char *name = PyUnicode_AsUTF8(code->co_filename);
    int found = 0;
    for (int i = 0; name != NULL && !found && files[i] != NULL; i++) {
        found = strncmp(name, files[i], strlen(files[i])) == 0;
    }
    Py_DECREF(code);
    return name == NULL ? -1 : found;
}

static int
stop_at(PyFrameObject *frame, const char *event)
{
    PyObject *told = PyObject_CallFunction(hit, "Osii", (PyObject *)frame, event, before == frame, before_at);
    Py_XDECREF(told);
    if (told != NULL) { /* it raises at a later one */
        return 0;
    }
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyEval_SetTrace(NULL, NULL);
    PyErr_Restore(kind, value, trace);
    return -1;
}

static int
at(PyObject *Py_UNUSED(self), PyFrameObject *frame, int what, PyObject *Py_UNUSED(arg))
{
    const char *event = what == PyTrace_OPCODE ? "opcode" : what == PyTrace_CALL ? "call" : what == PyTrace_RETURN ? "return" : NULL;
    if (event == NULL) {
        return 0;
    }
    if (what != PyTrace_OPCODE) { /* which come of those functions alone that were told to */
        int ours = is_ours(frame);
        if (ours <= 0) {
            return ours;
        }
    }
    if (what == PyTrace_CALL && (PyObject_SetAttrString((PyObject *)frame, "f_trace_opcodes", Py_True) < 0
                                 || PyObject_SetAttrString((PyObject *)frame, "f_trace_lines", Py_False) < 0)) {
        return -1;
    }
    if (++seen >= place && stop_at(frame, event) < 0) {
        return -1;
    }
    before = frame;
    before_at = PyFrame_GetLasti(frame);
    return 0;
}

/* Begin; `names` ends with NULL. */
void
begin(PyObject *function, long long number, const char **names)
{
    for (int i = 0; i < FILES && (i == 0 || files[i - 1] != NULL); i++) {
        files[i] = names[i];
    }
    hit = function;
    place = number;
    seen = 0;
    before = NULL;
    PyEval_SetTrace(at, NULL);
}

/* End, and return how many there were, up to that one. */
long long
end(void)
{
    PyEval_SetTrace(NULL, NULL);
    return seen;
}
