import asyncio
import contextvars
import gc
import inspect
import threading

import pytest

import optree


@optree.tool
def numbers(count, seen=None):
    """Yield numbers; what is sent is kept in *seen*."""
    try:
        for number in range(count):
            got = yield number
            if seen is not None:
                seen.append(got)
    except ValueError as error:
        yield f"caught {error}"
    return "done"


@optree.tool
async def anumbers(count, seen=None):
    """Yield numbers, as a coroutine; what is sent is kept in *seen*."""
    try:
        for number in range(count):
            await asyncio.sleep(0)
            got = yield number
            if seen is not None:
                seen.append(got)
    except ValueError as error:
        yield f"caught {error}"


@optree.tool
def inner(name):
    """Be called by generators, to show where they are."""
    return name


def ops(recording):
    """Return (path, name, status, parent op) of every op."""
    return [(op.path, op.name, op.status, op.parent_op) for _, _, op in optree.walk_ops(recording.tree.session)]


def test_never_started(recording, ends):
    """A generator that is made and never asked for an item is no op."""
    with optree.session("root"):
        numbers(3)
        anumbers(3)
    assert [] == ops(recording)
    assert {} == ends()


def test_send(recording):
    """What is sent reaches the generator."""
    seen = []
    with optree.session("root"):
        running = numbers(3, seen)
        assert [0, 1, 2] == [next(running), running.send("a"), running.send("b")]
        with pytest.raises(StopIteration) as stop:
            running.send("c")
    assert ["a", "b", "c"] == seen
    assert "done" == stop.value.value
    assert [("1.1", "numbers", "ok", None)] == ops(recording)


def test_response_is_what_was_yielded(recording):
    """The response holds the items: texts as one text, a return value beside them."""

    @optree.tool
    def words():
        yield "a "
        yield "b"

    with optree.session("root"):
        list(words())
        list(numbers(2))
    assert [b'"a b"', b'{"items":[0,1],"returned":"done"}'] == [
        bytes(op.response.payload) for _, _, op in optree.walk_ops(recording.tree.session)
    ]


def test_throw_that_is_caught(recording):
    """What is thrown in reaches the generator, which may go on."""
    with optree.session("root"):
        running = numbers(3)
        next(running)
        assert "caught why" == running.throw(ValueError("why"))
        assert [] == list(running)
    assert [("1.1", "numbers", "ok", None)] == ops(recording)


def test_throw_that_is_not_caught(ends):
    """What is thrown in and not caught comes out as the same object, and the op failed."""
    error = KeyError("x")
    with optree.session("root"):
        running = numbers(3)
        next(running)
        with pytest.raises(KeyError) as caught:
            running.throw(error)
        assert error is caught.value
        assert error.__context__ is None
        assert [] == list(running)
    assert {("1.1", "failed"): 1} == ends()


def test_error_of_its_own(ends):
    """An exception that the generator raises comes out as the same object."""
    error = OSError("disk")

    @optree.tool
    def work():
        yield 1
        raise error

    with optree.session("root"):
        running = work()
        next(running)
        with pytest.raises(OSError, match="disk") as caught:
            next(running)
    assert error is caught.value
    assert {("1.1", "failed"): 1} == ends()


@pytest.mark.parametrize("way", ["close", "break", "garbage"])
def test_broken_off(way, recording, ends):
    """A generator that its consumer breaks off is cancelled, once, with what it had yielded; its own clean-up runs."""
    left = []

    @optree.tool
    def work():
        try:
            yield from range(10)
        finally:
            left.append(optree.current().path)

    with optree.session("root"):
        running = work()
        for item in running:
            if item == 2:
                break
        if way == "close":
            running.close()
            running.close()
        elif way == "garbage":
            del running
            gc.collect()
        if way != "break":
            assert {("1.1", "cancelled"): 1} == ends()
    assert {("1.1", "cancelled"): 1} == ends()
    running = None
    gc.collect()
    assert {("1.1", "cancelled"): 1} == ends()
    assert ["1.1"] == left
    (op,) = recording.tree.session.turns[0].ops
    assert way == "break" or b"[0,1,2]" == bytes(op.response.payload)


def test_close_in_another_thread(ends):
    """A generator that another thread closes ends its op there, and leaves that thread's context alone."""
    seen = []

    def closer(running):
        running.close()
        seen.append(optree.current())

    with optree.session("root"):
        running = numbers(3)
        next(running)
        thread = threading.Thread(target=closer, args=[running])
        thread.start()
        thread.join()
        assert {("1.1", "cancelled"): 1} == ends()
        assert optree.current() is None
    assert [None] == seen


def test_context_does_not_leak_into_the_consumer(recording):
    """Between items the consumer is where it was: what it opens is no child of the generator's op."""
    with optree.session("root") as root, optree.turn():
        for item in numbers(2):
            assert (root, None) == (optree.current_session(), optree.current())
            inner(item)
        with optree.tool("outer") as outer:
            for _ in numbers(1):
                assert outer is optree.current()
    assert [
        ("1.1", "numbers", "ok", None),
        ("1.2", "inner", "ok", None),
        ("1.3", "inner", "ok", None),
        ("1.4", "outer", "ok", None),
        ("1.5", "numbers", "ok", "1.4"),
    ] == ops(recording)


def test_two_generators_interleaved(recording):
    """Two generators whose pieces alternate keep their own places."""

    @optree.tool
    def work(name):
        for _ in range(2):
            inner(name)
            yield optree.current().path

    with optree.session("root"), optree.turn():
        first, second = work("a"), work("b")
        assert ["1.1", "1.3", "1.1", "1.3"] == [next(running) for running in (first, second, first, second)]
        assert ([], []) == (list(second), list(first))
    assert ["1.1", "1.3", "1.1", "1.3"] == [above for _, name, _, above in ops(recording) if name == "inner"]


def test_one_generator_inside_another(recording):
    """A generator that is consumed by another is its child."""

    @optree.tool
    def outer():
        for item in numbers(2):
            yield item + 1

    with optree.session("root"):
        assert [1, 2] == list(outer())
    assert [("1.1", "outer", "ok", None), ("1.2", "numbers", "ok", "1.1")] == ops(recording)


def test_block_open_across_yields(recording, ends):
    """A block inside the generator stays open across its yields, and only there (S4-35)."""

    @optree.tool
    def work():
        with optree.llm("stream") as op:
            for number in range(3):
                assert op is optree.current()
                inner(number)
                yield number

    with optree.session("root"), optree.turn():
        for _ in work():
            assert optree.current() is None
    assert ["1.1", "1.2", "1.2", "1.2"] == [above for _, _, _, above in ops(recording)][1:]
    assert 5 == len(ends())
    assert {1} == set(ends().values())


@pytest.mark.parametrize("closed", [True, False])
def test_block_open_when_it_is_broken_off(closed, ends):
    """A block inside a generator that is broken off is cancelled too, each once."""

    @optree.tool
    def work():
        with optree.llm("stream"):
            yield 1
            yield 2

    with optree.session("root"):
        running = work()
        next(running)
        if closed:
            running.close()
    del running
    gc.collect()
    assert {("1.1", "cancelled"): 1, ("1.2", "cancelled"): 1} == ends()


def test_session_as_generator(recording):
    """A sub-agent may be a generator: its session is open between its items, in it alone."""

    @optree.session(agent="stream")
    def agent():
        with optree.turn(user="go"):
            for number in range(2):
                inner(number)
                yield optree.current_session().agent

    with optree.session("root"):
        running = agent()
        assert ("stream", "root") == (next(running), optree.current_session().agent)
        assert ["stream"] == list(running)
    assert ["1.1", "1.1.1.1", "1.1.1.2"] == [path for path, *_ in ops(recording)]


def test_many_items(recording):
    """Of a long stream the first mebibyte is kept and the rest is counted; an item is kept as it was when it came."""

    @optree.tool
    def pages():
        page = {"text": ""}
        for number in range(20):
            page["text"] = f"{number:02}" * 50_000
            yield page

    with optree.session("root"):
        assert 20 == sum(1 for _ in pages())
    (op,) = recording.tree.session.turns[0].ops
    found = optree._values.decode(op.response.payload)
    assert (["00", "01", "02"], 20) == ([page["text"][:2] for page in found["items"][:3]], len(found["items"]) + found["more"])
    assert 20 > len(found["items"])


def test_generator_state(recording):
    """`inspect` sees the states of a decorated generator as of a plain one."""
    with optree.session("root"):
        running = numbers(1)
        assert inspect.GEN_CREATED == inspect.getgeneratorstate(running)
        next(running)
        assert inspect.GEN_SUSPENDED == inspect.getgeneratorstate(running)
        assert [] == list(running)
        assert inspect.GEN_CLOSED == inspect.getgeneratorstate(running)
    assert [("1.1", "numbers", "ok", None)] == ops(recording)


def test_async_send_and_throw(recording):
    """What is sent or thrown in reaches an async generator."""
    seen = []

    async def main():
        running = anumbers(5, seen)
        assert [0, 1] == [await anext(running), await running.asend("a")]
        assert "caught why" == await running.athrow(ValueError("why"))
        return [item async for item in running]

    with optree.session("root"):
        assert [] == asyncio.run(main())
    assert ["a"] == seen
    assert [("1.1", "anumbers", "ok", None)] == ops(recording)


def test_async_throw_that_is_not_caught(ends):
    """What is thrown into an async generator and not caught comes out as the same object."""
    error = KeyError("x")

    async def main():
        running = anumbers(5)
        await anext(running)
        with pytest.raises(KeyError) as caught:
            await running.athrow(error)
        assert error is caught.value

    with optree.session("root"):
        asyncio.run(main())
    assert {("1.1", "failed"): 1} == ends()


@pytest.mark.parametrize("way", ["aclose", "break", "garbage"])
def test_async_broken_off(way, ends):
    """An async generator that its consumer breaks off is cancelled, once, and cleans up in its own context."""
    left = []

    @optree.tool
    async def work():
        try:
            for number in range(10):
                with optree.llm("stream"):
                    await asyncio.sleep(0)
                    yield number
        finally:
            left.append(optree.current().path)

    async def main():
        running = work()
        async for item in running:
            if item == 1:
                break
        if way == "aclose":
            await running.aclose()
            await running.aclose()
        elif way == "garbage":
            del running
            gc.collect()
            await asyncio.sleep(0)

    with optree.session("root"):
        asyncio.run(main())
        assert {("1.1", "cancelled"): 1, ("1.2", "ok"): 1, ("1.3", "cancelled"): 1} == ends()
    assert ["1.1"] == left


def test_async_closed_in_another_task(recording, ends):
    """An async generator that another task closes ends its op, and leaves that task's context alone."""

    @optree.tool
    async def work():
        with optree.llm("stream"):
            yield 1
            yield 2

    async def closer(running):
        with optree.tool("closer") as op:
            await running.aclose()
            assert op is optree.current()

    async def main():
        running = work()
        await anext(running)
        await asyncio.create_task(closer(running))
        assert optree.current() is None
        inner("after")

    with optree.session("root"), optree.turn():
        asyncio.run(main())
    assert {("1.1", "cancelled"): 1, ("1.2", "cancelled"): 1, ("1.3", "ok"): 1, ("1.4", "ok"): 1} == ends()
    assert [None, "1.1", None, None] == [above for *_, above in ops(recording)]


def test_async_items_taken_by_several_tasks(recording):
    """Each piece of an async generator may run in another task; what it opens is its own child."""

    @optree.tool
    async def work():
        for number in range(3):
            inner(number)
            yield number

    async def taker(running):
        with optree.tool("taker"):
            return await anext(running)

    async def main():
        running = work()
        return [await asyncio.create_task(taker(running)) for _ in range(3)]

    with optree.session("root"), optree.turn():
        assert [0, 1, 2] == asyncio.run(main())
    (generator,) = [path for path, name, *_ in ops(recording) if name == "work"]
    assert [generator] * 3 == [above for _, name, _, above in ops(recording) if name == "inner"]


def test_async_interleaved(recording):
    """Two async generators consumed at once keep their own places, and the consumer its own."""

    @optree.tool
    async def work(name):
        for _ in range(3):
            await asyncio.sleep(0)
            inner(name)
            yield name

    async def main():
        first, second = work("a"), work("b")
        for _ in range(3):
            assert "a" == await anext(first)
            assert "b" == await anext(second)
            assert optree.current() is None
        await first.aclose()
        await second.aclose()

    with optree.session("root"), optree.turn():
        asyncio.run(main())
    names = {path: name for path, name, *_ in ops(recording)}
    assert ["work"] * 6 == [names[above] for _, name, _, above in ops(recording) if name == "inner"]
    assert {3} == {[above for *_, above in ops(recording)].count(path) for path, name in names.items() if name == "work"}


def test_async_without_a_loop(ends):
    """An async generator that is driven by hand and dropped, with no event loop, is cancelled."""
    with optree.session("root"):
        running = anumbers(3)
        step = running.__anext__()
        assert None is step.send(None)
        with pytest.raises(StopIteration):
            step.send(None)
        del running, step
        gc.collect()
        assert {("1.1", "cancelled"): 1} == ends()


def test_generator_in_a_context_of_its_own(recording):
    """Pieces that run in copied contexts find the generator's place, since it goes with the generator."""
    with optree.session("root"), optree.turn():

        @optree.tool
        def work():
            inner("a")
            yield 1
            inner("b")

        running = work()
        next(running)
        empty = contextvars.Context()
        assert [] == empty.run(list, running)
        assert optree.current_session() not in empty.values()
    assert ["1.1", "1.1"] == [above for _, name, _, above in ops(recording) if name == "inner"]
