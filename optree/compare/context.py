"""For each LLM call: what changed in its context since the agent's previous call, and whether that broke the provider's prompt cache."""

from __future__ import annotations

from msgspec import Struct

from optree._nodes import OperationNode, SessionNode
from optree._tree import Tree, walk_ops
from optree._tree.walk import HasTree, tree_in
from optree._values import is_list, is_object
from optree.compare.cache import PARTS, Models, Prompt, Use, judge, prices, prompt_of
from optree.compare.calls import CallContext, Messages, messages_since
from optree.compare.content import own_cost, own_tokens
from optree.compare.details import Change, as_line, differing, excerpt
from optree.compare.histories import CallSpan, Histories, lifetime_of, previous_calls


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
    known = prices(entry for call in calls for entry in call.op.accounting)
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
