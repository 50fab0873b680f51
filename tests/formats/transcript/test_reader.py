import gzip
import json
import re

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from optree.errors import FormatError
from optree_formats.transcript import (
    ContentBlock,
    Event,
    MessagePayload,
    OutOfOrder,
    StepPayload,
    ToolPayload,
    UnknownBlockType,
    UnknownBlockTypeError,
    UnknownEventType,
    UnknownEventTypeError,
    batches,
    family,
    read,
)
from optree_formats.transcript import line as written
from optree_formats.transcript.reader import event_of
from tests.formats.transcript.lines import RUN, event, line, message, step, text, tool, write
from tests.growth import peak

EVERYTHING = [
    line(1),
    line(2, "step.started", step(), path="a.b"),
    line(3, "message.user", message(text("why?"), text("be brief")), path="a.b"),
    line(4, "message.assistant", message(text("so", "agent_emitted"), role="assistant"), path="a.b"),
    line(5, "tool.call", tool("c", given={"path": "main.go"})),
    line(6, "tool.result", tool("c", given={"path": "main.go"}, output=[1, None], error="no")),
    line(7, "step.completed", step(result={"ok": True}), path="a.b"),
    line(8, "run.completed", step("w", "workflow", error="no")),
]


def both(path):
    """Return a file's events, and its faults."""
    found = [*read(path)]
    return [one for one in found if isinstance(one, Event)], [one for one in found if not isinstance(one, Event)]


def faults(tmp_path, *lines):
    """Return the faults in a file of these lines, as (line, text)."""
    return [tuple(one) for one in both(write(tmp_path / "t.jsonl", *lines))[1]]


def test_a_path_may_be_a_text(tmp_path):
    """A file may be named by a text."""
    path = write(tmp_path / "t.jsonl", *EVERYTHING)
    assert [*read(path)] == [*read(str(path))]
    assert [*batches(path)] == [*batches(str(path))]
    assert family(path) == family(str(path))


def test_everything(tmp_path):
    """Each kind of event is read with its own payload, and written again as the same bytes (S2-05, S2-67)."""
    events, wrong = both(write(tmp_path / "t.jsonl", *EVERYTHING))
    kinds = [type(None), StepPayload, MessagePayload, MessagePayload, ToolPayload, ToolPayload, StepPayload, StepPayload]
    assert ([], kinds) == (wrong, [type(one.payload) for one in events])
    assert EVERYTHING == [written(one) for one in events]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ([text("a")], [ContentBlock(type="text", fidelity="router", text="a")]),
        ([], []),
        ([1, {"a": 2}], [1, {"a": 2}]),
        ({"role": "user", "call_id": "c", "kind": "k", "blocks": []}, MessagePayload),
        ({"role": None}, MessagePayload),
        ({"call_id": "c", "kind": "k"}, ToolPayload),
        ({"kind": "k"}, StepPayload),
        ({"workflow_name": "w"}, {"workflow_name": "w"}),
        ("text", "text"),
        (12345678901234567, 12345678901234567),
        (None, None),
    ],
)
@pytest.mark.parametrize("kind", ["run.started", "step.started", "message.user", "tool.call"])
def test_dispatch(tmp_path, payload, expected, kind):
    """A payload is what its shape says: array, role, call_id, kind, in this order, else the value itself.

    (S2-54, S2-55, S2-56, S2-57, S2-58, S2-59)
    """
    [found], wrong = both(write(tmp_path / "t.jsonl", line(1, kind, payload)))
    assert ([(1, "has no payload; kept")] if payload is None and kind != "run.started" else []) == wrong
    assert isinstance(found.payload, expected) if isinstance(expected, type) else expected == found.payload


def test_missing_payload(tmp_path):
    """A payload that is missing is None; of an event that needs one, that is said (S2-18, S2-59)."""
    lines = [event(1), event(2, "step.started")]
    for one in lines:
        del one["payload"]
    events, wrong = both(write(tmp_path / "t.jsonl", *(json.dumps(one).encode() for one in lines)))
    assert ([None, None], [(2, "has no payload; kept")]) == ([one.payload for one in events], wrong)


SHAPES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["role", "call_id", "kind", "name", "blocks", "type"]), inner)
    ),
    max_leaves=4,
)


@given(st.lists(st.tuples(st.sampled_from(["run.started", "step.completed", "message.user", "tool.result"]), SHAPES), max_size=4))
def test_blocks_of_lines_and_single_lines_are_read_alike(tmp_path_factory, payloads):
    """What is decoded a block at once is what is read line by line, whatever the payloads (S2-54, S2-55, S2-56, S2-57, S2-58)."""
    lines = [line(seq, kind, payload) for seq, (kind, payload) in enumerate(payloads, 1)]
    alone = [found for number, one in enumerate(lines, 1) if (found := event_of(number, one)[0]) is not None]
    assert alone == both(write(tmp_path_factory.mktemp("t") / "t.jsonl", *lines))[0]


def test_unknown_event_type(tmp_path):
    """An event of an unknown type is reported with its line by a fault of its own kind, and kept; the rest is read (S2-68)."""
    path = write(tmp_path / "t.jsonl", line(1), line(2, "step.paused", step(), path="a"), line(3, "run.completed"))
    events, [fault] = both(path)
    assert (UnknownEventType, 2, "unknown type of event 'step.paused'; kept") == (type(fault), *fault)
    assert [("run.started", ""), ("step.paused", "a"), ("run.completed", "")] == [(one.type, one.path) for one in events]
    assert "analyze" == events[1].payload.name


def test_unknown_block_type(tmp_path):
    """So is a block of an unknown type, whose members are all kept (S2-69)."""
    image = {"type": "image", "fidelity": "router", "url": "data:,", "size": [1, 2]}
    lines = [line(1), line(2, "message.user", message(text("a"), image))]
    events, [fault] = both(write(tmp_path / "t.jsonl", *lines))
    assert (UnknownBlockType, 2, "unknown type of block 'image'; kept") == (type(fault), *fault)
    assert lines == [written(one) for one in events]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (line(2, "step.paused", step()), UnknownEventTypeError),
        (line(2, "message.user", message({"type": "image", "fidelity": "router"})), UnknownBlockTypeError),
        (b"{", FormatError),
        (line(3), FormatError),
    ],
)
def test_strict(tmp_path, bad, error):
    """Strict reading raises what else is reported, by an error of its own kind, with the line (S2-67, S2-68, S2-69, S2-96)."""
    found = []
    with pytest.raises(error, match="line 2: ") as caught:
        found.extend(read(write(tmp_path / "t.jsonl", line(1), bad, line(3)), strict=True))
    assert error is type(caught.value)


def test_unknown_members_stay(tmp_path):
    """Members that are not known, of envelope, payload and blocks, are no fault, and are written again (S2-70, S2-71)."""
    more = [
        line(1, trace={"id": 12345678901234567890123}, level=1.50),
        line(2, "step.started", step(labels=["a"])),
        line(3, "message.user", message({**text("a"), "cache": True}) | {"lang": "en"}),
        line(4, "tool.call", tool("c") | {"server": "x"}),
    ]
    events, wrong = both(write(tmp_path / "t.jsonl", *more))
    assert ([], more) == (wrong, [written(one) for one in events])
    assert (1, "analyze") == (events[0].seq, events[1].payload.name)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"{", "left out: Input data was truncated"),
        (b"?", "left out: JSON is malformed: invalid character (byte 0)"),
        (b"[1]", "left out: Expected `object`, got `array`"),
        (b"\xff\xfe", "left out: JSON is malformed: invalid character (byte 0)"),
        (b'{"a":' * 1_000_000, "left out: nested too deeply"),
        (line(-2), "left out: seq is negative"),
        (line("2"), "left out: seq is of the wrong type: '2'"),
        (line(2.5), "left out: seq is of the wrong type: '2.5'"),
        (line(None), "left out: has no seq"),
        (line(2, run_id=7), "left out: run_id is of the wrong type: '7'"),
        (line(2, path=["a"]), "left out: path is of the wrong type: \"['a']\""),
        (line(2, ""), "left out: its type is empty"),
        (line(2, timestamp="yesterday"), "left out: timestamp 'yesterday' is no time with a zone as RFC 3339 has it"),
        (line(2, timestamp="2026-06-08T08:14:42"), "left out: timestamp '2026-06-08T08:14:42' is no time with a zone as RFC 3339 has it"),
        (line(2, "message.user", {"role": 3}), "left out: role is of the wrong type: '3'"),
        (line(2, "message.user", {"role": "user", "blocks": [1]}), "left out: the payload's blocks are not all objects with a type"),
    ],
    ids=range(16),
)
def test_bad_line(tmp_path, bad, said):
    """A line that is no event is reported by its number and left out; all others are read (S2-96)."""
    lines = [line(1), bad, line(2, "run.completed")]
    assert [(2, said)] == faults(tmp_path, *lines)
    assert [1, 2] == [one.seq for one in both(tmp_path / "t.jsonl")[0]]


def test_order_of_numbers(tmp_path):
    """A number that does not come next is reported with its line, and the event is kept (S2-06)."""
    lines = [line(seq) for seq in (1, 2, 4, 3, 1, 2)]
    assert [
        (3, "seq is 4 where 3 comes next; kept"),
        (4, "seq is 3 where 5 comes next; kept"),
        (5, "seq is 1 where 4 comes next; kept"),
    ] == faults(tmp_path, *lines)
    assert [1, 2, 4, 3, 1, 2] == [one.seq for one in both(tmp_path / "t.jsonl")[0]]
    assert {OutOfOrder} == {type(one) for one in both(tmp_path / "t.jsonl")[1]}


def test_what_else_is_tolerated(tmp_path):
    """A byte order mark, CRLF, blank lines, blanks around a line, two events on one and no newline at the end are no faults (S2-95)."""
    data = b"\xef\xbb\xbf" + line(1) + b"\r\n\r\n\n  " + line(2) + b" \n" + line(3) + b" " + line(4) + b"\n" + line(5)
    path = tmp_path / "t.jsonl"
    path.write_bytes(data)
    events, wrong = both(path)
    assert ([], [1, 2, 3, 4, 5]) == (wrong, [one.seq for one in events])


def test_duplicate_keys(tmp_path):
    """Of a member that is there twice the last one counts."""
    [found], _ = both(write(tmp_path / "t.jsonl", line(1).replace(b'"path":""', b'"path":"a","path":"b"')))
    assert "b" == found.path


def test_torn_last_line(tmp_path):
    """A last line that was cut off is reported; one that is whole but for its newline is read (S2-09, S2-95, S2-96)."""
    path = write(tmp_path / "t.jsonl", *EVERYTHING)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert (8, []) == (len(both(path)[0]), both(path)[1])
    path.write_bytes(whole[:-2])
    events, [fault] = both(path)
    assert (7, 8) == (len(events), fault.line)


def test_long_lines(tmp_path):
    """Lines of a megabyte and more are read (S2-95)."""
    said = "x" * (3 << 20)
    lines = [line(seq, "message.user", message(text(said))) for seq in (1, 2)]
    events, wrong = both(write(tmp_path / "t.jsonl", *lines))
    assert ([], [said, said]) == (wrong, [one.payload.blocks[0].text for one in events])


@pytest.mark.parametrize("packed", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_packed(tmp_path, packed):
    """Files that gzip or zstd has packed are read as they are."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(packed(b"\n".join(EVERYTHING)))
    assert EVERYTHING == [written(one) for one in both(path)[0]]


def test_memory_is_bounded(tmp_path):
    """A file of 24 MB is read in the memory that one of 6 MB takes, or a little more (S2-95)."""
    path = tmp_path / "t.jsonl"

    def reading(count):
        with path.open("wb") as file:
            for seq in range(1, count + 1):
                file.write(line(seq, "message.user", message(text("x" * 200))) + b"\n")
        return lambda: [len(batch) for batch in batches(path)]

    assert 60_000 == sum(reading(60_000)())
    assert peak(reading(15_000)) * 2 > peak(reading(60_000))


def test_many_faults_take_linear_time(tmp_path):
    """A file in which each line is out of order, and each second one has members of its own, is read to its end (S2-96)."""
    lines = [line(seq % 2 + 1, **({"own": 1} if seq % 3 else {})) for seq in range(20_000)]
    events, wrong = both(write(tmp_path / "t.jsonl", *lines))
    assert (20_000, True) == (len(events), len(wrong) >= 9_999)


def test_members_of_ones_own_beside_faults(tmp_path):
    """Where all lines have members of their own, bad lines and unknown types among them are reported by their numbers (S2-70, S2-96)."""
    lines = [line(seq, "step.started", step(own=1), more=seq) for seq in range(1, 200)]
    lines[50:50] = [b"{", line(51, "step.paused", step(), more=1), line(51, more=1, timestamp="now"), line(51) + b" " + line(51, more=1)]
    events, wrong = both(write(tmp_path / "t.jsonl", *lines))
    assert [(51, "left out"), (52, "unknown type of event 'step.paused'"), (53, "left out")] == [
        (fault.line, re.split("[:;]", fault.said)[0]) for fault in wrong if not isinstance(fault, OutOfOrder)
    ]
    assert 202 == len(events)


def test_blocks_null(tmp_path):
    """A message whose blocks are null has none, as some writers put it (S2-36)."""
    [found], wrong = both(write(tmp_path / "t.jsonl", line(1, "message.user", {"role": "user", "blocks": None})))
    assert ([], []) == (wrong, found.payload.blocks)


def test_stream_chunks(tmp_path):
    """A stream's chunk is read from either of its members (S2-49)."""
    from optree_formats.transcript.messages import plain_text

    blocks = [{"type": "stream", "fidelity": "router", name: "Fou"} for name in ("chunk", "text")]
    [found], _ = both(write(tmp_path / "t.jsonl", line(1, "message.assistant", message(*blocks, role="assistant"))))
    assert ["Fou", "Fou"] == [plain_text(block) for block in found.payload.blocks]


def test_ids_link_blocks(tmp_path):
    """A tool's use and its result in the same message have the same id (S2-51)."""
    blocks = [
        {"type": "tool_use", "fidelity": "agent_emitted", "tool_name": "Read", "tool_id": "toolu_01", "tool_input": {"path": "main.go"}},
        {"type": "tool_result", "fidelity": "router", "tool_id": "toolu_01", "tool_content": "package main"},
    ]
    [found], _ = both(write(tmp_path / "t.jsonl", line(1, "message.assistant", message(*blocks, role="assistant"))))
    assert ["toolu_01"] * 2 == [block.tool_id for block in found.payload.blocks]


def test_run_id_of_any_form(tmp_path):
    """The reader takes run ids that are no UUID, which the writer refuses (S2-67)."""
    [found], wrong = both(write(tmp_path / "t.jsonl", line(1, run_id="run-7")))
    assert ("run-7", [], True) == (found.run_id, wrong, found.run_id != RUN)
