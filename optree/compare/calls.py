"""The changes of one LLM call: of its context, and of the previous call's messages: kept, edited, removed, inserted."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from optree._nodes import Status
from optree._values import is_object
from optree.compare.alignment import align
from optree.compare.details import Change, as_line, differing, excerpt, message_line
from optree.compare.histories import Histories

MOST_EDITS_SHOWN = 5
_ALIKE = 0.3
"""Two messages of one role are one that was edited if they begin and end alike to this share."""
_ENDS = 256
_AHEAD = 8
"""Messages among which the one that a message was edited to is looked for."""
_MOST_PAIRED = 64
"""Where more messages than this are gone from one place, they were removed (a compaction), not edited."""


class Edit(Struct, rename="camel", omit_defaults=True):
    """A message in the shared part that is not as it was. *at* counts from 0, in this call; of a removed message in the previous one."""

    kind: Literal["edited", "removed", "inserted"]
    at: int
    role: str
    before: str | None = None
    after: str | None = None


class Messages(Struct, rename="camel"):
    """What became of the messages; bytes are of their JSON. Kept is the common prefix, *later* what is the same behind it."""

    kept: int = 0
    kept_bytes: int = 0
    later: int = 0
    later_bytes: int = 0
    text_bytes: int = 0
    """What of both is no image or other data in base64, whose bytes say nothing about its tokens."""
    edited: int = 0
    removed: int = 0
    inserted: int = 0
    appended: int = 0
    appended_bytes: int = 0
    edits: list[Edit] = []
    """The first few of those that were edited, removed or inserted, in order."""

    @property
    def new(self) -> bool:
        """True if the call has nothing of the previous one: a conversation that begins, not one that goes on."""
        return not (self.kept or self.later or self.edited)


def messages_since(histories: Histories, before: int, after: int) -> Messages:
    """Return what became of a history *before* in the history *after* it, both given by their nodes."""
    part = histories.shared(before, after)
    result = Messages(histories.depth[part], histories.size[part], text_bytes=histories.text[part], edits=[])
    old, new = histories.after(part, before), histories.after(part, after)
    pairs = align([histories.item[node] for node in old], [histories.item[node] for node in new])
    result.later, result.later_bytes = len(pairs), sum(_size(histories, old[x]) for x, _ in pairs)
    result.text_bytes += sum(histories.text[old[x]] - histories.text[histories.parent[old[x]]] for x, _ in pairs)
    x = y = 0
    for next_x, next_y in [*pairs, (len(old), len(new))]:
        _Gap(histories, result, old[x:next_x], new[y:next_y]).note(result.kept + x, result.kept + y, last=next_x == len(old))
        x, y = next_x + 1, next_y + 1
    return result


class _Gap:
    """What is between two messages that are the same."""

    def __init__(self, histories: Histories, messages: Messages, old: list[int], new: list[int]) -> None:
        self.histories, self.messages, self.old, self.new = histories, messages, old, new

    def note(self, x: int, y: int, *, last: bool) -> None:
        """Note the edits of the gap; *x* and *y* are the positions where it begins. New messages at the very end are appended."""
        used = 0
        wholesale = len(self.old) > _MOST_PAIRED
        if wholesale:
            self.messages.removed += len(self.old) - MOST_EDITS_SHOWN
        for step, node in enumerate(self.old[:MOST_EDITS_SHOWN] if wholesale else self.old):
            paired = self._partner(node, used)
            if paired is None:
                self._edit("removed", x + step, node, None)
                continue
            for between in range(used, paired):
                self._edit("inserted", y + between, None, self.new[between])
            self._edit("edited", y + paired, node, self.new[paired])
            used = paired + 1
        for step in range(used, len(self.new)):
            if last:
                self.messages.appended += 1
                self.messages.appended_bytes += _size(self.histories, self.new[step])
            else:
                self._edit("inserted", y + step, None, self.new[step])

    def _partner(self, node: int, used: int) -> int | None:
        """Return the position of the message that this one was edited to."""
        if len(self.old) > _MOST_PAIRED:
            return None
        message = self.histories.message(node)
        alone = len(self.old) == len(self.new) == 1
        for at in range(used, min(len(self.new), used + _AHEAD)):
            candidate = self.histories.message(self.new[at])
            if role_of(message) == role_of(candidate) and (alone or _alike(_content(message), _content(candidate))):
                return at
        return None

    def _edit(self, kind: Literal["edited", "removed", "inserted"], at: int, old: int | None, new: int | None) -> None:
        messages = self.messages
        setattr(messages, kind, getattr(messages, kind) + 1)
        if len(messages.edits) >= MOST_EDITS_SHOWN:
            return
        old_message, new_message = (None if node is None else self.histories.message(node) for node in (old, new))
        before, after = (
            None if node is None else message_line(body, role=False) for node, body in ((old, old_message), (new, new_message))
        )
        if before is not None and after is not None:
            before, after = differing(before, after)
        messages.edits.append(
            Edit(kind, at, role_of(old_message if new is None else new_message), before and excerpt(before), after and excerpt(after))
        )


def role_of(message: Any) -> str:
    """Return a message's role, or else its type."""
    if is_object(message):
        return str(message.get("role") or message.get("type") or "message")
    return "lost" if message is None else "message"


def _content(message: Any) -> str:
    return as_line({key: value for key, value in message.items() if key != "role"}) if is_object(message) else as_line(message)


def _alike(a: str, b: str) -> bool:
    """Tell whether two texts begin and end alike; only their first and last characters are looked at."""
    shorter = min(len(a), len(b), _ENDS)
    first = next((at for at in range(shorter) if a[at] != b[at]), shorter)
    last = next((at for at in range(shorter) if a[-1 - at] != b[-1 - at]), shorter)
    frame = len('{"content":""}')
    return first + last - frame >= _ALIKE * min(max(len(a), len(b)), 2 * _ENDS)


def _size(histories: Histories, node: int) -> int:
    return histories.size[node] - histories.size[histories.parent[node]]


class CallContext(Struct, rename="camel"):
    """One LLM call against the one that it goes on from. Messages count from 0; bytes are those of JSON; money is US dollars.

    Where there is no *previous* call, or the messages of one are not known (*note* says why), *messages* is None and nothing is compared.
    Tokens are those of the call's accounting, all attempts together, None where there is none. What is said of the cache is about the last
    attempt.
    """

    path: str
    agent: str
    model: str
    status: Status | None
    previous: str | None
    """Path of the call that it goes on from (`optree.compare.histories` chooses it)."""
    note: str | None = None
    count: int | None = None
    """Messages that it sent."""
    bytes: int | None = None
    """Bytes of the messages that it sent."""
    messages: Messages | None = None
    """What became of the previous call's messages."""
    parts: list[Change] = []
    """What else changed that a cache's key depends on: the `model`, and what `optree.compare.cache.PARTS` names."""
    input_tokens: int | None = None
    """All tokens that were sent, with those read from the cache and written to it."""
    cache_read_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None
    cost_usd: float | None = None
    cache: Literal["first", "unknown", "kept", "broken", "missed"] = "unknown"
    """`kept`: nothing was lost, or too little to tell. `broken`: something differs in front of what could have been read.

    `missed`: less was read though nothing differs. `first`: there is no previous call. `unknown`: there are no figures, no call of the
    model (or the previous call's) tells of a cache, or only the end was edited.
    """
    reusable_tokens: int | None = None
    """Tokens of the previous call that are in this one too; None if unknown."""
    estimated: bool = False
    """True if *reusable_tokens* and *lost_tokens* are a share, by bytes of text, of the previous call's tokens; else measured."""
    expired: bool = False
    """True if the wait since the previous call was longer than the provider keeps an entry: it may be lost for that alone."""
    lost_tokens: int = 0
    """Tokens that could have been read from the cache and were not."""
    lost_usd: float | None = None
    """What that cost more, None if no price is known."""
    cause: str | None = None
    """What differs first of what is surely in a cache's key, else of what may be; or why tokens may not have been read otherwise."""

    def add_note(self, note: str) -> None:
        """Say one thing more."""
        self.note = note if self.note is None else f"{self.note}; {note}"
