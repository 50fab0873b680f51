"""The format: a tree's runs as files, one a session, such files as trees, and how much of a session they do not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from optree import OperationNode, SetupError, Tree, walk_ops, walk_sessions
from optree.exporting import Payload, Read, Reasoning, decode, is_object, open_regular, raw, write_new
from optree_formats.transcript import messages
from optree_formats.transcript.building import held
from optree_formats.transcript.of_tree import transcripts
from optree_formats.transcript.reader import raised
from optree_formats.transcript.runs import SUFFIX, family
from optree_formats.transcript.to_tree import tree_of
from optree_formats.transcript.wire import STEP, UNLIKE, NotHeld, decoded, line

_SIGNS = {"seq", "run_id", "type", "timestamp"}
_BOM = b"\xef\xbb\xbf"
_LONGEST = 64 << 20


def _requests(tree: Tree) -> int:
    requests = (tree.pool.resolve(decoded(op.request.payload)) for op in _ops(tree) if op.kind == "llm" and op.request is not None)
    return sum(not (blocks := messages.sent(request)) or messages.request_of(blocks) != request for request in requests)


def _thoughts(tree: Tree) -> int:
    ops = (op for op in _ops(tree) if op.kind == "llm" and op.response is not None and op.reasoning is None)
    return sum(any(block.type == "thinking" for block in messages.answer(_value(tree, op.response), "")) for op in ops)


def _unfinished(tree: Tree) -> int:
    ops = (op for op in _ops(tree) if op.kind == "llm" and op.response is not None and op.ended_at is None)
    return sum(_value(tree, op.response) != messages.answer_of(messages.answer(_value(tree, op.response), "")) for op in ops)


def _latencies(tree: Tree) -> int:
    return sum(op.ended_at is not None and op.latency != max(0.0, op.ended_at - op.started_at) for op in _ops(tree))


def _sizes(tree: Tree) -> int:
    pairs = ((part, held(raw(_value(tree, part)))) for part in _parts(tree))
    return sum(part.size != (None if back is None else back.size) for part, back in pairs)


def _thought(reasoning: Reasoning) -> str:
    return "".join(chunk.text for chunk in reasoning.chunks) if reasoning.final is None else reasoning.final


def _value(tree: Tree, part: Payload | None) -> object:
    return None if part is None else tree.pool.resolve(decoded(part.payload))


def _ops(tree: Tree) -> Iterator[OperationNode]:
    return (op for _, _, op in walk_ops(tree.session))


def _parts(tree: Tree) -> Iterator[Payload]:
    return (part for op in _ops(tree) for part in (op.request, op.response) if part is not None)


def _unlike(what: str) -> Callable[[Tree], int]:
    return lambda tree: sum(is_object(step := op.attributes.get(STEP)) and what in (step.get("unlike") or ()) for op in _ops(tree))


COUNTS: dict[str, Callable[[Tree], int]] = {
    "of llm ops' requests all but new texts and tool results": _requests,
    "of unfinished llm ops' responses all but texts and calls": _unfinished,
    "that reasoning in a response is not the op's own": _thoughts,
    "latencies as they were measured": _latencies,
    "sizes of payloads as they were counted": _sizes,
    "empty reasoning": lambda tree: sum(op.reasoning is not None and not _thought(op.reasoning) for op in _ops(tree)),
    "empty prompts": lambda tree: sum(
        not text for session in walk_sessions(tree.session) for turn in session.turns for text in (turn.prompts or {}).values()
    ),
    "reports that are null": lambda tree: sum(
        session.final_report is not UNSET and decode(session.final_report) is None for session in walk_sessions(tree.session)
    ),
    **{said: _unlike(what) for what, said in UNLIKE.items()},
}


class Transcript:
    """The agent exchange transcript of seed 002."""

    name = "transcript"
    suffix = ".transcript.jsonl"
    about = "agent exchange transcripts, one file of events a run, linked both ways"
    cannot_hold = (
        "messages",
        "logs",
        "accounting",
        "chunks of reasoning",
        "of llm ops' requests all but new texts and tool results",
        "requests of session and system ops",
        "responses of unfinished tools, sessions and system ops",
        "of unfinished llm ops' responses all but texts and calls",
        "empty prompts",
        "empty reasoning",
        "reports that are null",
        "that reasoning in a response is not the op's own",
        "latencies as they were measured",
        "sizes of payloads as they were counted",
        "payloads that are null or empty",
        *UNLIKE.values(),
    )

    counts = COUNTS

    def detect(self, path: Path, head: bytes) -> bool:
        """Tell by the first line's members; a directory by its first file of lines."""
        if path.is_dir():
            return any(map(_is_transcript, _files(path)[:1]))
        return _begins(head)

    def write(self, tree: Tree, target: Path) -> list[Path]:
        """Write the root's run to *target*, or to ``<run id>.jsonl`` in it if it is a directory, and all others beside that, 0600.

        Raises `SetupError` if one of the files is there, `OSError`.
        """
        runs = transcripts(tree)
        root = runs[""][0].run_id
        main = target / f"{root}{SUFFIX}" if target.is_dir() else target
        paths = {path: main.with_name(f"{events[0].run_id}{SUFFIX}") if path else main for path, events in runs.items()}
        existing = [path.name for path in paths.values() if path.exists()]
        if existing:
            raise SetupError(f"{main.parent} has {', '.join(existing[:3])} already: remove it, or write elsewhere")
        return [write_new(paths[path], b"".join(line(event) + b"\n" for event in events)) for path, events in runs.items()]

    def read(self, path: Path, *, strict: bool = False) -> Read:
        """Read a run's file with those of the runs below it; of a directory, all runs that no other has called."""
        if not path.is_dir():
            return _read(path, strict=strict)
        read = Read([], [])
        runs = {file: _first(file) for file in _files(path) if _is_transcript(file)}
        run_ids = {first.get("run_id") for first in runs.values()}
        for file, first in runs.items():
            if not first.get("parent_run_id") or first["parent_run_id"] not in run_ids:
                read.add(file, _read(file, strict=strict))
        return read


FORMAT = Transcript()


def _read(path: Path, *, strict: bool) -> Read:
    """Read a run with all below it; what shows only when they are put together is a fault as well."""
    group = family(path, strict=strict)
    tree = tree_of(group)
    wrong = [fault for fault in group.faults if not isinstance(fault, NotHeld)]
    if strict and wrong:
        raise raised(wrong[0])
    return Read([tree], group.faults, [run.path for run in group.runs[1:]])


def _files(folder: Path) -> list[Path]:
    return sorted(filter(Path.is_file, folder.glob(f"*{SUFFIX}")))


def _is_transcript(path: Path) -> bool:
    with open_regular(path) as file:
        return _begins(file.read(1 << 16))


def _begins(head: bytes) -> bool:
    """Tell whether the first line that can be read is an event's; one that is longer than what is there by how it begins."""
    for part in head.removeprefix(_BOM).splitlines()[:5]:
        try:
            value = msgspec.json.decode(part)
        except (msgspec.DecodeError, RecursionError):
            if part.startswith(b'{"seq":') and b'"run_id":' in part[:200]:
                return True
            continue
        if is_object(value):
            return set(value) >= _SIGNS
    return False


def _first(path: Path) -> dict[str, Any]:
    """Return the first event of a file; nothing for one that cannot be read."""
    with open_regular(path) as file:
        line = file.readline(_LONGEST)
    try:
        event = msgspec.json.decode(line.removeprefix(_BOM))
    except (msgspec.DecodeError, RecursionError):
        return {}
    return event if is_object(event) else {}
