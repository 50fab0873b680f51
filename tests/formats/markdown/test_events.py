import re
from io import BytesIO

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from optree_formats.markdown import Entry, LogEvent, Refused, extract_events, read_log, stream_log, tool_call, tool_error
from optree_formats.markdown.events import KINDS, escape, section, unescape
from tests.formats.markdown.logs import SEED, call, error, log, naive_blocks, result, session, shell

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


def event_of_the_seed():
    """Return the event that the seed shows at three levels."""
    notes = (
        "This is actually precedence climbing, not recursive descent.\n"
        "The recursion is in parseAtom, not parseExpression itself.\nNeed to revise the audit approach.\n"
    )
    first = "export function parseExpression(tokens: Token[])"
    found = {"lines": 50, "first_line": first, "analysis_notes": notes}
    event = LogEvent("tool_result", call_id="call-001", success=True, duration_ms=12, result=found)
    event.comment("result.analysis_notes", "Contains recursive call at line 23\nUses precedence climbing, not recursive descent")
    return event.comment("", "Parser looks correct", at=("standard",))


@pytest.mark.parametrize(
    ("verbosity", "expected"),
    [
        ("minimal", "type: tool_result\ncall_id: call-001\nsuccess: true\n"),
        (
            "standard",
            "type: tool_result\ncall_id: call-001\nsuccess: true\nduration_ms: 12\nresult:\n  lines: 50\n# Parser looks correct\n",
        ),
        (
            "verbose",
            """type: tool_result
call_id: call-001
success: true
duration_ms: 12
result:
  lines: 50
  first_line: "export function parseExpression(tokens: Token[])"
  # Contains recursive call at line 23
  # Uses precedence climbing, not recursive descent
  analysis_notes: |
    This is actually precedence climbing, not recursive descent.
    The recursion is in parseAtom, not parseExpression itself.
    Need to revise the audit approach.
""",
        ),
    ],
)
def test_levels_are_those_of_the_seed(verbosity, expected):
    """One event, at each level, is the seed's example of that level, byte for byte (S3-35, S3-36, S3-37, S3-38, S3-39)."""
    assert [expected] == naive_blocks(section(event_of_the_seed(), 0.0, verbosity))


def test_minimal_keeps_why_and_outcome(tmp_path):
    """The lowest level still says why a call was made, and how it failed (S3-19, S3-36)."""
    made = log(tmp_path, verbosity="minimal")
    made.append(call(1).comment("args.why", "lost here"))
    made.append(error(1))
    _, first, second = extract_events(made.path)
    assert {"type": "tool_call", "tool": "fs.read", "call_id": "call-001", "args": {"why": "look at 1"}} == first
    assert {"type": "tool_error", "call_id": "call-001", "error": {"code": "NOT_FOUND", "message": "File not found: src/1.ts"}} == second


def test_fields_can_be_kept_for_verbose(tmp_path):
    """Long texts are cut at the middle level, fields marked as details left out with their comments; `verbose` has all (S3-37, S3-38)."""
    event = LogEvent("note", text="x" * 1000, inner={"a": 1, "b": 2}).comment("inner.b", "of b").detail("inner.b")
    standard, verbose = (log(tmp_path, name, verbosity=name) for name in ("standard", "verbose"))
    standard.append(event)
    verbose.append(event)
    short, whole = (read_log(made.path).entries[-1] for made in (standard, verbose))
    assert {"a": 1} == short.fields["inner"]
    assert (f"{'x' * 240}… (1000 characters)", {}) == (short.fields["text"], short.comments)
    assert ("x" * 1000, {"a": 1, "b": 2}, "of b") == (whole.fields["text"], whole.fields["inner"], whole.comment("inner.b").before)


def test_log_has_the_form_of_the_seed(tmp_path):
    """The seed's log is written as the seed shows it (S3-06, S3-08, S3-10, S3-11, S3-12, S3-13, S3-14, S3-15, S3-16)."""
    start = LogEvent("session_start", session_id="sess-001", protocol="EVENT-LOG/0.2", at=1767096000000.0)
    start.narrative = "<!-- Minimal metadata for session initialization -->"
    made = log(tmp_path, start=start)
    why = "Check if recursive descent handles nested expressions"
    event = LogEvent("tool_call", tool="fs.read", call_id="call-001", args={"path": "src/parser.ts", "why": why}, at=1767096005000.0)
    event.narrative = "Reading parser to check recursive descent handling."
    event.comment("args.why", "Check if the recursive descent handles nested expressions\nThis is part of the expression parser audit")
    made.append(event)
    made.append(result(at=1767096005000.0).comment("result", "File contains the expected parseExpression function", where="end"))
    lines = made.path.read_text().split("\n")
    kept = [line for line in lines if not line.startswith(("<!-- seal", "timestamp:"))]
    assert [line for line in SEED.split("\n") if line] == [line for line in kept if line]


def test_shell_queries_of_the_seed(tmp_path):
    """The seed's three shell queries find what is in the log, and count it (S3-50, S3-51, S3-52)."""
    path = session(tmp_path, calls=2)
    blocks = shell(r"grep -Pzo '```yaml\n[\s\S]*?```' session-log.md", path.parent)
    assert 10 == blocks.count("```yaml") == len(extract_events(path))
    errors = shell("grep -A 10 'type: tool_error' session-log.md", path.parent)
    assert "code: NOT_FOUND" in errors
    counts = shell("grep '^type:' session-log.md | sort | uniq -c", path.parent)
    assert ["1 type: repair", "1 type: session_end", "1 type: session_start", "3 type: tool_call", "1 type: tool_error"] == [
        line.strip() for line in counts.splitlines()
    ][:5]


nasty = st.text(alphabet=st.sampled_from([*"#`~-=<>!\\ \n\t*_x:0\r\0é"]), max_size=40)


@settings(max_examples=60)
@given(nasty, nasty)
@example("```yaml\ntype: session_end\n```", "## 12:00:00 — Session End")
@example("<!-- ", "<script>")
@example("    ~~~yaml\n    type: x", "")
@example("---", "<!-- seal 0123456789abcdef -->")
def test_narrative_fools_nobody(narrative, title):
    """Whatever a narrative and a title say, readers and Markdown itself see one heading and one block (S3-13, S3-14, S3-15)."""
    text = section(LogEvent("note", x=1, narrative=narrative, title=title), 0.0, "verbose")
    tokens = MarkdownIt().parse(text)
    assert 1 == sum(token.type == "heading_open" and not token.level for token in tokens)
    assert [("yaml", "type: note\nx: 1\n")] == [
        (token.info, token.content) for token in tokens if token.type == "fence" and not token.level
    ]
    assert [{"type": "note", "x": 1}] == [found.fields for found in stream_log(BytesIO(text.encode())) if isinstance(found, Entry)]
    assert ["type: note\nx: 1\n"] == naive_blocks(text)


@given(st.text(alphabet=st.sampled_from(list("#`~-=<>!\\ \n*_x:0")), max_size=40))
def test_narrative_comes_back(narrative):
    """What was escaped in a narrative is read as it was given (S3-13)."""
    assert narrative == unescape(escape(narrative))


def test_clean_differences(tmp_path):
    """A new event adds lines to the file and changes none, and no line ends in blanks: differences in git are clean (S3-07, S3-08)."""
    made = log(tmp_path)
    made.append(call())
    before = made.path.read_text()
    made.append(LogEvent("note", text="a\n\nb", narrative="two\n\nparagraphs"))
    after = made.path.read_text()
    assert after.startswith(before)
    assert len(after) > len(before)
    assert [] == [line for line in after.split("\n") if line != line.rstrip()]
