"""The attributes of a model call: names, parameters, usage, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from optree import AccountingEntry, OperationNode
from optree.exporting import Payload, TypedDecoder, decode, is_list, is_object, parts_of_name, redact
from optree_otel.signals import names
from optree_otel.signals.protobuf import Attribute

UNKNOWN: Final = "unknown"
"""The provider of a call that names none; the conventions want one."""
_MOST_COUNT = (1 << 63) - 1


class _ResponseChoice(msgspec.Struct):
    finish_reason: str | None = None
    finishReason: str | None = None  # noqa: N815 - as Gemini has it


class _Details(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    completion_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class Response(msgspec.Struct):
    """The few members of a response that become attributes, as OpenAI, Anthropic, Gemini and Ollama name them."""

    id: str | None = None
    model: str | None = None
    choices: list[_ResponseChoice] = []
    candidates: list[_ResponseChoice] = []
    finish_reason: str | None = None
    stop_reason: str | None = None
    done_reason: str | None = None
    usage: _Usage | None = None

    def reasons(self) -> list[str]:
        """Return why the model stopped, one for each choice."""
        of_choices = [choice.finish_reason or choice.finishReason for choice in self.choices or self.candidates]
        return [reason for reason in (*of_choices, self.finish_reason, self.stop_reason, self.done_reason) if reason]

    def reasoning_tokens(self) -> int | None:
        """Return how many of the tokens were reasoning, where the provider says so."""
        details = self.usage and (self.usage.completion_tokens_details or self.usage.output_tokens_details)
        return details.reasoning_tokens if details else None


class ModelCall(NamedTuple):
    """Who was called."""

    operation: str
    provider: str
    model: str | None

    def name(self, otherwise: str) -> str:
        """Return the span's name; *otherwise* stands for a model that is not known."""
        return f"{self.operation} {self.model or otherwise}"

    @property
    def attributes(self) -> list[Attribute]:
        """As the conventions say it."""
        attributes: list[Attribute] = [(names.OPERATION, self.operation), (names.PROVIDER, self.provider)]
        return attributes if self.model is None else [*attributes, (names.REQUEST_MODEL, self.model)]


_response: TypedDecoder[Response] = TypedDecoder(Response)
_NO_RESPONSE = Response()


def called(op: OperationNode, own: dict[str, Any], request: dict[str, Any]) -> ModelCall:
    """Return operation, provider and model of a call, from its attributes (which are taken out of *own*), its name and its request."""
    provider = own.pop("provider", None)
    model = own.pop("model", None) or request.get("model")
    operation = own.pop("operation", None) or "chat"
    if not (provider and model):
        named, rest = parts_of_name(redact(op.name))
        first = next((entry for entry in op.accounting if entry.model), None)
        provider = provider or named or (first.provider if first else None)
        model = model or rest or (first.model if first else None)
    known = str(provider) if provider else UNKNOWN
    return ModelCall(str(operation), names.PROVIDERS.get(known.lower(), known), str(model) if model else None)


def request_of(op: OperationNode) -> dict[str, Any]:
    """Return a request's members; long ones stay references into the pool."""
    if op.request is None:
        return {}
    try:
        request = decode(op.request.payload)
    except msgspec.DecodeError:
        return {}
    return request if is_object(request) else {}


def response_of(response: Payload | None) -> Response:
    """Return what a response tells of itself; nothing for one that is plain text, or of another shape."""
    if response is None or bytes(memoryview(response.payload)[:1]) != b"{":
        return _NO_RESPONSE
    try:
        return _response(response.payload)
    except msgspec.DecodeError:
        return _NO_RESPONSE


def parameters(own: dict[str, Any], request: dict[str, Any]) -> list[Attribute]:
    """Return the parameters of a call, from its attributes (which are taken out of *own*) and its request."""
    result: dict[str, Any] = {}
    for source in (request, own):
        for key, value in source.items():
            if (known := names.REQUEST.get(key)) is not None and (fit := _as(known[1], value)) is not None:
                result[known[0]] = fit
    for key in [key for key in own if key in names.REQUEST]:
        del own[key]
    if result.get(names.CHOICES) == 1:
        del result[names.CHOICES]
    return list(result.items())


def _as(kind: type, value: Any) -> Any:
    """Return a parameter in the type that its attribute has; None for a value of another type."""
    if kind is list:
        items = [value] if isinstance(value, str) else value
        return [item for item in items if isinstance(item, str)] or None if is_list(items) else None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < _MOST_COUNT else None
    return value if type(value) is kind else None


def usage(entries: Sequence[AccountingEntry]) -> list[Attribute]:
    """Return the tokens of all attempts: input tokens with the cached ones, as the conventions count them."""
    sent = received = read = written = reasoning = 0
    known = False
    for entry in entries:
        tokens = entry.tokens
        if tokens is not None:
            known = True
            sent += tokens.input_tokens
            received += tokens.output_tokens
            read += tokens.cache_read_input_tokens
            written += tokens.cache_write_input_tokens
            reasoning += tokens.reasoning_output_tokens
    if not known:
        return []
    attributes: list[Attribute] = [(names.INPUT_TOKENS, sent + read + written), (names.OUTPUT_TOKENS, received)]
    if reasoning:
        attributes.append((names.REASONING_TOKENS, reasoning))
    if read:
        attributes.append((names.CACHE_READ, read))
    if written:
        attributes += [(name, written) for name in names.CACHE_WRITE]
    return attributes


def answered(op: OperationNode, own: dict[str, Any]) -> list[Attribute]:
    """Return what a call's response and accounting say: the model that answered, why it stopped."""
    last = op.accounting[-1] if op.accounting else None
    if op.response is None and not own and (last is None or not (last.actual_model or last.actual_provider)):
        return []
    response = response_of(op.response)
    model = (own and own.pop("response_model", None)) or (last.actual_model if last else None) or response.model
    attributes: list[Attribute] = [(names.RESPONSE_MODEL, str(model))] if model else []
    if last is not None and last.actual_provider:
        attributes.append((names.ACTUAL_PROVIDER, last.actual_provider))
    reason = own and (own.pop("finish_reasons", None) or own.pop("finish_reason", None))
    reasons = response.reasons() if not reason else [str(item) for item in reason] if is_list(reason) else [str(reason)]
    if reasons:
        attributes.append((names.FINISH_REASONS, reasons))
    if identity := (own and own.pop("response_id", None)) or response.id:
        attributes.append((names.RESPONSE_ID, str(identity)))
    counted = any(entry.tokens is not None and entry.tokens.reasoning_output_tokens for entry in op.accounting)
    if not counted and (reasoning := response.reasoning_tokens()) is not None:
        attributes.append((names.REASONING_TOKENS, reasoning))
    first = own and own.pop("time_to_first_chunk", None)
    if isinstance(first, (int, float)):
        attributes.append((names.FIRST_CHUNK, float(first)))
    return attributes
