"""Events of a websocket to a model that ask for no response (`session.update`, `conversation.item.create`), and what refuses them.

An error of one is a log line: of the response that is under way, else of the op that is open here, else of a system op of its own.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from optree._capture.calls.begin import is_wanted
from optree._capture.calls.exchange import Exchange
from optree._capture.calls.program import PROGRAM
from optree._capture.calls.refusals import Refusal, refusal_in
from optree._capture.replay.recorded import EVENT, EVENT_KEY, key_of_event
from optree._nodes import ERROR_BODY
from optree._tracing import context
from optree._tracing.failures import ERROR_TYPE
from optree._tracing.scopes import OpScope
from optree._values import is_object

_MOST_KEPT: Final = 20
_UPDATE: Final = "session.update"
_OF: Final = {"session": _UPDATE, "item": "conversation.item.", "audio": "input_audio_buffer.", "input_audio": "input_audio_buffer.",
              "response_cancel": "response.cancel"}  # fmt: skip
"""Types of events by the beginning of an error's parameter or code, where the error names no event."""


class SentBeside:
    """The last events that were sent over a connection, and ask for no response."""

    def __init__(self) -> None:
        self._sent: deque[dict[str, Any]] = deque(maxlen=_MOST_KEPT)

    def sent(self, event: dict[str, Any]) -> None:
        """Take one."""
        self._sent.append(event)

    def updated(self) -> None:
        """Take that the session was changed as the first that asks for it says."""
        self._taken(next((one for one in self._sent if one["type"] == _UPDATE), None))

    def refused(self, error: dict[str, Any], name: str, within: Exchange | None) -> dict[str, Any]:
        """Record an *error* that a model's server says, *within* a response; return the event that it is of, or nothing.

        *name* is that of an op of its own, where one is needed.
        """
        asked = self._meant(error)
        if (refusal := refusal_in(error, is_refused=True)) is not None and is_wanted():
            _record(refusal, asked, name, within)
        return asked or {}

    def _meant(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Return the event that an error is of, and forget it; None if that is not known."""
        error = event.get("error")
        if not is_object(error):
            return None
        if (named := error.get("event_id")) is not None:
            return self._taken(next((one for one in self._sent if one.get("event_id") == named), None))
        about = [str(error.get(name) or "") for name in ("param", "code")]
        kind = next((kind for word, kind in _OF.items() if any(one.startswith(word) for one in about)), None)
        same = [one for one in self._sent if kind is not None and one["type"].startswith(kind)]
        return self._taken(None if not same else same[0] if kind == _UPDATE else same[-1])

    def _taken(self, event: dict[str, Any] | None) -> dict[str, Any] | None:
        if event is not None:
            self._sent = deque((one for one in self._sent if one is not event), _MOST_KEPT)
        return event


def _record(refusal: Refusal, asked: dict[str, Any] | None, name: str, within: Exchange | None) -> None:
    """Record it as a log line."""
    kind = str(asked.get("type")) if asked is not None else None
    told = {EVENT: kind, EVENT_KEY: None if asked is None else key_of_event(asked), ERROR_TYPE: refusal.code, ERROR_BODY: refusal.body}
    details = {name: value for name, value in told.items() if value is not None}
    line = ": ".join(filter(None, (f"{kind or 'an event'} was refused", refusal.message)))
    if within is not None:
        within.log(line, "WRN", details)
        return
    where = context.here()
    if where is not None and where.op is not None and where.op.bare.ended_at is None:
        where.op.log(line, "WRN", details=details)
        return
    scope = OpScope("system", f"{name} {kind or 'error'}", {} if refusal.code is None else {ERROR_TYPE: refusal.code})
    begun = scope.begin(where or PROGRAM.place_of_tool())
    op: Any = begun.op
    op.log(line, "WRN", details=details)
    scope.finish(op, "failed", refusal.message)
