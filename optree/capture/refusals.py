"""What a provider says of a call that it refuses, or that fails while it answers: its code, its message and all else, in its own form."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any, Final, NamedTuple

from optree.interrupts import pass_on
from optree.tracing.failures import ERROR_BODY, ERROR_TYPE
from optree.values import cut, encode, is_list, is_object, text

_CODE: Final = re.compile(r"(?=.*[A-Za-z])[\w.:/-]{1,100}")
"""What is taken for a code: a number stands in the body alone, as a text that is no name does."""
_CODES: Final = ("code", "Code", "status", "type", "__type")
"""Members that have a code, the most exact first."""
_MESSAGES: Final = ("message", "Message", "detail")
_NO_CODE: Final = "error"
"""What the member *type* of an error's event is."""
_MOST_BYTES: Final = 16 << 10
"""Of a body; of a longer one the long texts are cut, and what lies deep is left out."""
_MOST_CHARACTERS: Final = 1000
_MOST_MESSAGE: Final = 4000
_MOST_MEMBERS: Final = 20
_DEEP: Final = 3


class Refusal(NamedTuple):
    """An error as a provider tells it."""

    message: str
    code: str | None
    body: Any
    """All that it says, as JSON; of a very long one not all."""

    @property
    def words(self) -> str:
        """What shows its class."""
        return " ".join(filter(None, (self.code, self.message)))

    @property
    def attributes(self) -> dict[str, Any]:
        """Return the attributes of an op that failed so, beside those of its class."""
        return {ERROR_BODY: self.body} | ({} if self.code is None else {ERROR_TYPE: self.code})


def refusal_in(value: Any, *, is_refused: bool) -> Refusal | None:
    """Return the error that an answer, or an event of one, is; None if it is none. All of what *is_refused* by its status is one."""
    if is_list(value) and len(value) == 1:  # Gemini's stream, as one document
        value = value[0]
    if not is_object(value):
        return None
    if error := value.get("error") or (value if value.get("type") == "error" and value.get("message") else None):
        return _refusal(error, value)
    return _refusal(value, value) if is_refused and any(value.get(name) for name in _MESSAGES) else None


def failure_in(event: Any) -> Refusal | None:
    """Return the error of the last event of a response of OpenAI's that failed; None of another event."""
    response = event.get("response") if is_object(event) and event.get("type") in ("response.failed", "response.done") else None
    if not is_object(response) or response.get("status") != "failed":
        return None
    details = response.get("status_details")
    error = response.get("error") or (details.get("error") if is_object(details) else None)
    return _refusal(error or "the response failed", event)


def refusal_of(error: BaseException | None) -> Refusal | None:
    """Return what a service has told that an exception of botocore's is of; None for another exception."""
    try:
        response = getattr(error, "response", None)
    except Exception as flaw:  # noqa: BLE001 - anybody's code
        pass_on(flaw)
        return None
    if not is_object(response) or not is_object(told := response.get("Error")):
        return None
    about = response.get("ResponseMetadata")
    retried = {"RetryAttempts": about.get("RetryAttempts")} if is_object(about) and about.get("MaxAttemptsReached") else {}
    return _refusal(told, {name: value for name, value in response.items() if name != "ResponseMetadata"} | retried)


def _refusal(error: Any, body: Any) -> Refusal:
    if not is_object(error):
        return Refusal(cut(text(error), _MOST_MESSAGE), None, _bounded(body))
    message = next((error[name] for name in _MESSAGES if error.get(name)), error)
    codes = (one.rpartition("#")[2].partition(":")[0] for name in _CODES if isinstance(one := error.get(name), str) and one != _NO_CODE)
    code = next((one for one in codes if _CODE.fullmatch(one)), None)
    return Refusal(cut(text(message), _MOST_MESSAGE), code, _bounded(body))


def _bounded(body: Any) -> Any:
    return body if len(encode(body)) <= _MOST_BYTES else _short(body, _DEEP)


def _short(value: Any, deep: int) -> Any:
    if isinstance(value, str):
        return cut(value, _MOST_CHARACTERS)
    if not is_object(value):
        return None if is_list(value) else value
    return {name: _short(one, deep - 1) for name, one in islice(value.items(), _MOST_MEMBERS)} if deep else None
