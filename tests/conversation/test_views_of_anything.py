"""Views of generated streams, with links that lead nowhere or in circles, ids that come twice, and contents of any form."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optree.conversation.events import AgentCreated, PieceOfText, TranscriptEntry
from optree.conversation.viewer import SessionViewer
from optree.conversation.views.diagrams import diagram
from optree.conversation.views.rendering import to_markdown, to_text, value
from optree.conversation.views.sections import _SECTIONS, Ask, sections
from optree_formats.events import EVENTS
from tests.growth import SQUARE, growth

VIEWS = list(_SECTIONS)
OF_A_MESSAGE = ("flow", "references", "during")
names = st.sampled_from(["m1", "m2", "m3", "m4", "m5", "m6", "gone"])
agents = st.sampled_from(["a", "b", "c", "", "end"])
words = st.sampled_from(["hi", "hi there", "", "[b]: hi", "\n", "x" * 50, "日本 🎉", "\x1b[2J", "a;b#c"]) | st.text(max_size=8)
kinds = st.sampled_from(["text", "tool_use", "tool_result", "thinking", 7])
block = st.fixed_dictionaries({"type": kinds}, optional={
    "text": words | st.integers(),
    "id": names | st.none(), "name": words, "input": st.none() | words, "tool_use_id": names, "content": words,
})  # fmt: skip
content = st.none() | words | st.lists(block | words, max_size=3) | st.integers() | st.dictionaries(words, words, max_size=2)
call = st.fixed_dictionaries({}, optional={
    "id": names | st.none() | st.integers(), "function": st.none() | st.fixed_dictionaries({"name": words, "arguments": words}),
})  # fmt: skip
causes = st.lists(names | st.just("m1.c1"), max_size=2).map(tuple)
entry = st.builds(
    TranscriptEntry,
    message_id=names,
    agent_id=agents,
    role=st.sampled_from(["user", "assistant", "tool", "system", "strange"]),
    content=content,
    substance=st.none() | names,
    cause=causes,
    tool_calls=st.none() | st.lists(call, max_size=2),
    tool_call_id=st.none() | names,
    timestamp=st.none() | st.floats(allow_nan=False),
)
piece = st.builds(PieceOfText, message_id=names, agent_id=agents, content=content, cause=causes)
created = st.builds(AgentCreated, message_id=names, agent_id=agents, name=st.none() | words, parent=st.none() | agents, cause=causes)
streams = st.lists(entry | piece | created, max_size=12)

deliveries = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.sampled_from(["told", "other", "frame", "nothing"])))


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), deliveries, st.sets(st.sampled_from("abc")))
def test_dialog_has_each_content_once(authors, delivered, chosen):
    """A dialog has each content in the chosen transcripts once, in the author's words or the first heard (S0-73, S1-46, S0-33)."""
    events = [entry_of(f"m{number}", agent, "assistant", f"words {number}") for number, agent in enumerate(authors)]
    expected = {number: f"words {number}" for number, agent in enumerate(authors) if agent in chosen}
    order = list(expected)
    for place, (agent, about, how) in enumerate(delivered):
        number = about % len(authors)
        said = {"told": f"words {number}", "other": f"else {place}", "frame": f"[x]: words {number}", "nothing": None}[how]
        events.append(entry_of(f"d{place}", agent, "user", said, f"m{number}"))
        if agent in chosen and (said is not None or number in expected):
            expected.setdefault(number, said)
        if agent in chosen and number not in order:
            order.append(number)
    found = SessionViewer(events).extract_dialog(chosen)
    assert [{"message_id": f"m{number}", "content": expected[number]} for number in order if number in expected] == found


def entry_of(message_id, agent, role, said, substance=None, **more):
    """Return an entry."""
    return TranscriptEntry(message_id=message_id, agent_id=agent, role=role, content=said, substance=substance, **more)


def secrets():
    """Return events in which each of three agents has secrets that the others hear changed, empty, or not at all, and ids twice."""
    events = [AgentCreated(message_id=f"c{agent}", agent_id=agent, parent="a" if agent != "a" else None) for agent in "abc"]
    for agent, other, third in ("abc", "bca", "cab"):
        secret = f"secret{agent}"
        call = {"id": "call_1", "function": {"name": f"{secret}_tool", "arguments": secret}}
        events += [
            entry_of(f"s{agent}", agent, "system", secret),
            entry_of(f"k{agent}", agent, "assistant", None, tool_calls=[call]),
            PieceOfText(message_id=f"p{agent}", agent_id=agent, content=secret, cause=(f"k{agent}",)),
            entry_of(f"m{agent}", agent, "assistant", f"it is {secret}"),
            entry_of(f"m{agent}1", other, "user", "it is [REDACTED]", f"m{agent}"),
            entry_of(f"m{agent}2", third, "user", None, f"m{agent}"),
            entry_of(f"m{agent}3", agent, "user", f"again: {secret}", f"m{agent}1"),
            entry_of(f"m{agent}4", third, "user", "[x]: it is", f"m{agent}3"),
            entry_of(f"p{agent}1", other, "user", "made", f"p{agent}"),
            entry_of(f"p{agent}2", third, "user", None, f"p{agent}"),
            entry_of(f"r{agent}", agent, "tool", secret, None, tool_call_id="call_1"),
            entry_of("twice", agent, "user", secret),
        ]
    return events


def of_the_user(folder):
    """Return a stream of the later upstream form, read from a file and from the session that it becomes."""
    path = folder / "x"
    path.write_text(
        '{"message_id": "0", "event_type": "agent_created", "agent": "primary", "role": "primary", "parent": "user"}\n'
        '{"message_id": "1", "event_type": "fragment", "agent": "user", "cause": "user", "content": "Hi"}\n'
        '{"message_id": "2", "event_type": "transcript_entry", "agent": "primary", "role": "user", "content": "Hi", "substance": "1"}\n'
        '{"message_id": "3", "event_type": "agent_created", "agent": "late", "cause": "1"}\n'
    )
    return [SessionViewer(path), SessionViewer(EVENTS.read(path).trees[0])]


@pytest.mark.parametrize("imported", [0, 1], ids=["file", "session"])
def test_the_user_is_no_agent(tmp_path, imported):
    """Who is only the author of texts, and called ``user``, is in no view an agent, nor a parent; its words are its own (S1-62)."""
    viewer = of_the_user(tmp_path)[imported]
    assert ["primary", "late"] == list(viewer.list_agents())
    assert [("primary", None, 0), ("late", None, 0)] == [(one.agent_id, one.parent, one.depth) for one in viewer.agent_tree()]
    for view in ("transcripts", "perspective"):
        assert ["primary", "late"] == [section.title for section in sections(view, viewer, Ask())]
        assert ["primary", "late"] == list(value(view, viewer, Ask()))
    assert [("user", "Hi")] == [(row.who, row.text) for row in sections("dialog", viewer, Ask())[0].rows]
    drawn = "sequenceDiagram\n    participant p1 as user\n    participant p2 as primary\n    p1->>p2: Hi"
    assert drawn == diagram("dialog", viewer, Ask())
    assert "Note over p1: Hi" not in diagram("timeline", viewer, Ask()).partition("p1->>p2: Hi")[2]


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("view", VIEWS)
def test_secrets_of_others(view, heard):
    """What only agents said that are not chosen is in no view of the chosen ones, in no form (S0-33, S0-107)."""
    viewer = SessionViewer(secrets())
    messages = list(viewer.stream.by_id) if view in OF_A_MESSAGE else [None, "ma", "mb3", "pc", "twice"]
    told = set()
    for chosen in ("a", "b", "c", "ab", "bc", "ca"):
        for message in messages:
            ask = Ask(tuple(chosen), message, heard)
            found = sections(view, viewer, ask)
            shown = [to_text(found, 100), to_markdown(found), diagram(view, viewer, ask), str(value(view, viewer, ask))]
            for one in set("abc") - set(chosen):
                assert not [form for form in shown if f"secret{one}" in form], (chosen, message)
            told |= {one for one in chosen if any(f"secret{one}" in form for form in shown)}
    assert told == (set() if view == "agents" else set("abc"))


@given(streams)
def test_flow_ends(events):
    """A flow ends, has nothing twice, and ends with the message that was asked about (S0-76, S1-49)."""
    viewer = SessionViewer(events)
    for one in ("m1", "m2", "m3", "gone"):
        found = [event["message_id"] for event in viewer.trace_message_flow(one)]
        assert len(set(found)) == len(found)
        assert found[-1:] == ([one] if one in viewer.stream.by_id else [])


@given(streams)
def test_timeline_is_whole(events):
    """Each event is in the timeline exactly once, in the order of the stream (S0-100, S0-108)."""
    viewer = SessionViewer(events)
    assert [event.message_id for event in events] == [one.message_id for one in viewer.timeline()]
    assert Counter(one["event_type"] for one in viewer.events) == Counter(one.event_type for one in viewer.timeline())


@given(streams)
def test_each_agent_once(events):
    """Each agent stands in the tree once, below its parent, whatever circles there are (S0-101)."""
    tree = SessionViewer(events).agent_tree()
    assert sorted({event.agent_id for event in events} - {""}) == sorted(one.agent_id for one in tree)
    above = []
    for one in tree:
        del above[one.depth :]
        assert one.parent == (above[-1] if above else None)
        above.append(one.agent_id)


@given(streams)
def test_roots_are_stable(events):
    """A substance's root is the root of all that lead to it: what is a copy of the same has the same original (S0-103)."""
    stream = SessionViewer(events).stream
    for one, event in stream.by_id.items():
        root = stream.root(one)
        assert root == stream.root(root)
        if isinstance(event, TranscriptEntry) and event.substance is not None:
            assert root == stream.root(event.substance)


@settings(max_examples=60)
@given(streams, st.sampled_from(VIEWS), st.booleans(), st.lists(agents, unique=True, max_size=3), st.none() | names)
def test_nothing_raises(events, view, heard, chosen, message):
    """Every view of every stream can be shown in every form, of all or of some agents (S0-108)."""
    viewer = SessionViewer(events)
    ask = Ask(tuple(chosen), "gone" if message is None and view in OF_A_MESSAGE else message, heard)
    found = sections(view, viewer, ask)
    for width in (20, 80):
        assert all("\x1b" not in line for line in to_text(found, width).split("\n"))
    assert "\x1b" not in to_markdown(found)
    assert diagram(view, viewer, ask).startswith(("sequenceDiagram", "flowchart"))
    value(view, viewer, ask)


def many(count):
    """Return so many events: 20 agents, each of whose words three others hear, one of them over a copy, one in other words."""
    events = [AgentCreated(message_id=f"c{number}", agent_id=f"a{number}", parent="a0" if number else None) for number in range(20)]
    number = 0
    while len(events) < count:
        number += 1
        said = f"this is number {number} of what is said here"
        events.append(TranscriptEntry(message_id=f"m{number}", agent_id=f"a{number % 20}", role="assistant", content=said))
        heard = [
            (f"[a{number % 20}]: {said}", f"m{number}"),
            (f"again: {said}", f"m{number}_0"),
            (said.replace("number", "[…]"), f"m{number}"),
        ]
        events += [
            TranscriptEntry(message_id=f"m{number}_{k}", agent_id=f"a{(number + k + 1) % 20}", role="user", content=text, substance=same)
            for k, (text, same) in enumerate(heard)
        ]
    return events


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_ten_thousand(view):
    """A view of 10,000 events takes time as their number deserves: eight times as long as one of 1,250 (S0-109)."""
    ask = Ask(message="m100_1") if view in ("flow", "references", "during") else Ask()

    def viewing(count):
        events = many(count)
        assert "\n" in to_text(sections(view, SessionViewer(events), ask), 100)
        return lambda: to_text(sections(view, SessionViewer(events), ask), 100)

    assert SQUARE > growth(viewing, 1250)


def test_long_chains():
    """A chain of 20,000 copies, and agents 5,000 deep, are followed to their ends (S0-76)."""
    events = [
        TranscriptEntry(message_id=f"m{n}", agent_id="a", role="user", content="x", substance=f"m{n - 1}" if n else None)
        for n in range(20_000)
    ]
    events += [AgentCreated(message_id=f"c{n}", agent_id=f"g{n}", parent=f"g{n - 1}" if n else None) for n in range(5_000)]
    viewer = SessionViewer(events)
    assert "m0" == viewer.stream.root("m19999")
    assert 20_000 == len(viewer.trace_message_flow("m19999"))
    assert 4_999 == viewer.agent_tree()[-1].depth
