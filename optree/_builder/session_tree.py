"""`SessionTreeBuilder`: builds one session of the tree. Child sessions have builders of their own that share stream and totals.

Nothing here raises into the traced program, `CycleError` with ``cycles="block"`` apart: each method takes what it is given, and a step
that fails is counted and reported once (`failures`). Every structural method returns after its record is with the operating system.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from time import monotonic
from typing import Any, get_args

from msgspec import UNSET, Raw, UnsetType

from optree import _clock as clock
from optree import _ids as ids
from optree import _records as r
from optree._builder.addressed import ByAddress
from optree._builder.core import Core, Cycles
from optree._builder.entries import Put
from optree._builder.figures import PROMPT_CHARACTERS, error_text, known_status, last_said
from optree._builder.guard import FAULTS, UNRECORDED, fault, guarded, passed
from optree._builder.handles import Op, account_open
from optree._builder.stream import Step, Stream
from optree._builder.turns import Turn
from optree._nodes import CONTENT_RECORDED, OpKind, Payload, SessionNode, Status
from optree._tree import apply
from optree._tree.fold import Tree
from optree._tree.totals import add_op
from optree._tree.walk import recount, to_plain
from optree._values import cut, decode, text
from optree.errors import CycleError

ARROW = "->"
_KINDS = get_args(OpKind)
_CATCH_UP_SECONDS = 0.1
"""For how long the end of a turn or session waits until what has come of answers in it is read."""


class SessionTreeBuilder(ByAddress):
    """Builds the tree of one session by explicit calls, without context variables; a sub-agent's session has a builder of its own.

    An operation is given by its `Op`, its id or its path. No method raises, but for `attach_child_session` with ``cycles="block"``.

    ```python
    from optree import SessionTreeBuilder, format_tree

    builder = SessionTreeBuilder("lead")
    turn = builder.begin_turn(user="What is new?")
    op = builder.begin_op("llm", "openai:gpt-4o", turn=turn)
    builder.append_accounting(op, input_tokens=10, output_tokens=2, cost_usd=0.0001)
    builder.end_session()  # ends the operation and the turn too
    print(format_tree(builder))
    ```
    """

    def __init__(
        self,
        agent: str,
        *,
        txn: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        stream: Stream | None = None,
        now: clock.Clock = clock.wall,
        cycles: Cycles = "mark",
        redacted: bool = False,
        content: bool = True,
        at: float | None = None,
    ) -> None:
        try:
            name = txn if txn is None or isinstance(txn, str) else text(txn)  # pyright: ignore[reportUnnecessaryIsInstance] - callers may err
            core = Core(name or ids.new_txn(), stream, now=now, cycles=cycles, redacted=redacted, content=content)
            agent = core.text(text(agent))
            node = apply.new_session(core.txn, "", ids.trace_id(core.txn), agent, agent, core.time(at))
            self._start(core, node, None)
            self._begin(attributes)
        except RecursionError:
            FAULTS.stack += 1
            self.__class__, self.__dict__ = UNRECORDED["builder"].__class__, UNRECORDED["builder"].__dict__
        except Exception as error:  # noqa: BLE001 - as in `guarded`, which cannot give another object
            passed(error)
            FAULTS.add(error)
            self.__class__, self.__dict__ = UNRECORDED["builder"].__class__, UNRECORDED["builder"].__dict__

    @classmethod
    def over(cls, core: Core, node: SessionNode, parent: SessionTreeBuilder | None = None) -> SessionTreeBuilder:
        """Return a builder that goes on with a session that exists; nothing is recorded by that."""
        builder = cls.__new__(cls)
        builder._start(core, node, parent)  # noqa: SLF001 - a second constructor
        return builder

    def _start(self, core: Core, node: SessionNode, parent: SessionTreeBuilder | None) -> None:
        self.core = core
        self.node = node
        self.whole = Tree(node, core.pool)
        """The live tree from this session down, perhaps without its newest entries."""
        self.parent = parent
        self.path = node.path
        self.current_turn: Turn | None = None
        """The turn that began last and is open; ops that are begun without a turn go there."""
        self._final_report: Raw | UnsetType = UNSET
        self._taken = {turn.index for turn in node.turns}
        own = range(ids.WRITER_SPAN + 1)  # others' do not count: turns of processes that joined have ranges of theirs
        self._turn_numbers: Iterator[int] = count(max(filter(own.__contains__, self._taken), default=0) + 1)
        self._epoch = core.epoch
        core.builders[node.path] = self
        self.chain: list[SessionNode] = [node, *(parent.chain if parent else [])]
        """This session and all above it: whose totals an entry adds to."""

    # Session

    @property
    def txn(self) -> str:
        """The txn of the root session: the name of the whole tree on disk."""
        return self.core.txn

    @property
    def running(self) -> bool:
        """True until the session ends."""
        return self.node.ended_at is None

    @property
    def tree(self) -> Tree:
        """The live tree from this session down, by reference; it goes on growing."""
        try:
            self.core.settle()
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - as in `guarded`
            fault(self, error)
        return self.whole

    def ancestry(self) -> list[str]:
        """Return the agents from the root to this session's."""
        try:
            return self.node.call_path.split(ARROW)
        except RecursionError:
            FAULTS.stack += 1
        return [self.node.agent_id]

    @guarded
    def set_title(self, title: str | None = None, *, status: str | None = None, attributes: Mapping[str, Any] | None = None) -> None:
        """Set the session's title, its latest status, or more attributes; None leaves them as they are."""
        known = None if title is None else self._prompt(title)
        latest = None if status is None else self._prompt(status)
        block = self.core.attributes(attributes)

        def change(put: Put) -> None:
            self.node.session_title = self.node.session_title if known is None else known
            self.node.latest_status = self.node.latest_status if latest is None else latest
            self._late_session()
            self.node.attributes_json = apply.merged(self.node.attributes_json, block)
            put(r.SessionSet(self.path, self.core.now_ms(), self.node.session_title, self.node.latest_status, block))

        self.core.stream.step(change)

    @guarded
    def append_message(
        self, message: Any, *, message_id: str | None = None, substance: str | None = None, cause: str | Sequence[str] = ()
    ) -> None:
        """Append a message to the transcript; see `Session.message`."""
        entry = self.core.message(message, message_id, substance, cause)
        held = self.node.messages

        def change(put: Put) -> None:
            if not any(last is entry for last in held[-1:]):
                held.append(entry)
            self._late_session()
            put(r.MessageAdded(self.path, len(held) - 1, entry))

        self.core.stream.step(change)

    @guarded
    def end_session(self, status: Status = "ok", error: str | None = None, *, final_report: Any = None) -> None:
        """End the session, and the turns and operations still open in it. A second call does nothing."""
        try:
            self._catch_up(self.path)
        finally:  # an interrupt there keeps no session open
            self._end_session(status, error, final_report)

    @guarded
    def _end_session(self, status: Status, error: str | None, final_report: Any = None) -> None:
        """End the session, with what is read by now."""
        known, message = self._outcome(status, error)
        report = self._final_report if final_report is None else self.core.report(final_report)
        ends: list[r.SessionEnd] = []

        def change(put: Put) -> None:
            if self.node.ended_at is not None and not ends:
                return
            self._close_open(known)
            ends.append(r.SessionEnd(self.path, self.core.now_ms(), known, message, report))
            apply.end_session(self.node, ends[0])
            put(ends[0])

        try:
            self.core.stream.step(change)
            self._tell(ends)
        except BaseException:  # an interrupt: listeners are told of the end all the same, if need be twice
            self._tell(ends)
            raise

    def _tell(self, ends: list[r.SessionEnd]) -> None:
        for listener in self.core.listeners if ends else ():
            listener(self.path)

    @guarded
    def set_final_report(self, report: Any, *, with_end: bool = False) -> None:
        """Set what the session gives as its result, as JSON: recorded at once, or *with_end* with the session's end, which follows."""
        encoded = self._final_report = self.core.report(report)
        if with_end:
            return

        def change(put: Put) -> None:
            self.node.final_report = encoded
            self._late_session()
            put(r.SessionSet(self.path, self.core.now_ms(), final_report=encoded))

        self.core.stream.step(change)

    def _begin(self, attributes: Mapping[str, Any] | None) -> None:
        with Step(self.core.stream) as put:
            node = self.node
            if not (self.core.content or node.path):
                attributes = {**(attributes or {}), CONTENT_RECORDED: False}
            node.attributes_json = self.core.attributes(attributes)
            put(r.SessionBegin(self.path, node.started_at, node.agent_id, node.call_path, node.attributes_json))

    # Turns

    @guarded(instead="turn")
    def begin_turn(
        self,
        index: int | None = None,
        *,
        user: str | None = None,
        system: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        implicit: bool = False,
        at: float | None = None,
    ) -> Turn:
        """Begin a turn, with the *user*'s and the *system*'s prompt; numbered next, or as *index* if that is free (0: the system's).

        *at*: when it began, in epoch milliseconds, if not now; so it is of all methods that take one.
        """
        core = self.core
        epoch = core.epoch  # as the number is drawn: a handler may fork behind that
        prompts = {key: self._said(value) for key, value in (("system", system), ("user", user)) if value is not None}
        block = core.attributes(attributes)
        held = core.stream.enter()
        try:
            number = self._turn_number(index)
            path = f"{self.path}.{number}" if self.path else str(number)
            record = r.TurnBegin(path, core.time(at), prompts or None, block)
            try:
                return self._turn(record, epoch, implicit=implicit)
            except BaseException:  # an interrupt: what is begun is done whole
                self._turn(record, epoch, implicit=implicit)
                raise
        finally:
            core.stream.leave(held)

    @guarded
    def set_assistant(self, turn: Turn, content: object) -> None:
        """Set what the assistant said in a turn; see `Turn.assistant`."""
        prompt = self._said(content)

        def change(put: Put) -> None:
            turn.node.assistant = {"content": prompt}
            if turn.node.ended_at is not None:
                self.core.touched.add(f"{turn.path}.1")
            put(r.TurnSet(turn.path, turn.node.assistant))

        self.core.stream.step(change)

    @guarded
    def end_turn(self, turn: Turn, status: Status = "ok", error: str | None = None) -> None:
        """End a turn, and the operations still open in it: as ``cancelled`` if the turn is ``ok``, else as the turn."""
        try:
            self._catch_up(turn.path)
        finally:  # an interrupt there keeps no turn open
            self._end_turn(turn, status, error)

    @guarded
    def _end_turn(self, turn: Turn, status: Status, error: str | None = None) -> None:
        """End a turn, with what is read by now."""
        known, message = self._outcome(status, error)
        ends: list[r.TurnEnd] = []

        def change(put: Put) -> None:
            if turn.node.ended_at is not None and not ends:
                return
            left: Status = "cancelled" if known == "ok" else known
            for op in turn.node.ops:
                if op.child_session is not None and op.child_session.ended_at is None and op.path in self.core.builders:
                    self.core.builders[op.path].end_session(left, message)
                if (handle := self.core.ops.get(op.path)) is not None:
                    account_open(handle, left, message)  # its call may go on
                    handle.end(left, message)
            if turn.node.assistant is None and (last := last_said(turn.node)) is not None:
                turn.node.assistant = {"content": self._said(last)}
                put(r.TurnSet(turn.path, turn.node.assistant))
            ends.append(r.TurnEnd(turn.path, self.core.now_ms(), known, message))
            apply.end_turn(turn.node, ends[0])
            put(ends[0])
            if self.current_turn is turn:
                self.current_turn = None

        self.core.stream.step(change)

    def _turn(self, record: r.TurnBegin, epoch: int, *, implicit: bool) -> Turn:
        """Add a turn, unless it is there."""
        known = self.node.turns[-1:]
        node = known[0] if known and known[0].path == record.path else apply.begin_turn(self.node, record)
        self.current_turn = Turn(self, node, 1, implicit=implicit, epoch=epoch)
        self._late_session()
        self.core.stream.put(record)
        return self.current_turn

    # Ops

    def begin_op(
        self,
        kind: OpKind,
        name: str,
        *,
        turn: Turn | None = None,
        parent: Op | None = None,
        attributes: Mapping[str, Any] | None = None,
        at: float | None = None,
        request: Mapping[str, Any] | None = None,
    ) -> Op:
        """Begin an operation.

        Args:
            kind: ``llm``, ``tool``, ``session`` (a sub-agent's run) or ``system``.
            name: The tool's name, the agent's, or ``provider:model``.
            turn: The turn that it belongs to; by default the one that is open, else one that is begun for it.
            parent: An operation of the same turn that this one is part of.
            attributes: What else is known of it.
            at: When it began, in epoch milliseconds; by default now.
            request: What it sends, as `Op.request` takes it by name; it is written with the begin.
        """
        try:
            core = self.core
            sent = None if request is None else core.short_request("llm" if kind == "llm" else "tool", request)
            label = core.text(name if type(name) is str and name.isascii() else text(name))
            known: OpKind = kind if type(kind) is str and kind in _KINDS else "system"
            block = UNSET if attributes is None else core.attributes(attributes)
            chosen = turn if type(turn) is Turn else None
            held = core.stream.enter()
            try:
                where = chosen or self.current_turn or self.begin_turn(implicit=True)
                path = f"{where.path}.{where.next_op()}"
                above = parent.path if type(parent) is Op and parent.turn is where else None
                record = r.OpBegin(path, core.now_ms() if at is None else core.time(at), known, label, above, block)
                if where.node.ended_at is not None:
                    core.touched.add(path)
                try:
                    begin = Op.of if at is None else Op.of_ended
                    op = core.ops[path] = begin(self, where, apply.begin_op(core.txn, where.node, record))
                    for session in self.chain if record.kind == "tool" else ():
                        add_op(session.totals, record.kind)
                    core.stream.put(record)
                    if sent is not None:
                        op.bare.request = sent
                        core.stream.put(r.Requested(path, core.now_ms(), sent))
                except BaseException:
                    self._mend_op(where, record, sent)
                    raise
            finally:
                core.stream.leave(held)
            if request is not None and sent is None:
                self.set_request(op, request)
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - as in `guarded`, which costs a call more
            fault(self, error)
        else:
            return op
        return UNRECORDED["op"]  # type: ignore[no-any-return]

    def _mend_op(self, where: Turn, record: r.OpBegin, request: Payload | None) -> None:
        """Record an op whole of which an interrupt left a part, and count the totals anew."""
        core = self.core
        node = next((op for op in reversed(where.node.ops) if op.path == record.path), None)
        if node is not None:
            core.ops.setdefault(node.path, Op.of(self, where, node))
            core.stream.put(record)  # twice does no harm
            if request is not None:
                node.request = request
                core.stream.put(r.Requested(node.path, record.ts, request))
        recount(self.chain)

    # Child sessions

    @guarded(instead="builder")
    def attach_child_session(
        self, op: Op | str, agent: str, *, attributes: Mapping[str, Any] | None = None, at: float | None = None
    ) -> SessionTreeBuilder:
        """Begin a sub-agent's session inside an operation of kind ``session``, and return its builder.

        An agent that is its own ancestor is marked (attribute ``cycle``, and a warning on the operation); of one that began in the past,
        which *at* says, only by the attribute.

        Raises:
            CycleError: It is its own ancestor, and ``cycles="block"`` was asked for.
        """
        agent, epoch = self.core.text(text(agent)), self.core.epoch
        host = self._op(op) or self.begin_op("session", agent)
        cycle, call_path = agent in self.ancestry(), f"{self.node.call_path}{ARROW}{agent}"
        if cycle and at is None and self.core.cycles == "block":
            raise CycleError(f"agent {agent!r} would call itself: {call_path}; break the cycle, or use cycles='mark' to record it")
        node = apply.new_session(self.core.txn, host.path, self.node.trace_id, agent, call_path, self.core.time(at))
        node.parent_txn_id = self.node.id
        host.bare.child_session = node
        child = SessionTreeBuilder.over(self.core, node, self)
        child._epoch = epoch if self.core.is_own(host.path) else -1  # noqa: SLF001 - of the same class; what a handler forks may be within it
        ingress = {
            "source": "sub-agent",
            "subAgent": {"parentTraceId": node.trace_id, "parentCallPath": self.node.call_path, "toolName": agent},
        }
        block = self.core.attributes(attributes)
        own: dict[str, Any] = {} if block is UNSET else decode(block)
        child._begin({"ingress": ingress, **own, **({"cycle": True} if cycle else {})})  # noqa: SLF001 - of the same class
        if cycle and at is None:
            host.log(f"agent {agent} calls itself: {node.call_path}", "WRN")
        return child

    def snapshot(self) -> dict[str, Any]:
        """Return the session and all below it as plain dicts and lists, in the form of a saved file."""
        try:
            return to_plain(self.tree)
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - as in `guarded`
            fault(self, error)
        return {}

    def _prompt(self, value: object) -> str:
        return cut(self.core.text(text(value)), PROMPT_CHARACTERS)

    def _said(self, value: object) -> str:
        return cut(self.core.said(text(value)), PROMPT_CHARACTERS)

    def _outcome(self, status: object, error: object) -> tuple[Status, str | None]:
        known, strange = known_status(status)
        message = strange if error is None else error
        return known, None if message is None else self.core.text(error_text(message))

    def _turn_number(self, index: int | None) -> int:
        """Return the number of a new turn: *index* if it is one and free, else the next free one."""
        if self._epoch != self.core.epoch:
            self._epoch = self.core.epoch
            self._turn_numbers = self.core.numbers_in(self.path)
        number = index if type(index) is int and index >= 0 and index not in self._taken else next(self._turn_numbers)
        while number in self._taken:
            number = next(self._turn_numbers)
        self._taken.add(number)
        return number

    def _close_open(self, status: Status) -> None:
        for turn in self.node.turns:
            if turn.ended_at is None:
                handle = self.current_turn
                self._end_turn(handle if handle is not None and handle.node is turn else Turn(self, turn, 1), status)

    @guarded
    def _catch_up(self, path: str) -> None:
        """Have the answers that are under way below *path* read as far as they have come: an end of that ends their ops."""
        if not self.core.unread or self.core.stream.is_in_step:  # then it is for the end around this one
            return
        until = monotonic() + _CATCH_UP_SECONDS
        for op, reader in self.core.unread.copy().items():
            read = reader() if not path or op.startswith(f"{path}.") else None
            if read is not None:
                read(until)
