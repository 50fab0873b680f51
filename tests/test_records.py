from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optree import _records as r
from optree._nodes import AccountingEntry, LogEntry, Message, Payload, ReasoningChunk, Tokens
from optree._values import MAX_TEXT, raw
from optree.errors import FormatError
from tests.strategies import play, programs

JSON = raw({"a": [1]})
ALL = [
    r.Header(format=1, min_reader=1, txn="t", writer="w", segment=2, first=3, created=1.5, optree="0.1.0", pid=7, host="h", base=4096),
    r.SessionBegin("", 1.5, "a", "a", JSON),
    r.SessionSet("1.1", 1.5, "title", "status"),
    r.SessionResume("", 1.5),
    r.SessionEnd("", 1.5, "failed", "why", JSON),
    r.MessageAdded("", 4, Message(1.5, "user", JSON)),
    r.TurnBegin("1", 1.5, {"user": "u", "system": "s"}, JSON),
    r.TurnSet("1", {"content": "said"}),
    r.TurnEnd("1", 1.5, "cancelled", "why"),
    r.OpBegin("1.1", 1.5, "llm", "p:m", "1.2", JSON),
    r.OpSet("1.1", 1.5, "p:m", JSON),
    r.Entries("1.1", 2, [LogEntry(1.5, "WRN", "m", "request")], 3, [ReasoningChunk("t", 1.5)]),
    r.Accounted("1.1", AccountingEntry("t:1.1#2", 1.5, "llm", "failed", 2.5, "p", "m", tokens=Tokens(1, 2, 3, 4, 10), cost_usd=0.5)),
    r.Requested("1.1", 1.5, Payload(JSON, "llm", 9)),
    r.Responded("1.1", 1.5, Payload(JSON, None, 9, True)),
    r.OpEnd("1.1", 1.5, "interrupted", 2.5, "why", "final", JSON),
    r.Pooled({"b": JSON}, [("l", "", "b")]),
    r.Gap(1.5, 3, "disk full"),
]
TYPES = ["journal", "session.begin", "session.set", "session.resume", "session.end", "message", "turn.begin", "turn.set", "turn.end",
         "op.begin", "op.set", "entries", "accounting", "request", "response", "op.end", "pool", "gap"]  # fmt: skip


@pytest.mark.parametrize("record", ALL, ids=TYPES)
def test_round_trip(record):
    """A record's line reads back as the record, and names its type."""
    record.n = 42
    line = r.line(record, 7)
    assert record == r.parse(line[:-1])
    assert (record.__struct_config__.tag, 42) == (msgspec.json.decode(line)["t"], msgspec.json.decode(line)["n"])


@pytest.mark.parametrize("seed", [0, 1, 7, 0xDEADBEEF, 0xFFFFFFFF])
def test_the_seed_of_a_line_is_found_from_it(seed):
    """Each line, short or of 100 kB, says by itself with which seed its checksum was made; one without a checksum says none."""
    big = r.Pooled({"b": msgspec.Raw(b'"%b"' % (b"x" * 100_000))}, [("l", "", "b")], n=3)
    assert [seed] * (len(ALL) + 1) == [r.seed_of(r.line(record, seed)[:-1]) for record in [*ALL, big]]
    assert [None, None] == [r.seed_of(b""), r.seed_of(r.line(ALL[1], seed))]


def test_all_types():
    """The types of records are these: a name that changes breaks the files that exist."""
    assert TYPES == [record.__struct_config__.tag for record in ALL]
    assert {type(record) for record in ALL} == {kind for kind in r.Record.__subclasses__() if kind.__module__ == r.__name__}


def test_line_is_as_documented():
    """A line is what the format's description shows, byte for byte."""
    record = r.OpEnd("1.2", 1760000000123.25, "ok", n=42)
    body = b'{"t":"op.end","path":"1.2","ts":1760000000123.25,"status":"ok","n":42'
    assert b'%b,"c":"%08x"}\n' % (body, crc32(body, 7)) == r.line(record, 7)


def test_header_seeds_the_file():
    """The checksums of a file hang on its header: a line of another file does not pass."""
    line, seed = r.header_line(ALL[0])
    assert (True, crc32(line)) == (r.check(line[:-1], 0), seed)
    assert (True, False) == (r.check(r.line(ALL[1], seed)[:-1], seed), r.check(r.line(ALL[1], seed + 1)[:-1], seed))


@given(st.sampled_from(ALL), st.data())
def test_any_damage_is_seen(record, data):
    """A line with any one byte changed, or cut short anywhere, fails its check."""
    line = r.line(record, 7)[:-1]
    place = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != line[place]))
    assert r.check(line, 7)
    assert not r.check(line[:place] + bytes([other]) + line[place + 1 :], 7)
    assert not r.check(line[:place], 7)


@given(programs)
def test_lines_of_programs(program):
    """Whatever a program records is one line each, checked and readable."""
    for line in play(program).lines:
        assert (1, True) == (line.count(b"\n"), r.check(line[:-1], 0))
        assert r.parse(line[:-1]) is not None


def test_newer_types_are_passed_over():
    """A record of a type that only a newer version knows is told from one that is broken."""
    assert r.parse(b'{"t":"later","path":"1","n":1,"c":"00000000"}') is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"5", b"{}", b'{"t":"op.end"}', b'{"t":"op.end","path":5,"ts":1.0,"status":"ok"}'])
def test_no_record(data):
    """What is no record is refused."""
    with pytest.raises(FormatError):
        r.parse(data)


def test_newer_fields_are_passed_over():
    """Fields that only a newer version knows do not stand in the way."""
    assert r.TurnEnd("1", 1.5, "ok") == r.parse(b'{"t":"turn.end","path":"1","ts":1.5,"status":"ok","later":{"a":1}}')


def test_lone_surrogates():
    """Text that JSON cannot hold is marked, in the line and in the tree's own entry."""
    entry = LogEntry(1.5, "VRB", "a\ud800")
    found = r.parse(r.line(r.Entries("1.1", 0, [entry]), 0)[:-1])
    assert ("a\ufffd", "a\ufffd") == (found.logs[0].message, entry.message)


def test_long_entries():
    """A log line or reasoning chunk beyond the cap is cut behind a notice (S4-65)."""
    record = r.Entries("1.1", 0, [LogEntry(1.5, "VRB", "x" * (MAX_TEXT + 1))], 0, [ReasoningChunk("y" * (MAX_TEXT + 1), 1.5)])
    found = r.parse(r.line(record, 0)[:-1])
    notice = f"[TRUNCATED] Original size {MAX_TEXT + 1} characters; truncated to {MAX_TEXT} characters.\n\n"
    assert (notice + "x" * MAX_TEXT, notice + "y" * MAX_TEXT) == (found.logs[0].message, found.chunks[0].text)


def test_details_read_back():
    """A log line with details reads back with them (S4-21)."""
    entry = LogEntry(1.5, "WRN", "m", None, raw({"status": 429}))
    assert r.Entries("1.1", 0, [entry]) == r.parse(r.line(r.Entries("1.1", 0, [entry]), 0)[:-1])
