"""Trees to write: an agent that asks, calls tools and a sub-agent, in parallel too."""

from optree._builder import SessionTreeBuilder
from optree.testing import Ticking

QUESTION = {"role": "user", "content": "Review main.go"}
SYSTEM = {"role": "system", "content": "Be brief"}
CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path":"main.go"}'}},
    {"id": "c2", "type": "function", "function": {"name": "lint", "arguments": "{}"}},
]


def review(txn="t", levels=1):
    """Return the tree of a review: a model call with thoughts, two parallel tools, sub-agents *levels* deep, a second call."""
    root = SessionTreeBuilder("reviewer", txn=txn, now=Ticking(), attributes={"ingress": {"source": "cli"}})
    root.set_title("A review", status="at work")
    turn = root.begin_turn(user="Review main.go", system="Be brief")
    ask(root, [SYSTEM, QUESTION], {"role": "assistant", "content": "I look at it", "tool_calls": CALLS}, thought="First I should")
    read, other = root.begin_op("tool", "read"), root.begin_op("tool", "grep")
    root.set_request(other, {"pattern": "TODO"})
    root.set_request(read, {"path": "main.go"})
    root.set_response(read, "package main")
    read.end()
    other.end("failed", "no such file")
    descend(root, levels)
    check = root.begin_op("system", "check budget", attributes={"limit": 5})
    root.set_response(check, {"left": 3})
    check.end("cancelled")
    answered = [SYSTEM, QUESTION, {"role": "assistant", "content": None, "tool_calls": CALLS}]
    results = [
        {"role": "tool", "tool_call_id": "c1", "content": "package main"},
        {"role": "tool", "tool_call_id": "c2", "content": "clean"},
    ]
    ask(root, [*answered, *results], "Found 2 issues.")
    turn.end()
    root.begin_turn(user="thanks")
    root.end_session("ok", final_report={"issues": 2})
    return root.tree


def ask(builder, messages, response, thought=None):
    """Record a model's call."""
    op = builder.begin_op("llm", "openai:gpt-4o")
    builder.set_request(op, {"temperature": 0}, messages)
    builder.set_response(op, response)
    op.end(reasoning=thought)


def descend(builder, levels):
    """Record a sub-agent in a sub-agent, and so on."""
    if levels:
        op = builder.begin_op("session", f"sub{levels}")
        child = builder.attach_child_session(op, f"sub{levels}")
        child.begin_turn(user="look deeper")
        ask(child, [{"role": "user", "content": "look deeper"}], "nothing there")
        descend(child, levels - 1)
        child.end_session()
        op.end()


def unfinished():
    """Return a tree that a crash cut off: a sub-agent in the middle of a call, with a tool's call that has no result."""
    root = SessionTreeBuilder("reviewer", txn="t", now=Ticking())
    turn = root.begin_turn(user="why?")
    turn.assistant("let me see")
    op = root.begin_op("session", "sub")
    child = root.attach_child_session(op, "sub")
    child.begin_turn()
    call = child.begin_op("llm", "openai:gpt-4o")
    child.set_request(call, {}, [QUESTION])
    call.think("hm")
    child.set_response(call, "so f")
    tool = child.begin_op("tool", "read")
    child.set_request(tool, {"path": "main.go"})
    root.begin_op("tool", "wait")
    return root.tree
