"""Claude Code's session files: a line an entry, `<project>/<session id>.jsonl`, those of sub-agents beside it or in lines between.

One answer of the model is spread over as many lines as it has blocks, each with the answer's id and usage: it is one op, counted once. A
request is what the file has of the conversation until then; what Claude Code sends beside it (system prompt, tools) is not in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optree import SessionTreeBuilder, Tree
from optree.exporting import Fault, open_file, text, txn_of
from optree_formats.agents.claude_entries import ClaudeAgent, ClaudeCall
from optree_formats.agents.lines import BOM, SUFFIX, FilesOfLines, ObjectLines, decoded, first_object, first_objects, member
from optree_formats.agents.recording import text_in, time_of

AGENT = "claude-code"
_SIGNS = {"type", "uuid", "parentUuid", "sessionId"}
_BEGINS = b'{"parentUuid":'
_LARGEST_ABOUT = 1 << 20
_MOST_EARLY = 1000


class ClaudeCode(FilesOfLines):
    """The session files of Claude Code; read, not written."""

    name = "claude-code"
    about = "sessions of Claude Code: ~/.claude/projects/<project>, or one of its files (read only)"

    def begins(self, head: bytes) -> bool:
        """Tell whether one of the first lines is an entry; one that is longer than what is there by how it begins."""
        if any(value.keys() >= _SIGNS and ("message" in value or "isSidechain" in value) for value in first_objects(head)):
            return True
        last = head.removeprefix(BOM).rpartition(b"\n")[2]
        return last.startswith(_BEGINS) and b'"isSidechain":' in last[:200]

    def is_sub_agent(self, path: Path) -> bool:
        """Tell by what the file says of itself."""
        return _is_sub_agent(_about(path))

    def reader(self, path: Path, *, strict: bool) -> _ClaudeSession:
        """Return what reads a session's file."""
        return _ClaudeSession(path, strict=strict)


CLAUDE_CODE = ClaudeCode()


def _about(path: Path) -> dict[str, Any]:
    """Return the first entry of a file; nothing where there is none."""
    return first_object(path, lambda value: value.keys() >= _SIGNS)


def _is_sub_agent(entry: dict[str, Any]) -> bool:
    return entry.get("isSidechain") is True and isinstance(entry.get("agentId"), str)


class _ClaudeSession:
    """Reads one session's file, and those of its sub-agents."""

    def __init__(self, path: Path, *, strict: bool) -> None:
        self.faults: list[Fault] = []
        self.beside: list[Path] = []
        self.calls: list[ClaudeCall] = []
        self._path, self._strict = path, strict
        self._sidechains: dict[str, ClaudeAgent] = {}
        """By the ids of lines between those of the session itself."""

    def read(self) -> Tree | None:
        """Return the tree; None where the file has no entry."""
        lines = ObjectLines(self._path, self.faults, strict=self._strict)
        root: ClaudeAgent | None = None
        alone = ""
        """The id of the sub-agent whose file it is."""
        early: list[dict[str, Any]] = []
        """Lines before the first entry, as titles are."""
        for line in lines:
            ts = time_of(line.get("timestamp"))
            if root is None:
                if ts is None or not line.keys() >= _SIGNS or not isinstance(line["sessionId"], str):
                    early += [line] if len(early) < _MOST_EARLY else []
                    continue
                alone = str(line["agentId"]) if _is_sub_agent(line) else ""
                root = self._root(line, ts, alone)
                for one in early:
                    root.take(one, time_of(one.get("timestamp")), lines)
            agent = self._sidechain(line, root, ts) if line.get("isSidechain") is True and not alone else root
            agent.take(line, ts, lines)
        if root is None:
            return None
        for call in self.calls:
            if call.lines is not None:
                call.lines.close(call)
        self._sub_agents()
        root.close(None)
        return root.builder.tree

    def _root(self, line: dict[str, Any], ts: float, agent: str) -> ClaudeAgent:
        name = str(line["sessionId"])
        txn = txn_of(f"{name}-{agent}" if agent else name, AGENT)
        builder = SessionTreeBuilder(AGENT, txn=txn, attributes={"ingress": {"source": AGENT}}, at=ts)
        return ClaudeAgent(builder, self.calls)

    def _sub_agents(self) -> None:
        """Read the files of sub-agents, each into the op of its call; and of those that they call."""
        files = self._agent_files()
        for call in self.calls:  # which grows
            if call.lines is not None:
                continue
            path = files.pop(call.agent, None) or files.pop(call.id, None)
            if path is None:
                self._missing(call)
                continue
            for key in [key for key, file in files.items() if file == path]:
                del files[key]
            self._sub_agent(call, path)
        for path in sorted(set(files.values())):
            self.faults.append(Fault(0, f"{path.name}: passed over, no call of a sub-agent is its own"))

    def _missing(self, call: ClaudeCall) -> None:
        if call.agent:
            self.faults.append(Fault(0, f"the file of sub-agent {call.agent[:80]} is not there: of it the call at {call.op.path} is all"))

    def _sub_agent(self, call: ClaudeCall, path: Path) -> None:
        self.beside.append(path)
        lines = ObjectLines(path, self.faults, strict=self._strict, beside=True)
        agent: ClaudeAgent | None = None
        for line in lines:
            ts = time_of(line.get("timestamp"))
            if agent is None:
                if ts is None:
                    continue
                builder = call.recording.child(call.op, call.op.node.name, ts, {"agentId": call.agent or line.get("agentId")})
                if builder is None:
                    self.faults.append(Fault(0, f"{path.name}: left out, it is nested too deeply"))
                    return
                agent = ClaudeAgent(builder, self.calls)
            agent.take(line, ts, lines)
        if agent is not None:
            agent.close(call)

    def _agent_files(self) -> dict[str, Path]:
        """Return the files of this session's sub-agents, by the agent's id, and by the id of its call where a file has it."""
        own = self._path.name.split(".")[0]
        within = self._path.parent / own / "subagents"
        files: dict[str, Path] = {}
        for path in [*sorted(within.glob(f"agent-*{SUFFIX}")), *sorted(self._path.parent.glob(f"agent-*{SUFFIX}"))]:
            if path == self._path or not path.is_file():
                continue
            entry = _about(path)
            if _is_sub_agent(entry) and entry["sessionId"] == own and entry["agentId"] not in files:
                files[entry["agentId"]] = path
                if call := _call_of(path):
                    files[call] = path
        return files

    def _sidechain(self, line: dict[str, Any], root: ClaudeAgent, ts: float | None) -> ClaudeAgent:
        """Return the sub-agent that a line between those of the session itself is of; older files have them so."""
        above = line.get("parentUuid")
        agent = self._sidechains.get(above) if isinstance(above, str) else None
        if agent is None and ts is not None:
            agent = self._called(line, root, ts)
        if agent is None:
            return root
        if isinstance(line.get("uuid"), str):
            self._sidechains[line["uuid"]] = agent
        return agent

    def _called(self, line: dict[str, Any], root: ClaudeAgent, ts: float) -> ClaudeAgent | None:
        """Return the sub-agent that begins with a line: that of the call with its prompt, else one of which no call tells."""
        prompt = text_in(member(line, "message", "content"))
        call = next((sub_agent for sub_agent in self.calls if sub_agent.lines is None and sub_agent.prompt == prompt), None)
        if call is None:
            call = ClaudeCall(root, root.tool("agent", ts, None, "session"), "", prompt)
            self.calls.append(call)
        builder = call.recording.child(call.op, call.op.node.name, ts)
        if builder is not None:
            call.lines = ClaudeAgent(builder, self.calls)
        return call.lines


def _call_of(path: Path) -> str:
    """Return the id of the call that a sub-agent's file belongs to, as the file beside it says; empty where it does not."""
    about = path.with_name(f"{path.name.removesuffix(SUFFIX)}.meta.json")
    if not about.is_file():
        return ""
    with open_file(about) as file:
        return text(member(decoded(file.read(_LARGEST_ABOUT)), "toolUseId") or "")
