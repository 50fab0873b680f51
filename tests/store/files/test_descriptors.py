"""A program closes descriptors that are not its own, as what makes daemons does, and gets their numbers for files of its own."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import msgspec
import pytest

from optree import _records as r
from optree._store import SessionStore, load, upkeep
from optree._store.files.descriptors import SharedFile, is_open
from optree._store.files.line_log import LineLog
from optree._store.saving import StoreOptions
from optree._syscalls import calls
from optree._tree import walk_ops
from optree.errors import BusyError
from tests.store.test_journal import busy

LONG = 30.0


@pytest.fixture
def taken(tmp_path):
    """Return a function that gives a descriptor's number to a file of the program; at the end that is open, and has only what was in it."""
    numbers, mine = [], tmp_path / "mine"
    mine.write_bytes(b"mine")
    own = os.open(mine, os.O_RDWR | os.O_APPEND)

    def take(fd):
        numbers.append(int(fd))
        os.dup2(own, fd)

    yield take
    assert b"mine" == mine.read_bytes()
    for number in [*numbers, own]:
        assert os.path.samestat(os.fstat(number), mine.stat())
        os.close(number)


@pytest.mark.skipif(calls.open_kept is calls.open_file, reason="on Windows numbers are not chosen")
@pytest.mark.parametrize("plain", [True, False])
def test_what_stays_open_is_in_the_upper_half(tmp_path, plain):
    """Files that stay open have numbers that the program's own files do not get soon: of the upper half of the first 1,024."""
    (tmp_path / "file").touch()
    opened = calls._open_kept if plain else calls.open_kept
    fds = [opened(tmp_path / "file", os.O_RDONLY) for _ in range(3)]
    for fd in fds:
        os.close(fd)
    most = min(1024, os.sysconf("SC_OPEN_MAX"))
    assert all(most // 2 <= fd < most for fd in fds), fds


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("named", [Path, str, os.fsencode])
def test_what_cannot_be_opened_is_named_as_os_open_names_it(tmp_path, plain, named):
    """The error of a file that cannot be opened has its name as text, also where that is a path: people read it."""
    errors = []
    ours = getattr(calls, "_open_kept", calls.open_kept) if plain else calls.open_kept  # Windows has the one alone
    for opened in (os.open, ours):
        with pytest.raises(FileNotFoundError) as caught:
            opened(named(str(tmp_path / "missing")), os.O_RDONLY)
        errors.append((str(caught.value), caught.value.filename))
    assert errors[0] == errors[1]


@pytest.fixture(autouse=True)
def _never_by_itself(monkeypatch):
    """Let nothing look but what the test calls."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", LONG)


def test_descriptors_that_the_program_took(begin, directory, killed, taken):
    """The journal's number and the lock's are those of another file: `flush` notices, nothing is written there, and none is closed."""
    builder, store = begin()
    busy(builder, 1)
    assert store.flush("sync")
    taken(store.journal.fd)
    taken(store._lock.fd)
    assert store.flush("sync")
    assert ["files of session txn-1: the program closed their descriptors while it runs; they are written anew"] == list(store.problems)
    busy(builder, 1)
    assert store.flush("sync")
    with pytest.raises(BusyError):
        SessionStore("txn-1", StoreOptions(directory))
    loaded = load("txn-1", killed())
    assert ("clean", msgspec.json.encode(builder.tree)) == (loaded.damage.state, msgspec.json.encode(loaded.tree))
    builder.end_session()
    assert store.close(LONG)
    assert "clean" == load("txn-1", directory).damage.state


def test_what_went_into_the_programs_file_is_not_said_to_be_safe(begin, directory, opened, tmp_path):
    """What a process that joined wrote before that was noticed is counted as lost; what was in its own file is there."""
    begin()
    joined = SessionStore("txn-1", StoreOptions(directory, sync="write"), owner=False)
    opened.append(joined)
    joined.stream.put(r.OpBegin("1.1000001", 1.0, "tool", "one"))
    assert joined.flush("sync")
    with (tmp_path / "mine").open("wb") as mine:
        os.dup2(mine.fileno(), joined.journal.fd)
    number = int(joined.journal.fd)
    joined.stream.put(r.OpBegin("1.1000002", 2.0, "tool", "two"))
    assert (False, 1) == (joined.flush(), joined.unwritten)
    joined.stream.put(r.OpBegin("1.1000003", 3.0, "tool", "three"))
    assert not joined.flush("sync")
    assert ["one", "three"] == [op.name for _, _, op in walk_ops(load("txn-1", directory).session)]
    os.close(number)


def test_descriptors_that_are_closed(begin, killed):
    """All of optree's descriptors are closed: what is recorded after that is kept, and written to a new file."""
    builder, store = begin()
    busy(builder, 1)
    os.close(store.journal.fd)
    os.close(store._lock.fd)
    busy(builder, 1)
    assert store.flush("sync")
    assert 0 == store.unwritten
    loaded = load("txn-1", killed())
    assert ("clean", msgspec.json.encode(builder.tree)) == (loaded.damage.state, msgspec.json.encode(loaded.tree))


def test_a_shared_file_that_is_forgotten_is_closed_without_a_warning(tmp_path):
    """As where an interrupt hit who had it: Python would warn of a file that nobody closed."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        file = SharedFile(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        number = file.fileno()
        assert is_open(number)
        del file
    assert ([], False) == (told, is_open(number))


def test_a_log_whose_descriptor_the_program_took(tmp_path, taken):
    """A file of lines is opened again, its numbers go on, and its end closes nothing of the program's."""
    log = LineLog(tmp_path / "log", lambda line: [int(line)])
    log.append(lambda number: b"%d" % number)
    taken(log._fd)
    assert 2 == log.append(lambda number: b"%d" % number)
    assert b"1\n2\n" == log.path.read_bytes()
    taken(log._fd)
    log.close()


AFTER_EACH_OTHER = """
import contextvars, os, sys
import optree
from optree._tracing.runtime import RUNTIME
optree.configure(base_dir=sys.argv[1], console=False)

def numbers():
    store = RUNTIME.stores[contextvars.Context().run(optree.session("agent").__enter__).txn]
    return {int(store.journal.fd), int(store._lock.fd)}

before = numbers()
for fd in before:
    os.close(fd)
print(sorted(before & numbers()), flush=True)
os._exit(0)
"""


@pytest.mark.skipif(calls.open_kept is calls.open_file, reason="on Windows numbers are not chosen")
def test_each_file_has_another_number(tmp_path):
    """What a program closes has not the number of the next file: a journal and a lock that are opened after each other."""
    ran = subprocess.run([sys.executable, "-c", AFTER_EACH_OTHER, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (0, "[]\n") == (ran.returncode, ran.stdout), ran.stderr


MANY_OPEN = """
import contextvars, os, sys
import optree
from optree._store import upkeep
optree.configure(base_dir=sys.argv[1], console=False)
contexts = [contextvars.Context() for _ in range(20)]
sessions = [context.run(optree.session("agent").__enter__) for context in contexts]
optree.flush("snapshot", 60)
kept = sorted(map(int, upkeep._spare))
mine = os.open(sys.executable, os.O_RDONLY)
for fd in kept:
    os.dup2(mine, fd)
optree.flush("snapshot", 60)
print(len(kept), all(os.path.sameopenfile(fd, mine) for fd in kept), min(kept) > 2, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(calls.open_kept is calls.open_file, reason="on Windows numbers are not chosen")
def test_descriptors_that_are_kept_to_save_with(tmp_path):
    """Those that many open sessions keep have no standard stream's number, nor are closed once it is the program's file."""
    program = "import os\nos.close(0)\n" + MANY_OPEN
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (0, "8 True True\n") == (ran.returncode, ran.stdout), ran.stderr


WRITES_WHILE_FILES_ARE_OPENED = """
import contextlib, os, sys
for fd in map(int, sys.argv[2:]):
    os.close(fd)
def say():
    for fd in range(3):
        with contextlib.suppress(OSError):
            os.write(fd, b"it says")
def write(event, _):
    if event in ("open", "fcntl.fcntl"):
        say()
import optree
optree.configure(base_dir=sys.argv[1], console=False)
sys.addaudithook(write)
with optree.session("agent"), optree.turn(), optree.llm(provider="openai", model="m") as op:
    op.account(cost_usd=0.1)
    optree.flush("snapshot", 60)
    say()
say()
"""


@pytest.mark.skipif(calls.open_kept is calls.open_file, reason="Windows has no such numbers")
@pytest.mark.parametrize("closed", ["0", "2", "01", "012"])
def test_what_is_written_to_a_stream_that_is_closed_is_in_no_file(tmp_path, closed):
    """A program whose standard streams are closed writes there, also while files are opened: none is a stream, not for a moment."""
    command = [sys.executable, "-c", WRITES_WHILE_FILES_ARE_OPENED, str(tmp_path), *closed]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert 0 == ran.returncode, ran.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name.endswith(".json.zst") for path in files)
    assert any(path.name == "accounting.jsonl" for path in files)
    assert [] == [path.name for path in files if b"it says" in path.read_bytes()]


EXECUTES = """
import os, sys
import optree
optree.configure(base_dir=sys.argv[1], console=False)
HAS = '''
import os, sys
links = [os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
print([path for path in map(os.readlink, filter(os.path.islink, links)) if ".live" in path], flush=True)
sys.stdin.read()
'''
with optree.session("agent"), optree.turn(), optree.tool("x"):
    optree.flush("sync", 60)
    os.execv(sys.executable, [sys.executable, "-c", HAS])
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="tells open files by Linux's /proc")  # noqa: PTH112
def test_a_program_that_takes_this_ones_place_has_none_of_its_files(directory, again):
    """`os.execv` in an open session: the new program has no file of it, and while it runs the session is resumed by another process."""
    command = [sys.executable, "-c", EXECUTES, str(directory.sessions.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert "[]\n" == process.stdout.readline(), process.communicate()[1]
        builder, _ = again("last", directory)
        assert (["x"], None) == ([op.name for _, _, op in walk_ops(builder.tree)], process.poll())


@pytest.mark.skipif(calls.open_kept is calls.open_file, reason="on Windows numbers are not chosen")
def test_descriptors_are_kept_before_others_take_them(tmp_path):
    """The thread that saves has no turn while sessions begin: they have left descriptors to be saved with by then."""
    busy_thread = "import threading\nupkeep.Job(upkeep.SAVING, threading.Event().wait, print).ask()\ncontexts ="
    program = (
        MANY_OPEN.partition("optree.flush")[0].replace("contexts =", busy_thread, 1) + "print(len(upkeep._spare), flush=True)\nos._exit(0)"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (0, "8\n") == (ran.returncode, ran.stdout), ran.stderr


NO_DESCRIPTOR = """
import os, resource, sys
from pathlib import Path
from optree._store.reading.directory import journals
live = Path(sys.argv[1])
before = journals(live)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True: os.open(os.devnull, os.O_RDONLY)
except OSError: pass
try:
    print(len(before), journals(live))
except OSError as error:
    print(len(before), os.strerror(error.errno))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors have no limit there")
def test_journals_that_cannot_be_listed(begin, directory):
    """Where no descriptor is left to list a session's journals, that is an error, and not a session without any."""
    begin()
    done = subprocess.run([sys.executable, "-c", NO_DESCRIPTOR, directory.live("txn-1")], capture_output=True, text=True, check=False)
    assert "1 Too many open files\n" == done.stdout, done.stderr


FORKS_LONG = """
import os, sys, threading
forking, opened = threading.Event(), threading.Event()

def before():
    forking.set()
    print(opened.wait(20), flush=True)

os.register_at_fork(before=before)  # ahead of optree's, so it is called after that
import optree
optree.configure(base_dir=sys.argv[1], console=False)

def opens():
    forking.wait()
    with optree.session("agent"):
        opened.set()

thread = threading.Thread(target=opens)
thread.start()
if not (child := os.fork()):
    os._exit(0)
os.waitpid(child, 0)
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process forks there")
def test_a_fork_that_takes_long_holds_up_no_session(tmp_path):
    """What the program does before a fork waits for a thread that begins a session: that does not wait for the fork for ever."""
    command = [sys.executable, "-W", "ignore", "-c", FORKS_LONG, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * LONG)
    assert (0, "True\n") == (ran.returncode, ran.stdout), ran.stderr
