"""What changed in the context of each LLM call since the agent's previous one, whether that broke the provider's cache, and what it cost.

The names are those of OpenAI (Chat Completions and Responses), Anthropic and Gemini; what has none of these names is no part of a cache's
key.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from optree._ids import content_id
from optree._nodes import SNAPSHOT, AccountingEntry, OperationNode, Pool, SessionNode, Tokens, parts_of_name
from optree._providers.messages import HISTORY_KEYS
from optree._providers.prices import MILLION, PRICE
from optree._tree import Tree, walk_ops
from optree._tree.walk import HasTree, tree_in
from optree._values import decode, is_list, is_object, number_of, object_of
from optree.compare.calls import CallContext, Edit, Messages, messages_since
from optree.compare.content import last_tokens, money, own_cost, own_tokens
from optree.compare.details import Change, as_line, change_phrase, differing, excerpt
from optree.compare.histories import (
    ROOT,
    CallSpan,
    Histories,
    asked_in,
    bare,
    decoded,
    lifetime_of,
    previous_calls,
    since,
    text_bytes,
    wait_of,
)
from optree.conversation.content import SYSTEM_KEYS, body_of, history_in
from optree.redaction import redact

COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_write_input_tokens")
_EXPLAINED = 0.005
"""The share of a cost that prices may leave unexplained."""
_ROUNDED = 1e-6
"""Dollars that rounding may have taken from a cost, or added to it."""
_SURE = 0.02
"""The largest standard error of a price, as a share of the dearest one."""
_SINGULAR = 1e-10
SHORTEST = 1024
"""Tokens: no provider caches a shorter prefix (OpenAI's and Anthropic's guides on prompt caching; some models want more)."""
BLOCK = 128
"""Tokens: OpenAI reads from its cache in such steps. What is less is no loss."""
_MAY_BE = "the entry may have expired, or was never written"
PARTS = {
    "tools": ("tools", "functions"),
    "system": SYSTEM_KEYS,
    "output format": ("response_format", "text", "output_config", "responseSchema", "response_schema"),
    "tool choice": ("tool_choice", "toolConfig", "tool_config"),
    "thinking": ("thinking", "reasoning", "reasoning_effort", "chat_template_kwargs"),
    "cache key": ("prompt_cache_key", "cachedContent", "cached_content"),
}
"""Parts of a request that a cache's key depends on, with the members that hold them. Of the `CERTAIN` ones it does with every provider."""
CERTAIN = ("model", "tools", "system")
_ELSEWHERE = ("previous_response_id", "conversation")
"""Members that stand for messages which the provider keeps."""


class Prices(Struct):
    """US dollars for one token of a model; None for a kind that none of its calls had."""

    input: float
    output: float | None
    cache_read: float
    cache_write: float | None
    calls: int
    """Calls that they come from."""


def prices(entries: Iterable[AccountingEntry]) -> dict[tuple[str | None, str | None], Prices]:
    """Return the prices that can be worked out, by provider and model."""
    rows: defaultdict[tuple[str | None, str | None], list[tuple[list[float], float]]] = defaultdict(list)
    for entry in entries:
        if entry.tokens is not None and entry.cost_usd is not None and entry.status == "ok" and entry.replay_of is None:
            counts = [float(getattr(entry.tokens, name)) for name in COUNTS]
            rows[entry.provider, entry.model].append((counts, entry.cost_usd))
    return {model: derived for model, known in rows.items() if (derived := _derived(known)) is not None}


def snapshot_prices(root: SessionNode, entries: Iterable[AccountingEntry]) -> dict[tuple[str | None, str | None], Prices]:
    """Return the prices that the root session's `pricingSnapshot` has, by provider and model, where one bill was made by each.

    Those that depend on a call's size are left out.
    """
    snapshot = object_of(root.attributes.get(SNAPSHOT))
    names: defaultdict[tuple[str | None, str | None], set[Any]] = defaultdict(set)
    counts: Counter[tuple[str | None, str | None]] = Counter()
    for entry in entries if snapshot else ():
        if entry.tokens is not None and entry.cost_usd is not None:
            names[entry.provider, entry.model].add(object_of(decode(entry.details)).get(PRICE) if entry.details is not UNSET else None)
            counts[entry.provider, entry.model] += 1
    known: dict[tuple[str | None, str | None], Prices] = {}
    for model, (name, *others) in names.items():
        rates = object_of(snapshot.get(name)) if isinstance(name, str) and not others else {}
        sent, received, cached, written = (number_of(rates.get(kind)) for kind in ("input", "output", "cached", "written"))
        if sent is not None and all(not is_list(rates.get(kind)) for kind in ("cached", "written")):
            cached, written = sent if cached is None else cached, sent if written is None else written
            received = None if received is None else received / MILLION
            known[model] = Prices(sent / MILLION, received, cached / MILLION, written / MILLION, counts[model])
    return known


def _derived(rows: Sequence[tuple[list[float], float]]) -> Prices | None:
    used = [column for column in range(len(COUNTS)) if any(counts[column] for counts, _ in rows)]
    if len(rows) <= len(used) or not {0, 2} <= set(used):
        return None
    matrix = [[counts[column] for column in used] for counts, _ in rows]
    solved = _least_squares(matrix, [cost for _, cost in rows])
    if solved is None:
        return None
    solution, spread = solved
    left = [
        abs(cost - sum(count * one for count, one in zip(row, solution, strict=True))) for row, (_, cost) in zip(matrix, rows, strict=True)
    ]
    if any(rest > _ROUNDED + _EXPLAINED * abs(cost) for rest, (_, cost) in zip(left, rows, strict=True)):
        return None
    noise = (sum(rest * rest for rest in left) / (len(rows) - len(used))) ** 0.5
    if min(solution) < -_SURE * max(solution) or any(noise * one > _SURE * max(solution) for one in spread):
        return None
    known = dict(zip(used, (max(0.0, one) for one in solution), strict=True))
    return Prices(known[0], known.get(1), known[2], known.get(3), len(rows))


def _least_squares(matrix: list[list[float]], values: list[float]) -> tuple[list[float], list[float]] | None:
    """Return the solution and its standard errors for a noise of 1; None if the equations do not determine it."""
    width = len(matrix[0])
    scale = [max(abs(row[column]) for row in matrix) for column in range(width)]
    rows = [[row[column] / scale[column] for column in range(width)] for row in matrix]
    normal = [[sum(row[x] * row[y] for row in rows) for y in range(width)] for x in range(width)]
    inverse = _inverted(normal)
    if inverse is None:
        return None
    sums = [sum(row[x] * value for row, value in zip(rows, values, strict=True)) for x in range(width)]
    solution = [sum(inverse[x][y] * sums[y] for y in range(width)) / scale[x] for x in range(width)]
    return solution, [max(0.0, inverse[x][x]) ** 0.5 / scale[x] for x in range(width)]


def _inverted(matrix: list[list[float]]) -> list[list[float]] | None:
    """Return the inverse of a small symmetric matrix (Gauss and Jordan, largest pivot first); None if it has none."""
    width = len(matrix)
    rows = [[*row, *(float(x == y) for y in range(width))] for x, row in enumerate(matrix)]
    largest = max(abs(item) for row in matrix for item in row)
    for column in range(width):
        pivot = max(range(column, width), key=lambda row: abs(rows[row][column]))
        if abs(rows[pivot][column]) <= _SINGULAR * largest:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        top = rows[column][column]
        rows[column] = [item / top for item in rows[column]]
        for row in range(width):
            if row != column and (factor := rows[row][column]):
                rows[row] = [item - factor * other for item, other in zip(rows[row], rows[column], strict=True)]
    return [row[width:] for row in rows]


Known = Mapping[tuple[str | None, str | None], Prices]


class Use(Struct):
    """Two calls, the model of the first one, the bytes of it in all, and of what the second one has too. Images count as no bytes.

    *lifetime* is how long the provider keeps an entry at most, in seconds.
    """

    before: OperationNode
    model: str
    size: int
    op: OperationNode
    shared: int
    lifetime: float


class Models(Struct):
    """Models with cached tokens in any call of the session, and those that report tokens written to the cache (OpenAI's do not)."""

    telling: set[str]
    writing: set[str]

    @classmethod
    def of(cls, calls: Iterable[tuple[str, OperationNode]]) -> Models:
        """Return what calls tell, each given with its model."""
        result = cls(set(), set())
        for model, op in calls:
            for tokens in (entry.tokens for entry in op.accounting if entry.tokens is not None):
                if tokens.cache_write_input_tokens:
                    result.writing.add(model)
                if tokens.cache_write_input_tokens or tokens.cache_read_input_tokens:
                    result.telling.add(model)
        return result


def judge(context: CallContext, use: Use, prices: Known, models: Models) -> None:
    """Say what became of the cache, in place."""
    context.cause = _first_difference(context)
    before, now = last_tokens(use.before), last_tokens(use.op)
    if before is None or now is None or not use.size:
        return
    silent = next((model for model in (context.model, use.model) if model not in models.telling), None)
    if silent is not None:
        if context.cause is not None:
            context.add_note(f"no call of {silent} tells of a cache: whether anything was lost is not known")
        return
    context.estimated = use.shared != use.size
    had = before.cache_read_input_tokens + before.cache_write_input_tokens if use.model in models.writing else before.all_input_tokens
    context.reusable_tokens = min(before.all_input_tokens * use.shared // use.size, had, now.all_input_tokens)
    lost = context.reusable_tokens - now.cache_read_input_tokens
    if context.reusable_tokens < SHORTEST or lost < BLOCK:
        context.cache = "kept"
    elif context.parts or (context.messages is not None and context.messages.later):
        context.cache = "broken"
    elif context.messages is not None and not context.messages.edits and not context.estimated:
        context.cache = "missed"
    else:
        context.add_note("only the end was edited: how much of what comes before it the cache had is not known")
    if context.cache in ("broken", "missed"):
        _lost(context, lost, use)
        context.lost_usd = _cost(lost, now, prices, use.op)


def _lost(context: CallContext, lost: int, use: Use) -> None:
    context.lost_tokens = lost
    waited = wait_of(use.before, use.op)
    context.expired = waited > use.lifetime
    if context.cache == "missed":
        context.cause = f"nothing that comes before changed, {since(waited)} after the previous call: {_MAY_BE}"
    if context.expired:
        context.add_note(f"{since(waited)} after the previous call its entry may have expired: providers keep one {since(use.lifetime)}")


def _first_difference(context: CallContext) -> str | None:
    """Return what differs first, what is surely in a cache's key before what may not be; None if the call only appended.

    An edit behind all that both calls share explains no loss: it comes last.
    """
    certain = [change_phrase(change) for change in context.parts if change.what in CERTAIN]
    doubtful = [change_phrase(change) for change in context.parts if change.what not in CERTAIN]
    messages = context.messages
    edits = [] if messages is None else [edit_phrase(edit) for edit in messages.edits[:1]]
    behind = messages is not None and messages.kept > 0 and not messages.later
    order = [*certain, *doubtful, *edits] if behind else [*certain, *edits, *doubtful]
    return order[0] if order else None


def edit_phrase(edit: Edit) -> str:
    """Return an edit as a line."""
    what = f"message {edit.at} ({edit.role}) {edit.kind}"
    if edit.kind == "edited":
        return f"{what}: {edit.before} → {edit.after}"
    return f"{what}: {edit.after or edit.before}"


def _cost(lost: int, tokens: Tokens, prices: Known, op: OperationNode) -> float | None:
    """Return what tokens cost more than read from the cache: those that were written to it anew at its price for that."""
    entry = next((entry for entry in reversed(op.accounting) if entry.tokens is tokens), None)
    known = prices.get((entry.provider, entry.model)) if entry is not None else None
    if known is None:
        return None
    written = min(lost, tokens.cache_write_input_tokens)
    if written and known.cache_write is None:
        return None
    return money(written * ((known.cache_write or 0.0) - known.cache_read) + (lost - written) * (known.input - known.cache_read))


class PromptPart(Struct):
    """A part of a request: its content id, the bytes of its JSON without data in base64, and the member it came from."""

    id: str
    size: int
    member: Any


class Prompt(Struct):
    """What a call sent. *head* is its history's node, None where its messages are not known; *note* says why."""

    model: str
    parts: dict[str, PromptPart]
    head: int | None = None
    lost: int = 0
    """Messages that the request names and that are not there any more."""
    note: str | None = None
    lifetime: float = 0.0
    """Seconds that the request, its messages aside, asks for its cache entry to live; 0 if it asks for none."""

    def asked(self, histories: Histories) -> float:
        """Return the longest lifetime of a cache entry that the call asks for, in seconds."""
        return self.lifetime if self.head is None else max(self.lifetime, histories.asked[self.head])

    def size(self, histories: Histories) -> int:
        """Return the bytes of all parts and messages, without data in base64."""
        return sum(part.size for part in self.parts.values()) + (0 if self.head is None else histories.text[self.head])


def prompt_of(op: OperationNode, histories: Histories, pool: Pool) -> Prompt:
    """Return what an LLM op sent."""
    result = Prompt(next((entry.model for entry in op.accounting if entry.model), None) or parts_of_name(redact(op.name))[1] or op.name, {})
    if op.request is None:
        result.note = "no request is recorded"
        return result
    request = decoded(op.request.payload)
    if not is_object(request):
        if is_list(request) and not op.request.truncated:
            result.head = histories.listed(request)
        else:
            result.note = "the request was cut" if op.request.truncated else "the request is no object: its messages are not known"
        return result
    body = body_of({key: _held(value, pool) if key == "messages" else value for key, value in request.items()})
    config = _held(body.get("config"), pool)  # google-genai's name for all but the contents
    outer = {key: value for key, value in request.items() if key not in HISTORY_KEYS}
    members: dict[str, Any] = {**object_of(config), **outer, **body}
    if isinstance(members.get("model"), str):
        result.model = members["model"]
    result.lifetime = asked_in(bytes(op.request.payload))
    _add_parts(result, members, pool)
    _add_history(result, body, histories, pool)
    if op.request.truncated and result.note is None:
        result.note = "the request was cut: what is said of it is about what is left"
    return result


def _add_parts(prompt: Prompt, members: Mapping[str, Any], pool: Pool) -> None:
    for name, keys in PARTS.items():
        resolved = {key: _held(members[key], pool) for key in keys if _is_part(key, members.get(key))}
        if resolved:
            written = msgspec.json.encode(resolved)
            data = bare(written)
            value = msgspec.json.decode(data)
            prompt.lifetime = max(prompt.lifetime, asked_in(written))
            prompt.parts[name] = PromptPart(content_id(data), text_bytes(data), next(iter(value.values())) if len(value) == 1 else value)


def _is_part(key: str, value: Any) -> bool:
    """Tell whether a member is part of the key; a `text` that is a plain string is content, not a format."""
    return is_object(value) if key == "text" else value is not None


def _add_history(prompt: Prompt, body: Mapping[str, Any], histories: Histories, pool: Pool) -> None:
    elsewhere = next((name for name in _ELSEWHERE if body.get(name)), None)
    value = history_in(body)
    if elsewhere:
        prompt.note = f"earlier messages are with the provider ({elsewhere})"
        return
    if value is None:
        prompt.note = "the request has no messages"
        return
    if is_object(value) and isinstance(value.get("$history"), str):
        prompt.head = histories.linked(value["$history"], pool)
        count = value.get("count")
        prompt.lost = max(0, count - histories.depth[prompt.head]) if isinstance(count, int) else 0
        if prompt.lost:
            prompt.note = f"{prompt.lost:,} of its first messages are lost"
        return
    value = _held(value, pool)
    prompt.head = histories.listed(value if is_list(value) else [value]) if value is not None else ROOT


def _held(value: Any, pool: Pool) -> Any:
    """Return a member's value, from the pool where it is there."""
    if is_object(value) and isinstance(value.get("$blob"), str):
        return decoded(pool.blobs.get(value["$blob"]))
    return value


class _Call(Struct):
    session: SessionNode
    op: OperationNode
    prompt: Prompt


def context_changes(tree: Tree | HasTree) -> list[CallContext]:
    """Return what changed for each LLM call of each agent, in the order in which the calls began.

    Calls of one agent are those of all sessions with its name in the tree: they share a provider's cache. It takes time in proportion to
    what is recorded, however long the histories are.
    """
    tree, histories = tree_in(tree), Histories()
    calls = [_Call(session, op, prompt_of(op, histories, tree.pool)) for session, _, op in walk_ops(tree.session) if op.kind == "llm"]
    calls.sort(key=lambda call: call.op.started_at)
    histories.number()
    spans = [_span(call) for call in calls]
    entries = [entry for call in calls for entry in call.op.accounting]
    known = prices(entries) | snapshot_prices(tree.session, entries)
    models = Models.of((call.prompt.model, call.op) for call in calls)
    result: list[CallContext] = []
    for call, at in zip(calls, previous_calls(spans, histories), strict=True):
        before = None if at is None else calls[at]
        context = _compared(call, before, histories)
        if before is not None and context.messages is not None:
            size, shared = before.prompt.size(histories), _shared_bytes(before, call, context.messages)
            lifetime = lifetime_of(before.op, before.prompt.model, before.prompt.asked(histories))
            use = Use(before.op, before.prompt.model, size, call.op, shared, lifetime)
            judge(context, use, known, models)
        result.append(context)
    return result


def _span(call: _Call) -> CallSpan:
    tokens = own_tokens(call.op)
    reached = call.op.status != "failed" or tokens.total_tokens > 0
    return CallSpan(call.session.agent_id, call.op.started_at, call.op.ended_at, call.prompt.head, reached)


def _compared(call: _Call, before: _Call | None, histories: Histories) -> CallContext:
    op, prompt = call.op, call.prompt
    result = CallContext(op.path, call.session.agent_id, prompt.model, op.status, before.op.path if before else None, prompt.note, parts=[])
    if prompt.head is not None:
        result.count, result.bytes = histories.depth[prompt.head] + prompt.lost, histories.size[prompt.head]
    if any(entry.tokens is not None and entry.tokens.total_tokens for entry in op.accounting):
        tokens = own_tokens(op)
        result.input_tokens = tokens.all_input_tokens
        result.cache_read_input_tokens, result.cache_write_input_tokens = tokens.cache_read_input_tokens, tokens.cache_write_input_tokens
    result.cost_usd = own_cost(op)
    if before is None:
        result.cache = "unknown" if prompt.head is None else "first"
    elif before.prompt.head is not None and prompt.head is not None:
        result.messages = messages_since(histories, before.prompt.head, prompt.head)
        result.parts = _parts(before.prompt, prompt)
    return result


def _parts(before: Prompt, after: Prompt) -> list[Change]:
    result = [Change("model", before.model, after.model)] if before.model != after.model else []
    for name in PARTS:
        part_before, part_after = before.parts.get(name), after.parts.get(name)
        if part_before is None or part_after is None:
            if part_before is not part_after:
                result.append(
                    Change(name, *(None if part is None else excerpt(as_line(part.member)) for part in (part_before, part_after)))
                )
        elif part_before.id != part_after.id and name == "tools":
            result.append(_tools(part_before.member, part_after.member))
        elif part_before.id != part_after.id:
            result.append(Change(name, *differing(as_line(part_before.member), as_line(part_after.member))))
    return result


def _tools(before: object, after: object) -> Change:
    """Return how a list of tools changed: by their names where these differ, else by their order, else by the first text that differs."""
    tools_before, tools_after = _named(before), _named(after)
    if list(tools_before) == list(tools_after):
        changed = next((name for name in tools_before if tools_before[name] != tools_after[name]), None)
        if changed is None:
            return Change("tools", *differing(as_line(before), as_line(after)))
        return Change("tools", *differing(tools_before[changed], tools_after[changed]))
    return Change("tools", *differing(", ".join(tools_before), ", ".join(tools_after)))


def _named(tools: object) -> dict[str, str]:
    result: dict[str, str] = {}
    for tool in tools if is_list(tools) else []:
        function = tool.get("function") if is_object(tool) else None
        name = (function if is_object(function) else tool).get("name") if is_object(tool) else None
        result[str(name or len(result))] = as_line(tool)
    return result


def _shared_bytes(before: _Call, call: _Call, messages: Messages) -> int:
    """Return how much of the previous call is in this one too, images left out."""
    parts_before, parts_after = before.prompt.parts, call.prompt.parts
    parts = sum(part.size for name, part in parts_before.items() if name in parts_after and parts_after[name].id == part.id)
    return parts + messages.text_bytes
