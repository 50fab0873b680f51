import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from optree._store.files.system import OS
from optree.errors import SetupError, StoreError
from optree.testing import Ticking
from optree_formats.markdown import EventLog, LogEvent, Refused, extract_events, log_path, read_log, state_at, verify, write_summary
from optree_formats.markdown.retention import apply, archive, compress
from tests.formats.markdown.logs import STARTED, call, log, result, session

ROOT = Path(__file__).resolve().parents[3]
WRITER = """
import sys
from pathlib import Path
from optree_formats.markdown import EventLog, LogEvent
log = EventLog(Path(sys.argv[1]), "sess-001")
for number in range(60):
    log.append(LogEvent("note", writer=int(sys.argv[2]), number=number, text="x" * 3000, narrative="A note."))
"""


def kinds(path):
    """Return the types of a log's events."""
    return [fields["type"] for fields in extract_events(path)]


def test_location_and_start(tmp_path, monkeypatch):
    """A log that is missing is made under .agent/sessions, with title, head and session's start (S3-09, S3-10, S3-11, S3-75)."""
    monkeypatch.chdir(tmp_path)
    EventLog(log_path("sess-001"), "sess-001", now=Ticking(STARTED)).close()
    text = (tmp_path / ".agent/sessions/sess-001/session-log.md").read_text()
    assert text.startswith(
        "# Session Log: sess-001\n\nStarted: 2023-11-14T22:13:20Z\nProtocol: EVENT-LOG/0.2\n\n---\n\n## 22:13:20 — Session Start\n"
    )


def test_paths_may_be_texts(tmp_path):
    """A log, and the place where logs are, may be named by a text."""
    path = str(log_path("sess-001", str(tmp_path)))
    assert str(tmp_path / "sess-001/session-log.md") == path
    made = EventLog(path, "sess-001")
    made.append(call())
    made.close()
    assert 2 == len(read_log(path).entries) == len(extract_events(path)) == state_at(path).events
    assert [] == verify(path)
    assert tmp_path / "sess-001/session-summary.yml" == write_summary(path)
    assert tmp_path / "x.yml" == write_summary(path, str(tmp_path / "x.yml"))
    assert tmp_path / "small.md" == compress(path, str(tmp_path / "small.md"))
    assert tmp_path / "log.zst" == archive(path, str(tmp_path / "log.zst"))
    assert ["the session has not ended"] == [action.why for action in apply(str(tmp_path))]


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".hidden", "a\n"])
def test_a_session_is_no_path(name):
    """A session's id that would lead elsewhere is refused (S3-09)."""
    with pytest.raises(SetupError, match="cannot name a session"):
        log_path(name)


def test_every_action_is_there_in_order(tmp_path):
    """Each event that was taken is in the log, numbered, in its order, with its heading (S3-01, S3-02, S3-12)."""
    made = log(tmp_path)
    assert [2, 3, 4] == [made.append(event) for event in (call(), result(), LogEvent("warning", message="x"))]
    entries = read_log(made.path).entries
    assert ["Session Start", "Tool Call: fs.read", "Tool Result: fs.read", "Warning"] == [entry.title for entry in entries]
    assert ["22:13:20", "22:13:21", "22:13:22", "22:13:23"] == [entry.time for entry in entries]
    assert [1, 2, 3, 4] == [entry.number for entry in entries]


def test_only_appended(tmp_path):
    """Each write leaves all bytes before it as they were, that of a second writer too (S3-07, S3-40, S3-55)."""
    first = log(tmp_path)
    seen = first.path.read_bytes()
    for writer in (first, log(tmp_path), first, log(tmp_path)):
        writer.append(call())
        now = first.path.read_bytes()
        assert now.startswith(seen)
        assert len(now) > len(seen)
        seen = now
    assert ["session_start", *["tool_call"] * 4] == kinds(first.path)
    assert [] == verify(first.path)


def test_nothing_follows_the_end(tmp_path):
    """After the session's end no event is taken, so the end is last; a log that is opened to be taken up says so (S3-18)."""
    path = session(tmp_path)
    later = log(tmp_path)
    with pytest.raises(Refused, match="SESSION_ENDED"):
        later.append(call())
    assert "session_end" == kinds(path)[-1]
    again = log(tmp_path, reopen=True)
    again.append(call())
    again.end()
    assert ["session_end", "session_resume", "tool_call", "session_end"] == kinds(path)[-4:]
    with pytest.raises(StoreError, match="closed"):
        again.append(call())


def test_no_second_start(tmp_path):
    """The session's start is first and only once (S3-17)."""
    made = log(tmp_path)
    with pytest.raises(Refused, match="has begun"):
        made.append(LogEvent("session_start", session_id="sess-001", protocol="EVENT-LOG/0.2"))


def test_processes_and_threads_write_whole_events(tmp_path):
    """Events of several processes and threads stand whole in one log, none is lost, and its seals fit (S3-01, S3-14)."""
    path = tmp_path / "sess-001"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'exporters'}"}
    running = [subprocess.Popen([sys.executable, "-c", WRITER, path, str(number)], env=environment) for number in range(3)]
    shared = EventLog(path, "sess-001")
    threads = [Thread(target=append_notes, args=(shared, number)) for number in (3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [0, 0, 0] == [process.wait(60) for process in running]
    found = read_log(shared.path)
    assert ([], []) == (found.faults, verify(shared.path))
    assert "session_start" == found.entries[0].kind
    for writer in range(5):
        assert list(range(60)) == [entry.fields["number"] for entry in found.entries if entry.fields.get("writer") == writer]


def append_notes(made, writer):
    """Append sixty notes."""
    for number in range(60):
        made.append(LogEvent("note", writer=writer, number=number))


def test_forked_child_writes_too(tmp_path):
    """A forked process goes on with the log that its parent opened, and tears nothing (S3-14)."""
    made = log(tmp_path)
    child = os.fork()
    if not child:
        append_notes(made, 1)
        os._exit(0)
    append_notes(made, 2)
    assert 0 == os.waitpid(child, 0)[1]
    assert ([], []) == (read_log(made.path).faults, verify(made.path))
    assert {1: 60, 2: 60} == {writer: sum(fields.get("writer") == writer for fields in extract_events(made.path)) for writer in (1, 2)}


@pytest.mark.parametrize("cut", [1, 30, 60, 90])
def test_torn_event_is_ended(tmp_path, cut):
    """An event that was torn stays, is ended, and said; what follows is whole (S3-02, S3-54)."""
    made = log(tmp_path)
    made.append(LogEvent("note", text="lost?"))
    made.close()
    whole = made.path.read_bytes()
    os.truncate(made.path, len(whole) - cut)
    torn = made.path.read_bytes()
    log(tmp_path).append(call())
    assert made.path.read_bytes().startswith(torn)
    assert "tool_call" == kinds(made.path)[-1]
    assert "session_start" == kinds(made.path)[0]
    assert 1 == sum(entry.kind == "tool_call" for entry in read_log(made.path).entries)


def test_failed_write_leaves_no_half_event(tmp_path):
    """Where the disk is full in the middle of an event, what is there of it is taken back (S3-14)."""

    class Full(OS):
        left = 10_000

        def write_all(self, fd, data):
            if len(data) > self.left:
                os.write(fd, data[: self.left])
                raise OSError(28, "No space left on device")
            self.left -= len(data)
            super().write_all(fd, data)

    made = log(tmp_path, verbosity="verbose", system=Full())
    before = made.path.read_bytes()
    with pytest.raises(OSError, match="No space"):
        made.append(LogEvent("note", text="x" * 20_000))
    assert before == made.path.read_bytes()
    made.append(LogEvent("note", text="short"))
    assert (["session_start", "note"], []) == (kinds(made.path), verify(made.path))


@pytest.mark.parametrize("name", ["session-log.md", "link.md", "../sess-001/session-log.md", "."])
def test_write_tools_are_refused(tmp_path, name):
    """A tool of the model that would change the log, by whichever name, is refused and logged as a violation (S3-41, S3-42)."""
    made = log(tmp_path)
    directory = made.path.parent
    (directory / "link.md").symlink_to(made.path)
    with pytest.raises(Refused, match="PERMISSION_DENIED") as refused:
        made.guard(directory / name, tool="fs.write")
    assert "PERMISSION_DENIED" == refused.value.error["code"]
    last = extract_events(made.path)[-1]
    assert ("violation", "write", "fs.write", True) == (last["type"], last["action"], last["tool"], last["refused"])


def test_hard_link_is_refused_too(tmp_path):
    """A hard link to the log is the log (S3-41)."""
    made = log(tmp_path)
    os.link(made.path, tmp_path / "other.txt")
    with pytest.raises(Refused, match="PERMISSION_DENIED"):
        made.guard(tmp_path / "other.txt", action="delete")


def test_other_files_may_be_written(tmp_path):
    """Other files are none of the log's business, and to append or read is allowed (S3-41)."""
    made = log(tmp_path)
    made.guard(tmp_path / "output.md", tool="fs.write")
    made.guard(made.path.with_name("session-summary.yml"), tool="fs.write")
    made.guard(made.path, action="append")
    made.guard(made.path, action="read")
    assert ["session_start"] == kinds(made.path)


@pytest.mark.parametrize(
    ("old", "new", "violations"),
    [("look at 1", "look at 2", 1), ("look at 1", "look at nothing", 1), ("call-001", "x", 2)],
    ids=["same length", "longer", "shorter"],
)
def test_rewritten_history_is_found_out(tmp_path, old, new, violations):
    """A history that was rewritten does not verify, and its writer logs that as a violation, once (S3-42, S3-49)."""
    made = log(tmp_path)
    made.append(call(1))
    assert [] == verify(made.path)
    inode = made.path.stat().st_ino
    made.path.write_text(made.path.read_text().replace(old, new))
    os.utime(made.path, ns=(1, 1))
    assert inode == made.path.stat().st_ino
    assert 1 == len(verify(made.path))
    made.append(call(2))
    log(tmp_path).append(call(3))
    assert ["violation", "tool_call", "tool_call"] == kinds(made.path)[-3:]
    assert violations == kinds(made.path).count("violation")  # that it was cut is one of its own


def test_a_log_with_other_line_ends_is_one_violation(tmp_path):
    """However much was rewritten, opening the log again logs one violation, which counts the broken seals (S3-42, S3-49)."""
    path = session(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    for _ in range(2):
        log(tmp_path)
    (told,) = (fields for fields in extract_events(path) if fields["type"] == "violation")
    assert 14 == told["broken_seals"] == len(told["lines"])


@pytest.mark.parametrize("remove", ["event", "seal"])
def test_removed_events_are_found_out(tmp_path, remove):
    """An event, or a seal, that was taken out is missed by whoever verifies (S3-49)."""
    path = session(tmp_path)
    sections = path.read_text().split("---\n\n")
    if remove == "event":
        del sections[3]
    else:
        sections[3] = "\n".join(line for line in sections[3].split("\n") if "seal" not in line)
    path.write_text("---\n\n".join(sections))
    assert 1 == len(verify(path))


@pytest.mark.parametrize("what", ["removed", "replaced", "emptied"])
def test_lost_log_is_begun_again(tmp_path, what):
    """A log that was removed, replaced or emptied under its writer begins again, and says that it was (S3-42, S3-75)."""
    made = log(tmp_path)
    made.append(call(1))
    if what == "emptied":
        os.truncate(made.path, 0)
    else:
        made.path.unlink()
    if what == "replaced":
        session(tmp_path / "else", calls=1)
        os.link(tmp_path / "else" / "sess-001" / "session-log.md", made.path)
        with pytest.raises(Refused, match="SESSION_ENDED"):
            made.append(call(2))
        assert "violation" == kinds(made.path)[-1]
        return
    made.append(call(2))
    assert ["session_start", "violation", "tool_call"] == kinds(made.path)


def test_credentials_can_be_left_out(tmp_path):
    """With `redacted` no credential is written, in no field, title, comment or narrative."""
    made = log(tmp_path, redacted=True)
    key = "sk-abcdefghijklmnopqrstuvwxyz"
    made.append(LogEvent("note", api_key=key, text=f"use {key}", narrative=f"key {key}", title=f"Note: {key}").comment("text", key))
    assert key not in made.path.read_text()
    assert "[REDACTED]" == extract_events(made.path)[-1]["api_key"]


def test_log_of_another_session_is_refused(tmp_path):
    """A log that names another session than the one asked for is left as it is (S3-14)."""
    path = session(tmp_path)
    before = path.read_bytes()
    with pytest.raises(SetupError, match="is the log of session sess-001, not of other"):
        EventLog(path, "other", reopen=True)
    assert before == path.read_bytes()


def test_no_event_hides_broken_seals(tmp_path):
    """An event that claims broken seals is refused, so a history that is rewritten later is still said (S3-42)."""
    made = log(tmp_path)
    made.append(call())
    with pytest.raises(Refused, match="broken seals"):
        made.append(LogEvent("violation", action="rewritten", path="x", broken_seals=999999, refused=False))
    made.close()
    made.path.write_text(made.path.read_text().replace("look at 1", "look at 2"))
    log(tmp_path)
    assert (1, "violation") == (extract_events(made.path)[-1]["broken_seals"], kinds(made.path)[-1])


@pytest.mark.parametrize("name", ["call 1", 'a "b"', "c:\\d", "é"])
def test_any_call_id_finds_its_tool(tmp_path, name):
    """A result's heading names its call's tool, whatever the call's id is (S3-12)."""
    made = log(tmp_path)
    made.append(LogEvent("tool_call", tool="fs.read", call_id=name, args={"why": "w"}))
    log(tmp_path).append(LogEvent("tool_result", call_id=name, success=True))
    assert "Tool Result: fs.read" == read_log(made.path).entries[-1].title


def test_fork_while_another_thread_writes(tmp_path):
    """A child that is forked while another thread has the log writes all the same (S3-14)."""
    made = log(tmp_path)
    made._lock.acquire()
    child = os.fork()
    if not child:
        append_notes(made, 1)
        os._exit(0)
    made._lock.release()
    assert 0 == os.waitpid(child, 0)[1]
    append_notes(made, 2)
    assert ([], []) == (read_log(made.path).faults, verify(made.path))
    assert 121 == len(extract_events(made.path))
