"""Converts figures and texts of callers to those of the tree: a value that is not a number becomes 0, any value becomes its text."""

from __future__ import annotations

import re
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from msgspec import UNSET

from optree._interrupts import pass_on
from optree._nodes import AccountingEntry, OperationNode, Severity, Status, Tokens, TurnNode, parts_of_name
from optree._providers.amounts import MAX_COUNT
from optree._providers.usage import Usage, counts_beside, read
from optree._values import cut, decode, is_object, text
from optree.redaction import may_hold_secret, redact, remembered

if TYPE_CHECKING:
    from optree._builder.core import Core

PROMPT_CHARACTERS = 16_384
"""Cap of prompts, assistant texts and errors (seed 004 names 8-16 KB)."""
_STATUSES = get_args(Status)
_ATTEMPTS: dict[str, Literal["ok", "failed"]] = {
    **dict.fromkeys(("ok", "success", "succeeded", "successful", "completed"), "ok"),
    **dict.fromkeys(("failed", "failure", "fail", "error", "cancelled", "canceled", "timeout", "interrupted"), "failed"),
}
"""Statuses of attempts, by the words that programs use."""
_SEVERITIES: dict[str, Severity] = {
    **{name: name for name in get_args(Severity)},
    "WARNING": "WRN",
    "WARN": "WRN",
    "ERROR": "ERR",
    "CRITICAL": "ERR",
    "FATAL": "ERR",
    "EXCEPTION": "ERR",
    "TRACE": "TRC",
}
"""Severities by their names, and by those of the standard library and structlog; all others, as DEBUG and INFO, are VRB."""
_QUIET = frozenset({"DEBUG", "INFO", "NOTSET"})
_BY_NAME = "account() takes figures by name, as input_tokens=812, output_tokens=64: others are kept in the entry's details"
_SIZES = ("characters_in", "characters_out")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]*|\d+")
_TEXTS = frozenset({"provider", "model", "actual_provider", "actual_model", "mcp_server", "command", "error"})


class UsageNames(TypedDict, total=False):
    """Other names by which figures may be given to `Op.account`, and fields of an entry: all that `read` understands."""

    prompt_tokens: int | None
    prompt_token_count: int | None
    prompt_eval_count: int | None
    tokens_evaluated: int | None
    tool_use_prompt_token_count: int | None
    completion_tokens: int | None
    candidates_token_count: int | None
    response_token_count: int | None
    eval_count: int | None
    tokens_predicted: int | None
    cache_read_input_tokens: int | None
    cached_tokens: int | None
    cached_input_tokens: int | None
    cached_prompt_tokens: int | None
    cached_content_token_count: int | None
    prompt_cache_hit_tokens: int | None
    cache_write_input_tokens: int | None
    cache_creation_tokens: int | None
    cache_creation_input_tokens: int | None
    reasoning_output_tokens: int | None
    thoughts_token_count: int | None
    total_tokens: int | None
    total_token_count: int | None
    prompt_cache_miss_tokens: int | None
    cost: float | None
    total_cost: float | None
    total_cost_usd: float | None
    cost_in_usd_ticks: float | None
    upstream_inference_cost_usd: float | None
    upstream_inference_cost: float | None
    provider: str | None
    model: str | None
    actual_provider: str | None
    actual_model: str | None
    mcp_server: str | None
    command: str | None
    characters_in: int | None
    characters_out: int | None
    error: object


class AccountFigures(UsageNames, total=False):
    """All that `Op.account` takes by name."""

    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    cost_usd: float | None
    input_includes_cached: bool | None
    status: Literal["ok", "failed"]
    latency: float | None


def take_usage(
    core: Core, entry: AccountingEntry, arguments: tuple[object, ...], named: dict[str, Any], includes_cached: bool | None
) -> list[str]:
    """Set an entry's tokens, money and other fields by *arguments* and the figures *named*; those of unknown names become its details.

    Returns impossible and unknown figures, a sentence each: those that are reported for the first time in this session.
    """
    figures = _fill(core, entry, named) if named else {}
    given_usage, *others = arguments
    is_lost = False
    try:
        usage = read(given_usage, figures, provider=entry.provider, model=entry.model, includes_cached=includes_cached)
    except Exception as error:  # noqa: BLE001 - an object's own code may raise anything
        pass_on(error)
        core.stream.fault(error)
        usage, is_lost = Usage(), True
    if usage.fault:
        core.stream.fault(f"a usage: {usage.fault}")
    entry.tokens = usage.tokens
    if entry.type == "llm":
        entry.tokens = usage.tokens or (None if is_lost or usage.fault else Tokens())  # unknown, where they cannot be read
    elif usage.tokens is not None and not usage.tokens.total_tokens:
        entry.tokens = None
    entry.cost_usd, entry.upstream_inference_cost_usd = usage.cost_usd, usage.upstream_cost_usd
    rest = {**usage.rest, "others": others} if others else usage.rest
    entry.details = core.attributes(rest) if rest else UNSET
    strange = [name for name in figures if name in usage.rest]
    flaws = [f"account({name}=…): no such figure is known; it is kept in the entry's details" for name in strange]
    flaws += [_BY_NAME, *usage.flaws] if others else usage.flaws
    return [flaw for flaw in flaws if core.first_time(_NUMBERS.sub("", flaw))]


def _fill(core: Core, entry: AccountingEntry, more: dict[str, Any]) -> dict[str, Any]:
    """Set fields of an entry that are no usage by name; returns what it has no field for."""
    left: dict[str, Any] = {}
    for key, value in more.items():
        if value is None:
            continue
        if key in _SIZES:
            setattr(entry, key, whole(value))
        elif key in _TEXTS:
            setattr(entry, key, core.text(text(value)))
        else:
            left[key] = value
    return left


def error_text(error: object) -> str:
    """Return an error as capped text."""
    return cut(text(error), PROMPT_CHARACTERS)


def known_status(status: Any) -> tuple[Status, str | None]:
    """Return a status and, for a value that is not a status, the problem to report: it counts as failed."""
    if type(status) is str and status in _STATUSES:
        return status, None  # type: ignore[return-value]
    return "failed", f"ended with status {redact(text(status))[:80]!r}, which is none of {', '.join(_STATUSES)}"


def known_severity(severity: Any) -> Severity:
    """Return a severity by any of its names; VRB for any other value."""
    if type(severity) is not str:
        return "VRB"
    return _SEVERITIES.get(severity) or _SEVERITIES.get(severity.upper(), "VRB")


def unknown_severity(severity: Any) -> str:
    """Return the problem to report of a severity with an unknown name; empty if the name is known."""
    known = type(severity) is str and (severity.upper() in _SEVERITIES or severity.upper() in _QUIET)
    return "" if known else f"log(severity={redact(text(severity))[:80]!r}) is none of {', '.join(get_args(Severity))}: it is VRB"


def attempt_status(status: Any) -> tuple[Literal["ok", "failed"], str | None]:
    """Return an attempt's status (None counts as ok) and, for an unknown one, the problem to report: it counts as failed."""
    if status is None:
        return "ok", None
    word = text(status)
    if (known := _ATTEMPTS.get(word.lower())) is not None:
        return known, None
    return "failed", f"account(status={redact(word)[:80]!r}) is none of ok, failed: it counts as failed"


def whole(value: Any) -> int:
    """Return a count, from 0 to `MAX_COUNT`; 0 for a value that is not a number."""
    figure = value if type(value) is int else int(number(value))
    return figure if 0 <= figure <= MAX_COUNT else MAX_COUNT if figure > 0 else 0


def number(value: Any) -> float:
    """Return a figure; 0.0 for a value that is not a finite number."""
    if type(value) is float and -inf < value < inf:
        return value
    try:
        figure = float(value)
    except Exception as error:  # noqa: BLE001 - a value's own code may raise anything
        pass_on(error)
        return 0.0
    return figure if isfinite(figure) else 0.0


def last_said(turn: TurnNode) -> str | None:
    """Return the text of a turn's last answer; None if it has none."""
    for op in reversed(turn.ops):
        if op.kind == "llm" and op.response is not None:
            content = decode(op.response.payload)
            if is_object(content):
                content = content.get("content")
            return content if isinstance(content, str) else None
    return None


def model_of(node: OperationNode) -> tuple[str | None, str | None]:
    """Return the provider and the model that an llm op calls, by its name, else by its attributes."""
    provider, model, _ = provider_and_model(node.name)
    if model is None:
        own = node.attributes
        provider, model = (text(own[key]) if key in own else None for key in ("provider", "model"))
    return provider, model


@remembered(256)
def provider_and_model(name: str) -> tuple[str | None, str | None, bool]:
    """Return both parts of an llm op's name, None if it names none or may hold a credential; whether cached tokens count beside input."""
    provider, model = (None, None) if may_hold_secret(name) else parts_of_name(name)
    return provider, model, model is not None and bool(counts_beside(provider or "", model))
