"""What a program does with optree, one public call each, and what must hold after an exception out of a signal's handler hit it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import Any

import optree
from optree._background import Job
from optree._builder.handles import account_late
from optree._clock import now_ms
from optree._nodes import SNAPSHOT, USAGE_AT_START
from optree._records import OpEnd
from optree._store import ownership
from optree._store.upkeep import EACH_SECOND
from optree._tracing.runtime import RUNTIME
from optree._tree.totals import add_op, of_entries
from optree._tree.walk import walk_ops, walk_sessions
from optree._values import decode

LONG = 20.0
CALLS: list[str] = []
"""What the program's own functions were called with."""
BUDGETS: list[optree.Budget] = []
"""The budgets that were opened since it was looked at them."""
KNOWN: set[str] = set()
"""What was found already."""
USAGE = {"usage": {"prompt_tokens": 5, "completion_tokens": 7}}
PRICES = '{"openai": {"gpt-4o": {"input": 500000, "output": 250000}}}'
"""Of tokens, sums of which are exact."""


@contextmanager
def within(*scopes: Any) -> Iterator[list[Any]]:
    """Enter scopes that are not under test."""
    if not scopes:
        yield []
        return
    with scopes[0] as first, within(*scopes[1:]) as rest:
        yield [first, *rest]


@optree.tool
def plain_tool(name: str) -> str:
    """Return a text."""
    CALLS.append(name)
    return name.upper()


@optree.llm(provider="openai", model="gpt-4o")
def model(messages: list[Any]) -> Any:
    """Answer as a provider does."""
    CALLS.append("model")
    return (
        {
            "id": "1",
            "object": "chat.completion",
            "model": "gpt-4o",
            "choices": [{"message": {"role": "assistant", "content": "yes"}}],
            **USAGE,
        }
        if messages
        else ""
    )


@optree.tool
async def async_tool(name: str) -> str:
    """Return a text."""
    CALLS.append(name)
    return name.upper()


@optree.tool
def generator(name: str) -> Iterator[str]:
    """Yield, also inside a block of its own."""
    CALLS.append(name)
    yield "a"
    with optree.tool("inner"):
        yield "b"


@optree.tool
async def async_generator(name: str) -> AsyncIterator[str]:
    """Yield, also inside a block of its own."""
    CALLS.append(name)
    yield "a"
    with optree.tool("inner"):
        yield "b"


@optree.session(agent="decorated")
def agent(question: str) -> str:
    """Return a report."""
    CALLS.append(question)
    return "done"


def finish(coroutine: Any) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration:
        return


async def collect(items: AsyncIterator[str]) -> list[str]:
    """Return all items."""
    return [item async for item in items]


async def _async_with(scope: Any) -> None:
    async with scope:
        CALLS.append("block")


def block(scope: Callable[[], Any]) -> Callable[[Any], object]:
    """Return what enters a new scope, and leaves it."""

    def run(_op: Any) -> None:
        with scope():
            CALLS.append("block")

    return run


def _raising(scope: Any) -> None:
    with suppress(KeyError), scope:
        {}["the program's own"]


def _told(op: Any, usage: Any = None) -> None:
    op.end()
    if usage is not None:
        account_late(op, usage)


def _limited(*, shared: bool = False) -> None:
    with optree.budget(usd=1e6, reserve_usd=0.5) as budget:
        BUDGETS.append(budget)
        if shared:
            optree.child_env({})
        with optree.llm(provider="openai", model="gpt-4o") as op:
            op.account(cost_usd=0.125)
        CALLS.append("block")


def _told_of_budget() -> None:
    with optree.budget(usd=1e6) as budget:
        BUDGETS.append(budget)
        CALLS.append(f"{budget.limits} {budget.used} {budget.reserved} {budget.unknown_cost}")


def _explicit() -> None:
    builder = optree.SessionTreeBuilder("explicit")
    builder.begin_op("tool", "t", turn=builder.begin_turn(user="u")).log("line")
    builder.end_session()


def budget_flaws() -> list[str]:
    """Return what budgets hold though no call is under way, which of them still limit, and what they count otherwise than the tree."""
    found = [f"a budget still holds {one.reserved}" for one in BUDGETS if one.reserved["calls"]]
    found += [f"a budget is still open: {one.used}" for one in BUDGETS if not one.is_over]
    found += [f"a budget counts {one.used}" for one in BUDGETS if one.used["calls"] > 1 or one.used["usd"] not in (0.0, 0.125)]
    BUDGETS.clear()
    return found


def _idle() -> None:
    """Close the sessions' files as if they were many and idle, on the thread that does so."""

    def rest() -> None:
        for session in list(ownership._open):
            _ = session.rest() or session.rest()

    Job(EACH_SECOND, rest, str).wait(LONG, first=True)


def _session() -> Any:
    return optree.current_session()


ROOTS: dict[str, Callable[[], object]] = {
    "with session": lambda: block(lambda: optree.session("a"))(None),
    "@session": lambda: agent("why"),
    "llm without session": lambda: block(lambda: optree.llm("alone"))(None),
    "turn without session": lambda: block(lambda: optree.turn(user="alone"))(None),
    "SessionTreeBuilder": _explicit,
}
"""Calls where no session is open."""

CALLS_WITHIN: dict[str, Callable[[Any], object]] = {
    "with turn": block(lambda: optree.turn(user="u")),
    "with llm": block(lambda: optree.llm(provider="openai", model="gpt-4o")),
    "with tool": block(lambda: optree.tool("t", depth=1)),
    "with tool, raising": lambda _: _raising(optree.tool("t")),
    "with sub-session": block(lambda: optree.session("sub")),
    "async with": lambda _: finish(_async_with(optree.tool("t"))),
    "@tool": lambda _: plain_tool("x"),
    "@llm": lambda _: model([{"role": "user", "content": "hello"}]),
    "@tool async": lambda _: finish(async_tool("x")),
    "@tool generator": lambda _: list(generator("x")),
    "@tool async generator": lambda _: finish(collect(async_generator("x"))),
    "@session in a session": lambda _: agent("why"),
    "with budget": lambda _: _limited(),
    "with budget that is shared": lambda _: _limited(shared=True),
    "Budget.used": lambda _: _told_of_budget(),
    "Op.log": lambda op: op.log("a line"),
    "Op.log with more": lambda op: op.log("a line", "WRN", details={"k": [1, 2]}),
    "Op.think": lambda op: op.think("hm"),
    "Op.chunk": lambda op: (op.chunk("a"), op.chunk("b")),
    "Op.account": lambda op: op.account(input_tokens=3, output_tokens=4, cost_usd=0.5),
    "Op.account of a usage": lambda op: op.account(USAGE, cost_usd=0.25),
    "Op.account at a price": lambda op: op.account(input_tokens=3, output_tokens=4),
    "Op.end with usage": lambda op: _told(op.builder.begin_op("llm", "openai:gpt-4o", attributes={USAGE_AT_START: USAGE})),
    "usage behind an op's end": lambda op: _told(op.builder.begin_op("llm", "openai:gpt-4o"), USAGE),
    "Op.request": lambda op: op.request([{"role": "user", "content": "hi" * 300}], temperature=1),
    "Op.response": lambda op: op.response({"text": "there"}),
    "Op.end": lambda op: (op.log("last"), op.end()),
    "Op.end failed": lambda op: (op.chunk("part"), op.end("failed", "no", reasoning="because", code=3)),
    "Op.node": lambda op: (op.log("seen"), op.node),
    "Turn.assistant": lambda op: op.turn.assistant("said"),
    "Turn.end": lambda op: op.turn.end(),
    "Op.id": lambda op: op.id,
    "Session.message": lambda _: _session().message({"role": "user", "content": "hi"}, cause=["m"]),
    "Session.title": lambda _: _session().title("t"),
    "begin_op": lambda op: op.builder.begin_op("tool", "explicit").end(),
    "begin_turn": lambda op: op.builder.begin_turn(user="explicit").end(),
    "append_log": lambda op: op.builder.append_log(op, "a line"),
    "append_reasoning": lambda op: op.builder.append_reasoning(op, "hm"),
    "append_chunk": lambda op: op.builder.append_chunk(op, "a"),
    "append_accounting": lambda op: op.builder.append_accounting(op, {"input_tokens": 1}),
    "append_message": lambda op: op.builder.append_message("hi"),
    "append_message with a cause": lambda op: op.builder.append_message({"role": "user", "content": "hi"}, cause=["m"]),
    "set_request": lambda op: op.builder.set_request(op, {"temperature": 1}, [{"role": "user", "content": "hi"}]),
    "set_response": lambda op: op.builder.set_response(op, "there"),
    "set_op": lambda op: op.builder.set_op(op, extra=1),
    "set_title": lambda op: op.builder.set_title("t"),
    "set_title with more": lambda op: op.builder.set_title("t", status="s", attributes={"a": 1}),
    "set_assistant": lambda op: op.builder.set_assistant(op.turn, "said"),
    "end_turn": lambda op: op.builder.end_turn(op.turn),
    "end_op": lambda op: op.builder.end_op(op.builder.begin_op("tool", "t").id, "failed", "no"),
    "op": lambda op: op.builder.op(op.node.path),
    "record": lambda op: op.builder.record(OpEnd(op.builder.begin_op("tool", "t").node.path, now_ms(), "ok", 0.0)),
    "SessionTreeBuilder.tree": lambda op: (op.builder.tree, op.builder.ancestry(), op.builder.txn, op.builder.running),
    "set_final_report": lambda op: op.builder.set_final_report("done"),
    "attach_child_session": lambda op: op.builder.attach_child_session(op.builder.begin_op("tool", "t"), "sub").end_session(),
    "end_session": lambda op: op.builder.end_session(),
    "snapshot": lambda op: op.builder.snapshot(),
    "Session.status": lambda _: _session().status("at work"),
    "Session.history": lambda _: _session().history(),
    "Session.tree": lambda _: _session().tree,
    "Session.txn": lambda _: (_session().txn, _session().path, _session().agent, _session().running),
    "Session.totals": lambda _: _session().totals,
    "op of an idle session": lambda op: (_idle(), op.builder.begin_op("tool", "t").end(), op.log("x"), optree.flush("write")),
    "end of an idle session": lambda op: (_idle(), op.builder.end_session()),
    "snapshot of an idle session": lambda op: (_idle(), op.builder.snapshot()),
    "flush write": lambda op: (op.log("x"), optree.flush("write")),
    "flush sync": lambda op: (op.log("x"), optree.flush("sync")),
    "flush snapshot": lambda op: (op.log("x"), optree.flush("snapshot")),
    "flush export": lambda op: (op.log("x"), optree.flush("export")),
    "health": lambda _: optree.health(),
    "configure": lambda _: optree.configure(verbose=True),
    "current": lambda _: (optree.current(), optree.current_session()),
    "current_session": lambda _: optree.current_session(),
    "child_env": lambda _: optree.child_env({}),
    "wrap": lambda _: optree.wrap(len)("abc"),
}
"""Calls inside a session, a turn and an op, which they are given."""


def totals_flaws(root: Any) -> list[str]:
    """Return where totals of a tree are other than the sum of its leaves."""
    found = []
    for session in walk_sessions(root):
        ops = [op for _, _, op in walk_ops(session)]
        expected = of_entries(entry for op in ops for entry in op.accounting)
        for op in ops:
            add_op(expected, op.kind)
        if session.totals != expected:
            found.append(f"{session.path or 'root'}: {session.totals} is not {expected}")
    return found


def prices_flaws(root: Any) -> list[str]:
    """Return the entries of a tree whose tokens have a price and that have no cost, or whose price the tree does not say."""
    found = []
    for entry in (entry for _, _, op in walk_ops(root) for entry in op.accounting):
        price = decode(entry.details).get("optree.price") if entry.details else None
        if (price is not None and price not in root.attributes.get(SNAPSHOT, {})) or (
            entry.model == "gpt-4o" and entry.tokens and entry.tokens.total_tokens and entry.cost_usd is None
        ):
            found.append(f"{entry} where the prices are {root.attributes.get(SNAPSHOT)}")
    return found


def probe_flaws() -> list[str]:
    """Return what is wrong with the next session of the program."""
    found = []
    if optree.current_session() is not None:
        found.append(f"inside {optree.current()} before it")
    with optree.session("probe") as session, optree.turn(), optree.llm("x") as op:
        op.log("line")
        op.account(input_tokens=1)
        delivered = _delivered(op)
    if session.path:
        found.append(f"recorded under {session.path}")
    if not delivered:
        found.append("its log is not delivered")
    whole = [(op.name, op.status, len(op.logs), len(op.accounting)) for _, _, op in walk_ops(session.tree)]
    if whole != [("x", "ok", 1, 1)]:
        found.append(f"recorded as {whole}")
    return found


def _delivered(op: Any) -> bool:
    until = monotonic() + LONG
    while op._raw and monotonic() < until:
        sleep(0.001)
    return not op._raw


def run_flaws(before: int) -> list[str]:
    """Return whether the program's code ran more often than it was called."""
    times = len(CALLS) - before
    return [] if times <= 1 else [f"the program's code ran {times} times"]


def left_flaws() -> list[str]:
    """Return what is open though nothing runs: in no session, after as many as are begun until what is open is looked through."""
    for _ in range(len(RUNTIME.stores) // 8 + 2):  # so often what is open is looked through
        if any(session.running for session in list(RUNTIME.sessions.values())):
            with optree.session("another"):
                pass
    found = [f"open: {txn}" for txn, session in list(RUNTIME.sessions.items()) if session.running]
    until = monotonic() + LONG
    while (stores := [txn for txn, store in list(RUNTIME.stores.items()) if not store.ended and txn not in KNOWN]) and monotonic() < until:
        with optree.session("another"):  # a begin goes on to its end, on another thread, and the next one finds it
            pass
    KNOWN.update(stores)
    return [*found, *([f"stores of sessions that have not ended: {stores}"] if stores else [])]
