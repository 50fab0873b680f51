"""Texts that carry what they are in the log: operational code sees plain strings, logging code reads the attributes.

`LoggedString` has the names of seed 001, `MessageString` those of seed 000; each answers to the other's as well. Building a new text from
one, as with an f-string, gives a plain `str`: hand the identity on, ``LoggedString(f"[Jack]: {said}", said.message_id)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self, SupportsIndex, cast

from optree._values import text, text_of


class LoggedString(str):  # noqa: SLOT000 - with a __dict__ it pickles under every protocol
    """A text that carries the id of the message whose content it is. What is built from it, as by an f-string, is a plain `str`.

    ```python
    from optree.conversation import LoggedString

    said = LoggedString("Hello", "msg_007")
    framed = LoggedString(f"[Jack]: {said}", said.message_id)  # the same content, in other words
    ```
    """

    message_id: str | None
    """The id of the message; None for a text that was not logged."""
    cause: tuple[str, ...]
    """The ids of the messages that the text was made from, where it is the content of none of them alone."""

    def __new__(cls, content: object = "", message_id: str | None = None, cause: str | Iterable[str] = ()) -> Self:
        """Make one of any value; None, which a message of tool calls has for its content, is the empty text."""
        string = super().__new__(cls, "" if content is None else content)
        string.message_id = id_of(message_id)
        string.cause = (cause,) if isinstance(cause, str) else tuple(cause)
        return string

    @property
    def content_id(self) -> str | None:
        """The same as seed 000 calls it."""
        return self.message_id


class MessageString(str):  # noqa: SLOT000 - as above
    """The same as `LoggedString`, with the names of seed 000."""

    content_id: str | None
    """The id of the message whose content it is."""
    caused_by: str | None
    """Of a piece of text, the message with the call that made it."""

    def __new__(cls, content: object = "", content_id: str | None = None, caused_by: str | None = None) -> Self:
        """Make one of any value; None is the empty text."""
        string = super().__new__(cls, "" if content is None else content)
        string.content_id = id_of(content_id)
        string.caused_by = id_of(caused_by)
        return string

    @property
    def message_id(self) -> str | None:
        """The same as seed 001 calls it."""
        return self.content_id


class PieceId(str):
    """The id of a piece of text that was just logged, which can be delivered like the text itself.

    Seed 000 uses what `log_piece_of_text` returns in both ways. As a string it is the id: equal to it, written to JSON as it. ``str()`` of
    it, as ``harken`` takes it, and `text` are the text with its identity.
    """

    __slots__ = ("text",)

    text: MessageString

    def __new__(cls, message_id: str, content: str, caused_by: str | None = None) -> Self:
        """Make the id of a text."""
        piece_id = super().__new__(cls, message_id)
        piece_id.text = MessageString(content, message_id, caused_by)
        return piece_id

    def __str__(self) -> str:
        return str.__str__(self.text)

    def __getnewargs__(self) -> tuple[str, str, str | None]:  # type: ignore[override]
        return str.__getitem__(self, slice(None)), str.__str__(self.text), self.text.caused_by

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type[PieceId], tuple[str, str, str | None]]:
        return type(self), self.__getnewargs__()

    @property
    def content_id(self) -> str:
        """The id, as a plain text."""
        return str.__getitem__(self, slice(None))

    message_id = content_id

    @property
    def caused_by(self) -> str | None:
        """The message with the call that made the text."""
        return self.text.caused_by


def id_of(identity: str | None) -> str | None:
    """Return an id as plain text, also where a text that carries it was given in its place."""
    if isinstance(identity, LoggedString | MessageString | PieceId):
        return identity.message_id
    return None if identity is None else text(identity)


def identity_of(content: object) -> str | None:
    """Return the id of the message whose content a text represents; None for a plain one."""
    identity = getattr(content, "message_id", None) or getattr(content, "content_id", None)
    return text_of(identity)


def causes_of(content: object) -> tuple[str, ...]:
    """Return the ids of the messages that a text was compiled from; none for a plain one."""
    causes = getattr(content, "cause", ())
    return cast("tuple[str, ...]", causes) if isinstance(causes, tuple) else ()
