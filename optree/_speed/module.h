/* What all compiled modules of optree begin with: which Python they are for, and how they find the fields of Python's objects. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <structmember.h>

#ifdef Py_GIL_DISABLED
#error "optree's compiled parts rely on the interpreter's lock; optree runs without them"
#endif

#define CONTRACT 24 /* as in optree/_speed/__init__.py: rises whenever the two sides expect something else of each other */

/* Find where a type keeps an attribute; -1 and an error if it is not in a slot. */
static Py_ssize_t
offset_of(PyObject *type, const char *name)
{
    PyObject *descriptor = PyObject_GetAttrString(type, name);
    if (descriptor == NULL) {
        return -1;
    }
    Py_ssize_t offset = -1;
    if (Py_IS_TYPE(descriptor, &PyMemberDescr_Type) && ((PyMemberDescrObject *)descriptor)->d_member->type == T_OBJECT_EX) {
        offset = ((PyMemberDescrObject *)descriptor)->d_member->offset;
    } else {
        PyErr_Format(PyExc_TypeError, "%R keeps %s in no slot", type, name);
    }
    Py_DECREF(descriptor);
    return offset;
}

/* Return a module that says what it was made for. */
static PyObject *
made(struct PyModuleDef *definition)
{
    PyObject *module = PyModule_Create(definition);
    if (module != NULL
        && (PyModule_AddStringConstant(module, "version", OPTREE_VERSION) < 0 || PyModule_AddIntMacro(module, CONTRACT) < 0)) {
        Py_CLEAR(module);
    }
    return module;
}
