"""Credentials in values and texts, replaced before anything is cut, coloured, joined or shown.

In comes a whole value (`redact`), texts that follow one another (`redact_pieces`) or one that is still being written (`StreamRedactor`);
out comes the same without credentials, and what was given stays as it is. What is found is in two tables, of forms and of names;
`Redaction` adds to them and takes away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar, cast

from optree._interrupts import WeakMembers
from optree.redaction._engine import Engine
from optree.redaction._extent import REDACTED
from optree.redaction._settings import Redaction, detectors
from optree.redaction._streams import Holding

__all__ = [
    "REDACTED",
    "Redaction",
    "StreamRedactor",
    "detectors",
    "may_hold_secret",
    "names_secret",
    "redact",
    "redact_pieces",
]
"""What programs may use; the other functions are optree's own."""

VARIABLE = "OPTREE_REDACT"
"""The environment's variable that holds settings as JSON: `configure` wins over it."""

T = TypeVar("T")
P = ParamSpec("P")
_settings = Redaction()
_MARGIN = 4096
"""Characters before and behind a cut in which a credential over it is looked for."""

_engine: Engine | None = None
_headers: Engine | None = None
"""For headers, of which no credential is ever stored."""
_failed = 0
_forgetting: list[Callable[[], None]] = []
_remembering: WeakMembers[Remembered] = WeakMembers()


def redact(value: Any) -> Any:
    """Return a copy of a plain *value* with credentials replaced: under their names, in texts by form and by what names are given.

    Looks into objects and arrays, lists of pairs, and into JSON, code, headers and URLs inside texts. A key of an object that holds a
    credential is replaced like any text. ``None``, truth values and the empty text stay, whatever their name.
    """
    return (_engine or _current()).value(value)


def redact_pieces(texts: Sequence[str]) -> list[str]:
    """Return texts that follow one another, such as streamed chunks, without credentials, also those that lie over several of them.

    There are as many as before, and joined they are what `redact` makes of the texts joined. What stands for a credential is in the
    piece in which it began.
    """
    return (_engine or _current()).pieces(texts)


def beginning(text: str, limit: int) -> str:
    """Return at most *limit* characters of a text's beginning, without the piece of a credential that would lie over the end."""
    if len(text) <= limit:
        return text
    begun = max(0, limit - _MARGIN)
    for credential in (_engine or _current()).spans(text[begun : limit + _MARGIN]):
        if begun + credential.start < limit < begun + credential.stop:
            return text[: begun + credential.start]
    return text[:limit]


def redact_headers(value: Any) -> Any:
    """Return a copy of plain headers without what is a credential, whatever the settings say; names that a user adds hold as well.

    Takes them as a mapping, pairs, objects with a name and a value, names before values, lines, or one text.
    """
    return (_headers or _current_headers()).headers(value)


def may_hold_secret(text: str) -> bool:
    """Tell whether `redact` changes a text: quick where it has no credential."""
    return (_engine or _current()).may_hold_secret(text)


def names_secret(name: str) -> bool:
    """Tell whether a name (of a header, variable, member of an object) is that of a credential."""
    return (_engine or _current()).names_secret(name)


class StreamRedactor:
    """A text that comes in pieces, passed on without credentials, line by line.

    What it returns, joined, is what `redact` makes of the whole text. It holds back the line that is being written, and lines over which
    a credential may lie (a private key, an object in JSON under the name of one), but not much more than 8,192 characters: of a longer
    line all but the last words are passed on, and a longer credential is replaced as far as it goes.
    """

    def __init__(self) -> None:
        self._holding = Holding()

    def feed(self, text: str) -> str:
        """Return what may be shown now; it may be empty."""
        return self._holding.add(text, _engine or _current())

    def close(self) -> str:
        """Return what was held back."""
        return self._holding.rest(_engine or _current())


def use(settings: Redaction) -> None:
    """Redact by other settings from now on, in this process; what is `Remembered` of the old ones is forgotten."""
    global _settings, _engine, _headers
    _settings, _engine, _headers = settings, None, None
    for forget in _forgetting:
        forget()
    for kept in list(_remembering):
        kept.clear()


def settings() -> Redaction:
    """Return the settings in use."""
    return _settings


def remembered(size: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function whose results follow from its arguments and the settings: the last *size* are kept, until `use`."""

    def keeping(function: Callable[P, T]) -> Callable[P, T]:
        kept = lru_cache(size)(function)
        _forgetting.append(kept.cache_clear)
        return cast("Callable[P, T]", kept)

    return keeping


class Remembered:
    """Keeps what follows from the settings: `use` calls its `clear`."""

    __slots__ = ("__weakref__",)

    def __init__(self) -> None:
        _remembering.add(self)

    def clear(self) -> None:
        """Forget all."""
        raise NotImplementedError


def callback_errors() -> int:
    """Return how many texts were replaced whole since the user's callback raised."""
    return _failed


def forget_callback_errors() -> None:
    """In a forked child: they are the parent's."""
    global _failed  # noqa: PLW0603 - as the engine
    _failed = 0


def _count() -> None:
    global _failed  # noqa: PLW0603 - as the engine
    _failed += 1


def _current() -> Engine:
    """Return the engine; made when first used, which takes milliseconds."""
    global _engine  # noqa: PLW0603 - as above
    engine = _engine = Engine(_settings, _count)
    return engine


def _current_headers() -> Engine:
    global _headers  # noqa: PLW0603 - as above
    headers = _headers = Engine(Redaction(names=_settings.names), _count)
    return headers
