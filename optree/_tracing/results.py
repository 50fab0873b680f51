"""What a decorated function gives back, as it comes and when it is whole: one `Result` for each call, and all that is known of it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from optree._builder import Op, SessionTreeBuilder
from optree._builder.figures import model_of as called_model
from optree._builder.handles import respond_at_end
from optree._interrupts import pass_on
from optree._nodes import BROKEN_OFF_CALLS, PARTIAL, USAGE_AT_START, Status
from optree._providers import usage
from optree._tracing.recorded import note_foreign, note_type
from optree._tracing.runtime import report_problem
from optree._values import MAX_ITEMS, MAX_TEXT, encode, foreign_type, is_list, is_object

if TYPE_CHECKING:
    from optree._providers.answers import Assembly
    from optree._providers.merging import Piece

_ASKED = "by stream_options={'include_usage': True}"
_NEXT = "return the client's answer itself, or call op.response and op.account"
ENDED_EARLY = "the stream ended before it said that it was over: the answer may lack its end, and what it took is not all known"
_ENDS = ("stop_reason", "stopReason", "finish_reason", "done_reason", "done", "promptFeedback", "prompt_feedback")
"""Members of an answer, one of which says why it ended: Gemini's `promptFeedback` where it has no candidates."""
_TOLD = ("usage", "usageMetadata", "usage_metadata", "prompt_eval_count", "eval_count", "timings", "x_groq")
"""Members of an answer, one of which says what it took."""
_REPORTS = frozenset({str, dict, list, int, float})


class Result:
    """The result of one call; this one is not recorded."""

    __slots__ = ()

    def watch(self, value: Any, on_item: Callable[[Any], None], on_end: Callable[[BaseException | None], None]) -> bool:  # noqa: ARG002
        """Record a result that is a stream, as the program reads it; False if it is not a stream."""
        return False

    def take(self, item: Any) -> bool:  # noqa: ARG002 - for those that take items
        """Take an item as it comes; False if it is to be kept for the end."""
        return False

    def returned(self, value: Any) -> None:
        """Take what was returned, or what was yielded and not taken."""

    def ended(self, status: Status) -> None:
        """End the result: there are no more items."""

    def foreign(self, name: str | None) -> None:
        """Take the class of what JSON does not hold in the result."""


class Report(Result):
    """What a session's function returns: its final report."""

    __slots__ = ("_builder",)

    def __init__(self, builder: SessionTreeBuilder) -> None:
        self._builder = builder

    def returned(self, value: Any) -> None:
        """Take the report, if it is one."""
        if type(value) in _REPORTS:  # not isinstance: it asks a proxy for its class, which may raise
            self._builder.set_final_report(value, with_end=True)


class OpResult(Result):
    """The response of an op; texts are streamed to it."""

    __slots__ = ("_op",)

    def __init__(self, op: Op) -> None:
        self._op = op

    def take(self, item: Any) -> bool:
        """Stream a text."""
        if type(item) is not str:
            return False
        self._op.chunk(item)
        return True

    def returned(self, value: Any) -> None:
        """Record the response, unless the program did."""
        response = self._op.bare.response
        if response is None or response.partial:
            self._record(value)
        elif self._op.bare.kind == "tool" and bytes(response.payload) != encode(value, MAX_ITEMS):
            self.foreign(foreign_type(value) or type(value).__qualname__)

    def foreign(self, name: str | None) -> None:
        """Note it on a tool's op."""
        note_foreign(self._op, name)

    def _record(self, value: Any) -> None:
        respond_at_end(self._op, value)
        note_type(self._op, value)


class ModelResult(OpResult):
    """A model's answer: a provider's is read, whole or in chunks. Without `optree._providers.answers` it is a result like others."""

    decoded = False
    """True where all that is taken is JSON that was decoded."""
    is_over = False
    """True once the provider of a stream has said that no more comes."""
    _assembly: Assembly | None = None
    _named = _is_read = False
    _room = MAX_TEXT
    """Characters of the answer's text that are still recorded as they come."""

    def _record(self, value: Any) -> None:
        self._op.response(value)  # which is looked at before the end

    def watch(self, value: Any, on_item: Callable[[Any], None], on_end: Callable[[BaseException | None], None]) -> bool:
        """Watch a provider's stream."""
        with self._guarded():
            from optree._providers.streams import Watcher, is_stream, watch

            if is_stream(value):
                if watch(value, Watcher(on_item, self._read, on_end)):
                    return True
                report_problem(
                    f"a {type(value).__module__}.{type(value).__name__} cannot be watched, and its op ends without an answer: "
                    "let the function yield what it reads of it",
                    happened=True,
                )
        return False

    def take(self, item: Any) -> bool:
        """Take a text, or a provider's chunk."""
        if super().take(item):
            return True
        self._assembly = self._assembly or self._begun()
        piece = self._assembly.take(item, decoded=self.decoded) if self._assembly is not None else None
        if piece is None or self._assembly is None:
            return False
        if not self._named:
            self._begins(self._assembly)
        self._came(piece)
        return True

    def _came(self, piece: Piece) -> None:
        """Stream what is new in a chunk."""
        if piece.text and self._room >= 0:
            self._op.chunk(piece.text)
            self._room -= len(piece.text)
            if self._room < 0:
                self._op.log(f"of an answer with more than {MAX_TEXT:,} characters the rest is not recorded", "WRN")
        if piece.thought:
            self._op.think(piece.thought)

    def returned(self, value: Any) -> None:
        """Record an answer that is whole."""
        if self._is_read:
            return
        if self._assembly is not None and self._assembly.answer:
            self._assembly.answer["items"] = value  # items that are not chunks of a provider
            return
        with self._guarded():
            from optree._providers.answers import provider_of, told_in, whole

            if (answer := whole(value, decoded=self.decoded)) is not None:
                self._answered(answer, provider_of(value, answer))
                return
            answers = [] if self._op.bare.accounting else told_in(value)
            for block, provider in answers:
                self._account(block, provider)
        super().returned(value)
        self._unread(value)

    @property
    def is_complete(self) -> bool:
        """True once a stream has told why each of its answers ended, and what it took: nothing that counts comes behind that."""
        answer: dict[str, Any] = {} if self._assembly is None else self._assembly.answer
        if is_object(more := answer.get("response_metadata")):  # LangChain's
            answer = more | answer
        held = [one for name in ("choices", "candidates") if is_list(listed := answer.get(name)) for one in filter(is_object, listed)]
        ends = [one.get("finish_reason") or one.get("finishReason") for one in held] or [any(map(answer.get, _ENDS))]
        return all(ends) and any(map(answer.get, _TOLD))

    @property
    def _is_partial(self) -> bool:
        """True for a stream that tells as it goes what it has taken so far, as long as it has not told all."""
        if self._assembly is None or self._assembly.is_told or "status" in self._assembly.answer:
            return False
        return not self.is_complete

    @property
    def _is_unfinished(self) -> bool:
        """True for a stream of OpenAI's responses of which no more is there than the text that came."""
        answer = {} if self._assembly is None or self._room == MAX_TEXT else self._assembly.answer
        return answer.get("status") == "in_progress" and not answer.get("output") and answer.get("background") is not True

    def _tells_less(self, status: Status) -> bool:
        """Tell whether a stream's usage is not all of it: it ended before that was told, by an error or, as behind a proxy, without one."""
        if not self._is_partial:
            return False
        return status != "ok" or not (self.is_over or (self._assembly is not None and self._assembly.answer.get("type") == "ai"))

    def breaks_off(self) -> None:
        """Record what has come of a stream beside its text: its op is about to end, whatever comes yet."""
        if self._assembly is not None and self._assembly.answer:
            with self._guarded():
                self._broke_off(self._assembly.whole())

    def ended(self, status: Status) -> None:
        """Record the answer that the chunks add up to."""
        if self._assembly is not None and self._assembly.answer:
            self._answered(self._assembly.whole(), self._assembly.provider, status)

    def _read(self, value: Any) -> None:
        """Record a raw response that the program has read, and that yields nothing else."""
        self.returned(value)
        self._is_read = True

    def _begun(self) -> Assembly | None:
        with self._guarded():
            from optree._providers.answers import Assembly

            return Assembly()
        return None

    def _answered(self, answer: dict[str, Any], provider: str | None, status: Status = "ok") -> None:
        """Record a provider's answer: its model and usage, unless the program recorded these itself, and its content, if it is whole."""
        if all(entry.status == "failed" for entry in self._op.bare.accounting):  # attempts that brought no answer
            self._account(answer, provider, status)
        if status == "ok" and self._is_unfinished:
            self._op.log(ENDED_EARLY, "WRN")
        if status == "ok" and not self._is_unfinished:
            super().returned(answer)
        else:
            with self._guarded():
                self._broke_off(answer)

    def _broke_off(self, answer: dict[str, Any]) -> None:
        """Record the function calls that had come when a stream broke off: of such an answer the response has the text only."""
        from optree._providers.messages import ToolCallPart, answers, message

        parts = [part for one in answers(answer) for told in one.messages for part in message(told).parts]
        if calls := [part for part in parts if isinstance(part, ToolCallPart) and part.name]:
            told = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls]
            if self._op.bare.attributes.get(BROKEN_OFF_CALLS) == told:  # at the end of a turn within
                return
            self._op.builder.set_op(self._op, **{BROKEN_OFF_CALLS: told})
            names = f"a call of {calls[0].name}" if len(calls) == 1 else f"{len(calls)} function calls"
            self._op.log(f"the answer broke off behind {names}")

    def _begins(self, assembly: Assembly) -> None:
        """Record what a stream tells before its text, which a kill would take: the model, the provider, and the tokens that were sent."""
        from optree._providers.answers import model_of

        model, usage_at_start = model_of(assembly.answer), assembly.answer.get("usage")
        name_model(self._op, model, assembly.provider)
        self._named = model is not None
        if is_object(usage_at_start):
            self._op.builder.set_op(self._op, **{USAGE_AT_START: usage_at_start | {PARTIAL: True}})

    def _account(self, answer: dict[str, Any], provider: str | None, status: Status = "ok") -> None:
        """Account for what an answer took; one that tells no tokens is reported once, unless it broke off before it could.

        An answer that was cancelled counts as failed; for one that failed the end of its op sets that, with the error.
        """
        from optree._providers.answers import model_of
        from optree._providers.messages import is_under_way

        if is_under_way(answer):  # it tells no tokens before it has ended
            return
        op, model = self._op, model_of(answer)
        asked = self._asked(model, provider)
        figures = self._usage(answer, status)
        known = is_known(figures)
        if status == "ok" and not known and (answer.get("usage") or answer.get("usageMetadata")):
            self._say(f"the usage of an answer of {model or 'a model'} cannot be read, and is unknown: {'; '.join(figures.flaws)}")
            if not op.bare.accounting:  # the op's end records a call with unknown tokens
                return
        if status == "ok" or known:  # else the op's end records how its call ended, with unknown tokens
            more: dict[str, Any] = {} if model == asked else {"actual_model": model}
            if status == "cancelled":
                more["status"] = "failed"
            op.account(figures if known else None, **more)
        if status == "ok" and not known:
            is_openai = (called_model(op.bare)[0] or "").startswith("openai")
            asked_by = f"; OpenAI's chat streams them if asked, {_ASKED}" if is_openai and "choices" in answer else ""
            self._say(f"an answer of {model or 'a model'} tells no tokens and counts with 0{asked_by}")

    def _usage(self, answer: dict[str, Any], status: Status) -> usage.Usage:
        """Return what an answer took, marked if its stream broke off before it told all."""
        figures = usage.read(answer)
        if self._tells_less(status):
            figures.rest = {**figures.rest, PARTIAL: True}
            if status == "ok" and has_figures(figures):
                self._op.log(ENDED_EARLY, "WRN")
        return figures

    def _asked(self, model: object, provider: object) -> object:
        """Return the model that the op asks; it is noted which one answers, if the op does not say that."""
        return name_model(self._op, model, provider)

    def _unread(self, value: object) -> None:
        """Report a result that is neither text nor data, where nothing is known of what the call took."""
        response = self._op.bare.response
        if not self._op.bare.accounting and response is not None and b'{"$repr":' in bytes(response.payload):
            kind = type(value)
            self._say(
                f"what a model's call returned, a {kind.__module__}.{kind.__qualname__}, is none that is read: it has no tokens; {_NEXT}"
            )

    def _say(self, flaw: str) -> None:
        core = self._op.builder.core
        if core.first_time(flaw):
            core.stream.report(f"{self._op.path}: {flaw}")
            self._op.log(flaw, "WRN")

    @contextmanager
    def _guarded(self) -> Generator[None]:
        """Keep from the program that a module cannot be read now (no descriptors are left)."""
        try:
            yield
        except (ImportError, OSError) as error:
            pass_on(error)
            self._op.builder.core.stream.fault(error)


def is_known(figures: usage.Usage) -> bool:
    """Tell whether a usage says what a call took, or cannot be read, which is reported where it is recorded."""
    return has_figures(figures) or bool(figures.fault)


def has_figures(figures: usage.Usage) -> bool:
    """Tell whether a usage has tokens or a cost."""
    return figures.tokens is not None or figures.cost_usd is not None


def name_model(op: Op, model: object, provider: object) -> object:
    """Note on an op which model is asked, unless it says so itself; returns which it is."""
    known = op.bare.attributes
    if "model" in known and "provider" in known:
        return known["model"]
    new = {name: word for name, word in (("model", model), ("provider", provider)) if isinstance(word, str) and word and name not in known}
    if new:
        op.builder.set_op(op, **new)
    return known.get("model", new.get("model"))
