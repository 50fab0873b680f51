"""What a span stands for and what it cost, by the conventions that name its attributes: GenAI, MCP, OpenInference, Traceloop.

Sources: https://github.com/open-telemetry/semantic-conventions-genai (docs/gen-ai), https://github.com/Arize-ai/openinference (spec),
https://github.com/traceloop/openllmetry (opentelemetry-semantic-conventions-ai).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from optree.exporting import Tokens, is_object, read_usage, text, usage_dollars
from optree.exporting import usage_count as read_count
from optree_otel.incoming.spans import InSpan
from optree_otel.signals import names

Role = Literal["agent", "chain", "llm", "tool", "mcp", "frame", "plain"]
"""A `chain` is an agent if nothing is above it; `mcp` is a tool call unless it happens inside one; a `frame` holds others and is nothing
itself, as the turns of an agent's loop; `plain` is any other."""

_OPERATIONS: Final[dict[str, Role]] = {
    "chat": "llm",
    "generate_content": "llm",
    "text_completion": "llm",
    "embeddings": "llm",
    "invoke_agent": "agent",
    "invoke_workflow": "agent",
    "execute_tool": "tool",
}
_OPENINFERENCE: Final[dict[str, Role]] = {"LLM": "llm", "EMBEDDING": "llm", "TOOL": "tool", "AGENT": "agent", "CHAIN": "chain"}
_TRACELOOP: Final[dict[str, Role]] = {"workflow": "chain", "agent": "agent", "tool": "tool"}
_HINTS: Final[tuple[tuple[str, Role], ...]] = (
    ("llm.invocation_parameters", "llm"),
    ("llm.system", "llm"),
    ("llm.request.type", "llm"),
    ("embedding.invocation_parameters", "llm"),
    ("tool.parameters", "tool"),
)
"""What OpenInference and Traceloop set at a span's start, before its kind."""
_TELLING: Final = ("gen_ai.", "llm.", "openinference.", "traceloop.", "mcp.")
_MODELS: Final = (
    names.REQUEST_MODEL,
    "llm.request.model",
    "llm.request.model_name",
    "llm.invocation_parameters",
    "embedding.invocation_parameters",
    "llm.model_name",
    "embedding.model_name",
    names.RESPONSE_MODEL,
    "input.value",
)
_HOLDING: Final = ("llm.invocation_parameters", "embedding.invocation_parameters", "input.value")
"""Those whose values are JSON with a member `model`."""
_FRAMES: Final = "openinference.instrumentation.openai_agents"
"""What wraps a run, and each turn of an agent's loop, in a chain that says nothing of its own."""
_PROVIDERS: Final = (names.PROVIDER, "gen_ai.system", "llm.provider", "llm.system", "llm.vendor")
_AGENTS: Final = (names.AGENT_NAME, "gen_ai.workflow.name", "agent.name", "traceloop.entity.name", "agent_name")
_TOOLS: Final = (names.TOOL_NAME, "tool.name", "traceloop.entity.name")
_VERBS: Final = ("invoke_agent ", "invoke_workflow ", "execute_tool ", "tools/call ")
_CONVERSATIONS: Final = (names.CONVERSATION, "session.id", "traceloop.association.properties.session_id")
_INPUT: Final = (names.INPUT_TOKENS, "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
_OUTPUT: Final = (names.OUTPUT_TOKENS, "gen_ai.usage.completion_tokens", "llm.token_count.completion")
_CACHE_READ: Final = (
    names.CACHE_READ,
    "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.details.cache_read_tokens",
    "llm.token_count.prompt_details.cache_read",
    "llm.token_count.prompt_details.cache_input",
)
_CACHE_WRITE: Final = (
    *reversed(names.CACHE_WRITE),
    "gen_ai.usage.cache_creation_input_tokens",
    "gen_ai.usage.details.cache_write_tokens",
    "llm.token_count.prompt_details.cache_write",
)
_REASONING: Final = (
    names.REASONING_TOKENS,
    "gen_ai.usage.reasoning_tokens",
    "gen_ai.usage.details.reasoning_tokens",
    "llm.token_count.completion_details.reasoning",
)
_TOTAL: Final = ("gen_ai.usage.total_tokens", "llm.usage.total_tokens", "llm.token_count.total")
_DIGITS: Final = re.compile(r"[\d,]+")
_COST: Final = (names.COST, "operation.cost", "llm.cost.total", "gen_ai.usage.cost")
_FIGURES: Final = {
    "input_tokens": _INPUT,
    "output_tokens": _OUTPUT,
    "cache_read_tokens": _CACHE_READ,
    "cache_write_tokens": _CACHE_WRITE,
    "reasoning_tokens": _REASONING,
    "total_tokens": _TOTAL,
    "cost_usd": _COST,
    "upstream_inference_cost_usd": (names.UPSTREAM_COST,),
}
"""What spans call the figures that `optree._providers.usage.read` takes by name."""


class Meaning(Struct, frozen=True):
    """What a span stands for, and the name that its op (`provider:model` of an LLM call) or agent has."""

    role: Role
    name: str


def meaning(name: str, attributes: Mapping[str, Any]) -> Meaning:
    """Return what a span of this name with these attributes stands for."""
    role = _role(attributes)
    if role == "llm":
        return Meaning(role, ":".join(part for part in (provider(attributes), model(attributes)) if part) or name)
    if role in ("agent", "chain"):
        return Meaning(role, _first(attributes, _AGENTS) or _without_verb(name))
    if role in ("tool", "mcp"):
        return Meaning(role, _first(attributes, _TOOLS) or _without_verb(name))
    return Meaning(role, name)


def meaning_within(span: InSpan) -> Meaning:
    """Return what a span stands for that is inside another, or inside what optree itself has begun."""
    what = meaning(span.name, span.attributes)
    return Meaning("frame", what.name) if what.role == "chain" and span.scope == _FRAMES else what


def tells(attributes: Mapping[str, Any]) -> bool:
    """Tell whether a span belongs to a run of an agent or a model at all."""
    return any(key.startswith(_TELLING) for key in attributes)


def provider(attributes: Mapping[str, Any]) -> str:
    """Return the provider of an LLM call; empty if nothing says it."""
    return _first(attributes, _PROVIDERS)


def model(attributes: Mapping[str, Any]) -> str:
    """Return the model that was asked for, else the one that answered; empty if nothing says it."""
    for key in _MODELS:
        value = attributes.get(key)
        if key in _HOLDING:
            value = parsed(value)
            value = value.get("model") if is_object(value) else None
        if value:
            return text(value)
    return ""


def answering_model(attributes: Mapping[str, Any]) -> str:
    """Return the model that answered; empty if nothing says it."""
    return _first(attributes, (names.RESPONSE_MODEL, "llm.model_name", "embedding.model_name"))


def conversation(attributes: Mapping[str, Any]) -> str:
    """Return the id of the conversation that a span belongs to; empty if it names none."""
    return _first(attributes, _CONVERSATIONS)


def parsed(value: Any) -> Any:
    """Return what a text of JSON says; any other value, and text that is no JSON, as it is."""
    if not isinstance(value, str) or value[:1] not in ("{", "[", '"'):
        return value
    try:
        return msgspec.json.decode(value)
    except (ValueError, RecursionError):
        return value


def _role(attributes: Mapping[str, Any]) -> Role:
    operation = attributes.get(names.OPERATION)
    if isinstance(operation, str) and operation in _OPERATIONS:
        return _OPERATIONS[operation]
    kind = attributes.get(names.OI_KIND)
    if isinstance(kind, str):
        return _OPENINFERENCE.get(kind.upper(), "plain")
    if isinstance(kind := attributes.get("traceloop.span.kind"), str):
        return _TRACELOOP.get(kind, "plain")
    if attributes.get(names.MCP_METHOD) == "tools/call":
        return "mcp"
    return "llm" if operation is None and names.REQUEST_MODEL in attributes and provider(attributes) else _hinted(attributes)


def _hinted(attributes: Mapping[str, Any]) -> Role:
    for key, role in _HINTS:
        if key in attributes:
            return role
    return "plain"


def _without_verb(name: str) -> str:
    return next((name.removeprefix(verb) for verb in _VERBS if name.startswith(verb) and len(name) > len(verb)), name)


def _first(attributes: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    return next((text(attributes[key]) for key in keys if attributes.get(key)), "")


class Taken(Struct, frozen=True):
    """Tokens and US dollars of one call; *has_figures* is False where its span has neither."""

    tokens: Tokens
    cost_usd: float | None
    upstream_cost_usd: float | None
    has_figures: bool
    flaws: list[str]
    """What the span says and cannot be so, a sentence each."""


def usage(attributes: Mapping[str, Any]) -> Taken:
    """Return what a span says that its call took.

    Its input tokens are with the cached ones, as the conventions have it, unless its total or a contradiction shows otherwise. Its
    provider does not tell: of Anthropic's calls, older instrumentations pass on bare figures, newer ones add them up.
    """
    flaws: list[str] = []
    figures = {name: figure for name, keys in _FIGURES.items() if (figure := _first_figure(attributes, keys, flaws)) is not None}
    took = read_usage(figures=figures)
    has_figures = bool({"input_tokens", "output_tokens"} & figures.keys()) or took.cost_usd is not None
    return Taken(took.tokens or Tokens(), took.cost_usd, took.upstream_cost_usd, has_figures, flaws + took.flaws)


def contradictions(spans: Iterable[InSpan]) -> list[str]:
    """Return what spans say of usage and cannot be so: once each, with the first span that says it and how many more do."""
    flaws: dict[str, list[str]] = {}
    for span in spans:
        for flaw in usage(span.attributes).flaws:
            flaws.setdefault(_DIGITS.sub("", flaw), []).append(f"span {span.number} ({span.name!r}): {flaw}")
    return [first + (f"; so in {len(more):,} more" if more else "") for first, *more in flaws.values()]


def count(value: Any) -> int | None:
    """Return a count; None for a value that is not a count."""
    return read_count(value, "", [])


def _first_figure(attributes: Mapping[str, Any], keys: tuple[str, ...], flaws: list[str]) -> int | float | None:
    """Return the first of some attributes that is a figure; *flaws* gets those that are none."""
    for key in keys:
        value = attributes.get(key)
        if (result := usage_dollars(value, key, [])) is not None:
            return result
        if value is not None:
            flaws.append(f"{key}={text(value)[:40]!r} is no figure, and is left out")
    return None
