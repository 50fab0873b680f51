import errno
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from msgspec import json

from optree._store.files.line_log import LineLog
from optree.errors import SetupError
from optree_formats.transcript import ContentBlock, Event, InvalidEventError, NopRecorder, Recorder, StepPayload, read
from tests.formats.transcript.lines import CHILD, RUN, TIME, event, line, message, step, text, write

ROOT = Path(__file__).resolve().parents[3]
FILE = f"{RUN}.jsonl"
TORN = b'{"seq":2,"run_id":"550e'


def lines(path):
    """Return a file's lines, decoded."""
    return [json.decode(one) for one in path.read_bytes().splitlines()]


def seqs(path):
    """Return the numbers in a file, in its order."""
    return [one["seq"] for one in lines(path)]


def test_one_file_a_run(tmp_path):
    """In a directory a run's file is named by its run id, private, and each line is an object that ends with LF (S2-01, S2-02, S2-05)."""
    recorder = Recorder(tmp_path, RUN)
    recorder.run_started("review")
    recorder.run_completed("review", result={"issues": 2})
    path = tmp_path / FILE
    assert (path, 0o600) == (recorder.path, path.stat().st_mode & 0o777)
    assert (2, b"}\n") == (path.read_bytes().count(b"\n"), path.read_bytes()[-2:])
    assert [(1, {"name": "review", "kind": "workflow"}), (2, {"name": "review", "kind": "workflow", "result": {"issues": 2}})] == [
        (one["seq"], one["payload"]) for one in lines(path)
    ]


def test_opened_for_appending(tmp_path):
    """The file is opened to be appended to: a line lands at the end, also when somebody else has written meanwhile (S2-03, S2-08)."""
    recorder = Recorder(tmp_path, RUN)
    recorder.run_started("review")
    flags = os.O_APPEND & int((Path("/proc/self/fdinfo") / str(recorder._log._fd)).read_text().split("flags:")[1].split()[0], 8)
    with recorder.path.open("ab") as other:
        other.write(line(2) + b"\n")
    recorder.run_completed("review")
    assert os.O_APPEND == flags
    assert [1, 2, 3] == seqs(recorder.path)


def test_opened_late(tmp_path):
    """There is no file before the first event, and the recorder makes no directory: a missing one is an error (S2-94)."""
    Recorder(tmp_path, RUN).close()
    assert [] == [*tmp_path.iterdir()]
    with pytest.raises(SetupError, match="make it before"):
        Recorder(tmp_path / "none" / FILE, RUN)
    assert [] == [*tmp_path.iterdir()]


def test_numbers_go_on(tmp_path):
    """A recorder that is opened again on a file goes on with the numbers (S2-06)."""
    for name in ("a", "b", "c"):
        recorder = Recorder(tmp_path, RUN)
        recorder.run_started(name)
        recorder.close()
    assert [1, 2, 3] == seqs(tmp_path / FILE)


def test_torn_last_line(tmp_path):
    """What a killed writer left half written is ended, not changed, and no later line is damaged by it (S2-09)."""
    path = write(tmp_path / FILE, line(1))
    path.write_bytes(path.read_bytes() + TORN)
    recorder = Recorder(tmp_path, RUN)
    assert recorder.run_completed("review")
    first, torn, last = path.read_bytes().splitlines()
    assert (line(1), TORN, 2) == (first, torn, json.decode(last)["seq"])


def test_threads(tmp_path):
    """Eight threads write large events: on disk the numbers are 1 to N in the order of the lines, none is torn (S2-04, S2-06, S2-07)."""
    recorder = Recorder(tmp_path, RUN)

    def work(number):
        for place in range(25):
            recorder.step_started(f"t{number}", "x" * (place % 3 * 9000), "command")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(range(1, 201)) == seqs(recorder.path)


def test_processes(tmp_path):
    """Four processes with 500 events each: 2,000 whole lines, their numbers 1 to 2,000 in order (S2-04, S2-07, S2-08)."""
    command = [sys.executable, Path(__file__).with_name("writer.py"), tmp_path, RUN, "500"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'exporters'}"}
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(4)]
    for process in processes:
        assert b"ready\n" == process.stdout.readline()
    (tmp_path / "go").touch()
    assert [0] * 4 == [process.wait(60) for process in processes]
    for process in processes:
        process.stdout.close()
    assert list(range(1, 2001)) == seqs(tmp_path / FILE)


def test_links(tmp_path):
    """A child's events all have its parent's id; the step that calls a run has its id, at start and end (S2-12, S2-13, S2-61, S2-62)."""
    parent, child = Recorder(tmp_path, RUN), Recorder(tmp_path, CHILD, RUN)
    parent.step_started("call", "sub", "call_workflow", child_run_id=CHILD)
    child.run_started("sub")
    child.step_started("a", "a", "command")
    child.run_completed("sub")
    parent.step_completed("call", "sub", "call_workflow", child_run_id=CHILD, error="failed")
    assert [("step.call_workflow.started", CHILD), ("step.call_workflow.completed", CHILD)] == [
        (one["type"], one["child_run_id"]) for one in lines(parent.path)
    ]
    assert [(1, RUN), (2, RUN), (3, RUN)] == [(one["seq"], one["parent_run_id"]) for one in lines(child.path)]
    assert not any("parent_run_id" in one for one in lines(parent.path))


def test_messages(tmp_path):
    """A user's message is the prompt and, if there is one, the system prompt, from the router; an answer without blocks is none.

    (S2-26, S2-27, S2-36)
    """
    recorder = Recorder(tmp_path, RUN)
    recorder.user("analyze", "Review main.go", "Be brief")
    recorder.user("analyze", "Review main.go")
    recorder.assistant("analyze", [])
    recorder.assistant("analyze", [ContentBlock(type="text", fidelity="agent_emitted", text="Found 2")])
    assert [
        message(text("Review main.go"), text("Be brief")),
        message(text("Review main.go")),
        message(text("Found 2", "agent_emitted"), role="assistant"),
    ] == [one["payload"] for one in lines(recorder.path)]


def test_tools(tmp_path):
    """A call has its input and a null output; its result has both, and its error where it has one (S2-28, S2-29, S2-38, S2-39, S2-40)."""
    recorder = Recorder(tmp_path, RUN)
    recorder.tool_call("analyze", "Read", "c1", {"path": "main.go"})
    recorder.tool_result("analyze", "Read", "c1", {"path": "main.go"}, None, error="gone")
    called, told = (one["payload"] for one in lines(recorder.path))
    assert {"name": "Read", "call_id": "c1", "input": {"path": "main.go"}, "output": None, "fidelity": "router"} == called
    assert {**called, "error": "gone"} == told


def test_place_and_time(tmp_path):
    """Path, iteration and time are as given; by default the run's level, 0 and now in UTC (S2-15, S2-16, S2-17)."""
    recorder = Recorder(tmp_path, RUN)
    recorder.step_started("parallel_block.branch_a", "a", "command", iteration=2, timestamp=TIME)
    recorder.run_completed("w")
    first, second = lines(recorder.path)
    assert ("parallel_block.branch_a", 2, TIME) == (first["path"], first["iteration"], first["timestamp"])
    assert ("", 0, "Z") == (second["path"], second["iteration"], second["timestamp"][-1])


def test_subscribers_get_what_is_written(tmp_path):
    """A subscriber gets every event that is on disk, in order, and with its number (S2-76)."""
    recorder = Recorder(tmp_path, RUN)
    subscription = recorder.subscribe()
    for name in "abc":
        recorder.step_started(name, name, "command")
    recorder.close()
    assert [(1, "a"), (2, "b"), (3, "c")] == [(one.seq, one.path) for one in subscription]


def test_threads_and_a_subscriber(tmp_path):
    """However many threads write, a subscriber sees the file's order (S2-76, S2-79)."""
    recorder = Recorder(tmp_path, RUN)
    subscription = recorder.subscribe(buffer=1000)
    threads = [threading.Thread(target=lambda: [recorder.step_started("a", "b", "c") for _ in range(50)]) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    assert list(range(1, 301)) == [one.seq for one in subscription]


def test_what_is_not_written_is_not_told(tmp_path, monkeypatch, caplog):
    """A failed write is a warning and False, no exception; no subscriber hears of it, its number is the next one's (S2-79, S2-93)."""
    recorder = Recorder(tmp_path, RUN)
    subscription = recorder.subscribe()
    recorder.run_started("a")
    with monkeypatch.context() as patched:
        patched.setattr(LineLog, "append", full)
        assert [False] * 3 == [recorder.run_completed("b") for _ in range(3)]
    assert recorder.run_completed("c")
    recorder.close()
    assert [1, 2] == [one.seq for one in subscription] == seqs(recorder.path)
    assert (3, 1) == (recorder.failures, len([one for one in caplog.records if one.levelno == logging.WARNING]))
    assert "No space left" in recorder.last_failure


def full(*_):
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_directory_is_gone(tmp_path):
    """A directory that disappears after the set-up is the disk's fault, and no exception (S2-93)."""
    (tmp_path / "t").mkdir()
    recorder = Recorder(tmp_path / "t", RUN)
    (tmp_path / "t").rmdir()
    assert not recorder.run_started("a")


def test_slow_subscriber(tmp_path):
    """A subscriber that takes nothing loses the newest beyond its buffer of 256; every event is on disk (S2-77, S2-78, S2-80, S2-81)."""
    recorder = Recorder(tmp_path, RUN)
    slow = recorder.subscribe()
    for _ in range(300):
        recorder.step_started("a", "b", "c")
    assert (1, 44) == recorder.stats()
    recorder.close()
    assert list(range(1, 257)) == [one.seq for one in slow]
    assert 300 == len(seqs(recorder.path))


def test_closed(tmp_path):
    """Closing twice, writing and subscribing after it do no harm: nothing is written, the subscription is closed (S2-82, S2-97)."""
    recorder = Recorder(tmp_path, RUN)
    recorder.run_started("a")
    recorder.close()
    recorder.close()
    assert not recorder.run_completed("a")
    assert (True, None) == (recorder.subscribe().closed, recorder.subscribe().get())
    assert [1] == seqs(recorder.path)


def test_nothing_is_masked(tmp_path):
    """Without a mask prompts and inputs are as they were given, secrets too (S2-83)."""
    recorder = Recorder(tmp_path, RUN)
    recorder.user("a", "my key is sk-0123456789abcdef0123")
    assert b"sk-0123456789abcdef0123" in recorder.path.read_bytes()


def test_mask(tmp_path):
    """A mask sees each event once, without a number, and disk and subscribers get what it returns (S2-83)."""
    seen = []

    def mask(found):
        seen.append(found.seq)
        found.payload.name = "***"
        return found

    recorder = Recorder(tmp_path, RUN, mask=mask)
    subscriptions = [recorder.subscribe(), recorder.subscribe()]
    recorder.step_started("a", "secret", "command")
    assert ["***", "***"] == [one.get().payload.name for one in subscriptions]
    assert ("***", [0]) == (lines(recorder.path)[0]["payload"]["name"], seen)


@pytest.mark.parametrize("result", [ValueError("no"), None, "invalid"])
def test_mask_that_fails(tmp_path, result):
    """An event that a mask could not treat, or spoiled, is written nowhere (S2-83, S2-93)."""

    def mask(found):
        if isinstance(result, Exception):
            raise result
        if result:
            found.type = result
        return found if result else None

    recorder = Recorder(tmp_path, RUN, mask=mask)
    subscription = recorder.subscribe()
    assert not recorder.run_started("secret")
    recorder.close()
    assert ([], [], 1) == ([*tmp_path.iterdir()], [*subscription], recorder.failures)


def test_events_of_others_are_refused(tmp_path):
    """An event that was read is written again with its run's next number; one of another run is refused (S2-06)."""
    _, found = read(write(tmp_path / "a", line(7)))
    recorder = Recorder(tmp_path / "b", RUN)
    assert recorder.write(found)
    assert event(1) == lines(recorder.path)[0]
    with pytest.raises(InvalidEventError, match="does not go into the file"):
        Recorder(tmp_path / "c", CHILD).write(found)


def test_an_event_that_is_written_twice(tmp_path):
    """The caller's event stays as it is: written twice it has two numbers, in the file and for subscribers."""
    recorder = Recorder(tmp_path, RUN)
    subscription = recorder.subscribe()
    one = Event(seq=0, run_id=RUN, type="run.started", path="", iteration=0, timestamp=TIME, payload={"name": "a", "kind": "workflow"})
    assert recorder.write(one)
    assert recorder.write(one)
    recorder.close()
    assert [1, 2] == [event.seq for event in subscription]
    assert (0, {"name": "a", "kind": "workflow"}, [1, 2]) == (one.seq, one.payload, seqs(recorder.path))


def _forked(recorder, number):
    """Record 500 steps in a process of its own; returns its id."""
    child = os.fork()
    if child:
        return child
    try:
        done = all(recorder.step_started("a", f"{number}:{step}", "command") for step in range(500))
    finally:
        os._exit(0 if done else 1)


def test_forks(tmp_path):
    """Forked processes that go on with their parent's recorder write whole lines, in the order of their numbers, without a gap."""
    recorder = Recorder(tmp_path, RUN)
    recorder.run_started("review")
    children = [_forked(recorder, number) for number in range(4)]
    assert [0] * 4 == [os.waitpid(child, 0)[1] for child in children]
    assert recorder.run_completed("review")
    recorder.close()
    found = lines(recorder.path)
    assert [*range(1, 2003)] == [one["seq"] for one in found]
    names = [one["payload"]["name"] for one in found[1:-1]]
    assert [[f"{child}:{step}" for step in range(500)] for child in range(4)] == [
        [name for name in names if name.startswith(f"{child}:")] for child in range(4)
    ]


def test_nop(tmp_path, monkeypatch):
    """The recorder that does nothing takes everything that the other one takes (S2-98)."""
    monkeypatch.chdir(tmp_path)
    recorder = NopRecorder()
    assert recorder.record("run.started", StepPayload(name="a", kind="b"), path="")
    assert recorder.run_started("a")
    assert recorder.step_completed("a", "b", "c", error="e")
    assert ([], (0, 0)) == ([*recorder.subscribe()], recorder.stats())
    recorder.close()
    assert [] == [*tmp_path.iterdir()]
    missing = {name for name in dir(Recorder) if not name.startswith("_")} - set(dir(NopRecorder))
    assert set() == missing


def test_step_results(tmp_path):
    """A step's end has its error or its result, whatever its shape (S2-23, S2-33, S2-34)."""
    recorder = Recorder(tmp_path, RUN)
    recorder.step_completed("a", "a", "agent", result=["x", {"y": None}])
    recorder.step_completed("a", "a", "agent", error="no")
    assert [step("a", result=["x", {"y": None}]), step("a", error="no")] == [one["payload"] for one in lines(recorder.path)]


def test_half_an_emoji(tmp_path):
    """Text that JSON cannot hold is marked and recorded: nothing is raised into the program (S2-93)."""
    recorder = Recorder(tmp_path, RUN)
    said = [ContentBlock(type="text", fidelity="router", text="bad \ud800")]
    assert recorder.record("message.user", {"role": "user", "blocks": said}, path="p")
    assert recorder.user("p", "bad \ud800")
    recorder.close()
    assert ["bad \ufffd", "bad \ufffd"] == [found.payload.blocks[0].text for found in read(recorder.path)]
    assert "bad \ud800" == said[0].text
