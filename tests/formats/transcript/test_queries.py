"""The seed's own queries, with the seed's own tool, on what we write."""

import os
import shutil
import subprocess

import pytest
from msgspec import json

from optree_formats.transcript import FORMAT, run_id_of
from tests.formats.transcript.trees import review

pytestmark = pytest.mark.skipif(shutil.which("jq") is None and not os.environ.get("CI"), reason="needs the jq command: apt install jq")
PAIRS = """
  [.[] | select(.type == "tool.call" or .type == "tool.result")]
  | group_by(.payload.call_id)
  | map({
      call_id: .[0].payload.call_id,
      name: .[0].payload.name,
      input: (map(select(.type == "tool.call"))[0].payload.input),
      output: (map(select(.type == "tool.result"))[0].payload.output)
    })
"""
ANSWERS = 'select(.type == "message.assistant") | .payload.blocks[] | select(.type == "text") | .text'
STEPS = r'select(.type == "step.started") | "\(.seq)\t\(.path)\t\(.payload.kind)\t\(.payload.name)"'
CHILDREN = 'select(.type == "step.call_workflow.started") | .child_run_id'
FIDELITIES = """
  [.[] | select(.type == "tool.call")]
  | group_by(.payload.fidelity)
  | map({fidelity: .[0].payload.fidelity, count: length})
"""


@pytest.fixture
def path(tmp_path):
    """Return the file of a review's root run."""
    return FORMAT.write(review(), tmp_path)[0]


def jq(*arguments):
    """Return what jq prints."""
    return subprocess.run(["jq", *map(str, arguments)], capture_output=True, check=True, timeout=60).stdout


def test_decode_every_event(path):
    """`jq .` decodes every event (S2-05, S2-86)."""
    lines = [json.decode(line) for line in path.read_bytes().splitlines()]
    assert lines == [json.decode(line) for line in jq("-c", ".", path).splitlines()]


def test_pair_calls_with_results(path):
    """Calls and results are paired by their id (S2-38, S2-87)."""
    assert [
        {"call_id": "c2", "name": "lint", "input": {}, "output": "clean"},
        {"call_id": "t:1.2", "name": "read", "input": {"path": "main.go"}, "output": "package main"},
        {"call_id": "t:1.3", "name": "grep", "input": {"pattern": "TODO"}, "output": None},
    ] == json.decode(jq("-s", PAIRS, path))


def test_assistants_texts(path):
    """Every text of the assistant is found, once (S2-88)."""
    assert b"I look at it\nFound 2 issues.\n" == jq("-r", ANSWERS, path)


def test_monotonic_numbers(path):
    """The numbers stand in order (S2-07, S2-89)."""
    assert b"true\n" == jq("-s", "[.[].seq] | . == (sort)", path)


def test_step_tree(path):
    """The steps are listed with their number, path, kind and name (S2-15, S2-90)."""
    found = [line.split("\t") for line in jq("-r", STEPS, path).decode().splitlines()]
    assert [
        ["turn_1", "turn", "turn_1"],
        ["turn_1.op_1", "agent", "openai:gpt-4o"],
        ["turn_1.op_5", "operation", "check budget"],
        ["turn_1.op_6", "agent", "openai:gpt-4o"],
        ["turn_2", "turn", "turn_2"],
    ] == [one[1:] for one in found]
    assert sorted(int(one[0]) for one in found) == [int(one[0]) for one in found]


def test_children(path):
    """The runs that a run has called are listed, and each has its file (S2-61, S2-91)."""
    child = jq("-r", CHILDREN, path).decode().strip()
    assert (run_id_of("t:1.4"), True) == (child, path.with_name(f"{child}.jsonl").exists())


def test_count_by_fidelity(path):
    """Calls are counted by who tells of them (S2-41, S2-92)."""
    assert [{"fidelity": "agent_emitted", "count": 1}, {"fidelity": "router", "count": 2}] == json.decode(jq("-s", FIDELITIES, path))
