import re
from html.parser import HTMLParser

from hypothesis import given, settings

from optree.compare import compare, format_comparison, format_page
from tests.compare.sessions import run
from tests.strategies import play, programs

EMPTY = {"meta"}
NASTY = "<script>alert('x')</script>\x07\u202e & \"more\""


class Page(HTMLParser):
    """Reads a page: its tags, what is open, its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.open, self.text, self.attributes = [], [], "", []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        """Note a tag and its attributes."""
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        """Expect that it closes what was opened last."""
        assert tag == self.open.pop()

    def handle_data(self, data):
        """Note text."""
        self.text += data


def two():
    """Return two sessions with all kinds of differences between them."""
    one = run([("first", [("a", {"n": 1}), ("b", {"q": 2}), (NASTY, {"q": NASTY}), ("e", {}), ("f", {})]), ("same", [("c", {"n": 5})])])
    helper = ("helper", [("help", [("d", {})])])
    ops = [("b", {"q": 3}), helper, (NASTY, {"q": NASTY + "!"}), ("e", {}), ("f", {}), ("a", {"n": 1})]
    other = run([("first", ops), ("same", [("c", {"n": 5})])])
    return one, other


def test_page_is_whole_and_harmless():
    """The page closes what it opens, loads nothing, runs nothing, and shows what sessions hold as text."""
    page = format_page(compare(*two()))
    read = Page(page)
    assert [] == read.open
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name.startswith("on") or name in ("src", "href", "action")]
    assert not re.search(r"https?:|url\(|@import", page)
    assert "<script>alert('x')</script>" in read.text
    assert not {"\x07", "\u202e"} & set(page)
    assert "tool b" in read.text


def test_page_folds_by_itself():
    """What differs lies open and can be folded without a script; what is the same is counted."""
    page = format_page(compare(*two()))
    assert '<details class="same" open>' in page
    assert "… 1 turn the same" in page
    assert "tool c" not in page
    assert "tool c" in format_page(compare(*two(), everything=True), everything=True)


def test_credentials_stay_out_of_the_page():
    """Names and prompts are shown without credentials."""
    key = "sk-abcdefghijklmnopqrstuvwxyz"
    page = format_page(compare(run([(f"use {key}", [])]), run([(f"use {key} now", [(f"tool {key}", {})])])))
    assert "abcdefghij" not in page
    assert page.count("[REDACTED]") >= 2


@settings(max_examples=20)
@given(programs, programs)
def test_any_comparison_makes_a_page(first, second):
    """Any two trees give a page that closes what it opens, and that UTF-8 can hold."""
    found = compare(play(first).folded(), play(second).folded())
    assert [] == Page(format_page(found)).open
    assert format_page(found).encode()


def test_text():
    """The text has a line for each node that differs, marked, with its fields below, and counts the rest."""
    lines = format_comparison(compare(*two())).splitlines()
    drawn = [re.sub(r"  *[+-]?[\d.]+ ms$", "", line) for line in lines[5:]]
    assert ["- test-1", "+ test-1"] == lines[:2]
    assert "  1 session added, 1 turn added, 2 ops added, 2 ops changed, 1 op moved" == lines[3]
    assert "  lead" == drawn[0]
    assert "├─   1 turn first" == drawn[1]
    assert "│  ├─ ~ 1.2→1.1 tool b" in drawn
    assert "│  │       · request.q: 2 → 3" in drawn
    assert "│  ├─ + 1.2 session helper" in drawn
    assert "│  └─ > 1.1→1.6 tool a" in drawn
    assert "│  ├─ … 2 ops the same" in drawn
    assert "└─ … 1 turn the same" == drawn[-1]
