"""From disk to a tree: snapshot, journal tail, and the truth about what is missing."""

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

import optree
from optree import _records as r
from optree._nodes import AccountingEntry
from optree._store import load
from optree._store.reading import recovery
from optree._store.reading.directory import journals
from optree._store.reading.recovery import without_collector
from optree._tree import Fold
from optree.errors import DamagedError, FormatError
from optree.testing import shape
from tests.growth import SQUARE, growth
from tests.store.golden.make import program
from tests.store.test_journal import busy


def same(one, other):
    """Tell whether two trees are the same, to the byte."""
    return msgspec.json.encode(one) == msgspec.json.encode(other)


def journal_alone(directory, store):
    """Leave the journal alone: the snapshot that a sub-agent's end brings is taken away."""
    assert store.flush()
    assert store.flush("snapshot")
    directory.snapshot(store.txn).unlink()
    return journals(store.live)[0]


def test_a_killed_session_loads_from_its_journal(begin, directory):
    """What a killed process leaves loads to the tree that it held, with what was open (S4-97)."""
    builder, store = begin()
    program(builder)
    journal_alone(directory, store)
    loaded = load("txn-1", directory)
    assert same(builder.tree, loaded.tree)
    assert ("interrupted", "clean", {"0000": store.journal.last}) == (loaded.state, loaded.damage.state, loaded.vector)
    assert ["2.1", "2", ""] == [node.path for node in loaded.open_nodes()]
    assert ["j-0000-000001.jsonl"] == loaded.sources


def test_a_snapshot_and_the_journal_behind_it_load_to_one_tree(begin, directory):
    """The journal goes on where the snapshot stands; neither repeats the other (S4-94)."""
    builder, store = begin()
    busy(builder)
    assert store.snapshot()
    program(builder)
    store.flush()
    loaded = load("txn-1", directory)
    assert same(builder.tree, loaded.tree)
    assert ["txn-1.json.zst", "j-0000-000001.jsonl"] == loaded.sources


@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_a_truncated_snapshot_gives_its_valid_part_and_says_so(begin, directory, compression):
    """A snapshot cut anywhere either gives whole turns with the damage said, or a clear error; never an invented success."""
    builder, store = begin(compression=compression)
    for number in range(6):
        busy(builder, 3)
        builder.node.turns[-1].assistant = {"content": f"said {number} {os.urandom(2000).hex()}"}
    builder.end_session()
    assert store.flush("snapshot")
    path = directory.snapshot("txn-1", compression)
    data = path.read_bytes()
    kept = []
    for size in range(8, len(data) - 8, max(1, len(data) // 60)):
        path.write_bytes(data[:size])
        try:
            loaded = load("txn-1", directory)
        except DamagedError:
            assert [] == kept
            continue
        assert "damaged" == loaded.damage.state
        assert f"txn-1.json.{'zst' if compression == 'zstd' else 'gz'} breaks off: its {size} bytes unpack to" in loaded.damage.lines()[0]
        kept.append(len(loaded.session.turns))
        assert all(shape(turn) == shape(found) for turn, found in zip(builder.node.turns, loaded.session.turns[:-1], strict=False))
    assert kept == sorted(kept)
    assert 5 <= kept[-1]


def test_every_flipped_byte_of_a_snapshot_is_found(begin, directory):
    """No byte of a compressed snapshot changes without an error or a report of damage, but for bits that zstd does not use."""
    builder, store = begin()
    program(builder)
    builder.end_session()
    assert store.flush("snapshot")
    path = directory.snapshot("txn-1")
    data = path.read_bytes()
    choice = random.Random(1)
    found = 0
    for offset in range(len(data)):
        changed = bytearray(data)
        changed[offset] ^= choice.randrange(1, 256)
        path.write_bytes(changed)
        try:
            loaded = load("txn-1", directory)
        except (DamagedError, FormatError):
            found += 1
        else:
            found += "damaged" == loaded.damage.state
            assert "damaged" == loaded.damage.state or same(builder.tree, loaded.tree), offset
    assert found > 0.95 * len(data)


@pytest.mark.parametrize("keep", [0, 0.3, 0.7])
def test_a_broken_snapshot_is_done_without_where_the_journal_has_all(begin, directory, keep):
    """While the journal is there from its first record, a snapshot that broke off costs nothing, and is reported."""
    builder, store = begin()
    busy(builder, 20)
    busy(builder, 20)
    assert store.snapshot()
    store.flush()
    path = directory.snapshot("txn-1")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    loaded = load("txn-1", directory)
    assert same(builder.tree, loaded.tree)
    assert ("damaged", 1) == (loaded.damage.state, len(loaded.damage.lines()))
    assert path.name in loaded.damage.lines()[0]


@pytest.mark.parametrize("figure", ["cost_usd", "upstream_inference_cost_usd"])
def test_a_session_whose_totals_overflowed_is_read(begin, directory, figure):
    """A file of an earlier version may hold totals that are no numbers: they are summed anew (S4-97)."""
    builder, store = begin()
    for _ in range(2):
        op = builder.begin_op("llm", "openai:m")
        op.account(input_tokens=5, cost_usd=0.5)
        setattr(op.node.accounting[0], figure, 1e308)
        op.end()
    setattr(builder.node.totals, figure, float("inf"))
    builder.end_session()
    assert store.close(5.0)
    loaded = load("txn-1", directory)
    assert (10, 0.0 if figure == "cost_usd" else 1.0, 0.0) == (
        loaded.session.totals.input_tokens, loaded.session.totals.cost_usd, loaded.session.totals.upstream_inference_cost_usd,
    )  # fmt: skip
    assert "clean" == loaded.damage.state


def test_a_torn_journal_is_normal_and_a_corrupt_one_is_damage(begin, directory):
    """The cut end of a killed process is a `torn tail`; a change in the middle is `damaged`; both load, with place and size."""
    builder, store = begin(sync="write")
    program(builder)
    path = journal_alone(directory, store)
    builder.begin_op("tool", "not on the disk yet")
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    torn = load("txn-1", directory)
    start = data[:-1].rindex(b"\n") + 1
    assert "torn tail" == torn.damage.state
    assert [f"{path.name}: the last write was cut off (at byte {start}, {len(data) - 9 - start} bytes)"] == torn.damage.lines()
    middle = data.index(b'"t":"turn.begin"')
    path.write_bytes(data[:middle] + b"X" + data[middle + 1 :])
    corrupt = load("txn-1", directory)
    first = data.rindex(b"\n", 0, middle) + 1
    assert "damaged" == corrupt.damage.state
    assert (first, data.index(b"\n", middle) + 1 - first) == (corrupt.damage.flaws[0].offset, corrupt.damage.flaws[0].size)
    assert "2" == corrupt.session.turns[-1].path


def test_what_lost_its_begin_is_shown_as_unknown(begin, directory):
    """An op whose begin was in a damaged line stands in the tree under the name ``(unknown)``, with what follows."""
    builder, store = begin()
    program(builder)
    path = journal_alone(directory, store)
    path.write_bytes(path.read_bytes().replace(b'"name":"openai:gpt-4o"', b'"name":"openai:gpt-4X"'))
    loaded = load("txn-1", directory)
    assert ("llm openai:gpt-4o", "ok") == shape(builder.tree)[2][2]
    assert ("system (unknown)", "ok") == shape(loaded.tree)[2][2]
    assert 0.0031 == pytest.approx(loaded.session.turns[0].ops[0].accounting[0].cost_usd)
    assert "damaged" == loaded.damage.state


def test_missing_entries_are_counted(begin, directory):
    """Log lines that are known to be missing from the middle of a list are counted."""
    builder, store = begin()
    op = builder.begin_op("tool", "t")
    for number in range(3):
        op.log(f"log {number}")
        store.flush()
    path = journals(store.live)[0]
    path.write_bytes(path.read_bytes().replace(b"log 1", b"LOG 1"))
    loaded = load("txn-1", directory)
    assert (["log 0", "log 2"], 1) == ([entry.message for entry in loaded.session.turns[0].ops[0].logs], loaded.damage.missing)
    assert "1 entries are missing" in loaded.damage.lines()


def test_loading_changes_nothing_on_disk(begin, killed):
    """A load writes no byte and makes no file, also where there is damage."""
    builder, store = begin()
    program(builder)
    assert store.snapshot()
    busy(builder)
    store.flush()
    image = killed()
    path = journals(image.live("txn-1"))[0]
    path.write_bytes(path.read_bytes()[:-3])
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in image.sessions.rglob("*") if file.is_file()}
    assert "torn tail" == load("txn-1", image).damage.state
    assert before == {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in image.sessions.rglob("*") if file.is_file()}


def test_a_load_beside_a_session_that_ends_is_whole(begin, directory):
    """A reader that loads again and again while sessions end sees each time all that was acknowledged before."""
    stop = threading.Event()
    wrong = []
    acknowledged = {"txn": ""}

    def reader():
        while not stop.is_set():
            txn = acknowledged["txn"]
            if txn:
                loaded = load(txn, directory)
                if loaded.damage.state == "damaged" or 3 != len(loaded.session.turns):
                    wrong.append((txn, loaded))

    thread = threading.Thread(target=reader)
    thread.start()
    for number in range(20):
        builder, store = begin(txn=f"run-{number}")
        for _ in range(3):
            busy(builder, 1)
        assert store.snapshot()
        acknowledged["txn"] = f"run-{number}"
        builder.end_session()
        assert store.flush("snapshot")
    stop.set()
    thread.join()
    assert [] == wrong


def test_a_session_whose_journal_holds_nothing_says_so(directory):
    """A live directory in which nothing was recorded gives a clear error that names what is there."""
    live = directory.live("txn-1")
    live.mkdir(parents=True)
    with pytest.raises(DamagedError, match=r"session txn-1: nothing was recorded that can be read \(no files\)"):
        load("txn-1", directory)
    (live / "j-0000-000001.jsonl").write_bytes(b"")
    with pytest.raises(DamagedError, match="nothing was recorded that can be read"):
        load("txn-1", directory)


@pytest.mark.slow
def test_many_entries_of_one_op_fold_in_linear_time():
    """The accounting entries of one op are folded one by one, each once, and not each compared with all before it."""

    def folding(count):
        fold = Fold("txn-1")

        def work():
            for number in range(count):
                for _ in range(2):
                    fold.apply(r.Accounted("1.1", AccountingEntry(f"txn-1:1.1#{number}", 1.0, "llm")))
            fold.finish()
            assert count == len(fold.ops["1.1"].accounting)

        return work

    assert SQUARE > growth(folding, 2000)


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_as_it_was(begin, directory, monkeypatch, on):
    """A load leaves Python's garbage collector as it was: on for a small session, held off meanwhile for a large one."""
    builder, store = begin()
    busy(builder)
    store.flush()
    seen = []
    reading = recovery.read_journal
    monkeypatch.setattr(recovery, "read_journal", lambda *args: seen.append(gc.isenabled()) or reading(*args))
    (gc.enable if on else gc.disable)()
    try:
        load("txn-1", directory)
        monkeypatch.setattr(recovery, "LARGE_BYTES", 1)
        load("txn-1", directory)
        assert ([on, False], on) == (seen, gc.isenabled())
    finally:
        gc.enable()


def test_the_collector_comes_back_when_the_last_has_left():
    """Threads that overlap, in any order of leaving, leave the collector on; it is off as long as one is inside."""
    entered, leave = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    def work(number):
        with without_collector():
            entered[number].set()
            assert leave[number].wait(30)

    for first in (0, 1):
        threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
        for number, thread in enumerate(threads):
            thread.start()
            assert entered[number].wait(30)
        leave[first].set()
        threads[first].join()
        assert not gc.isenabled()
        leave[1 - first].set()
        threads[1 - first].join()
        assert gc.isenabled()
        for event in entered + leave:
            event.clear()


@pytest.mark.parametrize(
    ("step", "on"), [("isenabled", True), ("disable", True), ("enable", True), ("isenabled", False), ("disable", False)]
)
def test_a_load_within_a_step_of_the_collector(monkeypatch, step, on):
    """A signal handler that loads too, before or after any step of its own thread, neither waits for ever nor changes what comes after."""
    calls, inside, real = [], [], getattr(gc, step)

    def interrupted(*, after):
        found = real() if after else None
        calls.append(step)
        if len(calls) == 1:
            with without_collector():
                pass
        return found if after else real()

    def work():
        with without_collector():
            inside.append(gc.isenabled())

    (gc.enable if on else gc.disable)()
    try:
        for after in (False, True):
            calls.clear()
            monkeypatch.setattr(gc, step, partial(interrupted, after=after))
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            thread.join(20)
            monkeypatch.undo()
            assert (False, [False], on) == (thread.is_alive(), inside[-1:], gc.isenabled())
    finally:
        monkeypatch.undo()
        gc.enable()


def test_a_call_that_broke_off_was_seen_as_long_as_its_process_lived(begin, killed):
    """What stands for a model call of a killed process has the time at which the process last said that it lives (S4-97)."""
    builder, store = begin(now=lambda: time.time() - 60)
    builder.begin_op("llm", "p:m")
    assert store.flush()
    image = killed()
    alive = int(builder.node.started_at) + 30_000
    (image.live("txn-1") / "LOCK").write_bytes(b"%d" % alive)
    [entry] = load("txn-1", image).session.turns[0].ops[0].accounting
    assert ("failed", float(alive)) == (entry.status, entry.timestamp)


@pytest.mark.parametrize("size", [1, 1 << 20, 3 << 20])
def test_a_hole_behind_a_snapshot_is_no_part_of_it(begin, directory, size):
    """Zeros behind a plain snapshot of any size, as a crash of the machine leaves them, take nothing from it."""
    builder, store = begin(compression="none")
    for _ in range(4):
        builder.begin_turn(attributes={"said": "x" * (700 << 10)})
    builder.end_session()
    assert store.close(30.0)
    path = directory.snapshot("txn-1", "none")
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + size)
    assert same(builder.tree, load("txn-1", directory).tree)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system: what it is about cannot happen")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # that is what it is about
def test_a_fork_within_a_step_of_another_thread():
    """A process that forks while another thread is about to turn the collector off: the child turns it off and on as any other."""
    disabling, forked, real = threading.Event(), threading.Event(), gc.disable

    def disable():
        disabling.set()
        assert forked.wait(30)

    def work():
        with patch.object(gc, "disable", disable), without_collector():
            pass

    thread = threading.Thread(target=work)
    thread.start()
    assert disabling.wait(30)
    if not (child := os.fork()):
        signal.alarm(20)  # a child that waits for ever is ended
        gc.disable = real
        with without_collector():
            off = not gc.isenabled()
        os._exit(off and gc.isenabled())
    forked.set()
    thread.join()
    assert 1 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_has_its_collector_on():
    """A process that forks while another thread loads: the thread is not in the child, and the collector is on there."""
    script = (
        "import gc, os\nfrom optree._store.reading.recovery import without_collector\n"
        "with without_collector():\n    child = os.fork()\n    if not child:\n        os._exit(gc.isenabled())\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), gc.isenabled())"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(optree.__file__).parents[1])}
    assert "1 True\n" == subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True).stdout
