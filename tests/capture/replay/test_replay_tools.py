"""Tools that a program calls again get what was recorded, and do not run: the same results and failures, or where they begin to differ."""

import asyncio
import dataclasses
import inspect
import json
import math
import threading

import pytest
from msgspec import Raw

import optree
from optree._formats.plain_json import PlainJson
from optree._tree import walk_ops
from optree._tree.redacted import redacted
from optree._values import decode
from optree.errors import OptreeError
from optree.testing import replay, shape
from tests.capture.conftest import record


def refused(function, *arguments):
    """Return what a call is refused with."""
    with pytest.raises(OptreeError) as raised:
        function(*arguments)
    return str(raised.value)


def tools(recording):
    """Return the calls of tools that were recorded."""
    return [op for _, _, op in walk_ops(recording.tree) if op.kind == "tool"]


def told(recording):
    """Return what is the same each time of a recording."""
    ops = [(op.name, op.status, op.error, op.request and decode(op.request.payload)) for op in tools(recording)]
    return shape(recording.tree), ops, [op.response and decode(op.response.payload) for op in tools(recording)]


class Shelf:
    """Tools of all kinds, which count how often they run."""

    def __init__(self):
        self.ran = 0

    @optree.tool
    def plain(self, value):
        """Return what is given."""
        self.ran += 1
        return value

    @optree.tool
    async def awaited(self, value):
        """Return it from a coroutine."""
        self.ran += 1
        return value

    @optree.tool
    def generated(self, values, returned=None):
        """Yield it."""
        self.ran += 1
        yield from values
        return returned

    @optree.tool
    async def generated_async(self, values):
        """Yield it from an asynchronous generator."""
        self.ran += 1
        for value in values:
            yield value

    @staticmethod
    @optree.tool
    def static(value):
        """Return it, from a static method."""
        return value


def drained(generator):
    """Return what a generator yields, and what it returns."""
    found = []
    while True:
        try:
            found.append(next(generator))
        except StopIteration as stop:
            return found, stop.value


async def drained_async(generator):
    """Return what an asynchronous generator yields."""
    return [item async for item in generator]


PLAIN = [None, True, 0, -1.5, "", "a page", [], {}, {"pages": [1, {"a": None}]}, {"items": [1], "more": 2}]
MARKED = [b"\x00bytes", math.inf, 1 << 70, {"deep": [b"a"]}]


@pytest.mark.parametrize("value", [*PLAIN, *MARKED], ids=str)
def test_a_result(value):
    """A function, a coroutine and a method that return it do not run: what they returned is returned."""
    shelf = Shelf()

    def run():
        return shelf.plain(value), asyncio.run(shelf.awaited(value))

    expected, recorded = record(run)
    with replay(recorded.tree):
        found, again = record(run)
    assert (expected, 2) == (found, shelf.ran)
    assert told(recorded) == told(again)
    assert ["test-1:1.1", "test-1:1.2"] == [op.attributes["replay.of"] for op in tools(again)]


@pytest.mark.parametrize("values", [[], ["one"], [1, None, {"a": [2]}], [[1], [2]], ["a", 1], [b"x"]], ids=str)
def test_a_generator(values):
    """A generator that was read to its end yields the same, and returns the same."""
    shelf = Shelf()

    def run():
        return drained(shelf.generated(values, {"more": 1})), asyncio.run(drained_async(shelf.generated_async(values)))

    expected, recorded = record(run)
    with replay(recorded.tree):
        found, _ = record(run)
    assert (expected, 2) == (found, shelf.ran)


def test_texts_of_a_generator_come_in_one():
    """Texts that were yielded are recorded, and come again, as one."""
    shelf = Shelf()
    _, recorded = record(lambda: drained(shelf.generated(["a ", "page"])))
    with replay(recorded.tree):
        found, again = record(lambda: drained(shelf.generated(["a ", "page"])))
    assert (["a page"], None) == found
    assert told(recorded) == told(again)


def test_a_generator_that_was_not_read_to_its_end():
    """What a generator would have yielded then is not known: that is a difference."""
    shelf = Shelf()
    _, recorded = record(lambda: next(shelf.generated([1, 2])))
    with (
        pytest.raises(AssertionError, match=r"1\.1: the call at 1\.1 of test-1 was broken off when it was recorded"),
        replay(recorded.tree),
    ):
        record(lambda: refused(next, shelf.generated([1, 2])))


def test_a_result_that_cannot_be_read():
    """Where what was recorded is damaged the call is refused, and the tool does not run."""
    shelf = Shelf()
    _, recorded = record(lambda: drained(shelf.generated([1, 2])))
    [op] = tools(recorded)
    op.response.payload = Raw(b"{")
    with pytest.raises(AssertionError, match=r"1\.1: what is recorded cannot be given: DecodeError"), replay(recorded.tree):
        said, _ = record(lambda: refused(drained, shelf.generated([1, 2])))
    assert (True, 1) == (said.startswith("optree replay: what is recorded cannot be given: DecodeError: "), shelf.ran)


class NoSuchCity(Exception):  # noqa: N818 - as programs have it
    """Takes what no text makes again."""

    def __init__(self, city, *, code):
        super().__init__(city, code)
        self.city = city

    def __str__(self):
        return f"no city {self.city}"


class Refused(NoSuchCity):
    """Is a failure of another class."""


FAILURES = [
    ValueError("no such city"),
    ValueError(),
    KeyError("city"),
    KeyError(("a", 1)),
    FileNotFoundError(2, "No such file", "page"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    json.JSONDecodeError("Expecting value", "", 0),
    NoSuchCity("Athens", code=3),
    Refused("Rome", code=4),
    OptreeError("the program's"),
    type("Local", (Exception,), {})("a: b"),
    SystemExit(3),
]


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_a_failure(failure):
    """A tool that failed fails again: its exception is of the same class, and has the same text."""
    ran = []

    @optree.tool
    def look(city):
        ran.append(city)
        raise failure

    def run():
        try:
            return look("Athens")
        except type(failure) as error:
            return type(error).__name__, str(error)

    expected, recorded = record(run)
    with replay(recorded.tree):
        found, again = record(run)
    assert (expected, 1) == (found, len(ran))
    assert told(recorded)[1:] == told(again)[1:]


def test_a_generator_that_failed():
    """A generator yields what it had yielded, and fails."""

    @optree.tool
    def pages(names):
        yield from names
        raise ConnectionError("gone")

    def read(names):
        found = []
        try:
            for page in pages(names):
                found.append(page)  # noqa: PERF402 - as far as it comes
        except ConnectionError as error:
            return found, str(error)

    for names in ([1, 2], ["a"], []):
        expected, recorded = record(lambda names=names: read(names))
        with replay(recorded.tree):
            found, _ = record(lambda names=names: read(names))
        assert expected == found


def test_a_failure_whose_class_is_not_there():
    """The exception of a class that the program does not have has its name."""
    name = "Gone"

    @optree.tool
    def look():
        raise type(name, (Exception,), {"__module__": "elsewhere"})("away")

    def run():
        with pytest.raises(Exception, match="away") as raised:
            look()
        return raised.type.__name__

    expected, recorded = record(run)
    with replay(recorded.tree):
        assert expected == record(run)[0]


@dataclasses.dataclass
class Page:
    """What JSON does not hold as it is."""

    name: str


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (Page("tides"), f"{__name__}.Page"),
        ({"pages": [Page("tides")]}, f"{__name__}.Page"),
        ({1: "a"}, "int as a key"),
        ({"a"}, "set"),
        (type("Text", (str,), {})("a"), f"{__name__}.Text"),
        (bytes(600_000), "bytes"),
    ],
    ids=["object", "object within", "key", "set", "kind of text", "many bytes"],
)
@pytest.mark.parametrize("kind", ["function", "generator"])
def test_a_result_that_is_an_object(made, name, kind):
    """A tool whose result JSON does not hold runs again, and its op says that it did, and why."""
    ran = []

    @optree.tool
    def look():
        ran.append(1)
        return made

    @optree.tool
    def looks():
        ran.append(1)
        yield made

    def run():
        return look() if kind == "function" else list(looks())

    expected, recorded = record(run)
    with replay(recorded.tree):
        found, again = record(run)
    assert (expected, 2) == (found, len(ran))
    [op] = tools(again)
    assert "test-1:1.1" == op.attributes["replay.ran_for"]
    why = f"the result at 1.1 of test-1 cannot be made again of what was recorded: it is, or has, a {name}"
    assert [f"optree replay: run again, {why}"] == [line.message for line in op.logs]


def test_a_result_beside_the_response():
    """A tool that records another response than its result runs again."""
    ran = []

    @optree.tool
    def look():
        ran.append(1)
        optree.current().response("in short")
        return {"page": "in full"}

    _, recorded = record(look)
    with replay(recorded.tree):
        found, _ = record(look)
    assert ({"page": "in full"}, 2) == (found, len(ran))


def test_other_arguments():
    """A call with arguments that were not recorded does not run: it raises where it differs, and so does the end of the replay."""
    shelf = Shelf()
    _, recorded = record(lambda: shelf.plain("Athens"))
    with pytest.raises(AssertionError) as raised, replay(recorded.tree):
        error, again = record(lambda: refused(shelf.plain, "Berlin"))
    where = 'not as recorded at 1.1 of test-1: arguments.value is "Berlin", not "Athens"'
    assert f"optree replay: {where}; with --tools live, in a test tools='live', tools run" == error
    assert f"1.1: {where}; 1.1 of test-1 was not asked for" == str(raised.value)
    assert (1, [where]) == (shelf.ran, [op.attributes["replay.difference"] for op in tools(again)])


def test_a_tool_that_was_not_called():
    """Another tool does not run, nor one more call of the same; one that is not called is missing."""
    shelf = Shelf()
    _, recorded = record(lambda: shelf.plain("Athens"))
    expected = "1.1: session test-1 has no more calls of the tool static; 1.1 of test-1 was not asked for"
    with pytest.raises(AssertionError) as raised, replay(recorded.tree):
        record(lambda: refused(shelf.static, "Athens"))
    assert expected == str(raised.value)
    with pytest.raises(AssertionError, match=r"1\.2: session test-1 has no more calls of the tool plain"), replay(recorded.tree):
        record(lambda: (shelf.plain("Athens"), refused(shelf.plain, "Athens")))
    assert 1 == shelf.ran


@pytest.mark.parametrize(
    ("result", "why"),
    [("a " * 600_000, "was too long to be recorded whole"), (["a"] * 200_000, "was too long to be recorded whole")],
    ids=["text", "items"],
)
def test_a_result_that_was_recorded_in_part(result, why):
    """A result of which only some was recorded is not given for the whole."""
    shelf = Shelf()
    given = iter([result, result])

    @optree.tool
    def look():
        shelf.ran += 1
        return next(given)

    _, recorded = record(look)
    with pytest.raises(AssertionError, match=rf"1\.1: the result at 1\.1 of test-1 {why}"), replay(recorded.tree):
        record(lambda: refused(look))
    assert 1 == shelf.ran


def test_a_result_without_its_credential(tmp_path):
    """A result that has lost a credential is not given; arguments that have lost one are those that had it."""
    shelf = Shelf()
    secret = "sk-proj-Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFy"
    login = optree.tool("login")(lambda key: f"welcome, {len(key)}")
    _, recorded = record(lambda: (login(secret), shelf.plain({"key": secret})))
    tree, _ = redacted(recorded.tree)
    [path] = PlainJson().write(tree, tmp_path / "monday.json")
    assert secret not in path.read_text()
    with pytest.raises(AssertionError) as raised, replay(path):
        found, _ = record(lambda: (login(secret), refused(shelf.plain, {"key": secret}))[0])
    assert ("welcome, 48", 1) == (found, shelf.ran)
    assert "the result at 1.2 of test-1 has had a credential in it, which was not recorded" in str(raised.value)
    assert secret not in str(raised.value)


def test_live_tools():
    """Where tools are live they run, whatever was recorded."""
    shelf = Shelf()
    _, recorded = record(lambda: shelf.plain("Athens"))
    with replay(recorded.tree, tools="live"):
        found, again = record(lambda: shelf.plain("Berlin"))
    assert ("Berlin", 2, {}) == (found, shelf.ran, tools(again)[0].attributes)


def test_a_tool_that_calls_others_runs():
    """A tool within which others were called runs, and these get what was recorded; one with a block in it does not."""
    ran = []

    @optree.tool
    def inner(word):
        ran.append("inner")
        return word.upper()

    @optree.tool
    def outer(word):
        ran.append("outer")
        return inner(word)

    @optree.tool
    def with_block(word):
        ran.append("block")
        with optree.tool("step"):
            return word

    def run():
        return outer("a"), with_block("b")

    expected, recorded = record(run)
    with replay(recorded.tree):
        found, again = record(run)
    assert (expected, ["outer", "inner", "block", "outer"]) == (found, ran)
    of = [(op.name, op.attributes.get("replay.of"), op.attributes.get("replay.ran_for")) for op in tools(again)]
    assert [("outer", None, "test-1:1.1"), ("inner", "test-1:1.2", None), ("with_block", "test-1:1.3", None)] == of


def test_a_block_runs():
    """A block of the program's runs, as it did; that is no difference, and one that is not there any more is."""

    def run(words=("tides", "moon")):
        for word in words:
            with optree.tool("step") as op:
                op.request(word=word)

    _, recorded = record(run)
    with replay(recorded.tree):
        record(run)
    with pytest.raises(AssertionError, match=r"^1\.2 of test-1 was not asked for$"), replay(recorded.tree):
        record(lambda: run(["tides"]))


def test_calls_that_are_the_same_get_their_answers_by_place():
    """Of calls that are the same each gets the answer of its place: its agent, and what that was asked; there, the next."""
    numbers = iter(range(100))

    @optree.tool
    def count():
        return next(numbers)

    @optree.session(agent="reader")
    def read(question):
        with optree.turn(user=question):
            return [count() for _ in range(2)]

    def run(questions):
        return {question: read(question) for question in questions}

    expected, recorded = record(lambda: run(["a", "b", "c"]))
    with replay(recorded.tree):
        found, _ = record(lambda: run(["c", "a", "b"]))
    assert {"a": [0, 1], "b": [2, 3], "c": [4, 5]} == expected == found


def test_branches_at_once():
    """Branches of threads, whichever comes first, get their answers."""
    numbers = iter(range(100))
    turns = [threading.Event(), threading.Event()]

    @optree.tool
    def count():
        return next(numbers)

    @optree.session(agent="reader")
    def read(question, first, then):
        with optree.turn(user=question):
            first.wait(30)
            found = count()
        then.set()
        return found

    def run(order):
        found = {}
        for one in turns:
            one.clear()
        gates = {order[0]: turns[0], order[1]: turns[1]}
        turns[0].set()

        def branch(name):
            found[name] = read(name, gates[name], turns[1])

        threads = [threading.Thread(target=optree.wrap(branch), args=(name,)) for name in order]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        return found

    expected, recorded = record(lambda: run("ab"))
    with replay(recorded.tree):
        found, _ = record(lambda: run("ba"))
    assert {"a": 0, "b": 1} == expected == found


def test_objects_as_arguments():
    """An argument that is named by its address is the same in each process."""
    made = []

    @optree.tool
    def look(thing):
        made.append(thing)
        return len(made)

    _, recorded = record(lambda: look(object()))
    with replay(recorded.tree):
        found, _ = record(lambda: look(object()))
    assert (1, 1) == (found, len(made))


def test_a_fork():
    """Up to an op tools get what was recorded; from there on they run, be they the same or others."""
    shelf = Shelf()
    _, recorded = record(lambda: [shelf.plain(value) for value in ("a", "b", "c")])
    with replay(recorded.tree, at="1.3"):
        found, again = record(lambda: [shelf.plain(value) for value in ("a", "b", "c", "d")])
    assert (["a", "b", "c", "d"], 5) == (found, shelf.ran)
    assert ["test-1:1.1", "test-1:1.2", None, None] == [op.attributes.get("replay.of") for op in tools(again)]


def test_a_fork_within_a_tool():
    """A tool within which a run is forked runs."""
    ran = []

    @optree.tool
    def inner(word):
        ran.append(word)
        return word

    @optree.tool
    def outer(words):
        return [inner(word) for word in words]

    _, recorded = record(lambda: outer(["a", "b"]))
    with replay(recorded.tree, at="1.3"):
        found, _ = record(lambda: outer(["a", "b"]))
    assert (["a", "b"], ["a", "b", "b"]) == (found, ran)


def test_a_fork_that_leaves_its_way():
    """A call that was not recorded ahead of the fork runs, which is said."""
    shelf = Shelf()
    _, recorded = record(lambda: [shelf.plain(value) for value in ("a", "b")])
    with pytest.raises(AssertionError, match=r"1\.1 of test-1 was not asked for"), replay(recorded.tree, at="1.2"):
        _, again = record(lambda: shelf.plain("other"))
    assert ["run, though 1.1 of test-1, ahead of the fork, was not asked for yet"] == [line.message for line in tools(again)[0].logs]


def test_without_a_replay_nothing_is_seen():
    """Behind the block tools run."""
    shelf = Shelf()
    _, recorded = record(lambda: shelf.plain("a"))
    with replay(recorded.tree):
        record(lambda: shelf.plain("a"))
    assert ("b", 2) == (record(lambda: shelf.plain("b"))[0], shelf.ran)
    assert inspect.iscoroutinefunction(shelf.awaited)
