"""Logs of Inspect: those in `data` its version 0.3.285 wrote, with its mock model."""

import json
import zipfile
import zlib
from pathlib import Path

import pytest

from optree import walk_ops
from optree._formats.installed import format_named
from optree.errors import FormatError
from optree_formats.agents import inspect_log
from tests.security.test_bombs import within

INSPECT = format_named("inspect")
FOLDER = Path(__file__).with_name("data") / "inspect"
BOTH = pytest.mark.parametrize("name", ["sums.eval", "sums.json"])
STAMP = "2026-11-23T15:00:{:06.3f}+00:00"


def event(second, kind, **members):
    """Return an event at a second of one minute."""
    return {"event": kind, "timestamp": STAMP.format(second), **members}


def model(second, answer="ok", **members):
    """Return an event of a call of a model."""
    output = {"choices": [{"message": {"role": "assistant", "content": answer}, "stop_reason": "stop"}]}
    output["usage"] = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return event(second, "model", model="openai/gpt-4o", input=[{"role": "user", "content": "go"}], output=output, **members)


def sample(*events, **members):
    """Return a sample as a log has it."""
    return {"id": 1, "epoch": 1, "input": "go", "started_at": STAMP.format(0), "events": list(events), **members}


def log(*samples):
    """Return a log in JSON."""
    return {"version": 2, "status": "success", "eval": {"run_id": "r", "task": "sums", "model": "openai/gpt-4o"}, "samples": list(samples)}


def read(path, *samples, strict=True):
    """Return the trees and the faults of a log with these samples."""
    path.write_text(json.dumps(log(*samples)))
    found = INSPECT.read(path, strict=strict)
    return found.trees, found.faults


def kept(tree, payload):
    """Return a request or response in full."""
    return tree.pool.resolve(json.loads(bytes(payload.payload)))


def members_of(name):
    """Return the sample in a log as Inspect wrote it."""
    if name.endswith(".json"):
        return json.loads((FOLDER / name).read_text())["samples"][0]
    with (FOLDER / name).open("rb") as file:
        archive = inspect_log._SampleArchive(file, 1 << 20, name)
        [entry] = [one for one in archive.entries if one.filename.startswith("samples/")]
        return json.loads(archive.read(entry))


@BOTH
def test_a_log_of_the_program_itself(name):
    """A sample is a session: calls, tools with results and errors, the agent that was called as a child session, scores as the report."""
    found = INSPECT.read(FOLDER / name, strict=True)
    [tree] = found.trees
    root, own = tree.session, members_of(name)
    llm = ("llm", "mockllm:model", "ok")
    assert [
        llm,
        ("tool", "add", "ok"),
        llm,
        ("tool", "broken", "failed"),
        llm,
        ("session", "helper", "ok"),
        llm,
        ("tool", "submit", "ok"),
    ] == [(op.kind, op.name, op.status) for op in root.turns[0].ops]
    child = root.turns[0].ops[5].child_session
    assert [llm, ("tool", "submit", "ok")] == [(op.kind, op.name, op.status) for op in child.turns[0].ops]
    assert (own["uuid"], "sums", "ok", "What is 1+2?") == (root.origin_txn_id, root.agent_id, root.status, root.turns[0].prompts["user"])
    assert own["scores"] == json.loads(bytes(root.final_report))["scores"]
    assert "no such file" == root.turns[0].ops[3].error


@BOTH
def test_its_tokens_are_those_that_it_counted_itself(name):
    """Totals equal the sample's own, by tier; no cost is said, so it is unknown."""
    [tree] = INSPECT.read(FOLDER / name).trees
    [own] = members_of(name)["model_usage"].values()
    totals = tree.session.totals
    names = ("input_tokens", "input_tokens_cache_read", "input_tokens_cache_write", "output_tokens", "reasoning_tokens")
    assert [own[one] for one in names] == [
        totals.input_tokens,
        totals.cache_read_input_tokens,
        totals.cache_write_input_tokens,
        totals.output_tokens,
        totals.reasoning_output_tokens,
    ]
    assert (0, 5) == (totals.known_costs, totals.llm_requests)


@BOTH
def test_a_call_says_what_was_asked_and_answered(name):
    """Messages that events refer to stand in the requests, attachments in their places; reasoning and times are the file's."""
    [tree] = INSPECT.read(FOLDER / name).trees
    calls = [op for _, _, op in walk_ops(tree.session) if op.kind == "llm"]
    assert [2, 4, 6, 2, 8] == [len(kept(tree, op.request)["messages"]) for op in sorted(calls, key=lambda op: op.started_at)]
    assert {"x": 1, "y": 2} == kept(tree, tree.session.turns[0].ops[1].request)
    assert "3" == kept(tree, tree.session.turns[0].ops[1].response)
    assert "I should call it." == calls[0].reasoning.text
    assert "attachment://" not in "".join(json.dumps(kept(tree, op.request)) for op in calls)
    assert all(tree.session.started_at <= op.started_at <= op.ended_at for _, _, op in walk_ops(tree.session))


def test_attachments_stand_in_their_places(tmp_path):
    """What a message or a result only names is put in its place; a name that nothing stands behind stays."""
    held = {"k": "long words"}
    call = event(2, "tool", function="read", arguments={"path": "attachment://k"}, result="attachment://gone", completed=STAMP.format(3))
    [tree], _ = read(tmp_path / "l.json", sample(model(1, "attachment://k"), call, attachments=held))
    said, read_file = tree.session.turns[0].ops
    assert ("long words", {"path": "long words"}, "attachment://gone") == (
        kept(tree, said.response)["content"],
        kept(tree, read_file.request),
        kept(tree, read_file.response),
    )


def test_outcomes(tmp_path):
    """An error and a limit are how a sample ended; a call that failed says why; one from Inspect's cache took nothing."""
    trees, _ = read(
        tmp_path / "l.json",
        sample(model(1), model(2, error="down"), completed_at=STAMP.format(3), error={"message": "down"}),
        sample(model(1, cache="read"), completed_at=STAMP.format(3), limit={"type": "token", "limit": 9}, epoch=2),
        sample(event(1, "tool", function="wait", arguments={}, pending=True), epoch=3),
    )
    failed, limited, pending = (tree.session for tree in trees)
    assert ("failed", "down", 20, 1) == (failed.status, failed.error, failed.totals.all_input_tokens, failed.totals.llm_failed)
    assert ("failed", "limit of token reached: 9", 0) == (limited.status, limited.error, limited.totals.all_input_tokens)
    assert (None, None) == (pending.ended_at, pending.turns[0].ops[0].ended_at)
    assert 3 == len({tree.session.origin_txn_id for tree in trees})


def test_what_is_odd_is_said(tmp_path):
    """What is not known, has no time, or is no sample is said and passed over; with --strict it is refused."""
    samples = [
        sample(
            event(1, "of_tomorrow"), event(1, "of_tomorrow"), {"event": "model"}, 7, model(2), attachments=7, events_data=[], messages=8
        ),
        {"id": 2},
        7,
        sample(model(1, input_refs=[[0, 9**9], "x"], span_id=["s"]), event(1, "span_begin", id=[], type="agent"), uuid="../../x"),
    ]
    trees, faults = read(tmp_path / "l.json", *samples, strict=False)
    assert [
        "sample 1: events of type 'of_tomorrow' are not known: passed over",
        "sample 1: an event has no time: passed over",
        "sample 2: never began, and is left out",
    ] == [fault.said for fault in faults[:3]]
    assert ("sample 3: cannot be read", 4, 2) == (faults[3].said[:24], len(faults), len(trees))
    assert "/" not in trees[1].session.origin_txn_id
    with pytest.raises(FormatError, match="of_tomorrow"):
        read(tmp_path / "l.json", *samples)


def test_an_archive_that_unpacks_without_end(tmp_path, monkeypatch):
    """An archive whose files unpack to far more than they are is refused, in little memory; so is one that packs in an unknown way."""
    monkeypatch.setattr(inspect_log, "_MOST_BYTES", 4 << 20)
    monkeypatch.setattr(inspect_log, "_SPARE_BYTES", 1 << 20)
    monkeypatch.setattr(inspect_log, "_MOST_RATIO", 1)
    path = tmp_path / "l.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", "{}")
        with archive.open("samples/1_epoch_1.json", "w") as file:
            for _ in range(64):
                file.write(b" " * (1 << 20))
    with within(64 << 20), pytest.raises(FormatError, match="is not read further"):
        INSPECT.read(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("samples/1_epoch_1.json", json.dumps(sample(model(1))))
    with pytest.raises(FormatError, match="packed in a way that is not known"):
        INSPECT.read(path)


def test_a_damaged_sample_leaves_the_others(tmp_path):
    """A sample that cannot be unpacked is said, and all others are read."""
    path = tmp_path / "l.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in (1, 2):
            archive.writestr(f"samples/{number}_epoch_1.json", json.dumps(sample(model(1), id=number)))
    data = bytearray(path.read_bytes())
    at = data.index(b"samples/1_epoch_1.json") + len("samples/1_epoch_1.json")
    data[at : at + 4] = b"\xff" * 4
    path.write_bytes(data)
    with pytest.raises(zlib.error):
        zlib.decompress(bytes(data[at : at + 40]), -15)
    found = INSPECT.read(path)
    assert (1, 1) == (len(found.trees), len(found.faults))
    assert "samples/1_epoch_1.json: cannot be read, and is left out" in found.faults[0].said
