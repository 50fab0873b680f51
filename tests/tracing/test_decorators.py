import asyncio
import functools
import inspect
import traceback
from contextlib import nullcontext
from contextvars import copy_context

import pytest

import optree
from optree._tree import walk_ops
from optree.testing import capture, shape

KINDS = {
    "session": (optree.session, lambda: optree.session(agent="named"), lambda: optree.session("named")),
    "turn": (optree.turn, lambda: optree.turn(user="why"), optree.turn),
    "llm": (optree.llm, lambda: optree.llm(provider="openai", model="gpt-4o"), lambda: optree.llm("named")),
    "tool": (optree.tool, lambda: optree.tool(provider="mcp"), lambda: optree.tool("named")),
}
BARE = {"session": "work", "turn": "turn 1", "llm": "llm work", "tool": "tool work"}
GIVEN = {"session": "named", "turn": "turn 1", "llm": "llm openai:gpt-4o", "tool": "tool work"}
WAYS = [(kind, given) for kind in KINDS for given in (False, True)]
ways = pytest.mark.parametrize(("kind", "given"), WAYS, ids=[f"{kind}-{'arguments' if given else 'bare'}" for kind, given in WAYS])


def decorator(kind, given):
    """Return an instrument as a decorator, with or without arguments."""
    return KINDS[kind][1]() if given else KINDS[kind][0]


def only_child(recording, kind):
    """Return the node that the decorated function made in the session `root`, as a nested tuple."""
    agent, _, *turns = shape(recording.tree)
    assert ("root", 1) == (agent, len(turns))
    if kind == "turn":
        return turns[0]
    label, _, *ops = turns[0]
    assert ("turn 1", 1) == (label, len(ops))
    return ops[0][2] if kind == "session" else ops[0]


def expected(kind, given):
    """Return the nested tuple of the node that such a decorator makes of a function named `work`."""
    return (GIVEN if given else BARE)[kind], "ok"


class Agent:
    """A class whose methods are decorated in each test."""

    factor = 2


@ways
def test_function(kind, given, recording):
    """Each instrument decorates a function: same result, one node, ended ok (S4-28, S4-29, S4-33, S4-37)."""

    @decorator(kind, given)
    def work(number, *, add=0):
        return number * 2 + add

    with optree.session("root"):
        assert 7 == work(3, add=1)
    assert expected(kind, given) == only_child(recording, kind)


@ways
def test_coroutine(kind, given, recording):
    """Each instrument decorates a coroutine function; the node is open while it waits (S4-29, S4-30)."""
    seen = []

    @decorator(kind, given)
    async def work(number):
        await asyncio.sleep(0)
        seen.append(only_child(recording, kind)[1])
        return number * 2

    async def main():
        return await work(3)

    with optree.session("root"):
        assert 6 == asyncio.run(main())
    assert [None] == seen
    assert expected(kind, given) == only_child(recording, kind)


@ways
def test_generator(kind, given, recording):
    """Each instrument decorates a generator function: same items, same return value, one node."""

    @decorator(kind, given)
    def work(count):
        yield from range(count)
        return "done"

    def main():
        return (yield from work(3))

    with optree.session("root"):
        running = main()
        assert [0, 1, 2] == [next(running) for _ in range(3)]
        with pytest.raises(StopIteration) as stop:
            next(running)
    assert "done" == stop.value.value
    assert expected(kind, given) == only_child(recording, kind)


@ways
def test_async_generator(kind, given, recording):
    """Each instrument decorates an async generator function: same items, one node."""

    @decorator(kind, given)
    async def work(count):
        for number in range(count):
            await asyncio.sleep(0)
            yield number

    async def main():
        return [item async for item in work(3)]

    with optree.session("root"):
        assert [0, 1, 2] == asyncio.run(main())
    assert expected(kind, given) == only_child(recording, kind)


@ways
@pytest.mark.parametrize("binding", ["instance", "class", "static outside", "static inside"])
def test_method(kind, given, binding, recording):
    """Each instrument decorates methods of all three kinds, whichever of the decorators stands outside."""
    trace = decorator(kind, given)
    if binding == "instance":

        def work(self, number):
            return number * self.factor

        method = trace(work)
    elif binding == "class":

        def work(cls, number):
            return number * cls.factor

        method = trace(classmethod(work))
    else:

        def work(number):
            return number * 2

        method = staticmethod(trace(work)) if binding == "static outside" else trace(staticmethod(work))
    cls = type("Agent", (Agent,), {"work": method})
    with optree.session("root"):
        assert 6 == cls().work(3)
    assert expected(kind, given) == only_child(recording, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [0, 1, 2])
def test_context_manager(kind, given, recording):
    """Each instrument is a context manager; its handle knows its place."""
    open_it = KINDS[kind][given]
    with optree.session("root") as root, open_it() as handle:
        assert {"session": "1.1", "turn": "1", "llm": "1.1", "tool": "1.1"}[kind] == handle.path
        inner = {"session": (handle, None), "turn": (root, None)}.get(kind, (root, handle))
        assert inner == (optree.current_session(), optree.current())
    assert "ok" == only_child(recording, kind)[1]


def plain(number: int, *more: str, add: int = 0) -> int:
    """Say what it does."""
    return number + add + len(more)


async def coroutine(number: int) -> int:
    """Say what it does."""
    return number


def generator(number: int):
    """Say what it does."""
    yield number


async def async_generator(number: int):
    """Say what it does."""
    yield number


@ways
@pytest.mark.parametrize("function", [plain, coroutine, generator, async_generator])
def test_looks_the_same(kind, given, function):
    """A decorated function keeps name, docstring, module, signature, annotations, and what kind of function it is."""
    traced = decorator(kind, given)(function)
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
        assert getattr(function, name) == getattr(traced, name)
    assert inspect.signature(function) == inspect.signature(traced)
    assert function is traced.__wrapped__
    for is_kind in (inspect.isfunction, inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        assert is_kind(function) == is_kind(traced)


def test_names_of_what_has_none(recording):
    """A partial takes the name of its function, a callable object that of its class."""

    class Search:
        def __call__(self, query):
            return query

    with optree.session("root"):
        assert 3 == optree.tool(functools.partial(plain, 1))(add=2)
        assert "x" == optree.tool(Search())("x")
    assert ["plain", "Search"] == [op.name for _, _, op in optree.walk_ops(recording.tree.session)]


def test_names_by_arguments(recording):
    """An op is named ``provider:model`` or ``provider:tool``, else by its name, its function, or its kind (S4-42)."""
    with optree.session("root"), optree.turn():
        for scope in (
            optree.llm(provider="openai", model="gpt-4o"),
            optree.llm(model="gpt-4o"),
            optree.llm("draft"),
            optree.llm(),
            optree.tool("search", provider="mcp"),
            optree.tool("search"),
            optree.tool(),
        ):
            with scope:
                pass
    assert ["openai:gpt-4o", "gpt-4o", "draft", "llm", "mcp:search", "search", "tool"] == [
        op.name for op in recording.tree.session.turns[0].ops
    ]


def test_attributes(recording):
    """Further arguments are attributes of the node (S4-28: isFinalTurn, S4-33: providerId)."""
    with (
        optree.session("root", tenant="acme"),
        optree.turn(user="u", system="s", number=7),
        optree.llm(provider="openai", model="gpt-4o", isFinalTurn=True),
        optree.tool("search", provider="rest", depth=2),
    ):
        pass
    root = recording.tree.session
    llm, tool = root.turns[0].ops
    assert "acme" == root.attributes["tenant"]
    assert ({"number": 7}, {"user": "u", "system": "s"}) == (root.turns[0].attributes, root.turns[0].prompts)
    assert {"provider": "openai", "model": "gpt-4o", "isFinalTurn": True} == llm.attributes
    assert {"provider": "rest", "depth": 2} == tool.attributes
    assert (None, llm.path) == (llm.parent_op, tool.parent_op)


def test_arguments_and_result(recording):
    """A decorated tool records arguments by name and its result; self stays out (S4-33, S4-56)."""

    class Toolbox:
        @optree.tool
        def search(self, query, *more, limit=3):
            return [query, *more][:limit]

    with optree.session("root"):
        Toolbox().search("a", "b", "c", limit=2)
    (op,) = recording.tree.session.turns[0].ops
    assert b'{"query":"a","more":["b","c"],"limit":2}' == bytes(op.request.payload)
    assert b'["a","b"]' == bytes(op.response.payload)
    (entry,) = op.accounting
    assert ("tool", "search", "ok", None) == (entry.type, entry.command, entry.status, entry.error)
    assert (op.request.size, op.response.size) == (entry.characters_in, entry.characters_out)
    assert op.latency == entry.latency


def test_own_request_and_response_win(recording):
    """What code inside records as request and response is not replaced by arguments and result."""

    @optree.llm
    def ask(question):
        op = optree.current()
        op.request(messages=[{"role": "user", "content": question}], temperature=0)
        op.response("from the wire")
        return "for the caller"

    with optree.session("root"):
        assert "for the caller" == ask("why")
    (op,) = recording.tree.session.turns[0].ops
    request = recording.tree.pool.resolve(optree._values.decode(op.request.payload))
    assert {"temperature": 0, "messages": [{"role": "user", "content": "why"}]} == request
    assert b'"from the wire"' == bytes(op.response.payload)


def test_retries_are_ops_of_their_own(recording):
    """Each attempt is an op of its own, with its logs and its figures (S4-31, S4-32)."""

    @optree.llm(provider="openai", model="gpt-4o")
    def ask(attempt):
        optree.current().log(f"attempt {attempt}")
        optree.current().account(input_tokens=attempt, status="failed" if attempt < 3 else "ok")
        if attempt < 3:
            raise ConnectionError("429")
        return "yes"

    with optree.session("root"), optree.turn():
        for attempt in (1, 2, 3):
            try:
                ask(attempt)
            except ConnectionError:
                continue
    ops = recording.tree.session.turns[0].ops
    assert ["failed", "failed", "ok"] == [op.status for op in ops]
    assert [["attempt 1"], ["attempt 2"], ["attempt 3"]] == [[entry.message for entry in op.logs] for op in ops]
    assert [1, 2, 3] == [op.accounting[0].tokens.input_tokens for op in ops]
    assert [True] * 3 == [op.latency >= 0 for op in ops]
    totals = recording.tree.session.totals
    assert (3, 2, 6) == (totals.llm_requests, totals.llm_failed, totals.input_tokens)


def test_tools_called_while_the_model_streams(recording):
    """Tools that are called while an LLM op streams are siblings that name it as parent (S4-35, S4-36)."""

    @optree.tool
    def look(word):
        return word

    with optree.session("root"), optree.turn(), optree.llm("stream") as op:
        op.think("first")
        look("a")
        op.think("second")
        look("b")
    llm, *tools = recording.tree.session.turns[0].ops
    assert ["1.1", "1.1"] == [tool.parent_op for tool in tools]
    assert ["1.2", "1.3"] == [tool.path for tool in tools]
    assert ["first", "second"] == [chunk.text for chunk in llm.reasoning.chunks]


def test_turns_number_themselves(recording):
    """Turns count from 1, ops from 1 in each turn, and ids follow from paths (S4-28, S4-42)."""
    with optree.session("root") as root:
        for _ in range(2):
            with optree.turn(), optree.tool("a"):
                pass
            with optree.tool("outside"):
                pass
    assert ["1.1", "2.1", "3.1", "4.1"] == [op.path for _, _, op in optree.walk_ops(recording.tree.session)]
    assert [f"{root.txn}:{n}.1" for n in (1, 2, 3, 4)] == [op.op_id for _, _, op in optree.walk_ops(recording.tree.session)]


def test_one_object_entered_again_and_nested(recording):
    """A context manager that is kept may be entered again, also inside itself."""
    scope = optree.tool("again")
    with optree.session("root"):
        with scope as outer, scope as inner:
            assert inner is optree.current()
        with scope:
            assert ("1.1", "1.2", "ok") == (outer.path, inner.path, outer.node.status)
    assert 3 == sum(op.status == "ok" for _, _, op in optree.walk_ops(recording.tree.session))


def test_two_objects_left_in_the_wrong_order(recording):
    """Blocks that are left in another order than the right one end their own nodes."""
    scope = optree.tool("again")
    with optree.session("root"):
        first, second = scope.__enter__(), scope.__enter__()
        scope.__exit__(None, None, None)
        assert (None, "ok") == (first.node.status, second.node.status)
        scope.__exit__(ValueError, ValueError("no"), None)
    assert "failed" == first.node.status
    assert 2 == len(list(optree.walk_ops(recording.tree.session)))


class Odd(BaseException):
    """An exception that is no `Exception`."""


GROUP = ExceptionGroup("two", [ValueError("a"), KeyError("b")])
ERRORS = [
    (ValueError("bad"), "failed", "ValueError: bad"),
    (ValueError(), "failed", "ValueError"),
    (GROUP, "failed", "ExceptionGroup: two (2 sub-exceptions)"),
    (TimeoutError(), "failed", "TimeoutError"),
    (StopAsyncIteration("x"), "failed", "StopAsyncIteration: x"),
    (Odd("x"), "failed", "Odd: x"),
    (SystemExit(0), "ok", None),
    (SystemExit(), "ok", None),
    (SystemExit(3), "failed", "SystemExit: 3"),
    (SystemExit("why"), "failed", "SystemExit: why"),
    (KeyboardInterrupt(), "cancelled", "KeyboardInterrupt"),
    (GeneratorExit(), "cancelled", "GeneratorExit"),
    (asyncio.CancelledError(), "cancelled", "CancelledError"),
    (asyncio.CancelledError("by me"), "cancelled", "CancelledError"),
]
errors = pytest.mark.parametrize(("error", "status", "said"), ERRORS, ids=lambda value: repr(value)[:40])


@errors
@pytest.mark.parametrize("kind", KINDS)
def test_exceptions_pass_unchanged(kind, error, status, said, recording):
    """An exception passes through as the same object with its own traceback and cause; the node says how it ended."""

    @decorator(kind, given=False)
    def work():
        raise error from None

    error.__traceback__ = None  # of another test's
    with optree.session("root"), pytest.raises(type(error)) as caught:
        work()
    assert error is caught.value
    assert "raise error from None" == traceback.extract_tb(error.__traceback__)[-1].line
    assert (None, None) == (error.__context__, error.__cause__)
    assert status == only_child(recording, kind)[1]
    node = recording.tree.session.turns[0]
    node = node if kind == "turn" else node.ops[0]
    assert said == (node.child_session if kind == "session" else node).error


@errors
def test_exceptions_leave_blocks_unchanged(error, status, said, recording):
    """An exception that leaves nested blocks ends each of them with its status (S4-30)."""

    def work():
        with optree.session("root"), optree.turn(), optree.llm("a"), optree.tool("b"):
            raise error

    with pytest.raises(type(error)) as caught:
        work()
    assert error is caught.value
    root = recording.tree.session
    nodes = [root, root.turns[0], *root.turns[0].ops]
    assert [(status, said)] * 4 == [(node.status, node.error) for node in nodes]
    assert (status == "ok") == root.success


def test_a_value_that_cannot_be_shown_does_no_harm(recording):
    """An argument or error whose own code raises does not reach the traced program."""

    class Hostile(Exception):  # noqa: N818 - the name says what it is
        def __str__(self):
            raise RuntimeError("no text")

        __repr__ = __str__

    @optree.tool
    def work(value):
        raise value

    with optree.session("root"), pytest.raises(Hostile):
        work(Hostile())
    (op,) = recording.tree.session.turns[0].ops
    assert ("failed", "Hostile: <Hostile: its text raises RuntimeError>") == (op.status, op.error)


MISUSES = [
    (lambda: optree.turn("why"), "turn('why') is not possible", "write turn(user=…)"),
    (lambda: optree.tool(Agent), "the class Agent cannot be traced", "decorate its method"),
]


@pytest.mark.parametrize(("misuse", "what", "next_step"), MISUSES, ids=[what for _, what, _ in MISUSES])
def test_misuse_is_refused(misuse, what, next_step):
    """Misuse at set-up raises `SetupError`, which says what to write instead; nothing is recorded."""
    with capture() as recording, pytest.raises(optree.SetupError) as caught:
        misuse()
    assert what in str(caught.value)
    assert next_step in str(caught.value)
    assert [] == recording.records


class Model:
    """A client's model, given where its name was meant."""

    def __str__(self):
        return "gpt-4o"

    def __bool__(self):
        raise ValueError("no truth")


@pytest.mark.parametrize("value", [3, b"x", ["gpt-4o"], Model()], ids=["int", "bytes", "list", "Model"])
def test_a_name_that_is_no_text_is_made_one(runtime, capfd, value):
    """A name of any kind raises nothing in the traced program: its text is recorded, and that is said once for each place and type."""
    with capture() as recording, optree.session(value), optree.turn():
        for _ in range(2):
            for scope in (optree.llm(provider=value, model=value), optree.llm(value), optree.tool(value, provider=value)):
                with scope:
                    pass
    root = recording.tree.session
    assert (str(value), [f"{value}:{value}", str(value), f"{value}:{value}"] * 2) == (root.agent_id, [op.name for op in root.turns[0].ops])
    assert (str(value), str(value)) == (root.turns[0].ops[0].attributes["provider"], root.turns[0].ops[0].attributes["model"])
    said = f"() was given a name that is no text but of type {type(value).__name__}; it is recorded as its text: give a str"
    expected = [what + said for what in ("session", "llm", "tool")]
    assert (expected, [f"optree: {line}" for line in expected]) == (runtime.problems.reported, capfd.readouterr().err.splitlines())
    assert expected == optree.health()["problems"]


def test_a_builders_txn_that_is_no_text_is_made_one():
    """A session that is given a number for its name is recorded under that."""
    builder = optree.SessionTreeBuilder("agent", txn=3)
    builder.begin_turn(user="go").end()
    assert ("3", ["go"]) == (builder.txn, [turn.prompts["user"] for turn in builder.node.turns])


class Proxy:
    """An object that raises when asked what it is, as lazy proxies do outside of their request."""

    @property
    def __class__(self):
        raise RuntimeError("no context")


def test_proxies_are_left_alone(recording):
    """A returned or yielded object that raises when asked for its class reaches the caller, and nothing raises."""
    found = Proxy()

    @optree.tool
    def several():
        yield found

    @optree.session(agent="s")
    def agent():
        return found

    with optree.session("lead"), optree.turn():
        assert [True] == [item is found for item in several()]
        assert agent() is found
    assert [("several", "ok"), ("s", "ok")] == [(op.name, op.status) for _, _, op in optree.walk_ops(recording.tree.session)]


def test_wrong_arguments_leave_nothing_open(recording):
    """A generator that is called with wrong arguments raises as it would, and no op stays open."""

    @optree.tool
    def one(number):
        yield number

    with optree.session("lead"), optree.turn(), pytest.raises(TypeError):
        list(one())
    assert [] == [op for _, _, op in optree.walk_ops(recording.tree.session) if op.ended_at is None]


@pytest.mark.parametrize("around", [None, "around"])
def test_one_block_object_in_two_sessions(around):
    """Each is left in another context than entered, another block open or none: what ends is of the session that this one is in."""
    shared = optree.tool("shared")
    found = {}

    def inside(name):
        with optree.session(name) as session, optree.turn():
            copy_context().run(shared.__enter__)
            yield
            with optree.tool(around) if around else nullcontext():
                shared.__exit__(None, None, None)
            found[name] = [(op.name, op.status) for _, _, op in walk_ops(session.tree.session)]
            yield

    contexts = [(copy_context(), inside("a")), (copy_context(), inside("b"))]
    for context, run in [*contexts, *contexts, *contexts]:
        context.run(next, run, None)
    assert {name: [(each, "ok") for each in ("shared", around) if each] for name in "ab"} == found


class Unbound:
    """A proxy of something that is not there, as web frameworks have them: whatever asks for its class is answered by an exception."""

    __class__ = property(lambda _self: 1 / 0)


@pytest.mark.parametrize("scope", [optree.session, optree.llm, optree.tool])
def test_a_name_that_cannot_be_asked_for_its_class(recording, scope):
    """A block with such a value for its name runs; that it is not recorded is counted."""
    before = optree.health()["failures"]
    with optree.session("agent"), optree.turn(), scope(Unbound()):
        ran = True
    assert (True, before + 1) == (ran, optree.health()["failures"])
    assert ("agent", "ok", ("turn 1", "ok")) == shape(recording.tree)
