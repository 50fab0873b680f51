"""What foreign transcripts cost to read: time grows with their size, however they are made."""

import pytest

from optree_formats.transcript import FORMAT
from tests.formats.transcript.lines import RUN, line, message, step, tool, write
from tests.growth import SQUARE, growth


def loops(count):
    """Return a loop's iterations, each begun, answered in and ended."""
    for number in range(count):
        yield "step.started", step(), f"loop:{number}/step"
        yield "message.assistant", message(role="assistant"), f"loop:{number}/step"
        yield "step.completed", step(), f"loop:{number}/step"


def never_ended(count):
    """Return steps that all begin at one path, and then messages there."""
    for _ in range(count):
        yield "step.started", step(kind="operation"), "a"
    for _ in range(count):
        yield "message.assistant", message(role="assistant"), "a"


def nested(count):
    """Return steps within each other."""
    for number in range(count // 4):
        yield "step.started", step(kind="operation"), ".".join(["a"] * (number + 1))


def same_call(count):
    """Return calls that all have one id, and then their results."""
    for kind in ("tool.call", "tool.result"):
        for _ in range(count):
            yield kind, tool("same"), "x"


@pytest.mark.slow
@pytest.mark.parametrize("made", [loops, never_ended, nested, same_call])
def test_time_grows_with_the_size(tmp_path, made):
    """Eight times the events take eight times as long."""

    def reading(count):
        events = enumerate(made(count), 1)
        path = write(tmp_path / f"{RUN}.jsonl", *(line(seq, kind, payload, path=at) for seq, (kind, payload, at) in events))
        return lambda: FORMAT.read(path)

    assert SQUARE > growth(reading, 1000)


def test_a_step_finds_the_nearest_open_one_above(tmp_path):
    """A step's parent is the open step that its path leads to, the nearest, the one that began last; ended ones do not count."""
    events = [
        ("step.started", step("one", "operation"), "a"),
        ("step.started", step("two", "operation"), "a"),
        ("step.started", step("three", "operation"), "a.b"),
        ("step.completed", step("three", "operation"), "a.b"),
        ("step.started", step("four", "operation"), "a.b/c"),
        ("step.completed", step("two", "operation"), "a"),
        ("step.started", step("five", "operation"), "a.d"),
    ]
    path = write(tmp_path / f"{RUN}.jsonl", *(line(seq, kind, payload, path=at) for seq, (kind, payload, at) in enumerate(events, 1)))
    [turn] = FORMAT.read(path).trees[0].session.turns
    assert [None, None, "1.2", "1.2", "1.1"] == [op.parent_op for op in turn.ops]


def test_faults_of_a_run_name_no_line_that_is_none(tmp_path):
    """What is wrong with a run as a whole is told by its number, and not as if that were a line; strict reading raises it."""
    from optree.errors import FormatError

    path = tmp_path / f"{RUN}.jsonl"
    path.write_bytes(b"\n" * 9 + line(1, "run.started") + b"\n" + line(2, "step.completed", step(), path="zz") + b"\n")
    assert [(0, "seq 2: step 'zz' ends that did not begin; kept")] == [tuple(fault) for fault in FORMAT.read(path).faults]
    with pytest.raises(FormatError, match=r"^seq 2: step 'zz' ends that did not begin; kept$"):
        FORMAT.read(path, strict=True)
