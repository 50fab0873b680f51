"""One session while it lives: saved without being asked, and never in the program's way."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from threading import Event

import msgspec
import pytest

import optree
from optree import _records as r
from optree._nodes import AccountingEntry, SessionNode
from optree._store import journal, load, open_session, upkeep
from optree._store.files import lock
from optree._store.files.system import OS
from optree._store.ledger import Ledger
from optree._store.reading.directory import LATE, journals
from optree._store.reading.formats import read_meta
from optree._store.saving import StoreOptions
from optree._store.session_store import SessionStore
from optree._store.settle import settle
from optree._tree import flatten, walk_ops
from optree.errors import BusyError
from tests.store.faults import CALLS, Faulty
from tests.store.golden.make import program
from tests.store.test_journal import busy
from tests.store.test_settle import wait_for

ROOT = str(Path(optree.__file__).parents[1])


def python(script, tmp_path, **env):
    """Run a program of its own that traces into *tmp_path*."""
    whole = {**{key: value for key, value in os.environ.items() if not key.startswith("OPTREE_")}, "OPTREE_BASE_DIR": str(tmp_path)}
    whole |= {"PYTHONPATH": ROOT, **env}
    return subprocess.run([sys.executable, "-c", script], env=whole, capture_output=True, text=True, check=True, timeout=60)


def test_a_session_is_saved_without_being_asked(tmp_path):
    """A decorated program leaves one snapshot and its ledger lines; nothing in it says save (S4-82, S4-86, S4-104)."""
    script = (
        "import optree\n@optree.session\ndef ask():\n    with optree.turn(user='why?'), optree.llm(provider='p', model='m') as op:\n"
        "        op.account(cost_usd=0.5)\n        return 'because'\nask()\n"
        "import os, time\nwhile [one for one in os.listdir(os.environ['OPTREE_BASE_DIR'] + '/sessions') if one.endswith('.live')]:\n"
        "    time.sleep(0.005)"  # an exit waits no longer for a slow disk than it says
    )
    python(script, tmp_path)
    directory = optree.Directory.of(tmp_path)
    (path,) = directory.sessions.iterdir()
    assert path.name.endswith(".json.zst")
    loaded = load("last", directory)
    assert (True, b'"because"', 0.5) == (loaded.session.success, bytes(loaded.session.final_report), loaded.session.totals.cost_usd)
    assert [0.5] == [entry["costUsd"] for entry in Ledger(directory.billing).read()]


def test_configured_places_are_used(tmp_path):
    """`configure` sets the sessions directory, the ledger and the compression; it wins over the environment (S4-87, S4-91, S4-105)."""
    script = (
        "import optree, os\nb = os.environ['OPTREE_BASE_DIR']\n"
        "optree.configure(sessions_dir=b + '/s', billing_file=b + '/b/bill.jsonl', compression='gzip', console=False)\n"
        "with optree.session('a'), optree.turn(), optree.tool('t'):\n    pass\nprint(optree.flush('snapshot', 60))"
    )
    assert "True\n" == python(script, tmp_path, OPTREE_SESSIONS_DIR="/nowhere", OPTREE_COMPRESSION="none").stdout
    assert [".gz"] == [path.suffix for path in (tmp_path / "s").iterdir()]
    assert 1 == len(Ledger(tmp_path / "b" / "bill.jsonl").read())


def test_how_a_session_is_kept_where_nothing_is_said(directory):
    """Compressed by zstd, synced now and then, structure written through, not redacted, cycles marked: as the documentation says."""
    options = StoreOptions(directory)
    assert ("zstd", "interval", "structure", False, "mark") == (
        options.compression,
        options.sync,
        options.write,
        options.redacted,
        options.cycles,
    )


def test_a_child_process_joins_the_same_session(tmp_path):
    """A process that is started with `child_env` writes its own journal into the session, and the end joins both (S4-94, S4-104)."""
    child = (
        "import optree\nwith optree.session('child'), optree.turn(user='part'), optree.llm(provider='p', model='m') as op:\n"
        "    op.log('from the child')\n    op.account(cost_usd=0.25)\n"
    )
    script = (
        "import optree, subprocess, sys, os\nwith optree.session('parent') as session, optree.turn(), optree.tool('start') as op:\n"
        f"    subprocess.run([sys.executable, '-c', {child!r}], env=optree.child_env(), check=True)\n"
        "    op.account(cost_usd=0.5)\nprint(optree.flush('snapshot', 60), optree.health()['ok'])"
    )
    assert "True True\n" == python(script, tmp_path).stdout
    directory = optree.Directory.of(tmp_path)
    loaded = load("last", directory)
    names = {op.name: op for _, _, op in walk_ops(loaded.session)}
    assert ["from the child"] == [entry.message for entry in names["p:m"].logs]
    assert isinstance(names["child"].child_session, SessionNode)
    assert "ok" == names["child"].child_session.status
    assert 0.75 == pytest.approx(loaded.session.totals.cost_usd)
    assert [0.25, 0.5] == sorted(entry["costUsd"] for entry in Ledger(directory.billing).read())
    assert 1 == len(list(directory.sessions.iterdir()))


def test_secrets_never_reach_the_disk_when_redacted(begin, directory, killed):
    """With `redacted` no credential is in any file, at any moment: journal, snapshot, ledger; the rest is (S4-91)."""
    canary = "sk-canary0123456789abcdef"
    builder, store = begin(redacted=True, attributes={"ingress": {"headers": {"authorization": canary}}})
    turn = builder.begin_turn(user=f"use Bearer {canary}")
    op = builder.begin_op("llm", "openai:gpt-4o", attributes={"api_key": canary})
    op.request([{"role": "user", "content": canary}], headers={"Authorization": f"Bearer {canary}"}, token=canary)
    op.response({"cookie": canary, "text": "kept"})
    builder.append_message({"role": "user", "content": canary})
    op.account(cost_usd=1.0)
    op.end("ok", access_token=canary)
    turn.end()
    assert store.snapshot()
    store.flush()
    image = killed()
    files = [path for path in image.sessions.parent.rglob("*") if path.is_file()]
    assert {"j-0000-000001.jsonl", "txn-1.json.zst"} == {path.name for path in files}
    assert [] == [path.name for path in files if canary.encode() in path.read_bytes()]
    plain = load("txn-1", image)
    builder.end_session(final_report={"password": canary})
    assert store.flush("snapshot")
    for loaded in (plain, load("txn-1", directory)):
        text = msgspec.json.encode(loaded.tree)
        assert canary.encode() not in text
        assert b'"text":"kept"' in text
    assert canary.encode() not in directory.billing.read_bytes()


@pytest.mark.parametrize("where", ["log", "think", "title", "error"])
def test_secrets_in_texts_never_reach_the_journal_when_redacted(begin, where):
    """With `redacted` a credential in a log line, a reasoning chunk, a title or an error is not in the journal either (S4-91)."""
    canary = "sk-canary0123456789abcdef"
    builder, store = begin(redacted=True)
    op = builder.begin_op("tool", "t")
    {"log": op.log, "think": op.think, "title": builder.set_title, "error": lambda text: op.end("failed", text)}[where](canary)
    assert store.flush()
    assert canary.encode() not in store.journal.path.read_bytes()


@pytest.mark.parametrize("kind", ["think", "chunk"])
def test_streamed_secrets_never_reach_the_disk_when_redacted(begin, directory, kind):
    """With `redacted` a credential that is streamed in pieces, each flushed by itself, is whole in no file, nor joined from one (S4-91)."""
    canary = "sk-canary0123456789abcdef"
    builder, store = begin(redacted=True)
    op = builder.begin_op("llm", "openai:gpt-4o")
    for piece in ("first\nuse ", canary[:9], canary[9:15], canary[15:], " now\nnext"):
        getattr(op, kind)(piece)
        assert store.flush()
    lines = [
        msgspec.json.decode(line.rpartition(b"\t")[0] or line) for line in store.journal.path.read_bytes().splitlines() if line[:1] == b"{"
    ]
    assert canary[15:].encode() not in store.journal.path.read_bytes()
    assert lines
    op.end("ok")
    builder.end_session()
    assert store.flush("snapshot")
    node = load("txn-1", directory).session.turns[0].ops[0]
    said = "".join(chunk.text for chunk in node.reasoning.chunks) if kind == "think" else msgspec.json.decode(node.response.payload)
    assert "first\nuse [REDACTED] now\nnext" == said


def test_without_redaction_the_disk_has_all_but_header_credentials(begin):
    """By default the file is unredacted, and private; credentials in headers are never stored (S4-91)."""
    builder, store = begin()
    op = builder.begin_op("llm", "openai:gpt-4o")
    op.request(headers={"Authorization": "Bearer abcdefghijkl", "x-request": "1"}, note="Bearer mnopqrstuvwx")
    data = store.journal.path.read_bytes()
    assert b"abcdefghijkl" not in data
    assert b"Bearer mnopqrstuvwx" in data
    assert b'"x-request":"1"' in data


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_no_fault_of_the_disk_reaches_the_program(begin, call, code):
    """Whichever call of the operating system fails for ever, no call of the builder raises, and the tree is whole (S4-130, S4-131)."""
    system = Faulty(call, code)
    builder, store = begin(system=system)
    system.arm()
    program(builder)
    busy(builder)
    store.snapshot()
    store.flush("sync")
    builder.end_session()
    store.flush("snapshot", 5.0)
    assert ("ok", 3) == (builder.node.status, len(builder.node.turns))
    assert 8 == len(flatten(builder.node).accounting)
    harmless = ("append", "own", "read", "pieces", "ends_whole", "remove_directory", "unlink", "lock_waiting", "make_directory")
    assert store.problems or store.journal.problem or call in harmless
    store.close(1.0)


class Noting(OS):
    """Notes what one thread asks of the disk."""

    def __init__(self):
        self.thread, self.made = threading.get_ident(), []
        for name in {*CALLS, "lock"} - {"ends_whole", "read", "pieces"}:
            setattr(self, name, self._noted(name, getattr(super(), name)))

    def _noted(self, name, real):
        def call(*args, **options):
            if threading.get_ident() == self.thread:
                self.made.append(name)
            return real(*args, **options)

        return call

    def taken(self):
        """Return what was noted since the last time."""
        found, self.made = self.made, []
        return found


def test_what_the_caller_waits_for(directory, opened):
    """A begin is six calls on the caller's thread, one after another, any other structural call one, a log line none (decision 006)."""
    system = Noting()
    options = StoreOptions(directory, system=system)
    for number in (1, 2):
        builder, store = open_session("agent", options, txn=f"txn-{number}", later=True, unused=True)
        opened.append(store)
    assert ["make_directory", "own", "lock", "create", "lock", "write"] == system.taken()[-6:]
    turn = builder.begin_turn()
    assert ["write"] == system.taken()
    op = builder.begin_op("tool", "work")
    assert ["write"] == system.taken()
    op.log("line")
    assert [] == system.taken()
    for end in (op.end, turn.end, builder.end_session):
        end()
        assert ["write"] == system.taken()


def test_a_snapshot_that_is_refused_is_written_once_that_is_possible(begin, monkeypatch):
    """Of a session that goes on without a flush, too: then nothing is wrong any more (S4-131)."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", 0.01)
    system = Faulty("sync", errno.ENOSPC)
    builder, store = begin(system=system)
    busy(builder, 1)
    system.arm()
    assert not store.flush("snapshot")
    assert [True] == ["No space left on device" in said for said in store.current_problems.values()]
    system.mend()
    wait_for(lambda: not store.current_problems)
    assert (builder.node.ended_at, True) == (None, store.flush())


@pytest.mark.parametrize("first", range(1, 40, 3))
def test_a_fault_at_any_write_leaves_a_session_that_loads(begin, directory, first):
    """Whichever write fails once, what is on disk loads, and says how much is missing."""
    system = Faulty("write", errno.EIO, first, times=1)
    builder, store = begin(system=system)
    system.arm()
    program(builder)
    busy(builder)
    store.flush()
    assert store.flush("snapshot")
    directory.snapshot("txn-1").unlink()
    loaded = load("txn-1", directory)
    assert store.journal.lost == loaded.damage.dropped
    assert ("damaged" if store.journal.lost else "clean") == loaded.damage.state
    system.mend()
    builder.end_session()
    assert store.flush("snapshot")
    whole = load("txn-1", directory)
    assert ("ended", 3) == (whole.state, len(whole.session.turns))


def test_many_threads_write_and_nothing_is_lost(begin, directory):
    """Eight threads end 400 ops with logs and costs while snapshots are taken: each is on disk once."""
    builder, store = begin()
    turn = builder.begin_turn()

    def work():
        for number in range(50):
            op = builder.begin_op("llm", "openai:gpt-4o", turn=turn)
            op.log(f"log {number}")
            op.account(cost_usd=0.01)
            op.end()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        store.snapshot()
    for thread in threads:
        thread.join()
    assert store.flush()
    loaded = load("txn-1", directory)
    ops = loaded.session.turns[0].ops
    assert (400, 400, 400) == (len(ops), len({op.path for op in ops}), loaded.session.totals.llm_requests)
    assert {("ok", 1, 1)} == {(op.status, len(op.logs), len(op.accounting)) for op in ops}
    builder.end_session()
    assert store.flush("snapshot")
    assert 4.0 == pytest.approx(sum(entry["costUsd"] for entry in Ledger(directory.billing).read()))


def test_a_close_that_cannot_wait_leaves_the_journal(begin, directory):
    """A close without time returns at once; the session's journal or snapshot has all of it."""
    builder, store = begin()
    busy(builder, 20)
    builder.end_session()
    store.close(0.0)
    loaded = load("txn-1", directory)
    assert ("ended", 20) == (loaded.state, len(loaded.session.turns[0].ops))


def test_many_late_records_begin_few_files(begin, directory):
    """What is recorded after a session was closed, as by threads that go on at the process's end, is written, not each into a new file."""
    builder, store = begin()
    builder.begin_turn()
    store.close(0.0)
    for _ in range(300):
        builder.begin_op("tool", "late").end()
    assert 300 == len(list(walk_ops(load("txn-1", directory).session)))
    assert 8 > len(journals(store.live))
    builder.end_session()


def closed(begin, system):
    """Return a session that has ended, is saved, and is closed, and its store."""
    builder, store = begin(system=system)
    builder.end_session()
    assert store.flush("snapshot")
    store.close(0.0)
    return builder, store


def test_late_records_that_the_disk_refuses(begin, directory):
    """They are counted, and said at once, also behind many others; they are written as soon as the disk takes them."""
    system, said = Faulty("create", errno.ENOSPC), []
    builder, store = closed(begin, system)
    store.report = said.append
    for number in range(10):
        if number == 5:
            assert upkeep.late_closed(60.0)
            system.arm()
        builder.begin_op("tool", f"late{number}").end()
    assert (False, True) == (upkeep.late_closed(60.0), 0 < store.unwritten)
    assert said
    assert all("what came after its end of session txn-1: " in line and "No space left on device" in line for line in said)
    system.mend()
    assert upkeep.late_closed(60.0)
    assert 0 == store.unwritten
    settle("txn-1", StoreOptions(directory))
    assert 10 == len(list(walk_ops(load("txn-1", directory).session)))


@pytest.mark.parametrize("interrupted", [False, True])
def test_late_records_are_synced(begin, monkeypatch, interrupted):
    """All of them are on the disk once that is asked for, those too whose file is closed later, or whose close was interrupted."""
    system, sizes = OS(), {}

    def synced(fd):
        """Wait for the file, and note how much of it is on the disk."""
        before = os.fstat(fd)
        OS.datasync(system, fd)
        sizes[before.st_ino] = before.st_size

    monkeypatch.setattr(system, "datasync", synced)
    builder, store = begin(system=system)
    op = builder.begin_op("llm", "openai:m")
    store.close(0.0)
    if interrupted:
        make = upkeep._Left.__init__

        def interrupt(_left, *_arguments):
            """Raise, once, what a signal's handler may raise here."""
            monkeypatch.setattr(upkeep._Left, "__init__", make)
            raise KeyboardInterrupt

        monkeypatch.setattr(upkeep._Left, "__init__", interrupt)
        with pytest.raises(KeyboardInterrupt):
            op.account(cost_usd=1.0)
    else:
        for _ in range(20):
            builder.begin_op("tool", "late").end()
    assert upkeep.late_closed(60.0)
    assert upkeep.left_synced(60.0)
    assert {path.stat().st_ino: path.stat().st_size for path in journals(store.live)} == sizes
    builder.end_session()


def test_late_records_do_not_wait_for_a_disk_that_refuses(begin, monkeypatch):
    """The program goes on at once: what is refused is tried again on a thread."""
    system, waited = Faulty("create", errno.ENOSPC), []
    builder, _ = closed(begin, system)
    monkeypatch.setattr(journal, "sleep", waited.append)
    system.arm()
    for _ in range(10):
        builder.begin_op("tool", "late").end()
    assert 0.0 == sum(waited)
    system.mend()
    assert upkeep.late_closed(60.0)


def test_late_records_of_a_session_that_was_let_go(begin, directory):
    """Where the disk had refused all of a session, what comes later is written, with how much is lost, and nothing is wrong any more."""
    system = Faulty("write", errno.ENOSPC)
    builder, store = begin(system=system)
    turn = builder.begin_turn()
    system.arm()
    busy(builder, 3)
    builder.end_session()
    store.wait(60.0)
    assert store.let_go()
    lost = store.unwritten
    system.mend()
    builder.begin_op("tool", "late", turn=turn).end()
    assert (True, -1) == (upkeep.late_closed(60.0), store.journal.fd)
    loaded = load("txn-1", directory)
    assert "late" == [op.name for _, _, op in walk_ops(loaded.session)][-1]
    assert any(line.startswith(f"{lost} records were never written") for line in loaded.damage.lines())
    assert (lost, False) == (store.unwritten, LATE in store.current_problems)


@pytest.fixture
def join(directory, opened):
    """Return a function that records an op of a dollar as a process that joins does, and leaves."""

    def one(name):
        joined = SessionStore("txn-1", StoreOptions(directory), owner=False)
        opened.append(joined)
        path = f"1.{joined.journal.base + 1}"
        joined.stream.put(r.OpBegin(path, 1.0, "tool", name))
        joined.stream.put(r.Accounted(path, AccountingEntry(f"txn-1:{path}#1", 1.0, "tool", cost_usd=1.0)))
        joined.stream.flush()
        joined.close(0.0)

    return one


@pytest.mark.parametrize("readable", [True, False])
def test_a_process_that_joins_while_the_session_is_saved(begin, directory, join, monkeypatch, readable):
    """It takes no number of a process whose records are saved by then, or may be: its own would count as these."""
    builder, store = begin()
    builder.begin_turn()
    join("quick")
    builder.end_session()
    assert store.flush("snapshot")
    monkeypatch.setattr("optree._store.session_store.known_vector", lambda *_, **_options: {})  # as it was before
    if not readable:
        saved = directory.snapshot("txn-1").rename(directory.sessions / "aside")
        directory.snapshot("txn-1").mkdir()
    join("slow")
    if not readable:
        directory.snapshot("txn-1").rmdir()
        saved.rename(directory.snapshot("txn-1"))
    settle("txn-1", StoreOptions(directory))
    assert {"quick", "slow"} == {op.name for _, _, op in walk_ops(load("txn-1", directory).session)}


def test_a_journal_that_is_gone_once_it_is_to_be_read(begin, directory, join, monkeypatch):
    """A process that had recorded nothing removes its file while the owner joins: what another had recorded is saved and billed."""
    builder, store = begin()
    builder.begin_turn()
    join("joined")
    empty, hold = store.live / "j-0002-000001.jsonl", lock.hold
    empty.touch()

    def held(paths, system):
        """Lock what is there; the file is removed just then."""
        found = hold(paths, system)
        empty.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(lock, "hold", held)
    builder.end_session()
    assert (True, []) == (store.flush("snapshot"), [*store.problems])
    assert ["joined"] == [op.name for _, _, op in walk_ops(load("txn-1", directory).session)]
    assert [1.0] == [entry["costUsd"] for entry in Ledger(directory.billing).read()]


def test_a_journal_that_is_gone_once_it_is_to_be_synced(begin, join, monkeypatch):
    """The file of a process that has gone is saved and removed while the owner syncs it: nothing is wrong."""
    system = OS()
    builder, store = begin(system=system)
    builder.begin_turn()
    join("joined")

    def gone(path):
        """Be a file system without it."""
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    monkeypatch.setattr(system, "datasync_at", gone)
    assert (True, []) == (store.flush("sync"), [*store.problems])


def test_while_another_process_writes_its_journal_stays(begin, directory, opened):
    """The root ends while a process that joined still writes: its journal stays, and what it writes later is loaded."""
    builder, store = begin()
    builder.begin_turn()
    joined = SessionStore("txn-1", StoreOptions(directory), owner=False)
    opened.append(joined)
    builder.end_session()
    assert store.flush("snapshot")
    assert 2 == len(journals(store.live))
    joined.stream.put(r.OpBegin("1.1000001", 1.0, "tool", "late"))
    joined.stream.flush()
    assert ["late"] == [op.name for _, _, op in walk_ops(load("txn-1", directory).session)]


def test_a_process_that_forks_shares_the_session(tmp_path):
    """After `os.fork` parent and child write to files of their own; both are in the tree, none twice (S4-94)."""
    script = (
        "import optree, os, warnings\nwarnings.simplefilter('ignore')\noptree.configure(console=False)\n"
        "with optree.session('a') as session, optree.turn(), optree.tool('outer'):\n"
        "    optree.current().log('before')\n"
        "    pid = os.fork()\n"
        "    name = 'parent' if pid else 'child'\n"
        "    with optree.tool(name) as op:\n        op.log(name)\n        op.account(cost_usd=1.0)\n"
        "    if not pid:\n        optree.flush()\n        os._exit(0)\n"
        "    os.waitpid(pid, 0)\nprint(optree.flush('snapshot', 60))"
    )
    assert "True\n" == python(script, tmp_path).stdout
    loaded = load("last", optree.Directory.of(tmp_path))
    names = {op.name: op for _, _, op in walk_ops(loaded.session)}
    assert {"outer", "parent", "child"} == set(names)
    assert (["before"], ["child"]) == ([entry.message for entry in names["outer"].logs], [entry.message for entry in names["child"].logs])
    assert 2.0 == loaded.session.totals.cost_usd


def test_what_a_snapshot_says_of_itself_first(begin, directory):
    """The first document of a snapshot is its meta: who ran, when, and what came of it."""
    builder, store = begin("lead")
    builder.set_title("Rain")
    builder.end_session("failed", "no luck", final_report={"answer": 42})
    assert store.flush("snapshot", 30)
    node = builder.node
    found = read_meta(directory.snapshot(builder.txn))
    expected = {
        "txn": builder.txn, "agentId": "lead", "createdAt": node.started_at, "endedAt": node.ended_at,
        "result": {"status": "failed", "success": False, "error": "no luck", "finalReport": {"answer": 42}},
    }  # fmt: skip
    assert expected == {name: found[name] for name in expected}
    assert found["savedAt"] > 0


def test_what_a_session_was_loaded_from(begin, directory):
    """A session that broke off names the files that it was read from: its snapshot, if it has one, and its journals."""
    builder, store = begin("lead")
    builder.begin_turn()
    assert [path.name for path in journals(directory.live(builder.txn))] == load(builder.txn, directory).sources
    assert store.snapshot()
    found = load(builder.txn, directory).sources
    assert directory.snapshot(builder.txn).name == found[0]


class Hanging(OS):
    """A disk that answers no sync until it is let go."""

    def __init__(self) -> None:
        self.free, self.begun, self.asked = Event(), Event(), 0

    def datasync(self, fd: int) -> None:
        """Hang."""
        self.asked += 1
        self.begun.set()
        assert self.free.wait(60)
        super().datasync(fd)


def test_a_sync_waits_no_longer_than_it_may(directory):
    """Where the disk hangs, `flush("sync")` returns False in its time, one thread waits for it, and it is True once the disk answers."""
    disk = Hanging()
    builder, store = open_session("agent", StoreOptions(directory, system=disk), txn="txn-1")
    try:
        builder.begin_turn().end()
        assert [False, False, False] == [store.flush("sync", 0.01) for _ in range(3)]
        assert 2 >= disk.asked  # of them one may be of the thread that syncs each second
    finally:
        disk.free.set()
    assert store.flush("sync", 60)
    builder.end_session()
    assert store.close(30.0)


class Meanwhile(OS):
    """A disk on which something happens just before the journal's name is synced, once."""

    def __init__(self) -> None:
        self.happens: Callable[[], object] | None = None

    def sync_name(self, path: Path) -> None:
        """Let it happen."""
        if path.name.startswith("j-") and self.happens:
            happens, self.happens = self.happens, None
            happens()
        super().sync_name(path)


def test_a_journal_that_is_removed_since_it_is_saved_needs_no_sync(begin):
    """A session ends and its files are removed while `flush("sync")` is at them: all of it is in the snapshot, so that is True."""
    disk = Meanwhile()
    builder, store = begin(system=disk, sync="write")
    builder.begin_turn().end()

    def end() -> None:
        builder.end_session()
        assert store.flush("snapshot", 60)
        assert not store.live.exists()

    disk.happens = end
    assert store.flush("sync", 60)
    assert (None, True, "", []) == (disk.happens, store.finished, store.journal.problem, list(store.problems))
    assert store.flush("sync")


def test_a_journal_that_somebody_removes_is_not_synced(begin):
    """Somebody else removes the live directory while `flush("sync")` is at it: that is False, and what was there is written anew."""
    disk = Meanwhile()
    builder, store = begin(system=disk, sync="write")
    builder.begin_turn().end()
    disk.happens = lambda: shutil.rmtree(store.live)
    assert not store.flush("sync", 60)
    assert f"{Path(*store.journal.path.parts[-2:])}: No such file or directory" == store.journal.problem


def test_what_another_thread_syncs_is_not_said_to_be_on_the_disk(directory):
    """While the thread that syncs each second waits for the disk, `flush("sync")` waits as well: what it syncs is not there yet."""
    disk = Hanging()
    builder, store = open_session("agent", StoreOptions(directory, system=disk), txn="txn-1")
    builder.begin_turn().end()
    other = threading.Thread(target=store.journal.sync)
    other.start()
    try:
        assert disk.begun.wait(60)
        assert not store.flush("sync", 0.01)
    finally:
        disk.free.set()
        other.join()
    assert store.flush("sync", 60)
    builder.end_session()
    assert store.close(30.0)


def test_no_snapshot_without_the_lock(directory, opened):
    """Where the lock cannot be taken no snapshot is written, as another process may have it; once it can, both go on."""
    system = Faulty("own", errno.EMFILE)
    system.arm()
    builder, store = open_session("agent", StoreOptions(directory, system=system), txn="txn-1", later=True)
    opened.append(store)
    builder.begin_op("tool", "x").end()
    assert not store.flush("write")
    assert not store.snapshot()
    assert [] == list(directory.sessions.glob("txn-1.*zst"))
    system.mend()
    assert store.snapshot()
    assert store.flush("write")
    builder.end_session()
    assert store.close(60.0)
    loaded = load("txn-1", directory)
    assert ("clean", msgspec.json.encode(builder.tree)) == (loaded.damage.state, msgspec.json.encode(loaded.tree))


def test_what_the_disk_refused_at_last_is_noted_when_the_session_is_let_go(begin, directory, monkeypatch):
    """A session that ended is let go of just after a refusal, before anything is done each second: a load says how many are missing."""
    monkeypatch.setattr(upkeep, "SYNC_SECONDS", 60.0)
    system = Faulty("rename")
    builder, store = begin(system=system, sync="write")
    op = builder.begin_op("llm", "p:m")
    op.end()
    system.arm()
    builder.end_session()
    assert not store.flush("snapshot")
    assert store._upkeep._ticking.wait(60.0)  # the sign of life that is given once as a session begins
    system.arm("write")
    op.account(cost_usd=1.0)
    assert store.let_go()
    assert [1, True] == [store.unwritten, store.live.exists()]
    assert ["1 records were never written, since the disk would not take them"] == load("txn-1", directory).damage.lost()


class Settling(OS):
    """A process settles the session just before a journal of it is locked, once it is told to."""

    settling = False

    def lock(self, fd, *, new=False):
        """Remove the file, and lock what was opened."""
        if self.settling:
            self.settling = False
            next(self.live.glob("j-0001-*")).unlink()
        return super().lock(fd, new=new)


def test_a_forked_child_whose_file_is_settled_as_it_is_made(begin):
    """A child that its parent did not wait for makes another file, also where the parent has made the directory itself."""
    system = Settling()
    _, store = begin(system=system)
    system.live, system.settling = store.live, True
    store.after_fork()
    assert store.journal.path.exists()
    store.close(0.0)


@pytest.mark.parametrize("ended", [False, True])
def test_a_name_that_another_process_has_taken(directory, ended):
    """A session is begun under no name that another one has, or has had, since it was asked for; that one's files stay as they are."""
    builder, store = open_session("first", StoreOptions(directory), txn="txn-1", later=True)
    builder.begin_turn(user="hi").end()
    if ended:
        builder.end_session()
    store.close(5.0)
    before = {path.name for path in directory.sessions.rglob("*")}
    with pytest.raises(BusyError):
        open_session("second", StoreOptions(directory), txn="txn-1", later=True)
    assert ("first", before) == (load("txn-1", directory).session.agent_id, {path.name for path in directory.sessions.rglob("*")})
