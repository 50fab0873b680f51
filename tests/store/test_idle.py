"""Where many sessions are open, the files of those that are idle are closed, and whose they are is known all the same."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import msgspec
import pytest

from optree._background import Job, Worker
from optree._store import Directory, SessionStore, journal, load, ownership, resume_session, session_store, upkeep
from optree._store.files import lock
from optree._store.files.system import OS
from optree._store.reading.directory import journals
from optree._store.saving import StoreOptions
from optree._store.settle import settle, settle_all, was_left
from optree.errors import BusyError
from tests.store.faults import Faulty
from tests.store.test_journal import busy
from tests.store.test_settle import billed, wait_for

LONG = 30.0
SESSIONS = """
import os, sys
import optree
from contextvars import Context
from optree._store import ownership
optree.configure(console=False)
scopes = []

def begin():
    scope = optree.session("agent")
    context = Context()
    session = context.run(scope.__enter__)
    scopes.append((context, scope, session.txn))
    return session.txn

def record(name):
    for context, _, _ in scopes:
        context.run(op, name)

def op(name):
    with optree.turn(), optree.tool(name):
        pass

def end():
    while scopes:
        context, scope, _ = scopes.pop()
        context.run(scope.__exit__, None, None, None)

def rest():
    for session in list(ownership._open):
        session.rest()
        session.rest()

"""


def rested(store):
    """Close the files of a session that is idle; it says whether that was done."""
    store.flush()
    return store.rest() or store.rest()


def keepers(directory):
    """Return the names of the keepers beside the live directories."""
    return [path.name for path in directory.sessions.glob(f"{ownership.PREFIX}*")]


def run(script, directory, *, wait=True, limit=0):
    """Start a program that records into a directory, with at most *limit* descriptors."""
    env = {**os.environ, "OPTREE_BASE_DIR": str(directory.sessions.parent), "PYTHONPATH": ":".join(sys.path)}
    limits = f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))\n" if limit else ""
    started = subprocess.Popen(
        [sys.executable, "-c", limits + SESSIONS + script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    if wait:
        out, _ = started.communicate(timeout=10 * LONG)
        assert 0 == started.returncode
        return out
    return started


def test_an_idle_session_has_no_descriptor_and_goes_on_in_its_file(begin, directory, killed):
    """Its files are closed; the next record goes into the same journal, and a kill later loses nothing of before and after."""
    builder, store = begin()
    busy(builder, 1)
    assert (True, -1, -1) == (rested(store), store.journal.fd, store._lock.fd)
    assert 1 == len(keepers(directory))
    busy(builder, 2)
    assert store.journal.fd >= 0
    assert store.flush("sync")
    assert ["j-0000-000001.jsonl"] == [path.name for path in journals(store.live)]
    loaded = load("txn-1", killed())
    assert ("clean", "interrupted") == (loaded.damage.state, loaded.state)
    assert msgspec.json.encode(builder.tree) == msgspec.json.encode(loaded.tree)


def test_a_session_to_which_something_was_recorded_since_stays_open(begin):
    """It is idle if nothing was recorded since it was asked last."""
    builder, store = begin()
    store.rest()
    busy(builder, 1)
    assert (False, True) == (store.rest(), store.rest())


def test_an_idle_session_is_its_owners(begin, directory):
    """To everybody it is running: nobody goes on with it, settles it, or takes its journal for one that was left."""
    builder, store = begin()
    busy(builder, 1)
    assert rested(store)
    assert lock.is_running(store.live)
    with pytest.raises(BusyError):
        SessionStore("txn-1", StoreOptions(directory))
    with pytest.raises(BusyError):
        resume_session("txn-1", StoreOptions(directory))
    assert (False, False) == (was_left(store.live, OS()), settle("txn-1", StoreOptions(directory)))
    assert [] == settle_all(StoreOptions(directory))
    assert (True, 1) == (store._lock.is_held, len(keepers(directory)))


def test_an_idle_session_ends_as_any_other(begin, directory):
    """Its end saves and bills it, and its live directory goes, and the keeper that no other session needs."""
    builder, store = begin()
    other, another = begin()
    busy(builder, 1)
    assert rested(store)
    assert rested(another)
    builder.end_session()
    assert store.close(LONG)
    assert ["txn-1:1.1#1"] == billed(directory)
    assert 1 == len(keepers(directory))
    other.end_session()
    assert another.close(LONG)
    assert ["txn-1.json.zst", "txn-2.json.zst"] == sorted(path.name for path in directory.sessions.iterdir())


def test_a_session_that_is_closed_while_it_is_idle_is_anybodys(begin, again, directory):
    """Its process goes on and lets it go: another may go on with it."""
    builder, store = begin()
    busy(builder, 1)
    assert rested(store)
    store.close(LONG)
    assert ([], False) == (keepers(directory), lock.is_running(store.live))
    resumed, _ = again("txn-1", directory)
    busy(resumed, 1)
    assert 2 == len(resumed.tree.session.turns)


def test_a_snapshot_of_an_idle_session(begin, directory):
    """It is written, and the session may be idle again."""
    builder, store = begin()
    busy(builder, 1)
    assert rested(store)
    assert store.snapshot()
    assert (True, True) == (directory.snapshot("txn-1").exists(), rested(store))


@pytest.mark.parametrize("what", ["LOCK", "keeper", "live", "sessions"])
def test_files_that_are_removed_while_it_is_idle(begin, directory, killed, monkeypatch, tmp_path, what):
    """It is noticed within a second: the session is this process's to everybody, and nothing of it is lost."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", 0.01)
    builder, store = begin()
    busy(builder, 2)
    assert store.snapshot()
    wait_for(lambda: rested(store))
    [name] = keepers(directory)
    path = {"LOCK": store.live / "LOCK", "keeper": directory.sessions / name, "live": store.live, "sessions": directory.sessions}[what]
    path.rename(tmp_path / "aside")  # in one call
    wait_for(lambda: any("written anew" in said for said in store.problems))
    busy(builder, 1)
    wait_for(lambda: store.flush() and lock.is_running(store.live))
    wait_for(store.snapshot)
    loaded = load("txn-1", killed())
    assert "clean" == loaded.damage.state
    assert msgspec.json.encode(builder.tree) == msgspec.json.encode(loaded.tree)
    builder.end_session()
    assert store.close(LONG)
    assert ["txn-1.json.zst"] == [path.name for path in directory.sessions.iterdir()]


def test_a_record_into_a_session_whose_files_were_just_removed(begin, killed):
    """The next record comes before anything is noticed: it is written into a new file, and what is missing is counted."""
    builder, store = begin()
    busy(builder, 1)
    assert rested(store)
    lost = store.journal.last
    shutil.rmtree(store.live)
    busy(builder, 1)
    store.flush()
    assert lost == store.unwritten
    assert store.snapshot()
    assert (0, "clean") == (store.unwritten, load("txn-1", killed()).damage.state)


def test_a_lock_that_only_looks_changed(begin, monkeypatch):
    """Some file systems say another time of a file once it is on the disk: as long as LOCK names the keeper, nothing is wrong."""
    monkeypatch.setattr(session_store, "_LOOK_SECONDS", 0.0)
    builder, store = begin()
    busy(builder, 1)
    assert rested(store)
    os.utime(store.live / "LOCK", (1, 1))
    store._tick()
    busy(builder, 1)
    assert ([], True, True) == ([*store.problems], store.flush(), store._lock.rests)


def test_a_lock_that_was_replaced_is_not_closed(begin, directory):
    """Somebody puts another file in LOCK's place: it stays open, for the look that notices it, and no keeper stands for it."""
    builder, store = begin()
    busy(builder, 1)
    store.flush()
    (store.live / "LOCK").rename(store.live.parent / "aside")
    (store.live / "LOCK").touch()
    assert ([False, False], True) == ([store.rest(), store.rest()], store._lock.fd >= 0)
    wait_for(lambda: [] == keepers(directory))


@pytest.mark.parametrize("copied", [False, True])
def test_a_journal_that_was_removed_is_not_closed(begin, copied):
    """Somebody removes the journal, or puts a copy in its place: it stays open, for the look that notices it."""
    builder, store = begin()
    busy(builder, 1)
    store.flush()
    path = store.journal.path.rename(store.live.parent / "aside")
    if copied:
        shutil.copy(path, store.journal.path)
    assert ([False, False], True) == ([store.rest(), store.rest()], store.journal.fd >= 0)


def test_nothing_of_idle_sessions_is_left_open(directory):
    """Once they have ended no descriptor is open that was not before, and the next idle session has a keeper of its own."""
    script = """
counts, names = [], set()
for _ in range(3):
    begin(); record("first"); rest()
    names |= {path.name for path in optree.Directory.of().sessions.glob(".process-*")}
    end()
    optree.flush("snapshot", 60)
    counts.append(len(os.listdir("/dev/fd")))
print(counts[1] - counts[0], counts[2] - counts[0], len(names))
"""
    assert "0 0 3" == run(script, directory).strip()


def test_another_process_took_an_idle_session_whose_lock_was_removed(begin, directory):
    """Nothing is written into its files as long as that goes on with it, and all of it afterwards."""
    builder, store = begin()
    busy(builder, 1)
    assert rested(store)
    (store.live / "LOCK").unlink()
    other = lock.take(store.live / "LOCK", seconds=5.0)
    before = store.journal.path.stat().st_size
    busy(builder, 1)
    assert (False, True, before) == (store.flush(), 0 < store.unwritten, store.journal.path.stat().st_size)
    lock.release([other])
    wait_for(store.flush)
    assert 0 == store.unwritten
    assert 2 == len(load("txn-1", directory).session.turns)


def test_a_lock_that_somebody_looks_at_is_its_owners_still(begin, directory, monkeypatch):
    """A reader holds LOCK as a snapshot is to be written: that is later, and the session stays this process's."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", LONG)
    builder, store = begin()
    busy(builder, 1)
    assert rested(store)
    looking = lock.hold([store.live / "LOCK"])
    assert (False, True, 1) == (store.snapshot(), store._lock.rests, len(keepers(directory)))
    lock.release(looking)
    assert lock.is_running(store.live)
    assert (True, {}) == (store.snapshot(), store.current_problems)
    wait_for(lambda: [] == keepers(directory))


def test_another_process_went_on_with_an_idle_session_whose_lock_was_removed(begin, again, directory, monkeypatch):
    """It has come and gone before that was noticed: no snapshot is written over what it recorded."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", LONG)
    builder, store = begin()
    busy(builder, 1)
    assert rested(store)
    (store.live / "LOCK").unlink()
    went_on, other = again("txn-1", directory)
    busy(went_on, 1)
    other.close(LONG)
    before = directory.snapshot("txn-1").read_bytes()
    assert (False, before) == (store.snapshot(), directory.snapshot("txn-1").read_bytes())
    assert 2 == len(load("txn-1", directory).session.turns)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_a_journal_that_cannot_be_opened_again(begin, monkeypatch, killed, code):
    """What is recorded then is kept, and written into a new file as soon as there can be one."""
    system = OS()
    builder, store = begin(system=system)
    busy(builder, 1)
    assert rested(store)

    def fail(*_args, **_options):
        """Refuse."""
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(system, "reopen", fail)
        patch.setattr(system, "create", fail)
        busy(builder, 1)
        assert not store.flush()
    assert store.flush()
    loaded = load("txn-1", killed())
    assert ("clean", 2) == (loaded.damage.state, len(loaded.session.turns))


def test_what_a_journal_has_that_cannot_be_opened_again_is_forced_to_the_disk(begin, monkeypatch):
    """Its file is still there, and the session's: nothing of it is taken for removed, and a sync waits for it too."""
    system = Forcing()
    builder, store = begin(system=system, sync="write")
    busy(builder, 1)
    assert rested(store)
    first = store.journal.path

    def fail(*_args, **_options):
        """Refuse."""
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(system, "reopen", fail)
        busy(builder, 1)
    assert ([], True) == ([said for said in store.problems if "removed" in said], store.flush("sync"))
    assert {first.stat().st_ino, store.journal.path.stat().st_ino} <= {*system.forced}


@pytest.mark.parametrize("call", ["is_at", "state", "lock"])
def test_an_error_while_it_is_opened_again_loses_no_record(begin, monkeypatch, killed, call):
    """The disk cannot tell for a moment whose the files are: what is recorded then is written all the same, or kept and written."""
    system = OS()
    builder, store = begin(system=system)
    turn = builder.begin_turn()
    op = builder.begin_op("llm", "openai:gpt-5", turn=turn)
    assert rested(store)
    real, refusals = getattr(system, call), iter([OSError(errno.EIO, os.strerror(errno.EIO))])

    def once(*args, **options):
        """Refuse once."""
        if (error := next(refusals, None)) is not None:
            raise error
        return real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(system, call, once)
        op.account(cost_usd=5.0)
    assert store.flush()
    loaded = load("txn-1", killed())
    assert (5.0, "clean", 0) == (loaded.session.totals.cost_usd, loaded.damage.state, store.unwritten)


def test_a_journal_that_is_being_synced_stays_open_with_its_lock(begin, monkeypatch):
    """What cannot be closed just now is not counted as closed."""
    builder, store = begin()
    busy(builder, 1)
    store.flush()
    monkeypatch.setattr(store.journal, "_syncing", 1)
    assert ([False, False], True, True) == ([store.rest(), store.rest()], store.journal.fd >= 0, store._lock.fd >= 0)
    assert store in ownership._open


def test_a_session_that_is_woken_has_its_journal_locked(begin):
    """Others see that its writer lives, as before."""
    builder, store = begin()
    busy(builder, 1)
    assert rested(store)
    busy(builder, 1)
    assert None is lock.hold([store.journal.path])


@pytest.mark.parametrize("what", ["removed", "closed"])
def test_it_is_said_what_became_of_a_keeper(begin, directory, what):
    """It was removed, or the program has closed its descriptor; nothing else was."""
    builder, store = begin()
    busy(builder, 1)
    assert rested(store)
    keeper = ownership._keepers[directory.sessions]
    if what == "removed":
        keeper.path.unlink()
    else:
        os.close(keeper.fd)
    store.flush()
    why = f"{keeper.path} was removed" if what == "removed" else "the program closed their descriptors"
    assert [f"files of session txn-1: {why} while it runs; they are written anew"] == [*store.problems]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_where_descriptors_are_out_one_file_is_closed_at_a_time(begin, monkeypatch, code):
    """An open that fails for want of one has an idle session give up one file, and not all: others may take what gets free."""
    monkeypatch.setattr(ownership, "_open", {})
    monkeypatch.setattr(ownership, "_no_wait_until", 0.0)
    monkeypatch.setattr(ownership, "_WAIT_SECONDS", LONG)
    stores = [begin()[1] for _ in range(3)]
    refusals = iter([OSError(code, os.strerror(code))])

    def opening():
        """Fail once."""
        if (error := next(refusals, None)) is not None:
            raise error
        return 7

    assert 7 == ownership.with_room(opening)
    assert (1, 3) == (sum(store.journal.fd < 0 for store in stores), sum(store._lock.fd >= 0 for store in stores))


def test_who_waited_in_vain_for_files_to_be_closed_does_not_wait_again(monkeypatch):
    """A close hangs: the first one to need a descriptor waits for a moment, and those of the next second not at all."""
    monkeypatch.setattr(ownership, "_no_wait_until", 0.0)
    go_on = threading.Event()

    def hang():
        """Wait."""
        assert go_on.wait(LONG)

    closing = Job(Worker("hanging"), hang, str)
    try:
        ownership._wait_for(closing)
        monkeypatch.setattr(ownership, "_WAIT_SECONDS", LONG / 3)
        since = time.monotonic()
        ownership._wait_for(closing)
        assert time.monotonic() < since + LONG / 6
    finally:
        go_on.set()


@pytest.mark.parametrize("call", ["create", "own", "rewrite", "lock"])
def test_a_keeper_that_cannot_be_made(begin, directory, monkeypatch, call):
    """LOCK stays open then, and the session goes on."""
    monkeypatch.setattr(ownership, "_open", {})  # with those of other tests it may be closed as one of many
    system = OS()
    builder, store = begin(system=system)

    def fail(*_args, **_options):
        """Refuse."""
        if call == "lock":
            return False
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(system, call, fail)
        rests = rested(store)
    assert (call == "create", call != "create") == (rests, store._lock.fd >= 0)  # a keeper is opened as LOCK is
    busy(builder, 1)
    assert store.flush()
    assert 1 == len(load("txn-1", directory).session.turns)
    wait_for(lambda: call == "create" or [] == keepers(directory))  # who looks for what is left there opens one, and removes it


def test_records_that_the_disk_refuses_keep_the_files_open(begin):
    """A session that has records in no file is not idle."""
    system = Faulty("write")
    builder, store = begin(system=system)
    system.arm()
    builder.begin_turn(user="x")
    assert (False, 0 < store.unwritten) == (rested(store), True)
    system.mend()
    assert store.flush()


def test_a_session_of_which_records_are_lost_is_not_idle(begin, monkeypatch):
    """Its journal says how many, and the next snapshot has them: until then it is looked after as a busy one."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", LONG)  # no snapshot of its own accord
    monkeypatch.setattr(journal, "HELD_RECORDS", 0)
    system = Faulty("write")
    builder, store = begin(system=system)
    system.arm()
    builder.begin_turn(user="lost")
    system.mend()
    builder.begin_turn(user="kept")
    assert (False, True, 1) == (rested(store), store.journal.whole, store.unwritten)
    assert store.snapshot()
    assert rested(store)


class Recording:
    """The lock of a session's steps, which another thread is quicker to take, once."""

    def __init__(self, lock, builder):
        self.lock, self.builder = lock, builder

    def acquire(self, *args):
        """Take it, behind that thread's records."""
        builder, self.builder = self.builder, None
        if builder is not None:
            thread = threading.Thread(target=busy, args=(builder, 1))
            thread.start()
            thread.join(LONG)
        return self.lock.acquire(*args)

    def release(self):
        """Give it back."""
        self.lock.release()


def test_what_is_recorded_as_its_files_are_to_be_closed_keeps_them_open(begin):
    """Another thread records between the look whether a session is idle and the step in which its files are closed: they stay open."""
    builder, store = begin()
    store.flush()
    store.rest()
    before, store.stream._lock = store.journal.last, Recording(store.stream._lock, builder)
    assert (False, True, True) == (store.rest(), store.journal.last > before, store.journal.fd >= 0)


def test_what_is_synced_later_is_noted(begin):
    """Files are closed before what they have is on the disk: once it is, LOCK says so though it is closed."""
    builder, store = begin()
    busy(builder, 1)
    assert rested(store)
    assert store.flush("sync")
    assert store.journal.last == lock.last_forced(store.live) > 0
    assert (-1, -1) == (store.journal.fd, store._lock.fd)


class Forcing(OS):
    """Notes which files were forced to the disk, by their numbers."""

    def __init__(self):
        self.forced = []

    def datasync(self, fd):
        """Wait for the disk, and note it."""
        super().datasync(fd)
        self.forced.append(os.fstat(fd).st_ino)


def test_what_was_not_on_the_disk_when_its_file_was_closed_is_forced_to_it(begin):
    """A sync of an idle session is True once the disk was asked for what its journal has, which is closed, and not before."""
    system = Forcing()
    builder, store = begin(system=system, sync="write")
    busy(builder, 1)
    assert rested(store)
    assert [] == system.forced
    assert store.flush("sync")
    assert store.journal.path.stat().st_ino in system.forced


def test_a_lock_that_is_closed_does_not_say_more_than_is_on_the_disk(begin):
    """Nothing was forced to the disk: LOCK says so while the session is idle, and when it was let go: a power cut may have it all."""
    builder, store = begin(sync="write")
    busy(builder, 1)
    assert rested(store)
    said = [lock.last_forced(store.live)]
    store.close(LONG)
    assert [0, 0] == [*said, lock.last_forced(store.live)]


def test_a_keeper_of_a_killed_process_stays_as_long_as_a_lock_names_it(begin, directory, tmp_path):
    """It tells how long the session lasted, so who settles leaves it there, and removes it once the session is over."""
    builder, store = begin()
    busy(builder, 1)
    assert rested(store)
    image = Directory.of(shutil.copytree(directory.sessions.parent, tmp_path / "killed"))
    assert [] == settle_all(StoreOptions(image))
    assert keepers(directory) == keepers(image)
    shutil.rmtree(image.live("txn-1"))
    assert [] == settle_all(StoreOptions(image))
    assert [] == keepers(image)


class Refusing(OS):
    """One keeper is gone when it is opened, and another is another user's."""

    def open(self, path):
        """Open a file for its lock."""
        if path.name.endswith("gone"):
            path.unlink()
        if path.name.endswith("others"):
            raise PermissionError(13, "another user's", str(path))
        return super().open(path)


def test_keepers_that_were_left_are_removed_each_by_itself(tmp_path):
    """One that may not be opened keeps no other, and one that has just gone is not made anew."""
    names = [f"{ownership.PREFIX}{name}" for name in ("a", "b", "gone", "others", "z")]
    for name in names:
        (tmp_path / name).touch()
    ownership.remove_unused(tmp_path, Refusing(), [])
    assert [names[3]] == [path.name for path in tmp_path.iterdir()]


def test_an_idle_session_that_is_killed_lasted_until_then(directory):
    """What tells how long it lasted is the keeper, which says each second that its process lives; then the session is anybody's."""
    started = run("begin(); record('first'); rest(); print(scopes[0][2], flush=True); input()", directory, wait=False)
    txn = started.stdout.readline().strip()
    live = directory.live(txn)
    noted = lock.last_beat(live)
    wait_for(lambda: lock.last_beat(live) > noted)
    noted = lock.last_beat(live)
    wait_for(lambda: lock.last_beat(live) > noted)
    last = lock.last_beat(live)
    started.kill()
    started.communicate()
    loaded = load(txn, directory)
    assert ("interrupted", True) == (loaded.state, loaded.session.seen_at >= last)
    _, store, _ = resume_session(txn, StoreOptions(directory))
    assert store.flush("snapshot", 30)
    store.close(0.0)
    assert [] == settle_all(StoreOptions(directory))
    assert [] == keepers(directory)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_does_not_keep_its_parents_sessions(directory):
    """A child that lives on while its parent is killed: the sessions that were idle are anybody's, and the child's part is there."""
    script = """
begin(); record('parent'); rest()
pid = os.fork()
if not pid:
    record('child')
    assert optree.flush()
    print("child", os.getpid(), scopes[0][2], flush=True)
    input()
    os._exit(0)
os.waitpid(pid, 0)
"""
    started = run(script, directory, wait=False)
    _, child, txn = started.stdout.readline().split()
    assert lock.is_running(directory.live(txn))
    started.kill()
    try:
        started.wait()
        assert not lock.is_running(directory.live(txn))
        names = [op.name for turn in load(txn, directory).session.turns for op in turn.ops]
        assert ["child", "parent"] == sorted(names)
    finally:
        os.kill(int(child), signal.SIGKILL)
        started.communicate()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_no_keeper_of_its_parent(directory):
    """In the child nothing is to be noted each second: what stands for the parent's idle sessions is the parent's."""
    script = """
begin(); record('parent'); rest()
if not (pid := os.fork()):
    print(ownership._beat(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(ownership._beat())
end()
"""
    assert ["None", str(upkeep.SYNC_SECONDS)] == run(script, directory).split()


@pytest.mark.skipif(sys.platform != "linux", reason="counts what is open in /proc")
def test_a_fork_beside_many_idle_sessions(directory):
    """A child begins no file in a session that is idle before it records there: what files it may have open are its program's."""
    script = """
import json
for _ in range(300):
    begin()
record('parent'); rest()
if not (pid := os.fork()):
    free = [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]
    for context, _, _ in [scopes[0], scopes[-1]]:
        context.run(op, 'child')
    print(optree.flush(), optree.health()["lost"], len(os.listdir("/proc/self/fd")) < 200, flush=True)
    os._exit(0)
assert 0 == os.waitpid(pid, 0)[1]
print(scopes[0][2], scopes[1][2], scopes[-1][2])
end()
print(optree.flush("snapshot", 60))
"""
    told, txns, saved = run(script, directory, limit=256).splitlines()
    assert ("True 0 True", "True") == (told, saved)
    names = [[op.name for turn in load(txn, directory).session.turns for op in turn.ops] for txn in txns.split()]
    assert [["child", "parent"], ["parent"], ["child", "parent"]] == [sorted(found) for found in names]


def test_many_sessions_that_are_open_at_once(directory):
    """With 400 sessions and 256 descriptors, a macOS's, nothing is refused; a second later few are open; all go on and end."""
    script = """
import time
for _ in range(400):
    begin()
record("first")
deadline = time.monotonic() + 60
while len(ownership._open) > ownership.FEW and time.monotonic() < deadline:
    time.sleep(0.05)
print(len(ownership._open), len(os.listdir("/dev/fd")) < 64, optree.flush("sync"))
record("second")
txns = [txn for *_, txn in scopes]
end()
print(optree.flush("snapshot", 60), optree.health()["problems"], optree.health()["lost"], len(set(txns)))
"""
    assert ["16 True True", "True [] 0 400"] == run(script, directory, limit=256).splitlines()
    assert 400 == len(list(directory.sessions.iterdir()))
    assert ["first", "second"] == [op.name for turn in load("last", directory).session.turns for op in turn.ops]


def test_a_session_that_begins_where_no_descriptor_is_left(directory):
    """The files of those that are idle are closed for it at once."""
    script = """
for _ in range(60):
    begin()
record("first")
taken = []
try:
    while True:
        taken.append(os.dup(1))
except OSError:
    begin()
print(len(ownership._open) <= 61, optree.health()["problems"], optree.health()["lost"])
for one in taken:
    os.close(one)
end()
print(optree.flush("snapshot", 60), optree.health()["lost"])
"""
    assert ["True [] 0", "True 0"] == run(script, directory, limit=200).splitlines()
    assert 61 == len(list(directory.sessions.iterdir()))


def test_sessions_that_are_few_keep_their_files_open(begin, monkeypatch):
    """With no more than 16 sessions none is closed, however long it is idle."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", 0.01)
    monkeypatch.setattr(ownership, "_open", {})
    stores = [begin()[1] for _ in range(16)]
    are_many = [ownership.are_many()]
    stores.append(begin()[1])
    assert [False, True] == [*are_many, ownership.are_many()]
    wait_for(lambda: [store.journal.fd for store in stores].count(-1) >= 1)
    assert 16 == sum(store.journal.fd >= 0 for store in stores)
