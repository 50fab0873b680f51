"""A time limit that hits the store's own calls reaches the program, though its exception is an `OSError`, as theirs are."""

import gc
import gzip
import signal
import weakref
from contextlib import contextmanager
from pathlib import Path

import pytest

from optree._interrupts import pass_on
from optree._store import load
from optree._store.files.compression import unpack
from optree._store.files.system import OS
from optree._store.files.unusable import usable
from optree._store.reading.directory import is_directory, journals
from optree._store.saving import sweep
from optree._store.settle import leave
from optree._tree import walk_ops
from tests.store.test_journal import busy


def hit(*_, **__):
    """Be interrupted by a signal whose handler raises."""
    signal.raise_signal(signal.SIGINT)


class HitPath(type(Path())):
    """A path of which nothing can be asked without a signal."""

    stat = lstat = iterdir = __fspath__ = hit


class HitOS(OS):
    """A system that takes a signal while a directory is removed."""

    remove_directory = hit
    write_whole = sync_name = staticmethod(print)


class HitReading(OS):
    """A system that takes a signal as the first file is read."""

    read_files = 0

    def pieces(self, path):
        """Take it in the middle."""
        yield from super().pieces(path)
        self.read_files += 1
        if self.read_files == 1:
            hit()


class HitFile(gzip.GzipFile):
    """A packed file in which a signal is taken."""

    read1 = read = readinto = hit


@contextmanager
def limits():
    """Let signals raise what a time limit raises."""

    def limit(*_):
        raise TimeoutError("too long")

    before = signal.signal(signal.SIGINT, limit)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def limited():
    """Expect what a time limit raises."""
    with limits(), pytest.raises(TimeoutError, match="too long"):
        yield


def use(path):
    """Write a file that a user has named."""
    with usable(path):
        hit()


@pytest.mark.parametrize(
    "call",
    [
        lambda path: leave(path, [], HitOS()),
        lambda path: sweep(HitPath(path), OS()),
        lambda path: OS().make_directory(HitPath(path)),
        lambda path: HitOS().keep(HitPath(path), path / "other"),
        lambda path: is_directory(HitPath(path)),
        lambda path: journals(HitPath(path)),
        use,
    ],
    ids=["leave", "sweep", "make_directory", "keep", "is_directory", "journals", "usable"],
)
def test_a_time_limit_reaches_the_program(call, tmp_path):
    """What keeps the system's errors for itself passes on a handler's."""
    with limited():
        call(tmp_path)


@pytest.fixture
def two_lives(begin, again, killed):
    """Return a directory with a session that ended, was resumed and killed: its snapshot has the one half, its journal the other."""
    builder, store = begin()
    busy(builder, 1)
    builder.end_session()
    assert store.flush("snapshot")
    first = killed()
    resumed, after = again("txn-1", first)
    busy(resumed, 1)
    after.flush()
    return killed(first)


def test_a_time_limit_ends_a_resume(two_lives, again):
    """A resume that takes too long is no resume without its history, and leaves nothing damaged."""
    with limited():
        again("txn-1", two_lives, system=HitReading())
    assert [] == list(two_lives.sessions.glob("*.damaged"))
    resumed, _ = again("txn-1", two_lives)
    assert 2 == len([op for _, _, op in walk_ops(resumed.node) if op.name == "openai:gpt-4o"])


def test_a_time_limit_ends_a_load(two_lives):
    """A load that takes too long finds no damage."""
    with limited():
        load("txn-1", two_lives, HitReading())


def test_a_time_limit_while_it_is_unpacked(monkeypatch):
    """Bytes that are unpacked for too long are not damaged."""
    monkeypatch.setattr(gzip, "GzipFile", HitFile)
    with limited():
        unpack(gzip.compress(b"sound"))


def test_what_a_time_limit_hit_is_let_go_at_once():
    """Blocks that were open where it hit do not end in the middle of something else, as garbage is collected."""
    held = []

    def call():
        mine = HitOS()
        held.append(weakref.ref(mine))
        hit()

    def guarded():
        try:
            call()
        except OSError as error:
            pass_on(error)

    gc.disable()
    try:
        with limits():
            try:
                guarded()
            except TimeoutError:
                held.append(None)
        assert 2 == len(held)
        assert held[0]() is None
    finally:
        gc.enable()
