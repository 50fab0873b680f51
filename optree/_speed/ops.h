/* Begin and end of ops: `SessionTreeBuilder.begin_op` and `Op.end`. */

/* What `begin_op` was given. */
typedef struct {
    PyObject *kind, *name;
    PyObject *turn;   /* borrowed */
    PyObject *parent; /* None for none */
    PyObject *attributes; /* as given, None for none; then as JSON */
    PyObject *request;    /* as given, None for none; then as its payload */
} Beginning;

/* Read the arguments of `begin_op`; false for anything that is not plain. */
static int
read_beginning(Beginning *given, PyObject *const *args, Py_ssize_t positional, PyObject *kwnames)
{
    if (positional != 3) {
        return 0;
    }
    given->kind = args[1];
    given->name = args[2];
    given->turn = NULL;
    given->parent = given->attributes = given->request = Py_None;
    Py_ssize_t more = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    for (Py_ssize_t place = 0; place < more; place++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, place), *value = args[positional + place];
        if (name == text_turn) {
            given->turn = value;
        } else if (name == text_parent) {
            given->parent = value;
        } else if (name == text_attributes) {
            given->attributes = value;
        } else if (name == text_request) {
            given->request = value;
        } else {
            return 0;
        }
    }
    return (given->kind == text_llm || given->kind == text_tool || given->kind == text_session || given->kind == text_system)
        && PyUnicode_CheckExact(given->name) && PyUnicode_IS_COMPACT_ASCII(given->name)
        && is_a(given->turn, turn_type) && is_a(GET(given->turn, turn, node), turn_node_type)
        && (given->parent == Py_None || is_a(given->parent, op_type));
}

/* Give a new op its request, within a step; returns the record. */
static PyObject *
request_node(PyObject *handle, PyObject *core, PyObject *payload)
{
    SET(GET(handle, op, bare), op_node, request, Py_NewRef(payload));
    PyObject *time = now_ms(core), *fields[3] = {GET(handle, op, path), time, payload};
    PyObject *record = time == NULL ? NULL : PyObject_Vectorcall(requested_type, fields, 3, NULL);
    Py_XDECREF(time);
    return record;
}

/* Take an op that could not be begun out of the open ones; the error stays. */
static void
forget_node(PyObject *ops, PyObject *path)
{
    PyObject *error, *value, *trace;
    PyErr_Fetch(&error, &value, &trace);
    if (PyDict_DelItem(ops, path) < 0) {
        PyErr_Clear();
    }
    PyErr_Restore(error, value, trace);
}

/* Make an op's node, handle and record, within a step; returns the handle, and the record by reference. */
static PyObject *
begin_node(PyObject *builder, PyObject *core, const Beginning *given, PyObject **records)
{
    PyObject *where = given->turn, *path = NULL, *identity = NULL, *time = NULL, *node = NULL, *started = NULL, *handle = NULL;
    PyObject *number = PyIter_Next(GET(where, turn, _counter));
    PyObject *above = given->parent != Py_None && GET(given->parent, op, turn) == where ? GET(given->parent, op, path) : Py_None;
    if (number != NULL && (path = numbered(GET(where, turn, path), '.', number)) != NULL
        && (identity = node_id(GET(core, core, txn), path)) != NULL && (time = now_ms(core)) != NULL) {
        PyObject *fields[6] = {path, time, given->kind, given->name, above, given->attributes};
        records[0] = PyObject_Vectorcall(op_begin_type, fields, 6, NULL);
        PyObject *also[7] = {identity, path, given->kind, given->name, time, no_entries, no_entries};
        node = records[0] == NULL ? NULL : PyObject_Vectorcall(op_node_type, also, 7, NULL);
    }
    if (node != NULL && (started = monotonic_now()) != NULL) {
        SET(node, op_node, parent_op, Py_NewRef(above));
        SET(node, op_node, attributes_json, Py_NewRef(given->attributes));
        PyObject *fields[7] = {builder, where, node, path, GET(core, core, now), GET(core, core, recorded), started};
        handle = PyObject_Vectorcall(op_type, fields, 7, NULL);
    }
    if (handle != NULL && given->request != Py_None && (records[1] = request_node(handle, core, given->request)) == NULL) {
        Py_CLEAR(handle);
    }
    if (handle != NULL && (PyDict_SetItem(GET(core, core, ops), path, handle) < 0
            || PyList_Append(GET(GET(where, turn, node), turn_node, ops), node) < 0)) {
        forget_node(GET(core, core, ops), path);
        Py_CLEAR(handle);
    }
    if (handle == NULL) {
        Py_CLEAR(records[0]);
        Py_CLEAR(records[1]);
    }
    Py_XDECREF(number);
    Py_XDECREF(path);
    Py_XDECREF(identity);
    Py_XDECREF(time);
    Py_XDECREF(node);
    Py_XDECREF(started);
    return handle;
}

/* As `totals.add_op` of a tool for each session of a chain. */
static int
count_tool(PyObject *chain)
{
    for (Py_ssize_t place = 0; place < PyList_GET_SIZE(chain); place++) {
        PyObject *totals = GET(PyList_GET_ITEM(chain, place), session_node, totals);
        if (add(&GET(totals, totals, tools_run), one) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Put a request's payload in its place, a new reference; 0 where it is not plain, or the pool is needed, -1 for an error. */
static int
take_request(Beginning *given)
{
    static const Py_ssize_t pooled = 512; /* as core.POOL_BYTES */
    PyObject *data = PyDict_CheckExact(given->request) ? plain_json(given->request) : NULL;
    if (data == NULL || PyBytes_GET_SIZE(data) >= pooled) {
        Py_XDECREF(data);
        return 0;
    }
    PyObject *fields[3] = {PyObject_CallOneArg(raw_type, data), given->kind == text_llm ? text_llm : text_tool, PyLong_FromSsize_t(PyBytes_GET_SIZE(data))};
    PyObject *payload = fields[0] == NULL || fields[2] == NULL ? NULL : PyObject_Vectorcall(payload_type, fields, 3, NULL);
    Py_XDECREF(fields[0]);
    Py_XDECREF(fields[2]);
    Py_DECREF(data);
    given->request = payload;
    return payload == NULL ? -1 : 1;
}

/* As `SessionTreeBuilder.begin_op` in a turn that is given. */
static PyObject *
begin_op_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Beginning given;
    PyObject *core = NULL;
    if (!read_beginning(&given, args, PyVectorcall_NARGS(nargsf), kwnames)
        || GET(GET(given.turn, turn, node), turn_node, ended_at) != Py_None || (core = core_of(args[0])) == NULL) {
        PLAINLY;
    }
    if (GET(core, core, redacted) != Py_False) {
        Py_DECREF(core);
        PLAINLY;
    }
    PyObject *chain = NULL;
    int counted = given.kind == text_tool;
    if (counted && (chain = chain_of(args[0])) == NULL) {
        Py_DECREF(core);
        PLAINLY;
    }
    int sent = given.request == Py_None ? 1 : take_request(&given);
    if (sent <= 0) {
        Py_XDECREF(chain);
        Py_DECREF(core);
        return sent < 0 ? NULL : NOT_PLAIN;
    }
    PyObject *stream = Py_NewRef(GET(core, core, stream)), *handle = NULL, *records[2] = {NULL, NULL};
    PyObject *block = given.attributes == Py_None                    ? Py_NewRef(unset)
        : is_a(given.attributes, encoded_type) ? Py_NewRef(GET(given.attributes, encoded, data))
                                               : call_with(core, text_attributes, given.attributes);
    given.attributes = block;
    int result = -1, plainly = 0;
    PyObject *held = block == NULL ? NULL : enter(stream);
    if (held != NULL) {
        PyObject *node = GET(given.turn, turn, node), *mine = GET(given.turn, turn, _epoch), *epoch = GET(core, core, epoch);
        if (GET(node, turn_node, ended_at) != Py_None || (mine != epoch && PyObject_RichCompareBool(mine, epoch, Py_EQ) != 1)) {
            plainly = 1;
            result = leave(stream, held);
        } else {
            handle = counted && count_tool(chain) < 0 ? NULL : begin_node(args[0], core, &given, records);
            result = handle == NULL ? leave(stream, held) : put_and_leave(stream, held, records, given.request == Py_None ? 1 : 2);
            Py_XDECREF(records[0]);
            Py_XDECREF(records[1]);
        }
        Py_DECREF(held);
    }
    Py_XDECREF(block);
    Py_XDECREF(chain);
    Py_DECREF(stream);
    Py_DECREF(core);
    if (given.request != Py_None) {
        Py_DECREF(given.request);
    }
    if (result < 0) {
        Py_XDECREF(handle);
        return NULL;
    }
    if (plainly) {
        PLAINLY;
    }
    return handle;
}

/* End an op's node, within a step; returns the record. */
static PyObject *
end_record(PyObject *self, PyObject *core, PyObject *node, PyObject *latency)
{
    PyObject *record = NULL, *time = now_ms(core);
    if (time != NULL) {
        PyObject *fields[7] = {GET(self, op, path), time, text_ok, latency, Py_None, Py_None, unset};
        record = PyObject_Vectorcall(op_end_type, fields, 7, NULL);
    }
    if (record != NULL) {
        SET(node, op_node, ended_at, Py_NewRef(time));
        SET(node, op_node, status, Py_NewRef(text_ok));
        SET(node, op_node, latency, Py_NewRef(latency));
        SET(node, op_node, error, Py_NewRef(Py_None));
        if (GET(core, core, recorded) != Py_True) {
            SET(self, op, _clean, Py_NewRef(Py_True));
        }
        PyObject *ops = GET(core, core, ops), *path = GET(self, op, path);
        if ((GET(self, op, _logs) != Py_None && done(call(self, text__place)) < 0)
            || PyObject_SetItem(GET(core, core, ended), path, node) < 0) {
            Py_CLEAR(record);
        } else if (PyDict_DelItem(ops, path) < 0) {
            if (PyErr_ExceptionMatches(PyExc_KeyError)) {
                PyErr_Clear();
            } else {
                Py_CLEAR(record);
            }
        }
    }
    Py_XDECREF(time);
    return record;
}

/* Tell whether the lines of an op are to be put before its end: those that somebody waits for, of an op that has some. */
static int
has_waiting(PyObject *self, PyObject *core, PyObject *stream)
{
    PyObject *raw = GET(self, op, _raw);
    if (GET(core, core, recorded) != Py_True || GET(core, core, redacted) != Py_False || !is_a(raw, (PyObject *)&PyList_Type)) {
        return 1;
    }
    return PyList_GET_SIZE(raw) > 0
        && (GET(stream, stream, watched) == Py_True || GET(self, op, _awaited) == Py_True || GET(self, op, _clean) == Py_True);
}

/* What ends an op that went well, within a step: changes the node, and returns the record. */
static PyObject *
end_node(PyObject *self, PyObject *core, PyObject *stream, PyObject *node)
{
    PyObject *record = NULL, *latency = since_begin(self);
    if (latency != NULL && has_waiting(self, core, stream)) {
        if (done(call_with(self, text_pending, GET(stream, stream, put))) < 0) {
            Py_CLEAR(latency);
        }
    }
    if (latency != NULL) {
        record = end_record(self, core, node, latency);
    }
    Py_XDECREF(latency);
    return record;
}
/* Tell whether an end can also account for the call of a tool that nobody accounted for: nothing else is to be recorded with it. */
static int
is_plain_call(PyObject *self, PyObject *core, PyObject *stream, PyObject *node)
{
    PyObject *request = GET(node, op_node, request), *response = GET(node, op_node, response), *returned = GET(self, op, _returned);
    PyObject *raw = GET(self, op, _raw);
    return GET(node, op_node, kind) == text_tool && GET(stream, stream, watched) != Py_True && GET(self, op, _awaited) != Py_True
        && GET(core, core, recorded) == Py_True && GET(core, core, redacted) == Py_False
        && is_a(raw, (PyObject *)&PyList_Type) && (PyList_GET_SIZE(raw) == 0 || GET(self, op, _clean) != Py_True)
        && (request == Py_None || is_a(request, payload_type)) && (response == Py_None || is_a(response, payload_type))
        && (returned == Py_None || is_a(returned, payload_type));
}

/* As `Op._respond`; returns the record. */
static PyObject *
respond(PyObject *self, PyObject *core, PyObject *node)
{
    PyObject *payload = Py_NewRef(GET(self, op, _returned)), *time = now_ms(core), *fields[3] = {GET(self, op, path), time, payload};
    SET(node, op_node, response, Py_NewRef(payload));
    PyObject *record = time == NULL ? NULL : PyObject_Vectorcall(responded_type, fields, 3, NULL);
    SET(self, op, _returned, Py_NewRef(Py_None));
    Py_XDECREF(time);
    Py_DECREF(payload);
    return record;
}

/* Make the record of a response that was left to the end, if there is one, the first of those that an end puts. */
static int
respond_first(PyObject *self, PyObject *core, PyObject *node, PyObject **records, Py_ssize_t *count)
{
    if (GET(self, op, _returned) == Py_None) {
        return 0;
    }
    if ((records[*count] = respond(self, core, node)) == NULL) {
        return -1;
    }
    (*count)++;
    return 0;
}

/* Return the size of a payload, borrowed. */
static PyObject *
size_of(PyObject *payload)
{
    return payload == Py_None ? zero : GET(payload, payload, size);
}

/* As `Op._account_end` of a tool's call that went well; returns the record. */
static PyObject *
account_call(PyObject *self, PyObject *core, PyObject *node, PyObject *chain, PyObject *latency)
{
    PyObject *number = PyIter_Next(GET(core, core, numbers)), *identity = NULL, *time = NULL, *entry = NULL, *record = NULL;
    if (number != NULL && (identity = numbered(GET(node, op_node, op_id), '#', number)) != NULL && (time = now_ms(core)) != NULL) {
        PyObject *fields[5] = {identity, time, text_tool, text_ok, latency};
        entry = PyObject_Vectorcall(entry_type, fields, 5, NULL);
    }
    int result = entry == NULL ? -1 : 0;
    if (result == 0) {
        PyObject *in = size_of(GET(node, op_node, request)), *out = size_of(GET(node, op_node, response));
        SET(entry, entry, command, Py_NewRef(GET(node, op_node, name)));
        SET(entry, entry, characters_in, Py_NewRef(in));
        SET(entry, entry, characters_out, Py_NewRef(out));
        result = append_accounting(node, entry);
        for (Py_ssize_t place = 0; result == 0 && place < PyList_GET_SIZE(chain); place++) {
            PyObject *totals = GET(PyList_GET_ITEM(chain, place), session_node, totals);
            if ((in != Py_None && add(&GET(totals, totals, characters_in), in) < 0)
                || (out != Py_None && add(&GET(totals, totals, characters_out), out) < 0)) {
                result = -1;
            }
        }
    }
    if (result == 0) {
        PyObject *fields[2] = {GET(self, op, path), entry};
        record = PyObject_Vectorcall(accounted_type, fields, 2, NULL);
    }
    Py_XDECREF(number);
    Py_XDECREF(identity);
    Py_XDECREF(time);
    Py_XDECREF(entry);
    return record;
}

/* Put the records of an end and leave the step; if the next one could not be made, those that were: what they say is in the tree already. */
static int
put_made_and_leave(PyObject *stream, PyObject *held, PyObject **records, Py_ssize_t count, int result)
{
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    int put_there = count == 0 ? leave(stream, held) : put_and_leave(stream, held, records, count);
    while (count-- > 0) {
        Py_DECREF(records[count]);
    }
    if (kind != NULL) {
        PyErr_Clear();
        PyErr_Restore(kind, error, trace);
    }
    return result < 0 ? -1 : put_there;
}

/* End a tool's call that nothing else is to be recorded of: its response, if it has one, what it took, and its end, in one write. */
static int
end_call(PyObject *self, PyObject *core, PyObject *stream, PyObject *node, PyObject *chain, PyObject *held)
{
    PyObject *records[3];
    Py_ssize_t count = 0;
    int result = respond_first(self, core, node, records, &count);
    PyObject *latency = result < 0 ? NULL : since_begin(self);
    if (latency == NULL || (records[count] = account_call(self, core, node, chain, latency)) == NULL) {
        result = -1;
    } else {
        count++;
        result = (records[count] = end_record(self, core, node, latency)) == NULL ? -1 : 0;
        count += result == 0;
    }
    Py_XDECREF(latency);
    return put_made_and_leave(stream, held, records, count, result);
}

/* End an op that is accounted for: its response, if that is to be recorded with its end, and the end, in one write. */
static int
end_answered(PyObject *self, PyObject *core, PyObject *stream, PyObject *node, PyObject *held)
{
    PyObject *records[2];
    Py_ssize_t count = 0;
    int result = respond_first(self, core, node, records, &count);
    if (result == 0) {
        result = (records[count] = end_node(self, core, stream, node)) == NULL ? -1 : 0;
        count += result == 0;
    }
    return put_made_and_leave(stream, held, records, count, result);
}

/* Tell whether an op's last entry is of an attempt that was answered. */
static int
is_answered(PyObject *accounting)
{
    Py_ssize_t size = is_tuple(accounting) ? PyTuple_GET_SIZE(accounting) : 0;
    PyObject *last = size > 0 ? PyTuple_GET_ITEM(accounting, size - 1) : NULL;
    return last != NULL && is_a(last, entry_type) && GET(last, entry, status) == text_ok;
}

/* As `Op.end`. */
static PyObject *
end_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t given = PyVectorcall_NARGS(nargsf);
    PyObject *core = NULL;
    if (given < 1 || given > 3 || (given >= 2 && args[1] != text_ok) || (given == 3 && args[2] != Py_None) || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) != 0)
        || !is_a(args[0], op_type) || !is_a(GET(args[0], op, bare), op_node_type) || (core = core_of(GET(args[0], op, builder))) == NULL) {
        PLAINLY;
    }
    PyObject *self = args[0], *node = Py_NewRef(GET(self, op, bare)), *stream = Py_NewRef(GET(core, core, stream));
    PyObject *chain = GET(node, op_node, kind) == text_tool ? chain_of(GET(self, op, builder)) : NULL;
    int result = -1, plainly = 0;
    PyObject *held = enter(stream);
    if (held != NULL) {
        PyObject *accounting = GET(node, op_node, accounting);
        if (GET(node, op_node, ended_at) != Py_None && GET(self, op, _returned) == Py_None) {
            result = leave(stream, held);
        } else if (GET(node, op_node, ended_at) != Py_None) {
            plainly = 1;
            result = leave(stream, held);
        } else if (is_tuple(accounting) && PyTuple_GET_SIZE(accounting) == 0 && chain != NULL && GET(self, op, _streamed) == Py_None
            && is_plain_call(self, core, stream, node)) {
            result = end_call(self, core, stream, node, chain, held);
        } else if (!is_answered(accounting) || GET(self, op, _streamed) != Py_None
            || (GET(self, op, _returned) != Py_None && (has_waiting(self, core, stream) || !is_a(GET(self, op, _returned), payload_type)))) {
            plainly = 1;
            result = leave(stream, held);
        } else {
            result = end_answered(self, core, stream, node, held);
        }
        Py_DECREF(held);
    }
    Py_XDECREF(chain);
    Py_DECREF(stream);
    Py_DECREF(node);
    Py_DECREF(core);
    if (result < 0) {
        return NULL;
    }
    if (plainly) {
        PLAINLY;
    }
    Py_RETURN_NONE;
}
