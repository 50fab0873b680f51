"""A web service each of whose requests is the run of an agent, with optree, with OpenTelemetry's spans that go nowhere, and bare.

A request is a root session with two sub-agents at once, two calls of a model (which are waited for, for 5 ms) and three tools. Server and
client are asyncio's own, in processes of their own; a round asks each server for the same number of requests, so many at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
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
from benchmarks.report import Cell, Report, Table, at_least, at_most

BARE, SPANS, FEW, MANY = (
    "bare",
    "OTel SDK, no-op processor",
    "optree, 10 sessions in the directory",
    "optree, 10,000 sessions in the directory",
)
AT_ONCE = 40
MODEL_SECONDS = 0.005
Handler = Callable[[], Awaitable[str]]


def measure(*, quick: bool) -> Report:
    """Measure all in rounds, in a shuffled order from a fixed seed."""
    names = [BARE, SPANS, FEW, MANY]
    with contextlib.ExitStack() as stack:
        ports = {name: port for name in names if (port := stack.enter_context(_server(name)))}
        found = asyncio.run(_rounds(ports, *((60, 2) if quick else (600, 7))))
    rows: list[list[Cell]] = [[name, *(median(column) for column in zip(*rounds, strict=True))] for name, rounds in found.items()]
    note = f"{AT_ONCE} at once; a request has 1 session, 2 sub-agents, 2 calls of a model and 3 tools. CPU time is the event loop's."
    table = Table("A web service", ["variant", "requests a second, wall", "p50 ms, wall", "p99 ms, wall", "CPU ms a request"], rows, note)
    aims = []
    for name in (FEW, MANY) if SPANS in found else ():
        beside = list(zip(found[name], found[SPANS], strict=True))
        there = name.partition(", ")[2]
        aims += [
            at_least(f"web service, {there}: requests a second ÷ OTel's", median(own[0] / peer[0] for own, peer in beside), 0.8),
            at_most(f"web service, {there}: p99 ÷ OTel's", median(own[2] / peer[2] for own, peer in beside), 1.3),
        ]
        if BARE in found:
            more = median(own[3] - bare[3] for own, bare in zip(found[name], found[BARE], strict=True))
            aims.append(at_most(f"web service, {there}: the event loop's CPU a request, more than bare", more, 1.0, "ms"))
    return Report("web", [table], aims, [] if SPANS in ports else ["opentelemetry-sdk"])


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

    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    cpu, begun = float(await _get(reader, writer, "/cpu")), perf_counter()
    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    seconds, cpu = perf_counter() - begun, float(await _get(reader, writer, "/cpu")) - cpu
    writer.close()
    took.sort()
    return requests / seconds, took[len(took) // 2], took[len(took) * 99 // 100], cpu * 1e3 / requests


async def _get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> str:
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.rpartition(b"Content-Length: ")[2])
    return (await reader.readexactly(size)).decode()


@contextlib.contextmanager
def _server(name: str) -> Iterator[int]:
    """Start a server; yields its port, 0 where its peer is not installed."""
    command = [sys.executable, "-m", "benchmarks.bench_web", name]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=child_environ(), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield int(process.stdout.readline() or 0) if process.stdout else 0
        finally:
            if process.stdin:
                process.stdin.close()  # which ends it


# The servers


async def _serve(handler: Handler) -> None:
    """Serve until the standard input ends."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                said = str(thread_time()) if head.startswith(b"GET /cpu") else await handler()
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode())
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def _bare() -> Handler:
    async def one(_question: str) -> str:
        await asyncio.sleep(MODEL_SECONDS)
        return "a page about Rayleigh scattering"

    async def request() -> str:
        return (await asyncio.gather(one("blue"), one("red")))[0]

    return request


def _optree() -> Handler:
    @optree.tool
    def search(query: str) -> str:  # noqa: ARG001 - recorded
        return "a page about Rayleigh scattering"

    @optree.session(agent="reader")
    async def one(question: str) -> str:
        with optree.turn(user=question):
            with optree.llm(provider="openai", model=work.MODEL) as op:
                await asyncio.sleep(MODEL_SECONDS)
                op.account(input_tokens=work.INPUT, output_tokens=work.OUTPUT, cost_usd=work.COST)
            return search(question)

    @optree.session(agent="lead")
    async def request() -> str:
        with optree.turn(user="Why is the sky blue?"):
            await asyncio.gather(one("blue"), one("red"))
            return search("sky")

    return request


def _spans(tracer: Any) -> Handler:
    def search(query: str) -> str:
        with tracer.start_as_current_span("search") as span:
            span.set_attribute("query", query)
            span.set_attribute("result", "a page about Rayleigh scattering")
            return "a page about Rayleigh scattering"

    async def one(question: str) -> str:
        with tracer.start_as_current_span("reader"), tracer.start_as_current_span("turn") as turn:
            turn.set_attribute("user", question)
            with tracer.start_as_current_span("chat") as span:
                await asyncio.sleep(MODEL_SECONDS)
                span.set_attribute("gen_ai.usage.input_tokens", work.INPUT)
                span.set_attribute("gen_ai.usage.output_tokens", work.OUTPUT)
                span.set_attribute("cost", work.COST)
            return search(question)

    async def request() -> str:
        with tracer.start_as_current_span("lead"), tracer.start_as_current_span("turn") as turn:
            turn.set_attribute("user", "Why is the sky blue?")
            await asyncio.gather(one("blue"), one("red"))
            return search("sky")

    return request


def main(name: str) -> None:
    """Serve one variant."""
    if name == BARE:
        asyncio.run(_serve(_bare()))
    elif name == SPANS:
        from benchmarks.peers import idle_tracer

        with contextlib.suppress(ImportError):
            asyncio.run(_serve(_spans(idle_tracer())))
    else:
        from benchmarks.bench_sessions import fill
        from optree.store import Directory

        with tempfile.TemporaryDirectory(prefix="optree-bench-", ignore_cleanup_errors=True) as folder:
            optree.configure(base_dir=Path(folder), otel="off")
            fill(Directory.of(Path(folder)), 10_000 if name == MANY else 10)
            asyncio.run(_serve(_optree()))
            optree.flush("snapshot", 60.0)


if __name__ == "__main__":
    main(sys.argv[1])
