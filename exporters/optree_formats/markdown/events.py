"""An event of the log: a map of fields that begins with its type, its comments, and the narrative that stands before it.

Seed 003 names the types and their fields; fields beyond them are welcome, and other types too. What cannot stand in a log is refused
with the error that its companion, the tool calling protocol, describes: ``{code, message, recoverable, suggestion}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from optree import SetupError
from optree.exporting import clean, is_object, plain, text
from optree_formats.markdown import comments as c
from optree_formats.markdown.comments import Comments, Place, Where

PROTOCOL = "EVENT-LOG/0.2"
Verbosity = Literal["minimal", "standard", "verbose"]
Code = Literal[
    "NOT_FOUND", "PERMISSION_DENIED", "TIMEOUT", "INVALID_ARGS", "MISSING_WHY", "QUOTA_EXCEEDED", "SESSION_ENDED",
]  # fmt: skip


class Kind(NamedTuple):
    """What the seed says of a type: the fields that it must have, and those that it may have."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


KINDS: dict[str, Kind] = {
    "session_start": Kind(("session_id", "protocol"), ("timestamp", "purpose")),
    "session_end": Kind(("session_id", "reason"), ("timestamp", "stats")),
    "tool_call": Kind(("tool", "call_id", "args")),
    "tool_result": Kind(("call_id", "success"), ("duration_ms", "result")),
    "tool_error": Kind(("call_id", "error")),
    "model_input": Kind((), ("timestamp", "tokens", "files_in_context", "budget_usage")),
    "model_output": Kind((), ("timestamp", "tokens", "tool_calls", "text_length")),
    "context_assembly": Kind((), ("timestamp", "budget", "used", "included", "excluded", "warning")),
    "gc_run": Kind((), ("trigger", "freed_tokens", "files_affected", "action")),
    "repair": Kind(("demon", "action"), ("path", "stub_contents")),
    "bootstrap": Kind(("files_created",)),
    "user_message": Kind((), ("timestamp", "length", "attachments")),
    "user_approval": Kind(("action", "approved"), ("tool", "command_preview")),
    "recovery": Kind(("from", "backup")),
    "model_turn": Kind(),
    "working_set_update": Kind(),
    "cache_advice": Kind(),
    "summary_created": Kind(),
    "error": Kind(),
    "warning": Kind(),
}
"""The types of the seed, and of the schema that goes with it (the last six)."""
TIMED = frozenset(name for name, kind in KINDS.items() if "timestamp" in kind.optional)
"""Types that have their timestamp in the block as well as in the heading."""
_TYPE = re.compile(r"[a-z][a-z0-9_.-]{0,63}")


class Refused(SetupError):  # noqa: N818 - what happened to the event, as its sender reads it
    """An event that the log does not take; *error* is the answer for whoever sent it."""

    def __init__(self, code: Code, message: str, suggestion: str, *, recoverable: bool = True) -> None:
        super().__init__(f"{code}: {message}: {suggestion}")
        self.error: dict[str, Any] = {"code": code, "message": message, "recoverable": recoverable, "suggestion": suggestion}


class LogEvent:
    """One event, to be written. *at* is its time in epoch milliseconds; by default that of its writing.

    Values are taken as plain data (`optree.values.plain`); of a ruamel.yaml `CommentedMap` the comments too.
    """

    def __init__(
        self,
        kind: str,
        fields: Mapping[str, Any] | None = None,
        /,
        *,
        narrative: str = "",
        title: str = "",
        at: float | None = None,
        **more: Any,
    ) -> None:
        given = dict(fields or {})
        given.pop("type", None)
        self.fields: dict[str, Any] = {"type": text(kind), **plain(given), **plain(more)}
        self.comments: Comments = {}
        self.narrative = text(narrative)
        self.title = text(title)
        self.at = at
        self.levels: dict[tuple[Place, Where], frozenset[Verbosity]] = {}
        """Levels at which a comment is shown, where they were said."""
        self.details: set[Place] = set()
        """Fields that only `verbose` shows."""
        if hasattr(fields, "ca"):
            self._take_comments(fields)

    @classmethod
    def of_plain(cls, kind: str, fields: Mapping[str, Any], *, narrative: str = "", title: str = "", at: float | None = None) -> LogEvent:
        """Return an event of fields that are plain data already, and are taken as they are, however long or deep."""
        made = cls(kind, narrative=narrative, title=title, at=at)
        made.fields = {**made.fields, **fields, "type": made.kind}
        return made

    @property
    def kind(self) -> str:
        """The event's type."""
        return str(self.fields["type"])

    def comment(self, name: str | Place, said: str, *, where: Where | None = None, at: tuple[Verbosity, ...] | None = None) -> LogEvent:
        """Attach a comment to a field (``args.why``, ``included.0``), or to the event (``""``); returns the event.

        It stands *before* its field, *beside* it, or at the *end* inside it; the event's own stand at its end, unless said else. *at* names
        the levels that show it: by default all that show the field and comments. Raises `KeyError` for a field that is not there.
        """
        place = c.place_of(name, self.fields)
        known: Where = where or ("before" if place else "end")
        if place == ("type",) and known == "before":
            place = ()
        c.add(self.comments, place, said, known)
        if at is not None:
            self.levels[place, known] = frozenset(at)
        return self

    def detail(self, *names: str) -> LogEvent:
        """Mark fields that only the level `verbose` shows; returns the event. Raises `KeyError` for a field that is not there."""
        self.details.update(c.place_of(name, self.fields) for name in names)
        return self

    def check(self) -> None:
        """Raise `Refused` if the event cannot stand in a log."""
        kind = self.kind
        if not _TYPE.fullmatch(kind):
            raise Refused("INVALID_ARGS", f"{kind[:80]!r} is no type", "name it with small letters, digits and _, as tool_call")
        missing = [name for name in KINDS.get(kind, Kind()).required if name not in self.fields]
        if missing == ["args"] or (kind == "tool_call" and not _why(self.fields)):
            raise Refused(
                "MISSING_WHY", f"the call of {text(self.fields.get('tool'))[:80]!r} does not say why", "say in args.why what it is for"
            )
        if missing:
            raise Refused("INVALID_ARGS", f"a {kind} needs {', '.join(missing)}", "give each of them a value")
        error = self.fields.get("error")
        if kind == "tool_error" and not (is_object(error) and {"code", "message"} <= error.keys()):
            raise Refused("INVALID_ARGS", "a tool_error's error is a map with code and message", "see the error codes in the protocol")

    def _take_comments(self, fields: Any) -> None:
        from optree_formats.markdown.foreign_yaml import comments_of

        self.comments = {place: comment for place, comment in comments_of(fields).items() if not place or place[0] in self.fields}


def tool_call(tool: str, args: Mapping[str, Any], *, why: str, call_id: str, **more: Any) -> LogEvent:
    """Return the event of a tool call; *more* are further fields, `narrative` and `at`."""
    return LogEvent("tool_call", tool=tool, call_id=call_id, args={**args, "why": why}, **more)


def tool_error(call_id: str, code: Code | str, message: str, *, suggestion: str | None = None, **more: Any) -> LogEvent:
    """Return the event of a call that failed; *suggestion* says how it can be mended."""
    error = {"code": code, "message": message, **({} if suggestion is None else {"suggestion": suggestion})}
    return LogEvent("tool_error", call_id=call_id, error=error, **more)


def _why(fields: Mapping[str, Any]) -> bool:
    args = fields.get("args")
    why = args.get("why") if is_object(args) else None
    return isinstance(why, str) and bool(clean(why).strip())
