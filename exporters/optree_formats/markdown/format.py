"""The Markdown event log as a format: a tree is written as a log that reads back to it, and any log is read as a tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optree import FormatError, SetupError, Tree
from optree.exporting import REAL, Fault, Read, open_file, open_new, txn_of
from optree_formats.markdown.blocks import is_documents
from optree_formats.markdown.events import RULE, header, iso, section
from optree_formats.markdown.integrity import FILE, LINES, Chain, mark
from optree_formats.markdown.of_tree import events_of
from optree_formats.markdown.reader import Entry, Head, stream_log
from optree_formats.markdown.summary import FILE as SUMMARY
from optree_formats.markdown.summary import SUMMED, summarise, summary_text
from optree_formats.markdown.to_tree import tree_of


class MarkdownLog:
    """See `optree._formats.Format`."""

    name = "markdown"
    suffix = ".session-log.md"
    about = "event log for people: Markdown with a block of YAML for each event (EVENT-LOG/0.2)"
    cannot_hold = (
        "where reasoning was cut into chunks, and when each came: its text is held, and when the first came",
        "content in the pool that nothing refers to",
    )

    def detect(self, path: Path, head: bytes) -> bool:
        """Tell by a log's title, or the name of its protocol, of one in YAML by its events' types; a directory by the log in it."""
        if path.is_dir():
            return _log_in(path).is_file()
        start = head[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()
        if is_documents(head.removeprefix(b"\xef\xbb\xbf").decode(errors="replace").splitlines()):
            return True
        return start.startswith(b"# Session Log") or (start.startswith(b"#") and (b"EVENT-LOG/" in start or b"SESSION-LOG/" in start))

    def write(self, tree: Tree, target: Path) -> list[Path]:
        """Write a tree as a log, and beside it its summary if the session has ended; returns both, the log first.

        Raises `SetupError` if one of them is there, `OSError`.
        """
        ended = tree.session.ended_at is not None
        paths = [target, *([_summary_path(target)] if ended else [])]
        for path in paths:
            if path.exists():
                raise SetupError(f"{path} is there already: it stays as it is; name another file")
        with open_new(target) as file:
            chain = Chain()
            pending = header(tree.session.origin_txn_id, str(iso(tree.session.started_at // 1000 * 1000)))
            entries: list[Entry] = []
            for event in events_of(tree):
                entries.append(
                    Entry(0, at=event.at, kind=event.kind, fields={key: event.fields[key] for key in SUMMED if key in event.fields})
                )
                written = (pending + section(event, event.at or 0.0, "verbose")).encode(errors="replace")
                sealed = written + f"{mark(chain.seal(written))}{RULE}".encode()
                for line in LINES.findall(sealed):
                    chain.add(line)
                file.write(sealed)
                pending = ""
        if ended:
            summary = summarise(entries, session_id=tree.session.origin_txn_id, seal=chain.last)
            REAL.replace(paths[1], [summary_text(summary).encode()])
        return paths

    def read(self, path: Path, *, strict: bool = False) -> Read:
        """Read a log, or the one in a session's directory. Raises `OSError`; with *strict* `FormatError` for the first fault."""
        if path.is_dir():
            path = _log_in(path)
        head, entries, faults = Head(), list[Entry](), list[Fault]()
        with open_file(path) as source:
            for item in stream_log(source):
                if isinstance(item, Fault):
                    _refuse(path, item, strict=strict)
                    faults.append(item)
                elif isinstance(item, Entry):
                    entries.append(item)
                else:
                    head = item
        none: dict[str, Any] = {}
        start = next((entry.fields for entry in entries if entry.kind == "session_start"), none)
        tree, more = tree_of(entries, _txn(start.get("session_id") or head.session_id, path))
        for fault in more:
            _refuse(path, fault, strict=strict)
        return Read([tree], sorted(faults + more))


def _refuse(path: Path, fault: Fault, *, strict: bool) -> None:
    if strict:
        raise FormatError(fault.of(path.name))


def _txn(named: object, path: Path) -> str:
    """Return the txn that a session's name can be; one made of it where it cannot, the same each time."""
    name = named if isinstance(named, str) and named else path.parent.name if path.stem == Path(FILE).stem else path.stem
    return txn_of(name, "log")


def _log_in(folder: Path) -> Path:
    """Return the log in a session's directory."""
    names = (FILE, *(f"{Path(FILE).stem}{suffix}" for suffix in (".yml", ".yaml")))
    return next((folder / name for name in names if (folder / name).is_file()), folder / FILE)


def _summary_path(target: Path) -> Path:
    if target.name.endswith("session-log.md"):
        return target.with_name(target.name.removesuffix("session-log.md") + SUMMARY)
    return target.with_name(f"{target.stem}.{SUMMARY}")


FORMAT = MarkdownLog()
