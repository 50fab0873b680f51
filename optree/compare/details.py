"""Values as short texts for people, credentials replaced before anything is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from optree._ids import content_id
from optree._nodes import OperationNode, Payload, SessionNode, TurnNode
from optree._providers.messages import opened
from optree._tree.totals import cost_said, of_entries
from optree._values import decode, is_list, is_object, shortened
from optree.compare.alignment import align
from optree.compare.content import Digests, Node, money, sorted_json
from optree.redaction import redact

LONGEST = 120
"""Characters of an excerpt."""
_AROUND = 24
"""Characters that an excerpt shows of what both texts have, before their first difference and behind their last."""
_TOKENS = {
    "input": "all_input_tokens", "output": "output_tokens", "cache_read_input": "cache_read_input_tokens",
    "cache_write_input": "cache_write_input_tokens", "reasoning_output": "reasoning_output_tokens",
}  # fmt: skip
MOST_ITEMS = 5
"""Differing items of a list that are shown one by one."""
MOST_ALIGNED = 64
"""Items of two lists that are aligned, from where they begin to differ."""


def as_line(value: Any, name: str = "") -> str:
    """Return a value as one line without credentials; *name* is the member that holds it, which may name a secret."""
    known = next(iter(redact({name: value}).values())) if name else redact(value)
    text = known if isinstance(known, str) else msgspec.json.encode(known).decode("utf-8", "replace")
    return " ".join(text.split())


def message_line(value: Any, *, role: bool = True) -> str:
    """Return a message as one line, its role in front if it is plain text; other values as `as_line` does."""
    if not is_object(value) or not isinstance(value.get("role"), str) or not value.keys() <= {"role", "content"}:
        return as_line(value)
    content = as_line(value.get("content"), "content")
    return f"{value['role']}: {content}" if role else content


def excerpt(text: str) -> str:
    """Return a text's beginning."""
    return shortened(text, LONGEST)


def differing(before: str, after: str) -> tuple[str, str]:
    """Return excerpts of two texts around what differs."""
    if before == after or max(len(before), len(after)) <= LONGEST:
        return excerpt(before), excerpt(after)
    shorter = min(len(before), len(after))
    start = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    end = next((at for at in range(shorter - start) if before[-1 - at] != after[-1 - at]), shorter - start)
    return _around(before, start, len(before) - end), _around(after, start, len(after) - end)


def _around(text: str, start: int, end: int) -> str:
    first, last = max(0, start - _AROUND), min(len(text), end + _AROUND)
    return excerpt(("…" if first else "") + text[first:last] + ("…" if last < len(text) else ""))


class Change(Struct, rename="camel"):
    """One field that differs: *before* and *after* are excerpts of it (120 characters), None where it is not there.

    *what* is `agent`, `status`, `error`, `cost`, `response` or `response.<member>`, `request.<member>`, `request.messages[3]` (items count
    from 0, in the second session where it has the item), `prompts.<role>`, `assistant.<role>`, `final report`, or `tokens.<name>`.
    """

    what: str
    before: str | None = None
    after: str | None = None


def change_phrase(change: Change) -> str:
    """Return one changed field as a line."""
    if change.before is None:
        return f"{change.what}: + {change.after}"
    return f"{change.what}: - {change.before}" if change.after is None else f"{change.what}: {change.before} → {change.after}"


class Changes:
    """Finds what differs between nodes of two sessions; histories are looked at where they part only."""

    def __init__(self, a: Digests, b: Digests) -> None:
        self._digests = (a, b)
        self._histories = a.histories

    def between(self, a: Node, b: Node) -> list[Change]:
        """Return what differs between two nodes, what is below them and their times aside."""
        result = _texts({"status": a.status, "error": a.error}, {"status": b.status, "error": b.error})
        if isinstance(a, SessionNode) and isinstance(b, SessionNode):
            result = [*_texts({"agent": a.agent_id}, {"agent": b.agent_id}), *result]
            return [*result, *_values("final report", _plain(a.final_report), _plain(b.final_report))]
        if isinstance(a, TurnNode) and isinstance(b, TurnNode):
            for name, value_a, value_b in (("prompts", a.prompts, b.prompts), ("assistant", a.assistant, b.assistant)):
                result += _texts(*({f"{name}.{role}": text for role, text in (block or {}).items()} for block in (value_a, value_b)))
        if isinstance(a, OperationNode) and isinstance(b, OperationNode):
            result += [*self._requests(a, b), *self._responses(a, b), *_bills(a, b)]
        return result

    def _requests(self, a: OperationNode, b: OperationNode) -> Iterator[Change]:
        ids_a, ids_b = (digests.members(op.request, op.kind) for digests, op in zip(self._digests, (a, b), strict=True))
        if ids_a == ids_b:
            if (a.request is None) != (b.request is None):
                yield Change("request", *(None if op.request is None else "{}" for op in (a, b)))
            return
        differ = [name for name in {**ids_a, **ids_b} if ids_a.get(name) != ids_b.get(name)]
        members_a, members_b = (_members(op.request, differ) for op in (a, b))
        for name in differ:
            heads = [digests.history(members.get(name)) for digests, members in zip(self._digests, (members_a, members_b), strict=True)]
            if heads[0] is not None and heads[1] is not None:
                yield from self._messages(f"request.{name}", heads[0], heads[1])
                continue
            values = [
                digests.whole(name, members[name], op.kind) if name in members else UNSET
                for digests, members, op in zip(self._digests, (members_a, members_b), (a, b), strict=True)
            ]
            yield from _values(f"request.{name}" if name else "request", values[0], values[1], name)

    def _responses(self, a: OperationNode, b: OperationNode) -> Iterator[Change]:
        response_a, response_b = a.response, b.response
        if (
            response_a is not None
            and response_b is not None
            and response_a.payload == response_b.payload
            and response_a.size == response_b.size
        ):
            return
        values = [
            UNSET if op.response is None else digests.stable.response(opened(decode(op.response.payload)), op.kind)
            for digests, op in zip(self._digests, (a, b), strict=True)
        ]
        yield from _responses(response_a, response_b, *values)

    def _messages(self, what: str, a: int, b: int) -> Iterator[Change]:
        histories = self._histories
        part = histories.shared(a, b)
        old, new = histories.after(part, a), histories.after(part, b)
        keys = [[histories.item[node] for node in nodes[:MOST_ALIGNED]] for nodes in (old, new)]
        first = histories.depth[part]
        differences = _differing(keys[0], keys[1], max(len(old), len(new)) - MOST_ALIGNED)
        yield from _item_changes(differences, what, lambda x: histories.message(old[x]), lambda y: histories.message(new[y]), first)


def _members(payload: Payload | None, names: list[str]) -> dict[str, Any]:
    """Return members of a request by name, as they are recorded."""
    if payload is None:
        return {}
    request = opened(decode(payload.payload))
    return {name: request[name] for name in names if name in request} if is_object(request) else {"": request}


def _responses(a: Payload | None, b: Payload | None, answer_a: Any, answer_b: Any) -> Iterator[Change]:
    if is_object(answer_a) and is_object(answer_b):
        for name in {**answer_a, **answer_b}:
            yield from _values(f"response.{name}", answer_a.get(name, UNSET), answer_b.get(name, UNSET), name)
        return
    changes = list(_values("response", answer_a, answer_b))
    yield from changes
    if not changes and a is not None and b is not None and (a.truncated or b.truncated) and a.size != b.size:
        yield Change("response", *(f"{payload.size:,} characters, cut" if payload.size else "cut" for payload in (a, b)))


def _values(what: str, a: Any, b: Any, name: str = "") -> Iterator[Change]:
    """Yield what differs between two plain values; UNSET is no value. Lists of objects are compared item by item."""
    if a is UNSET or b is UNSET:
        if a is not b:
            yield Change(what, *(None if value is UNSET else excerpt(as_line(value, name)) for value in (a, b)))
        return
    if sorted_json(a) == sorted_json(b):
        return
    if is_list(a) and is_list(b) and any(is_object(item) for item in [*a[:1], *b[:1]]):
        yield from _items(what, a, b)
        return
    before, after = as_line(a, name), as_line(b, name)
    if before == after:  # credentials, which are not shown
        after += " (differs in what is hidden)"
    yield Change(what, *differing(before, after))


def _items(what: str, a: list[Any], b: list[Any]) -> Iterator[Change]:
    keys = [[content_id(sorted_json(item)) for item in items[:MOST_ALIGNED]] for items in (a, b)]
    yield from _item_changes(_differing(keys[0], keys[1], max(len(a), len(b)) - MOST_ALIGNED), what, a.__getitem__, b.__getitem__)


class _Differing(NamedTuple):
    """The first items of two lists that differ, as positions in both, and how many more there are."""

    first: list[tuple[int | None, int | None]]
    more: int


def _differing(a: list[str], b: list[str], beyond: int) -> _Differing:
    """Return which items differ; *beyond* counts those that were not compared."""
    pairs: list[tuple[int | None, int | None]] = []
    x = y = 0
    for next_x, next_y in [*align(a, b), (len(a), len(b))]:
        both = min(next_x - x, next_y - y)
        pairs += [(x + at, y + at) for at in range(both)]
        pairs += [(at, None) for at in range(x + both, next_x)]
        pairs += [(None, at) for at in range(y + both, next_y)]
        x, y = next_x + 1, next_y + 1
    return _Differing(pairs[:MOST_ITEMS], max(0, len(pairs) - MOST_ITEMS) + max(0, beyond))


def _item_changes(differences: _Differing, what: str, a: Callable[[int], Any], b: Callable[[int], Any], first: int = 0) -> Iterator[Change]:
    for x, y in differences.first:
        before, after = None if x is None else message_line(a(x)), None if y is None else message_line(b(y))
        if before is not None and after is not None:
            before, after = differing(before, after)
        at = first + (y if y is not None else x or 0)
        yield Change(f"{what}[{at}]", before and excerpt(before), after and excerpt(after))
    if differences.more:
        yield Change(what, after=f"{differences.more:,} more that may differ")


def _bills(a: OperationNode, b: OperationNode) -> Iterator[Change]:
    sums_a, sums_b = of_entries(a.accounting), of_entries(b.accounting)
    costs = [
        cost_said(money(sums.cost_usd), sums.known_costs, sums.unknown_costs).removeprefix("cost ") or None for sums in (sums_a, sums_b)
    ]
    yield from _texts({"cost": costs[0]}, {"cost": costs[1]})
    for name, field in _TOKENS.items():
        before, after = getattr(sums_a, field), getattr(sums_b, field)
        if before != after:
            yield Change(f"tokens.{name}", f"{before:,}", f"{after:,}")


def _texts(a: Mapping[str, str | None], b: Mapping[str, str | None]) -> list[Change]:
    result: list[Change] = []
    for name in {**a, **b}:
        before, after = a.get(name), b.get(name)
        if before == after:
            continue
        if before is None or after is None:
            result.append(Change(name, *(None if text is None else excerpt(as_line(text)) for text in (before, after))))
        else:
            result.append(Change(name, *differing(as_line(before), as_line(after))))
    return result


def _plain(block: Raw | UnsetType) -> Any:
    return UNSET if block is UNSET else decode(block)
