"""Credentials in transcripts: what is followed is written without, what is recorded is written as it is."""

import os
import subprocess
import sys

import pytest
from msgspec.structs import replace

from optree._builder import SessionTreeBuilder
from optree._tracing import Session
from optree.testing import Ticking
from optree_formats.transcript import ContentBlock, InvalidEventError, Recorder, follow, line, read
from tests.formats.transcript.lines import RUN

KEY = "sk-proj-abcdefghijklmnop1234567890abcdef"
SECRETS = (KEY, "hunter2hunter2", "ghp_abcdefghijklmnopqrstuvwxyz0123456789")


def program(root):
    """Record credentials wherever they may stand."""
    root.begin_turn(user=f"my key is {KEY}")
    op = root.begin_op("tool", "fetch")
    root.set_request(op, {"password": "hunter2hunter2", "q": "x"})
    root.set_response(op, {"said": f"token {SECRETS[2]}"})
    op.end()
    call = root.begin_op("llm", "openai:gpt-4o")
    root.set_request(call, {}, [{"role": "user", "content": KEY}])
    root.set_response(call, {"role": "assistant", "content": f"you said {KEY}"})
    call.end()
    root.end_session("ok", final_report={"api_key": "hunter2hunter2"})


@pytest.mark.parametrize("redacted", [True, False])
def test_what_is_followed_is_without_credentials(tmp_path, redacted):
    """Following a session replaces credentials in its files and for subscribers, unless told not to; all else is there."""
    root = SessionTreeBuilder("a", txn="t", now=Ticking(), attributes={"token": "hunter2hunter2"})
    transcript = follow(Session(root), tmp_path) if redacted else follow(Session(root), tmp_path, redacted=False)
    subscription = transcript.subscribe()
    program(root)
    assert (True, []) == (transcript.close(), transcript.problems)
    [path] = tmp_path.iterdir()
    text = path.read_text()
    assert [not redacted] * 3 == [secret in text for secret in SECRETS]
    assert redacted == ("[REDACTED]" in text)
    told = b"".join(map(line, subscription)).decode()
    assert [not redacted] * 3 == [secret in told for secret in SECRETS]
    assert ["run.started", "run.completed"] == [event.type for event in read(path, strict=True) if event.type.startswith("run.")]
    assert '"q":"x"' in text


def test_a_process_that_configures_nothing(tmp_path):
    """One that has nothing but a transcript to write replaces what is known, and what the environment adds."""
    code = f"""
from optree_formats.transcript import Recorder
from optree_formats.transcript.recorder import masked
recorder = Recorder({str(tmp_path / "x.jsonl")!r}, {RUN!r}, mask=masked(None))
recorder.run_started("{KEY} ACME-12345678 jane@example.org")
recorder.close()
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPTREE_REDACT": '{"patterns": ["ACME-[0-9]{8}"], "mask": ["email"]}'}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    [event] = read(tmp_path / "x.jsonl", strict=True)
    assert "[REDACTED] [REDACTED] [REDACTED]" == event.payload.name


def test_a_recorder_writes_what_it_is_given(tmp_path):
    """Without a mask nothing is taken out of what is recorded (S2-83)."""
    recorder = Recorder(tmp_path, RUN)
    recorder.assistant("a", [ContentBlock(type="text", fidelity="router", text=KEY)])
    recorder.close()
    assert KEY in recorder.path.read_text()


def test_a_mask_comes_before_redaction(tmp_path):
    """What a mask of one's own puts in is redacted too."""
    root = SessionTreeBuilder("a", txn="t", now=Ticking())
    transcript = follow(Session(root), tmp_path, mask=lambda event: replace(event, payload={"name": KEY, "kind": "workflow"}))
    root.end_session()
    assert transcript.close()
    [path] = tmp_path.iterdir()
    assert ["[REDACTED]"] * 2 == [event.payload.name for event in read(path, strict=True)]


def test_a_mask_may_not_change_the_run(tmp_path):
    """An event that a mask puts into another run is not written."""
    recorder = Recorder(tmp_path, RUN, mask=lambda event: replace(event, run_id="another"))
    assert not recorder.run_started("x")
    assert InvalidEventError.__name__ in recorder.last_failure
    assert not recorder.path.exists()
