"""Views as text, Markdown and diagrams: any text stays what it is, and can break nothing."""

import html
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from optree._visible import columns, visible
from optree.conversation.events import AgentCreated, TranscriptEntry
from optree.conversation.viewer import SessionViewer
from optree.conversation.views.diagrams import MOST_CHARACTERS, Arrow, Edge, diagram, graph, label, sequence
from optree.conversation.views.perspectives import difference
from optree.conversation.views.rendering import code, to_markdown, to_text, value, wrapped
from optree.conversation.views.sections import _SECTIONS, Ask, Section, SectionRow, sections
from optree.conversation.views.stream import change
from optree.redaction import redact
from tests.growth import SQUARE, growth

VIEWS = list(_SECTIONS)
OF_A_MESSAGE = ("flow", "references", "during")

NASTY = [
    "end",
    '"quoted"',
    "[x]",
    "{y}",
    "a\nb",
    "🎉",
    "#59;",
    "a;b",
    "%%{init: {}}%%",
    "style a:#b;",
    "1. x",
    "- x",
    "`c`",
    "$$x$$",
    "<b>&amp;",
]
LABEL = re.compile(r"(?:[A-Za-z0-9 ,?'!.:()_-]|[^\x00-\x7f]|#\d+;|<br/>)*")
"""What mermaid 11 takes in any place of a label, as tried on its own parser with thousands of generated labels."""
anything = st.text(max_size=30) | st.sampled_from(NASTY)


def forms(view, viewer, ask):
    """Return a view in all its forms."""
    found = sections(view, viewer, ask)
    return to_text(found, 300), to_markdown(found), diagram(view, viewer, ask), json.dumps(value(view, viewer, ask))


def shown(found):
    """Return a label as mermaid shows it."""
    return html.unescape(re.sub(r"#(\d+);", r"&#\1;", found.replace("<br/>", "\n")))


@given(anything)
def test_labels_are_safe(text):
    """A label has no character that mermaid could understand, and no word at which its keywords begin (S0-103)."""
    found = label(text)
    assert LABEL.fullmatch(found)
    bare = re.sub(r"#\d+;|<br/>", "\0", found)
    assert not re.search(r"\b(end|style|classDef|click|graph|subgraph)|direction|:(?! )|[0-9][.)]|-[^A-Za-z0-9]|-$|\b_", bare)


@pytest.mark.parametrize("text", NASTY)
def test_labels_say_the_same(text):
    """A label shows the text that it was made of (S0-103)."""
    assert text == shown(label(text))


def test_long_labels():
    """A long label is cut, and says so."""
    assert 80 == len(shown(label("x" * 500)))
    assert shown(label("x " * 500)).endswith("…")


def test_sequence():
    """A sequence has its participants by ids of its own, arrows between them, and notes over one of them."""
    found = sequence(
        {"end": "the end", "b": "B"}, [Arrow("end", "b", "hi"), Arrow("b", None, "thinks"), Arrow("b", "end", "x", dotted=True)]
    )
    assert (
        "sequenceDiagram\n    participant p1 as the #101;nd\n    participant p2 as B\n"
        "    p1->>p2: hi\n    Note over p2: thinks\n    p2-->>p1: x"
    ) == found


def test_graph():
    """A graph has a node for each id, with its label where it comes first, and nodes without edges at the end."""
    found = graph({"x": "X", "y": "Y", "z": "Z"}, [Edge("x", "y", "to"), Edge("y", "gone", dotted=True)])
    assert 'flowchart TD\n    n1["X"] -->|"to"| n2["Y"]\n    n2 -.-> n3["gone"]\n    n4["Z"]' == found


def test_large_diagrams():
    """A diagram that mermaid would refuse for its size is cut, and says how much is missing."""
    arrows = [Arrow("a", "b", f"{'x' * 70} {number}") for number in range(1000)]
    found = sequence({"a": "A", "b": "B"}, arrows)
    drawn = found.count("->>")
    assert f"and {1000 - drawn} more" in found
    assert MOST_CHARACTERS + 100 > len(found)
    edges = [Edge(f"n{number}", f"n{number + 1}") for number in range(1000)]
    assert re.search(r'more\["and \d+ more"\]$', graph({}, edges))
    crowd = {f"a{number}": "A" for number in range(300)}
    assert "and 1 more" in sequence(crowd, [Arrow("a0", "a299", "hi"), Arrow("a0", "a1", "hi")])


def stream():
    """Return a viewer of Jack, whose words reach Jill changed, and Joe over Jill."""
    return SessionViewer(
        [
            AgentCreated(message_id="m0", agent_id="jack", name="Jack"),
            AgentCreated(message_id="m1", agent_id="jill", name="Jill", parent="jack"),
            TranscriptEntry(message_id="m2", agent_id="jack", role="assistant", content="password: 1234, [end]"),
            TranscriptEntry(message_id="m3", agent_id="jill", role="user", content="password: ***, [end]", substance="m2"),
            TranscriptEntry(message_id="m4", agent_id="joe", role="user", content="Jill: password: ***, [end]", substance="m3"),
        ]
    )


def test_dialog_in_text():
    """A dialog names who said a content and who heard it, and below it how it was heard where that differs (S0-102)."""
    assert [
        "Dialog of Jack, Jill, joe",
        "  m2  Jack           password: 1234, [end]  (heard by Jill, joe)",
        "  m3    Jill  heard  password: ***, [end]  (changed)",
        "  m4    joe   heard  Jill: password: ***, [end]  (changed)",
    ] == to_text(sections("dialog", stream(), Ask()), 80).split("\n")


def test_hooks_in_text():
    """A diff shows what went and what came in marks, and where it was said (S0-107)."""
    lines = to_text(sections("hooks", stream(), Ask()), 80).split("\n")
    assert ["  m3  Jill  heard  password: [-1234-]{+***+}, [end]", "                   ← m2 of Jack (jack)"] == lines[1:3]


def test_hooks_in_markdown():
    """In Markdown what went is struck out, what came is bold (S0-107)."""
    found = to_markdown(sections("hooks", stream(), Ask(agents=("jack", "jill"))))
    assert "- **Jill** heard `m3` *← m2 of Jack (jack)*\n  > password: ~~1234~~**\\*\\*\\***, \\[end\\]" in found


def test_diagrams():
    """Who heard whom is a sequence; how a content spread, what came from what, and who created whom are graphs (S0-101, S0-103, S0-106)."""
    viewer = stream()
    assert ["    p1->>p2: password: #42;#42;#42;, #91;#101;nd#93;"] == diagram("dialog", viewer, Ask(agents=("jack", "jill"))).split("\n")[
        3:
    ]
    agents = diagram("agents", viewer, Ask())
    assert 'n1["Jack"] --> n2["Jill"]' in agents
    spread = diagram("propagation", viewer, Ask(message="m2")).split("\n")
    assert ("flowchart LR", 'n1["m2 · Jack<br/>', True) == (spread[0], spread[1].strip()[:18], spread[2].startswith("    n2 -->"))
    assert "|" in diagram("causality", viewer, Ask())


@given(st.text(max_size=60), st.text(max_size=60))
def test_diff_joins_up(before, after):
    """The parts of a diff join up to both texts (S0-107)."""
    parts = difference(before, after)
    assert before == "".join(text for kind, text in parts if kind != "added")
    assert after == "".join(text for kind, text in parts if kind != "removed")


def test_long_diff():
    """Two long texts with nothing in common are compared in no time: one went, the other came."""
    before, after = "a " * 20_000, "b " * 20_000
    assert ["removed", "added", "same"] == [kind for kind, _ in difference(before, after)]


@given(st.text(max_size=80), st.integers(20, 40))
def test_wrapping(text, width):
    """Wrapped lines fit into their columns, wide characters too, and nothing but spaces is lost."""
    lines = list(wrapped(text, width))
    assert all(columns(line) <= width for line in lines)
    assert re.sub(r"\s", "", text) == re.sub(r"\s", "", "".join(lines))


@pytest.mark.parametrize("width", [30, 80, 140])
def test_width(width):
    """Text fits the terminal, and hangs below its own column."""
    rows = [SectionRow("word " * 60, "msg_001", "Jack", "said", "← msg_000 of Jill"), SectionRow("日本" * 60, "msg_002", "Jill", "heard")]
    lines = to_text([Section("Timeline", rows)], width).split("\n")
    assert width >= max(map(columns, lines))
    assert lines[2].startswith("    ")


def test_control_characters():
    """Control characters of what was said are written out, in all columns."""
    found = to_text([Section("\x1b[1m", [SectionRow("\x1b[2J", "\x07", "\x9b", "\x00", "\x1b")])], 80)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", found)
    assert r"\x1b[2J" in found


def test_paint():
    """Colours are painted around whole cells, also where a diff goes over several lines, and change no text."""
    rows = [SectionRow([("removed", "one two three four five six"), ("added", "x")], "m1", "Jack", "heard")]

    def paint(style, text):
        return f"<{style}>{text}</>" if style else text

    plain = to_text([Section("T", rows)], 44)
    painted = to_text([Section("T", rows)], 44, paint)
    assert plain == re.sub(r"<\w*>|</>", "", painted)
    assert 2 <= painted.count("<failed>")
    assert "<ok>{+x+}</>" in painted


@pytest.mark.parametrize(
    "text", ["# h", "* l", "1. l", "- l", "<script>", "[no](link)", "`c`", "a_b_c", "| t |\n|---|", "~~~", "=", "a\n===", "&lt;"]
)
def test_markdown_is_escaped(text):
    """What was said cannot format a page of Markdown: a parser gives it back as it was."""
    assert text == quoted(text)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Z"]) | st.sampled_from("#*-+_`~[]()<>&|!\\ \n1.="), max_size=30))
def test_markdown_of_anything(text):
    """Any text comes out of a page as it went in, spaces at the ends of its lines apart."""
    assert [" ".join(line.split()) for line in visible(text).split("\n") if line.strip()] == [
        " ".join(line.split()) for line in quoted(text).split("\n") if line.strip()
    ]


def quoted(text):
    """Return what a parser of Markdown finds quoted in a page that shows a text."""
    page = (
        MarkdownIt("commonmark")
        .enable(["table", "strikethrough"])
        .render(to_markdown([Section("T", [SectionRow(text, "m1", "Jack", "said")])]))
    )
    found = page.partition("<code>m1</code>")[2].partition("</ul>")[0]
    assert set(re.findall(r"<(\w+)", found)) <= {"blockquote", "p", "br"}
    return html.unescape(re.sub(r"<[^>]*>", "", found.replace("<br />\n", "\n"))).strip()


@pytest.mark.parametrize(("expected", "text"), [("`a`", "a"), ("``a`b``", "a`b"), ("`` `a ``", "`a"), ("`a b`", "a\nb"), ("", "")])
def test_markdown_code(expected, text):
    """Code within a line has fences that are longer than those in it."""
    assert expected == code(text)


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["\n", " \n", "- ", "1. ", "`", "*", "    "])
def test_markdown_takes_a_time_that_grows_with_the_text(piece):
    """A message of nothing but line breaks, or of marks, is written in a time that grows with its length."""
    assert growth(lambda size: lambda: to_markdown([Section("a", [SectionRow(piece * size, "m1", "Jack", "said")])]), 500) < SQUARE


def test_hidden():
    """What is to be hidden is hidden in all views, and still compared as it was (S0-107)."""
    events = [
        TranscriptEntry(message_id="m1", agent_id="a", role="assistant", content="key one"),
        TranscriptEntry(message_id="m2", agent_id="b", role="user", content="key two", substance="m1"),
    ]

    def hide(value):
        if isinstance(value, dict):
            return {key: hide(item) for key, item in value.items()}
        return re.sub("key \\w+", "key", value) if isinstance(value, str) else value

    viewer = SessionViewer(events, hide=hide)
    assert ["key", "key"] == [one.content for one in viewer.timeline()]
    [change] = viewer.hooks()
    assert ("key", "key", [("same", "key")]) == (change.original, change.received, change.diff)
    assert "two" not in str(viewer.events) + str(viewer.propagation("m1")) + viewer.extract_agent_perspective("b")


@pytest.mark.parametrize("view", VIEWS)
def test_hidden_names(view):
    """Names and ids of agents, messages and calls are shown without what is to be hidden, in all forms; two stay two."""
    keys = [f"sk-proj-abcdefghijklmnop{number}" for number in range(9)]
    call = {"id": keys[0], "function": {"name": keys[1], "arguments": "{}"}}
    events = [
        AgentCreated(message_id=keys[2], agent_id=keys[3], name=f"{keys[4]} the first"),
        AgentCreated(message_id=keys[5], agent_id=keys[6], parent=keys[3], language_model=keys[8]),
        TranscriptEntry(message_id=keys[7], agent_id=keys[3], role="assistant", content="hello there"),
        TranscriptEntry(message_id="m1", agent_id=keys[3], role="assistant", tool_calls=[call]),
        TranscriptEntry(message_id="m2", agent_id=keys[6], role="user", content="other words", substance=keys[7]),
    ]
    viewer = SessionViewer(events, hide=redact)
    for message in ("m1", "m2") if view in OF_A_MESSAGE else (None,):
        assert "sk-proj" not in "".join(forms(view, viewer, Ask(message=message, heard=True)))
    assert 2 == len(value("transcripts", viewer, Ask()))


@pytest.mark.parametrize(
    ("expected", "before", "after"),
    [
        ("framed", "No", "[jack]: No"),
        ("framed", "No", "Nobody said: No!"),
        ("changed", "No", "[jack]: Nobody objects, go ahead"),
        ("changed", "cat", "bobcat"),
        ("framed", "*nods*", "Jack*nods*."),
        ("framed", "", "hi"),
        ("none", "hi", "hi"),
    ],
)
def test_frames(expected, before, after):
    """A text is framed where it stands whole, and not as a part of a longer word (S0-107)."""
    assert expected == change(before, after)


def test_an_empty_view_says_why():
    """A view of links says that there are none, and how they are given; no form of a view is without a word."""
    events = [AgentCreated(message_id="m1", agent_id="a"), TranscriptEntry(message_id="m2", agent_id="a", role="user", content="hi")]
    for view in ("causality", "heard"):
        [section] = sections(view, SessionViewer(events[:1]), Ask())
        assert "no message says what it represents" in section.rows[0].text
    assert "Nothing was said." == sections("timeline", SessionViewer([]), Ask())[0].rows[0].text
