import errno
import fcntl
import json
import os
import signal

import pytest

from optree import FormatError
from optree._store.files import line_log
from optree._store.files.system import OS
from optree.conversation import Session, load_session, read_events
from optree.conversation.file_home import FileHome
from tests.conversation.conftest import lines

HELLO = {"role": "user", "content": "Hello"}


class FullDisk(OS):
    """A disk that is full as long as a test says."""

    full = False

    def write_all(self, fd, data):
        """Write, or fail."""
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write_all(fd, data)


@pytest.fixture
def session(file):
    """Return a new session in a file."""
    with Session(file) as found:
        yield found


def test_full_disk(tmp_path, capfd):
    """A disk that is full is reported once, and the agent goes on; when it takes lines again, all are there, in their order."""
    disk = FullDisk()
    session = Session.over(FileHome(tmp_path / "s.jsonl", system=disk))
    session.log_transcript_entry("agent_001", HELLO)
    disk.full = True
    late = [session.create_agent(), *(session.log_transcript_entry("agent_001", HELLO) for _ in range(5))]
    disk.full = False
    last = session.log_transcript_entry("agent_001", HELLO, late[1])
    events, faults = read_events(tmp_path / "s.jsonl")
    assert (["msg_001", *late[1:], last], []) == ([event.message_id for event in events if event.agent_id == "agent_001"], faults)
    assert ("agent_002", 8) == (late[0], len({event.message_id for event in events}))
    assert 1 == capfd.readouterr().err.count("No space left on device")


def test_an_id_that_is_not_in_the_file_yet(file):
    """What the disk did not take has an id that no other process gives (S1-36)."""
    disk = FullDisk()
    session = Session.over(FileHome(file, system=disk))
    session.log_agent_created("agent_001")
    disk.full = True
    late = session.log_transcript_entry("agent_001", HELLO)
    disk.full = False
    with Session.load(file) as other:
        theirs = other.log_transcript_entry("agent_009", HELLO)
    session.log_transcript_entry("agent_002", HELLO, late)
    assert ["msg_001", theirs, late, "msg_003"] == [event["message_id"] for event in lines(file)]
    assert theirs != late == lines(file)[-1]["substance"]
    session.close()


def test_closing_writes_what_is_late(file):
    """What the disk did not take before is written at the end, if that is possible by then."""
    disk = FullDisk()
    session = Session.over(FileHome(file, system=disk))
    disk.full = True
    late = session.log_transcript_entry("agent_001", HELLO)
    disk.full = False
    session.close()
    assert [late] == [event["message_id"] for event in lines(file)]


def test_a_disk_that_stays_full(file, monkeypatch, capfd):
    """What is kept in memory for a disk that takes nothing is bounded, and it is said when events are lost."""
    monkeypatch.setattr("optree.conversation.file_home.MOST_LATE", 3)
    disk = FullDisk()
    session = Session.over(FileHome(file, system=disk))
    disk.full = True
    late = [session.log_transcript_entry("agent_001", HELLO) for _ in range(5)]
    disk.full = False
    session.close()
    assert late[:3] == [event["message_id"] for event in lines(file)]
    assert "further ones are lost" in capfd.readouterr().err


def test_logging_after_the_end(file, capfd):
    """What is logged after the session was closed is reported, and does not raise."""
    session = Session(file)
    session.close()
    assert session.log_transcript_entry("agent_001", HELLO).startswith("msg_001")
    assert "is closed" in capfd.readouterr().err


def test_complaints_are_fit_for_a_terminal(tmp_path, capfd):
    """What is reported on stderr is one line, without credentials and control characters, whatever the file's name is."""
    session = Session(tmp_path / f"ghp_{'a1B2' * 9} \x1b[8mhid\nnext.jsonl")
    session.close()
    session.log_transcript_entry("agent_001", HELLO)
    said = capfd.readouterr().err
    assert "[REDACTED] \\x1b[8mhid\\nnext.jsonl" in said
    assert (1, False) == (said.count("\n"), "ghp_" in said)


def test_logging_in_a_signal_handler(file):
    """A signal handler that logs while its thread logs does not block: both are in the file, with ids of their own (S1-36)."""
    given = []

    class Signalled(OS):
        def write_all(self, fd, data):
            if len(given) < 3:
                signal.raise_signal(signal.SIGUSR1)
            super().write_all(fd, data)

    session = Session.over(FileHome(file, system=Signalled()))
    before = signal.signal(signal.SIGUSR1, lambda *_: given.append(session.log_transcript_entry("handler", HELLO)))
    try:
        outer = session.log_transcript_entry("agent_001", HELLO)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [outer, *given] == [event["message_id"] for event in lines(file)]
    assert (4, 3) == (len({outer, *given}), session.list_agents()["handler"].entries)
    session.close()


@pytest.mark.parametrize(("use", "call"), [("refresh", "is_open"), ("add", "lock"), ("add", "is_at"), ("add", "write_all")])
def test_a_time_limit_reaches_the_program(file, use, call, capfd):
    """A time limit that hits a file of events is the program's, though its exception is an `OSError`; the next events are written."""
    armed = []

    class Hit(OS):
        def __getattribute__(self, name):
            if name == call and armed:
                armed.clear()
                signal.raise_signal(signal.SIGUSR1)
            return super().__getattribute__(name)

    def limit(*_):
        raise TimeoutError("too long")

    home = FileHome(file, system=Hit())
    before = signal.signal(signal.SIGUSR1, limit)
    armed.append(True)
    try:
        with pytest.raises(TimeoutError, match="too long"):
            home.refresh() if use == "refresh" else Session.over(home).log_transcript_entry("agent_001", HELLO)
    finally:
        signal.signal(signal.SIGUSR1, before)
    last = Session.over(home).log_transcript_entry("agent_001", HELLO)
    home.close()
    assert last == lines(file)[-1]["message_id"]
    assert ("", []) == (capfd.readouterr().err, home.reports)


def test_a_file_that_stays_locked(file, session, capfd, monkeypatch):
    """Where another process is stopped with the file locked, logging and loading go on; what was logged is written later, in order."""
    slept = []
    monkeypatch.setattr(line_log, "sleep", slept.append)
    monkeypatch.setattr(line_log, "monotonic", lambda: sum(slept))
    first = session.log_transcript_entry("agent_001", HELLO)
    with file.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        late = [session.log_transcript_entry("agent_001", HELLO) for _ in range(20)]
        assert pytest.approx(0.25, abs=0.001) == sum(slept)
        with Session.load(file) as again:
            assert 1 == again.list_agents()["agent_001"].entries
    last = session.log_transcript_entry("agent_001", HELLO)
    assert [first, *late, last] == [event["message_id"] for event in lines(file)]
    assert 1 == capfd.readouterr().err.count("locked for more than")


def test_a_file_that_was_replaced(file, session, capfd):
    """Events go into the file that has the name now, which is said once; what is known is what that file says."""
    session.log_transcript_entry("agent_001", HELLO)
    copy = file.with_name("copy")
    copy.write_bytes(file.read_bytes() + b"garbage\n")
    copy.replace(file)
    assert ["msg_002", "msg_003"] == [session.log_transcript_entry("agent_001", HELLO) for _ in range(2)]
    assert ([2], 3) == ([fault.line for fault in session.faults], session.list_agents()["agent_001"].entries)
    assert 4 == len(file.read_bytes().splitlines())
    file.unlink()
    assert "msg_004" == session.log_transcript_entry("agent_002", HELLO)
    assert ["msg_004"] == [event["message_id"] for event in lines(file)]
    assert 1 == capfd.readouterr().err.count("was replaced or removed")


def test_a_file_that_was_cut(file, session, capfd):
    """A fault is said once, whatever the sizes are that it tells."""
    for _ in range(5):
        session.log_transcript_entry("agent_001", HELLO)
    for size in (200, 150, 100):
        os.truncate(file, size)
        session.log_transcript_entry("agent_001", HELLO)
        session.list_agents()
    assert 1 == capfd.readouterr().err.count("was cut from")


@pytest.mark.parametrize("digits", [17, 18, 19, 100])
def test_the_highest_number(file, digits):
    """Ids go on after a number of any size, and none is given twice (S1-35)."""
    file.write_text(f'{{"message_id": "msg_{"9" * digits}", "event_type": "agent_created", "agent_id": "agent_{"9" * digits}"}}\n')
    for following in range(3):
        with Session.load(file) as session:
            agent = session.create_agent()
        assert (f"agent_{10**digits + following}", f"msg_{10**digits + following}") == (agent, lines(file)[-1]["message_id"])


def test_torn_line_is_ended(file):
    """After a kill in the middle of a line, the next session ends the line, reports it, and goes on below (S0-35)."""
    with Session(file) as session:
        session.log_transcript_entry("agent_001", HELLO)
    file.write_bytes(file.read_bytes() + b'{"message_id": "msg_002", "eve')
    with Session.load(file) as session:
        assert [2] == [fault.line for fault in session.faults]
        session.log_transcript_entry("agent_001", HELLO)
        with file.open("ab") as other:
            other.write(b"garbage\n")
        session.list_agents()
        assert read_events(file)[1] == session.faults
    events, faults = read_events(file)
    assert (2, [2, 4]) == (len(events), [fault.line for fault in faults])


def test_any_torn_tail(file):
    """Wherever a kill cuts the last line, no event of the others is lost, no id is given twice, and the session's faults are the reader's.

    A line that lacks only its newline is an event (S0-35, S1-36).
    """
    with Session(file) as session:
        session.create_agent(name="root")
        session.log_transcript_entry("agent_001", {"role": "assistant", "content": "zwölf"}, cause="msg_001")
    data = file.read_bytes()
    for cut in range(data.index(b"\n") + 1, len(data) + 1):
        file.write_bytes(data[:cut])
        with Session.load(file) as session:
            assert [fault.line for fault in read_events(file)[1]] == [fault.line for fault in session.faults]
            given = session.log_transcript_entry("agent_001", HELLO)
            session.list_agents()
            assert [fault.line for fault in read_events(file)[1]] == [fault.line for fault in session.faults]
        whole = ["msg_002"] if cut >= len(data) - 1 else []
        assert ["msg_001", *whole, given] == [event.message_id for event in read_events(file)[0]]
        assert f"msg_{2 + len(whole):03d}" == given


def test_a_last_line_without_newline(file):
    """A file that was saved without its last newline loses no message, and gives no id twice (S1-36)."""
    with Session(file) as session:
        session.create_agent(name="root")
        session.log_transcript_entry("agent_001", HELLO)
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    root, session = load_session(file)
    assert ([HELLO], []) == (root.transcript, session.faults)
    assert "msg_003" == session.log_transcript_entry("agent_001", HELLO)
    assert ["msg_001", "msg_002", "msg_003"] == [event["message_id"] for event in lines(file)]
    session.close()


@pytest.mark.parametrize(
    ("there", "later", "link"),
    [
        ({"content": [{"content_id": "7", "caused_by": "8"}]}, {}, "cause"),
        ({"content": '"content_id"', "content_id": None}, {}, "cause"),
        ({"content": "x", "substance": "msg_001"}, {"caused_by": "msg_001"}, "cause"),
        ({"content": [{"cause": 1}], "content_id": "msg_001"}, {"cause": "msg_001"}, "caused_by"),
    ],
)
def test_the_form_is_that_of_the_first_link(file, there, later, link):
    """A file's form is told by its first event with a link: not by what a message holds, nor by later lines (S1-61)."""
    entry = {"message_id": "msg_002", "event_type": "transcript_entry", "agent_id": "a", "role": "user", **there}
    piece = {"message_id": "msg_003", "event_type": "piece_of_text", "content": "x", **later}
    file.write_text(f"{json.dumps(entry)}\n{json.dumps(piece)}\n")
    with Session.load(file) as session:
        session.log_piece_of_text("a", "hi", "msg_002")
    assert "msg_002" == lines(file)[-1].get(link)


@pytest.mark.parametrize("content", [b"hello\nworld\n", b'{"version":1,"meta":{},"session":{}}\n', bytes(range(256)) * 20])
def test_other_files_stay_as_they_are(tmp_path, content):
    """A file that holds no events is refused, and not a byte is added to it."""
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="is no file of events"):
        Session.load(path)
    assert content == path.read_bytes()


@pytest.mark.parametrize("size", [0, 1, 9, 40])
def test_a_first_line_that_is_torn(tmp_path, size):
    """Who was killed while the first event was written goes on in that file."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"message_id": "msg_001", "event_type": "agent_created"'[:size])
    session = Session.load(path)
    session.create_agent(name="Jack")
    session.close()
    assert ["Jack"] == [record.name for record in Session.load(path).list_agents().values()]


def test_what_could_not_be_read_is_said(tmp_path, capfd):
    """Who goes on with a damaged file is told once, with the line."""
    path = tmp_path / "events.jsonl"
    path.write_text('{"message_id": "msg_001", "event_type": "agent_created", "agent_id": "agent_001"}\nnonsense\n')
    Session.load(path).close()
    assert f"1 lines of {path} could not be read as they are, the first is 2" in capfd.readouterr().err


CREATED = '{"message_id": %s, "event_type": "agent_created", "agent": "primary", "parent": "user", "role": "primary"}\n\n'
FORMS = {"numbers": ("0", [1, 2]), "texts": ('"9"', ["10", "11"]), "ours": ('"msg_009"', ["msg_010", "msg_011"])}


@pytest.mark.parametrize("form", FORMS)
def test_ids_go_on_in_the_form_of_the_file(file, form):
    """A file whose ids are numbers goes on with numbers, one with numbers as texts with these, and so do its links (S1-36)."""
    identity, following = FORMS[form]
    file.write_text(CREATED % identity)
    with load_session(file)[1] as session:
        said = session.log_transcript_entry("primary", {"role": "assistant", "content": "Hello"})
        session.log_transcript_entry("primary", HELLO, cause=said)
    new = [json.loads(one) for one in file.read_text().splitlines()[-2:]]
    assert following == [one["message_id"] for one in new]
    assert following[:1] == (new[1]["cause"] if isinstance(new[1]["cause"], list) else [new[1]["cause"]])
    events, faults = read_events(file)
    assert ([], str(following[1])) == (faults, events[-1].message_id)
