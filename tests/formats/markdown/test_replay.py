from datetime import UTC, datetime

import pytest

from optree.errors import SetupError
from optree_formats.markdown import LogEvent, read_log, state_at
from tests.formats.markdown.logs import STARTED, call, error, log, result


@pytest.fixture
def path(tmp_path):
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
def test_any_past_state(path, at, events, open_calls, files):
    """The state after any event, or at any time, comes out of the log: open calls, files in context, counts (S3-03)."""
    state = state_at(path, at)
    assert (events, open_calls, files) == (state.events, list(state.open_calls), state.files_in_context)


def test_state_at_the_end(path):
    """At the end the counts of events and turns, the errors and what was left out are there, and that it has ended (S3-03, S3-05)."""
    state = state_at(path)
    assert ("sess-001", True, 1, 2, ["a.md"], 0.4) == (
        state.session_id, state.ended, state.turns, state.counts["tool_call"], state.excluded, state.budget_usage,
    )  # fmt: skip
    assert ["NOT_FOUND"] == [found["code"] for found in state.errors]
    assert not state_at(read_log(path).entries, 8).ended


def test_times_that_are_none_are_refused(path):
    """A text that is no time is refused."""
    with pytest.raises(SetupError, match="no time"):
        state_at(path, "yesterday")
