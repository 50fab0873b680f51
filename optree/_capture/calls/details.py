"""Details of an attempt of a captured call: when its stream's bytes came, a refusal's limits, and, with `trace_llm`, log lines of HTTP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from http import HTTPStatus
from itertools import islice
from time import monotonic
from typing import Any, Final

from optree._builder import Op
from optree._interrupts import pass_on
from optree._tracing.runtime import RUNTIME
from optree._values import is_list, is_object, text

FIRST_CHUNK: Final = "time_to_first_chunk"
"""The attribute of an op that says after how many seconds the first piece of its answer came."""
TIMELINE: Final = "stream.timeline"
"""The attribute of an op with points of its stream: seconds since it was asked for, and bytes that had come by then."""
_MOST_POINTS: Final = 128
_MOST_HEADERS, _MOST_CHARACTERS, _MOST_KINDS = 64, 512, 16
_SECRET: Final = frozenset({"authorization", "cookie", "proxy-authenticate", "set-cookie", "www-authenticate"})
"""Headers of an answer that are not recorded; credentials in others are replaced where they are shown, as everywhere."""
_LIMITS: Final = ("retry-after", "x-ratelimit-", "ratelimit", "anthropic-ratelimit-")
"""What the names of headers begin with that say how much may be asked still, and when again."""

Headers = Collection[tuple[bytes, bytes]]


class Details:
    """What is told of one attempt beside its request and its answer."""

    __slots__ = ("_began", "_count", "_every", "_first", "_headers", "_is_kept", "_is_traced", "_kinds", "_op", "_points")

    def __init__(self, op: Op, began: float) -> None:
        """Begin with an attempt that *began* at a monotonic time."""
        self._op, self._began = op, began
        self._headers: Headers = ()
        self._is_traced = self._is_kept = False
        self._first: float | None = None
        """The value of `FIRST_CHUNK`."""
        self._points: list[tuple[float, int]] = []
        """The value of `TIMELINE`."""
        self._count, self._every = 0, 1
        """How many times pieces were read, and of how many of these one has a point."""
        self._kinds: Counter[str] | None = None

    def sends(self, line: str) -> None:
        """Record a *line* of what is sent, if calls are traced, and from here on what comes."""
        if RUNTIME.config.trace_llm:
            self._is_traced = True
            self._op.log(line, "TRC", "request")

    def head(self, status: int, headers: Headers) -> None:
        """Take an answer's status and headers."""
        self._headers = headers
        if self._is_traced:
            said = f"{status} {phrase_of(status)} after {monotonic() - self._began:.3f} s"
            self._op.log(said, "TRC", "response", details={"headers": _told(headers)})

    def begins(self, came: float) -> None:
        """Take that the first piece of the answer came, at a monotonic time."""
        if self._first is None:
            self._first = came - self._began

    def keep(self, **more: Any) -> None:
        """Set the attributes that are known by now, and those of *more*, on the op; the time to the first chunk once."""
        if self._first is not None and not self._is_kept:
            self._is_kept = True
            if FIRST_CHUNK not in self._op.bare.attributes:  # the program may have said it
                more[FIRST_CHUNK] = self._first
        if more:
            self._op.builder.set_op(self._op, **more)

    def reads(self, came: float | None, size: int) -> None:
        """Take that pieces of a stream are read, of which the first came at a monotonic time, if it is known: *size* bytes by now."""
        if came is None:
            return
        self._count += 1
        if self._count % self._every == 0:
            self._points.append((round(came - self._began, 3), size))
        if len(self._points) == _MOST_POINTS:
            self._points = self._points[1::2]
            self._every *= 2

    def event(self, value: Any, came: float | None) -> None:
        """Take an event of a stream."""
        if came is not None and self._first is None and _has_answer(value):
            self.begins(came)
        if self._is_traced:
            kinds = self._kinds = Counter() if self._kinds is None else self._kinds
            kind = (value.get("type") or value.get("object") or next(iter(value), None)) if is_object(value) else None
            kind = text(kind)[:_MOST_CHARACTERS] if kind else "event"
            kinds[kind if kind in kinds or len(kinds) < _MOST_KINDS else "other"] += 1

    def over(self, size: int) -> None:
        """Take that no more comes: *size* bytes came in all."""
        seconds = monotonic() - self._began
        if self._points:
            points = self._points if self._points[-1][1] == size else [*self._points, (round(seconds, 3), size)]
            self.keep(**{TIMELINE: points})
        if self._is_traced and self._headers:
            said = f"{size:,} bytes in {seconds:.3f} s"
            if self._kinds is not None:
                kinds = ", ".join(f"{count:,} {kind}" for kind, count in self._kinds.most_common())
                said = f"stream of {self._kinds.total():,} events, {said}: {kinds}"
            self._op.log(said, "TRC", "response")

    @property
    def limits(self) -> dict[str, str]:
        """The headers of a refusal that say how much may be asked still, and when again."""
        return {name: value for name, value in _told(self._headers).items() if name.startswith(_LIMITS)}


def _told(headers: Headers) -> dict[str, str]:
    found = ((name.decode("latin-1").lower(), value.decode("latin-1")[:_MOST_CHARACTERS]) for name, value in headers)
    return dict(islice((one for one in found if one[0] not in _SECRET), _MOST_HEADERS))


def _has_answer(event: Any) -> bool:
    """Tell whether an event of a stream has anything of the answer; others open it, as OpenAI's ``response.created``, or name a role."""
    if not is_object(event):
        return False
    if (kind := event.get("type")) is not None:
        return "delta" in text(kind)
    if not is_list(choices := event.get("choices")):
        return "messageStart" not in event  # Bedrock's; Gemini and Ollama answer from the first on
    told = [part if is_object(part := one.get("delta")) else {"text": one.get("text")} for one in choices if is_object(one)]
    return any(value for part in told for name, value in part.items() if name != "role")


def phrase_of(status: int) -> str:
    """Return what an HTTP status means; an empty text for one that is not the standard's, as 529."""
    try:
        return HTTPStatus(status).phrase
    except ValueError as error:
        pass_on(error)
        return ""
