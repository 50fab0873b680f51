"""Calls of models as LlamaIndex reports them, for those that are not seen on the wire; and its objects as plain values.

A stream is left alone: to record it here would read it in place of the program.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final
from weakref import finalize, ref

from optree._builder import Op
from optree._capture.calls.observed import TOLD
from optree._capture.frameworks.nesting import FrameworkCall, Request, chat_answer
from optree._interrupts import pass_on
from optree._providers.messages import json_text
from optree._values import dumped, is_list, is_object, member, own_members, text


def is_event(value: Any) -> bool:
    """Tell whether a value is an event of a workflow."""
    return any(one.__module__ == "workflows.events" for one in type(value).__mro__)


def members(event: Any) -> dict[str, Any]:
    """Return the members of an event, also those that its class does not declare."""
    declared: Any = own_members(type(event)).get("__pydantic_fields__", {})
    return {name: getattr(event, name, None) for name in (*declared, *event.keys())}


def output_of(result: Any) -> Any:
    """Return a result as a plain value; None for a stream."""
    if "Streaming" in type(result).__name__:
        return None
    if is_event(result):
        return output_of(result.result) if type(result).__name__ == "StopEvent" else _event_output(result)
    if is_list(result):
        return [_node(one) if member(one, "node") is not None else one for one in result]
    response = member(result, "response")
    return response if isinstance(response, str) or member(response, "model_dump") is not None else result


def _event_output(event: Any) -> Any:
    if (said := getattr(event, "response", None)) is not None and hasattr(event, "structured_response"):
        return event.structured_response or text(said.content or "")
    return {type(event).__name__: members(event)}


def _node(found: Any) -> dict[str, Any]:
    """Return a node that a retriever found: its text, score and metadata."""
    return {"text": found.node.get_content(), "score": found.score, **({"metadata": more} if (more := found.node.metadata) else {})}


def query_of(asked: Any) -> str | None:
    """Return what is asked: a text, a query with one, or a message."""
    said = getattr(asked, "query_str", None) or getattr(asked, "content", None) or asked
    return None if said is None else text(said)


def question_of(event: Any) -> str | None:
    """Return what the user says: to an agent a message, or the last one of a history; else what a workflow is given."""
    if event is None:
        return None
    told = members(event)
    if "user_msg" in told:
        said: list[Any] = told.get("chat_history") or []
        history = [one for one in said if getattr(one.role, "value", one.role) == "user"]
        return query_of(told["user_msg"] or (history[-1] if history else None))
    name, only = next(iter(told.items())) if len(told) == 1 else ("", None)
    return f"{name}: {only}" if isinstance(only, str) else json_text(told) if told else None


METHODS: Final = ("chat", "achat", "stream_chat", "astream_chat", "complete", "acomplete", "stream_complete", "astream_complete")
"""The methods by which a model is called."""
_INTEGRATIONS: Final = "llama_index.llms."
"""Beginning of the modules of models that LlamaIndex's packages have."""


class LlamaIndexCall(FrameworkCall):
    """One call of a model."""

    def __init__(self, model: Any, asked: Any) -> None:
        self.model = model
        self._asked, self._more = asked, dict[str, Any]()
        self._is_told = self._has_come = False
        self._stream: ref[Any] | None = None
        module = type(model).__module__
        self._provider = module.split(".")[2] if module.startswith(_INTEGRATIONS) else None

    @classmethod
    def begun(cls, model: Any, asked: Any) -> LlamaIndexCall | None:
        """Return a call that begins here; None within a call of the same model, since its methods call each other."""
        around = _call.get()
        if around is not None and around.model is model and around.is_running():
            return None
        call = cls(model, asked)
        call.begin()
        _call.set(call)
        return call

    def is_running(self) -> bool:
        """True while the model's own code runs here."""
        stream: Any = None if self._stream is None else self._stream()
        is_inside = self._stream is None or getattr(stream, "gi_running", False) or getattr(stream, "ag_running", False)
        return is_inside and not self.is_over

    @property
    def _name(self) -> str:
        try:
            name = getattr(self.model.metadata, "model_name", None)
        except Exception as error:  # noqa: BLE001 - a client's own code: OpenAI's knows some models only
            pass_on(error)
            name = getattr(self.model, "model", None)
        return type(self.model).__name__ if name in (None, "unknown") else text(name)

    def asked(self, messages: Any, more: Any) -> None:
        """Note what an event says that the model is asked."""
        self._asked, self._more, self._is_told = messages, more, True

    def streams(self, stream: Any, end: Callable[[Any, BaseException | None], None]) -> None:
        """Note that the model answers by a stream; *end* is called once the program has dropped that."""
        self._stream = ref(stream)
        finalize(stream, self._forgotten, end)

    def _forgotten(self, end: Callable[[Any, BaseException | None], None]) -> None:
        """End a call whose stream was dropped, read in part or reported by no event. One of which nothing was read asked nothing."""
        if self._is_told and not self._has_come:
            self.is_seen = True
        end(None, GeneratorExit() if self._is_told else None)

    def piece(self, response: Any) -> None:
        """Record a piece of the answer."""
        self._has_come = True
        op = self.op()
        if op is None:
            return
        if thought := response.additional_kwargs.get("thinking_delta"):
            op.think(text(thought))
        if response.delta:
            op.chunk(text(response.delta))

    def op(self) -> Op | None:
        """Return the op of a call that is not seen on the wire; one that has begun gets the whole answer, whatever is seen later."""
        if self._op is None and self._provider is not None and TOLD.get() is not self:  # its stream is read elsewhere, and seen on the wire
            self.is_seen = True
        return self._op or super().op()

    def request(self) -> Request:
        """Return what is sent, with the tools as providers take them."""
        model = self.model
        asked = [self._asked] if isinstance(self._asked, str) else self._asked if is_list(self._asked) else []
        sent = {name: one for name in _PARAMETERS if (one := getattr(model, name, None)) not in (None, [])}
        more = {name: _tools_of(one) if name == "tools" else one for name, one in self._more.items() if name not in _INTERNAL}
        return self._provider, self._name, [_message(one) for one in asked], sent | more

    def answer(self, value: Any) -> Any:
        """Return the answer, if one is told of."""
        if value is None:
            return None
        told = getattr(value, "message", None)
        said = {"role": "assistant", "content": text(value.text)} if told is None else _message(told)
        return chat_answer(self._name, [said]) | _usage(value)


_call: ContextVar[LlamaIndexCall | None] = ContextVar("optree_llama_index_call", default=None)
"""The last call that was begun in this context."""
_PARAMETERS: Final = ("temperature", "top_p", "max_tokens", "seed", "stop")
_INTERNAL: Final = ("formatted",)


def _message(said: Any) -> dict[str, Any]:
    """Return a message as providers take it."""
    if isinstance(said, str):
        return {"role": "user", "content": said}
    blocks: list[Any] = list(said.blocks)
    asked_for = [one for one in blocks if one.block_type == "tool_call"]
    content = [{"type": "text", "text": one.text} if one.block_type == "text" else _block(one) for one in blocks if one not in asked_for]
    calls = [
        {"id": one.tool_call_id, "type": "function", "function": {"name": one.tool_name, "arguments": json_text(one.tool_kwargs)}}
        for one in asked_for
    ]
    found: dict[str, Any] = {
        "role": text(getattr(said.role, "value", said.role)),
        "content": content[0]["text"] if len(content) == 1 and "text" in content[0] else content or None,
    }
    known = {"tool_calls": calls} if calls else {}
    return found | known | {name: one for name, one in said.additional_kwargs.items() if name in _OF_MESSAGE and name not in known}


def _block(block: Any) -> dict[str, Any]:
    """Return a part of a message that is no text: its kind and where it is from, without the data of images and files."""
    if block.block_type == "thinking":
        return {"type": "thinking", "thinking": block.content}
    return {"type": block.block_type, **{name: text(one) for name in ("url", "path", "title") if (one := getattr(block, name, None))}}


def _tools_of(offered: Any) -> Any:
    """Return the tools that a model is offered, as providers take them."""
    several: list[Any] = list(offered or [])
    return [one.metadata.to_openai_tool() if hasattr(one, "metadata") else one for one in several]


def _usage(answer: Any) -> dict[str, Any]:
    """Return the figures of an answer, which are in what the provider gave, or beside it, or beside its message."""
    message = getattr(answer, "message", None)
    raw, beside = answer.raw, ({} if message is None else message.additional_kwargs) | answer.additional_kwargs
    raw = dumped(raw.model_dump) if hasattr(raw, "model_dump") else raw
    found = {name: one for name in ("usage", "usage_metadata") if is_object(raw) and (one := raw.get(name))}
    return found or ({"usage": {name: beside[name] for name in _FIGURES if name in beside}} if "prompt_tokens" in beside else {})


_OF_MESSAGE: Final = ("name", "tool_call_id", "tool_calls")
"""Members of a provider's message that LlamaIndex has among additional ones."""
_FIGURES: Final = ("prompt_tokens", "completion_tokens", "total_tokens")
