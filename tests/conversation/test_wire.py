import gzip
import io
import json

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from optree._store.files.lines import BLOCK_BYTES, Fault
from optree._tree import walk_sessions
from optree.conversation import AgentCreated, PieceOfText, TranscriptEntry, line, read_events, stream_events, wire
from optree.conversation.of_tree import events_of
from optree.conversation.wire import read_one
from optree.errors import FormatError
from optree_formats.events import EVENTS
from tests.conversation.conftest import DATA, read

EXAMPLES = ["jack_and_jill", "inner_monologue", "hook", "external_trigger"]
ENTRY = {"message_id": "msg_007", "event_type": "transcript_entry", "agent_id": "agent_001", "role": "user", "content": "Hi"}
CALL = {"id": "c1", "function": {"name": "task", "arguments": '{"name": "Jack"}'}}


@pytest.mark.parametrize("name", EXAMPLES)
def test_seed_001_byte_by_byte(name):
    """The examples of seed 001 read without a fault, and are written again byte by byte (S1-06, S1-07, S1-09, S1-11, S1-14)."""
    path = DATA / f"seed001_{name}.jsonl"
    events, faults = read_events(path)
    assert [] == faults
    assert path.read_bytes() == b"".join(line(event) + b"\n" for event in events)


@pytest.mark.parametrize("name", EXAMPLES)
def test_seed_000(name):
    """The examples of seed 000 read without a fault, and are written again as its logger does, with a content that may be null (S0-18).

    Every member has the name and the place that seed 000 gives it (S0-13, S0-15, S0-16, S0-17, S0-19, S0-24, S0-28, S0-61).
    """
    path = DATA / f"seed000_{name}.jsonl"
    events, faults = read_events(path)
    written = [json.loads(line(event, 1)) for event in events]
    expected = [json.loads(one) for one in path.read_text().splitlines()]
    for one in expected:
        if one["event_type"] == "transcript_entry":
            one.setdefault("content", None)
    assert [] == faults
    assert expected == written


def test_both_seeds_say_the_same():
    """The example of either seed gives the same entries: each link under its own name (S0-19, S0-24, S1-08, S1-61)."""
    first, _ = read_events(DATA / "seed000_jack_and_jill.jsonl")
    second, _ = read_events(DATA / "seed001_jack_and_jill.jsonl")
    entries = [[event for event in events if isinstance(event, TranscriptEntry)] for events in (first, second)]
    assert entries[0] == entries[1]
    [mine], [yours] = ([event for event in events if isinstance(event, PieceOfText)] for events in (first, second))
    assert (mine.content, mine.cause, "") == (yours.content, yours.cause, mine.agent_id)
    assert "agent_root" == yours.agent_id


def test_unset_members_are_left_out():
    """A member that is not set is not in the line, also not as null; content apart, which seed 000 always writes (S0-18, S0-22, S0-29)."""
    entry = TranscriptEntry(message_id="msg_001", agent_id="a", role="assistant", tool_calls=[CALL])
    assert ["message_id", "event_type", "agent_id", "role", "tool_calls"] == list(json.loads(line(entry)))
    assert ["message_id", "event_type", "agent_id", "role", "content", "tool_calls"] == list(json.loads(line(entry, 1)))
    root = AgentCreated(message_id="msg_001", agent_id="agent_root", language_model="m")  # which has no name
    assert ["message_id", "event_type", "agent_id", "language_model"] == list(json.loads(line(root, 1)))
    assert ["message_id", "event_type", "content"] == list(json.loads(line(PieceOfText(message_id="m", content="x", agent_id="a"), 1)))


@pytest.mark.parametrize("call", [CALL, CALL | {"type": "function"}], ids=["without type", "with type"])
def test_tool_calls(call):
    """Tool calls read with a type and without, and stay so; a result names its call, with a tool's name or without (S0-20, S0-21)."""
    result = {**ENTRY, "role": "tool", "tool_call_id": "c1"}
    [asked, answered, named], faults = read({**ENTRY, "tool_calls": [call]}, {**result, "name": None}, {**result, "name": "task"})
    assert [] == faults
    assert [call] == asked.tool_calls
    assert ("c1", None, "task") == (answered.tool_call_id, answered.name, named.name)


def test_causes():
    """A cause is one message or a list of them, on texts, agents and entries (S1-09, S1-13)."""
    piece = {"message_id": "m", "event_type": "piece_of_text", "agent_id": "a", "content": "x"}
    events, faults = read({**piece, "cause": "msg_001"}, {**piece, "cause": ["msg_001", "msg_002"]}, {**ENTRY, "cause": ["msg_003"]})
    assert [] == faults
    assert [("msg_001",), ("msg_001", "msg_002"), ("msg_003",)] == [event.cause for event in events]
    assert ["msg_001", ["msg_001", "msg_002"], ["msg_003"]] == [json.loads(line(event))["cause"] for event in events]


def test_pieces_have_no_substance():
    """A piece of text is new content: a substance that a file gives one is left out, and said (S1-10)."""
    [piece], [fault] = read({"message_id": "m", "event_type": "piece_of_text", "content": "x", "cause": "c", "substance": "s"})
    assert ("x", ("c",)) == (piece.content, piece.cause)
    assert Fault(1, "left out members that are not known here: 'substance'") == fault


def test_substance_and_cause():
    """An entry with both a substance and a cause keeps the substance, and the line is reported (S1-12)."""
    events, faults = read(ENTRY, {**ENTRY, "substance": "msg_001", "cause": "msg_002"}, ENTRY)
    assert [(None, ()), ("msg_001", ()), (None, ())] == [(event.substance, event.cause) for event in events]
    assert [2] == [fault.line for fault in faults]
    assert "a substance and a cause" in faults[0].said


@pytest.mark.parametrize("key", ["content_id", "substance"])
def test_itself(key):
    """A content id that is the message's own says that the entry represents itself (S0-19, S0-39, S1-08)."""
    [event], faults = read({**ENTRY, key: "msg_007"})
    assert (None, []) == (event.substance, faults)


def test_smallchat():
    """A log of the later schema reads: its own keys, numbers for ids, blank lines between, causes down to the call (S1-62).

    What it edited away is reported, since events have no form for it.
    """
    events, faults = read_events(DATA / "smallchat.jsonl")
    assert [("agent_created", "primary"), ("piece_of_text", "user")] == [
        (event.__struct_config__.tag, event.agent_id) for event in events[:2]
    ]
    made = {event.message_id: event for event in events}
    assert (None, "primary", ("3.a",)) == (made["0"].parent, made["4"].parent, made["4"].cause)
    assert [("3.a",), (), ("6", "7")] == [made[one].cause for one in "579"]
    assert ["1", "6"] == [made[one].substance for one in "27"]
    assert () == made["1"].cause
    [fault] = faults
    assert (17, True) == (fault.line, fault.said.startswith("cuts the transcript of 'primary' short"))


FAULTS = {
    "bad line": (b'{"message_id": ', "is not JSON"),
    "no object": (b"[1, 2]", "is no JSON object but list"),
    "unknown type": ({**ENTRY, "event_type": "agent_deleted"}, "is of a type that is not known, 'agent_deleted'"),
    "no type": ({"message_id": "m"}, "has no event_type"),
    "type of a wrong type": ({**ENTRY, "event_type": ["transcript_entry"]}, "is of a type that is not known"),
    "no agent": ({"message_id": "m", "event_type": "transcript_entry", "role": "user"}, "left out: it names no agent"),
    "created without id": ({"message_id": "m", "event_type": "agent_created", "name": "Jack"}, "left out: it names no agent"),
    "no role": ({"message_id": "m", "event_type": "transcript_entry", "agent_id": "a"}, "left out: it has no role"),
    "nested": (b'{"event_type":' + b"[" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize(("bad", "said"), FAULTS.values(), ids=FAULTS)
def test_bad_lines(bad, said):
    """A bad line in the middle is reported by its number, and all others are read (S0-35)."""
    last = {**ENTRY, "message_id": "msg_009"}
    events, faults = read(ENTRY, bad, last)
    assert ["msg_007", "msg_009"] == [event.message_id for event in events]
    assert [2] == [fault.line for fault in faults]
    assert said in faults[0].said


MENDED = {
    "numbers for ids": ({**ENTRY, "message_id": 7, "agent_id": 1, "substance": 6}, ("7", "1", "6"), None),
    "null members": ({**ENTRY, "name": None, "substance": None, "tool_calls": None}, ("msg_007", "agent_001", None), None),
    "no id": ({k: v for k, v in ENTRY.items() if k != "message_id"}, ("line_1", "agent_001", None), "it is called line_1"),
    "surrogates": (
        b'{"message_id": "m", "event_type": "transcript_entry", "agent_id": "a", "role": "user", "content": "\\ud800"}',
        ("m", "a", None),
        "marks",
    ),
    "invalid UTF-8": (
        b'{"message_id": "m", "event_type": "transcript_entry", "agent_id": "a", "role": "user", "content": "\xff"}',
        ("m", "a", None),
        "marks",
    ),
    "calls of a wrong type": ({**ENTRY, "tool_calls": "none"}, ("msg_007", "agent_001", None), "left out its tool_calls"),
    "cause of a wrong type": ({**ENTRY, "cause": {"a": 1}}, ("msg_007", "agent_001", None), "left out its cause"),
    "both names": ({**ENTRY, "substance": "msg_001", "content_id": "msg_001"}, ("msg_007", "agent_001", "msg_001"), None),
    "duplicate keys": (
        b'{"message_id": "a", "message_id": "b", "event_type": "transcript_entry", "agent_id": "a", "role": "user"}',
        ("b", "a", None),
        None,
    ),
}


@pytest.mark.parametrize(("data", "expected", "said"), MENDED.values(), ids=MENDED)
def test_strange_lines(data, expected, said):
    """A line that is strange is kept as far as it can be, and what was mended is said."""
    [event], faults = read(data)
    assert expected == (event.message_id, event.agent_id, event.substance)
    assert ([] if said is None else [1]) == [fault.line for fault in faults]
    assert said is None or said in faults[0].said


def test_byte_order_mark_and_carriage_returns():
    """A byte order mark at the start, and carriage returns at the ends of lines, are no part of a line."""
    line_ = json.dumps(ENTRY).encode()
    events, faults = read(b"\xef\xbb\xbf" + line_ + b"\r", b"", b" \r", line_)
    assert (2, []) == (len(events), faults)


def test_torn_last_line():
    """A torn last line is reported, and a whole one without its newline is read."""
    whole = json.dumps(ENTRY).encode()
    events, faults = read(whole, whole)
    assert (2, []) == (len(events), faults)
    events, faults = read(whole, whole[:-5])
    assert ([2], 1) == ([fault.line for fault in faults], len(events))


def test_unknown_members_of_a_message():
    """Members that the seeds do not name are kept with the message, and come back from the line (S0-63)."""
    [event], faults = read({**ENTRY, "reasoning_content": "hm", "refusal": None})
    assert ({"reasoning_content": "hm", "refusal": None}, []) == (event.more, faults)
    assert (event, []) == read_one(line(event))


def test_own_names_in_a_message():
    """A message's member that has the name of one of the line's own is not taken for it."""
    event = TranscriptEntry(message_id="m", agent_id="a", role="user", more={"message_id": "other", "more": 1})
    assert ([event], []) == read(line(event))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_compressed(tmp_path, pack):
    """A packed file reads as a plain one does."""
    path = tmp_path / "events"
    path.write_bytes(pack((DATA / "seed001_hook.jsonl").read_bytes()))
    assert read_events(DATA / "seed001_hook.jsonl") == read_events(path)


def test_strict(tmp_path):
    """Where it is asked for, the first fault is raised, with its line."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(json.dumps(ENTRY).encode() + b"\n{\n")
    with pytest.raises(FormatError, match=r"events\.jsonl, line 2: is not JSON"):
        read_events(path, strict=True)


def test_line_numbers_over_blocks(tmp_path):
    """A fault keeps its line number in a file of many blocks, also where lines of several forms stand in it (S1-61)."""
    path = tmp_path / "events.jsonl"
    odd = {9_000: b"torn", 12_345: json.dumps({**ENTRY, "content_id": "m", "caused_by": "m"}).encode(), 19_999: b"{}"}
    usual = json.dumps({**ENTRY, "content": "x" * 100}).encode()
    path.write_bytes(b"\n".join(odd.get(number, usual) for number in range(1, 20_001)) + b"\n")
    events, faults = read_events(path)
    assert (19_998, [9_000, 12_345, 19_999]) == (len(events), [fault.line for fault in faults])


class Endless(io.RawIOBase):
    """A file of the same line again and again, made as it is read; it watches how much of it is held at once."""

    def __init__(self, data, size):
        self.block = data * (1 + (1 << 20) // len(data))
        self.left = size

    def read(self, count=-1):
        """Return the next bytes."""
        piece = self.block[: min(count, self.left)]
        self.left -= len(piece)
        return piece


def test_memory_is_bounded():
    """A file is read in blocks, each given out before the next is read: however long it is, few of its events are held at once."""
    source = Endless(json.dumps(ENTRY).encode() + b"\n", 20 << 20)
    most, total = 0, 0
    for found in stream_events(source):
        if not isinstance(found, Fault):
            most, total = max(most, len(found)), total + len(found)
    assert total > 150_000
    assert most < 20_000


def test_whole_blocks_are_decoded_at_once(monkeypatch):
    """Lines of the usual form are decoded a block at a time, which is ten times as quick as one after the other."""
    data = b"".join(line(event) + b"\n" for event in read_events(DATA / "seed001_jack_and_jill.jsonl")[0]) * 1_000
    decode, decoded = wire.usual_lines(), []
    monkeypatch.setattr(wire, "usual_lines", lambda: lambda block: decoded.append(len(block)) or decode(block))
    assert 20_000 == sum(len(found) for found in stream_events(io.BytesIO(data)))
    assert (len(data), -(-len(data) // BLOCK_BYTES)) == (sum(decoded), len(decoded))


texts = st.text(st.characters(codec="utf-8"), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)

safe = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
entries = st.builds(
    TranscriptEntry,
    message_id=safe,
    agent_id=safe,
    role=safe,
    content=values,
    tool_calls=st.none() | st.lists(st.dictionaries(texts, values, max_size=2), min_size=1, max_size=2),
    tool_call_id=st.none() | texts,
    name=st.none() | texts,
    more=st.dictionaries(texts, values, max_size=2),
    timestamp=st.none() | st.floats(0, 2e12),
)
pieces = st.builds(PieceOfText, message_id=safe, agent_id=safe, content=values, cause=st.lists(safe, max_size=3).map(tuple))
created = st.builds(
    AgentCreated,
    message_id=safe,
    agent_id=safe,
    cause=st.lists(safe, max_size=2).map(tuple),
    name=st.none() | texts,
    parent=st.none() | texts,
)


@given(st.lists(entries | pieces | created, max_size=4), st.data())
def test_round_trip(events, data):
    """Every event comes back from its line as it was; version 1 keeps all that seed 000 has a name for (S0-30, S1-14)."""
    for event in events:
        if isinstance(event, TranscriptEntry):
            event.substance = data.draw(st.none() | safe.filter(lambda one, own=event.message_id: one != own))
    assert (events, []) == read(*map(line, events))
    again, faults = read(*(line(event, 1) for event in events))
    assert [] == faults
    for event, found in zip(events, again, strict=True):
        assert event.message_id == found.message_id
        if isinstance(event, TranscriptEntry):
            found.timestamp = event.timestamp
            assert event == found


@pytest.mark.parametrize("version", [1, 2])
def test_what_json_cannot_hold(version):
    """A text or a value that JSON cannot hold is marked: a line can always be written, and read."""
    event = TranscriptEntry(message_id="m\ud800", agent_id="a", role="user", content={"n": float("nan"), "b": b"\xff", "o": object})
    [again], faults = read(line(event, version))
    assert ("m�", []) == (again.message_id, faults)
    assert {"$float": "nan"} == again.content["n"]


def test_entries_of_the_oldest_files_have_no_type(tmp_path):
    """A line without a type that has a role is an entry, as the files that are older than the seeds have them."""
    path = tmp_path / "x"
    path.write_text(
        '{"message_id": "msg_001", "event_type": "agent_created", "agent_id": "a"}\n'
        '{"message_id": "msg_002", "agent_id": "a", "role": "user", "content": "Hi", "source": "external"}\n'
        '{"message_id": "msg_003", "agent_id": "a", "content": "no role"}\n'
    )
    events, faults = read_events(path)
    assert [("msg_001", None), ("msg_002", {"source": "external"})] == [(one.message_id, getattr(one, "more", None)) for one in events]
    assert ["has no event_type"] == [fault.said[:17] for fault in faults]


def test_user_is_no_agent(tmp_path):
    """Smallchat's pseudo-agent ``user`` is none: it has no session of its own, and what it said stays its own (S1-62)."""
    path = tmp_path / "x"
    path.write_text(
        '{"message_id": "0", "event_type": "agent_created", "agent": "primary", "parent": "user", "role": "primary"}\n\n'
        '{"message_id": "1", "event_type": "fragment", "agent": "user", "cause": "user", "content": "Hi"}\n\n'
        '{"message_id": "2", "event_type": "transcript_entry", "agent": "primary", "role": "user", "content": "Hi", "substance": "1"}\n\n'
    )
    [tree] = EVENTS.read(path).trees
    assert ["primary"] == [session.agent_id for session in walk_sessions(tree.session)]
    [said, heard] = [one for one in events_of(tree) if not isinstance(one, AgentCreated)]
    assert ("user", "Hi", "primary", "1") == (said.agent_id, said.content, heard.agent_id, heard.substance)
