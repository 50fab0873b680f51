"""What a provider says of a call that it refuses, or that fails while it answers: its code, its message and all else, in its own form."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final, NamedTuple

from optree._builder.outcome import Told, told_in
from optree._capture.calls.bodies import MOST_KEPT
from optree._interrupts import pass_on
from optree._nodes import ERROR_BODY
from optree._tracing.failures import BODY_TYPE, ERROR_TYPE
from optree._values import cut, encode, is_list, is_object
from optree.redaction import beginning

STATUS_CODE: Final = "http.response.status_code"
"""The attribute that has the HTTP status of an op's last attempt, if one of them was refused."""
_MOST_BYTES: Final = 16 << 10
"""Of a body; of a longer one the long texts are cut, and what lies deep is left out."""
_MOST_CHARACTERS: Final = 1000
_MOST_KIND: Final = 200
_MOST_MEMBERS: Final = 20
_DEEP: Final = 5


class Refusal(NamedTuple):
    """An error as a provider tells it."""

    told: Told
    body: Any
    """All that it says, as JSON, or as a text where it is no object and no list; of a very long one not all."""
    kind: str | None = None
    """The content type of such a text."""

    @property
    def message(self) -> str:
        """What it says for people."""
        return self.told.message

    @property
    def code(self) -> str | None:
        """Its code."""
        return self.told.code

    @property
    def attributes(self) -> dict[str, Any]:
        """Return the attributes of an op that failed so, beside those of its class."""
        told = {ERROR_BODY: self.body, ERROR_TYPE: self.code, BODY_TYPE: self.kind}
        return {name: value for name, value in told.items() if value is not None}


def refusal_in(value: Any, *, is_refused: bool) -> Refusal | None:
    """Return the error that an answer, or an event of one, is; None if it is none. All of what *is_refused* by its status is one."""
    whole = value
    if is_list(value) and len(value) == 1:  # Gemini's stream, as one document
        value = value[0]
    if not is_object(value):
        return Refusal(told_in(value), _bounded(whole)) if is_refused and is_list(whole) else None
    if error := value.get("error") or (value if _is_error(value) else None) or _error_of_choice(value):
        return _refusal(error, whole)
    return _refusal(value, whole) if is_refused else None


def _is_error(value: dict[str, Any]) -> bool:
    """Tell whether an object is an error itself: an event of OpenAI's or Anthropic's, or vLLM's form."""
    return bool(value.get("message")) and "error" in (value.get("type"), value.get("object"))


def _error_of_choice(value: dict[str, Any]) -> Any:
    """Return the error that an answer of OpenRouter's has in one of its choices; None of another."""
    if is_list(choices := value.get("choices")):
        for one in choices:
            if is_object(one) and is_object(error := one.get("error")):
                return error
    return None


def refusal_as_text(data: bytes, kind: str) -> Refusal:
    """Return the error that an answer is which is neither an object nor a list: its beginning, as a text of the content type *kind*."""
    is_whole = len(data) < MOST_KEPT
    said = data.decode(charset_of(kind), "replace" if is_whole else "ignore")
    return Refusal(Told(), beginning(said, _MOST_BYTES), cut(kind, _MOST_KIND))


def charset_of(kind: str) -> str:
    """Return the encoding of texts that a content type names; UTF-8 if it names none that there is."""
    named = kind.lower().partition("charset=")[2].partition(";")[0].strip(' "') or "utf-8"
    try:
        "".encode(named)
    except (LookupError, ValueError) as error:
        pass_on(error)
        return "utf-8"
    return named


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
    return Refusal(told_in(error), _bounded(body))


def _bounded(body: Any) -> Any:
    return body if len(encode(body)) <= _MOST_BYTES else _Short().of(body, _DEEP)


class _Short:
    """The beginning of a long body."""

    def __init__(self) -> None:
        self._left = _MOST_BYTES
        """Characters that texts may still take."""

    def of(self, value: Any, deep: int) -> Any:
        """Return a part of a value, which may have so many levels."""
        if self._left <= 0 or (deep <= 0 and (is_object(value) or is_list(value))):
            return None
        if isinstance(value, str):
            found = cut(value, min(_MOST_CHARACTERS, self._left))
            self._left -= len(found)
            return found
        self._left -= 1
        if is_object(value):
            return {name: self.of(one, deep - 1) for name, one in islice(value.items(), _MOST_MEMBERS)}
        return [self.of(one, deep - 1) for one in islice(value, _MOST_MEMBERS)] if is_list(value) else value
