"""What an exception says about how a node ended; of a provider's error its code, and a message that is no content."""

from __future__ import annotations

import re
from itertools import islice
from json import JSONDecoder
from typing import Any, Final, NamedTuple

from optree._interrupts import pass_on
from optree._nodes import Status
from optree._values import clean, cut, decode, is_list, is_object, text

_MESSAGES: Final = ("message", "Message", "detail")
"""Members that have a message."""
_CODE: Final = re.compile(r"(?=.*[A-Za-z])[\w.:/-]{1,100}")
"""What is taken for a code: a number stands in the body alone, as a text that is no name does."""
_CODES: Final = ("code", "Code", "status", "type", "__type")
"""Members that have a code, the most exact first."""
_NO_CODE: Final = "error"
"""What the member *type* of an error's event is."""
_STATUSES: Final = range(400, 600)
_MOST_MESSAGE: Final = 4000
_MOST_PARTS: Final = 3
_MOST_PART: Final = 200
_HEAD: Final = re.compile(r"Error code: \d{3}|status_code: \d{3}, model_name: [^,]{1,200}|\d{3} \w{1,50}(?=\. )")
"""What stands ahead of a body in the texts of OpenAI's, Anthropic's, Pydantic AI's and Gemini's exceptions."""
_IS_BODY: Final = re.compile(r"\s*(?:<[!?a-zA-Z]|\{|\[\s*[\[{])")
"""How HTML, XML and JSON begin."""
_IS_QUOTED: Final = re.compile(r"""\{\s{0,9}\\?["']|\[\s{0,9}\{|<(?:!doctype|\?xml|html|head|body)\b""", re.IGNORECASE)
"""How these, and Python's texts of what JSON holds, begin within a text."""
_JSON: Final = JSONDecoder()


class Told(NamedTuple):
    """What an error says."""

    message: str = ""
    code: str | None = None
    status: int = 0
    """The number that its code is, if that can be an HTTP status."""
    is_transient: bool = False
    """True for a limit that resets within minutes, as Gemini's by the minute."""


def outcome(error: BaseException | None) -> tuple[Status, str | None]:
    """Return the status and error text of a block that was left with *error* (None: normally)."""
    if error is None:
        return "ok", None
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return "ok", None
    name = type(error).__name__
    is_trios = name == "Cancelled" and not isinstance(error, Exception)
    if isinstance(error, (GeneratorExit, KeyboardInterrupt)) or name == "CancelledError" or is_trios:
        return "cancelled", name
    said = without_body(error)  # which may have the user's words in it
    message = text(error) if said is None else said
    return "failed", f"{name}: {message}" if message else name


def told_in(error: Any) -> Told:
    """Return what a provider's *error* says: a text, or an object. A list, or a member that is no text, counts by its short parts alone."""
    if isinstance(error, str):
        return Told(_message(error))
    if not is_object(error):
        return Told(_parts(error))
    said = [error[name] for name in _MESSAGES if error.get(name)]
    message = next((_message(one) for one in said if isinstance(one, str)), None)
    codes = (one.rpartition("#")[2].partition(":")[0] for name in _CODES if isinstance(one := error.get(name), str) and one != _NO_CODE)
    return Told(
        message if message is not None else next((parts for one in said if (parts := _parts(one))), ""),
        next((one for one in codes if _CODE.fullmatch(one)), None),
        next((found for name in ("code", "status") if (found := _status(error.get(name)))), 0),
        _is_transient(error.get("details")),
    )


def told_of(error: BaseException) -> Told | None:
    """Return what an exception of a client's says that has an answer's body; None of another."""
    found = _found_in(error)
    return None if found is None else _told_by(found[1])


def without_body(error: BaseException) -> str | None:
    """Return status, code and message of an exception of a client's whose text has an answer's whole body, or is long; None of another."""
    found = _found_in(error)
    if found is None:
        return None
    status, body = found
    try:
        said = str(error)
        head = _HEAD.match(said)
        if isinstance(body, str):
            is_whole = body.strip() == said.strip() or head is not None or _IS_BODY.match(body) is not None
            if not is_whole or body.strip() not in said:
                return None
        elif len(said) <= _MOST_MESSAGE and str(body) not in said and (head is None or head[0] != said):
            return None
    except Exception as flaw:  # noqa: BLE001 - anybody's code
        pass_on(flaw)
        return None
    told = Told() if isinstance(body, str) and _IS_BODY.match(body) is None else _told_by(body)
    begins = f"Error code: {status}" if head is None else head[0]
    words = ": ".join(filter(None, (told.code if told.code is None or told.code not in begins else None, told.message)))
    return f"{begins} - {words}" if words else begins


def _found_in(error: BaseException) -> tuple[int, Any] | None:
    """Return the status and the body that an exception has: of OpenAI's, Anthropic's and Pydantic AI's, of Gemini's, of Ollama's."""
    try:
        status = next((one for name in ("status_code", "code") if type(one := getattr(error, name, None)) is int), 0)
        bodies = [one for name in ("body", "details", "error") if (one := getattr(error, name, None))] if status else [None]
        body: Any = bodies[0] if bodies else None
        return (status, body) if isinstance(body, str) or is_object(body) or is_list(body) else None
    except Exception as flaw:  # noqa: BLE001 - anybody's code
        pass_on(flaw)
        return None


def _told_by(body: Any) -> Told:
    if isinstance(body, str):
        try:
            body = decode(body.encode()) if _IS_BODY.match(body) else body
        except (ValueError, RecursionError) as flaw:
            pass_on(flaw)
            return Told()
    if is_list(body) and len(body) == 1:
        body = body[0]
    return told_in((is_object(body) and body.get("error")) or body)


def _message(said: str) -> str:
    """Return a message, at most so much of it; nothing of one that is a whole body, as what stands before a provider passes it on.

    Of a body behind some words the message in it counts.
    """
    if _IS_BODY.match(said):
        return ""
    if (quoted := _IS_QUOTED.search(said)) is not None:
        said = f"{said[: quoted.start()]}{_quoted_message(said[quoted.start() :]) or '…'}"
    return clean(cut(said, _MOST_MESSAGE))


def _quoted_message(said: str) -> str:
    """Return the message of the JSON that a text begins with."""
    try:
        body, _ = _JSON.raw_decode(said)
    except (ValueError, RecursionError) as flaw:
        pass_on(flaw)
        return ""
    return _told_by(body).message


def without_quoted(error: str) -> str:
    """Return an error's text without what it quotes of JSON, HTML, or Python's texts of data: the user's words may be in it."""
    quoted = _IS_QUOTED.search(error)
    return error if quoted is None else f"{error[: quoted.start()]}…"


def _parts(value: Any, deep: int = 2) -> str:
    """Return the first short parts of a value that are no content: what a field is called, and what is wrong with it, as FastAPI has it."""
    if is_list(value):
        return "; ".join(filter(None, (_parts(one, deep - 1) for one in islice(value, _MOST_PARTS)))) if deep else ""
    if not is_object(value):
        return ""
    where = value.get("loc")
    place = ".".join(str(one) for one in islice(where, 10) if isinstance(one, (str, int))) if is_list(where) else ""
    said = next((one for name in ("msg", *_MESSAGES) if isinstance(one := value.get(name), str)), "")
    return ": ".join(clean(cut(one, _MOST_PART)) for one in (place, said) if one)


def _status(code: Any) -> int:
    number = int(code) if isinstance(code, str) and len(code) == len("400") and code.isascii() and code.isdigit() else code
    return number if type(number) is int and number in _STATUSES else 0


def _is_transient(details: Any) -> bool:
    """Tell whether details of Gemini's say that a limit is one by the minute, or when to ask again."""
    for one in details if is_list(details) else ():
        if not is_object(one):
            continue
        if str(one.get("@type")).endswith("google.rpc.RetryInfo"):
            return True
        violations = one.get("violations")
        if is_list(violations) and any(is_object(it) and "PerMinute" in str(it.get("quotaId")) for it in violations):
            return True
    return False
