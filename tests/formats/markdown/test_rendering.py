from io import BytesIO

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from optree_formats.markdown import Entry, LogEvent, extract_events, read_log, stream_log
from optree_formats.markdown.events import escape, section, unescape
from tests.formats.markdown.logs import SEED, call, error, log, naive_blocks, result, session, shell


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
