"""What a conversation is made of: three kinds of events in one stream, as seeds 000 and 001 name them.

In a tree, an agent is a session, and its transcript that session's messages (`optree._nodes.Message`, which has the same links):

    AgentCreated      a session; its attribute ``conversation`` holds ``{agentId, messageId, name, languageModel, cause, parent}``
    TranscriptEntry   a message of the agent's session; its body is the message as a provider takes it
    PieceOfText       a message of role `PIECE_OF_TEXT` in the session of the agent that made it, in nobody's transcript

A session that was captured otherwise has no ids in its messages: then they are given, in the order of time, when it is looked at.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from optree._values import is_list, is_object, plain


class _Nothing(dict[str, Any]):
    """An empty object that all entries share and that must not be changed: a million entries are read quicker so."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("an entry that has nothing more shares this object: give the entry one of its own")

    def __reduce__(self) -> str:
        return "NOTHING"


NOTHING: dict[str, Any] = _Nothing()
_NAMED = {"role", "content", "tool_calls", "tool_call_id", "name"}


class ConversationEvent(Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Base of all events. Ids are unique in the stream, and of any form: ``msg_001``, ``agent_root``, ``7``."""

    message_id: str
    """The event's id."""
    agent_id: str = ""
    """Whose transcript, who made the text, or who was created; empty where a text's maker is not known (version 1)."""
    cause: tuple[str, ...] = ()
    """Ids of the messages that brought this about; ``<message>.<tool call>`` names one call of several. Never beside a substance."""
    timestamp: float | None = None
    """Epoch milliseconds, where they are known: the seeds' files have none."""


class TranscriptEntry(ConversationEvent, kw_only=True, tag="transcript_entry", tag_field="event_type"):
    """Something that entered an agent's transcript."""

    role: str
    """``user``, ``assistant``, ``tool`` or ``system``."""
    content: Any = None
    """Text, a provider's list of content blocks, or None."""
    substance: str | None = None
    """Id of the event whose content this one represents; None if it is new content."""
    tool_calls: list[dict[str, Any]] | None = None
    """The tool calls of an assistant's message, in OpenAI's form."""
    tool_call_id: str | None = None
    """Of a tool's result, the call's id."""
    name: str | None = None
    """Of a tool's result, the tool's name."""
    more: dict[str, Any] = NOTHING
    """Members of the message that the seeds do not name; not to be changed in place."""


class PieceOfText(ConversationEvent, kw_only=True, tag="piece_of_text", tag_field="event_type"):
    """A text that a tool made for others to hear; its cause is the call."""

    content: Any = None
    """The text."""


class AgentCreated(ConversationEvent, kw_only=True, tag="agent_created", tag_field="event_type"):
    """An agent came into being; *cause* is the message with the call that created it, and its agent the parent. The root has none."""

    name: str | None = None
    """What its parent calls it."""
    language_model: str | None = None
    """The name of its model."""
    parent: str | None = None
    """Agent id of the parent, where it is known by other means than the cause."""


AnyEvent = TranscriptEntry | PieceOfText | AgentCreated
"""An event of a conversation."""


def message_of(entry: TranscriptEntry) -> dict[str, Any]:
    """Return an entry as the message that it is in its transcript."""
    members = {"tool_calls": entry.tool_calls, "tool_call_id": entry.tool_call_id, "name": entry.name}
    return {"role": entry.role, "content": entry.content} | {key: value for key, value in members.items() if value is not None} | entry.more


def entry_of(message: dict[str, Any], message_id: str, agent_id: str, same: str | None, causes: tuple[str, ...]) -> TranscriptEntry:
    """Return a message of plain values as an entry of an agent's transcript."""
    calls, call, name, role = (message.get(key) for key in ("tool_calls", "tool_call_id", "name", "role"))
    listed = is_list(calls) and all(map(is_object, calls))
    more = {key: value for key, value in message.items() if key not in _NAMED or (key == "tool_calls" and value and not listed)}
    return TranscriptEntry(
        message_id=message_id,
        agent_id=agent_id,
        cause=causes,
        role=role if isinstance(role, str) and role else "unknown",
        content=message.get("content"),
        substance=same,
        tool_calls=calls if listed else None,
        tool_call_id=None if call is None else str(call),
        name=None if name is None else str(name),
        more=more or NOTHING,
    )


def plain_message(message: Any) -> dict[str, Any]:
    """Return a message, of whatever type, as plain values taken now; a value that is not a message becomes the content of one."""
    value = plain(message)
    return value if is_object(value) else {"role": "user", "content": value}
