"""How a program that uses optree is typed. Never run: mypy and pyright read it, both strictly."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

import subprocess
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, assert_type

import optree
from optree.testing import capture, shape


@optree.session
def bare(question: str, *, limit: int = 3) -> list[str]:
    """Decorate a function without arguments."""
    return [question] * limit


@optree.session(agent="researcher", tenant="acme")
async def named(question: str) -> str:
    """Decorate a coroutine function with arguments."""
    return question


@optree.session("researcher")
def positional() -> None:
    """Give the name by position."""


@optree.turn
def turn_bare(number: int) -> int:
    """Decorate a turn without arguments."""
    return number


@optree.turn(user="why", system="be brief")
def turn_given(number: int) -> int:
    """Decorate a turn with arguments."""
    return number


@optree.llm
def ask(messages: list[dict[str, str]]) -> dict[str, object]:
    """Decorate an LLM call without arguments."""
    return {"messages": messages}


@optree.llm(provider="openai", model="gpt-4o", isFinalTurn=True)
async def stream(prompt: str) -> AsyncGenerator[str, None]:
    """Decorate an async generator."""
    yield prompt


@optree.tool
def numbers(count: int) -> Generator[int, str, bool]:
    """Decorate a generator."""
    sent = yield count
    return bool(sent)


@optree.tool("search", provider="mcp")
async def search(query: str, /, *more: str, limit: int | None = None) -> list[str]:
    """Decorate a coroutine function whose parameters are of all kinds."""
    return [query, *more][:limit]


class Toolbox:
    """A class whose methods are decorated."""

    @optree.tool
    def method(self, query: str) -> str:
        """Be a method."""
        return query

    @classmethod
    @optree.tool
    def of_class(cls, query: str) -> "Toolbox":
        """Be a class method."""
        return cls() if query else Toolbox()

    @staticmethod
    @optree.tool(provider="rest")
    def static(query: str) -> bytes:
        """Be a static method."""
        return query.encode()


async def calls(box: Toolbox) -> None:
    """Show that what is decorated keeps its signature."""
    assert_type(bare("why", limit=2), list[str])
    waiting: Coroutine[Any, Any, str] = named("why")
    assert_type(await waiting, str)
    assert_type(await named("why"), str)
    assert_type(turn_bare(1), int)
    assert_type(turn_given(number=1), int)
    assert_type(ask([{"role": "user"}]), dict[str, object])
    assert_type(stream("go"), AsyncGenerator[str, None])
    assert_type(numbers(3), Generator[int, str, bool])
    assert_type(await search("a", "b", limit=2), list[str])
    assert_type(box.method("a"), str)
    assert_type(Toolbox.of_class("a"), Toolbox)
    assert_type(Toolbox.static("a"), bytes)
    positional()
    async for piece in stream("go"):
        assert_type(piece, str)


def mistakes(box: Toolbox) -> None:
    """Show that wrong calls are still found: an ignore that is not needed is an error by itself."""
    bare(3)  # type: ignore[arg-type]
    bare("why", maximum=2)  # type: ignore[call-arg]
    turn_given()  # type: ignore[call-arg]
    box.method(b"a")  # type: ignore[arg-type]
    optree.turn("why")  # type: ignore[call-overload]
    optree.llm(provider=3)  # type: ignore[call-overload]
    with optree.llm(provider="openai", model="gpt-4o") as op:
        op.account(imput_tokens=1)  # type: ignore[call-arg]
        op.account(input_tokens="many")  # type: ignore[arg-type]
        op.account(1200, 64)  # type: ignore[arg-type]


def blocks() -> None:
    """Show what context managers give."""
    with optree.session(agent="researcher") as session, optree.turn(user="why") as turn:
        assert_type(session, optree.Session)
        assert_type(turn, optree.Turn)
        with optree.llm(provider="openai", model="gpt-4o") as op:
            assert_type(op, optree.Op)
            op.request(messages=session.history(), temperature=0)
            op.think("first")
            op.log("retrying", severity="WRN", direction="response", details={"status": 429})
            op.account(input_tokens=1, output_tokens=2, cost_usd=0.1, actual_model="gpt-4o-mini")
            op.account({"prompt_tokens": 1}, reasoning_tokens=2, input_includes_cached=True)
            op.account(usage=session.history(), prompt_tokens=1, cost=0.1, status="failed")
            op.account(total_cost_usd=0.1, prompt_cache_hit_tokens=2, thoughts_token_count=1, reasoning_tokens=1, prompt_eval_count=3)
            session.builder.append_accounting(op, input_tokens=1, cost_usd=0.1)
            op.response("because")
        with optree.tool("search", provider="mcp") as call:
            assert_type(call, optree.Op)
            call.end("failed", "no such page", pages=3)
        session.message({"role": "assistant", "content": "because"})
        session.title("Why?")
        assert_type(session.txn, str)
        assert_type(session.tree, optree.Tree)
        assert_type(session.totals, optree.Totals)
        assert_type(session.history(), list[Any])


def places() -> None:
    """Show what there is about this place and this process."""
    assert_type(optree.current(), optree.Op | None)
    assert_type(optree.current_session(), optree.Session | None)
    assert_type(optree.configure(sync="turn", cycles="block"), optree.Config)
    assert_type(optree.flush("sync", timeout=1.0), bool)
    optree.configure(consol=False)  # type: ignore[call-arg]
    optree.configure(sync="never")  # type: ignore[arg-type]
    optree.configure(console="off")  # type: ignore[arg-type]
    optree.configure(otel={"endpoint": "http://localhost:4318", "profile": "tempo", "live": True, "content": "span_only"})
    optree.configure(otel={"exporter": "sdk", "sampler": "parentbased_traceidratio", "sampler_arg": 0.1, "sample_failed": False})
    optree.configure(otel={"sampler": "half"})  # type: ignore[arg-type]
    optree.configure(otel={"endpont": "http://localhost:4318"})  # type: ignore[arg-type]
    optree.configure(otel={"live": "yes"})  # type: ignore[arg-type]
    optree.configure(otel="yes")  # type: ignore[arg-type]
    optree.flush("exprot")  # type: ignore[arg-type]
    assert_type(optree.health(), dict[str, Any])
    assert_type(optree.child_env(), dict[str, str])
    subprocess.run(["true"], env=optree.child_env({"PATH": "/bin"}), check=True)


def plain(number: int, *, name: str) -> bytes:
    """Be carried to another thread."""
    return name.encode() * number


def carried(pool: ThreadPoolExecutor) -> None:
    """Show that a wrapped function keeps its signature."""
    assert_type(optree.wrap(plain)(1, name="a"), bytes)
    assert_type(pool.submit(optree.wrap(plain), 1, name="a"), Future[bytes])
    waiting: Coroutine[Any, Any, str] = optree.wrap(named)("why")
    waiting.close()
    optree.wrap(plain)("a", name="a")  # type: ignore[arg-type]


def loaded() -> Iterator[str]:
    """Show what a saved session is."""
    found = optree.load("last")
    assert_type(found, optree.Loaded)
    assert_type(found.damage, optree.Damage)
    assert_type(found.session, optree.SessionNode)
    for session, turn, op in optree.walk_ops(found.session):
        assert_type(session, optree.SessionNode)
        assert_type(turn, optree.TurnNode)
        assert_type(op, optree.OperationNode)
        assert_type(op.logs, tuple[optree.LogEntry, ...])
        assert_type(op.accounting, tuple[optree.AccountingEntry, ...])
        yield str(optree.Path.parse(op.path))


def trees() -> None:
    """Show that whatever holds a tree can be walked, summed up and shown."""
    saved = optree.load("last")
    with optree.session(agent="researcher") as session, capture() as recording:
        for one in (saved, saved.tree, saved.session, session, session.builder, recording):
            assert_type(optree.format_tree(one), str)
            assert_type([op.op_id for _, _, op in optree.walk_ops(one)], list[str])
            assert_type([node.agent_id for node in optree.walk_sessions(one)], list[str])
            assert_type(optree.snapshot_summary(one), dict[str, Any])
            assert_type(shape(one), tuple[Any, ...])
            optree.flatten(one)
    optree.walk_ops("last")  # type: ignore[arg-type]
    optree.format_tree(saved.session.turns[0])  # type: ignore[arg-type]
    shape(3)  # type: ignore[arg-type]


HANDLER: Callable[[str], str] = Toolbox().method
