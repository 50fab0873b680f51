"""A web service each of whose requests is the run of an agent, with optree, with OpenTelemetry's spans that go nowhere, and bare.

A request is a root session with two sub-agents at once, two calls of a model and three tools. The service is once as services are (uvicorn,
Starlette, and httpx to a model behind HTTP that answers after 50 ms), and once of asyncio alone, where a model's call is a wait of 5 ms, so
that next to nothing but tracing costs anything. The client is asyncio's own. Each has a process of its own; a round asks each server for
the same number of requests, so many at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import optree
from benchmarks import work
from benchmarks.measure import ROOT, SEED, child_environ
from benchmarks.report import Aim, Cell, Report, Table, at_least, at_most

BARE, SPANS, FEW, MANY = (
    "bare",
    "OTel SDK, no-op processor",
    "optree, 10 sessions in the directory",
    "optree, 10,000 sessions in the directory",
)
ALONE, SERVICE, MODEL = "asyncio alone", "uvicorn, Starlette, httpx", "model"
AT_ONCE = 40
WAIT_SECONDS, MODEL_SECONDS = 0.005, 0.05
PAGE = "a page about Rayleigh scattering"
USAGE = {"prompt_tokens": work.INPUT, "completion_tokens": work.OUTPUT, "total_tokens": work.INPUT + work.OUTPUT}
ANSWER = {
    "id": "chat-1",
    "object": "chat.completion",
    "model": work.MODEL,
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": PAGE}}],
    "usage": USAGE,
}
Ask = Callable[[str], Awaitable[dict[str, int]]]
"""A call of a model with a question; returns the usage."""
Handler = Callable[[], Awaitable[str]]


def measure(*, quick: bool) -> Report:
    """Measure all in rounds, in a shuffled order from a fixed seed."""
    report, missing = Report("web", []), set[str]()
    for kind, requests, rounds in ((SERVICE, 40, 2), (ALONE, 60, 2)) if quick else ((SERVICE, 200, 7), (ALONE, 600, 7)):
        with contextlib.ExitStack() as stack:
            model = str(stack.enter_context(_server(MODEL))) if kind == SERVICE else "0"
            ports = {name: port for name in (BARE, SPANS, FEW, MANY) if (port := stack.enter_context(_server(kind, name, model)))}
            found = asyncio.run(_rounds(ports, requests, rounds))
        missing |= set() if SPANS in found else {"opentelemetry-sdk"}
        missing |= set() if found else {"uvicorn", "starlette", "httpx"}
        report.tables.append(_table(kind, found))
        report.aims += _aims(kind, found) if SPANS in found else []
    report.missing = sorted(missing)
    return report


def _table(kind: str, found: dict[str, list[Figures]]) -> Table:
    rows: list[list[Cell]] = [[name, *(median(column) for column in zip(*rounds, strict=True))] for name, rounds in found.items()]
    note = f"{AT_ONCE} at once; a request has 1 session, 2 sub-agents, 2 calls of a model and 3 tools. CPU time is the event loop's."
    columns = ["variant", "requests a second, wall", "p50 ms, wall", "p99 ms, wall", "CPU ms a request"]
    return Table(f"A web service: {kind}", columns, rows, note)


def _aims(kind: str, found: dict[str, list[Figures]]) -> list[Aim]:
    aims: list[Aim] = []
    for name in (FEW, MANY):
        beside = list(zip(found[name], found[SPANS], strict=True))
        there = f"web service ({kind}), {name.partition(', ')[2]}"
        aims += [
            at_least(f"{there}: requests a second ÷ OTel's", median(own[0] / peer[0] for own, peer in beside), 0.8),
            at_most(f"{there}: p99 ÷ OTel's", median(own[2] / peer[2] for own, peer in beside), 1.3),
        ]
        more = median(own[3] - bare[3] for own, bare in zip(found[name], found[BARE], strict=True))
        aims.append(at_most(f"{there}: the event loop's CPU a request, more than bare", more, 1.0, "ms"))
    return aims


# The client

Figures = tuple[float, float, float, float]
"""Requests a second, the median and the 99th percentile of their milliseconds, the loop's CPU milliseconds a request."""


async def _rounds(ports: dict[str, int], requests: int, rounds: int) -> dict[str, list[Figures]]:
    """Ask each server in each round; the first round warms up and is left out."""
    found: dict[str, list[Figures]] = {name: [] for name in ports}
    order = list(ports)
    shuffle = random.Random(SEED).shuffle
    for number in range(rounds + 1):
        shuffle(order)
        for name in order:
            figures = await _asked(ports[name], requests)
            if number:
                found[name].append(figures)
    return found


async def _asked(port: int, requests: int) -> Figures:
    left, took = iter(range(requests)), list[float]()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in left:
            begun = perf_counter()
            await _get(reader, writer, "/")
            took.append((perf_counter() - begun) * 1e3)
        writer.close()

    cpu, begun = await _cpu(port), perf_counter()
    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    seconds, cpu = perf_counter() - begun, await _cpu(port) - cpu
    took.sort()
    return requests / seconds, took[len(took) // 2], took[len(took) * 99 // 100], cpu * 1e3 / requests


async def _cpu(port: int) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    cpu = await _get(reader, writer, "/cpu")
    writer.close()
    return float(cpu)


async def _get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> str:
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    size = _length(head)
    return (await reader.readexactly(size)).decode()


def _length(head: bytes) -> int:
    return int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)


@contextlib.contextmanager
def _server(*arguments: str) -> Iterator[int]:
    """Start a server; yields its port, 0 where what it needs is not installed."""
    command = [sys.executable, "-m", "benchmarks.bench_web", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=child_environ(), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield int(process.stdout.readline() or 0) if process.stdout else 0
        finally:
            if process.stdin:
                process.stdin.close()  # which ends it


# The servers


async def _serve(answer: Callable[[bytes], Awaitable[str]]) -> None:
    """Serve by asyncio alone until the standard input ends: what is answered to a request is of its head."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(_length(head))
                said = str(thread_time()) if head.startswith(b"GET /cpu") else await answer(head)
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode())
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def _model(_head: bytes) -> str:
    await asyncio.sleep(MODEL_SECONDS)
    return json.dumps(ANSWER)


async def _serve_by_uvicorn(handler: Handler) -> None:
    """Serve by uvicorn and Starlette until the standard input ends."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def home(_request: Request) -> PlainTextResponse:
        return PlainTextResponse(await handler())

    async def cpu(_request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(thread_time()))

    app = Starlette(routes=[Route("/", home), Route("/cpu", cpu)])
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        serving = asyncio.create_task(server.serve([listening]))
        print(listening.getsockname()[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        server.should_exit = True
        await serving


async def _wait(_question: str) -> dict[str, int]:
    await asyncio.sleep(WAIT_SECONDS)
    return USAGE


def _by_httpx(port: str) -> Ask:
    import httpx

    client = httpx.AsyncClient(limits=httpx.Limits(max_connections=None, max_keepalive_connections=None))

    async def ask(question: str) -> dict[str, int]:
        asked = {"model": work.MODEL, "messages": [{"role": "user", "content": question}]}
        answer = await client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=asked)
        return answer.json()["usage"]  # type: ignore[no-any-return]

    return ask


def _bare(ask: Ask) -> Handler:
    async def one(question: str) -> str:
        await ask(question)
        return PAGE

    async def request() -> str:
        return (await asyncio.gather(one("blue"), one("red")))[0]

    return request


def _optree(ask: Ask) -> Handler:
    @optree.tool
    def search(query: str) -> str:  # noqa: ARG001 - recorded
        return PAGE

    @optree.session(agent="reader")
    async def one(question: str) -> str:
        with optree.turn(user=question):
            with optree.llm(provider="openai", model=work.MODEL) as op:
                op.account(await ask(question), cost_usd=work.COST)
            return search(question)

    @optree.session(agent="lead")
    async def request() -> str:
        with optree.turn(user="Why is the sky blue?"):
            await asyncio.gather(one("blue"), one("red"))
            return search("sky")

    return request


def _spans(tracer: Any, ask: Ask) -> Handler:
    def search(query: str) -> str:
        with tracer.start_as_current_span("search") as span:
            span.set_attribute("query", query)
            span.set_attribute("result", PAGE)
            return PAGE

    async def one(question: str) -> str:
        with tracer.start_as_current_span("reader"), tracer.start_as_current_span("turn") as turn:
            turn.set_attribute("user", question)
            with tracer.start_as_current_span("chat") as span:
                usage = await ask(question)
                span.set_attribute("gen_ai.usage.input_tokens", usage["prompt_tokens"])
                span.set_attribute("gen_ai.usage.output_tokens", usage["completion_tokens"])
                span.set_attribute("cost", work.COST)
            return search(question)

    async def request() -> str:
        with tracer.start_as_current_span("lead"), tracer.start_as_current_span("turn") as turn:
            turn.set_attribute("user", "Why is the sky blue?")
            await asyncio.gather(one("blue"), one("red"))
            return search("sky")

    return request


def main(kind: str, name: str = "", model: str = "") -> None:
    """Serve the model, or one variant of one kind of service."""
    if kind == MODEL:
        asyncio.run(_serve(_model))
        return
    with contextlib.suppress(ImportError), contextlib.ExitStack() as stack:
        ask = _wait if kind == ALONE else _by_httpx(model)
        if name == BARE:
            handler = _bare(ask)
        elif name == SPANS:
            from benchmarks.peers import idle_tracer

            handler = _spans(idle_tracer(), ask)
        else:
            from benchmarks.bench_sessions import fill
            from optree._store import Directory

            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="optree-bench-", ignore_cleanup_errors=True)))
            optree.configure(base_dir=folder, otel="off")
            fill(Directory.of(folder), 10_000 if name == MANY else 10)
            stack.callback(optree.flush, "snapshot", 60.0)
            handler = _optree(ask)
        asyncio.run(_serve(lambda _: handler()) if kind == ALONE else _serve_by_uvicorn(handler))


if __name__ == "__main__":
    main(*sys.argv[1:])
