"""Numbered lines of many writers: whole, in order, each number once, whatever the disk or a kill does."""

import fcntl
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from optree import StoreError
from optree._store.files import line_log
from optree._store.files.line_log import BusyError, LineLog
from optree._store.files.system import OS
from tests.store.faults import Short

ROOT = Path(__file__).parents[3]
WRITER = """
import json, sys
from pathlib import Path
from optree._store.files import line_log
from optree._store.files.line_log import LineLog

line_log.WAIT_SECONDS = 30  # however busy the machine is
log = LineLog(Path(sys.argv[1]), lambda line: [json.loads(line)["seq"]])
for _ in range(500):
    log.append(lambda seq: json.dumps({"seq": seq, "text": "x" * (seq * 37 % 9000)}).encode())
"""


def numbers(line):
    """Return the number that a test's line has; none for one that cannot be read."""
    try:
        return [json.loads(line)["seq"]]
    except ValueError:
        return []


def numbered(seq):
    """Return a line."""
    return json.dumps({"seq": seq}).encode()


def found(path):
    """Return the numbers in a file, in the order of its lines."""
    return [json.loads(line)["seq"] for line in path.read_text().splitlines()]


def test_processes_write_in_order(tmp_path):
    """Four processes with 500 lines each, many larger than a pipe's buffer: no line is torn, the numbers have neither gap nor inversion."""
    path = tmp_path / "log.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path], env=os.environ | {"PYTHONPATH": str(ROOT)}) for _ in range(4)]
    assert [0, 0, 0, 0] == [writer.wait(60) for writer in writers]
    assert list(range(1, 2001)) == found(path)


@pytest.mark.usefixtures("no_input")
def test_without_a_standard_input(tmp_path):
    """A program without a standard input writes as any other, to one open file, and lets it go; so does a forked process."""
    log = LineLog(tmp_path / "log.jsonl", numbers)
    assert [1, 2] == [log.append(numbered) for _ in range(2)]
    assert OS().is_at(log._fd, log.path)
    log.after_fork()
    assert 3 == log.append(numbered)
    log.close()
    assert [1, 2, 3] == found(log.path)


def test_threads_write_in_order(tmp_path):
    """Threads that share a log get each number once, and it is where it belongs."""
    log = LineLog(tmp_path / "log.jsonl", numbers)
    given = []
    threads = [threading.Thread(target=lambda: given.extend(log.append(numbered) for _ in range(100))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(range(1, 801)) == sorted(given) == found(log.path)


def test_reopening_goes_on(tmp_path):
    """The next number follows the highest in the file, whichever line has it; the file is its owner's only."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"seq": 7}\n{"seq": 3}\n')
    path.chmod(0o600)
    log = LineLog(path, numbers)
    with log.alone():
        assert 7 == log.catch_up()
    assert 8 == log.append(numbered)
    assert 8 == log.latest
    fresh = LineLog(tmp_path / "new.jsonl", numbers)
    assert (1, 0o600) == (fresh.append(numbered), fresh.path.stat().st_mode & 0o777)


def test_a_torn_line_stays_and_harms_nothing(tmp_path):
    """What a killed writer left of a line is ended, and the next line is whole."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"seq": 1}\n{"seq": 2, "te')
    assert 2 == LineLog(path, numbers).append(numbered)
    assert ['{"seq": 1}', '{"seq": 2, "te', '{"seq": 2}'] == path.read_text().splitlines()


def test_what_is_found_is_larger_than_a_piece(tmp_path, monkeypatch):
    """Lines are found across the pieces that a file is read in."""
    monkeypatch.setattr("optree._store.files.line_log._PIECE", 7)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"seq": {number}}}\n' for number in range(1, 30)) + '{"seq": 99')
    log = LineLog(path, numbers)
    assert [30, 31] == [log.append(numbered), log.append(numbered)]


def test_a_line_that_cannot_be_made_uses_no_number(tmp_path):
    """An error of the caller goes to the caller; nothing is written, and the next line has the number."""
    log = LineLog(tmp_path / "log.jsonl", numbers)
    with pytest.raises(ZeroDivisionError):
        log.append(lambda seq: b"%d" % (seq // 0))
    with pytest.raises(StoreError, match="line break"):
        log.append(lambda _: b"{\n}")
    assert 1 == log.append(numbered)
    assert [1] == found(log.path)


def test_a_full_disk_leaves_no_half_line(tmp_path):
    """What was written of a line is taken back; when there is room again, the number is used."""
    log = LineLog(tmp_path / "log.jsonl", numbers)
    log.append(numbered)
    log._system = Short(5, until=8)
    with pytest.raises(OSError, match="No space"):
        log.append(numbered)
    log._system = Short(5)
    assert 2 == log.append(numbered)
    assert [1, 2] == found(log.path)


def test_a_file_that_was_cut_is_left_alone(tmp_path):
    """Where somebody else shortened the file, numbers could come twice: nothing more is appended."""
    log = LineLog(tmp_path / "log.jsonl", numbers)
    log.append(numbered)
    log.append(numbered)
    os.truncate(log.path, 11)
    with pytest.raises(StoreError, match="was cut from 22 to 11 bytes"):
        log.append(numbered)
    assert [1] == found(log.path)


def test_closed(tmp_path):
    """A closed log says so; closing it again does nothing."""
    log = LineLog(tmp_path / "log.jsonl", numbers)
    log.close()
    log.close()
    with pytest.raises(StoreError, match="closed"):
        log.append(numbered)


def test_a_missing_directory_is_not_made(tmp_path):
    """Opening says what is missing."""
    with pytest.raises(FileNotFoundError):
        LineLog(tmp_path / "none" / "log.jsonl", numbers)


class Interrupted(OS):
    """A system in which one call is interrupted by the user, once, when half of it is done."""

    call = ""

    def lock(self, fd, *, new=False):
        """Lock."""
        locked = super().lock(fd, new=new)
        self.interrupt("lock")
        return locked

    def write_all(self, fd, data):
        """Write."""
        if self.call == "write":
            super().write_all(fd, data[:4])
        self.interrupt("write")
        super().write_all(fd, data)

    def interrupt(self, call):
        """Interrupt, if it is this call's turn."""
        if call == self.call:
            self.call = ""
            raise KeyboardInterrupt


@contextmanager
def locked(path):
    """Have the file locked, as a process has it that was stopped with it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield
    os.close(fd)


@pytest.fixture
def clock(monkeypatch):
    """Have the log's own sleeping be all that makes its clock go on."""
    found = Clock()
    monkeypatch.setattr(line_log, "monotonic", lambda: found.now)
    monkeypatch.setattr(line_log, "sleep", found.sleep)
    return found


class Clock:
    """Tells the seconds that were slept."""

    def __init__(self):
        self.now = 100.0

    def sleep(self, seconds):
        """Go on."""
        self.now += seconds

    def taken(self, call):
        """Return how many seconds a call takes that does not get the file."""
        begun = self.now
        with pytest.raises(BusyError):
            call()
        return self.now - begun


def test_a_whole_last_line_counts(tmp_path):
    """A last line that lacks only its newline has used its number: it is ended, and the next line has the next number."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"seq": 1}\n{"seq": 2}')
    log = LineLog(path, numbers)
    assert [3, 4] == [log.append(numbered), log.append(numbered)]
    assert [1, 2, 3, 4] == found(path)


def test_a_last_line_is_seen_once(tmp_path):
    """A last line without newline is given once, also when another writer ends it; one that grows is given again, whole."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"seq": 1}\n{"seq": 2, "te')
    seen = []
    log = LineLog(path, lambda line: seen.append(line) or numbers(line))
    with log.alone():
        log.catch_up()
    LineLog(path, numbers).append(numbered)
    with log.alone():
        assert 2 == log.catch_up()
    assert [b'{"seq": 1}', b'{"seq": 2, "te', b'{"seq": 2}'] == seen
    for piece in ('{"seq"', ": 8}\n"):
        with path.open("a") as file:
            file.write(piece)
        with log.alone():
            log.catch_up()
    assert ([b'{"seq"', b'{"seq": 8}'], 8) == (seen[3:], log.latest)


def test_a_call_from_within_a_call(tmp_path, clock):
    """A call that interrupts another one on the same thread is refused at once, and the outer one goes on."""
    log = LineLog(tmp_path / "log.jsonl", numbers)

    def make(seq):
        assert 0.0 == clock.taken(lambda: log.append(numbered))
        return numbered(seq)

    assert [1, 2] == [log.append(make), log.append(numbered)]
    assert [1, 2] == found(log.path)


def test_a_file_that_stays_locked(tmp_path, clock):
    """A call waits for another process a quarter of a second, then is refused, those of the next second at once; whole lines are read."""
    log, other = LineLog(tmp_path / "log.jsonl", numbers), LineLog(tmp_path / "log.jsonl", numbers)
    other.append(numbered)
    with locked(log.path):
        assert pytest.approx(0.25, abs=0.001) == clock.taken(lambda: log.append(numbered))
        assert 0.0 == clock.taken(lambda: log.append(numbered))
        clock.sleep(1.0)
        assert pytest.approx(0.25, abs=0.001) == clock.taken(lambda: log.append(numbered))
        with log.alone():
            assert 1 == log.catch_up()
    assert 2 == log.append(numbered)
    assert [1, 2] == found(log.path)


def test_a_thread_that_stays(tmp_path):
    """A call waits for another thread for a bounded time, and is refused while that thread is still at it."""
    log = LineLog(tmp_path / "log.jsonl", numbers)
    inside, go_on = threading.Event(), threading.Event()
    slow = threading.Thread(target=lambda: log.append(lambda seq: inside.set() or (go_on.wait() and numbered(seq))))
    slow.start()
    inside.wait()
    with pytest.raises(BusyError, match="another thread"):
        log.append(numbered)
    log.close()  # the thread that is at it does it
    go_on.set()
    slow.join()
    assert ([1], -1) == (found(log.path), log._fd)


def test_a_lost_lock(tmp_path):
    """A lock whose holder was interrupted between two steps is replaced."""
    log = LineLog(tmp_path / "log.jsonl", numbers)
    lost = threading.Thread(target=log._lock.acquire)
    lost.start()
    lost.join()
    assert [1, 2] == [log.append(numbered), log.append(numbered)]


@pytest.mark.parametrize("call", ["lock", "write"])
def test_an_interrupt(tmp_path, call):
    """Whatever is interrupted: nothing of the line stays, and others can write at once."""
    system = Interrupted()
    log = LineLog(tmp_path / "log.jsonl", numbers, system)
    system.call = call
    with pytest.raises(KeyboardInterrupt):
        log.append(numbered)
    assert (b"", 1, 2) == (log.path.read_bytes(), LineLog(log.path, numbers).append(numbered), log.append(numbered))


def test_a_file_that_was_replaced(tmp_path):
    """Lines go into the file that has the name now, which is learnt from its start; numbers go on."""
    told = []
    log = LineLog(tmp_path / "log.jsonl", numbers, anew=told.append)
    log.append(numbered)
    (tmp_path / "other").write_text('{"seq": 7}\n')
    (tmp_path / "other").replace(log.path)
    assert [8, 9] == [log.append(numbered), log.append(numbered)]
    log.path.unlink()
    assert 10 == log.append(numbered)
    assert ([10], [True, True]) == (found(log.path), told)


def test_a_fork_lets_go(tmp_path):
    """A forked process has no copy of the descriptor, and writes with one of its own."""
    log = LineLog(tmp_path / "log.jsonl", numbers)
    log.append(numbered)
    if (pid := os.fork()) == 0:
        os._exit(0 if (log._fd, log.append(numbered)) == (-1, 2) else 1)
    assert 0 == os.waitpid(pid, 0)[1]
    assert 3 == log.append(numbered)


def test_half_a_line_uses_no_number(tmp_path):
    """A torn line gives its number away, even where that can be read from its half."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"seq": 1}\n{"seq": 2, "te')
    assert 2 == LineLog(path, lambda line: [int(line[8:9])] if line else []).append(numbered)
