"""The files of the original ai-agent: snapshots of versions 1 and 2, and the folders of records that are version 3.

In come a tree or such files, out go such files or trees; what lies beside them is left alone. `AI_AGENT` is version 2, which holds the
most; each of the three reads all of them.
"""

from __future__ import annotations

import re
from pathlib import Path

from optree._formats import Fault, Read, write_new
from optree._formats.ai_agent import assembly, records
from optree._formats.ai_agent.records import Ledgers
from optree._store.files.compression import compressor
from optree._store.files.lines import head_of
from optree._store.reading.ai_agent import document, version_of
from optree._store.reading.formats import read_snapshot
from optree._tree import Tree
from optree.errors import FormatError

_SNAPSHOT = re.compile(rb'\s*\{((?:[^{}\[\]"]|"(?:[^"\\]|\\.)*")*?)"opTree"\s*:')
_VERSION = re.compile(rb'"version"\s*:\s*([12])\b')
_RECORD = re.compile(rb'\s*\{[^\n]*?"recordType"\s*:\s*"(?:session_start|turn_start|turn_end|session_summary|session_error)"')


class AiAgent:
    """One version of the original's files."""

    def __init__(self, name: str, version: int, suffix: str, about: str, cannot_hold: tuple[str, ...]) -> None:
        self.name, self.suffix, self.about, self.cannot_hold = name, suffix, about, cannot_hold
        self._version = version

    def detect(self, path: Path, head: bytes) -> bool:
        """Tell whether a file is a snapshot of this version, or a folder or file holds records."""
        if path.is_dir():
            return self._version == records.VERSION and any((path / "session").glob("*.jsonl"))
        if self._version == records.VERSION:
            return _is_record(head)
        top = _SNAPSHOT.match(head)
        version = _VERSION.search(top[1]) if top is not None else None
        return version is not None and int(version[1]) == self._version

    def write(self, tree: Tree, target: Path) -> list[Path]:
        """Write a tree to a gzip file; in version 3 into a folder, which may have other sessions in it."""
        if self._version == records.VERSION:
            return records.write(tree, target)
        version = version_of(tree, self._version) if self._version > 1 else self._version
        return [write_new(target, compressor("gzip")(document(tree, version)))]

    def read(self, path: Path, *, strict: bool = False) -> Read:
        """Read a snapshot, a folder of records, or one session's records with those of its children."""
        if path.is_dir() or _is_record(head_of(path)):
            ledgers = Ledgers(path, strict=strict)
            return Read(assembly.trees(ledgers), ledgers.faults, [file for file in ledgers.files if file != path])
        return _read_snapshot(path, strict=strict)


def _is_record(head: bytes) -> bool:
    return _RECORD.match(head.removeprefix(b"\xef\xbb\xbf")) is not None


def _read_snapshot(path: Path, *, strict: bool) -> Read:
    snapshot = read_snapshot(path)
    flaws = [*([snapshot.damage.removeprefix(f"{path.name} ")] if snapshot.damage else []), *snapshot.notes, *snapshot.renamed]
    if strict and flaws:
        raise FormatError(f"{path.name}: {flaws[0]}")
    return Read([snapshot.tree], [Fault(0, flaw) for flaw in flaws])


OPEN_TURNS = "that turns were left open in sessions that have ended"
"""Such a turn is read as ended: the original ai-agent never writes the end of its last turn."""
PARTIAL = "that an answer broke off: it is said to be truncated"
_ALL = (
    "messages", "resumes", "statuses other than ok and failed", "parents of ops", "gaps in ops' numbers", "empty names of ops",
    "attributes of names that it uses itself", "attributes of turns that are named prompts, assistant, warnings or errors",
    "fractions of milliseconds", PARTIAL,
)  # fmt: skip
_SNAPSHOTS = (*_ALL, "statuses of turns", "errors of turns", "ids of accounting entries", "empty titles", OPEN_TURNS)
_RECORDS = (
    *_ALL, "logs", "accounting of tools", "accounting entry by entry", "chunks of reasoning", "turn 0", "colons in call paths",
    "sizes of payloads as they were counted",
)  # fmt: skip
AI_AGENT = AiAgent("ai-agent", 2, ".json.gz", "a snapshot of the original ai-agent, version 2: one gzip file", _SNAPSHOTS)
AI_AGENT_V1 = AiAgent(
    "ai-agent-v1", 1, ".v1.json.gz", "a snapshot of the original ai-agent as it first was, version 1", (*_SNAPSHOTS, "reports")
)
AI_AGENT_V3 = AiAgent(
    "ai-agent-v3", records.VERSION, ".ai-agent", "the original ai-agent's folder of records and payloads, version 3", _RECORDS
)
