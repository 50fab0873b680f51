"""How fast conversations and transcripts are read from files, beside the least that decoding the same bytes takes.

`python -m benchmarks.bench_formats FORMAT LINES HOW` reads one such file, and prints what it found as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import msgspec

from benchmarks.measure import in_fresh_process
from benchmarks.reference import THERE, slowness
from benchmarks.report import Cell, Report, Table, at_least, at_most
from optree._store.files.lines import Fault, opened
from optree.conversation import wire
from optree.conversation.dialects import Usual
from optree.conversation.events import AgentCreated, AnyEvent, PieceOfText, TranscriptEntry
from optree_formats import transcript

COLUMNS = ["format", "lines", "MB", "lines/s, CPU", "lines/s, wall", "÷ bare msgspec, CPU", "MB of memory while reading"]
AIMS = {"events": 1_000_000, "transcript": 500_000}
RATIOS = {"events": 2.0, "transcript": 3.0}
"""Of a transcript the bare decoder leaves the payloads as they are."""
REPEATS = 3
_BEGUN = datetime(2026, 6, 8, 12, tzinfo=UTC)


def measure(*, quick: bool) -> Report:
    """Read a file of each format, in new processes; the bare decoder gets the same bytes."""
    rows: list[list[Cell]] = []
    aims = []
    slower = slowness()
    for name, bound in AIMS.items():
        lines = bound // 50 if quick else bound
        read, bare = (in_fresh_process("benchmarks.bench_formats", name, lines, how) for how in ("read", "bare"))
        ratio = read["cpu"] / bare["cpu"]
        rows.append([name, lines, read["megabytes"], lines / read["cpu"], lines / read["wall"], ratio, read["memory"]])
        aims += [at_least(f"{name}: lines read a second, CPU, {THERE}", lines / read["cpu"] * slower, bound, "lines")]
        aims += [at_most(f"{name}: time of a read against bare decoding", ratio, RATIOS[name])]
        aims += [at_most(f"{name}: memory while reading", read["memory"], 64, "MB")]
    note = (
        "The file is read in pieces, checked and decoded into events, which are dropped again. Bare is `decode_lines` of a "
        "`msgspec.json.Decoder` for the lines' types, given all bytes at once. File in the page cache."
    )
    return Report("formats", [Table("Reading formats of lines", COLUMNS, rows, note)], aims)


def events(count: int) -> Iterator[AnyEvent]:
    """Yield a conversation: an agent in a thousand, a text for several in twenty, calls and their results, words and their echoes."""
    for number in range(count):
        name, agent = f"msg_{number:03d}", f"agent_{number // 1000:03d}"
        before = f"msg_{number - 1:03d}"
        if number % 1000 == 0:
            yield AgentCreated(message_id=name, agent_id=agent, name=f"Agent {number}", language_model="openai/gpt-4o")
        elif number % 20 == 3:
            yield PieceOfText(message_id=name, agent_id=agent, content="You meet in a cafe. Introduce yourselves.", cause=(before,))
        elif number % 20 == 2:
            call = {"id": f"c{number}", "type": "function", "function": {"name": "discuss", "arguments": '{"speakers": ["Jack", "Jill"]}'}}
            yield TranscriptEntry(message_id=name, agent_id=agent, role="assistant", tool_calls=[call])
        elif number % 20 == 19:
            yield TranscriptEntry(message_id=name, agent_id=agent, role="tool", content="done", tool_call_id=f"c{number - 17}")
        else:
            heard = number % 2 == 0
            said = f"{'[Jack]: ' if heard else ''}Hi, I'm Jack. *extends hand* And this is number {number}."
            role = "user" if heard else "assistant"
            yield TranscriptEntry(message_id=name, agent_id=agent, role=role, content=said, substance=before if heard else None)


def exchanges(count: int) -> Iterator[transcript.Event]:
    """Yield a run: steps of an agent, what it says and is told, and its tools."""
    text = "I will read the file first, and then tell you what is in it."
    for number in range(count):
        kind, payload = _KINDS[number % len(_KINDS)](number, text)
        at = (_BEGUN + timedelta(milliseconds=number)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        yield transcript.Event(seq=number + 1, run_id="run-1", type=kind, path="analyze", iteration=0, timestamp=at, payload=payload)


def _message(role: str) -> Callable[[int, str], tuple[str, Any]]:
    def make(number: int, text: str) -> tuple[str, Any]:
        block = transcript.ContentBlock(type="text", fidelity="router", text=f"{text} {number}")
        return f"message.{role}", transcript.MessagePayload(role=role, blocks=[block])

    return make


def _call(number: int, _text: str) -> tuple[str, Any]:
    return "tool.call", _tool(number, b"null")


def _result(number: int, text: str) -> tuple[str, Any]:
    return "tool.result", _tool(number - 1, msgspec.json.encode({"content": text}))


def _tool(number: int, output: bytes) -> transcript.ToolPayload:
    given, received = msgspec.Raw(b'{"path":"src/main.go"}'), msgspec.Raw(output)
    return transcript.ToolPayload(name="Read", call_id=f"c{number}", input=given, output=received, fidelity="router")


_KINDS = [_message("user"), _message("assistant"), _call, _result]


def written(name: str, lines: int, folder: Path) -> Path:
    """Write a file of a format; returns its path."""
    path = folder / name
    with path.open("wb") as file:
        made = (wire.line(one) for one in events(lines)) if name == "events" else (transcript.line(one) for one in exchanges(lines))
        for line in made:
            file.write(line + b"\n")
    return path


def read(name: str, path: Path) -> int:
    """Read a file as import does, holding a batch at a time; returns how many events there were. Raises if one was faulty."""
    count = 0
    with opened(path) as source:
        for found in wire.stream_events(source) if name == "events" else transcript.batches(path):
            if isinstance(found, Fault):
                raise TypeError(f"line {found.line}: {found.said}")
            count += len(found)
    return count


def decode(name: str, path: Path) -> int:
    """Decode all lines of a file at once, and nothing more."""
    kind: Any = Usual if name == "events" else transcript.Event
    return len(msgspec.json.Decoder(kind).decode_lines(path.read_bytes()))


def main(name: str, lines: int, how: str) -> None:
    """Print what reading a file took: MB in the file, CPU and wall seconds, MB of memory that reading added."""
    work = read if how == "read" else decode
    with tempfile.TemporaryDirectory() as folder:
        path = written(name, lines, Path(folder))
        before = _peak()
        cpus, walls = [], []
        for _ in range(REPEATS):
            wall, cpu = perf_counter(), thread_time()
            found = work(name, path)
            cpus.append(thread_time() - cpu)
            walls.append(perf_counter() - wall)
            if found != lines:
                raise RuntimeError(f"{found} of {lines} lines were read")
        size = path.stat().st_size / 1e6
    print(json.dumps({"megabytes": size, "cpu": median(cpus), "wall": median(walls), "memory": _peak() - before}))


def _peak() -> float:
    """Return the most memory that this process has held so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
