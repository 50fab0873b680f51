import errno
import os
import subprocess
import sys

import pytest

from optree._store.files.unusable import usable
from optree.errors import OptreeError, SetupError


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOENT, "its directory is not there; make it first, or name another place"),
        (errno.ENOTDIR, "a file stands where its directory would be; name another place"),
        (errno.EEXIST, "a file stands where its directory would be; name another place"),
        (errno.EISDIR, "it is a directory; name a file"),
        (errno.EACCES, "you have no permission; change that, or name another place"),
        (errno.EPERM, "you have no permission; change that, or name another place"),
        (errno.EROFS, "nothing can be written there; name another place"),
        (errno.ENAMETOOLONG, "its name is too long; give a shorter one"),
        (errno.ELOOP, "it is a symbolic link; name the file itself"),
        (errno.EIO, "Input/output error; name another place"),
    ],
)
def test_what_to_do_is_said(tmp_path, number, said):
    """A file that cannot be used is named, with why and what to do; temporary names and numbers of errors are not."""
    path = tmp_path / "x.json"
    with pytest.raises(SetupError) as raised, usable(path):
        raise OSError(number, os.strerror(number), str(tmp_path / ".tmp-x.json-1"))
    assert f"{path} cannot be written: {said}" == str(raised.value)


def test_a_fault_without_a_number_says_itself(tmp_path):
    """An error that a library raises in its own words is passed on in them."""
    with pytest.raises(SetupError, match=r"x cannot be written: odd; name another place$"), usable(tmp_path / "x"):
        raise OSError("odd")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_room_is_no_misuse(tmp_path, number):
    """A full disk is no wrong usage."""
    with pytest.raises(OptreeError, match="there is no room; make some, or name another place") as raised, usable(tmp_path / "x"):
        raise OSError(number, os.strerror(number))
    assert not isinstance(raised.value, SetupError)


def test_a_reader_that_has_gone_is_no_fault(tmp_path):
    """A closed pipe stays what it is."""
    with pytest.raises(BrokenPipeError), usable(tmp_path / "x"):
        raise BrokenPipeError


READERS = """
import optree, sys
from pathlib import Path
directory = optree.Directory.of(sys.argv[1])
for what in ("last", "txn-1", "txn"):
    try:
        optree.load(what, directory)
    except optree.OptreeError as error:
        print(what, type(error).__name__, error)
try:
    directory.saved()
    print("saved")
except optree.OptreeError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(os.name == "nt", reason="no directory is closed to its owner there by its mode")
@pytest.mark.parametrize("locked", ["", "txn-1.live", "txn-1.json.zst"])
def test_readers_of_what_may_not_be_read(begin, directory, bound_by_modes, locked):
    """`load`, by name and as the last, and `saved` say which directory or file may not be read, and what to do, in an error of optree."""
    builder, store = begin()
    builder.end_session()
    assert store.close(30.0)
    if locked.endswith(".live"):
        begin(txn="txn-1b")[1].close(0.0)
        directory.snapshot("txn-1").unlink()
        directory.live("txn-1b").rename(directory.live("txn-1"))
    place = directory.sessions / locked
    place.chmod(0)
    command = [sys.executable, "-c", bound_by_modes + READERS, directory.sessions.parent]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    place.chmod(0o700)
    said = f"StoreError {place} cannot be opened: you have no permission; change that, or name another place"
    expected = [f"{what} {said}" for what in ("last", "txn-1", "txn")] + [said if not locked else "saved"]
    assert expected == done.stdout.splitlines(), done.stderr
