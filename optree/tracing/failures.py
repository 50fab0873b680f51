"""Why a call failed, by the classes of seed 004: the same for all providers, SDKs and tools."""

from __future__ import annotations

import sys
from typing import Any, Final, Literal

from optree.builder.outcome import outcome
from optree.interrupts import pass_on
from optree.values import is_object, text

ERROR_TYPE: Final = "error.type"
"""The attribute of an op that failed which has its provider's code; where that tells none, the class, if one is known."""
ERROR_CLASS: Final = "error.class"
"""The attribute that has the class."""
ERROR_BODY: Final = "error.body"
"""The attribute that has all that a provider said of a failure. Its message is content, as an answer is."""
FailureClass = Literal["auth", "quota", "rate_limit", "network", "timeout", "model", "invalid"]
_BY_STATUS: Final[dict[int, FailureClass]] = {
    401: "auth",
    402: "quota",
    403: "auth",
    404: "model",
    407: "auth",
    408: "timeout",
    429: "rate_limit",
    504: "timeout",
}
_STATUSES: Final = range(100, 600)
_BAD_REQUEST: Final = 400
_SERVER_ERROR: Final = 500
_OF_QUOTA: Final = ("insufficient_quota", "quotaexceeded", "current quota", "credit balance", "billing")
"""Words of providers, with other statuses, when the credit is used up."""
_BY_WORDS: Final[tuple[tuple[FailureClass, tuple[str, ...]], ...]] = (
    ("quota", _OF_QUOTA),
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
"""Names of exceptions of clients (httpx, aiohttp, botocore), and of `optree.capture.replay`, that are raised before a request is sent."""


def error_attributes(failure: FailureClass | None) -> dict[str, Any]:
    """Return the attributes of an op that failed so, of which no provider tells a code."""
    return {} if failure is None else {ERROR_TYPE: failure, ERROR_CLASS: failure}


def class_of_status(status: int, message: str | None) -> FailureClass:
    """Return the class of an answer that is an error: its HTTP status, and the provider's *message*."""
    by_message = class_of_text(message or "")
    if by_message == "quota":
        return "quota"
    if status < _BAD_REQUEST:  # an error among the events of a stream
        return by_message or "model"
    return _BY_STATUS.get(status) or ("invalid" if status < _SERVER_ERROR else "model")


def class_of_text(message: str) -> FailureClass | None:
    """Return the class of a failure by the words of its message; None if they show none."""
    low = message.lower()
    return next((kind for kind, words in _BY_WORDS if any(word in low for word in words)), None)


def class_of_error(error: BaseException | None) -> FailureClass | None:
    """Return the class of an exception; None if it has none."""
    if error is None:
        return None
    if (code := _code_of(error)) >= _BAD_REQUEST:
        return class_of_status(code, text(error))
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
