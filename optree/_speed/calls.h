/* Blocks and calls of decorators: `with optree.llm()` and `with optree.tool()`, and the calls of a function that `@optree.tool` decorates.
 *
 * They are plain within an open turn of a session. What is not plain behind their begin (a failure, a long argument, a node that could not
 * be begun) goes to functions of `holding` and `wrapping` that do the same.
 */

/* What `prepare_calls` is given, and the fields of Python's objects. */

#define CALL_OBJECTS(X) \
    X(op_scope_type) X(scope_type) X(handle_type) X(names_type) X(held_type) X(current) X(runtime) X(context) X(bound_arguments) \
    X(not_entered) X(take_result) X(left_call) X(block_not_entered) X(left_block) X(left_method) X(count_fault)

#define CALL_FIELDS(X) \
    X(scope, session) X(scope, turn) X(scope, op) X(scope, before) X(scope, holder) X(scope, piece) X(scope, budget) X(handle, builder) X(held, scope) X(held, holder) X(held, thread)

#define DECLARE(name) static PyObject *name;
CALL_OBJECTS(DECLARE)
#undef DECLARE
#define DECLARE(type, name) static Py_ssize_t at_##type##_##name;
CALL_FIELDS(DECLARE)
#undef DECLARE

static PyObject *names_of_beginning; /* of the arguments of `begin_op` that are given by name */

/* One call. Its `__exit__` is an object that nothing but the `with` statement holds: where that is gone, the call is over. */
typedef struct {
    PyObject_HEAD
    PyObject *instrument, *names, *args, *kwargs, *before;
    PyObject *scope;  /* NULL where nothing was begun */
    PyObject *exiting; /* what `__exit__` gives, once */
    PyObject *holder; /* the weak reference to it */
    int open;         /* its node ends when the program has read what it returned */
} Piece;

/* What a `with` statement has as `__exit__`: of a piece; or of an instrument, with the Python object that has the scope it entered. */
typedef struct {
    PyObject_HEAD
    PyObject *piece; /* or the instrument */
    PyObject *held;  /* NULL of a piece */
    PyObject *weak;
} Exit;

static PyTypeObject PieceType, ExitType;

/* Tell whether a scope is plain: its `with` statement lasts, and it is in no generator's piece. */
static int
is_plain_scope(PyObject *scope)
{
    if (!is_a(scope, scope_type) || GET(scope, scope, piece) != Py_None || !is_a(GET(scope, scope, session), handle_type)
        || !is_a(GET(scope, scope, turn), turn_type)) {
        return 0;
    }
    PyObject *holder = GET(scope, scope, holder);
    if (holder == NULL || holder == Py_None) {
        return holder != NULL;
    }
    PyObject *held = PyObject_CallNoArgs(holder);
    Py_XDECREF(held);
    return held != NULL && held != Py_None;
}

/* Tell whether a session is open for a node that came without one: it ends with that. */
static int
any_detached(void)
{
    PyObject *detached = PyObject_GetAttr(runtime, text__detached);
    int none = detached != NULL && PyDict_CheckExact(detached) && PyDict_GET_SIZE(detached) == 0;
    Py_XDECREF(detached);
    return !none;
}

/* Tell whether an op that begins where *before* is would be plain; it may leave an error where not. */
static int
is_plain_place(PyObject *before)
{
    PyObject *core = NULL;
    int plain = scope_type != NULL && !any_detached() && is_plain_scope(before)
        && (core = core_of(GET(GET(before, scope, session), handle, builder))) != NULL && GET(core, core, redacted) == Py_False;
    Py_XDECREF(core);
    return plain;
}

/* Return the scope that a plain op would begin in here, a new reference; NULL, perhaps with an error, where it would not be plain. */
static PyObject *
plain_place(void)
{
    PyObject *before = NULL;
    if (scope_type == NULL || PyContextVar_Get(current, NULL, &before) < 0 || before == NULL || !is_plain_place(before)) {
        Py_CLEAR(before);
    }
    return before;
}

/* Return what kind of ops an instrument begins, borrowed; NULL, perhaps with an error, of none for ops. */
static PyObject *
kind_of(PyObject *instrument)
{
    PyObject *kind = is_a(instrument, op_scope_type) ? PyObject_GetAttr(instrument, text__kind) : NULL;
    Py_XDECREF(kind);
    return kind == text_tool || kind == text_llm ? kind : NULL;
}

/* As `context.enter`. */
static int
enter_scope(PyObject *scope)
{
    PyObject *follower = PyDict_GetItemWithError(context, text_follower);
    if (follower != Py_None) {
        PyObject *enter = follower == NULL ? NULL : PyDict_GetItemWithError(context, text_enter);
        return enter == NULL ? -1 : done(PyObject_CallOneArg(enter, scope));
    }
    return done(PyContextVar_Set(current, scope));
}

/* As `context.leave`, of a scope that is in place. */
static int
leave_scope(PyObject *scope)
{
    PyObject *follower = PyDict_GetItemWithError(context, text_follower);
    if (follower != Py_None) {
        PyObject *leave = follower == NULL ? NULL : PyDict_GetItemWithError(context, text_leave);
        return leave == NULL ? -1 : done(PyObject_CallOneArg(leave, scope));
    }
    int result = done(PyContextVar_Set(current, GET(scope, scope, before)));
    SET(scope, scope, holder, Py_NewRef(Py_None));
    return result;
}

/* Return an `__exit__`, and in *holder* the weak reference to it. */
static PyObject *
new_exit(PyObject *piece, PyObject *held, PyObject **holder)
{
    Exit *made = PyObject_GC_New(Exit, &ExitType);
    if (made == NULL) {
        return NULL;
    }
    made->piece = Py_NewRef(piece);
    made->held = Py_XNewRef(held);
    made->weak = NULL;
    PyObject_GC_Track(made);
    *holder = PyWeakref_NewRef((PyObject *)made, NULL);
    if (*holder == NULL) {
        Py_CLEAR(made);
    }
    return (PyObject *)made;
}

/* As `wrapping._begun`. */
static PyObject *
begun_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject *before = NULL;
    Piece *made = NULL;
    if (PyVectorcall_NARGS(nargsf) == 4 && kwnames == NULL && kind_of(args[0]) == text_tool && is_a(args[1], names_type)
        && is_tuple(args[2]) && PyDict_CheckExact(args[3]) && (before = plain_place()) != NULL) {
        made = PyObject_GC_New(Piece, &PieceType);
    }
    if (made == NULL) {
        Py_XDECREF(before);
        PyErr_Clear();
        PLAINLY;
    }
    made->instrument = Py_NewRef(args[0]);
    made->names = Py_NewRef(args[1]);
    made->args = Py_NewRef(args[2]);
    made->kwargs = Py_NewRef(args[3]);
    made->before = before;
    made->scope = made->holder = NULL;
    made->open = 0;
    made->exiting = new_exit((PyObject *)made, NULL, &made->holder);
    PyObject_GC_Track(made);
    if (made->exiting == NULL) {
        Py_DECREF(made);
        PyErr_Clear();
        PLAINLY;
    }
    return (PyObject *)made;
}

/* As `wrapping.bound_arguments`; what is not plain is left to it. */
static PyObject *
bound(Piece *piece)
{
    PyObject *positional = PyTuple_GET_ITEM(piece->names, 0), *defaults = PyTuple_GET_ITEM(piece->names, 2), *args = piece->args;
    Py_ssize_t given = PyTuple_GET_SIZE(args);
    if (!PyList_CheckExact(positional) || PyList_GET_SIZE(positional) < given || PyObject_Size(defaults) != 0) {
        PyErr_Clear();
        PyObject *all[3] = {piece->names, args, piece->kwargs};
        return PyObject_Vectorcall(bound_arguments, all, 3, NULL);
    }
    PyObject *found = PyDict_New();
    for (Py_ssize_t place = 0; found != NULL && place < given; place++) {
        PyObject *name = PyList_GET_ITEM(positional, place);
        if (place == 0
            && (PyUnicode_CompareWithASCIIString(name, "self") == 0 || PyUnicode_CompareWithASCIIString(name, "cls") == 0)) {
            continue;
        }
        if (PyDict_SetItem(found, name, PyTuple_GET_ITEM(args, place)) < 0) {
            Py_CLEAR(found);
        }
    }
    if (found != NULL && PyDict_GET_SIZE(piece->kwargs) != 0 && PyDict_Update(found, piece->kwargs) < 0) {
        Py_CLEAR(found);
    }
    return found;
}

/* Begin the op of an instrument where *before* is, with the *arguments* of a call, if it is one; returns its handle. */
static PyObject *
begin_at(PyObject *instrument, PyObject *before, PyObject *arguments)
{
    PyObject *kind = kind_of(instrument), *name = PyObject_GetAttr(instrument, text__name);
    PyObject *block = PyObject_GetAttr(instrument, text__block), *handle = NULL;
    if (block == Py_None) {
        Py_SETREF(block, PyObject_GetAttr(instrument, text__attributes));
    }
    int is_empty = block == NULL ? -1 : PyObject_Not(block), is_named = name == NULL ? -1 : PyObject_IsTrue(name);
    int histories = arguments == Py_None ? 1 : PyDict_Contains(arguments, text_messages);
    if (kind != NULL && is_named >= 0 && is_empty >= 0 && histories >= 0) {
        PyObject *given[] = {
            GET(GET(before, scope, session), handle, builder), kind, is_named ? name : kind, GET(before, scope, turn),
            GET(before, scope, op), is_empty ? Py_None : block, histories ? Py_None : arguments,
        };
        handle = PyObject_VectorcallMethod(text_begin_op, given, 3, names_of_beginning);
    }
    Py_XDECREF(block);
    Py_XDECREF(name);
    return handle;
}

/* Return the scope of an op that was begun where *before* is. */
static PyObject *
scope_of(PyObject *instrument, PyObject *before, PyObject *handle, PyObject *holder)
{
    PyObject *turn = PyObject_GetAttr(handle, text_turn), *finish = turn == NULL ? NULL : PyObject_GetAttr(instrument, text_finish), *scope = NULL;
    if (finish != NULL) {
        PyObject *fields[8] = {GET(before, scope, session), turn, handle, before, holder, finish, Py_None, GET(before, scope, budget)};
        scope = PyObject_Vectorcall(scope_type, fields, 8, NULL);
    }
    Py_XDECREF(turn);
    Py_XDECREF(finish);
    return scope;
}

/* As `OpScope.begin`. */
static PyObject *
begin_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t given = PyVectorcall_NARGS(nargsf);
    PyObject *kind = given >= 2 && given <= 4 && kwnames == NULL && scope_type != NULL ? kind_of(args[0]) : NULL;
    PyObject *arguments = kind == text_tool && given == 4 ? args[3] : Py_None;
    if (kind == NULL || !(arguments == Py_None || PyDict_CheckExact(arguments)) || !is_plain_place(args[1])
        || (kind == text_llm && GET(args[1], scope, budget) != Py_None)) {
        PyErr_Clear();
        PLAINLY;
    }
    PyObject *handle = begin_at(args[0], args[1], arguments), *scope = NULL;
    if (handle != NULL) {
        scope = scope_of(args[0], args[1], handle, given > 2 ? args[2] : Py_None);
        Py_DECREF(handle);
    }
    return scope; /* without it the op is ended by who undoes this begin */
}

/* Begin a call's op, and put its scope in place. */
static int
enter_call(Piece *piece, PyObject **handle)
{
    PyObject *arguments = bound(piece);
    if (arguments != NULL && (*handle = begin_at(piece->instrument, piece->before, arguments)) != NULL) {
        Py_XSETREF(piece->scope, scope_of(piece->instrument, piece->before, *handle, piece->holder));
    }
    int result = piece->scope == NULL ? -1 : 0;
    if (result == 0 && (!is_a(*handle, op_type) || GET(GET(*handle, op, bare), op_node, request) == Py_None)) {
        PyObject *given[3] = {piece->instrument, *handle, arguments};
        result = done(PyObject_VectorcallMethod(text_called, given, 3, NULL));
    }
    Py_XDECREF(arguments);
    return result < 0 ? -1 : enter_scope(piece->scope);
}

/* Return what a Python function gave that stands in for C's work; where the stack had no room even for that, it is counted, and *instead* it is. */
static PyObject *
unless_full(PyObject *result, PyObject *instead)
{
    if (result == NULL && PyErr_ExceptionMatches(PyExc_RecursionError)) {
        PyErr_Clear();
        count_overflow();
        return Py_NewRef(instead);
    }
    return result;
}

/* Take the error that is set, with its traceback. */
static PyObject *
fetched(void)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace != NULL && PyException_SetTraceback(error, trace) < 0) {
        PyErr_Clear();
    }
    Py_XDECREF(kind);
    Py_XDECREF(trace);
    return error;
}

/* Return what such a function gave; a fault of ours in it is counted, and *instead* it is. */
static PyObject *
unless_ours(PyObject *result, PyObject *instead)
{
    result = unless_full(result, instead);
    if (result == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyObject *error = fetched();
        result = done(PyObject_CallOneArg(count_fault, error)) < 0 ? NULL : Py_NewRef(instead);
        Py_DECREF(error);
    }
    return result;
}

/* As the Python piece's `__enter__`. */
static PyObject *
piece_enter(PyObject *self, PyObject *unused)
{
    Piece *piece = (Piece *)self;
    PyObject *handle = NULL;
    if (enter_call(piece, &handle) < 0) {
        PyObject *error = fetched(), *scope = piece->scope == NULL ? Py_None : piece->scope;
        PyObject *given[5] = {piece->instrument, scope, handle == NULL ? Py_None : handle, piece->before, error};
        int result = done(unless_full(PyObject_Vectorcall(not_entered, given, 5, NULL), Py_None));
        Py_XDECREF(handle);
        Py_DECREF(error);
        return result < 0 ? NULL : Py_NewRef(self);
    }
    Py_DECREF(handle);
    return Py_NewRef(self);
}

/* Give an op what its function returned, to be written with its end; 0 where that is not plain. */
static int
keep_result(PyObject *op, PyObject *value)
{
    PyObject *data = GET(GET(op, op, bare), op_node, response) == Py_None ? plain_json(value) : NULL, *raw = NULL, *size = NULL, *payload = NULL;
    if (data != NULL && PyBytes_GET_SIZE(data) <= MAX_TEXT && (raw = PyObject_CallOneArg(raw_type, data)) != NULL
        && (size = PyLong_FromSsize_t(PyUnicode_CheckExact(value) ? PyUnicode_GET_LENGTH(value) : PyBytes_GET_SIZE(data))) != NULL) {
        PyObject *fields[4] = {raw, Py_None, size, Py_None};
        payload = PyObject_Vectorcall(payload_type, fields, 4, NULL);
    }
    PyErr_Clear();
    Py_XDECREF(data);
    Py_XDECREF(raw);
    Py_XDECREF(size);
    if (payload == NULL) {
        return 0;
    }
    SET(op, op, _returned, payload);
    return 1;
}

/* As the Python piece's `result`. */
static PyObject *
piece_result(PyObject *self, PyObject *value)
{
    Piece *piece = (Piece *)self;
    PyObject *op = piece->scope == NULL ? NULL : GET(piece->scope, scope, op);
    if (op != NULL && !(is_a(op, op_type) && is_a(GET(op, op, bare), op_node_type) && keep_result(op, value))) {
        PyObject *given[3] = {piece->instrument, piece->scope, value};
        PyObject *open = unless_ours(PyObject_Vectorcall(take_result, given, 3, NULL), Py_False);
        if (open == NULL) {
            return NULL;
        }
        piece->open = open == Py_True;
        Py_DECREF(open);
    }
    return Py_NewRef(value);
}

/* Tell whether an op ends by `Op.end` alone, if it went well; it may leave an error where not. */
static int
ends_plainly(PyObject *op)
{
    PyObject *core = NULL;
    int plain = is_a(op, op_type) && GET(op, op, spending) == Py_None && GET(op, op, call) == Py_None && !any_detached() && (core = core_of(GET(op, op, builder))) != NULL
        && GET(core, core, epoch) == zero; /* not forked since: the op may be the parent's */
    Py_XDECREF(core);
    return plain;
}

/* End an op that went well, and leave its scope; 0 where that is not plain, -1 for an error. */
static int
end_plainly(PyObject *scope)
{
    PyObject *op = GET(scope, scope, op), *here = NULL;
    int plain = ends_plainly(op) && PyContextVar_Get(current, NULL, &here) == 0 && here == scope;
    Py_XDECREF(here);
    if (!plain) {
        PyErr_Clear();
        return 0;
    }
    return done(call_with(op, text_end, text_ok)) < 0 || leave_scope(scope) < 0 ? -1 : 1;
}

/* As `_Instrument.finish` of one for ops. */
static PyObject *
finish_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 4 || kwnames != NULL || args[2] != text_ok || args[3] != Py_None || scope_type == NULL
        || kind_of(args[0]) == NULL || !ends_plainly(args[1])) {
        PyErr_Clear();
        PLAINLY;
    }
    return call_with(args[1], text_end, text_ok);
}

/* As the Python piece's `leave`, behind its guard: with the exception that a `with` statement gives its `__exit__`. */
static PyObject *
leave_piece(Piece *piece, PyObject *error)
{
    if (piece->scope == NULL) {
        Py_RETURN_NONE;
    }
    int result = error == Py_None && !piece->open ? end_plainly(piece->scope) : 0;
    if (result > 0) {
        Py_RETURN_NONE;
    }
    PyObject *flaw = result < 0 ? fetched() : Py_NewRef(Py_None);
    PyObject *given[5] = {piece->instrument, piece->scope, piece->open ? Py_True : Py_False, error, flaw};
    PyObject *left = unless_ours(PyObject_Vectorcall(left_call, given, 5, NULL), Py_None);
    Py_DECREF(flaw);
    return left;
}

/* As `holding.left` of a block; what is not plain goes to `holding.left_block`. */
static PyObject *
leave_block(PyObject *instrument, PyObject *held, PyObject *error)
{
    PyObject *scope = GET(held, held, scope);
    int result = error == Py_None && is_a(scope, scope_type) ? end_plainly(scope) : 0;
    if (result > 0) {
        Py_RETURN_NONE;
    }
    PyObject *flaw = result < 0 ? fetched() : Py_NewRef(Py_None), *given[4] = {instrument, held, error, flaw};
    PyObject *left = unless_ours(PyObject_Vectorcall(left_block, given, 4, NULL), Py_None);
    Py_DECREF(flaw);
    return left;
}

static PyObject *
exit_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_GET_SIZE(args) != 3) {
        PyErr_SetString(PyExc_TypeError, "__exit__(kind, error, traceback)");
        return NULL;
    }
    Exit *exiting = (Exit *)self;
    PyObject *error = PyTuple_GET_ITEM(args, 1);
    return exiting->held == NULL ? leave_piece((Piece *)exiting->piece, error) : leave_block(exiting->piece, exiting->held, error);
}

/* Blocks */

/* As `Exit.__get__` of an instrument for ops. */
static PyObject *
exit_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject *left = NULL, *held = NULL, *exiting = NULL, *holder = NULL;
    if (scope_type != NULL && PyVectorcall_NARGS(nargsf) == 3 && kwnames == NULL && kind_of(args[1]) != NULL
        && (left = PyObject_GetAttr(args[0], text__left)) == left_method) {
        held = ((PyTypeObject *)held_type)->tp_alloc((PyTypeObject *)held_type, 0);
    }
    if (held != NULL && (exiting = new_exit(args[1], held, &holder)) != NULL) {
        SET(held, held, scope, Py_NewRef(Py_None));
        SET(held, held, holder, holder);
        SET(held, held, thread, PyLong_FromUnsignedLong(PyThread_get_thread_ident()));
        if (GET(held, held, thread) == NULL || PyObject_SetAttr(args[1], text__held, held) < 0) {
            Py_CLEAR(exiting);
        }
    }
    Py_XDECREF(left);
    Py_XDECREF(held);
    if (exiting == NULL) {
        PyErr_Clear();
        PLAINLY;
    }
    return exiting;
}

/* Return what the `with` statement has that enters an instrument now, a new reference; NULL, perhaps with an error, if it has nothing. */
static PyObject *
held_of(PyObject *instrument)
{
    PyObject *held = PyObject_GetAttr(instrument, text__held), *alive = NULL;
    if (is_a(held, held_type) && GET(held, held, thread) != NULL && GET(held, held, holder) != NULL && GET(held, held, holder) != Py_None
        && PyLong_AsUnsignedLong(GET(held, held, thread)) == PyThread_get_thread_ident()) {
        alive = PyObject_CallNoArgs(GET(held, held, holder));
    }
    if (alive == NULL || alive == Py_None) {
        Py_CLEAR(held);
    }
    Py_XDECREF(alive);
    return held;
}

/* Tell whether optree is switched on. */
static int
is_enabled(void)
{
    PyObject *config = PyObject_GetAttr(runtime, text_config), *enabled = config == NULL ? NULL : PyObject_GetAttr(config, text_enabled);
    Py_XDECREF(config);
    Py_XDECREF(enabled);
    return enabled == Py_True;
}

/* As `_Instrument.__enter__` of one for ops. */
static PyObject *
enter_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject *kind = NULL, *held = NULL, *before = NULL;
    if (scope_type == NULL || PyVectorcall_NARGS(nargsf) != 1 || kwnames != NULL || (kind = kind_of(args[0])) == NULL || !is_enabled()
        || (held = held_of(args[0])) == NULL || (before = plain_place()) == NULL
        || (kind == text_llm && GET(before, scope, budget) != Py_None) || PyObject_SetAttr(args[0], text__held, Py_None) < 0) {
        PyErr_Clear();
        Py_XDECREF(held);
        Py_XDECREF(before);
        PLAINLY;
    }
    PyObject *handle = begin_at(args[0], before, Py_None), *scope = NULL, *result = NULL;
    if (handle != NULL && (scope = scope_of(args[0], before, handle, GET(held, held, holder))) != NULL) {
        SET(held, held, scope, Py_NewRef(scope));
        if (enter_scope(scope) == 0) {
            result = Py_NewRef(handle);
        }
    }
    if (result == NULL) {
        PyObject *error = fetched();
        PyObject *given[5] = {args[0], scope == NULL ? Py_None : scope, handle == NULL ? Py_None : handle, before, error};
        result = unless_full(PyObject_Vectorcall(block_not_entered, given, 5, NULL), unrecorded);
        Py_DECREF(error);
    }
    Py_XDECREF(scope);
    Py_XDECREF(handle);
    Py_DECREF(held);
    Py_DECREF(before);
    return result;
}

/* What stands in a `with` statement as `__exit__`: there is one of each piece. */
static PyObject *
piece_exit(PyObject *self, void *unused)
{
    PyObject *found = ((Piece *)self)->exiting;
    ((Piece *)self)->exiting = NULL;
    if (found == NULL) {
        PyErr_SetString(PyExc_AttributeError, "__exit__");
    }
    return found;
}

/* Their types */

static int
exit_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Exit *)self)->piece);
    Py_VISIT(((Exit *)self)->held);
    return 0;
}

static int
exit_clear(PyObject *self)
{
    Py_CLEAR(((Exit *)self)->piece);
    Py_CLEAR(((Exit *)self)->held);
    return 0;
}

static void
exit_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    if (((Exit *)self)->weak != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    exit_clear(self);
    PyObject_GC_Del(self);
}

static int
piece_traverse(PyObject *self, visitproc visit, void *arg)
{
    Piece *piece = (Piece *)self;
    Py_VISIT(piece->instrument);
    Py_VISIT(piece->names);
    Py_VISIT(piece->args);
    Py_VISIT(piece->kwargs);
    Py_VISIT(piece->before);
    Py_VISIT(piece->scope);
    Py_VISIT(piece->exiting);
    Py_VISIT(piece->holder);
    return 0;
}

static int
piece_clear(PyObject *self)
{
    Piece *piece = (Piece *)self;
    Py_CLEAR(piece->instrument);
    Py_CLEAR(piece->names);
    Py_CLEAR(piece->args);
    Py_CLEAR(piece->kwargs);
    Py_CLEAR(piece->before);
    Py_CLEAR(piece->scope);
    Py_CLEAR(piece->exiting);
    Py_CLEAR(piece->holder);
    return 0;
}

static void
piece_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    piece_clear(self);
    PyObject_GC_Del(self);
}

static PyMethodDef piece_methods[] = {
    {"__enter__", piece_enter, METH_NOARGS, NULL},
    {"result", piece_result, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef piece_properties[] = {
    {"__exit__", piece_exit, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject ExitType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "optree._speed._twins.Exit",
    .tp_basicsize = sizeof(Exit),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_weaklistoffset = offsetof(Exit, weak),
    .tp_call = exit_call,
    .tp_dealloc = exit_dealloc,
    .tp_traverse = exit_traverse,
    .tp_clear = exit_clear,
};

static PyTypeObject PieceType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "optree._speed._twins.Piece",
    .tp_basicsize = sizeof(Piece),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = piece_dealloc,
    .tp_traverse = piece_traverse,
    .tp_clear = piece_clear,
    .tp_methods = piece_methods,
    .tp_getset = piece_properties,
};
