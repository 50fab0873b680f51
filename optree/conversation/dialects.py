"""The forms in which lines of events come, as types that whole blocks are decoded into, and the way from them to events."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from optree._values import TypedDecoder
from optree.conversation.events import NOTHING, AgentCreated, AnyEvent, PieceOfText, TranscriptEntry

USER = "user"
"""Whom smallchat's logs name as the parent of the first agent: no agent."""


class _PieceOfText(Struct, tag="piece_of_text", tag_field="event_type", kw_only=True, forbid_unknown_fields=True, gc=False):
    """A piece of text as seed 001 writes it."""

    message_id: str
    content: Any
    agent_id: str = ""
    cause: str | tuple[str, ...] = ()
    timestamp: float | None = None

    def event(self) -> PieceOfText:
        """Return the piece of text."""
        return PieceOfText(
            message_id=self.message_id, agent_id=self.agent_id, cause=_all(self.cause), timestamp=self.timestamp, content=self.content
        )


class _Created(Struct, tag="agent_created", tag_field="event_type", kw_only=True, forbid_unknown_fields=True, gc=False):
    """The creation of an agent as seed 001 writes it."""

    message_id: str
    agent_id: str
    cause: str | tuple[str, ...] = ()
    name: str | None = None
    language_model: str | None = None
    parent: str | None = None
    timestamp: float | None = None

    def event(self) -> AgentCreated:
        """Return the creation."""
        return AgentCreated(
            message_id=self.message_id,
            agent_id=self.agent_id,
            cause=_all(self.cause),
            timestamp=self.timestamp,
            name=self.name,
            language_model=self.language_model,
            parent=self.parent,
        )


class _Wide(Struct, tag_field="event_type", kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a line of any form may have: the names of both seeds, and smallchat's ``agent``."""

    message_id: str
    agent_id: str | None = None
    agent: str | None = None
    cause: str | tuple[str, ...] | None = None
    caused_by: str | tuple[str, ...] | None = None
    timestamp: float | None = None

    def odd(self) -> bool:
        """Tell whether the line is to be read by itself."""
        return False

    def causes(self) -> tuple[str, ...]:
        """Return the line's causes; smallchat's ``user`` is not a message's id, and is left out."""
        ids = _all(self.cause or self.caused_by or ())
        return tuple(cause for cause in ids if cause != USER) if self.agent is not None else ids

    def whose(self) -> str:
        """Return the agent's id; empty if the line names none."""
        return self.agent_id or self.agent or ""


class WideEntry(_Wide, tag="transcript_entry", kw_only=True):
    """A transcript entry of any form."""

    role: str
    content: Any = None
    substance: str | None = None
    content_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    tool_call: str | None = None
    name: str | None = None
    more: dict[str, Any] = NOTHING

    def same_as(self) -> str | None:
        """Return the id of another message whose content this is."""
        origin = self.substance or self.content_id
        return None if origin == self.message_id else origin

    def odd(self) -> bool:
        """Tell whether the line is to be read by itself: it has links that exclude each other, or no agent."""
        return self.both() or not self.whose()

    def both(self) -> bool:
        """Tell whether the line has links that exclude each other."""
        return bool(self.same_as() and self.causes())

    def event(self) -> TranscriptEntry:
        """Return the entry. Its substance counts more than its cause, where it has both; the call of a result is a cause."""
        same = self.same_as()
        cause = () if same else self.causes()
        if not cause and not same and self.tool_call and self.tool_call_id:
            cause = (f"{self.tool_call}.{self.tool_call_id}",)
        return TranscriptEntry(
            message_id=self.message_id,
            agent_id=self.whose(),
            cause=cause,
            timestamp=self.timestamp,
            role=self.role,
            content=self.content,
            substance=same,
            tool_calls=self.tool_calls,
            tool_call_id=self.tool_call_id,
            name=self.name,
            more=self.more,
        )


class WidePiece(_Wide, tag="piece_of_text", kw_only=True):
    """A piece of text of any form."""

    content: Any = None

    def event(self) -> PieceOfText:
        """Return the piece of text."""
        return PieceOfText(
            message_id=self.message_id, agent_id=self.whose(), cause=self.causes(), timestamp=self.timestamp, content=self.content
        )


class WideFragment(WidePiece, tag="fragment", kw_only=True):
    """What smallchat calls a piece of text."""


class WideCreated(_Wide, tag="agent_created", kw_only=True):
    """The creation of an agent, of any form."""

    name: str | None = None
    language_model: str | None = None
    parent: str | None = None
    role: str | None = None
    """Smallchat's ``primary``, ``child`` or ``hook``; it follows from the parent too."""

    def odd(self) -> bool:
        """Tell whether the line is to be read by itself: it has no agent."""
        return not self.whose()

    def event(self) -> AgentCreated:
        """Return the creation."""
        return AgentCreated(
            message_id=self.message_id,
            agent_id=self.whose(),
            cause=self.causes(),
            timestamp=self.timestamp,
            name=self.name,
            language_model=self.language_model,
            parent=None if self.parent == USER and self.agent is not None else self.parent,
        )


Usual = TranscriptEntry | _PieceOfText | _Created
Wide = WideEntry | WidePiece | WideFragment | WideCreated
BOTH = "has a substance and a cause, of which an event has one: its substance was kept"


def _all(cause: str | tuple[str, ...]) -> tuple[str, ...]:
    return (cause,) if isinstance(cause, str) else cause


class NeedsCareError(ValueError):
    """An entry of the usual form has links, or no agent, that are to be looked at: it is to be read in the wide form."""


def events_of(values: list[Usual]) -> list[AnyEvent]:
    """Return the events behind decoded lines of the usual form: most are that already. Raises `NeedsCareError`."""
    return [  # one pass with nothing called, since each of a million events goes through it
        value
        if isinstance(value, TranscriptEntry)
        and value.agent_id
        and (value.substance is None or (not value.cause and value.substance != value.message_id))
        else _event(value)
        for value in values
    ]


def _event(value: Usual) -> AnyEvent:
    if isinstance(value, TranscriptEntry) or (isinstance(value, _Created) and not value.agent_id):
        raise NeedsCareError
    return value.event()


@cache
def usual_lines() -> Callable[[bytes], list[Usual]]:
    """Return the decoder of lines of the usual form."""
    return _lines(Usual)


@cache
def wide_lines() -> Callable[[bytes], list[Wide]]:
    """Return the decoder of lines of any form."""
    return _lines(Wide)


def _lines(kind: Any) -> Callable[[bytes], list[Any]]:
    TypedDecoder[Any](list[kind])(b"[]")  # has msgspec learn the types under the one lock for that
    return msgspec.json.Decoder[Any](kind).decode_lines
