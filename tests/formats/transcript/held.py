"""A tree without what the transcript says it cannot hold: what must be equal after a way out and in."""

from msgspec import json

from optree._tree import Tree, walk_sessions
from optree._tree.walk import to_plain
from optree_formats.transcript.messages import answer, sent


def held(tree: Tree):
    """Return what a transcript holds of a tree, as plain values."""
    found = to_plain(tree)
    sessions = [found["session"]]
    while sessions:
        session = sessions.pop()
        for name in ("messages", "totals"):
            session.pop(name, None)
        drop_null(session, "finalReport")
        for turn in session["turns"]:
            turn["prompts"] = {role: text for role, text in turn.pop("prompts", {}).items() if text}
            for op in turn["ops"]:
                hold_op(op, tree.pool)
                sessions += [op["childSession"]] if "childSession" in op else []
    return found["session"]


def hold_op(op, pool):
    """Leave of an op what a transcript holds."""
    request, response = (pool.resolve(op.pop(name, {}).get("payload")) for name in ("request", "response"))
    reasoning = op.pop("reasoning", {})
    chunks = "".join(chunk["text"] for chunk in reasoning.get("chunks", ()))
    op["reasoning"] = reasoning.get("final", chunks)
    op["request"] = plain(sent(request)) if op["kind"] == "llm" else request if op["kind"] == "tool" else None
    if "endedAt" in op:
        op["response"] = response
        op["latency"] = op["endedAt"] - op["startedAt"]
    else:
        op["response"] = plain(answer(response, "")) if op["kind"] == "llm" else None
    del op["logs"], op["accounting"]


def drop_null(members, name):
    """Leave a member out that is null."""
    if members.get(name, 0) is None:
        del members[name]


def plain(value):
    """Return Structs as plain values."""
    return json.decode(json.encode(value))


def agents(tree: Tree):
    """Return the agents of a tree's sessions, in order."""
    return [session.agent_id for session in walk_sessions(tree.session)]
