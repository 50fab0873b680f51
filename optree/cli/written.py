"""Sessions as files of a format: written whole beside the place where they go, and put there at the end."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from time import time

from msgspec import Struct

from optree.cli.format_loss import lacking
from optree.cli.screen import OutputError
from optree.errors import SetupError
from optree.formats import Format
from optree.store.directory import checked
from optree.store.recovery import Loaded
from optree.store.system import REAL
from optree.store.unusable import usable
from optree.syscalls import calls
from optree.tree import Tree
from optree.tree.redacted import redacted

STDOUT = "-"
_PREFIX = ".optree-export-"
_STALE_SECONDS = 86_400
_SEPARATORS = tuple(filter(None, (os.sep, os.altsep)))


class Writing(Struct, frozen=True):
    """How sessions are to be written."""

    form: Format
    output: str | None
    """A file, a directory, or ``-`` for stdout; None for the directory we are in."""
    force: bool = False
    """Replace files that are there."""
    verbatim: bool = False
    """Leave credentials in."""


class Written(Struct, rename="camel"):
    """What became of one session."""

    txn: str
    files: list[str]
    """Paths, the main one first; none where it went to stdout."""
    lacking: list[str]
    """What the session has and the files do not."""
    redacted: bool
    """True if credentials were replaced."""
    beside: int = 0
    """How many files there are beside the one that went to stdout."""


def export_to_file(loaded: Loaded, writing: Writing, *, several: bool) -> Written:
    """Write a session in a format. Nothing is there before all is.

    Raises `SetupError` if a file is there already and is not to be replaced, or cannot be written, `StoreError` for what no file of the
    format holds, `OptreeError` if there is no room.
    """
    lost = lacking(loaded.tree, writing.form)
    tree, changed = (loaded.tree, False) if writing.verbatim else redacted(loaded.tree)
    if writing.output == STDOUT:
        if several:
            raise SetupError("one session goes to stdout; name a directory for several: --output DIR")
        return Written(loaded.txn, [], lost, changed, _to_stdout(tree, checked(loaded.txn), writing.form))
    with usable(Path(writing.output or ".")):
        target = _target(checked(loaded.txn), writing.form, writing.output, several=several)
    with usable(target), _workplace(target.parent) as folder:
        made = writing.form.write(tree, folder / target.name)
        files = [_place(path, folder, target.parent) for path in made]
        for path in filter(os.path.lexists, files):
            if not path.is_file():
                raise SetupError(f"{path} is there already, and is no file: name another")
            if not writing.force:
                raise SetupError(f"{path} is there already, and stays as it is: --force replaces it")
        for path, file in zip(made, files, strict=True):
            REAL.make_directory(file.parent)
            path.chmod(0o600)
            REAL.rename(path, file)
    return Written(loaded.txn, [str(file) for file in files], lost, changed)


def _place(made: Path, folder: Path, parent: Path) -> Path:
    """Return where a file goes that a format made in *folder*: below *parent*, through no link that lies there already."""
    inner = Path(os.path.normpath(made.relative_to(folder))) if made.is_relative_to(folder) else made
    if inner.is_absolute() or ".." in inner.parts or made.is_symlink():
        raise SetupError(f"the format made {str(made)[:80]!r}, which is elsewhere than it was told: nothing is written")
    for above in list(inner.parents)[:-1]:
        if (parent / above).is_symlink():
            raise SetupError(f"{parent / above} is a link, and nothing is written through it: name another place")
    return parent / inner


@contextmanager
def _workplace(parent: Path) -> Generator[Path, None, None]:
    """Make a directory to write in, and remove it; also those that exports left here that were killed, a day after."""
    REAL.make_directory(parent)
    for path in parent.glob(f"{_PREFIX}*"):
        found = path.lstat()
        if calls.is_own(found) and found.st_mtime < time() - _STALE_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent) as folder:
        yield Path(folder)


def _target(txn: str, form: Format, output: str | None, *, several: bool) -> Path:
    if output is None:
        return Path(f"{txn}{form.suffix}")
    path = Path(output)
    if several and path.is_file():
        raise SetupError(f"{path} is a file: name a directory for several sessions")
    if several or output.endswith(_SEPARATORS) or (path.is_dir() and not path.name.endswith(form.suffix)):
        return path / f"{txn}{form.suffix}"
    return path


def _to_stdout(tree: Tree, txn: str, form: Format) -> int:
    """Write the main file to stdout; returns how many there are beside it."""
    place = Path(tempfile.gettempdir())
    with usable(place), _workplace(place) as folder:
        made = form.write(tree, folder / f"{txn}{form.suffix}")
        try:
            with made[0].open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"stdout cannot be written: {error.strerror or error}") from error
    return len(made) - 1
