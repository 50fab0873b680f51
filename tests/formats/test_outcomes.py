"""How nodes ended, out and in again: what nobody knows is not made up."""

from io import BytesIO

import pytest

from optree._cli.sessions import state_of
from optree._console import LineOptions, LineRenderer
from optree._formats.plain_json import JSON
from optree._tree import format_tree, walk_ops, walk_sessions
from optree._tree.text import state
from optree._tree.unfold import unfold
from optree.conversation.to_tree import tree_of as conversation_tree
from optree.conversation.wire import stream_events
from optree_formats.markdown.format import FORMAT as MARKDOWN
from optree_formats.transcript import FORMAT as TRANSCRIPT
from optree_otel.incoming import read, sessions
from tests.formats.examples import JACK_AND_JILL
from tests.formats.samples import sample
from tests.otel.incoming.test_own import sent


def states(tree):
    """Return how each node of a tree ended, by its kind and path."""
    nodes = [*walk_sessions(tree.session)]
    nodes += [turn for session in nodes for turn in session.turns]
    nodes += [op for _, _, op in walk_ops(tree.session)]
    return {(type(node).__name__, node.path): state(node) for node in nodes}


def untold():
    """Return a session all of whose nodes have ended, and of none of which anybody says how."""
    tree = sample()
    for session in walk_sessions(tree.session):
        session.status = session.success = session.error = None
        for turn in session.turns:
            turn.status = turn.error = None
            for op in turn.ops:
                op.status = op.error = None
    return tree


def of_spans(tree, _folder):
    """Return a tree as it comes back from its spans."""
    found = read(sent(tree))
    [again] = sessions(found.spans, found.notes)
    return again


def of_format(form):
    """Return what writes a tree in a format and reads it."""

    def there_and_back(tree, folder):
        form.write(tree, folder / f"t{form.suffix}")
        [again] = form.read(folder / f"t{form.suffix}", strict=True).trees
        return again

    return there_and_back


WAYS = {"markdown": of_format(MARKDOWN), "transcript": of_format(TRANSCRIPT), "json": of_format(JSON), "spans": of_spans}


def conversation():
    """Return a conversation, in which no line says how an agent ended."""
    lines = BytesIO(JACK_AND_JILL.encode())
    return conversation_tree([event for found in stream_events(lines) for event in found], txn="chat", start=1e12)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tree", [sample, untold, conversation])
def test_outcomes_come_back(tmp_path, way, tree):
    """Each way out says of each node what its tree says, also that nobody knows how it ended."""
    expected = states(tree())
    assert expected == states(WAYS[way](tree(), tmp_path))


@pytest.mark.parametrize("made", [untold, conversation])
def test_views_say_no_more(made):
    """The tree as text, the console's lines and a session's state give no outcome where there is none."""
    tree = made()
    renderer = LineRenderer("t", LineOptions(verbose=True))
    lines = "\n".join(line for record in unfold(tree) for line in renderer.render(record))
    shown = f"{format_tree(tree.session)}\n{lines}"
    assert [] == [word for word in ("✓", "failed", "interrupted", "cancelled", " ok") if word in shown]
    assert "ended" == state_of(tree.session, None)
