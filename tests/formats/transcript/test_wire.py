import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from optree_formats.transcript import ContentBlock, Event, MessagePayload, StepPayload, ToolPayload
from optree_formats.transcript import line as written
from optree_formats.transcript.wire import BLOCK_TYPES, EVENT_TYPES, Fidelity, milliseconds, rfc3339
from tests.formats.transcript.lines import CHILD, RUN, TIME

NULL = Raw(b"null")


def made(payload=None, **more):
    """Return an event."""
    fields = {"seq": 1, "run_id": RUN, "type": "run.started", "path": "", "iteration": 0, "timestamp": TIME, "payload": payload}
    return Event(**{**fields, **more})


def test_the_seeds_first_example():
    """The envelope is written as the seed shows it, its payload null (S2-05, S2-10, S2-11, S2-14, S2-18, S2-20)."""
    expected = f'{{"seq":1,"run_id":"{RUN}","type":"run.started","path":"","iteration":0,"timestamp":"{TIME}","payload":null}}'
    assert expected == written(made()).decode()


def test_order_of_the_envelope():
    """Members stand in the seed's order, and the two links are left out when they are empty (S2-12, S2-13, S2-19)."""
    names = ["seq", "run_id", "parent_run_id", "child_run_id", "type", "path", "iteration", "timestamp", "payload"]
    assert names == [*json.loads(written(made(parent_run_id=CHILD, child_run_id=CHILD)))]
    assert [name for name in names if "_run_id" not in name or name == "run_id"] == [*json.loads(written(made()))]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (StepPayload(name="analyze", kind="agent"), '{"name":"analyze","kind":"agent"}'),
        (StepPayload(name="a", kind="b", error="e", result=Raw(b"[1]")), '{"name":"a","kind":"b","error":"e","result":[1]}'),
        (
            MessagePayload(role="user", blocks=[ContentBlock(type="text", fidelity="router", text="Review main.go for bugs.")]),
            '{"role":"user","blocks":[{"type":"text","fidelity":"router","text":"Review main.go for bugs."}]}',
        ),
        (
            ToolPayload(name="Read", call_id="tool_01H", input=Raw(b'{"path":"main.go"}'), output=NULL, fidelity="router"),
            '{"name":"Read","call_id":"tool_01H","input":{"path":"main.go"},"output":null,"fidelity":"router"}',
        ),
        (
            ToolPayload(name="Read", call_id="c", input=NULL, output=NULL, error="no", fidelity="agent_emitted"),
            '{"name":"Read","call_id":"c","input":null,"output":null,"error":"no","fidelity":"agent_emitted"}',
        ),
    ],
)
def test_payloads(payload, expected):
    """Payloads have the seed's members in its order; error and result only where there are some, input and output always.

    (S2-31, S2-32, S2-33, S2-34, S2-35, S2-36, S2-37, S2-38, S2-39, S2-40, S2-41)
    """
    assert expected == json.dumps(json.loads(written(made(payload)))["payload"], separators=(",", ":"))


@pytest.mark.parametrize(
    "block",
    [
        '{"type":"text","fidelity":"agent_emitted","text":"Found 2 issues."}',
        '{"type":"thinking","fidelity":"agent_emitted","thinking":"First I should..."}',
        '{"type":"tool_use","fidelity":"agent_emitted","tool_name":"Read","tool_id":"toolu_01","tool_input":{"path":"main.go"}}',
        '{"type":"tool_result","fidelity":"router","tool_id":"toolu_01","tool_content":"package main\\n..."}',
        '{"type":"tool_result","fidelity":"router","tool_id":"toolu_01","tool_content":null}',
        '{"type":"command","fidelity":"router","command":"go test ./..."}',
        '{"type":"stream","fidelity":"agent_emitted","chunk":"Fou"}',
        '{"type":"text","fidelity":"router"}',
    ],
)
def test_blocks(block):
    """Blocks of the six types have the fields of their type, all others are left out (S2-43, S2-45, S2-46, S2-47, S2-48, S2-50)."""
    fields = json.loads(block)
    for name in ("tool_input", "tool_content"):
        if name in fields:
            fields[name] = Raw(json.dumps(fields[name], separators=(",", ":")).encode())
    payload = MessagePayload(role="assistant", blocks=[ContentBlock(**fields)])
    assert block in written(made(payload, type="message.assistant")).decode()


def test_the_vocabulary():
    """There are ten types of events, six of blocks, two fidelities, and no others: another one is a new version (S2-14, S2-42, S2-72)."""
    assert {
        "run.started", "run.completed", "step.started", "step.completed", "step.call_workflow.started",
        "step.call_workflow.completed", "message.user", "message.assistant", "tool.call", "tool.result",
    } == EVENT_TYPES  # fmt: skip
    assert {"text", "thinking", "tool_use", "tool_result", "command", "stream"} == BLOCK_TYPES
    assert ("router", "agent_emitted") == get_args(Fidelity)


def test_texts_are_verbatim():
    """NUL bytes, line breaks and all of Unicode come through as they are, in one line of UTF-8 (S2-05, S2-44)."""
    said = "a\0b\nc\u2028d\U0001f600<&>"
    data = written(made(MessagePayload(role="user", blocks=[ContentBlock(type="text", fidelity="router", text=said)])))
    assert b"\n" not in data
    assert said == json.loads(data)["payload"]["blocks"][0]["text"]


def test_what_json_cannot_hold_is_marked():
    """A lone surrogate becomes U+FFFD, and the event is written."""
    assert "a\ufffd" == json.loads(written(made(StepPayload(name="a\ud800", kind="k"))))["payload"]["name"]


def test_values_with_line_breaks_stay_on_their_line():
    """A value that was kept as it was, over several lines, is written on one (S2-05)."""
    data = written(made(StepPayload(name="a", kind="b", result=Raw(b'{\n "a": [1,\n2]}'))))
    assert (0, {"a": [1, 2]}) == (data.count(b"\n"), json.loads(data)["payload"]["result"])


@given(st.floats(0, 4e12))
def test_times_come_back(ms):
    """Any time of a tree is written as RFC 3339 in UTC and read again, to the nanosecond (S2-17)."""
    text = rfc3339(ms)
    assert text.endswith("Z")
    assert abs(milliseconds(text) - ms) <= 1e-6


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-06-08T08:14:42.123Z", 1780906482123.0),
        ("2026-06-08T13:44:42.123+05:30", 1780906482123.0),
        ("2026-06-08T08:14:42Z", 1780906482000.0),
        ("2026-06-08t08:14:42.000000001z", 1780906482000.0),
        ("2026-06-08T08:14:42", None),
        ("2026-13-08T08:14:42Z", None),
        ("yesterday", None),
    ],
)
def test_times_of_others(text, ms):
    """Times with any zone and up to nine digits are read; those without a zone, or that are none, are not (S2-17)."""
    assert ms == milliseconds(text)


@pytest.mark.parametrize("ms", [float("inf"), -1e300, 1e18])
def test_no_time_is_beyond_writing(ms):
    """What no calendar has is written all the same."""
    assert "1970-01-01T00:00:00Z" == rfc3339(ms)
