/* Which of many short texts stand in a text: told in one pass, whatever their number (Aho and Corasick, 1975).
   Some are words of names, which count only where a name ends that may be given a value. */

#define ENDS 0x80000000

typedef struct {
    Py_ssize_t classes;
    uint8_t class_of[128]; /* 0: in none of the texts looked for */
    uint16_t *next;        /* state and class to state */
    uint32_t *quick;       /* the same once all is known, as places in itself, marked where something ends */
    uint64_t *found;       /* what stands in the text when a state is reached, a bit each */
    uint64_t words;        /* bits of words of names */
    uint64_t opener;       /* a bit of texts behind which a name is given something without a sign: "--" and "<" */
} Automaton;

static void
automaton_free(PyObject *capsule)
{
    Automaton *automaton = PyCapsule_GetPointer(capsule, NULL);
    PyMem_Free(automaton->next);
    PyMem_Free(automaton->quick);
    PyMem_Free(automaton->found);
    PyMem_Free(automaton);
}

/* Add a text of ASCII under a bit; states are numbered from 1, the beginning is 0. */
static int
automaton_add(Automaton *automaton, uint16_t *states, Py_ssize_t room, PyObject *text, uint64_t bit)
{
    Py_ssize_t size;
    const char *chars = PyUnicode_AsUTF8AndSize(text, &size);
    if (chars == NULL) {
        return -1;
    }
    Py_ssize_t state = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        uint16_t *slot = &automaton->next[state * automaton->classes + automaton->class_of[(uint8_t)chars[i] & 127]];
        if (*slot == 0) {
            if (*states + 1 >= room) {
                PyErr_SetString(PyExc_ValueError, "the texts changed");
                return -1;
            }
            *slot = ++*states;
        }
        state = *slot;
    }
    automaton->found[state] |= bit;
    return 0;
}

/* Let each state go on where the longest end of what was read begins another text. */
static int
automaton_link(Automaton *automaton, Py_ssize_t states)
{
    uint16_t *queue = PyMem_Calloc(states + 1, 2 * sizeof(uint16_t));
    if (queue == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    uint16_t *fails = queue + states + 1;
    Py_ssize_t head = 0, tail = 1; /* the queue begins with state 0 */
    while (head < tail) {
        uint16_t state = queue[head++];
        uint16_t *row = &automaton->next[state * automaton->classes], *other = &automaton->next[fails[state] * automaton->classes];
        for (Py_ssize_t class = 1; class < automaton->classes; class++) {
            uint16_t child = row[class];
            uint16_t failing = state == 0 ? 0 : other[class];
            if (child == 0) {
                row[class] = failing;
                continue;
            }
            fails[child] = failing;
            automaton->found[child] |= automaton->found[failing];
            queue[tail++] = child;
        }
    }
    PyMem_Free(queue);
    for (Py_ssize_t place = 0; place < states * automaton->classes; place++) {
        uint16_t to = automaton->next[place];
        automaton->quick[place] = (uint32_t)(to * automaton->classes) | (automaton->found[to] ? ENDS : 0);
    }
    return 0;
}

#define NAME_AT_MOST 128
#define BLANKS_AT_MOST 16
#define IS_BLANK(c) ((c) == ' ' || (c) == '\t')

static int
is_of_name(Py_UCS4 c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* Tell whether what follows a word, up to the end of its name and behind it, may give a value to the name; a blank does behind an opener. */
static int
may_be_given(int kind, const void *data, Py_ssize_t size, Py_ssize_t at, int is_opened)
{
    Py_ssize_t stop = size - at > NAME_AT_MOST ? at + NAME_AT_MOST : size;
    while (at < stop && is_of_name(PyUnicode_READ(kind, data, at))) {
        at++;
    }
    Py_UCS4 c = at < size ? PyUnicode_READ(kind, data, at) : 0;
    int is_quote = c == '"' || c == '\'' || c == '`', is_blank = IS_BLANK(c);
    if (c == 0) {
        return 0;
    }
    if (is_opened || c == '\\') {
        return 1;
    }
    if (is_quote && ++at < size && PyUnicode_READ(kind, data, at) == ']') {
        at++;
    }
    stop = size - at > BLANKS_AT_MOST ? at + BLANKS_AT_MOST : size;
    while (at < stop && (IS_BLANK(c = PyUnicode_READ(kind, data, at)) || (is_quote && (Py_UNICODE_ISSPACE(c))))) {
        at++;
    }
    c = at < size ? PyUnicode_READ(kind, data, at) : 0;
    if (c == ':' || c == '=' || c == '>' || c == '|' || c == '*' || c == '`' || c == '%' || (is_quote && (c == ',' || c == '}'))) {
        return 1;
    }
    Py_UCS4 next = at + 1 < size ? PyUnicode_READ(kind, data, at + 1) : 0;
    return is_blank && ((c == 'i' && next == 's') || (c == 'w' && next == 'a') || (c == 'a' && next == 'r')); /* is, was, are */
}

/* Go from state to state; one that ends a text has its highest bit set. */
#define READ_ALL(character) \
    for (size_t i = 0, state = 0; i < (size_t)size; i++) { \
        Py_UCS4 c = character; \
        uint32_t to = c < 128 ? automaton->quick[state + automaton->class_of[c]] : 0; \
        state = to & (ENDS - 1); \
        if (to & ENDS) { \
            uint64_t bits = automaton->found[state / automaton->classes]; \
            if (bits & automaton->words & ~found && !may_be_given(kind, data, size, (Py_ssize_t)i + 1, (found & automaton->opener) != 0)) { \
                bits &= ~automaton->words; \
            } \
            found |= bits; \
        } \
    }

static PyObject *
present(PyObject *capsule, PyObject *text)
{
    Automaton *automaton = PyCapsule_GetPointer(capsule, NULL);
    if (automaton == NULL || !PyUnicode_Check(text) || PyUnicode_READY(text) < 0) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "a text is needed");
    }
    int kind = PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    Py_ssize_t size = PyUnicode_GET_LENGTH(text);
    uint64_t found = 0;
    if (kind == PyUnicode_1BYTE_KIND) {
        READ_ALL(((const uint8_t *)data)[i]);
    } else {
        READ_ALL(PyUnicode_READ(kind, data, i));
    }
    return PyLong_FromUnsignedLongLong(found & ~automaton->opener);
}

static PyMethodDef PRESENT = {"present", present, METH_O, "Return which texts stand in a text, a bit each."};

/* Given pairs of a text (ASCII) and a number below 64, return a function that tells which numbers' texts stand in a text. From a number on
   they are words of names, and the number before it is that of texts behind which a name is given something without a sign. */
static PyObject *
presence(PyObject *module, PyObject *args)
{
    PyObject *pairs;
    Py_ssize_t words;
    if (!PyArg_ParseTuple(args, "O!n", &PyList_Type, &pairs, &words)) {
        return NULL;
    }
    if (words < 1 || words > 63) {
        return PyErr_Format(PyExc_ValueError, "words have numbers from 1 to 63");
    }
    Py_ssize_t room = 2;
    Automaton *automaton = PyMem_Calloc(1, sizeof(Automaton));
    if (automaton == NULL) {
        return PyErr_NoMemory();
    }
    automaton->classes = 1;
    automaton->words = ~(uint64_t)0 << words;
    automaton->opener = (uint64_t)1 << (words - 1);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pairs); i++) {
        PyObject *text;
        Py_ssize_t number, size;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(pairs, i), "Un", &text, &number)) {
            goto failed;
        }
        const char *chars = PyUnicode_AsUTF8AndSize(text, &size);
        if (chars == NULL || !PyUnicode_IS_ASCII(text) || number < 0 || number > 63) {
            PyErr_SetString(PyExc_ValueError, "each text is ASCII, each number below 64");
            goto failed;
        }
        room += size;
        for (Py_ssize_t at = 0; at < size; at++) {
            uint8_t *class = &automaton->class_of[(uint8_t)chars[at]];
            *class = *class ? *class : (uint8_t)automaton->classes++;
        }
    }
    if (room > UINT16_MAX) {
        PyErr_SetString(PyExc_ValueError, "too many texts");
        goto failed;
    }
    automaton->next = PyMem_Calloc(room * automaton->classes, sizeof(uint16_t));
    automaton->found = PyMem_Calloc(room, sizeof(uint64_t));
    automaton->quick = PyMem_Calloc(room * automaton->classes, sizeof(uint32_t));
    if (automaton->next == NULL || automaton->quick == NULL || automaton->found == NULL) {
        PyErr_NoMemory();
        goto failed;
    }
    uint16_t states = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pairs); i++) {
        PyObject *text;
        Py_ssize_t number;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(pairs, i), "Un", &text, &number)
            || automaton_add(automaton, &states, room, text, (uint64_t)1 << number) < 0) {
            goto failed;
        }
    }
    if (automaton_link(automaton, states + 1) < 0) {
        goto failed;
    }
    PyObject *capsule = PyCapsule_New(automaton, NULL, automaton_free);
    if (capsule == NULL) {
        goto failed;
    }
    PyObject *function = PyCFunction_New(&PRESENT, capsule);
    Py_DECREF(capsule);
    return function;
failed:
    PyMem_Free(automaton->next);
    PyMem_Free(automaton->quick);
    PyMem_Free(automaton->found);
    PyMem_Free(automaton);
    return NULL;
}
