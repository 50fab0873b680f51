"""What `optree.instrument()` adds to a program's calls of a model, beside the same calls bare and recorded by hand.

The client is httpx, over a transport that answers at once, so that nothing but the client's work and optree's is measured. Each call is
timed alone; the variants take turns in rounds, and a difference is one within a round.

`python -m benchmarks.bench_capture MODE MEGABYTES` is one program that reads a stream as fast as it can, and prints what that took.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import json
import random
import resource
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter_ns, sleep, thread_time_ns
from typing import Any

import msgspec

import optree
from benchmarks.measure import SEED, in_fresh_process, resident_bytes
from benchmarks.reference import THERE, slowness
from benchmarks.report import Cell, Report, Table, at_most

BARE, HAND, CAPTURED = "bare httpx", "recorded by hand", "captured"
DOES = {
    BARE: "nothing is recorded",
    HAND: "within optree.llm(), with op.request, op.response and op.account",
    CAPTURED: "after optree.instrument()",
}
URL = "https://api.openai.com/v1/chat/completions"
MESSAGES = [
    {"role": "system", "content": "You answer questions about the weather."},
    {"role": "user", "content": "Why is the sky blue? " * 10},
]
QUESTION = {"model": "gpt-5", "messages": MESSAGES, "temperature": 0}
_USAGE = {"prompt_tokens": 812, "completion_tokens": 64, "total_tokens": 876, "prompt_tokens_details": {"cached_tokens": 512}}
_CHOICE = {"index": 0, "message": {"role": "assistant", "content": "Rayleigh scattering. " * 10}, "finish_reason": "stop"}
ANSWER = {"id": "chat-1", "object": "chat.completion", "created": 1, "model": "gpt-5", "usage": _USAGE, "choices": [_CHOICE]}
_CHUNK = b'data: {"id":"chat-1","object":"chat.completion.chunk","model":"gpt-5","choices":[{"index":0,"delta":{"content":" %06d"}}]}\n\n'
_LAST = b"data: %b\n\ndata: [DONE]\n\n" % msgspec.json.encode({"object": "chat.completion.chunk", "choices": [], "usage": _USAGE})
BURST, PAUSE_SECONDS = 50, 0.01
"""Events that come at once, and how long none comes then; a thread of optree's reads them meanwhile."""
Work = Callable[[], list[float]]
"""Returns what each of its units took, in µs."""


class Paired:
    """The p50 and the p95 of each variant in each round; what one takes more than another is taken within a round."""

    def __init__(self, works: dict[str, Work], rounds: int) -> None:
        self.found: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
        order = list(works)
        shuffle = random.Random(SEED).shuffle
        for number in range(rounds + 1):
            shuffle(order)
            for name in order:
                taken = sorted(works[name]())
                if number:  # the first round warms up
                    self.found[name].append((taken[len(taken) // 2], taken[len(taken) * 95 // 100]))

    def middle(self, name: str, than: str = "") -> tuple[float, float]:
        """Return the p50 and the p95, or by how much they are more than another's."""
        rounds = self.found[name]
        base = self.found[than] if than else [(0.0, 0.0)] * len(rounds)
        p50, p95 = (median(one[at] - other[at] for one, other in zip(rounds, base, strict=True)) for at in (0, 1))
        return p50, p95

    def table(self, title: str, note: str) -> Table:
        """Return all that was found."""
        columns = ["variant", "p50 µs", "p95 µs", "p50, more than bare", "p95, more than bare", "what it does"]
        rows: list[list[Cell]] = [[name, *self.middle(name), *self.middle(name, BARE), DOES[name]] for name in self.found]
        return Table(title, columns, rows, note)


def measure(*, quick: bool) -> Report:
    """Measure calls and streams in a new process, and memory in one for each mode."""
    if importlib.util.find_spec("httpx") is None:
        return Report("capture", [], [], ["httpx"])
    report = msgspec.convert(in_fresh_process("benchmarks.bench_capture", "times", int(quick)), Report)
    megabytes, runs = (20, 1) if quick else (100, 3)
    peaks = {mode: [in_fresh_process("benchmarks.bench_capture", mode, megabytes) for _ in range(runs)] for mode in (BARE, CAPTURED)}
    found = {mode: {name: median(run[name] for run in every) for name in every[0]} for mode, every in peaks.items()}
    rows: list[list[Cell]] = [[mode, figures["mb"], figures["seconds"]] for mode, figures in found.items()]
    note = "Resident memory at its highest, above that before; wall time until the program has read the stream to its end."
    report.tables.append(Table(f"A stream of {megabytes} MB that comes at once", ["variant", "MB", "seconds"], rows, note))
    grown = found[CAPTURED]["mb"] - found[BARE]["mb"]
    report.aims.append(at_most(f"a stream of {megabytes} MB at once, captured: memory, more than bare", grown, 16.0, "MB"))
    return report


def _times(*, quick: bool) -> Report:
    calls, streams, rounds = (50, 3, 3) if quick else (200, 20, 15)
    with tempfile.TemporaryDirectory(prefix="optree-bench-", ignore_cleanup_errors=True) as folder:
        optree.configure(base_dir=Path(folder), otel="off", prices=True)  # as captured calls have them, so the others too
        with optree.session("bench"):
            called = Paired({mode: functools.partial(_calls, mode, calls) for mode in DOES}, rounds)
            firsts = Paired({mode: functools.partial(_streams, mode, streams, _until_first) for mode in DOES}, rounds)
            here = slowness()
            chunks = Paired({mode: functools.partial(_streams, mode, streams, _by_chunk) for mode in (BARE, CAPTURED)}, rounds)
        optree.flush("snapshot", 60.0)
    note = "CPU time of the calling thread."
    tables = [
        called.table("A call of a model through httpx", note),
        firsts.table("Until the first piece of a streamed answer", "Wall time, over a transport that answers at once."),
        chunks.table("A piece of a streamed answer", f"{note} {BURST} pieces at once, then none for {PAUSE_SECONDS * 1e3:.0f} ms."),
    ]
    aims = [
        at_most(f"a call, captured: more than by hand, p50, {THERE}", called.middle(CAPTURED, HAND)[0] / here, 30.0, "µs"),
        at_most(f"a piece of a stream, captured: more than bare, p50, {THERE}", chunks.middle(CAPTURED, BARE)[0] / here, 0.5, "µs"),
    ]
    return Report("capture", tables, aims)


@contextlib.contextmanager
def _client(mode: str, pieces: Callable[[], Iterator[bytes]] | None = None) -> Generator[Any]:
    """Open a client whose requests are answered at once, by a stream where *pieces* are given."""
    import httpx

    class Stream(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            return pieces() if pieces is not None else iter(())

    def answered(_request: Any) -> Any:
        if pieces is None:
            return httpx.Response(200, headers={"content-type": "application/json"}, content=data)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Stream())

    data = json.dumps(ANSWER).encode()
    if mode == CAPTURED:
        optree.instrument()
    try:
        with httpx.Client(transport=httpx.MockTransport(answered)) as client, optree.turn():
            yield client
    finally:
        optree.uninstrument()


def _calls(mode: str, calls: int) -> list[float]:
    taken: list[float] = []
    with _client(mode) as client:
        for _ in range(calls):
            begun = thread_time_ns()
            if mode == HAND:
                with optree.llm(provider="openai", model="gpt-5") as op:
                    op.request(messages=MESSAGES, temperature=0)
                    answer = client.post(URL, json=QUESTION).json()
                    op.account(answer)
                    op.response(answer)
            else:
                client.post(URL, json=QUESTION).json()
            taken.append((thread_time_ns() - begun) / 1e3)
        optree.flush()
    return taken


def _streams(mode: str, streams: int, read: Callable[[str, Any], list[float]]) -> list[float]:
    with _client(mode, _bursts) as client:
        taken = [one for _ in range(streams) for one in read(mode, client)]
        optree.flush()
    return taken


def _bursts() -> Iterator[bytes]:
    for number in range(BURST * 5):
        if number and number % BURST == 0:
            sleep(PAUSE_SECONDS)
        yield _CHUNK % number
    yield _LAST


def _until_first(mode: str, client: Any) -> list[float]:
    begun = perf_counter_ns()
    with contextlib.ExitStack() as stack:
        if mode == HAND:
            op = stack.enter_context(optree.llm(provider="openai", model="gpt-5"))
            op.request(messages=MESSAGES, temperature=0)
        pieces = stack.enter_context(client.stream("POST", URL, json=QUESTION)).iter_raw()
        next(pieces)
        taken = (perf_counter_ns() - begun) / 1e3
        for _ in pieces:
            pass
    return [taken]


def _by_chunk(_mode: str, client: Any) -> list[float]:
    taken: list[float] = []
    with client.stream("POST", URL, json=QUESTION) as response:
        begun = thread_time_ns()
        for _ in response.iter_raw():
            now = thread_time_ns()
            taken.append((now - begun) / 1e3)
            begun = thread_time_ns()
    return taken


def _peak(mode: str, megabytes: int) -> dict[str, float]:
    """Read a stream as fast as it can be, and say what that took."""

    def at_once() -> Iterator[bytes]:
        left = megabytes * 1_000_000
        while left > 0:
            piece = b"".join(_CHUNK % (left % 999_983) for _ in range(500))
            yield piece
            left -= len(piece)
        yield _LAST

    with tempfile.TemporaryDirectory(prefix="optree-bench-", ignore_cleanup_errors=True) as folder:
        optree.configure(base_dir=Path(folder), otel="off")
        with optree.session("bench"):
            _calls(mode, 10)
            with _client(mode, at_once) as client:
                gc.collect()
                before, begun = resident_bytes(), perf_counter_ns()
                with client.stream("POST", URL, json=QUESTION) as response:
                    for _ in response.iter_raw():
                        pass
                seconds = (perf_counter_ns() - begun) / 1e9
                optree.flush()
    return {"mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3 - before / 1e6, "seconds": seconds}


def main(mode: str, number: int) -> None:
    """Print what one process found."""
    print(msgspec.json.encode(_times(quick=bool(number)) if mode == "times" else _peak(mode, number)).decode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
