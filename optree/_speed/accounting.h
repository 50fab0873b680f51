/* `Op.account`. */

/* What `Op.account` was given. */
typedef struct {
    PyObject *counts[4]; /* input, output, cache read, cache write */
    PyObject *cost;      /* None for none */
    PyObject *latency;   /* NULL for: since the op began */
    long long sent, cached, total;
    PyObject *fresh; /* owned: input without what was cached, where that is known to be among it */
    PyObject *usage; /* a `Usage`, if they were read before */
} Figures;

/* Add to a number in a field. */
static int
add(PyObject **field, PyObject *more)
{
    PyObject *sum = PyNumber_Add(*field, more);
    if (sum == NULL) {
        return -1;
    }
    put(field, sum);
    return 0;
}

/* As `totals.add_entry`, of a model's call that went well. */
static int
add_to_totals(PyObject *totals, const Figures *figures)
{
    PyObject *cost = figures->cost, *const *counts = figures->counts;
    if ((cost == Py_None ? add(&GET(totals, totals, unknown_costs), one) : add(&GET(totals, totals, known_costs), one)) < 0
        || (cost != Py_None && add(&GET(totals, totals, cost_usd), cost) < 0)
        || add(&GET(totals, totals, llm_requests), one) < 0 || add(&GET(totals, totals, input_tokens), counts[0]) < 0 || add(&GET(totals, totals, output_tokens), counts[1]) < 0) {
        return -1;
    }
    if (figures->usage != NULL
        && add(&GET(totals, totals, reasoning_output_tokens), GET(GET(figures->usage, usage, tokens), tokens, reasoning_output_tokens)) < 0) {
        return -1;
    }
    if (!figures->cached) {
        return 0;
    }
    return add(&GET(totals, totals, cache_read_input_tokens), counts[2]) < 0
                || add(&GET(totals, totals, cache_write_input_tokens), counts[3]) < 0
            ? -1
            : 0;
}

/* Read a count of tokens; -1 for anything that is none. */
static long long
count_of(PyObject *value)
{
    int overflow = 0;
    long long count = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow) : -1;
    return overflow || count > MAX_COUNT ? -1 : count;
}

/* Read the keywords of `Op.account`; false for anything that is not plain. */
static int
read_figures(Figures *figures, PyObject *const *values, PyObject *kwnames)
{
    for (int which = 0; which < 4; which++) {
        figures->counts[which] = zero;
    }
    figures->cost = Py_None;
    figures->latency = NULL;
    figures->sent = figures->cached = figures->total = 0;
    figures->fresh = figures->usage = NULL;
    PyObject *const names[4] = {text_input_tokens, text_output_tokens, text_cache_read_tokens, text_cache_write_tokens};
    Py_ssize_t given = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    for (Py_ssize_t place = 0; place < given; place++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, place), *value = values[place];
        int which = 0;
        while (which < 4 && name != names[which]) {
            which++;
        }
        if (which < 4) {
            long long count = count_of(value);
            if (count < 0) {
                return 0;
            }
            figures->counts[which] = value;
            figures->total += count;
            if (which == 0) {
                figures->sent = count;
            } else if (which >= 2) {
                figures->cached += count;
            }
        } else if (name == text_cost_usd || name == text_latency) {
            int plain = PyFloat_CheckExact(value) && isfinite(PyFloat_AS_DOUBLE(value));
            if (name == text_cost_usd) {
                plain = plain && fabs(PyFloat_AS_DOUBLE(value)) <= MAX_DOLLARS;
            }
            if (!plain && value != Py_None) {
                return 0;
            }
            if (name == text_cost_usd) {
                figures->cost = value;
            } else {
                figures->latency = plain ? value : NULL;
            }
        } else {
            return 0;
        }
    }
    return figures->total <= MAX_COUNT;
}

/* Take figures that were read before; false if there is more to be said of them. */
static int
take_usage(Figures *figures, PyObject *usage)
{
    PyObject *tokens, *cost, *rest, *flaws;
    if (!is_a(usage, usage_type) || !is_a(tokens = GET(usage, usage, tokens), tokens_type) || GET(usage, usage, upstream_cost_usd) != Py_None
        || !is_a(rest = GET(usage, usage, rest), (PyObject *)&PyDict_Type) || !is_a(flaws = GET(usage, usage, flaws), (PyObject *)&PyList_Type)
        || PyList_GET_SIZE(flaws) != 0 || (cost = GET(usage, usage, cost_usd)) == NULL
        || (cost != Py_None && !(PyFloat_CheckExact(cost) && fabs(PyFloat_AS_DOUBLE(cost)) <= MAX_DOLLARS))) {
        return 0;
    }
    PyObject *const counts[4] = {
        GET(tokens, tokens, input_tokens), GET(tokens, tokens, output_tokens), GET(tokens, tokens, cache_read_input_tokens),
        GET(tokens, tokens, cache_write_input_tokens),
    };
    for (int which = 0; which < 4; which++) {
        long long count = count_of(figures->counts[which] = counts[which]);
        if (count < 0) {
            return 0;
        }
        figures->total += count;
        figures->cached += which >= 2 ? count : 0;
    }
    figures->cost = cost;
    figures->usage = usage;
    return figures->total <= MAX_COUNT && count_of(GET(tokens, tokens, reasoning_output_tokens)) >= 0;
}

/* As `usage.read` of these: take what was cached from the input, unless it is counted *beside* it; 0 if Python has to say something. */
static int
part(Figures *figures, PyObject *beside)
{
    if (figures->usage != NULL || figures->cached == 0 || beside == Py_True || figures->counts[0] == zero) {
        return 1;
    }
    if (figures->cached > figures->sent || (figures->fresh = PyLong_FromLongLong(figures->sent - figures->cached)) == NULL) {
        PyErr_Clear();
        return 0;
    }
    figures->counts[0] = figures->fresh;
    figures->total -= figures->cached;
    return 1;
}

/* As `Op._entry` with `usage.plain_tokens`, of a model's call; *model* is as `provider_and_model` has it. */
static PyObject *
make_entry(PyObject *core, PyObject *node, PyObject *model, PyObject *latency, const Figures *figures)
{
    PyObject *entry = NULL, *tokens = NULL, *time = NULL, *identity = NULL;
    PyObject *number = PyIter_Next(GET(core, core, numbers));
    PyObject *total = number == NULL ? NULL : PyLong_FromLongLong(figures->total);
    PyObject *rest = figures->usage == NULL ? NULL : GET(figures->usage, usage, rest), *details = NULL;
    if (total != NULL && (identity = numbered(GET(node, op_node, op_id), '#', number)) != NULL && (time = now_ms(core)) != NULL
        && (rest == NULL || PyDict_GET_SIZE(rest) == 0 || (details = call_with(core, text_attributes, rest)) != NULL)) {
        PyObject *all[5] = {figures->counts[0], figures->counts[1], figures->counts[2], figures->counts[3], total};
        tokens = figures->usage != NULL ? Py_NewRef(GET(figures->usage, usage, tokens)) : PyObject_Vectorcall(tokens_type, all, 5, NULL);
    }
    if (tokens != NULL) {
        PyObject *fields[7] = {
            identity, time, text_llm, text_ok, latency, PyTuple_GET_ITEM(model, 0), PyTuple_GET_ITEM(model, 1),
        };
        entry = PyObject_Vectorcall(entry_type, fields, 7, NULL);
    }
    if (entry != NULL) {
        SET(entry, entry, tokens, Py_NewRef(tokens));
        SET(entry, entry, cost_usd, Py_NewRef(figures->cost));
        if (details != NULL) {
            SET(entry, entry, details, Py_NewRef(details));
        }
    }
    Py_XDECREF(details);
    Py_XDECREF(number);
    Py_XDECREF(total);
    Py_XDECREF(identity);
    Py_XDECREF(time);
    Py_XDECREF(tokens);
    return entry;
}

/* Return the sessions whose totals an op's entries add to, a new reference; NULL, without an error, if they are none of ours. */
static PyObject *
chain_of(PyObject *builder)
{
    PyObject *chain = PyObject_GetAttr(builder, text_chain);
    if (chain == NULL) {
        PyErr_Clear();
        return NULL;
    }
    int ours = PyList_CheckExact(chain);
    for (Py_ssize_t place = 0; ours && place < PyList_GET_SIZE(chain); place++) {
        PyObject *session = PyList_GET_ITEM(chain, place);
        ours = is_a(session, session_node_type) && is_a(GET(session, session_node, totals), totals_type);
    }
    if (!ours) {
        Py_CLEAR(chain);
    }
    return chain;
}

/* Put an entry behind those of an op. */
static int
append_accounting(PyObject *node, PyObject *entry)
{
    int collects = PyGC_Disable(); /* or a finalizer may come between reading the old entries and setting the new ones */
    PyObject *before = GET(node, op_node, accounting);
    Py_ssize_t size = PyTuple_GET_SIZE(before);
    PyObject *after = PyTuple_New(size + 1);
    for (Py_ssize_t place = 0; after != NULL && place < size; place++) {
        PyTuple_SET_ITEM(after, place, Py_NewRef(PyTuple_GET_ITEM(before, place)));
    }
    if (collects) {
        PyGC_Enable();
    }
    if (after == NULL) {
        return -1;
    }
    PyTuple_SET_ITEM(after, size, Py_NewRef(entry));
    SET(node, op_node, accounting, after);
    return 0;
}

/* As `Op._add`, within a step; returns the record. */
static PyObject *
add_entry(PyObject *self, PyObject *core, PyObject *node, PyObject *chain, PyObject *entry, const Figures *figures)
{
    int result = append_accounting(node, entry);
    for (Py_ssize_t place = 0; result == 0 && place < PyList_GET_SIZE(chain); place++) {
        result = add_to_totals(GET(PyList_GET_ITEM(chain, place), session_node, totals), figures);
    }
    if (result == 0 && GET(node, op_node, ended_at) != Py_None) {
        result = PySet_Add(GET(core, core, touched), GET(self, op, path));
    }
    PyObject *fields[2] = {GET(self, op, path), entry};
    return result < 0 ? NULL : PyObject_Vectorcall(accounted_type, fields, 2, NULL);
}

/* As `Op.account`. */
static PyObject *
account_twin(PyObject *twin, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Figures figures;
    PyObject *core = NULL, *chain = NULL, *node;
    Py_ssize_t given = PyVectorcall_NARGS(nargsf);
    int is_read = given == 2 && kwnames == NULL;
    if ((given != 1 && !is_read) || !is_a(args[0], op_type) || !read_figures(&figures, args + 1, kwnames) || (is_read && !take_usage(&figures, args[1]))
        || !is_a(node = GET(args[0], op, bare), op_node_type) || GET(node, op_node, kind) != text_llm
        || GET(args[0], op, replayed) != Py_None || GET(args[0], op, call) != Py_None || GET(node, op_node, ended_at) != Py_None || !is_tuple(GET(node, op_node, accounting)) || (core = core_of(GET(args[0], op, builder))) == NULL) {
        PLAINLY;
    }
    if ((GET(args[0], op, spending) != Py_None && PyObject_IsTrue(GET(core, core, epoch)) != 0) || (chain = chain_of(GET(args[0], op, builder))) == NULL) {
        Py_DECREF(core);
        PLAINLY;
    }
    Py_INCREF(node);
    int result = -1, plainly = 0;
    PyObject *self = args[0], *stream = Py_NewRef(GET(core, core, stream)), *held = NULL;
    PyObject *model = PyObject_CallOneArg(provider_and_model, GET(node, op_node, name)), *latency = NULL;
    if (model != NULL
        && (!PyTuple_CheckExact(model) || PyTuple_GET_SIZE(model) != 3 || PyTuple_GET_ITEM(model, 1) == Py_None
            || !part(&figures, PyTuple_GET_ITEM(model, 2)))) {
        plainly = 1;
    } else if (model != NULL && (latency = figures.latency == NULL ? since_begin(self) : Py_NewRef(figures.latency)) != NULL) {
        PyObject *entry = make_entry(core, node, model, latency, &figures), *record = NULL, *priced = NULL;
        PyObject *with[3] = {core, entry, chain};
        if (entry != NULL && figures.cost == Py_None && figures.total > 0 && (priced = PyObject_Vectorcall(price_entry, with, 3, NULL)) == NULL) {
            Py_CLEAR(entry);
        } else if (entry != NULL) {
            figures.cost = GET(entry, entry, cost_usd); /* which the entry holds */
        }
        if (entry != NULL && (held = enter(stream)) != NULL && (held == Py_None || GET(node, op_node, ended_at) != Py_None)) {
            /* ended with what it is in, or other threads add to it at once */
            result = leave(stream, held);
            plainly = result == 0;
        } else if (held != NULL) {
            record = add_entry(self, core, node, chain, entry, &figures);
            result = record == NULL ? leave(stream, held) : put_and_leave(stream, held, &record, 1);
        }
        Py_XDECREF(priced);
        Py_XDECREF(record);
        Py_XDECREF(entry);
        Py_XDECREF(held);
    }
    Py_XDECREF(figures.fresh);
    Py_XDECREF(latency);
    Py_XDECREF(model);
    Py_DECREF(stream);
    Py_DECREF(core);
    Py_DECREF(chain);
    Py_DECREF(node);
    if (plainly) {
        PLAINLY;
    }
    if (result < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}
