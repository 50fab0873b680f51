import asyncio
import time
from collections import Counter

import pytest

import optree
from optree import _records as r
from optree._tree import Fold
from optree.testing import capture

TASKS = 10_000


@optree.tool
async def step(name, pauses=1):
    """Wait for *pauses* rounds of the event loop."""
    for _ in range(pauses):
        await asyncio.sleep(0)
    return name


@optree.tool
async def numbers():
    """Yield two numbers, each after a pause."""
    for number in range(2):
        await asyncio.sleep(0)
        yield number


@optree.session(agent="sub")
async def sub(name):
    """Be a sub-agent with one turn and one tool call."""
    with optree.turn(user=name):
        return await step(name)


def found(recording):
    """Return {path: (name, status, parent op)} of every op."""
    return {op.path: (op.name, op.status, op.parent_op) for _, _, op in optree.walk_ops(recording.tree.session)}


def test_gather(recording, ends):
    """Parallel calls are sibling ops of one turn, each with its own times (S4-34)."""

    async def main():
        with optree.session("root"), optree.turn():
            return await asyncio.gather(step("a", 3), step("b", 1), step("c", 2))

    assert ["a", "b", "c"] == asyncio.run(main())
    assert {f"1.{n}": ("step", "ok", None) for n in (1, 2, 3)} == found(recording)
    assert ["1.2", "1.3", "1.1"] == [path for path, _ in ends()]
    ops = recording.tree.session.turns[0].ops
    assert sorted(op.started_at for op in ops) == [op.started_at for op in ops]
    assert max(op.started_at for op in ops) < min(op.ended_at for op in ops)


def test_sub_agents_in_parallel(recording):
    """Sub-agents that run at once each have their own session, turn and ops (S4-37, S4-42)."""

    async def main():
        with optree.session("root"), optree.turn():
            return await asyncio.gather(*(sub(str(n)) for n in range(5)))

    assert ["0", "1", "2", "3", "4"] == asyncio.run(main())
    children = [op.child_session for op in recording.tree.session.turns[0].ops]
    assert ["0", "1", "2", "3", "4"] == [child.turns[0].prompts["user"] for child in children]
    assert [f"1.{n}.1.1" for n in range(1, 6)] == [op.path for child in children for op in child.turns[0].ops]


def test_task_group_in_which_one_fails(recording, ends):
    """In a task group the op that fails is failed, those that it takes down are cancelled, and the group's error passes."""

    @optree.tool
    async def fails():
        await asyncio.sleep(0)
        raise ValueError("no")

    @optree.tool
    async def group():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(step("a", 100))
            tasks.create_task(fails())
            tasks.create_task(step("b", 0))

    with optree.session("root"), optree.turn(), pytest.raises(ExceptionGroup) as caught:
        asyncio.run(group())
    assert ["no"] == [str(error) for error in caught.value.exceptions]
    assert {
        "1.1": ("group", "failed", None),
        "1.2": ("step", "cancelled", "1.1"),
        "1.3": ("fails", "failed", "1.1"),
        "1.4": ("step", "ok", "1.1"),
    } == found(recording)
    assert {1} == set(ends().values())


@pytest.mark.parametrize("limit", ["timeout", "wait_for"])
def test_timeout(limit, recording, ends):
    """What a timeout cuts off is cancelled; what sees the timeout is failed."""

    @optree.tool
    async def limited():
        if limit == "timeout":
            async with asyncio.timeout(0.001):
                await step("slow", 10**9)
        else:
            await asyncio.wait_for(step("slow", 10**9), 0.001)

    with optree.session("root"), optree.turn(), pytest.raises(TimeoutError):
        asyncio.run(limited())
    assert {"1.1": ("limited", "failed", None), "1.2": ("step", "cancelled", "1.1")} == found(recording)
    assert {1} == set(ends().values())


def test_task_sees_where_it_was_made(recording):
    """A task belongs to the op that was open where it was made, also after that op ended."""

    async def main():
        with optree.session("root"), optree.turn():
            with optree.tool("maker"):
                task = asyncio.create_task(step("late", 3))
            await task

    asyncio.run(main())
    assert {"1.1": ("maker", "ok", None), "1.2": ("step", "ok", "1.1")} == found(recording)


def test_shielded_task_outlives_its_caller(recording, ends):
    """A shielded task goes on when its caller is cancelled: it ends ok, once."""

    async def main():
        with optree.session("root"), optree.turn():
            inner = asyncio.create_task(step("inner", 3))

            @optree.tool
            async def caller():
                await asyncio.shield(inner)

            task = asyncio.create_task(caller())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            assert [True, "inner"] == [
                isinstance(await asyncio.gather(task, return_exceptions=True), list),
                await inner,
            ]

    asyncio.run(main())
    assert {"step": "ok", "caller": "cancelled"} == {name: status for name, status, _ in found(recording).values()}
    assert {1} == set(ends().values())


def test_never_awaited_coroutine_is_no_op(recording):
    """A decorated coroutine that is closed before it ran is no op; one that is closed while it waits is cancelled."""
    with optree.session("root"), optree.turn():
        step("never").close()
        running = step("closed")
        running.send(None)
        running.close()
    assert {"1.1": ("step", "cancelled", None)} == found(recording)


async def workflow():
    """Wait at many places: in a sub-agent, a gather, a task group, generators, a lock, and a clean-up."""
    with optree.session("root"), optree.turn(user="go"):
        with optree.llm(provider="p", model="m") as op:
            op.request(messages=[{"role": "user", "content": "go"}])
            await asyncio.sleep(0)
            op.account(input_tokens=1)
        await asyncio.gather(sub("a"), step("b", 2))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(step("c"))
            tasks.create_task(sub("d"))
        async for _ in numbers():
            await step("each")
        try:
            await step("last", 2)
        finally:
            await step("clean-up", 0)
    return "done"


def run_cut(rounds):
    """Run the workflow and cancel it after a number of rounds of its loop; returns its result and what was recorded."""

    async def main():
        task = asyncio.create_task(workflow())
        for _ in range(rounds):
            if task.done():
                break
            await asyncio.sleep(0)
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        return result

    with capture() as recording:
        return asyncio.run(main()), recording


def test_cancelled_at_every_await():
    """Cancelled at each of its awaits in turn, a workflow ends each op, turn and session exactly once, none as ok that was cut (S4-30)."""
    outcomes = []
    for rounds in range(200):
        result, recording = run_cut(rounds)
        outcomes.append("done" if result == "done" else type(result).__name__)
        if rounds == 0:
            assert [] == recording.records
            continue
        for begin, end in ((r.OpBegin, r.OpEnd), (r.TurnBegin, r.TurnEnd), (r.SessionBegin, r.SessionEnd)):
            begun = Counter(record.path for record in recording.records if isinstance(record, begin))
            assert begun == Counter(record.path for record in recording.records if isinstance(record, end))
            assert {1} >= set(begun.values())
        status = "ok" if result == "done" else "cancelled"
        assert status == recording.tree.session.status
        assert {"ok", status} >= {op.status for _, _, op in optree.walk_ops(recording.tree.session)}
        assert (optree.current_session(), optree.current()) == (None, None)
        if result == "done":
            break
    assert ["CancelledError"] * (len(outcomes) - 1) + ["done"] == outcomes
    assert 15 < len(outcomes)


def test_ten_thousand_tasks():
    """Ten thousand tasks at once: each op is there once, with its own id, under its own parent, and ended once (S4-34, S4-42)."""

    @optree.tool
    async def leaf(number):
        await asyncio.sleep(0)
        optree.current().log(str(number))
        return number

    @optree.tool
    async def branch(number):
        return sum(await asyncio.gather(*(leaf(number * 100 + n) for n in range(100))))

    async def main():
        with optree.session("root"), optree.turn():
            return sum(await asyncio.gather(*(branch(n) for n in range(TASKS // 100))))

    with capture(time.time) as recording:
        assert TASKS * (TASKS - 1) // 2 == asyncio.run(main())
    ops = recording.tree.session.turns[0].ops
    by_path = {op.path: op for op in ops}
    assert TASKS + TASKS // 100 == len(ops) == len(by_path) == len({op.op_id for op in ops})
    assert {"ok"} == {op.status for op in ops}
    counted = Counter(type(record) for record in recording.records)
    assert (len(ops), len(ops)) == (counted[r.OpBegin], counted[r.OpEnd])
    leaves = [op for op in ops if op.name == "leaf"]
    arguments = [optree._values.decode(op.request.payload)["number"] for op in leaves]
    assert list(range(TASKS)) == sorted(arguments)
    assert [[str(number)] for number in arguments] == [[entry.message for entry in op.logs] for op in leaves]
    parents = [optree._values.decode(by_path[op.parent_op].request.payload)["number"] for op in leaves]
    assert [number // 100 for number in arguments] == parents
    fold = Fold(recording.sessions[0].txn)
    for record in recording.records:
        fold.apply(record)
    assert optree.snapshot_summary(recording.tree.session) == optree.snapshot_summary(fold.finish().session)
    assert {op.path: len(op.logs) for op in ops} == {op.path: len(op.logs) for _, _, op in optree.walk_ops(fold.finish().session)}


def test_async_with(recording):
    """Each instrument is an asynchronous context manager too."""

    async def main():
        async with optree.session("lead"), optree.turn(user="x"), optree.llm("m") as op:
            op.response("y")

    asyncio.run(main())
    assert [("m", "ok")] == [(op.name, op.status) for _, _, op in optree.walk_ops(recording.tree.session)]
