"""A session with something of everything, and a file of each format."""

import shutil
from pathlib import Path

from optree._builder import SessionTreeBuilder
from optree._formats.installed import installed_formats
from optree.testing import Ticking

FORMATS, _ = installed_formats()
WRITTEN = [form for form in FORMATS if form.suffix]
"""Those that are not only read."""
DATA = Path(__file__).with_name("agents") / "data"
FILES = {
    "claude-code": DATA / "claude-code" / "81c21c3f-7545-4734-9c49-5010cf0d5d6d.jsonl",
    "codex": DATA / "codex" / "rollout-2026-11-23T15-52-04-01a2091b-7850-7d81-ac35-2d30a6d1606e.jsonl",
    "inspect": DATA / "inspect" / "sums.eval",
    "openai-agents": DATA / "openai-agents" / "chat.jsonl",
}
"""By name of a format that is only read, a file that the program itself wrote."""


def placed(form, target):
    """Put a file of a format at *target*, of the sample session where the format is written; returns it, or the main one of several."""
    if form.suffix:
        return form.write(sample(), target)[0]
    shutil.copyfile(FILES[form.name], target)
    return target


def sample():
    """Return a tree: two turns, a model call with a history, a failed tool, a sub-agent, messages with links, costs, logs, thoughts."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking(), attributes={"ingress": {"source": "cli"}})
    root.set_title("Why the sky is blue", status="looking")
    question = {"role": "user", "content": "why?"}
    root.append_message(question, message_id="msg_001")
    turn = root.begin_turn(user="why?", system="be brief")
    call = root.begin_op("llm", "openai:gpt-4o", turn=turn)
    root.set_request(call, {"temperature": 0.2}, [question])
    call.think("the user ")
    call.think("wants to know")
    call.log("retrying after 429", "WRN")
    call.account(input_tokens=819, output_tokens=64, cache_read_tokens=7, cost_usd=0.00311)
    root.set_response(call, {"role": "assistant", "content": "let me look"})
    call.end(reasoning="the user wants to know")
    tools = [{"id": "c1", "type": "function", "function": {"name": "task", "arguments": '{"name": "reader"}'}}]
    root.append_message({"role": "assistant", "content": None, "tool_calls": tools}, message_id="msg_002", cause=["msg_001"])
    sub = root.begin_op("session", "reader", turn=turn)
    child = root.attach_child_session(sub, "reader")
    child.append_message({"role": "user", "content": "read"}, message_id="msg_003", substance="msg_001")
    inner = child.begin_turn(user="read")
    tool = child.begin_op("tool", "fetch:get", turn=inner)
    child.set_request(tool, {"url": "http://localhost/"})
    tool.log("404", "ERR")
    tool.account(characters_in=12, status="failed", error="404")
    tool.end("failed", "404")
    child.append_message({"role": "assistant", "content": "nothing"}, message_id="msg_004")
    child.end_session("failed", "nothing to read")
    sub.end("failed", "nothing to read")
    root.append_message({"role": "tool", "tool_call_id": "c1", "content": "nothing"}, message_id="msg_005", substance="msg_004")
    turn.assistant("because")
    turn.end()
    root.begin_turn(user="thanks")
    root.end_session("ok", final_report={"answer": "because"})
    return root.tree
