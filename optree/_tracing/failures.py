"""Why a call failed, by the classes of seed 004: the same for all providers, SDKs and tools."""

from __future__ import annotations

import re
import sys
from typing import Any, Final, Literal

from optree._builder.outcome import Told, outcome, told_of
from optree._interrupts import pass_on
from optree._values import is_object, text

ERROR_TYPE: Final = "error.type"
"""The attribute of an op that failed which has its provider's code; where that tells none, the class, if one is known."""
ERROR_CLASS: Final = "error.class"
"""The attribute that has the class."""
BODY_TYPE: Final = "error.body.type"
"""The attribute that has the content type of that, where it is the text of an answer and no JSON."""
FailureClass = Literal["auth", "quota", "rate_limit", "network", "timeout", "model", "invalid"]
_BY_STATUS: Final[dict[int, FailureClass]] = {
    401: "auth",
    402: "quota",
    403: "auth",
    404: "model",
    407: "auth",
    408: "timeout",
    424: "model",
    429: "rate_limit",
    504: "timeout",
}
_STATUSES: Final = range(100, 600)
_BAD_REQUEST: Final = 400
_SERVER_ERROR: Final = 500
_OF_QUOTA: Final = re.compile(
    r"(?<![\w-])(?:insufficient[_ ](?:quota|credits|balance|funds)|budget_exceeded|budget has been exceeded"
    r"|exceeded your current quota|credit balance|run out of credits|billing_hard_limit_reached|billing hard limit|billing_error"
    r"|(?:service)?quotaexceeded(?:exception)?)(?![\w-])"
)
"""Phrases of providers when the credit is used up, in small letters."""
_NAMES: Final = re.compile(r"https?://\S+|'[^'\s]*'|\"[^\"\s]*\"|`[^`\s]*`")
"""What names something in a message: its words say nothing of a failure."""
_WITH_QUOTA: Final = frozenset({400, 403, 429})
"""Statuses that are of a quota if the words say so."""
_BY_CODE: Final[dict[str, FailureClass]] = {
    **dict.fromkeys(("insufficient_quota", "budget_exceeded"), "quota"),
    **dict.fromkeys(("rate_limit_exceeded", "too_many_requests", "throttlingexception"), "rate_limit"),
    "validationexception": "invalid",
}
"""By a provider's own code, whatever the status."""
_BY_WORDS: Final[tuple[tuple[FailureClass, tuple[str, ...]], ...]] = (
    ("rate_limit", ("rate limit", "rate_limit", "too many requests")),
    ("auth", ("unauthorized", "unauthenticated", "forbidden", "permission denied", "access denied", "authentication", "api key")),
    ("timeout", ("timed out", "timeout")),
    ("network", ("connection refused", "connection reset", "connection closed", "connection error", "econn", "enotfound", "unreachable")),
    ("invalid", ("validation error", "invalid", "unknown tool")),
)
"""Words in errors by which a failure is classed where nothing else is known, in the order in which they are looked for."""
_BY_NAME: Final[dict[str, FailureClass]] = {
    **dict.fromkeys(("ConnectionError", "TransportError", "ClientConnectionError", "ClientPayloadError", "HTTPClientError"), "network"),
    **dict.fromkeys(("APIConnectionError", "SSLError", "gaierror", "IncompleteRead"), "network"),
    **dict.fromkeys(("ValueError", "TypeError", "ValidationError", "APIResponseValidationError"), "invalid"),
    **dict.fromkeys(("ModelRetry", "ToolRetryError"), "invalid"),
    "PermissionError": "auth",
}
"""By names of exceptions, of Python's and of clients'."""
_BY_RPC: Final[dict[int, FailureClass]] = {-32001: "timeout", -32600: "invalid", -32601: "invalid", -32602: "invalid"}
"""By code of an error of JSON-RPC, as MCP has it."""
_NOT_SENT: Final = frozenset(
    {"ConnectError", "ConnectTimeout", "PoolTimeout", "ClientConnectorError", "EndpointConnectionError", "NotSentError"}
)
"""Names of exceptions of clients (httpx, aiohttp, botocore), and of `optree._capture.replay`, that are raised before a request is sent."""


def error_attributes(failure: FailureClass | None) -> dict[str, Any]:
    """Return the attributes of an op that failed so, of which no provider tells a code."""
    return {} if failure is None else {ERROR_TYPE: failure, ERROR_CLASS: failure}


def class_of_status(status: int, message: str | None, told: Told | None = None) -> FailureClass:
    """Return the class of an answer that is an error: its HTTP status, a *message*, and what its provider has *told*, if that is known."""
    told = told or Told()
    if (known := _BY_CODE.get((told.code or "").lower())) is not None:
        return known
    if status < _BAD_REQUEST:  # an error among the events of a stream
        status = told.status or status
    if _BY_STATUS.get(status) == "rate_limit" and told.is_transient:
        return "rate_limit"
    words = " ".join(filter(None, (told.code, told.message, message)))
    if (status in _WITH_QUOTA or status < _BAD_REQUEST) and _is_of_quota(words):
        return "quota"
    if status < _BAD_REQUEST:
        return class_of_text(words) or "model"
    return _BY_STATUS.get(status) or ("invalid" if status < _SERVER_ERROR else "model")


def class_of_text(message: str) -> FailureClass | None:
    """Return the class of a failure by the words of its message; None if they show none."""
    low = message.lower()
    if _is_of_quota(low):
        return "quota"
    return next((kind for kind, words in _BY_WORDS if any(word in low for word in words)), None)


def _is_of_quota(message: str) -> bool:
    """Tell whether a message says that the credit is used up. Of what is in quotes a code counts, as in an exception's text, no name."""
    low = message.lower()
    return _OF_QUOTA.search(_NAMES.sub(lambda found: found[0][1:-1] if _BY_CODE.get(found[0][1:-1]) else " ", low)) is not None


def class_of_error(error: BaseException | None) -> FailureClass | None:
    """Return the class of an exception; None if it has none."""
    if error is None:
        return None
    if (code := _code_of(error)) >= _BAD_REQUEST:
        told = told_of(error)
        return class_of_status(code, text(error) if told is None else None, told)
    names = [kind.__name__ for kind in type(error).__mro__]
    if any("Timeout" in name for name in names):
        return "timeout"
    if code < 0:
        return _BY_RPC.get(code) or class_of_text(text(error))
    return next((_BY_NAME[name] for name in names if name in _BY_NAME), None)


def class_of_raised(message: str | None) -> FailureClass | None:
    """Return the class of the exception that is being raised or handled, if *message*, an op's error, is of it."""
    error = sys.exception()
    return class_of_error(error) if error is not None and outcome(error)[1] == message else None


def status_of(error: BaseException | None) -> int:
    """Return the HTTP status that a client's exception tells; 0 for none."""
    return code if (code := _code_of(error)) in _STATUSES else 0


def _code_of(error: BaseException | None) -> int:
    """Return the HTTP status, or the code of JSON-RPC or gRPC, that an exception tells; 0 for none, as where the process exits with one."""
    if not isinstance(error, Exception):
        return 0
    try:
        response: Any = getattr(error, "response", None)
        code = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if is_object(response) else getattr(response, "status_code", None)
        for name in ("status_code", "status", "code"):  # no more than are needed: some warn that they are old
            code = getattr(error, name, None) if type(code) is not int else code
    except Exception as flaw:  # noqa: BLE001 - anybody's code
        pass_on(flaw)
        return 0
    return code if type(code) is int else 0


def was_not_sent(error: BaseException | None) -> bool:
    """Tell whether an exception says that the request reached no server."""
    return error is not None and any(kind.__name__ in _NOT_SENT for kind in type(error).__mro__)
