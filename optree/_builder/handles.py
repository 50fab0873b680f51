"""The handle of an open op. `Op.log`, `Op.think` and `Op.chunk` are the hot path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Never, Unpack

from msgspec import UNSET
from msgspec.structs import replace

from optree import _nodes as nodes
from optree import _records as records
from optree._builder.entries import EntryState
from optree._builder.figures import (
    UsageNames,
    attempt_status,
    error_text,
    known_severity,
    known_status,
    model_of,
    number,
    take_usage,
    unknown_severity,
)
from optree._builder.guard import FAULTS, fault, guarded
from optree._builder.turns import Turn
from optree._clock import monotonic
from optree._interrupts import new_rlock
from optree._nodes import USAGE_AT_START, AccountingEntry, OperationNode, Payload, Severity, Status, Tokens
from optree._providers.prices import PRICE
from optree._providers.usage import counts_beside, plain_tokens
from optree._tree import apply
from optree._tree.totals import add_entry, add_failure, is_possible_cost, take_retried
from optree._tree.walk import recount
from optree._values import cut, decode
from optree._values import text as as_text

if TYPE_CHECKING:
    from optree._builder.session_tree import SessionTreeBuilder

_VRB: Severity = "VRB"
_OK: Literal["ok"] = "ok"
_ADDING = new_rlock()


class Op(EntryState, eq=False):
    """An open operation, as `with optree.llm(…) as op`, `optree.tool`, `optree.current` and `SessionTreeBuilder.begin_op` give it.

    Its methods may be called on any thread, also after its end, and never raise: what cannot be recorded is counted in `optree.health`.
    """

    def __repr__(self) -> str:
        return f"<Op {self.bare.op_id} {self.bare.kind} {self.bare.name!r}>"

    @classmethod
    def of(cls, builder: SessionTreeBuilder, turn: Turn, node: OperationNode) -> Op:
        """Return a handle for an op that begins now."""
        core = builder.core
        return cls(builder, turn, node, node.path, core.now, core.recorded, monotonic())

    @classmethod
    def of_ended(cls, builder: SessionTreeBuilder, turn: Turn, node: OperationNode) -> Op:
        """Return a handle for an op that began before."""
        op = cls.of(builder, turn, node)
        op._t0 -= max(0.0, builder.core.now() - node.started_at / 1e3)  # noqa: SLF001 - of the same class
        return op

    @property
    def node(self) -> OperationNode:
        """The operation's node in the tree, with all entries so far; it goes on growing."""
        if self._raw or self._logs is not None:
            try:
                self.settle()
            except RecursionError:
                FAULTS.stack += 1
            except Exception as error:  # noqa: BLE001 - as in `log`
                fault(self, error)
        return self.bare

    @property
    def id(self) -> str:
        """The operation's id in the whole store, ``<txn>:<path>``."""
        return self.bare.op_id

    def log(
        self,
        message: str,
        severity: Severity = _VRB,
        direction: Literal["request", "response"] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Append a log line. It is written within about 10 ms, and does not wait for that.

        Args:
            message: The text.
            severity: ``VRB`` (verbose), ``WRN``, ``ERR``, ``TRC``, ``THK`` (thinking), ``FIN``; or the name of a level of `logging`.
            direction: Whether the line is about what was sent (``request``) or what came back (``response``).
            details: What a program may want to read of it, as JSON; copied before this returns.
        """
        try:
            if severity is not _VRB or direction is not None or details is not None:
                self._log_more(message, severity, direction, details)
            else:
                self._raw.extend((self._now(), message if type(message) is str else as_text(message), None))
            if self._clean:
                self._mark()
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - as in `guarded`, which costs a call more
            fault(self, error)

    def _log_more(self, message: Any, severity: Any, direction: Any, details: Any) -> None:
        side: Any = direction if type(direction) is str and direction in ("request", "response") else None
        known = known_severity(severity)
        self._raw.extend((self._now(), as_text(message), (known, side, self.builder.core.attributes(details))))
        if known == _VRB and severity is not _VRB and (flaw := unknown_severity(severity)) and self.builder.core.first_time(flaw):
            self.builder.core.stream.report(f"{self.path}: {flaw}")
        if known in self.builder.core.stream.awaited:
            self._awaited = True

    def think(self, text: str) -> None:
        """Append a chunk of streamed reasoning, as the model emits it. It is written within about 10 ms, and does not wait for that."""
        try:
            self._raw.extend((self._now(), text if type(text) is str else as_text(text), True))
            if self._clean:
                self._mark()
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - as in `guarded`, which costs a call more
            fault(self, error)

    def chunk(self, text: str) -> None:
        """Append a chunk of the answer's streamed text. It is written within about 10 ms, and does not wait for that.

        The text so far is the operation's response, marked `partial`, until `response` gives the whole or the operation ends as ``ok``.
        """
        try:
            if self._streamed is None:
                before = self.bare.response  # of an op that has ended, and is given by its id
                self._streamed = [decode(before.payload)] if before is not None and before.partial else []
                self._delivered = sum(map(len, self._streamed)) if self._delivered >= 0 else -1
            self._raw.extend((self._now(), cut(text if type(text) is str else as_text(text)), False))
            if self._clean:
                self._mark()
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - as in `log`
            fault(self, error)

    def account(
        self,
        usage: object = None,
        *others: Never,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cache_read_tokens: int | None = None,
        cache_write_tokens: int | None = None,
        reasoning_tokens: int | None = None,
        cost_usd: float | None = None,
        input_includes_cached: bool | None = None,
        status: Literal["ok", "failed"] = "ok",
        latency: float | None = None,
        **more: Unpack[UsageNames],
    ) -> None:
        """Append an accounting entry: what one request to a model, or one tool call, took. It is written when this returns.

        A cost that nobody gives is unknown, not 0. A value that is no figure is left out, and reported once; a name that is not known is
        kept in the entry's `details`.

        ```python
        import optree

        with optree.session("lead"), optree.llm(provider="openai", model="gpt-4o") as op:
            op.account({"prompt_tokens": 1200, "completion_tokens": 64, "prompt_tokens_details": {"cached_tokens": 1000}}, cost_usd=0.0021)
        print(op.node.accounting[0].tokens)
        ```

        Args:
            usage: A provider's usage object, or its whole response, as object or dict; the figures below win over it.
            *others: None: figures are given by name.
            input_tokens: Tokens sent, with those from the cache, unless the provider counts these beside them (Anthropic, Bedrock).
            output_tokens: Tokens received, with those of reasoning.
            cache_read_tokens: Tokens that came from the provider's cache.
            cache_write_tokens: Tokens written to it.
            reasoning_tokens: Tokens of the output that were reasoning.
            cost_usd: The cost in US dollars.
            input_includes_cached: Whether *input_tokens* includes cached tokens, where the provider's habit is not to be followed.
            status: ``ok`` or ``failed``; another word counts as failed.
            latency: Milliseconds; by default since the operation began.
            **more: Figures under providers' own names, such as ``prompt_tokens``.
        """
        try:
            ended, strange = (_OK, None) if status is _OK else attempt_status(status)
            entry = self._entry(ended, self._lasted() if latency is None else number(latency))
            tokens = None
            if not (more or others) and usage is reasoning_tokens is input_includes_cached is None and entry.type == "llm":
                beside = bool(counts_beside(entry.provider, entry.model))
                tokens = plain_tokens(input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, beside=beside)
            if tokens is not None and (cost_usd is None or (type(cost_usd) is float and is_possible_cost(cost_usd))):
                entry.tokens, entry.cost_usd = tokens, cost_usd
            else:
                named: dict[str, Any] = {**more}
                if not (input_tokens is output_tokens is cache_read_tokens is cache_write_tokens is reasoning_tokens is cost_usd is None):
                    named |= {
                        "input_tokens": input_tokens, "output_tokens": output_tokens, "cache_read_tokens": cache_read_tokens,
                        "cache_write_tokens": cache_write_tokens, "reasoning_tokens": reasoning_tokens, "cost_usd": cost_usd,
                    }  # fmt: skip
                for flaw in take_usage(self.builder.core, entry, (usage, *others), named, input_includes_cached):
                    self._warn(flaw)
            if strange is not None and self.builder.core.first_time(strange):
                self._warn(strange)
            if self.call is not None and self.bare.kind == "llm" and self.bare.ended_at is None and self.call.is_below(entry):
                return
            self._price(entry)
            stream = self.builder.core.stream
            held = stream.enter()
            try:
                self._add(entry)
            finally:
                stream.leave(held)
            if self.spending is not None and (self.builder.core.epoch or self.bare.ended_at is not None):  # else the op's end does it
                self.spending.commit(self)
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - as in `log`
            fault(self, error)

    def _warn(self, flaw: str) -> None:
        self.builder.core.stream.report(f"{self.path}: {flaw}")
        self.log(flaw, "WRN")

    def _entry(self, ended: Literal["ok", "failed"], latency: float, identity: str | None = None) -> AccountingEntry:
        core, node = self.builder.core, self.bare
        identity = identity or f"{node.op_id}#{next(core.numbers)}"
        if node.kind != "llm":
            return AccountingEntry(identity, core.now_ms(), "tool", ended, latency, command=node.name)
        return AccountingEntry(identity, core.now_ms(), "llm", ended, latency, *model_of(node))

    def _price(self, entry: AccountingEntry) -> None:
        """Give an entry the cost that it has; one of a recorded answer none, whatever the provider or the program says."""
        if self.replayed is None:
            self.builder.core.price(entry, self.builder.chain)
            return
        entry.replay_of, entry.cost_usd, entry.upstream_inference_cost_usd = self.replayed, 0.0, None

    def _add(self, entry: AccountingEntry) -> None:
        """Add an entry to the op and to the totals; within a step, which may be without the stream's lock."""
        node, builder = self.bare, self.builder
        try:
            with _ADDING:
                if apply.account(node, entry):
                    for session in builder.chain:
                        add_entry(session.totals, entry)
                else:
                    recount(builder.chain)
            if node.ended_at is not None:
                builder.core.touched.add(self.path)
            builder.core.stream.put(records.Accounted(self.path, entry))
        except BaseException:
            self._mend(entry)
            raise

    def _take_late(self, entry: AccountingEntry, usage: object) -> None:
        """Replace an entry that was made before a call's usage was known by one that has it; within a step."""
        updated = replace(entry)
        take_usage(self.builder.core, updated, (usage,), {}, None)
        self._price(updated)
        self._put_late(entry, updated)

    def _put_late(self, entry: AccountingEntry, updated: AccountingEntry) -> None:
        """Put an entry in the place of one that has its id; within a step."""

        def change(_put: object) -> None:
            self.bare.accounting = tuple(updated if known is entry else known for known in self.bare.accounting)
            if self.bare.ended_at is not None:
                self.builder.core.touched.add(self.path)
            self._mend(updated)

        self.builder.core.stream.step(change)

    def _tried_again(self, entry: AccountingEntry) -> None:
        """Note that an attempt which was accounted for as failed is made again."""
        stream = self.builder.core.stream
        held = stream.enter()
        try:
            entry.retried = True
            for session in self.builder.chain:
                take_retried(session.totals)
            stream.put(records.Accounted(self.path, entry))
        except BaseException:
            self._mend(entry)
            raise
        finally:
            stream.leave(held)

    def _mend(self, entry: AccountingEntry) -> None:
        """Record an entry whole of which an interrupt left a part, and count the totals anew."""
        if any(known is entry for known in self.bare.accounting):
            self.builder.core.stream.put(records.Accounted(self.path, entry))  # twice does no harm
        recount(self.builder.chain)

    @guarded
    def request(self, messages: list[Any] | None = None, /, **payload: Any) -> None:
        """Set what the operation sends; it is written when this returns.

        Args:
            messages: The messages of an LLM call, also by keyword. A message that was sent before is stored once.
            **payload: All else that is sent, such as ``temperature=0`` or a tool's arguments.
        """
        self.builder.set_request(self, payload, payload.pop("messages", messages))

    @guarded
    def response(self, payload: object) -> None:
        """Set what the operation got back: text, or anything that JSON can hold; it is written when this returns."""
        self.builder.set_response(self, payload)

    def end(self, status: Status = _OK, error: str | None = None, *, reasoning: str | None = None, **attributes: Any) -> None:
        """End the operation; its latency is measured. A second call does nothing. Blocks and decorators do this by themselves.

        An LLM or tool call that `account` was not called for gets its accounting entry now, with unknown cost.

        Args:
            status: ``ok``, ``failed``, ``cancelled`` or ``interrupted``.
            error: What went wrong.
            reasoning: The reasoning as a whole, where the provider gives it at the end.
            **attributes: What else is known by now, merged into what the operation began with.
        """
        try:
            core, node = self.builder.core, self.bare
            known: Status = "ok"
            message: str | None = None
            if status is not _OK or error is not None:
                known, strange = known_status(status)
                message = None if error is None and strange is None else core.text(error_text(strange if error is None else error))
            final = None if reasoning is None else core.said(as_text(reasoning))
            block = core.attributes(attributes) if attributes else UNSET
            stream = core.stream
            held = stream.enter()
            try:
                if self._returned is not None:
                    self._respond(self._returned)
                if node.ended_at is not None:
                    return
                latency = self._lasted()
                self._complete(known, message, latency)
                record = records.OpEnd(self.path, core.now_ms(), known, latency, message, final, block)
                try:
                    self._ended(record)
                except BaseException:  # an interrupt: what is begun is done whole
                    self._ended(record)
                    raise
            finally:
                stream.leave(held)
        except RecursionError:
            FAULTS.stack += 1
        except Exception as flaw:  # noqa: BLE001 - as in `log`
            fault(self, flaw)

    def _lasted(self) -> float:
        return (monotonic() - self._t0) * 1e3

    def _complete(self, status: Status, error: str | None, latency: float) -> None:
        """Record what comes before an end; within a step."""
        core, stream = self.builder.core, self.builder.core.stream
        if core.redacted:
            self.pending(stream.put, last=True)
        if self._streamed is not None:
            self._close_answer(status)
        if status != "ok" or all(entry.status == "failed" for entry in self.bare.accounting) or nodes.has_open_attempt(self.bare):
            self._account_end(status, error, latency)
        if stream.watched or self._awaited or not core.recorded or self._clean:  # a watcher gets an op's lines before its end
            self.pending(stream.put)

    def _respond(self, response: Payload) -> None:
        """Record a response; within a step. Twice does no harm."""
        core, node = self.builder.core, self.bare
        if core.stream.watched:  # a watcher gets an op's lines before what came back, as before its end
            self.pending(core.stream.put)
        node.response = response
        if node.ended_at is not None:
            core.touched.add(self.path)
        core.stream.put(records.Responded(self.path, core.now_ms(), response))
        self._returned = None

    def _ended(self, record: records.OpEnd) -> None:
        """Set all that an end sets; twice does no harm."""
        core, node = self.builder.core, self.bare
        apply.end_op(node, record)
        if self._logs is not None:
            self._place()
        core.ended[self.path], self._clean = node, self._clean or not core.recorded
        core.ops.pop(self.path, None)
        core.stream.put(record)

    def _close_answer(self, status: Status) -> None:
        """Record the text that was streamed as the response, where no other was given: in part, unless the op went well.

        Of an op that another process began the text here is not the whole.
        """
        node, stream = self.bare, self.builder.core.stream
        self.pending(stream.put)
        self._place()
        if self._delivered >= 0 and node.response is not None and node.response.partial:
            size = (node.response.size or 0) + self._withheld
            node.response = replace(node.response, partial=None if status == "ok" else True, size=size)
            stream.put(records.Responded(self.path, self.builder.core.now_ms(), node.response))

    def _account_end(self, status: Status, error: str | None, latency: float, identity: str | None = None) -> None:
        """Make sure that each attempt and each call is accounted for once, and as failed if it failed; *identity* is a new entry's."""
        node = self.bare
        failed = status not in ("ok", "cancelled")
        at_start = node.attributes.get(USAGE_AT_START) if node.kind == "llm" else None
        is_open = nodes.has_open_attempt(node)
        known = any(map(nodes.is_counted, node.accounting))
        if at_start is not None and (is_open or not known):  # else it is accounted for
            entry = self._entry("failed" if status != "ok" else "ok", latency, identity)
            entry.error = error
            take_usage(self.builder.core, entry, (at_start,), {}, None)
            self._price(entry)
            self._add(entry)
        elif node.accounting and not is_open:
            last = node.accounting[-1]
            if failed and last.status == "ok":
                try:
                    last.status = "failed"
                    last.error = last.error or error
                    for session in self.builder.chain:
                        add_failure(session.totals, last)
                    self.builder.core.stream.put(records.Accounted(self.path, last))
                except BaseException:
                    self._mend(last)
                    raise
        elif node.kind in ("llm", "tool"):
            entry = self._entry("failed" if status != "ok" else "ok", latency, identity)
            entry.error = error
            if node.kind == "tool":
                entry.characters_in = node.request.size if node.request else 0
                entry.characters_out = node.response.size if node.response else 0
            self._price(entry)
            self._add(entry)

    def _mark(self) -> None:
        if not self.builder.core.recorded:  # the op has ended: nothing but its node is kept
            self.settle()
            return
        try:
            self._clean = False
            self.builder.core.stream.defer(self)
        except BaseException:
            self._clean = True  # the next entry, or the op's end, marks it again
            raise


@guarded
def respond_at_end(op: Op, payload: object) -> None:
    """Take a response that is to be written with the end, which follows."""
    op._returned = op.builder.core.response(op.bare.kind, payload)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - of this module


@guarded
def account_open(op: Op, status: Status = "ok", error: str | None = None) -> None:
    """Enter a call whose figures are still to come: what is accounted for then replaces that."""
    identity = nodes.placeholder_of(op.bare.op_id)
    op._account_end(status, error, op._lasted(), identity)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - of this module


@guarded
def account_late(op: Op, usage: object, *, failed: bool = False) -> None:
    """Enter a call's usage, known after its op's end, in the entry that the end made; nothing if that has figures already."""
    entry = op.bare.accounting[-1] if op.bare.accounting else None
    if entry is None or nodes.is_placeholder(entry.id):
        op.account(usage, status="failed" if failed else "ok")
        return
    if entry.cost_usd is not None or (entry.tokens is not None and entry.tokens.total_tokens):
        return
    held = (stream := op.builder.core.stream).enter()
    try:
        op._take_late(entry, usage)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - of this module
    finally:
        stream.leave(held)


@guarded
def account_again(op: Op, entry: AccountingEntry, cost_usd: float, output_tokens: int = 0, **details: Any) -> None:
    """Give an entry of an op that may have ended its cost, and more *output_tokens* and details, which were not known before."""
    known: dict[str, Any] = {} if entry.details is UNSET else decode(entry.details)
    left = {name: value for name, value in known.items() if name not in (nodes.PARTIAL, PRICE)}  # it is told now
    told = replace(entry, cost_usd=cost_usd)
    if output_tokens:
        old = entry.tokens or Tokens()
        told.tokens = replace(old, output_tokens=old.output_tokens + output_tokens, total_tokens=old.total_tokens + output_tokens)
    if details or left != known:
        told.details = op.builder.core.attributes({**left, **details})
    op._put_late(entry, told)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - of this module


@guarded
def tried_again(op: Op, entry: AccountingEntry) -> None:
    """Mark an entry of a failed attempt that is made again: it is not counted as a call."""
    op._tried_again(entry)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - of this module
