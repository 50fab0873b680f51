"""Codex's rollouts: a line an item, `sessions/<year>/<month>/<day>/rollout-<time>-<thread id>.jsonl`, a file a sub-agent as well.

What the model says in one answer is as many items: an op begins with the first of them, and the next one behind something that it was
told. An answer's tokens stand in its own line, or in older files in running sums, which may be said more than once: they count by their
differences. A request is what the file has of the conversation until then.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from optree import SessionTreeBuilder, Tree
from optree.exporting import Fault, Read, is_object, open_file, txn_of
from optree_formats.agents.codex_items import CodexAgent, CodexCall
from optree_formats.agents.lines import BOM, SUFFIX, FilesOfLines, ObjectLines, first_objects
from optree_formats.agents.recording import time_of

AGENT = "codex"
_BEGINS = re.compile(rb'\s*\{"timestamp":"[^"]*",(?:"ordinal":\d+,)?"type":"session_meta"')
_LARGEST_ABOUT = 1 << 20


class Codex(FilesOfLines):
    """The rollouts of Codex; read, not written."""

    name = "codex"
    about = "sessions of Codex: ~/.codex/sessions/<year>/<month>/<day>, or one of its files (read only)"

    def begins(self, head: bytes) -> bool:
        """Tell by the first lines, also by one that is longer than what is there."""
        if _BEGINS.match(head.removeprefix(BOM)) is not None:
            return True
        return any(value.get("type") == "session_meta" and is_object(value.get("payload")) for value in first_objects(head))

    def is_sub_agent(self, path: Path) -> bool:
        """Tell by what the file says of itself."""
        return _above(_meta(path)) is not None

    def read_file(self, path: Path, *, strict: bool) -> Read:
        """Read a session's file, with those of its sub-agents."""
        session = _CodexSession(path, strict=strict)
        tree = session.read()
        return Read([] if tree is None else [tree], session.faults, session.beside)


CODEX = Codex()


def _meta(path: Path) -> dict[str, Any]:
    """Return what a file says of its session; nothing where it does not."""
    with open_file(path) as file:
        head = file.read(_LARGEST_ABOUT)
    payloads = [
        value["payload"] for value in first_objects(head) if value.get("type") == "session_meta" and is_object(value.get("payload"))
    ]
    return payloads[0] if payloads else {}


def _above(meta: dict[str, Any]) -> str | None:
    """Return the id of the session that began this one; None for a session that is not a sub-agent's."""
    source = meta.get("source")
    spawned = source.get("subagent") if is_object(source) else None
    spawn = spawned.get("thread_spawn") if is_object(spawned) else None
    parent = meta.get("parent_thread_id") or (spawn.get("parent_thread_id") if is_object(spawn) else None)
    return parent if isinstance(parent, str) else None


class _CodexSession:
    """Reads one session's file, and those of its sub-agents."""

    def __init__(self, path: Path, *, strict: bool) -> None:
        self.faults: list[Fault] = []
        self.beside: list[Path] = []
        self.calls: list[CodexCall] = []
        self._path, self._strict = path, strict

    def read(self) -> Tree | None:
        """Return the tree; None where nothing in the file has a time."""
        root = self._agent(self._path, None)
        for call in self.calls:  # which grows
            if not call.agent:
                continue
            path = self._file(call.agent)
            if path is None:
                self.faults.append(Fault(0, f"sub-agent {call.agent[:80]} has no file here: of it the call at {call.op.path} is all"))
            else:
                self.beside.append(path)
                self._agent(path, call)
        return None if root is None else root.builder.tree

    def _agent(self, path: Path, call: CodexCall | None) -> CodexAgent | None:
        """Read a file, into the op of its call."""
        lines = ObjectLines(path, self.faults, strict=self._strict, beside=call is not None)
        agent: CodexAgent | None = None
        for line in lines:
            ts = time_of(line.get("timestamp"))
            if ts is None:
                lines.fault("has no time: passed over")
                continue
            if agent is None:
                builder = self._root(line, ts) if call is None else call.recording.child(call.op, call.op.node.name, ts)
                if builder is None:
                    self.faults.append(Fault(0, f"{path.name}: left out, it is nested too deeply"))
                    return None
                agent = CodexAgent(builder, self.calls)
            agent.take(line, ts, lines)
        if agent is not None:
            agent.close()
        return agent

    def _root(self, line: dict[str, Any], ts: float) -> SessionTreeBuilder:
        payload = line.get("payload")
        name = payload.get("id") if is_object(payload) else None
        txn = txn_of(name if isinstance(name, str) else self._path.name, AGENT)
        return SessionTreeBuilder(AGENT, txn=txn, attributes={"ingress": {"source": AGENT}}, at=ts)

    def _file(self, agent: str) -> Path | None:
        """Return a sub-agent's file: beside its caller's, or under another day."""
        if not re.fullmatch(r"[0-9a-fA-F-]{8,64}", agent):
            return None
        here = self._path.parent
        dated = all(part.isdigit() for part in here.parts[-3:])
        candidates = [*here.glob(f"*{agent}{SUFFIX}"), *(here.parents[2].glob(f"*/*/*/*{agent}{SUFFIX}") if dated else ())]
        return next((path for path in candidates if path.is_file() and path != self._path and path not in self.beside), None)
