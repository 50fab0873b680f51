"""Histories that were sent: what is sent again in front of another is neither encoded nor hashed again.

Each message is compared with a copy of what it was then, so that one that was changed in place counts as another. Texts are kept by
reference and mostly compared by identity, which makes this quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

MOST_HISTORIES = 4
"""Histories of one process and root session that are kept to compare with: agents that run at once take turns."""


class SentMessage(NamedTuple):
    """A message of a history as it was sent."""

    copy: Any
    link: str
    """Of the pool, for the history up to here."""
    size: int
    """Bytes of JSON of the messages up to here."""


class PooledHistory(NamedTuple):
    """A history that is in the pool and grows by `Core.appended`: for callers that hand over each message once."""

    link: str = ""
    """Of the pool, for the history as it is; empty for one without messages."""
    length: int = 0
    """How many messages it has."""
    size: int = 0
    """Bytes of JSON of the messages."""


class SentHistories:
    """The histories that were sent last, each as far as its messages are plain data."""

    __slots__ = ("_sent",)

    def __init__(self) -> None:
        self._sent: tuple[list[SentMessage], ...] = ()

    def find(self, messages: Sequence[object]) -> list[SentMessage]:
        """Return the beginning of a history that was sent before, as far as it was."""
        longest: list[SentMessage] = []
        for sent in self._sent:
            same = _same(messages, sent)
            if same > len(longest):
                longest = sent[:same]
        return longest

    def keep(self, sent: list[SentMessage]) -> None:
        """Keep a history, in place of one that it goes on from."""
        others = [history for history in self._sent if history[-1].link != sent[min(len(history), len(sent)) - 1].link]
        self._sent = (sent, *others[: MOST_HISTORIES - 1])


def copied(value: Any) -> Any:
    """Return a copy of plain data, taken at once at each level."""
    kind = cast("Any", type(value))
    if kind is dict:
        return {key: copied(item) for key, item in list(value.items())}
    if kind is list:
        return [copied(item) for item in list(value)]
    if kind is tuple:
        return tuple(copied(item) for item in value)
    return value


def _same(messages: Sequence[object], sent: list[SentMessage]) -> int:
    """Return how many messages at the beginning are what was sent."""
    count = 0
    for message, earlier in zip(messages, sent, strict=False):
        if not is_same(message, earlier.copy):
            break
        count += 1
    return count


def is_same(value: Any, copy: Any) -> bool:
    """Tell whether a value has the same JSON as plain data that was copied: types and order count too."""
    kind = cast("Any", type(value))
    if kind is not type(copy):
        return False
    if kind is dict:
        return len(value) == len(copy) and all(map(_is_same_member, list(value.items()), copy.items()))
    if kind is list or kind is tuple:
        return len(value) == len(copy) and all(map(is_same, list(value), copy))
    if kind is float:
        return bool(value.hex() == copy.hex())
    return kind in _COMPARED and bool(value == copy)


def _is_same_member(member: tuple[Any, Any], kept: tuple[Any, Any]) -> bool:
    (key, value), (known, copy) = member, kept
    if type(key) is not str or key != known:
        return False
    if type(value) is str and (value is copy or (type(copy) is str and value == copy)):
        return True
    return is_same(value, copy)


_COMPARED: frozenset[type] = frozenset({str, int, bool, type(None)})
