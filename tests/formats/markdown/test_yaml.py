from io import StringIO

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from optree._values import plain
from optree.errors import FormatError
from optree_formats.markdown import LogEvent, foreign_yaml, own_yaml
from optree_formats.markdown.own_yaml import emit

HARD = [
    "yes", "No", "on", "012", "0x1f", "1_000", "1e5", "12:30:45", "2020-01-01", "~", "null", ".inf", "a: b", "-> x", "a # b", "# no",
    " lead", "trail ", "a\nb", "a\n\nb\n", "a\n b\n", " a\nb", "\n", "a\rb", "a\tb", "a\n\tb", "```yaml\ntype: x\n```", "````", "---",
    "...", "- a", "? b", "%x", "@y", "`z", "&a", "*a", "!t", "|", ">", "=", "<<", "", "x" * 1200,
    "\x00\x1b\x7f\x85", "\u2028\u2029\ufeff\ufffe",
    "\U0001f600", "\ud800",
]  # fmt: skip
texts = st.text(max_size=12) | st.sampled_from(HARD)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=10)
maps = st.dictionaries(texts, values, min_size=1, max_size=4).map(plain)


def places(value, place=()):
    """Yield every place of a value."""
    yield place, value
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*place, key))


@st.composite
def commented(draw):
    """Draw a map with comments in all the places that comments can have."""
    value = draw(maps)
    comments: own_yaml.Comments = {}
    for place, item in places(value):
        first = len(place) == 1 and place[0] == next(iter(value))
        for where in ("before", "beside", "end"):
            possible = {"before": not first, "beside": bool(place), "end": bool(item) and isinstance(item, dict | list)}[where]
            if possible and draw(st.integers(0, 4)) == 0:
                said = draw(texts)
                own_yaml.add(comments, place, said.replace("\n", " ").replace("\r", " ") if where == "beside" else said, where)
    return value, comments


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(commented())
def test_values_and_comments_come_back(drawn):
    """Whatever is written, values and comments come back the same, by our own reader and by ruamel.yaml's (S3-71, S3-72)."""
    value, comments = drawn
    written = emit(value, comments)
    found = foreign_yaml.parse(written)
    assert (repr(value), comments, []) == (repr(found.value), found.comments, found.faults)
    if any(len(key) > 900 for place, _ in places(value) for key in place if isinstance(key, str)):  # only ruamel.yaml reads those
        return
    own, own_comments = own_yaml.parse(written)
    assert (repr(value), comments) == (repr(own), own_comments)


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(maps)
@example({hard: hard for hard in HARD if hard != "\ud800"})
@example({"a": [1e16, 1e-7, -0.0, 2**64 - 1]})
def test_readers_of_both_versions_agree(value):
    """YAML 1.1 and 1.2 readers both find in what is written the values that were written, whatever texts look like (S3-53)."""
    written = emit(value, {})
    for version in ((1, 1), (1, 2)):
        reader = YAML(typ="safe", pure=True)
        reader.version = version
        assert repr(value) == repr(plain(reader.load(written)))


@given(texts, texts)
def test_no_fence_is_written(text, comment):
    """Three backticks never stand in a row in a block, so neither regular expressions nor Markdown end it early (S3-50, S3-54)."""
    written = emit({"a": text, "b": [text]}, {("b",): own_yaml.Comment(before=comment or None)})
    assert "```" not in written


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("src/parser.ts", "src/parser.ts"),
        ("sess-001", "sess-001"),
        ("2025-12-30T12:00:00Z", '"2025-12-30T12:00:00Z"'),
        ("no", '"no"'),
        ("a -> b: c", '"a -> b: c"'),
        ("\0", '"\\x00"'),
        ("one\ntwo\n", "|\n  one\n  two"),
    ],
)
def test_texts_are_quoted_where_they_must_be(said, written):
    """A text stands bare only if it can be nothing else (S3-53)."""
    assert f"a: {written}\n" == emit({"a": said}, {})


@pytest.mark.parametrize(
    ("yaml", "where", "said"),
    [
        ("# first\ntype: x\n", ("", "before"), "first"),
        ("type: x\nargs:\n  # why\n  why: y\n", ("args.why", "before"), "why"),
        ("type: x\nincluded:\n  - a.md  # Hot\n  - b.md\n", ("included.0", "beside"), "Hot"),
        ("type: x\nresult:\n  lines: 50\n  # found\n", ("result", "end"), "found"),
        ("type: x\nresult:\n  lines: 50\n# fine\n", ("", "end"), "fine"),
        ("type: x\nwarning: 'a # b'  # c\n", ("warning", "beside"), "c"),
        ("type: x\nnotes: | # header\n  # not one\n", ("notes", "beside"), "header"),
        ("{type: x, a: [1, 2] # flow\n}\n", ("a.1", "beside"), "flow"),
        ("type: x\nlist:\n- a\n# between\n- b\n", ("list.1", "before"), "between"),
    ],
)
def test_comments_of_others_are_found(yaml, where, said):
    """Comments in YAML of any form come back with the field that they belong to (S3-16, S3-71)."""
    name, side = where
    found = foreign_yaml.parse(yaml)
    assert said == getattr(found.comments[own_yaml.place_of(name, found.value)], side)


def test_commented_map_is_taken():
    """An event made of ruamel.yaml's CommentedMap has its comments (S3-72)."""
    fields = CommentedMap({"tool": "fs.read", "args": CommentedMap({"path": "a", "why": "b"})})
    fields["args"].yaml_set_comment_before_after_key("why", before="because", indent=2)
    event = LogEvent("tool_call", fields)
    assert {("args", "why"): own_yaml.Comment(before="because")} == event.comments
    assert {"type": "tool_call", "tool": "fs.read", "args": {"path": "a", "why": "b"}} == event.fields


def test_comments_of_a_place_add_up():
    """A field may have several comments; each can be asked for by the field's name, also where that has a dot in it (S3-72)."""
    event = LogEvent("x", {"usage": {"fs.read": 3}, "list": ["a"]})
    event.comment("usage.fs.read", "often").comment("usage.fs.read", "and long").comment("list.0", "first", where="beside")
    assert own_yaml.Comment(before="often\nand long") == event.comments["usage", "fs.read"]
    assert own_yaml.Comment(beside="first") == event.comments["list", 0]
    with pytest.raises(KeyError):
        event.comment("usage.nothing", "lost")


@pytest.mark.parametrize(
    "yaml",
    [
        "a: &a [*a]",
        "a: b: c",
        "[" * 5000,
        "a: *nobody",
        "\0",
        "x" * (foreign_yaml.MAX_CHARACTERS + 1),
        "a: &a [1,2]\n"
        + "".join(
            f"a{n}: &a{n} [*a{n - 1},*a{n - 1},*a{n - 1},*a{n - 1},*a{n - 1},*a{n - 1},*a{n - 1},*a{n - 1}]\n" for n in range(1, 12)
        ).replace("*a0", "*a"),
    ],
    ids=["contains itself", "colon", "deep", "alias", "NUL", "long", "bomb"],
)
def test_bad_yaml_is_refused(yaml):
    """YAML that is broken, endless or multiplies by its aliases is refused with a reason, quickly (S3-54)."""
    with pytest.raises(FormatError) as raised:
        foreign_yaml.parse(yaml)
    assert 5 < len(str(raised.value)) < 200


def test_yaml_of_others_is_taken_mildly():
    """Dates and leading zeros stay texts, merges are followed, and of a key that comes twice the last value holds (S3-54)."""
    found = foreign_yaml.parse("when: 2020-01-01\nid: 007\nbase: &b {x: 1}\nmore:\n  <<: *b\n  y: yes\nid: 8\n")
    assert {"when": "2020-01-01", "id": 8, "base": {"x": 1}, "more": {"x": 1, "y": "yes"}} == found.value
    assert [6] == [line for line, _ in found.faults]


def test_dumped_by_ruamel_is_read_alike():
    """What ruamel.yaml writes itself, in its own style, means the same to us (S3-53)."""
    value = {"type": "x", "texts": HARD[:18], "nested": {"a": [{"b": 1.5, "c": None}, []]}}
    written = StringIO()
    YAML(typ="safe", pure=True).dump(value, written)
    assert value == foreign_yaml.parse(written.getvalue()).value
