"""A call of a model, as it is under way: the op that it is, the attempts that a client makes at it, and what its answer becomes in it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any, Final
from weakref import ref

from optree._builder import Op
from optree._builder.entries import has_text
from optree._builder.handles import account_again, account_late, account_open, respond_at_end, tried_again
from optree._builder.outcome import outcome
from optree._capture.calls.background import expect_response
from optree._capture.calls.program import PROGRAM
from optree._capture.calls.refusals import Refusal
from optree._interrupts import suppress
from optree._nodes import ERROR_BODY, PARTIAL, USAGE_AT_START, AccountingEntry, Status, is_placeholder
from optree._providers import usage
from optree._providers.answers import model_of, provider_in, whole
from optree._providers.merging import Piece
from optree._providers.messages import is_under_way
from optree._providers.server_tools import server_tools
from optree._providers.usage import SERVER_TOOLS
from optree._tracing.budgets import CarriedRefusal
from optree._tracing.failures import FailureClass, error_attributes
from optree._tracing.faults import guarded
from optree._tracing.results import ENDED_EARLY, ModelResult, has_figures, name_model
from optree._tracing.runtime import RUNTIME
from optree._tracing.scopes import is_parents
from optree._values import is_list, is_object
from optree.redaction import redact

_FIGURES: Final = (
    "usage", "usageMetadata", "usage_metadata", "timings", "meta", "prompt_eval_count", "eval_count", "service_tier", "serviceTier",
    "performanceConfig", "x_groq"
)  # fmt: skip
"""Members of an answer that have figures of what it took, or say what these cost."""
CHUNKS: Final = "stream.chunks"
"""The attribute of an op that has, for each chunk of a stream of Gemini's, the characters of each of its parts; null without content."""
_METRICS: Final = "amazon-bedrock-invocationMetrics"
"""The member of the last chunk of a stream of Bedrock's that has figures."""
IN_HEADERS: Final = {
    "input_tokens": b"x-amzn-bedrock-input-token-count", "output_tokens": b"x-amzn-bedrock-output-token-count"
}  # fmt: skip
"""Headers of an answer of Bedrock's that have figures."""
NO_TEXT: Final = -1
"""In place of the characters of a part that is no text."""
_MOST_CHUNKS: Final = 1000


class ObservedCall:
    """One call of a model: an op of its own, or the open one of the program's that it is made in. That it is forgotten ends it too."""

    attempts = 0
    failure: FailureClass | None = None
    """Why the last attempt failed; for an op of the program's it is the end of that which tells it."""
    refusal: Refusal | None = None
    """What the provider said of that."""
    is_answered = False
    """True once a model has begun to answer: what comes after that is another call."""
    is_under_way = False
    """True while an attempt is: what comes meanwhile is another call, as of a guard or of a task beside."""
    is_refused = False
    """True once an attempt was: its status is the op's, until another comes."""
    below: tuple[Op, ...] = ()
    """Ops of further calls that the program makes in its own, this one's, and has not accounted for in it."""
    text = ""
    """What had come of an answer that broke off, in an op of the program's."""
    _failed: AccountingEntry | None = None
    """What the last attempt was accounted for by, if that failed."""
    _is_told = False
    """True once the program has accounted for this one."""
    _finish: Callable[[Op, Status, str | None], None] | None = None

    def __init__(self, op: Op, finish: Callable[[Op, Status, str | None], None] | None, model: str | None = None) -> None:
        self.op = op
        self.model = model
        """The model that the op was begun with, which has its provider then too."""
        self._forked_at = RUNTIME.forked_at
        self._finish = finish  # last: what an interrupt leaves half made is not for `__del__` to end

    @property
    def is_own(self) -> bool:
        """True if the op was begun here."""
        return self._finish is not None

    @property
    def is_inherited(self) -> bool:
        """True if it is another process's: this one was forked since."""
        return self._forked_at != RUNTIME.forked_at

    @property
    def is_open(self) -> bool:
        """True if another attempt belongs to it."""
        return not self.is_answered and not self.is_under_way and not self.is_inherited and self.op.bare.ended_at is None

    def begins(self) -> None:
        """Note that an attempt begins: one that failed before it counts as an attempt of this call, not as a call of its own."""
        self.attempts += 1
        self.is_under_way = True
        if self.attempts > 1:
            entry, self._failed = self._failed, None
            self.fails(None, None)
            if entry is not None and entry.status == "failed":
                tried_again(self.op, entry)

    def fails(self, failure: FailureClass | None, refusal: Refusal | None) -> None:
        """Note why the attempt failed, and what the provider said of that."""
        self.failure, self.refusal = failure, refusal

    @property
    def provider_error(self) -> dict[str, Any]:
        """Return the attributes by which the op has what the provider said of its failure."""
        return {} if self.refusal is None else self.refusal.attributes

    def is_below(self, entry: AccountingEntry) -> bool:
        """Tell whether the program accounts in this op for a call that has an op of its own below it, with these tokens."""
        if not self.below or entry.tokens is None or not entry.tokens.total_tokens:
            return False
        if not self._is_told:
            own = usage.read(self.op.bare.attributes.get(USAGE_AT_START), provider=entry.provider, model=entry.model)
            self._is_told = own.tokens == entry.tokens
            if self._is_told:
                return False
        for op in self.below:
            same = next((one for one in op.bare.accounting if one.tokens == entry.tokens), None)
            if same is not None:
                self.below = tuple(one for one in self.below if one is not op)
                if entry.cost_usd is not None:
                    account_again(op, same, entry.cost_usd)
                return True
        return False

    @property
    def _why(self) -> dict[str, Any]:
        return error_attributes(self.failure) | self.provider_error

    def attempt_failed(self, number: int, why: str, latency: float, headers: dict[str, str], *, is_free: bool) -> None:
        """Record that the attempt of this *number* brought no answer; one *is free* that the provider refused, which told *headers*."""
        is_last = number == self.attempts
        self.is_under_way = self.is_under_way and not is_last
        details = {name: value for name, value in self._why.items() if name != ERROR_BODY}
        details = (details if is_last else {}) | ({"headers": headers} if headers else {})
        self.op.log(f"attempt {number} failed: {why}", "WRN", details=details or None)
        self.op.account(status="failed", latency=latency, cost_usd=0.0 if is_free else None)
        entry = next(iter(self.op.bare.accounting[-1:]), None)
        if is_last:
            self._failed = entry
        elif entry is not None and entry.status == "failed":
            tried_again(self.op, entry)

    def end(self, status: Status, error: str | None) -> None:
        """End the op, if it is ours, and with the last one the turn of a program that begins none."""
        try:
            self.end_op(status, error)
        finally:
            self.ended()

    def end_op(self, status: Status, error: str | None) -> None:
        """End the op, if it is ours; in a forked child it is the parent's to end. Then `ended` is to be called."""
        if self._finish is None or self.is_inherited:
            return
        if status == "failed" and (why := self._why):
            self.op.builder.set_op(self.op, **why)
        try:
            self._finish(self.op, status, error)
        except BaseException:  # an interrupt: what is begun is done whole
            self._finish(self.op, status, error)
            raise

    def op_ends(self) -> None:
        """Record the text of an answer that broke off, unless the program has recorded one: its op is about to end."""
        op, text, self.text = self.op, self.text, ""
        if text and op.bare.ended_at is None and op.bare.response is None and not has_text(op):
            op.chunk(text)

    def ended(self) -> None:
        """Tell the program's session that the op has ended, if it has."""
        if self._finish is not None and self.op.bare.ended_at is not None and not self.is_inherited:
            PROGRAM.answered(self.op)

    def __del__(self) -> None:
        if self.is_own and not self.is_under_way and self.op.bare.ended_at is None:  # otherwise the attempt under way ends it
            _end(self, GeneratorExit())


class AnswerOverWire(ModelResult):
    """An answer as it comes over the wire."""

    decoded = True
    _beside: dict[str, Any] | None = None
    """What the call took, where that is told beside an answer which is not read: of models with interfaces of their own at Bedrock."""

    def __init__(self, op: Op, model: str | None = None) -> None:
        super().__init__(op)
        self._model = model
        self._chunks: list[list[int] | None] = []
        """What `CHUNKS` says: Gemini's client sends the content of each chunk back as one of its own, or none if one has no parts."""

    def head(self, headers: Mapping[bytes, str]) -> None:
        """Take the figures among an answer's headers."""
        self._beside = {name: headers[header] for name, header in IN_HEADERS.items() if header in headers} or None

    def take(self, item: Any) -> bool:
        """Add a chunk to the answer."""
        if is_object(item) and is_object(told := item.get(_METRICS)):
            self._beside = {"input_tokens": told.get("inputTokenCount"), "output_tokens": told.get("outputTokenCount")}
        if is_object(item) and is_list(found := item.get("candidates")) and len(self._chunks) <= _MOST_CHUNKS:
            content = found[0].get("content") if found and is_object(found[0]) else None
            parts = content.get("parts") if is_object(content) else None
            self._chunks.append([_text_size(part) for part in parts] if is_list(parts) else [] if is_object(content) else None)
        return super().take(item)

    def breaks_off(self) -> None:
        """Record what has come of a stream, with what it has told of usage by now: its op is about to end, whatever comes yet."""
        if self._assembly is not None and (told := figures_in(self._assembly.answer, is_partial=self._is_partial)):
            self._op.builder.set_op(self._op, **{USAGE_AT_START: told})
        super().breaks_off()

    def ended(self, status: Status) -> None:
        """Record the answer that the chunks add up to, and, if they are not too many, what each had."""
        if 1 < len(self._chunks) <= _MOST_CHUNKS:
            self._op.builder.set_op(self._op, **{CHUNKS: self._chunks})
        super().ended(status)
        if self._beside is not None and (self._assembly is None or not self._assembly.answer):
            self._account_beside(status)

    def returned(self, value: Any) -> None:
        """Record an answer that came whole."""
        answer = whole(value, decoded=True) if self._assembly is None else None
        if answer is None:
            super().returned(value)
        else:
            self._beside = None
            self._answered(answer, provider_in(answer))

    def _account_beside(self, status: Status) -> None:
        beside, bare = self._beside, self._op.bare
        self._beside = None
        if all(entry.status == "failed" for entry in bare.accounting) and USAGE_AT_START not in bare.attributes:
            self._account({"usage": beside, "model": self._model}, None, status)

    def failed(self, value: Any) -> None:
        """Record an answer that is an error; it may have usage."""
        if (answer := whole(value, decoded=True)) is not None:
            self._answered(answer, provider_in(answer), "failed")

    def _asked(self, model: object, provider: object) -> object:
        return self._model or super()._asked(model, provider)

    def _record(self, value: Any) -> None:
        respond_at_end(self._op, value)  # which follows

    def _answered(self, answer: dict[str, Any], provider: str | None, status: Status = "ok") -> None:
        if is_under_way(answer):
            expect_response(self._op, answer)
            account_open(self._op)
        if self._op.bare.ended_at is None:
            super()._answered(answer, provider, status)
            return
        figures = self._usage(answer, status)  # the program reads a stream behind its op's end
        if has_figures(figures):
            account_late(self._op, figures, failed=status != "ok")
        elif status == "ok" and all(is_placeholder(entry.id) for entry in self._op.bare.accounting):
            self._account(answer, provider, status)
        if self._op.spending is not None:
            self._op.spending.commit(self._op)
        if status == "ok" and (self._op.bare.response is None or self._op.bare.response.partial):
            self._op.response(answer)


def figures_in(answer: dict[str, Any], *, is_partial: bool = False) -> dict[str, Any]:
    """Return the members of an answer that say what it took, marked if that *is partial*; none where they do not tell that yet."""
    told = {name: answer[name] for name in _FIGURES if answer.get(name)}
    if not told or not has_figures(usage.read(told)):
        return {}
    return {name: value | {PARTIAL: True} if is_partial and is_object(value) else value for name, value in told.items()}


def _text_size(part: Any) -> int:
    text = part.get("text") if is_object(part) else None
    return len(text) if isinstance(text, str) else NO_TEXT


class JoinedAnswer(AnswerOverWire):
    """An answer to an op of the program's, which may record it itself. What the program does not say is recorded at the op's end."""

    def _record(self, value: Any) -> None:
        self._op.response(value)

    def __init__(self, op: Op) -> None:
        super().__init__(op)
        self._texts: list[str] = []

    def _came(self, piece: Piece) -> None:
        """Keep the text: before the end nothing is shown, as the program may stream it."""
        if piece.text and self._room >= 0:
            self._texts.append(piece.text)
            self._room -= len(piece.text)

    def breaks_off(self) -> None:
        """Record what has come of a stream, its text too, unless the program has."""
        self._leave()
        if (call := self._op.call) is not None:
            call.op_ends()
        super().breaks_off()

    def ended(self, status: Status) -> None:
        """Record the answer that the chunks add up to; of one that broke off the op's end records the text, unless the program does."""
        if status != "ok" or self._is_unfinished:
            self._leave()
        super().ended(status)

    def _leave(self) -> None:
        if (call := self._op.call) is not None and self._texts:
            call.text = "".join(self._texts)
        self._texts.clear()

    def _account(self, answer: dict[str, Any], provider: str | None, status: Status = "ok") -> None:
        if self._op.bare.ended_at is not None or is_parents(self._op.builder.core, self._op.bare):  # then no end of it here takes this
            super()._account(answer, provider, status)
            return
        name_model(self._op, model_of(answer), provider)
        is_partial = self._tells_less(status)
        told = figures_in(answer, is_partial=is_partial)
        if told and is_partial and status == "ok":
            self._op.log(ENDED_EARLY, "WRN")
        if told:  # else what it took is unknown
            if tools := server_tools(answer):
                told[SERVER_TOOLS] = tools
            self._op.builder.set_op(self._op, **{USAGE_AT_START: told})


class ClientCall:
    """A call of a client's own, in which it may send several times: the attempts of one op. It lasts as long as this lives, at most."""

    __slots__ = ("__weakref__", "_token", "call")

    def __init__(self) -> None:
        self.call: ObservedCall | None = None
        self._token: Token[ref[ClientCall] | None] | None = None

    def begin(self) -> None:
        """Make this the client's call that is under way in this context."""
        self._token = _client.set(ref(self))

    def returned(self, value: object) -> None:  # noqa: ARG002 - what it is made of was seen on the wire
        """Note that the client's call has returned."""
        self._leave(None)

    def raised(self, error: BaseException) -> None:
        """End the call with an exception, if no answer came; a budget's refusal is raised unchanged."""
        self._leave(error)
        if isinstance(error, CarriedRefusal):
            raise error.args[0] from None

    def _leave(self, error: BaseException | None) -> None:
        token, self._token = self._token, None
        if token is not None:
            with suppress(ValueError):  # a coroutine that is closed elsewhere
                _client.reset(token)
        call = self.call
        if call is not None and call.is_own and call.is_open:
            _end(call, error)


@contextmanager
def one_client_call() -> Generator[None]:
    """Make all that is sent in the block attempts of one op."""
    client = ClientCall()
    try:
        client.begin()
        yield
        client.returned(None)
    except BaseException as error:
        client.raised(error)
        raise


@guarded
def _end(call: ObservedCall, error: BaseException | None) -> None:
    call.end(*ended_by(error))


def ended_by(error: BaseException | None) -> tuple[Status, str | None]:
    """Return how a call ended, without credentials: clients' exceptions name whole addresses."""
    if error is None:
        return "ok", None
    status, said = outcome(error)
    return status, None if said is None else redact(said)


_client: ContextVar[ref[ClientCall] | None] = ContextVar("optree_client", default=None)


class ToldCall:
    """A call of a model that a framework reports. The innermost one that is under way is the current one of its context."""

    is_seen = False
    """True once what the model asks is recorded in another way: on the wire, or as a call of another model."""
    is_over = False
    _around: ref[ToldCall] | None = None

    @property
    def around(self) -> ToldCall | None:
        """The call that was the current one when this one began, or, if that has ended, the one around it."""
        found = None if self._around is None else self._around()
        return found.around if found is not None and found.is_over else found

    def goes_on(self) -> None:
        """Make this the current call: when it begins, and whenever another piece of its answer is asked for."""
        if self.is_over:
            return
        around = TOLD.get()
        TOLD.set(self)
        if around is not None and around.is_over:
            around = around.around
        if around is not None and not around.is_within(self):
            self._around = ref(around)
            around.asks()

    def pauses(self) -> None:
        """Make the call around it the current one, as while the program has a piece of the answer."""
        current = TOLD.get()
        if current is not None and current.is_within(self):
            TOLD.set(self.around)

    def leaves(self) -> None:
        """End the call: the one around it is the current one again."""
        self.is_over = True
        if TOLD.get() is self:
            TOLD.set(self.around)

    def is_within(self, other: ToldCall) -> bool:
        """Tell whether this is the *other* one, or a part of it."""
        return self is other or (self.around is not None and self.around.is_within(other))

    def asks(self) -> None:
        """Note that a model is asked here, which is recorded: this call is seen then, or the one around it if this one does not ask."""
        if self.is_over or not self.is_asking():
            if (around := self.around) is not None:
                around.asks()
        else:
            self.is_seen = True

    def is_asking(self) -> bool:
        """Tell whether the model of this call is what asks another model here."""
        return True


TOLD: ContextVar[ToldCall | None] = ContextVar("optree_told_call", default=None)
"""The current call, if any."""


def client_call() -> ClientCall | None:
    """Return the call of a client that is under way here."""
    found = _client.get()
    return None if found is None else found()
