"""Runs agents that are mirrored, and tells what their trees must look like as spans: written from the rules, not from the mapping."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import optree
from optree import Loaded, SessionNode, load
from optree._ids import node_id, span_id, trace_id
from optree._nodes import OperationNode, TurnNode
from optree._store import Directory
from optree._tracing import context
from optree._tracing.mirroring import Mirroring
from optree._tracing.runtime import RUNTIME
from optree_otel.delivered import is_done, pending
from tests.otel.backends.spans import Span

AGENT = Path(__file__).with_name("mirrored_agent.py")
ROOT = AGENT.parents[2]
CLEARED = ("OTEL_", "OPTREE_", "TRACEPARENT", "CI")


class Seen(NamedTuple):
    """What a tree and a backend must agree on of one node."""

    span_id: str
    parent_id: str
    kind: str
    path: str
    service: str
    start_ns: int
    end_ns: int
    status: str
    told: str
    """The attribute `optree.status`."""


def environ(base: Path, endpoint: str = "", **more: str) -> dict[str, str]:
    """Return the environment of an agent; without *endpoint* nothing is mirrored."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(CLEARED)}
    source = os.pathsep.join([str(ROOT), str(ROOT / "exporters")])
    found = kept | {"OPTREE_BASE_DIR": str(base), "OPTREE_CONSOLE": "false", "PYTHONPATH": source}
    return found | ({"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint} if endpoint else {}) | more


def run(arguments: Iterable[str], base: Path, endpoint: str = "", **more: str) -> list[str]:
    """Run the agent to its end; returns the words that it printed."""
    return _run([sys.executable, str(AGENT), *arguments], environ(base, endpoint, **more), (0, -9))


def resume(txn: str, arguments: Iterable[str], base: Path, endpoint: str = "", **more: str) -> list[str]:
    """Let the agent go on with a session, by `optree load TXN -- CMD`."""
    command = [sys.executable, "-m", "optree", "load", txn, "--", sys.executable, str(AGENT), *arguments]
    return _run(command, environ(base, endpoint, **more), (0,))


@contextmanager
def tracing(base: Path, endpoint: str, *arguments: str, **more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the agent beside the test; gives it and the first line that it prints. It goes on when its standard input is closed."""
    command = [sys.executable, str(AGENT), *arguments]
    with subprocess.Popen(
        command, env=environ(base, endpoint, **more), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        try:
            yield program, program.stdout.readline().strip()
        finally:
            program.kill()


@contextmanager
def mirrored(base: Path, endpoint: str, **options: Any) -> Iterator[Mirroring]:
    """Let this process mirror its sessions meanwhile."""
    before, config = RUNTIME.mirroring, RUNTIME.config
    RUNTIME.mirroring = Mirroring(RUNTIME.problems.report, RUNTIME.problems.report_happened)
    optree.configure(base_dir=base, console=False, otel={"endpoint": endpoint, **options})
    try:
        yield RUNTIME.mirroring
    finally:
        RUNTIME.mirroring.close(1.0)
        RUNTIME.mirroring, RUNTIME.config, context.follower = before, config, None


def sessions(base: Path) -> Path:
    """Return the folder that sessions are in."""
    return base / "sessions"


def loaded(base: Path, txn: str) -> Loaded:
    """Load a session."""
    return load(txn, Directory.of(base, None, None))


def unsent(base: Path) -> list[str]:
    """Return the sessions of which something is to be sent still."""
    return pending(sessions(base))


def delivered_whole(base: Path, txn: str) -> bool:
    """Tell whether a session counts as delivered."""
    return is_done(sessions(base), txn)


def expected(root: SessionNode, *, rounds: int = 0, service: str = "") -> list[Seen]:
    """Return the spans that a tree must have, one a node, by span id; *rounds* is that of the root's span."""
    return sorted(_nodes(root, "", rounds, service))


def seen(spans: Iterable[Span]) -> list[Seen]:
    """Return spans of a backend in the same form."""
    return sorted(
        Seen(
            span.span_id,
            span.parent_id,
            span.attributes["optree.kind"],
            span.attributes["optree.path"],
            span.service,
            span.start_ns,
            span.end_ns,
            span.status,
            span.attributes["optree.status"],
        )
        for span in spans
    )


def trace_of(txn: str) -> str:
    """Return the id of a session's trace."""
    return trace_id(txn)


def _run(command: list[str], env: dict[str, str], codes: tuple[int, ...]) -> list[str]:
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in codes, done.stderr
    return done.stdout.split()


def _nodes(session: SessionNode, above: str, rounds: int, service: str) -> Iterator[Seen]:
    txn = session.origin_txn_id
    name = f"{session.id}/session" if session.path else session.id
    own = span_id(f"{name}#{rounds}" if rounds else name)
    where = service or session.agent_id
    began = session.resumed_at[rounds - 1] if rounds else session.started_at
    yield Seen(own, above, "session", session.path, where, *_times(began, session.ended_at), *_status(session.status))
    for turn in session.turns:
        turn_id = span_id(node_id(txn, turn.path))
        yield Seen(turn_id, own, "turn", turn.path, where, *_times(turn.started_at, turn.ended_at), *_status(turn.status))
        for op in turn.ops:
            found = span_id(node_id(txn, op.path))
            parent = span_id(node_id(txn, op.parent_op or turn.path))
            kind = "session_op" if op.kind == "session" else op.kind
            yield Seen(found, parent, kind, op.path, where, *_times(op.started_at, _ended(op, turn)), *_status(op.status))
            if op.child_session is not None:
                yield from _nodes(op.child_session, found, 0, service)


def _ended(op: OperationNode, turn: TurnNode) -> float | None:
    """Return when an op ended: one that broke off with no sign of life is told to last as long as its turn, which broke off too."""
    silent = op.status == "interrupted" and op.ended_at == op.started_at and turn.status == "interrupted"
    return turn.ended_at if silent else op.ended_at


def _times(started: float, ended: float | None) -> tuple[int, int]:
    """Return epoch nanoseconds; no span is shorter than one, since Jaeger warns of such."""
    start, end = int(started * 1e6), int((ended or 0.0) * 1e6)
    return start, max(end, start + 1)


def _status(status: str | None) -> tuple[str, str]:
    told = status or "interrupted"
    return ("error" if told in ("failed", "interrupted") else "unset"), told
