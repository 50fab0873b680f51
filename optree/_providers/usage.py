"""What a call took, read from what providers and programs say of it: one convention out of many.

Read are keywords, a provider's usage as dict or object, or a whole response that has one. All code that reads usage calls this
module, so no cached token is counted twice. What comes out has parts that add up, as files hold them: fresh input, cached, written,
output. Reasoning is part of the output, and stands beside. Facts: docs/decisions/020-usage-has-parts-that-add-up.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache, partial
from types import NoneType
from typing import Any, Final, NamedTuple, cast

import msgspec
from msgspec import Struct

from optree._interrupts import pass_on
from optree._nodes import PARTIAL, Tokens
from optree._providers.amounts import MAX_COUNT, count, dollars
from optree._values import dumped, is_list, is_object, object_of, text
from optree.redaction import redact

TICKS: Final = 10**10
"""xAI's ticks of a dollar."""

_COUNTS: Final = {
    "input_tokens": "input", "prompt_tokens": "input", "prompt_token_count": "input", "prompt_eval_count": "input",
    "tokens_evaluated": "input", "tool_use_prompt_token_count": "more_input",
    "output_tokens": "output", "completion_tokens": "output", "candidates_token_count": "output", "response_token_count": "output",
    "eval_count": "output", "tokens_predicted": "output",
    "cache_read_tokens": "read", "cache_read_input_tokens": "read", "cached_tokens": "read", "cached_input_tokens": "read",
    "cached_prompt_tokens": "read", "cached_content_token_count": "read", "prompt_cache_hit_tokens": "read",
    "cache_write_tokens": "written", "cache_write_input_tokens": "written", "cache_creation_tokens": "written",
    "cache_creation_input_tokens": "written", "reasoning_tokens": "reasoning", "reasoning_output_tokens": "reasoning",
    "thoughts_token_count": "thoughts", "total_tokens": "total", "total_token_count": "total", "prompt_cache_miss_tokens": "missed",
}  # fmt: skip
"""Counts by their names in usages, in snake case; camel case means the same."""
_MONEY: Final = {
    "cost_usd": "cost", "cost": "cost", "total_cost": "cost", "total_cost_usd": "cost", "cost_in_usd_ticks": "ticks",
    "upstream_inference_cost_usd": "upstream", "upstream_inference_cost": "upstream",
}  # fmt: skip
_OF_INPUT: Final = {
    "cached_tokens": "read", "cache_read": "read", "cache_read_tokens": "read",
    "cache_write_tokens": "written", "cache_write": "written", "cache_creation": "written", "cache_creation_tokens": "written",
}  # fmt: skip
_OF_OUTPUT: Final = {"reasoning_tokens": "reasoning", "reasoning": "reasoning", "thinking_tokens": "reasoning"}
_INNER: Final[dict[str, dict[str, str]]] = {
    "prompt_tokens_details": _OF_INPUT, "input_tokens_details": _OF_INPUT,
    "prompt_token_details": _OF_INPUT, "input_token_details": _OF_INPUT,
    "completion_tokens_details": _OF_OUTPUT, "output_tokens_details": _OF_OUTPUT, "output_token_details": _OF_OUTPUT,
    "cache_creation": {"ephemeral_5m_input_tokens": "part_written", "ephemeral_1h_input_tokens": "part_written"},
    "cost_details": {"upstream_inference_cost": "upstream"},
    "cost": {"total_cost": "cost"},
}  # fmt: skip
"""Members that are objects themselves, with the counts in them by name."""
_PLAIN: Final = frozenset({"read", "written", "reasoning"})
"""Counts in these that are taken as they are."""
_HOLDERS: Final = ("usage", "usage_metadata", "token_usage", "tokens", "billed_units", "meta", "response_metadata", "x_groq")
"""Members of a response, or of a usage (Cohere), that hold the figures; Groq's stream has them in the last."""
_ENVELOPES: Final = ("response", "message", "body", "result")
"""Members of a stream's event, or of a line of a batch, that hold a whole response."""
_HOLDING: Final = frozenset((*_HOLDERS, *_ENVELOPES))
_NUMBERS: Final = frozenset((*_COUNTS, *_MONEY))
_MAIN: Final = frozenset(name for name, kind in _COUNTS.items() if kind in ("input", "output"))
_SNAKE: Final[dict[str, str]] = {}
"""Short names of members that were met, in snake case."""
_MOST_NAMES: Final = 1024
_RESPONSE: Final = frozenset(
    {"id", "object", "model", "choices", "candidates", "content", "message", "messages", "output", "response", "done"}
)
"""Members by which a whole response is known: it is not kept with its figures."""
_BESIDE_NAMES: Final = frozenset({"cache_read_input_tokens", "cache_creation_input_tokens", "cache_write_input_tokens", "cache_creation"})
"""Names of Anthropic and Bedrock, which count cached tokens beside the input."""
_WITHIN_NAMES: Final = frozenset(
    {"prompt_tokens", "prompt_token_count", "cached_content_token_count", "cached_prompt_tokens", "prompt_cache_hit_tokens",
     "prompt_tokens_details", "input_tokens_details", "input_token_details", "prompt_token_details"}
)  # fmt: skip
"""Names of providers that count them within the input."""
_BESIDE_PROVIDERS: Final = frozenset({"anthropic", "bedrock", "claude"})
_HOSTS: Final = frozenset({"vertex", "vertexai", "azure"})
"""Hosts where Anthropic's models are called by Anthropic's own interface."""
_WITHIN_PROVIDERS: Final = frozenset(
    {"openai", "google", "gemini", "deepseek", "openrouter", "xai", "groq", "mistral", "mistralai", "ollama", "cohere", "litellm",
     "together", "fireworks", "perplexity", "moonshot", "vllm", "llamacpp", "azure", "vertex", "vertexai", "gcp"}
)  # fmt: skip
SERVER_TOOLS: Final = "server_tool_calls"
"""The member of a usage's rest that counts, by type, the tool calls of an answer that the provider ran and bills beside the tokens."""
BILLED: Final = "billed_units"
"""The member of a usage, and of its rest, that has what is billed where that is not what was taken: Cohere adds some of its own."""
_USUAL_TIERS: Final = frozenset({"default", "standard", "auto"})
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORDS: Final = re.compile(r"[a-z0-9]+")
_SHORT: Final = 64
_DEPTH: Final = 4


class Usage(Struct):
    """What a call took: *tokens* whose parts add up, and US dollars, each None where it is unknown."""

    tokens: Tokens | None = None
    cost_usd: float | None = None
    upstream_cost_usd: float | None = None
    rest: dict[str, Any] = {}
    """Members under names that we do not know."""
    flaws: list[str] = []
    """Figures that were given and are impossible, a sentence each."""
    fault: str = ""
    """The one of these that is an exception raised while the usage was read: figures may be missing."""


class _Figures(Struct):
    """Figures under our names, as they were given."""

    counts: dict[str, int] = {}
    money: dict[str, float] = {}
    names: set[str] = set()
    apart: dict[str, int] = {}
    """Counts of what the figures around do not have."""
    rest: dict[str, Any] = {}
    flaws: list[str] = []
    fault: str = ""


@lru_cache(256)
def counts_beside(provider: str | None, model: str | None = None) -> bool | None:
    """Tell whether a provider counts cached tokens beside the input tokens; None if it is not known."""
    words = set(_WORDS.findall((provider or "").lower()))
    if words & _BESIDE_PROVIDERS or (words & _HOSTS and "claude" in (model or "").lower()):
        return True
    return False if words & _WITHIN_PROVIDERS else None


def plain_tokens(sent: int | None, received: int | None, cached: int | None, written: int | None, *, beside: bool) -> Tokens | None:
    """Return the tokens that `read` makes of these four counts, if they have no flaw; None where `read` must look at them."""
    sent, received, cached, written = (0 if value is None else value for value in (sent, received, cached, written))
    if not (type(sent) is type(received) is type(cached) is type(written) is int and (sent | received | cached | written) >= 0):
        return None
    if sent + received + cached + written > MAX_COUNT:
        return None
    if sent and not beside:
        sent -= cached + written
    return Tokens(sent, received, cached, written, sent + received + cached + written) if sent >= 0 else None


def parts_of(fresh: int, output: int, read: int = 0, written: int = 0, reasoning: int = 0) -> Tokens:
    """Return tokens that are in parts that add up already, with their total."""
    return Tokens(fresh, output, read, written, fresh + output + read + written, reasoning)


def read(
    given: object = None,
    figures: Mapping[str, Any] | None = None,
    *,
    provider: str | None = None,
    model: str | None = None,
    includes_cached: bool | None = None,
) -> Usage:
    """Return what *given* (a usage or a response, as dict or object) and *figures* (by name; they win) say together. Never raises.

    Whether input tokens include cached ones is as *includes_cached* says; else as the total shows that came with them; else as the
    provider counts whose names these are; else, for figures by name, as *provider* counts; else they do (GenAI conventions).
    """
    if type(given) is Usage and not figures:  # it was read before
        return given
    known = counts_beside(provider, model)
    first = second = _Figures()
    if given is not None:
        try:
            _gather(_members(given), first, 0)
        except Exception as error:  # noqa: BLE001 - an object's own code may raise anything
            pass_on(error)
            first.fault = f"it cannot be read in full: {type(error).__name__}"
            first.flaws.append(first.fault)
        if not first.counts and not first.apart and not first.money and not first.flaws:
            among = f", of {redact(', '.join(first.rest))[:80]}" if first.rest else ""
            first.flaws.append(f"no figure in it is known{among}")
        _complete(first, _beside(first, known, includes_cached, named=False), f"{type(given).__name__} given as usage")
    counts, money, rest = first.counts, first.money, first.rest
    if figures:
        second = _Figures()
        _gather(figures, second, _DEPTH)
        _complete(second, _beside(second, known, includes_cached, named=True), "")
        counts, money, rest = counts | second.counts, money | second.money, rest | second.rest
    tokens = _tokens(counts, second if second.counts else first)
    flaws = first.flaws if second is first else first.flaws + second.flaws
    cost = money.get("cost", money["ticks"] / TICKS if "ticks" in money else None)
    return Usage(tokens, cost, money.get("upstream"), rest, flaws, first.fault or second.fault)


def _members(source: Any) -> dict[str, Any]:
    """Return the members of a mapping or object, by name; of a library's object too."""
    without_memory = False
    try:
        if isinstance(source, dict):
            return cast("dict[str, Any]", source)
        for form in ("model_dump", "to_dict", "dict", "_asdict"):
            method = getattr(cast("type[object]", type(source)), form, None)
            if callable(method):
                try:
                    members: Any = dumped(partial(method, source)) if form == "model_dump" else method(source)
                except Exception as error:  # noqa: BLE001 - other people's code
                    pass_on(error)
                    without_memory = isinstance(error, MemoryError)
                    continue
                if isinstance(members, dict):
                    return cast("dict[str, Any]", members)
        if isinstance(source, Struct):
            return {field.encode_name: getattr(source, field.name) for field in msgspec.structs.fields(source)}
        attributes = cast("dict[object, Any]", dict(source) if hasattr(source, "keys") else vars(source))
    except Exception as error:
        pass_on(error)
        if without_memory or isinstance(error, MemoryError):
            raise MemoryError from error
        return {"usage": redact(text(cast("object", source)))[:200]}
    return {name: value for name, value in _named(attributes).items() if not name.startswith("_")}


def _named(block: Mapping[Any, Any]) -> Mapping[str, Any]:
    """Return a block with texts as names, short ones as they are; the same one, if all of them were met before."""
    if block.keys() <= _SNAKE.keys():
        return block
    return {name if type(name) is str and len(name) <= _SHORT and name.isascii() else text(name): value for name, value in block.items()}


def _snake(name: str) -> str:
    known = _SNAKE.get(name)
    if known is None:
        known = _CAMEL.sub("_", name).lower()
        if len(name) <= _SHORT and len(_SNAKE) < _MOST_NAMES:
            _SNAKE[name] = known
    return known


class _BlockShape(NamedTuple):
    """How a block is read, as far as the names and the types of its members tell."""

    held: str | None
    """The member that holds the figures, and is read in place of the block."""
    billed: str | None
    """The one beside it that says how many of these are billed: Cohere's."""
    tier: str | None
    performance: str | None
    timings: str | None
    cached: str | None
    is_response: bool
    members: tuple[tuple[str, str, str | None], ...]
    """Those that are not None: each by its name, that in snake case, and what it counts."""


@lru_cache(256)
def _shape(names: tuple[str, ...], kinds: tuple[type, ...]) -> _BlockShape:
    """Return how a block is read that has members of these names and types."""
    members = tuple(
        (name, known := _snake(name), _COUNTS.get(known)) for name, kind in zip(names, kinds, strict=True) if kind is not NoneType
    )
    named = {known: name for name, known, _ in members}
    held = _holder(named, dict(zip(names, kinds, strict=True))) if named.keys().isdisjoint(_MAIN) else None
    billed = named.get(BILLED) if held is not None and _snake(held) == "tokens" else None
    tier, performance, timings, cached = map(named.get, ("service_tier", "performance_config", "timings", "cached_tokens"))
    return _BlockShape(held, billed, tier, performance, timings, cached, not _RESPONSE.isdisjoint(names), members)


def _gather(block: Mapping[str, Any], figures: _Figures, depth: int) -> None:
    """Take the figures whose names we know from a block; the rest is kept. A member that holds the figures is read first."""
    given, block = block, _named(block)
    names, kinds = tuple(block), tuple(map(type, block.values()))
    try:
        shape = (_shape if block is given else _shape.__wrapped__)(names, kinds)  # kept for short names that were met before
    except TypeError as error:  # a class that cannot be hashed
        pass_on(error)
        shape = _shape.__wrapped__(names, kinds)
    if depth < _DEPTH:
        _take_terms(block, shape, figures)
        if shape.held is not None:
            _gather(_members(block[shape.held]), figures, depth + 1)
            if shape.cached is not None:
                _take("cached_tokens", block[shape.cached], figures)
            return
        if shape.timings is not None and _timed(block[shape.timings], figures):
            return
    _take_members(block, shape, figures)


def _take_terms(block: Mapping[str, Any], shape: _BlockShape, figures: _Figures) -> None:
    """Take what a block says, beside its figures, of what these cost."""
    tier = None if shape.tier is None else block[shape.tier]
    tier = tier.get("type") if is_object(tier) else tier  # Bedrock's
    latency = object_of(block[shape.performance]).get("latency") if shape.performance is not None else None
    if latency not in (None, "standard"):
        tier = f"latency-{latency}"
    if isinstance(tier, str) and tier not in _USUAL_TIERS:  # it has a price of its own
        figures.rest["service_tier"] = tier
    if not (tools := block.get(SERVER_TOOLS)) and shape.is_response:
        from optree._providers.server_tools import server_tools  # not before it is needed: this module is imported with optree

        tools = server_tools(block)
    if tools:
        figures.rest[SERVER_TOOLS] = tools
    if shape.billed is not None and (units := _members(block[shape.billed])) != _members(block[shape.held or shape.billed]):
        figures.rest[BILLED] = {name: value for name, value in units.items() if value is not None}


def _take_members(block: Mapping[str, Any], shape: _BlockShape, figures: _Figures) -> None:
    for name, known, kind in shape.members:
        value = block[name]
        if kind is not None and type(value) is int and 0 <= value <= MAX_COUNT:
            figures.counts[kind] = value
            figures.names.add(known)
            continue
        try:
            if not _take(known, value, figures) and not shape.is_response:
                figures.rest[name] = value
        except Exception as error:  # noqa: BLE001 - a value's own code may raise anything
            pass_on(error)
            figures.fault = f"{redact(name)[:40]} cannot be read: {type(error).__name__}"
            figures.flaws.append(figures.fault)


def _holder(named: Mapping[str, str], kinds: Mapping[str, type]) -> str | None:
    """Return the name of the member that holds the figures, by the names in snake case and the types; None if none does."""
    if named.keys().isdisjoint(_HOLDING):
        return None
    holders = (*_HOLDERS, *_ENVELOPES) if named.keys().isdisjoint(_NUMBERS) else _HOLDERS
    return next((named[known] for known in holders if known in named and _may_have_members(kinds[named[known]])), None)


def _may_have_members(kind: type) -> bool:
    return not issubclass(kind, (NoneType, str, int, float, list, tuple))


def _timed(timings: object, figures: _Figures) -> bool:
    """Read the figures of llama.cpp's server, for a stream without usage."""
    timings = _members(timings)
    if "prompt_n" not in timings:
        return False
    cached, fresh, output = (_counted(timings.get(name), name, figures) or 0 for name in ("cache_n", "prompt_n", "predicted_n"))
    figures.counts |= {"input": cached + fresh, "read": cached, "output": output}
    figures.names.add("prompt_tokens")
    return True


def _take(name: str, value: Any, figures: _Figures) -> bool:
    """Take one member; False if its name is not known."""
    if name == "cache_details" and is_list(value):  # Bedrock's, of what was written
        hour = [_counted(one.get("inputTokens"), name, figures) or 0 for one in map(_members, value) if one.get("ttl") == "1h"]
        figures.rest |= {"cache_write_1h_tokens": sum(hour)} if any(hour) else {}
        return True
    if name == "iterations" and is_list(value):
        figures.rest[name] = value
        for one in map(_members, value):
            _take_apart(one, figures)
        return True
    if name in _INNER and _may_have_members(cast("type[object]", type(value))):
        figures.names.add(name)
        if rest := _take_parts(name, _members(value), figures):
            figures.rest[name] = rest
        return True
    if (kind := _COUNTS.get(name)) is not None:
        figures.names.add(name)
        if (number := _counted(value, name, figures)) is not None:
            figures.counts[kind] = number
        return True
    if (kind := _MONEY.get(name)) is not None:
        if (money := dollars(value, name, figures.flaws)) is not None:
            figures.money[kind] = money
        return True
    return False


def _counted(value: object, name: str, figures: _Figures) -> int | None:
    """Return a count; where one is given that cannot be, what the call took is not all known, nor what it cost."""
    flaws = len(figures.flaws)
    number = count(value, name, figures.flaws)
    if len(figures.flaws) > flaws:
        figures.rest[PARTIAL] = True
    return number


def _take_apart(iteration: Mapping[str, Any], figures: _Figures) -> None:
    """Take what Anthropic ran beside the answer in a request, a compaction or an advisor, which is a model with prices of its own."""
    kind = iteration.get("type")
    if kind not in ("compaction", "advisor_message"):
        return
    found = _Figures()
    _gather(iteration, found, _DEPTH)
    for name, number in found.counts.items():
        figures.apart[name] = figures.apart.get(name, 0) + number
    figures.names |= found.names
    figures.flaws += found.flaws
    if hour := found.rest.get("cache_write_1h_tokens", 0):
        figures.rest["cache_write_1h_tokens"] = figures.rest.get("cache_write_1h_tokens", 0) + hour
    if kind == "advisor_message":
        calls = figures.rest.get(SERVER_TOOLS, {})
        figures.rest[SERVER_TOOLS] = {**calls, "advisor": calls.get("advisor", 0) + 1}


def _take_parts(name: str, parts: Mapping[str, Any], figures: _Figures) -> dict[str, Any]:
    """Take the members of one that is an object itself; returns those whose names are not known."""
    counts, kinds, rest = figures.counts, _INNER[name], dict[str, Any]()
    for key, item in parts.items():
        if type(item) is int and (kind := kinds.get(key)) in _PLAIN and 0 <= item <= MAX_COUNT:
            counts.setdefault(kind, item)
        elif item is not None and not _take_inner(name, key, item, figures):
            rest[key] = item
    return rest


def _take_inner(name: str, key: str, value: Any, figures: _Figures) -> bool:
    known = _snake(key)
    kind = _INNER[name].get(known)
    if kind is None:
        return False
    if kind in ("cost", "upstream"):
        if (money := dollars(value, known, figures.flaws)) is not None:
            figures.money.setdefault(kind, money)
    elif (number := _counted(value, known, figures)) is not None:
        if number and known == "ephemeral_1h_input_tokens":
            figures.rest["cache_write_1h_tokens"] = figures.rest.get("cache_write_1h_tokens", 0) + number
        if kind == "part_written":
            figures.counts[kind] = figures.counts.get(kind, 0) + number
        else:
            figures.counts.setdefault(kind, number)
    return True


def _beside(figures: _Figures, provider: bool | None, includes: bool | None, *, named: bool) -> bool:
    """Tell whether cached tokens are counted beside the input."""
    counts, names = figures.counts, figures.names
    cached = counts.get("read", 0) + counts.get("written", counts.get("part_written", 0))
    if includes is not None:
        return not includes
    if cached and "total" in counts and "input" in counts:
        bare = counts["input"] + counts.get("output", 0)
        if counts["total"] in (bare, bare + cached):
            return counts["total"] == bare + cached
    if names & _WITHIN_NAMES:
        return False
    if names & _BESIDE_NAMES and not (named and provider is not None):
        return True
    return named and provider is True


def _complete(figures: _Figures, beside: bool, what: str) -> None:
    """Bring figures to one convention: input includes what was cached and written, output includes reasoning."""
    counts = figures.counts
    figures.flaws[:] = [f"{what}: {flaw}" if what else flaw for flaw in figures.flaws]
    for kind, number in figures.apart.items():
        counts[kind] = counts.get(kind, 0) + number
    parts, missed = counts.pop("part_written", 0), counts.pop("missed", 0)
    if parts and not counts.get("written"):
        counts["written"] = parts
    if missed and "input" not in counts:
        counts["input"] = missed + counts.get("read", 0)
    if "more_input" in counts:
        counts["input"] = counts.get("input", 0) + counts.pop("more_input")
    cached = counts.get("read", 0) + counts.get("written", 0)
    if "input" in counts and beside:
        counts["input"] += cached
    if "thoughts" in counts:
        counts["reasoning"] = counts.pop("thoughts")
        counts["output"] = counts.get("output", 0) + counts["reasoning"]
    total = counts.pop("total", 0)
    if "prompt_tokens" in figures.names and "input" in counts and total:  # Gemini by OpenAI's API and xAI leave reasoning out of it
        counts["output"] = max(counts.get("output", 0), total - counts["input"])
    elif (
        total
        and (beside_output := counts.get("reasoning", 0))
        and total == counts.get("input", 0) + counts.get("output", 0) + beside_output
    ):
        counts["output"] = counts.get("output", 0) + beside_output


def _tokens(counts: Mapping[str, int], figures: _Figures) -> Tokens | None:
    """Return the parts; where more is cached than was sent, it cannot have been counted within."""
    if not counts:
        return None
    sent, output = counts.get("input"), counts.get("output", 0)
    read, written, reasoning = (counts.get(name, 0) for name in ("read", "written", "reasoning"))
    cached = read + written
    if not sent:
        fresh = 0
    elif cached > sent:
        fresh = sent
        figures.flaws.append(f"{cached:,} tokens from and to the cache cannot be among {sent:,} of input: they are counted beside them")
    else:
        fresh = sent - cached
    if reasoning > output:
        if counts.get("output") is not None:
            figures.flaws.append(f"{reasoning:,} tokens of reasoning cannot be among {output:,} of output: they are counted beside them")
        output += reasoning
    if fresh + output + cached > MAX_COUNT:
        figures.flaws.append(f"{fresh + output + cached:,} tokens are more than any call can come to ({MAX_COUNT:.0e}), and are left out")
        return None
    return parts_of(fresh, output, read, written, reasoning)
