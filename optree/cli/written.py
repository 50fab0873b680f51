"""Sessions as files of a format: written whole beside the place where they go, and put there at the end."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from msgspec import Struct

from optree.cli.holding import lacking
from optree.cli.screen import OutputError
from optree.errors import SetupError
from optree.formats import Format
from optree.store.recovery import Loaded

STDOUT = "-"


class Written(Struct, rename="camel"):
    """What became of one session."""

    txn: str
    files: list[str]
    """Paths, the main one first; none where it went to stdout."""
    lacking: list[str]
    """What the session has and the files do not."""


def export_to_file(loaded: Loaded, form: Format, output: str | None, *, several: bool, force: bool) -> Written:
    """Write a session in a format: to a file, into a directory, or with ``-`` to stdout; without *output* into the directory we are in.

    Nothing is there before all is. Raises `SetupError` if a file is there already and *force* is not set.
    """
    lost = lacking(loaded.tree, form.cannot_hold)
    if output == STDOUT:
        if several:
            raise SetupError("one session goes to stdout; name a directory for several: --output DIR")
        _to_stdout(loaded, form)
        return Written(loaded.txn, [], lost)
    target = _target(loaded.txn, form, output, several=several)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".optree-export-", dir=target.parent) as folder:
        made = form.write(loaded.tree, Path(folder) / target.name)
        files = [target.parent / path.relative_to(folder) for path in made]
        there = [path for path in files if path.exists()]
        if there and not force:
            raise SetupError(f"{there[0]} is there already, and stays as it is: --force replaces it")
        for path, file in zip(made, files, strict=True):
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.chmod(0o600)
            path.replace(file)
    return Written(loaded.txn, [str(file) for file in files], lost)


def _target(txn: str, form: Format, output: str | None, *, several: bool) -> Path:
    if output is None:
        return Path(f"{txn}{form.suffix}")
    path = Path(output)
    if several and path.is_file():
        raise SetupError(f"{path} is a file: name a directory for several sessions")
    if several or output.endswith("/") or (path.is_dir() and not path.name.endswith(form.suffix)):
        return path / f"{txn}{form.suffix}"
    return path


def _to_stdout(loaded: Loaded, form: Format) -> None:
    with tempfile.TemporaryDirectory(prefix="optree-export-") as folder:
        made = form.write(loaded.tree, Path(folder) / f"{loaded.txn}{form.suffix}")
        if len(made) > 1:
            raise SetupError(f"{form.name} makes {len(made)} files of this session: name a directory for them: --output DIR")
        try:
            with made[0].open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"stdout cannot be written: {error.strerror or error}") from error
