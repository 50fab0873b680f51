from datetime import UTC, datetime

import pytest
from ruamel.yaml import YAML

from optree.errors import SetupError
from optree_formats.markdown import LogEvent, read_log, state_at, summarise, write_summary
from optree_formats.markdown.summary import summary_text
from tests.formats.markdown.logs import STARTED, call, error, log, result, session


@pytest.fixture
def path(tmp_path):
    """A session of some minutes with calls of two tools, errors of two codes and repairs of two demons."""
    made = log(tmp_path)
    for number in range(5):
        made.append(LogEvent("user_message", length=number))
    for number in range(4):
        made.append(call(number, "fs.read"))
    made.append(call(9, "fs.write"))
    for code in ("NOT_FOUND", "TIMEOUT", "NOT_FOUND"):
        made.append(error(1, code))
    for demon in ("checklist_repairer", "sticky_note_maintainer", "sticky_note_maintainer"):
        made.append(LogEvent("repair", demon=demon, action="created"))
    made.append(LogEvent("note", at=1_700_000_000_000.0 + 150 * 60_000))
    made.end(retrospective="Started with parser audit.\nMain goal achieved.")
    return made.path


def test_summary_is_made_at_the_end(path):
    """The session's end makes session-summary.yml with the seed's fields (S3-64, S3-65, S3-66, S3-67, S3-68, S3-69)."""
    text = path.with_name("session-summary.yml").read_text()
    assert text.startswith("# session-summary.yml (generated at session end)\nsession_id: sess-001\n")
    found = YAML(typ="safe", pure=True).load(text)
    assert ("sess-001", 150, 5) == (found["session_id"], found["duration_minutes"], found["turns"])
    assert {"fs.read": 4, "fs.write": 1} == found["tool_usage"]
    assert {"total": 3, "by_code": {"NOT_FOUND": 2, "TIMEOUT": 1}} == found["errors"]
    assert {"total": 3, "by_demon": {"sticky_note_maintainer": 2, "checklist_repairer": 1}} == found["repairs"]
    assert "retrospective: |\n  Started with parser audit.\n  Main goal achieved.\n" in text


def test_totals_are_sums(path):
    """Totals are the sums of their maps, also where an error names no code and a repair no demon (S3-70)."""
    entries = read_log(path).entries
    for entry in entries:
        if entry.number % 3 == 0:
            entry.fields = {key: value for key, value in entry.fields.items() if key not in ("error", "demon", "tool")}
    found = summarise(entries)
    assert 3 == found["errors"]["total"] == sum(found["errors"]["by_code"].values())
    assert 3 == found["repairs"]["total"] == sum(found["repairs"]["by_demon"].values())
    assert 5 == sum(found["tool_usage"].values())


def test_summary_has_comments(path):
    """Comments stand beside the fields of a summary that they are for, as in the seed (S3-69, S3-71)."""
    made = summarise(read_log(path).entries)
    text = summary_text(made, {"tool_usage.fs.read": "Heavy reading - exploration phase"})
    assert "  fs.read: 4  # Heavy reading - exploration phase\n" in text


def test_summary_without_words(tmp_path):
    """Without a retrospective the summary says what can be counted, and it can be made again at any time (S3-05, S3-69)."""
    path = session(tmp_path, calls=4)
    first = path.with_name("session-summary.yml").read_text()
    assert first != write_summary(path).read_text()
    assert "1 turns with 5 tool calls." in path.with_name("session-summary.yml").read_text()


def test_summary_keeps_the_seal(path):
    """The last seal stands in the summary: a log that is rewritten, seals and all, does not fit it any more (S3-49)."""
    found = YAML(typ="safe", pure=True).load(path.with_name("session-summary.yml").read_text())
    assert path.read_text().rstrip("-\n").endswith(f"<!-- seal {found['seal']} -->")


@pytest.fixture
def calls(tmp_path):
    """A session with two calls that overlap, context, an error, and an end; one event a second."""
    made = log(tmp_path)
    made.append(LogEvent("user_message", length=5))
    made.append(LogEvent("model_input", tokens=2500, files_in_context=["a.md", "b.md"], budget_usage=0.89))
    made.append(call(1))
    made.append(call(2))
    made.append(result(1))
    made.append(LogEvent("context_assembly", budget=100, used=40, included=["b.md"], excluded=["a.md"]))
    made.append(error(2))
    made.end()
    return made.path


@pytest.mark.parametrize(
    ("at", "events", "open_calls", "files"),
    [
        (1, 1, [], []),
        (3, 3, [], ["a.md", "b.md"]),
        (5, 5, ["call-001", "call-002"], ["a.md", "b.md"]),
        (6, 6, ["call-002"], ["a.md", "b.md"]),
        (7, 7, ["call-002"], ["b.md"]),
        (None, 9, [], ["b.md"]),
        (STARTED * 1e3 + 4000.0, 5, ["call-001", "call-002"], ["a.md", "b.md"]),
        (datetime.fromtimestamp(STARTED + 5, UTC), 6, ["call-002"], ["a.md", "b.md"]),
        ("22:13:25", 6, ["call-002"], ["a.md", "b.md"]),
        ("2023-11-14T22:13:26.5Z", 7, ["call-002"], ["b.md"]),
    ],
)
def test_any_past_state(calls, at, events, open_calls, files):
    """The state after any event, or at any time, comes out of the log: open calls, files in context, counts (S3-03)."""
    state = state_at(calls, at)
    assert (events, open_calls, files) == (state.events, list(state.open_calls), state.files_in_context)


def test_state_at_the_end(calls):
    """At the end the counts of events and turns, the errors and what was left out are there, and that it has ended (S3-03, S3-05)."""
    state = state_at(calls)
    assert ("sess-001", True, 1, 2, ["a.md"], 0.4) == (
        state.session_id, state.ended, state.turns, state.counts["tool_call"], state.excluded, state.budget_usage,
    )  # fmt: skip
    assert ["NOT_FOUND"] == [found["code"] for found in state.errors]
    assert not state_at(read_log(calls).entries, 8).ended


def test_times_that_are_none_are_refused(calls):
    """A text that is no time is refused."""
    with pytest.raises(SetupError, match="no time"):
        state_at(calls, "yesterday")
