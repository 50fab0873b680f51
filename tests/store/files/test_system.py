"""The calls of the operating system, where several threads and signals meet in them."""

import errno
import os
from pathlib import Path

import pytest

from optree._store.files import system
from optree._store.files.descriptors import SharedFile
from optree._store.files.shared import SharedBytes
from optree._store.files.system import OS
from optree._syscalls import calls
from tests.store.faults import Faulty


def open_files(directory):
    """Return the files below a directory that this process has open."""
    there = [one.readlink() for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return [path for path in there if path.is_relative_to(directory)]


def test_directories_are_made_while_names_are_synced(tmp_path, monkeypatch):
    """Other threads make directories, and sync names, while a thread looks at those that were made: the sync is done."""
    made, identity = [], system._identity

    class Compared(type(tmp_path)):
        """A path at whose comparison another thread makes a directory."""

        __hash__ = type(tmp_path).__hash__

        def __eq__(self, other):
            OS().make_directory(tmp_path / f"made-{len(made)}")
            return super().__eq__(other)

    def identified(path):
        if not made and path == tmp_path / "first":  # a test before this one may have left others
            made.append(path)
            system._look_at_made()  # another thread is quicker
            OS().make_directory(Compared(tmp_path / "compared"))
        return identity(path)

    monkeypatch.setattr(system, "_made", {})  # without what other tests have made
    OS().make_directory(tmp_path / "first")
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(system, "_identity", identified)
    OS().sync_name(tmp_path / "file")
    assert [tmp_path / "first"] == made


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="tells open files by Linux's /proc")
def test_a_shared_file_that_an_interrupt_leaves_is_closed(tmp_path, monkeypatch):
    """A handler that raises before Python has the descriptor of a file for a lock leaves nothing open."""
    opened = SharedFile._opened

    def interrupted(self, name, flags):
        opened(self, name, flags)
        raise KeyboardInterrupt

    monkeypatch.setattr(SharedFile, "_opened", interrupted)
    with pytest.raises(KeyboardInterrupt):
        SharedFile(tmp_path / "shared", os.O_RDWR | os.O_CREAT)
    assert [] == open_files(tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks there")
def test_a_fork_in_the_middle_of_a_change_goes_on_with_the_file(tmp_path):
    """A handler forks while a shared file is changed: both changes are made, and what the child opened stays its own."""
    shared, children, mine = SharedBytes(tmp_path / "shared"), [], []
    shared.create(b"before")

    def change(data):
        if not children and not mine:  # what a handler does in the middle of a change
            if child := os.fork():
                children.append(child)
            else:
                mine.append(os.open(tmp_path / "mine", os.O_WRONLY | os.O_CREAT))
        return data + (b", then the child" if mine else b", then the parent")

    try:
        shared.change(change)
        if mine:
            os.write(mine[0], b"the child's own")
    finally:
        if mine:
            os._exit(0)
    assert 0 == os.waitpid(children[0], 0)[1]
    assert b"the child's own" == (tmp_path / "mine").read_bytes()
    assert shared.read() in {b"before, then the parent, then the child", b"before, then the child, then the parent"}


DONE = {
    "write_all": lambda fd: OS().write_all(fd, b"new"),
    "rewrite": lambda fd: OS().rewrite(fd, b"new"),
    "truncate": lambda fd: OS().truncate(fd, 0),
    "datasync": lambda fd: OS().datasync(fd),
    "sync": lambda fd: OS().sync(fd),
    "lock": lambda fd: OS().lock(fd),
    "lock_shared": lambda fd: OS().lock_shared(fd),
    "lock_waiting": lambda fd: OS().lock_waiting(fd),
}


@pytest.fixture
def taken(tmp_path):
    """Return a descriptor whose number is another file's by now, and that file, with content."""
    other = tmp_path / "other"
    other.write_bytes(b"other")
    fd, mine = OS().append(tmp_path / "file"), os.open(other, os.O_RDWR)
    os.dup2(mine, fd)
    os.close(mine)
    yield fd, other
    OS().close(fd)  # which forgets it
    os.close(int(fd))


@pytest.mark.parametrize("name", DONE)
def test_nothing_is_done_to_a_file_that_took_the_number(taken, monkeypatch, name):
    """A descriptor's number is another file's: `EBADF`, and that file is neither written to, nor synced, nor locked."""
    (fd, other), synced = taken, []

    def noted(one):  # also of another test's session, whose threads may still be at work
        synced.append(one)
        os.fsync(one)

    monkeypatch.setattr(calls, "fsync", noted)
    monkeypatch.setattr(calls, "fdatasync", noted)
    with pytest.raises(OSError, match="the program closed the file's descriptor") as raised:
        DONE[name](fd)
    locking = os.open(other, os.O_RDWR)
    try:
        assert calls.flock(locking)
        calls.funlock(locking)
    finally:
        os.close(locking)
    assert (errno.EBADF, b"other", False) == (raised.value.errno, other.read_bytes(), fd in synced)


def test_the_lock_of_a_file_that_took_the_number_stays(taken):
    """`unlock` of a descriptor whose number is another file's leaves that file's lock, and the file has not the name."""
    fd, other = taken
    assert calls.flock(int(fd))
    OS().unlock(fd)
    locking = os.open(other, os.O_RDWR)
    try:
        assert [False, False] == [calls.flock(locking), OS().is_at(fd, other)]
    finally:
        os.close(locking)


class Noting(OS):
    """Notes what was waited for: of a file its size, of a directory the names in it."""

    def __init__(self):
        self.synced = {}

    def sync(self, fd):
        """Note which file, by its number: it may have no name yet that is known here."""
        super().sync(fd)
        self.synced[os.fstat(fd).st_ino] = os.fstat(fd).st_size

    def sync_directory(self, path):
        """Note the names."""
        super().sync_directory(path)
        self.synced[path] = sorted(one.name for one in path.iterdir())


def no_links(*_names, **_options):
    """Refuse a second name, as some file systems do."""
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("links", [True, False], ids=["another name", "a copy"])
def test_a_file_that_is_kept_is_on_the_disk(tmp_path, monkeypatch, links):
    """The name of what is kept of a damaged file is on the disk, and where there can be no second name, so are the bytes of its copy."""
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    (tmp_path / "kept").mkdir()
    (tmp_path / "damaged").write_bytes(b"what is left")
    noting = Noting()
    noting.keep(tmp_path / "damaged", tmp_path / "kept" / "damaged")
    number = (tmp_path / "kept" / "damaged").stat().st_ino
    assert b"what is left" == (tmp_path / "kept" / "damaged").read_bytes()
    assert ["damaged"] == noting.synced.get(tmp_path / "kept")
    assert (None if links else len(b"what is left")) == noting.synced.get(number)


@pytest.mark.parametrize("call", ["write", "sync", "rename"])
def test_a_file_that_could_not_be_replaced_leaves_no_temporary_one(tmp_path, call):
    """A file whose new content the disk refuses is as it was, and the room that the refused part had taken is free again."""
    (path := tmp_path / "file").write_bytes(b"before")
    refusing = Faulty(call)
    refusing.arm()
    with pytest.raises(OSError, match="No space left"):
        refusing.replace(path, [b"after"])
    assert [path] == [*tmp_path.iterdir()]
    assert b"before" == path.read_bytes()
