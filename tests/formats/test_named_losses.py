"""What an export says is left out is all that is: whatever else a session has comes back."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings

from optree._cli.format_loss import lacking
from tests.formats.held import WITHOUT, sessions, whole
from tests.formats.samples import WRITTEN, sample
from tests.formats.streams import streams
from tests.strategies import play, programs

EVENTS = [form for form in WRITTEN if form.name.startswith("events")]
TREES = [form for form in WRITTEN if form not in EVENTS]
some = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors])


BESIDE = {"ai-agent", "runId", "warnings", "errors"}
"""Attributes in which formats note what a file says otherwise than a tree."""


def named(form, tree):
    """Return the words for what a format leaves out of a tree, without how many there are."""
    return [one.rpartition(" (")[0] for one in lacking(tree, form)]


def kept(tree, words):
    """Return a tree as plain values, without what is named."""
    plain = whole(tree)
    for word in words:
        WITHOUT[word](plain)
    for session in sessions(plain):  # what a file says otherwise than a tree, and where it came from, is noted beside
        for node in (session, *session["turns"]):
            node["attributes"] = {key: value for key, value in node.get("attributes", {}).items() if key not in BESIDE}
    return plain


def through(form, tree):
    """Return a tree as it is after a way out and in."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / f"t{form.suffix}"
        form.write(tree, target)
        [back] = form.read(target, strict=True).trees
        return back


@pytest.mark.parametrize("form", TREES, ids=[form.name for form in TREES])
@some
@given(programs)
@example(program=[("begin_op", 0, "llm", "openai:gpt-4o", None), ("request", 0, [], None)])
def test_all_that_is_lost_of_a_session_is_named(form, program):
    """Any session comes back equal but for what the export of it names: nothing is lost in silence."""
    tree = play(program).folded()
    words = named(form, tree)
    assert kept(tree, words) == kept(through(form, tree), words)


@pytest.mark.parametrize("form", TREES, ids=[form.name for form in TREES])
def test_all_that_is_lost_of_a_session_with_everything_is_named(form):
    """The same of a session with messages, thoughts, costs, logs, a failure and a sub-agent."""
    tree = sample()
    words = named(form, tree)
    assert kept(tree, words) == kept(through(form, tree), words)


BARE = {"id", "path", "traceId", "agentId", "callPath", "originTxnId", "parentTxnId", "startedAt", "turns", "messages", "attributes"}


@pytest.mark.parametrize("form", EVENTS, ids=[form.name for form in EVENTS])
@some
@given(programs)
def test_a_conversation_alone_is_nothing_lost(form, program):
    """Where an export as events names nothing, the session has nothing but its transcript."""
    tree = play(program).folded()
    if not lacking(tree, form):
        plain = whole(tree)
        assert ([], {}, set()) == (plain["turns"], plain.get("attributes", {}), plain.keys() - BARE)


@pytest.mark.parametrize("form", WRITTEN, ids=[form.name for form in WRITTEN])
@some
@given(streams)
def test_each_word_can_be_told(form, tree):
    """Each thing that a format cannot hold is looked for in each session; none is left to be guessed."""
    assert {one.rpartition(" (")[0] for one in lacking(tree, form)} <= set(form.cannot_hold)
    assert not [one for one in lacking(tree, form) if one in form.cannot_hold]
