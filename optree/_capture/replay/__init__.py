"""Recorded answers of models and tools, given to a program in place of new ones: `optree replay`, `optree fork`, `optree.testing.replay`.

A request gets the answer that the same request got when it was recorded, whichever order they come in; nothing is sent. A call of
a tool gets what the same call got, at the same place of the tree if there are several. What was not recorded is refused with an error that
says where it differs, or, behind the place where a run is forked, is sent or run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from itertools import takewhile
from typing import Any, Final, Literal, Protocol

from msgspec import UNSET

from optree._builder import Op, SessionTreeBuilder
from optree._capture.calls.bodies import JSON
from optree._capture.replay.answering import NOT_AGAIN, REALTIME, StoredReply, reply_of
from optree._capture.replay.recorded import (
    GivenCalls,
    Lost,
    RecordedCall,
    RecordedCalls,
    first_difference,
    found_in,
    is_answered,
    key_of_event,
    place_of,
    request_of,
    result_of,
    why_unusable,
)
from optree._interrupts import new_rlock
from optree._nodes import FROM_CACHE, REPLAY_OF, OperationNode, Pool
from optree._store.reading.runs import load_run
from optree._tracing.faults import fault
from optree._tracing.recorded import CURRENT_REPLAY, Recorded
from optree._tracing.runtime import RUNTIME, report_problem
from optree._tree import Tree
from optree._tree.walk import recount, walk_ops, walk_sessions
from optree._values import decode, is_object, raw
from optree.errors import OptreeError
from optree.redaction import redact

REPLAY, FORK_AT, TOOLS, GIVEN = "OPTREE_REPLAY", "OPTREE_FORK_AT", "OPTREE_REPLAY_TOOLS", "OPTREE_REPLAY_GIVEN"
"""Variables of the environment: a session of the run whose answers a program gets, or its file; the path in it from which on it gets new
ones; `live` or `recorded`; the directory by which the program's processes tell each other what was given."""
Tools = Literal["recorded", "live"]
"""Whether calls of tools get what was recorded, or run."""
COST, DIFFERENCE, RAN_FOR, WHY = "replay.cost_usd", "replay.difference", "replay.ran_for", "replay.ran_because"
"""Attributes of an op: what the answer cost when it was recorded, which is not paid again; why it got none; for a tool that ran again, the
recorded call's `<txn>:<path>`, and why its result could not be given."""
WITHOUT_CONTENT: Final = "calls are told by what is asked in them, which is not kept with content=False (OPTREE_CONTENT=off)"
NOT_THROUGH: Final = "recorded answers cannot be given through "
"""Beginning of a difference that is none of the request: its library."""
PROTOCOL, OVER_WEBSOCKET = "network.protocol.name", "websocket"
"""The attribute of an op that has how its answer came, where that was no HTTP request, and its value."""
HANDSHAKE: Final = "websocket"
"""The member of a request that is a websocket's handshake, which a model has refused: to which interface it was."""
_REFUSED: Final = int(HTTPStatus.BAD_REQUEST)
"""The status of a request that was not recorded: clients do not try again."""
_SAYS: Final = "optree replay: "
_WITH_LIVE_TOOLS: Final = "with --tools live, in a test tools='live', tools run"


class _Answering(Protocol):
    """What a program gets answers from."""

    def answer(self, op: Op, path: str, query: str = "", sent: Any = None, *, library: str = "") -> StoredReply | None:
        """Return what an op's request gets."""
        ...

    def tool(self, op: Op, *, is_stream: bool = False, is_remote: bool = False, runs: str = "") -> Recorded | None:
        """Return what a call of a tool gets."""
        ...


def is_cached(op: OperationNode) -> bool:
    """Tell whether an op's result came from a cache of the program's own framework."""
    return any(log.message == FROM_CACHE for log in op.logs)


class Replay:
    """The answers of recorded sessions, each given once."""

    def __init__(
        self,
        trees: Mapping[str, Tree],
        at: str | None = None,
        *,
        tools: Tools = "recorded",
        to_difference: bool = False,
        given: str | None = None,
    ) -> None:
        """Take the calls of sessions, by txn, that were begun before the op or turn *at* of the first; by default all.

        Raises `OptreeError`. *to_difference*: from the first call on that differs, all are made. *given*: the directory by which the
        processes of a program tell each other which answers were given.
        """
        txn = next(iter(trees))
        self._source = f"session {txn} has" if len(trees) == 1 else f"the {len(trees)} sessions of the run of {txn} have"
        self._is_fork, self._to_difference = at is not None, to_difference
        found = RecordedCalls(trees, None if at is None else (txn, at), tools=tools == "recorded")
        self.models, self.tools, self._around = found.models, found.tools, found.around
        """The calls that are left."""
        self._without_arguments, self._event_errors = found.without_arguments, found.event_errors
        self._gives_tools = tools == "recorded"
        self._taken = GivenCalls(given)
        self._elsewhere: list[RecordedCall] = []
        """Calls that other processes were given: they are given here too where no other is the same."""
        self._given: dict[tuple[int, str], RecordedCall] = {}
        self._called: set[tuple[int, str]] = set()
        self._roots: dict[int, SessionTreeBuilder] = {}
        self.differences: list[str] = []
        """Why calls got no answer, in the order they came."""
        self._lock = new_rlock()

    @property
    def left(self) -> list[RecordedCall]:
        """The calls of models and tools that the program has not made again, in the order they were begun."""
        return self.not_made(root.tree for root in list(self._roots.values()))

    def forks_at(self, point: RecordedCall) -> bool:
        """Tell whether a fork there gets all that was recorded ahead of it: answers over a websocket are given in no fork."""
        calls = sorted([*self.models, *self.tools], key=lambda call: call.node.started_at)
        ahead = takewhile(lambda call: call is not point, calls)
        return all(call.node.attributes.get(PROTOCOL) != OVER_WEBSOCKET for call in ahead)

    def breaks_off_at(self) -> RecordedCall | None:
        """Return the first call that a replay can give no answer; where each has one, the first that had not ended; None if there is none.

        A tool within which others were called runs anyway.
        """
        calls = sorted([*self.models, *self.tools], key=lambda call: call.node.started_at)
        return self.first_of(()) or next((call for call in calls if call.node.status in (None, "interrupted")), None)

    def first_of(self, missing: Iterable[RecordedCall], but: Container[str] = ()) -> RecordedCall | None:
        """Return the first of what is *missing* and what can be given no answer, *but* calls of these names; None if there is none."""
        unanswered = (call for call in (*self.models, *self.tools) if not (call.inside or call.name in but or is_answered(call)))
        return min((*missing, *unanswered), key=lambda call: call.node.started_at, default=None)

    def not_made(self, trees: Iterable[Tree]) -> list[RecordedCall]:
        """Return what is left but for the calls in some trees: those that got answers, and those that were made again."""
        left = {call.name: call for call in sorted([*self.models, *self.tools], key=lambda call: call.node.started_at)}
        made = list[tuple[OperationNode, Pool]]()
        for op, pool in [(op, tree.pool) for tree in trees for _, _, op in walk_ops(tree.session)]:
            known = op.attributes
            name = str(known.get(REPLAY_OF) or known.get(RAN_FOR) or "")
            if not name and op.request is not None and (op.kind == "llm" or (op.kind == "tool" and DIFFERENCE not in known)):
                made.append((op, pool))
            if (call := left.pop(name, None)) is not None and REPLAY_OF in known:
                for inside in call.inside:
                    left.pop(inside, None)
        for op, pool in made:
            others = [call for call in left.values() if call.node.kind == op.kind and (not is_cached(op) or is_cached(call.node))]
            same = found_in(others, request_of(op, pool))
            if same is not None:
                del left[same.name]
        return list(left.values())

    def watch(self, root: SessionTreeBuilder) -> None:
        """Take a session in which the program makes calls."""
        self._roots[id(root)] = root

    def answer(self, op: Op, path: str, query: str = "", sent: Any = None, *, library: str = "") -> StoredReply | None:
        """Return what an op's request gets, sent to *path* with *query*; None for one that is to be sent.

        *sent* has the members of the request as it is sent: the op's may be others, which the program has recorded.
        One through a *library* that no recorded answer can be given through is refused.
        """
        request = request_of(op.bare, op.builder.core.pool)
        with self._lock:
            name = self._known(op)
            call = self._given.get(name)  # its client tries again
            if call is None and self._is_live:
                return None
            if call is None:
                call = self._take(self.models, request)
            if call is not None:
                self._given[name] = call
            elif self._is_fork:
                self._warn(op, "sent")
                return None
            reply = None if call is None or library else reply_of(call, path, query, sent)
            why = None if reply is not None else self._why_refused(op, call, request, library)
            if why is not None:
                self.differences.append(f"{op.path}: {why}")
                if self._is_live:
                    return None
        if call is None or why is not None:
            said = f"{_SAYS}{why}"
            op.builder.set_op(op, **{DIFFERENCE: why})
            op.log(said, "ERR")
            return _failed(_REFUSED, said)
        op.replayed = call.name
        costs = [entry.cost_usd for entry in call.node.accounting if entry.cost_usd is not None]
        op.builder.set_op(op, **{REPLAY_OF: op.replayed}, **({COST: sum(costs)} if costs else {}))
        return reply

    def _why_refused(self, op: Op, call: RecordedCall | None, request: Any, library: str) -> str:
        if library:
            return f"{NOT_THROUGH}{library} in a fork: the request was not sent"
        return why_unusable(call) if call is not None else self._difference(op, request, self.models, "a model")

    def socket_session(self, *, realtime: bool) -> dict[str, Any] | None:
        """See `_Active.socket_session`: it is that of the first call that was recorded and is left."""
        if self._is_fork or self._to_difference:
            return None
        asked = next((call.request for call in self.models if _is_realtime(call)), None) if realtime else None
        return {name: value for name, value in asked.items() if name != "messages"} if is_object(asked) else {}

    def event_error(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """See `_Active.event_error`."""
        with self._lock:
            errors = self._event_errors.get(key_of_event(event))
            return errors.pop(0) if errors else None

    def refuses_socket(self) -> bool:
        """See `_Active.refuses_socket`."""
        return not self._is_live and is_object(asked := self.models[0].request if self.models else None) and HANDSHAKE in asked

    def tool(self, op: Op, *, is_stream: bool = False, is_remote: bool = False, runs: str = "") -> Recorded | None:
        """Return what a call of a tool gets, by its op; None for one that runs. Raises `OptreeError` for one that was not recorded so.

        One within which others were made runs, and these get their answers; unless it *is_remote*. *runs*: why it runs in any case.
        """
        if not self._gives_tools or op.bare.kind != "tool":
            return None
        request = request_of(op.bare, op.builder.core.pool)
        with self._lock:
            name = self._known(op)
            if name in self._called or self._is_live:
                return None
            self._called.add(name)
            call = self._take(self.tools, request, place_of(op))
            if call is not None:
                found = self._result(op, call, is_stream=is_stream, is_remote=is_remote, runs=runs)
            elif (runs and not self._is_fork) or op.bare.name in self._without_arguments:
                self._run_again(op, runs or f"the arguments of {op.bare.name} were not recorded")
                return None
            elif self._is_fork:
                self._warn(op, "run")
                return None
            else:
                same = [one for one in self.tools if one.node.name == op.bare.name]
                found = Lost(self._difference(op, request, same, f"the tool {op.bare.name}"))
            if isinstance(found, Lost):
                self._refuse(op, found.why)
                return None
            return found

    def _result(self, op: Op, call: RecordedCall, *, is_stream: bool, is_remote: bool, runs: str) -> Recorded | Lost | None:
        """Return what a call gets of the recorded one; None if it runs."""
        if runs:
            self._run_again(op, runs, **{RAN_FOR: call.name})
            return None
        if call.name in self._around or (call.inside and not is_remote):
            op.builder.set_op(op, **{RAN_FOR: call.name})
            return None
        found = result_of(call, is_stream=is_stream)
        if not isinstance(found, Lost):
            for inside in call.inside:
                self._drop(inside)
            op.builder.set_op(op, **{REPLAY_OF: call.name})
        elif found.runs:
            self._run_again(op, found.why, **{RAN_FOR: call.name})
            return None
        return found

    def _run_again(self, op: Op, why: str, **known: str) -> None:
        op.builder.set_op(op, **{WHY: why}, **known)
        op.log(f"{_SAYS}run again, {why}", "WRN")

    @property
    def _is_live(self) -> bool:
        return self._to_difference and bool(self.differences)

    def _known(self, op: Op) -> tuple[int, str]:
        """Return what names an op among those of all sessions."""
        root = op.builder
        while root.parent is not None:
            root = root.parent
        self.watch(root)
        return id(root), op.path

    def _take(self, calls: list[RecordedCall], request: Any, place: tuple[str, ...] | None = None) -> RecordedCall | None:
        """Take the first of these *calls* that is the same from what is left, if there is one: no other process's, if one is not."""
        while (call := found_in(calls, request, place)) is not None:
            calls.remove(call)
            if self._taken.add(call.name):
                return call
            self._elsewhere.append(call)
        if (call := found_in(self._elsewhere, request, place)) is not None:
            self._elsewhere.remove(call)
        return call

    def _drop(self, name: str) -> None:
        """Take a call from what is left."""
        self._taken.add(name)
        for calls in (self.models, self.tools):
            calls[:] = [one for one in calls if one.name != name]

    def _refuse(self, op: Op, why: str) -> None:
        """Refuse a call of a tool; not where the run goes on with new ones."""
        self.differences.append(f"{op.path}: {why}")
        if self._is_live:
            return
        op.builder.set_op(op, **{DIFFERENCE: why})
        raise OptreeError(f"{_SAYS}{why}; {_WITH_LIVE_TOOLS}")

    def _warn(self, op: Op, done: str) -> None:
        if (first := next((call for call in (*self.models, *self.tools) if call not in self._taken), None)) is not None:
            op.log(f"{done}, though {first}, ahead of the fork, was not asked for yet", "WRN")

    def _difference(self, op: Op, request: Any, left: list[RecordedCall], what: str) -> str:
        """Say what differs from the first call that is left, in other processes too, at the same place if one is."""
        left = [call for call in left if call not in self._taken]
        if not left:
            return f"{self._source} no more calls of {what}"
        place = place_of(op)
        first = next((call for call in left if call.place == place), left[0])
        return f"not as recorded at {first}: {first_difference(redact(first.request), redact(request))}"


def of_environment() -> Replay | None:
    """Return the replay that the environment asks for. Raises what `optree.load` raises."""
    source = os.environ.get(REPLAY)
    if not source:
        return None
    trees = {txn: loaded.tree for txn, loaded in load_run(source, RUNTIME.directory()).items()}
    tools: Tools = "live" if os.environ.get(TOOLS) == "live" else "recorded"
    return Replay(trees, os.environ.get(FORK_AT) or None, tools=tools, given=os.environ.get(GIVEN) or None)


class _Refusing:
    """Refuses all, where what the environment names cannot be read."""

    def __init__(self, why: str) -> None:
        self._why = f"{_SAYS}{why}"

    def answer(self, op: Op, path: str, query: str = "", sent: Any = None, *, library: str = "") -> StoredReply | None:  # noqa: ARG002 - as in `Replay`
        return _failed(_REFUSED, self._why)

    def tool(self, op: Op, *, is_stream: bool = False, is_remote: bool = False, runs: str = "") -> Recorded | None:  # noqa: ARG002 - as above
        if op.bare.kind == "tool" and not runs:
            raise OptreeError(self._why)
        return None


class _Active:
    """The replay of this process."""

    def __init__(self) -> None:
        self._lock = new_rlock()
        self._found: _Answering | None = None
        self._is_known = False
        self.asked: set[str] | None = None
        """Ids of ops of which a request was captured that a recorded answer can be given to; None if nobody wants to know."""
        self.set(None)

    def _replay(self, op: Op | None = None) -> _Answering | None:
        if not self._is_known:
            with self._lock:
                if not self._is_known:
                    self._found = _begun()
                    self._is_known = True
        return self._found if self._found is None or op is None or op.builder.core.content else _Refusing(WITHOUT_CONTENT)

    def answer(self, op: Op, path: str = "", query: str = "", sent: Any = None, *, library: str = "") -> StoredReply | None:
        """Return what an op's request gets in place of being sent; None if it is to be sent."""
        found = self._replay(op)
        try:
            if self.asked is not None and not library:
                self.asked.add(op.id)
            return None if found is None else found.answer(op, path, query, sent, library=library)
        except Exception as error:  # noqa: BLE001 - the request must not be sent for it
            return _failed(_REFUSED, _differs(found, op, error))

    def tool(self, op: Op, *, is_stream: bool = False, is_remote: bool = False, runs: str = "") -> Recorded | None:
        """Return what a call of a tool gets in place of a run; None if it runs. Raises `OptreeError` for one that may not run."""
        found = self._replay(op)
        try:
            return None if found is None else found.tool(op, is_stream=is_stream, is_remote=is_remote, runs=runs)
        except OptreeError:
            raise
        except Exception as error:
            raise OptreeError(_differs(found, op, error)) from error

    def socket_session(self, *, realtime: bool) -> dict[str, Any] | None:
        """Return the session with which a stand-in for a model behind a websocket begins; None where the program connects to that."""
        found = self._replay()
        return found.socket_session(realtime=realtime) if isinstance(found, Replay) else None

    def event_error(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Return the error that an event to a stand-in gets that asks for no response; None if the stand-in takes it."""
        found = self._replay()
        return found.event_error(event) if isinstance(found, Replay) else None

    def refuses_socket(self) -> bool:
        """Tell whether a connection to a model gets what was recorded of one: that it was refused, ahead of all other calls."""
        found = self._replay()
        return isinstance(found, Replay) and found.refuses_socket()

    def refusal(self, op: Op, library: str) -> Callable[[], None] | None:
        """Return what raises in place of sending an op's request through a *library* that no recorded answer can be given through.

        None if it is to be sent.
        """
        if self.answer(op, "", "", library=library) is None:
            return None
        why = op.bare.attributes.get(DIFFERENCE) or "what is recorded cannot be read"
        return partial(_refuse, f"{_SAYS}{why}")

    def sends(self, path: str) -> None:
        """Say, in a replay, that a request is sent which asks no model."""
        if self._replay() is not None:
            report_problem(f"a request to {path} asks no model: it is sent, in a replay too")

    def set(self, replay: Replay | None) -> None:
        """Use a replay from now on, or what the environment says."""
        with self._lock:
            self._found, self._is_known = replay, replay is not None
            CURRENT_REPLAY.answer_tool = self.tool if replay is not None or os.environ.get(REPLAY) else None


def _differs(replay: _Answering | None, op: Op, error: Exception) -> str:
    """Note that a call gets nothing for a fault of ours, or since the recording is damaged; returns the words that it gets."""
    fault(error)
    why = f"what is recorded cannot be given: {type(error).__name__}: {error}"
    if isinstance(replay, Replay):
        replay.differences.append(f"{op.path}: {why}")
    op.builder.set_op(op, **{DIFFERENCE: why})
    return f"{_SAYS}{why}"


class NotSentError(OptreeError, ConnectionError):
    """A request was refused in place of being sent."""


def _refuse(why: str) -> None:
    raise NotSentError(why)


def _begun() -> _Answering | None:
    try:
        return of_environment()
    except (OptreeError, OSError) as error:
        return _Refusing(str(error))
    except Exception as error:  # noqa: BLE001 - a recording of a shape that nobody has thought of
        fault(error)
        return _Refusing(f"what is recorded cannot be read: {type(error).__name__}: {error}")


ACTIVE: Final = _Active()


def is_replay(tree: Tree) -> bool:
    """Tell whether a session is a replay or a fork of another."""
    told = (REPLAY_OF, RAN_FOR, WHY, DIFFERENCE)
    return any(name in op.attributes for _, _, op in walk_ops(tree.session) for name in told)


def as_recorded(tree: Tree) -> Tree:
    """Return a tree, which is changed in place, as if no answer in it had come from a recording; and without what names this machine."""
    for session in walk_sessions(tree.session):
        told = {name: one for name, one in session.attributes.items() if name != "ingress"}
        session.attributes_json = raw(told) if told else UNSET
    for _, _, op in walk_ops(tree.session):
        known = op.attributes
        if not any(name in known for name in (REPLAY_OF, RAN_FOR, WHY)):
            continue
        told = {name: one for name, one in known.items() if name not in (REPLAY_OF, COST, RAN_FOR, WHY)}
        op.attributes_json = raw(told) if told else UNSET
        op.logs = tuple(line for line in op.logs if not line.message.startswith(_SAYS))
        cost: float | None = known.get(COST)
        for entry in op.accounting:
            if entry.replay_of is not None:  # the sum of several is the first one's
                entry.replay_of, entry.cost_usd, cost = None, cost, None if cost is None else 0.0
    recount(list(walk_sessions(tree.session)))
    return tree


def _is_realtime(call: RecordedCall) -> bool:
    """Tell whether a call is of a realtime interface: by its answer, or, where it failed, by the session that it was made in."""
    response = call.node.response
    answer = decode(response.payload) if response is not None else None
    return (is_object(answer) and answer.get("object") == REALTIME) or (is_object(call.request) and call.request.get("type") == "realtime")


def _failed(status: int, said: str) -> StoredReply:
    body = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "code": status, "message": said}}).encode()
    return StoredReply(status, {"content-type": JSON, **NOT_AGAIN}, body)
