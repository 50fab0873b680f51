"""The calls of recorded sessions that can be answered again: what they ask, where they stand in the tree, and what they ended with."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple

from msgspec import UNSET

from optree._builder import Op
from optree._console import resolved
from optree._ids import node_id
from optree._interrupts import pass_on
from optree._nodes import BROKEN_OFF_CALLS, ERROR_BODY, OperationNode, Payload, Pool, TurnNode, lacks_content
from optree._store.reading.directory import exists
from optree._tracing.recorded import RESULT_TYPE, Recorded
from optree._tree import Tree
from optree._tree.path import Path
from optree._tree.walk import walk_ops
from optree._values import decode, is_list, is_object, restored
from optree.errors import OptreeError
from optree.redaction import REDACTED, redact

EVENT, EVENT_KEY = "event", "event.key"
"""Members of a log line's details: the type of an event of a websocket that was refused, and what tells it from others."""
_NO_KEY: Final = ("event_id", "previous_item_id", "item_id")
"""Members of an event that are others each time."""
_SHOWN: Final = 80
_BEFORE: Final = 20
"""Characters of what differs that are shown, and how many of them stand before the difference."""
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_Place = tuple[str, ...]


class RecordedCall:
    """A call of a model or a tool that was recorded."""

    def __init__(self, txn: str, node: OperationNode, request: Any, place: _Place = (), inside: Sequence[str] = ()) -> None:
        self.txn, self.node, self.request, self.key = txn, node, request, _key(request)
        self.place = place
        """The agents, turns and ops that it was made in, from the root on."""
        self.inside = inside
        """Names of the calls that were made within it."""

    @property
    def name(self) -> str:
        """What names it among the calls of all sessions: `<txn>:<path>`."""
        return node_id(self.txn, self.node.path)

    def __str__(self) -> str:
        return f"{self.node.path} of {self.txn}"

    @cached_property
    def redacted_key(self) -> str:
        """The key of the request without credentials."""
        return _key(redact(_said(self.request)))


class GivenCalls:
    """Which recorded calls the processes of a program were given: a file each in a directory; without one, nothing is known of others."""

    def __init__(self, directory: str | None) -> None:
        self._directory = None if directory is None else FilePath(directory)

    def __contains__(self, call: RecordedCall) -> bool:
        try:
            return self._directory is not None and exists(self._directory / _file_of(call.name))
        except OSError as error:
            pass_on(error)
            return False

    def add(self, name: str) -> bool:
        """Note that a call is given; False if it was already."""
        if self._directory is None:
            return True
        try:
            (self._directory / _file_of(name)).touch(0o600, exist_ok=False)
        except FileExistsError:
            return False
        except OSError as error:  # the program outlives the replay, or the disk is full
            pass_on(error)
        return True


def _file_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


class RecordedCalls:
    """The recorded calls that a replay answers."""

    def __init__(self, trees: Mapping[str, Tree], at: tuple[str, str] | None, *, tools: bool) -> None:
        """Take the calls in trees, which are named by their txns, that were begun before *at*: a txn, and the path of an op or turn."""
        for txn, tree in trees.items():
            if lacks_content(tree.session):
                raise OptreeError(f"session {txn} was recorded without content (content=False): what was answered in it is not known")
        ops = [(txn, op) for txn, tree in trees.items() for _, _, op in walk_ops(tree.session)]
        ops.sort(key=lambda one: one[1].started_at)
        places = {txn: _places(tree) for txn, tree in trees.items()}
        inside = {name: paths for txn, tree in trees.items() for name, paths in _inside(txn, tree).items()}
        self.around: frozenset[str] = frozenset()
        """Names of the ops around the fork point."""
        if at is not None:
            forked, end = at[0], Path.parse(at[1]).parts
            first = next((n for n, (txn, op) in enumerate(ops) if txn == forked and Path.parse(op.path).parts[: len(end)] == end), None)
            if first is None:
                raise OptreeError(f"session {forked} has no op {at[1]}: optree tree {forked} shows the paths")
            point = node_id(forked, ops[first][1].path)
            self.around = frozenset(name for name, within in inside.items() if point in within)
            ops = ops[:first]
        asked = [(txn, op) for txn, op in ops if op.request is not None and (op.kind == "llm" or (op.kind == "tool" and tools))]
        calls = [
            RecordedCall(txn, op, request_of(op, trees[txn].pool), places[txn][op.path], inside.get(node_id(txn, op.path), ()))
            for txn, op in asked
        ]
        whole = {(call.key, call.place) for call in calls if call.node.status != "interrupted"}
        # One that a kill broke off, and that was made again when the session was gone on with, is no other call.
        calls = [call for call in calls if call.node.status != "interrupted" or (call.key, call.place) not in whole]
        self.models = [call for call in calls if call.node.kind == "llm"]
        self.tools = [call for call in calls if call.node.kind == "tool"]
        self.without_arguments = frozenset(op.name for _, op in ops if op.kind == "tool" and op.request is None)
        """Names of tools of which calls were recorded without what they were called with."""
        self.event_errors: dict[str, list[dict[str, Any]]] = {}
        """The errors of events that ask for no response, in their order, by what tells the event."""
        for details in (decode(line.details) for _, op in ops for line in op.logs if line.details is not UNSET):
            if is_object(details) and isinstance(key := details.get(EVENT_KEY), str) and is_object(error := details.get(ERROR_BODY)):
                self.event_errors.setdefault(key, []).append(error)


def key_of_event(event: dict[str, Any]) -> str:
    """Return what is the same for events of a websocket that say the same."""
    told = {name: value for name, value in event.items() if name not in _NO_KEY}
    if is_object(item := told.get("item")):
        told["item"] = {name: value for name, value in item.items() if name != "id"}
    return hashlib.sha256(_key(told).encode()).hexdigest()[:16]


def request_of(node: OperationNode, pool: Pool) -> Any:
    """Return what a call asks, of which model or tool."""
    asked: Any = resolved(node.request.payload, pool) if node.request is not None else {}
    if node.kind == "tool":
        return {"tool": node.name, "arguments": _without_addresses(asked)}
    return {"model": node.attributes.get("model")} | asked if is_object(asked) else asked


def why_unusable(call: RecordedCall) -> str:
    """Say why a recorded answer cannot be given again."""
    response = call.node.response
    if response is not None and response.truncated and not response.partial:
        return f"the answer at {call} was too long to be recorded whole"
    if response is not None and call.node.status == "ok":
        return f"the answer at {call} is a text, and the form of an answer there is not known"
    return f"the call at {call} was broken off when it was recorded"


def is_answered(call: RecordedCall) -> bool:
    """Tell whether a call ended with an answer, or a failure, that can be given again, or is a tool's that can run again."""
    node = call.node
    if node.kind == "tool":
        found = result_of(call, is_stream=False)
        return found.runs if isinstance(found, Lost) else True
    if node.response is not None and node.response.truncated and not node.response.partial:
        return False
    has_come = node.response is not None or BROKEN_OFF_CALLS in node.attributes
    return node.status in ("ok", "failed") or (node.status == "cancelled" and has_come)


class Lost(NamedTuple):
    """Why a recorded result cannot be given, and whether the tool runs then."""

    why: str
    runs: bool = False


def result_of(call: RecordedCall, *, is_stream: bool) -> Recorded | Lost:
    """Return what a recorded call of a tool ended with."""
    node = call.node
    response, known = node.response, node.attributes
    error = (node.error or "RuntimeError") if node.status == "failed" else None
    if (name := known.get(RESULT_TYPE)) is not None:
        return Lost(f"the result at {call} cannot be made again of what was recorded: it is, or has, a {name}", runs=True)
    is_whole = response is None or not response.partial or (is_stream and error is not None)
    if node.status not in ("ok", "failed") or not is_whole:
        return Lost(f"the call at {call} was broken off when it was recorded")
    if response is None:
        was_not = Lost(f"the result at {call} was not recorded", runs=True)
        return was_not if error is None else Recorded(None, error, has_value=False, attributes=known)
    if (why := _lost_in(response, is_stream=is_stream)) is not None:
        return Lost(f"the result at {call} {why}")
    try:
        return Recorded(restored(decode(response.payload)), error, attributes=known)
    except (ValueError, RecursionError) as flaw:
        pass_on(flaw)
    return Lost(f"the result at {call} is no JSON, and cannot be made again of what was recorded", runs=True)


def _lost_in(response: Payload, *, is_stream: bool) -> str | None:
    """Say of which result only a part was recorded."""
    data, value = bytes(response.payload), decode(response.payload) if is_stream else None
    if response.truncated or b'{"$more":' in data or (is_object(value) and value.keys() == {"items", "more"}):
        return "was too long to be recorded whole"
    return "has had a credential in it, which was not recorded" if REDACTED.encode() in data else None


def found_in(calls: list[RecordedCall], request: Any, place: _Place | None = None) -> RecordedCall | None:
    """Return the first call that is the same, at that place if one is, else anywhere; else one that is the same but for credentials."""
    key = _key(request)
    same = [one for one in calls if one.key == key]
    if not same:  # a file that was exported has none
        key = _key(redact(_said(request)))
        same = [one for one in calls if one.redacted_key == key]
    return next((one for one in same if one.place == place), same[0] if same else None)


def _inside(txn: str, tree: Tree) -> dict[str, list[str]]:
    """Return the names of the calls that were made within each op."""
    ops = {op.path: op for _, _, op in walk_ops(tree.session)}
    agents = {op.path: session.path for session, _, op in walk_ops(tree.session)}
    found: dict[str, list[str]] = {}
    for path, op in ops.items():
        if op.kind not in ("llm", "tool") or op.request is None:
            continue
        above, passed = op.parent_op or agents[path], {path}
        while above in ops and above not in passed:  # a file may say that an op is within itself
            found.setdefault(node_id(txn, above), []).append(node_id(txn, path))
            passed.add(above)
            above = ops[above].parent_op or agents[above]
    return found


def _places(tree: Tree) -> dict[str, _Place]:
    """Return the place of each op: agents, turns and ops from the root on, by what they are and not by number."""
    places: dict[str, _Place] = {}
    within: dict[str, _Place] = {}
    for session, turn, op in walk_ops(tree.session):
        above = within.get(op.parent_op or "")
        if above is None:
            above = (*within.get(session.path, ()), session.agent_id, _said_in(turn))
        places[op.path] = above
        within[op.path] = (*above, _label(op, tree.pool))
    return places


def place_of(op: Op) -> _Place:
    """Return the place of an op that is open, as `_places` does."""
    found: list[str] = []
    builder, turn, node = op.builder, op.turn.node, op.bare
    while True:
        while (above := node.parent_op) is not None and (parent := next((one for one in turn.ops if one.path == above), None)) is not None:
            found.append(_label(node := parent, op.builder.core.pool))
        found += [_said_in(turn), builder.node.agent_id]
        path, above_all = builder.path, builder.parent
        at = None if above_all is None else next(((one, it) for one in above_all.node.turns for it in one.ops if it.path == path), None)
        if above_all is None or at is None:
            return tuple(reversed(found))
        builder, (turn, node) = above_all, at
        found.append(_label(node, op.builder.core.pool))


def _said_in(turn: TurnNode) -> str:
    return (turn.prompts or {}).get("user") or ""


def _label(op: OperationNode, pool: Pool) -> str:
    return f"{op.kind} {op.name} {_key(request_of(op, pool)) if op.kind == 'tool' else ''}"


def _without_addresses(value: Any) -> Any:
    """Return arguments with what names objects as it is in each process."""
    if is_list(value):
        return [_without_addresses(one) for one in value]
    if not is_object(value):
        return value
    if "$repr" in value and isinstance(value["$repr"], str):
        return {**value, "$repr": _ADDRESS.sub("", value["$repr"])}
    return {name: _without_addresses(one) for name, one in value.items()}


def _key(request: Any) -> str:
    """Return a request as text, the same for all that say the same: members that are null say nothing."""
    return json.dumps(_said(request), sort_keys=True, default=str)


def _said(value: Any) -> Any:
    if is_object(value):
        return {name: _said(one) for name, one in value.items() if one is not None}
    return [_said(one) for one in value] if is_list(value) else value


def first_difference(before: Any, now: Any, where: str = "") -> str:
    """Say where two requests differ first."""
    if is_object(before) and is_object(now):
        for name in {**before, **now}:
            if _key(before.get(name)) != _key(now.get(name)):
                return first_difference(before.get(name), now.get(name), f"{where}.{name}" if where else name)
    if is_list(before) and is_list(now):
        for place, (one, other) in enumerate(zip(before, now, strict=False)):
            if _key(one) != _key(other):
                return first_difference(one, other, f"{where}[{place}]")
        return f"{where} has {len(now)} items, not {len(before)}"
    return f"{where or 'the request'} is {_short(now, before)}, not {_short(before, now)}"


def _short(value: Any, other: Any) -> str:
    """Return a value as JSON, of a long one the part from just before where it differs from another."""
    said, beside = (json.dumps(one, ensure_ascii=False, default=str) for one in (value, other))
    if len(said) <= _SHOWN:
        return said
    same = next((at for at, (one, two) in enumerate(zip(said, beside, strict=False)) if one != two), min(len(said), len(beside)))
    begin = max(0, min(same - _BEFORE, len(said) - _SHOWN))
    return f"{'…' * (begin > 0)}{said[begin : begin + _SHOWN]}{'…' * (begin + _SHOWN < len(said))}"
