import re

import pytest

from optree_formats.markdown import LogEvent, Refused, extract_events, read_log, tool_call, tool_error
from optree_formats.markdown.events import KINDS
from tests.formats.markdown.logs import call, log

EVENTS = {
    "context_assembly": {
        "budget": 28000, "used": 23456, "included": ["a.md", "b.md"], "excluded": ["old_log.md"], "warning": "Budget usage at 84%",
    },
    "gc_run": {"trigger": "budget", "freed_tokens": 5000, "files_affected": 3, "action": "summarize_then_evict"},
    "repair": {"demon": "checklist_repairer", "action": "created", "path": "hot.yml", "stub_contents": "keep: []"},
    "bootstrap": {"files_created": ["output.md", "session-log.md", "working-set.yml"]},
    "model_input": {"tokens": 2500, "files_in_context": ["a.md", "b.md"], "budget_usage": 0.89},
    "model_output": {"tokens": 500, "tool_calls": 1, "text_length": 1200},
    "user_message": {"length": 150, "attachments": ["file.png"]},
    "user_approval": {"action": "tool_call", "tool": "terminal.run", "approved": True, "command_preview": "npm test"},
    "tool_result": {"call_id": "call-001", "success": True, "duration_ms": 12, "result": {"lines": 50}},
    "recovery": {"from": "corruption", "backup": "session-log.md.corrupted"},
    "model_turn": {"turn": 3},
    "working_set_update": {"added": ["a.md"]},
    "cache_advice": {"pin": ["a.md"]},
    "summary_created": {"path": "summary.md"},
    "error": {"code": "TIMEOUT", "message": "too slow"},
    "warning": {"message": "nearly full"},
}  # fmt: skip
"""Each type with the fields that the seed's examples have."""


@pytest.mark.parametrize("kind", EVENTS)
def test_every_type_comes_back(kind, tmp_path):
    """Every type keeps its fields (S3-21, S3-23, S3-24, S3-25, S3-26, S3-27, S3-28, S3-29, S3-30, S3-31, S3-32, S3-75)."""
    made = log(tmp_path, verbosity="verbose")
    made.append(LogEvent(kind, EVENTS[kind]))
    found = extract_events(made.path)[1]
    timed = "timestamp" in KINDS[kind].optional
    assert {"type": kind, **EVENTS[kind]} == {key: value for key, value in found.items() if key != "timestamp"}
    assert timed == ("timestamp" in found)


def test_first_and_last_event(tmp_path):
    """The session's start comes first with id, protocol and purpose, its end last with reason and counted stats (S3-17, S3-18)."""
    made = log(tmp_path, purpose="Debugging the expression parser")
    made.append(call())
    made.end("user_exit", stats={"files": 3})
    first, *_, last = extract_events(made.path)
    assert {
        "type": "session_start", "timestamp": "2023-11-14T22:13:20Z", "session_id": "sess-001", "protocol": "EVENT-LOG/0.2",
        "purpose": "Debugging the expression parser",
    } == first  # fmt: skip
    assert {
        "type": "session_end", "timestamp": "2023-11-14T22:13:22Z", "session_id": "sess-001", "reason": "user_exit",
        "stats": {"turns": 0, "tools": 1, "repairs": 0, "files": 3},
    } == last  # fmt: skip


@pytest.mark.parametrize("args", [{}, {"path": "a"}, {"why": ""}, {"why": "  \n"}, {"why": None}, {"why": 3}, None])
def test_call_without_why_is_refused(args, tmp_path):
    """A call that does not say why is refused with the code MISSING_WHY, and nothing is written (S3-19, S3-20, S3-74)."""
    made = log(tmp_path)
    before = made.path.read_bytes()
    with pytest.raises(Refused) as refused:
        made.append(LogEvent("tool_call", tool="fs.read", call_id="1", **({} if args is None else {"args": args})))
    assert ("MISSING_WHY", True) == (refused.value.error["code"], refused.value.error["recoverable"])
    assert {"code", "message", "recoverable", "suggestion"} == refused.value.error.keys()
    assert before == made.path.read_bytes()


@pytest.mark.parametrize(
    "event",
    [
        LogEvent("Tool Call"),
        LogEvent("a: b"),
        LogEvent("tool_result", call_id="1"),
        LogEvent("tool_error", call_id="1", error="broke"),
        LogEvent("tool_error", call_id="1", error={"message": "no code"}),
        LogEvent("repair", action="created"),
    ],
)
def test_incomplete_events_are_refused(event, tmp_path):
    """An event without what its type must have is refused with INVALID_ARGS (S3-22, S3-74)."""
    made = log(tmp_path)
    with pytest.raises(Refused, match="INVALID_ARGS") as refused:
        made.append(event)
    assert refused.value.error["suggestion"]


def test_error_is_linked_to_its_call(tmp_path):
    """A failure has code, message and suggestion, the call's id, and in its heading the call's tool (S3-22, S3-33, S3-74)."""
    made = log(tmp_path)
    made.append(call(7, "fs.write"))
    made.append(tool_error("call-007", "PERMISSION_DENIED", "read-only", suggestion="ask"))
    entry = read_log(made.path).entries[-1]
    assert {"code": "PERMISSION_DENIED", "message": "read-only", "suggestion": "ask"} == entry.fields["error"]
    assert ("call-007", "Tool Error: fs.write") == (entry.fields["call_id"], entry.title)


def test_more_fields_and_types_are_welcome(tmp_path):
    """Fields and types that nobody has named are kept as they are (S3-34)."""
    made = log(tmp_path)
    made.append(LogEvent("demon_woke", mood="curious", nested={"deep": [{"er": 1}]}))
    made.append(tool_call("fs.read", {"path": "a"}, why="look", call_id="1", priority=3))
    _, first, second = extract_events(made.path)
    assert {"type": "demon_woke", "mood": "curious", "nested": {"deep": [{"er": 1}]}} == first
    assert 3 == second["priority"]


def test_good_entry_of_the_seed(tmp_path):
    """Comments stand before the field that they explain, as in the seed's good entry, and are read back (S3-72, S3-73)."""
    made = log(tmp_path)
    event = tool_call("fs.write", {"path": "output.md", "content": "..."}, why="Append final summary", call_id="c")
    event.comment("args.why", "Appending final summary after all tests passed").comment("args.why", "This concludes the debugging session")
    made.append(event)
    written = """args:
  path: output.md
  content: "..."
  # Appending final summary after all tests passed
  # This concludes the debugging session
  why: "Append final summary"
"""
    assert written in made.path.read_text()
    entry = read_log(made.path).entries[-1]
    assert "Appending final summary after all tests passed\nThis concludes the debugging session" == entry.comment("args.why").before


def test_values_of_any_kind(tmp_path):
    """Values that YAML has no form for are marked as everywhere in optree; none is refused (S3-34)."""
    made = log(tmp_path)
    made.append(LogEvent("x", a=float("nan"), b=b"\0", c=object(), d={1: {2}}))
    found = extract_events(made.path)[-1]
    assert ({"$float": "nan"}, {"$bytes": "AA=="}, {"1": [2]}) == (found["a"], found["b"], found["d"])
    assert re.match("<object object", found["c"]["$repr"])
