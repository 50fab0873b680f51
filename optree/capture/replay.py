"""Recorded answers, given to a program in place of a provider's: `optree replay`, `optree fork` and `optree.testing.replay`.

A request gets the answer that the same request got when the session was recorded, whichever order they come in; nothing is sent. A request
that was not recorded is answered with an error that says where it differs, or, behind the place where a run is forked, is sent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from optree.builder import Op
from optree.capture.answering import body_of
from optree.console import resolved
from optree.errors import OptreeError
from optree.interrupts import new_rlock
from optree.nodes import REPLAY_OF, OperationNode, Pool
from optree.redaction import redact
from optree.store.recovery import load
from optree.tracing.faults import fault
from optree.tracing.runtime import RUNTIME
from optree.tree import Tree
from optree.tree.path import Path
from optree.tree.walk import walk_ops
from optree.values import decode, is_list, is_object, truncated

REPLAY, FORK_AT = "OPTREE_REPLAY", "OPTREE_FORK_AT"
"""Variables of the environment: the session whose answers a program gets, and the path from which on it gets its provider's."""
COST, DIFFERENCE = "replay.cost_usd", "replay.difference"
"""Attributes of an op: what the answer cost when it was recorded, which is not paid again, and why it got none."""
_SHOWN: Final = 80
STATUS_CODE: Final = "http.response.status_code"
"""The attribute that has the HTTP status of an op's last attempt, if one of them was refused."""
_REFUSED: Final = int(HTTPStatus.BAD_REQUEST)
"""The status of a request that was not recorded: clients do not try again."""
_JSON: Final = "application/json"


class StoredReply(NamedTuple):
    """An answer as it goes over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes


_Answering = Callable[[Op, str, str], StoredReply | None]


class _Recorded:
    """A call of a model that was recorded."""

    def __init__(self, node: OperationNode, request: Any) -> None:
        self.node, self.request, self.key = node, request, _key(request)

    @cached_property
    def redacted_key(self) -> str:
        """The key of the request without credentials."""
        return _key(redact(_said(self.request)))


class Replay:
    """The answers of a recorded session, each given once."""

    def __init__(self, txn: str, tree: Tree, at: str | None = None) -> None:
        """Take the calls of a session that were begun before the op or turn with the path *at*; by default all. Raises `OptreeError`."""
        self._txn, self._is_fork = txn, at is not None
        ops = sorted((op for _, _, op in walk_ops(tree.session)), key=lambda op: op.started_at)
        if at is not None:
            end = Path.parse(at).parts
            first = next((place for place, op in enumerate(ops) if Path.parse(op.path).parts[: len(end)] == end), None)
            if first is None:
                raise OptreeError(f"session {txn} has no op {at}: optree tree {txn} shows the paths")
            ops = ops[:first]
        self._left = [_Recorded(op, _request(op, tree.pool)) for op in ops if op.kind == "llm" and op.request is not None]
        self._given: dict[tuple[str, str], _Recorded] = {}
        self.differences: list[str] = []
        """Why requests got no answer, in the order they came."""
        self._lock = new_rlock()

    @property
    def left(self) -> list[str]:
        """The paths of the calls whose answers nobody asked for."""
        return [call.node.path for call in self._left]

    def answer(self, op: Op, path: str, query: str = "") -> StoredReply | None:
        """Return what an op's request gets, sent to *path* with *query*; None for one that is to be sent."""
        request = _request(op.bare, op.builder.core.pool)
        with self._lock:
            name = (op.builder.core.txn, op.path)
            call = self._given.get(name)  # its client tries again
            if call is None:
                key = _key(request)
                call = next((one for one in self._left if one.key == key), None) or self._without_credentials(request)
            if call is not None:
                self._given[name] = call
                if call in self._left:
                    self._left.remove(call)
            elif self._is_fork:
                if self._left:
                    op.log(f"sent, though {self._left[0].node.path} of {self._txn}, ahead of the fork, was not asked for yet", "WRN")
                return None
            why = _unusable(call.node) if call is not None else self._difference(request)
            if why is not None:
                self.differences.append(f"{op.path}: {why}")
        if call is None or why is not None:
            said = f"optree replay: {why}"
            op.builder.set_op(op, **{DIFFERENCE: why})
            op.log(said, "ERR")
            return _failed(_REFUSED, said)
        op.replayed = f"{self._txn}:{call.node.path}"
        costs = [entry.cost_usd for entry in call.node.accounting if entry.cost_usd is not None]
        op.builder.set_op(op, **{REPLAY_OF: op.replayed}, **({COST: sum(costs)} if any(costs) else {}))
        return _recorded(call, path, query)

    def _without_credentials(self, request: Any) -> _Recorded | None:
        """Return the call that is the same but for credentials, which a file that was exported does not have."""
        key = _key(redact(_said(request)))
        return next((one for one in self._left if one.redacted_key == key), None)

    def _difference(self, request: Any) -> str:
        if not self._left:
            return f"session {self._txn} has no more calls of a model"
        first = self._left[0]
        return f"not as recorded at {first.node.path} of {self._txn}: {_first_difference(redact(first.request), redact(request))}"


def of_environment() -> Replay | None:
    """Return the replay that the environment asks for. Raises what `optree.load` raises."""
    source = os.environ.get(REPLAY)
    if not source:
        return None
    loaded = load(source, RUNTIME.directory())
    return Replay(loaded.txn, loaded.tree, os.environ.get(FORK_AT) or None)


class _Active:
    """The replay of this process."""

    def __init__(self) -> None:
        self._lock = new_rlock()
        self._found: _Answering | None = None
        self._is_known = False

    def answer(self, op: Op, path: str, query: str) -> StoredReply | None:
        """Return what an op's request gets in place of being sent; None if it is to be sent."""
        if not self._is_known:
            with self._lock:
                if not self._is_known:
                    self._found = _begun()
                    self._is_known = True
        try:
            return None if self._found is None else self._found(op, path, query)
        except Exception as error:  # noqa: BLE001 - the request must not be sent for it
            fault(error)
            return _failed(_REFUSED, f"optree replay: {type(error).__name__}: {error}")

    def refusal(self, op: Op, library: str) -> Callable[[], None] | None:
        """Return what raises in place of sending an op's request through a *library* that no recorded answer can be given through.

        None if it is to be sent.
        """
        if self.answer(op, "", "") is None:
            return None
        why = f"recorded answers cannot be given through {library}, only through httpx: the request was not sent"
        op.builder.set_op(op, **{DIFFERENCE: why})
        return partial(_refuse, f"optree replay: {why}")

    def set(self, replay: Replay | None) -> None:
        """Use a replay from now on, or what the environment says."""
        with self._lock:
            self._found, self._is_known = None if replay is None else replay.answer, replay is not None


def _refuse(why: str) -> None:
    raise ConnectionError(why)


def _begun() -> _Answering | None:
    try:
        found = of_environment()
    except (OptreeError, OSError) as error:
        said = f"optree replay: {error}"
        return lambda _op, _path, _query: _failed(_REFUSED, said)
    return None if found is None else found.answer


ACTIVE: Final = _Active()


def _request(node: OperationNode, pool: Pool) -> Any:
    """Return what a call asks, of which model."""
    asked: Any = resolved(node.request.payload, pool) if node.request is not None else {}
    return {"model": node.attributes.get("model")} | asked if is_object(asked) else asked


def _recorded(call: _Recorded, path: str, query: str) -> StoredReply | None:
    node = call.node
    if node.status == "failed" and node.response is None:
        status = node.attributes.get(STATUS_CODE, int(HTTPStatus.SERVICE_UNAVAILABLE))
        return _failed(status, node.error or "the call failed when it was recorded")
    kind, body = body_of(decode(node.response.payload) if node.response else {}, path, query, call.request)
    return StoredReply(200, {"content-type": kind, **_request_id(node)}, body)


def _request_id(node: OperationNode) -> dict[str, str]:
    found = node.attributes.get("request_id")
    return {"x-request-id": found, "request-id": found} if isinstance(found, str) else {}


def _failed(status: int, said: str) -> StoredReply:
    body = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "code": status, "message": said}}).encode()
    return StoredReply(status, {"content-type": _JSON, "x-should-retry": "false"}, body)  # which OpenAI's and Anthropic's clients heed


def _unusable(node: OperationNode) -> str | None:
    """Say why a recorded answer cannot be given again; None for one that can."""
    if node.status == "failed" and node.response is None:
        return None
    if node.response is None or node.response.partial or node.status == "cancelled":
        return f"the call at {node.path} was broken off when it was recorded"
    return f"the answer at {node.path} was too long to be recorded whole" if node.response.truncated else None


def _key(request: Any) -> str:
    """Return a request as text, the same for all that say the same: members that are null say nothing."""
    return json.dumps(_said(request), sort_keys=True, default=str)


def _said(value: Any) -> Any:
    if is_object(value):
        return {name: _said(one) for name, one in value.items() if one is not None}
    return [_said(one) for one in value] if is_list(value) else value


def _first_difference(before: Any, now: Any, where: str = "") -> str:
    """Say where two requests differ first."""
    if is_object(before) and is_object(now):
        for name in {**before, **now}:
            if _key(before.get(name)) != _key(now.get(name)):
                return _first_difference(before.get(name), now.get(name), f"{where}.{name}" if where else name)
    if is_list(before) and is_list(now):
        for place, (one, other) in enumerate(zip(before, now, strict=False)):
            if _key(one) != _key(other):
                return _first_difference(one, other, f"{where}[{place}]")
        return f"{where} has {len(now)} items, not {len(before)}"
    return f"{where or 'the request'} is {_short(now)}, not {_short(before)}"


def _short(value: Any) -> str:
    said = json.dumps(value, ensure_ascii=False, default=str)
    return said if len(said) <= _SHOWN else truncated(said, _SHOWN, len(said))
