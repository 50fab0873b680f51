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
from optree.exporting import Fault, is_object, txn_of
from optree_formats.agents.codex_items import CodexAgent, CodexCall
from optree_formats.agents.lines import BOM, SUFFIX, FilesOfLines, ObjectLines, first_object, first_objects, member
from optree_formats.agents.recording import time_of

AGENT = "codex"
_BEGINS = re.compile(rb'\s*\{"timestamp":"[^"]*",(?:"ordinal":\d+,)?"type":"session_meta"')


class Codex(FilesOfLines):
    """The rollouts of Codex; read, not written."""

    name = "codex"
    about = "sessions of Codex: ~/.codex/sessions/<year>/<month>/<day>, or one of its files (read only)"

    def begins(self, head: bytes) -> bool:
        """Tell by the first lines, also by one that is longer than what is there."""
        if _BEGINS.match(head.removeprefix(BOM)) is not None:
            return True
        return any(map(_is_meta, first_objects(head)))

    def is_sub_agent(self, path: Path) -> bool:
        """Tell by what the file says of itself."""
        return _above(first_object(path, _is_meta).get("payload")) is not None

    def reader(self, path: Path, *, strict: bool) -> _CodexSession:
        """Return what reads a session's file."""
        return _CodexSession(path, strict=strict)


CODEX = Codex()


def _is_meta(line: dict[str, Any]) -> bool:
    """Tell whether a line says what the file's session is."""
    return line.get("type") == "session_meta" and is_object(line.get("payload"))


def _above(meta: Any) -> str | None:
    """Return the id of the session that began this one; None for a session that is not a sub-agent's."""
    parent = member(meta, "parent_thread_id") or member(meta, "source", "subagent", "thread_spawn", "parent_thread_id")
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
        name = member(line, "payload", "id")
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
