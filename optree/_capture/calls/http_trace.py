"""What passes over HTTP beside a call's request and answer: a line for each side and for the stream where calls are traced, and limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from http import HTTPStatus
from itertools import islice
from time import monotonic
from typing import Any, Final

from optree._builder import Op
from optree._interrupts import pass_on
from optree._values import is_object, text

_MOST_HEADERS, _MOST_CHARACTERS, _MOST_KINDS = 64, 512, 16
_SECRET: Final = frozenset({"authorization", "cookie", "proxy-authenticate", "set-cookie", "www-authenticate"})
"""Headers of an answer that are not recorded; credentials in others are replaced where they are shown, as everywhere."""
_LIMITS: Final = ("retry-after", "x-ratelimit-", "ratelimit", "anthropic-ratelimit-")
"""What the names of headers begin with that say how much may be asked still, and when again."""

Headers = Collection[tuple[bytes, bytes]]


def limits_in(headers: Headers) -> dict[str, str]:
    """Return the headers of a refusal that say how much may be asked still, and when again."""
    return {name: value for name, value in _told(headers).items() if name.startswith(_LIMITS)}


def _told(headers: Headers) -> dict[str, str]:
    found = ((name.decode("latin-1").lower(), value.decode("latin-1")[:_MOST_CHARACTERS]) for name, value in headers)
    return dict(islice((one for one in found if one[0] not in _SECRET), _MOST_HEADERS))


def phrase_of(status: int) -> str:
    """Return what an HTTP status means; an empty text for one that is not the standard's, as 529."""
    try:
        return HTTPStatus(status).phrase
    except ValueError as error:
        pass_on(error)
        return ""


class HttpTrace:
    """One attempt's HTTP, as lines of its op of the severity TRC: what it sent, the answer's head, and what came of a stream."""

    def __init__(self, op: Op, sent: str) -> None:
        """Begin with the line of what is *sent*."""
        self._op = op
        self._began = monotonic()
        self._first: float | None = None
        self._kinds: Counter[str] = Counter()
        op.log(sent, "TRC", "request")

    def head(self, status: int, headers: Headers) -> None:
        """Record the answer's status and headers."""
        self._op.log(f"{status} {phrase_of(status)} after {self._seconds:.3f} s", "TRC", "response", details={"headers": _told(headers)})

    def event(self, value: Any) -> None:
        """Count an event of a stream."""
        if self._first is None:
            self._first = self._seconds
        kind = (value.get("type") or value.get("object") or next(iter(value), None)) if is_object(value) else None
        kind = text(kind)[:_MOST_CHARACTERS] if kind else "event"
        self._kinds[kind if kind in self._kinds or len(self._kinds) < _MOST_KINDS else "other"] += 1

    def over(self, size: int) -> None:
        """Record how much came in all, and of which kinds."""
        said = f"{size:,} bytes in {self._seconds:.3f} s"
        if self._first is not None:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in self._kinds.most_common())
            said = f"stream of {self._kinds.total():,} events, {said}, the first read after {self._first:.3f} s: {kinds}"
        self._op.log(said, "TRC", "response")

    @property
    def _seconds(self) -> float:
        return monotonic() - self._began
