/* What the compiled functions know of the Python side, and how they touch it. */

/* What `prepare` is given: types, functions and constants of the Python side. */

#define OBJECTS(X) \
    X(op_type) X(turn_type) X(core_type) X(stream_type) X(op_begin_type) X(op_end_type) X(accounted_type) X(op_node_type) \
    X(turn_node_type) X(entry_type) X(tokens_type) X(usage_type) X(totals_type) X(session_node_type) X(log_type) X(chunk_type) X(wants_type) X(entries_type) X(encoded_type) X(payload_type) X(requested_type) \
    X(responded_type) X(raw_type) \
    X(encode_into) X(plain_line) X(provider_and_model) X(price_entry) X(handles) X(unset) X(wall) X(from_handler) X(fault) X(faults) X(unrecorded)

#define DECLARE(name) static PyObject *name;
OBJECTS(DECLARE)
#undef DECLARE

static PyObject *journal_type; /* NULL until `prepare_journal` */

/* Fields, as offsets into their objects: X(type, attribute). */

#define FIELDS(X) \
    X(op, builder) X(op, turn) X(op, bare) X(op, path) X(op, _now) X(op, _clean) X(op, _t0) X(op, _raw) X(op, _logs) X(op, _streamed) X(op, _awaited) X(op, _returned) X(op, spending) X(op, replayed) X(op, call) \
    X(turn, node) X(turn, path) X(turn, _counter) X(turn, _epoch) \
    X(core, txn) X(core, stream) X(core, recorded) X(core, now) X(core, _latest) X(core, epoch) X(core, ops) X(core, ended) \
    X(core, numbers) X(core, touched) X(core, redacted) \
    X(stream, _lock) X(stream, _through) X(stream, _delivering) X(stream, _queue) X(stream, _takers) X(stream, _awake) X(stream, _write) \
    X(stream, watched) X(stream, put) \
    X(op_node, op_id) X(op_node, kind) X(op_node, name) X(op_node, accounting) X(op_node, ended_at) X(op_node, status) \
    X(op_node, latency) X(op_node, error) X(op_node, parent_op) X(op_node, attributes_json) X(op_node, request) X(op_node, response) \
    X(turn_node, ops) X(turn_node, ended_at) \
    X(session_node, totals) \
    X(totals, input_tokens) X(totals, output_tokens) X(totals, cache_read_input_tokens) X(totals, cache_write_input_tokens) \
    X(totals, cost_usd) X(totals, llm_requests) X(totals, tools_run) X(totals, known_costs) X(totals, unknown_costs) \
    X(totals, characters_in) X(totals, characters_out) X(totals, reasoning_output_tokens) \
    X(tokens, input_tokens) X(tokens, output_tokens) X(tokens, cache_read_input_tokens) X(tokens, cache_write_input_tokens) \
    X(tokens, reasoning_output_tokens) \
    X(usage, tokens) X(usage, cost_usd) X(usage, upstream_cost_usd) X(usage, rest) X(usage, flaws) \
    X(entry, tokens) X(entry, cost_usd) X(entry, details) X(entry, status) \
    X(wants, kinds) X(wants, failures) X(op_end, status) X(encoded, data) X(payload, size) X(entry, command) X(entry, characters_in) X(entry, characters_out)

#define JOURNAL_FIELDS(X) \
    X(journal, fd) X(journal, at_the_end) X(journal, last) X(journal, dirty) X(journal, _unsynced) X(journal, _syncs) X(journal, _seed) \
    X(journal, _write) X(journal, _os)

#define DECLARE(type, name) static Py_ssize_t at_##type##_##name;
FIELDS(DECLARE)
JOURNAL_FIELDS(DECLARE)
#undef DECLARE

#define GET(object, type, name) (*(PyObject **)((char *)(object) + at_##type##_##name))

static Py_ssize_t at_n;  /* of `Record.n`, the same in all records */

/* Texts that are compared by identity or name a method. */

#define TEXTS(X) \
    X(llm) X(tool) X(session) X(system) X(ok) X(acquire) X(release) X(_wait) X(_mark) X(_rouse) X(_deliver) X(_place) X(pending) X(fault) \
    X(leave) X(append) X(appendleft) X(popleft) X(n) X(request) X(take) X(_poison) X(write_all) X(core) X(chain) X(input_tokens) X(output_tokens) \
    X(cache_read_tokens) X(cache_write_tokens) X(cost_usd) X(latency) X(turn) X(parent) X(attributes) X(monotonic) X(stack) \
    X(end) X(begin_op) X(called) X(finish) X(follower) X(messages) X(_detached) X(_kind) X(_name) X(_block) X(_attributes) X(_held) X(_left) X(config) X(enabled) X(enter)

#define DECLARE(name) static PyObject *text_##name;
TEXTS(DECLARE)
#undef DECLARE

static PyObject *zero, *one;       /* the ints */
static PyObject *thousand;         /* 1000.0, milliseconds of a second */
static PyObject *no_entries;       /* the empty tuple */
static PyObject *nothing;          /* None */
static PyObject *usual_severity;   /* "VRB" */
static const long long MAX_COUNT = 1000000000000; /* as usage.MAX_COUNT */
static const double MAX_DOLLARS = 1e9; /* as usage.MAX_DOLLARS */
static const Py_ssize_t KEPT_BYTES = 1 << 16; /* as values._KEPT_BYTES */
static const Py_ssize_t MAX_TEXT = 1 << 20;   /* as values.MAX_TEXT */

/* Tell whether an object is there (fields can be deleted) and of a type, no subclass of it. */
static int
is_a(PyObject *object, PyObject *type)
{
    return object != NULL && (PyObject *)Py_TYPE(object) == type;
}

static int
is_tuple(PyObject *object)
{
    return object != NULL && PyTuple_CheckExact(object);
}

/* Put a value into a field; takes the reference. */
static void
put(PyObject **field, PyObject *value)
{
    PyObject *old = *field;
    *field = value;
    Py_XDECREF(old);
}

#define SET(object, type, name, value) put(&GET(object, type, name), value)

static PyObject *
call(PyObject *self, PyObject *method)
{
    return PyObject_VectorcallMethod(method, &self, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
}

static PyObject *
call_with(PyObject *self, PyObject *method, PyObject *argument)
{
    PyObject *args[2] = {self, argument};
    return PyObject_VectorcallMethod(method, args, 2, NULL);
}

static int
done(PyObject *result)
{
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Tell whether an error that was fetched came out of a signal's handler: it is the program's then, as `interrupts.from_handler` says. */
static int
is_programs(PyObject *error, PyObject *trace)
{
    if (trace != NULL && PyException_SetTraceback(error, trace) < 0) {
        PyErr_Clear();
    }
    PyObject *found = PyObject_CallOneArg(from_handler, error);
    PyErr_Clear();
    Py_XDECREF(found);
    return found == Py_True;
}
