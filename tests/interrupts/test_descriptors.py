"""Descriptors of files that are being opened when a signal's handler raises."""

import os
import sys
from pathlib import Path

import pytest

from optree._store.files import lock
from optree._store.files.descriptors import open_regular
from optree._store.files.system import REAL
from tests.interrupts.injecting import NOWHERE, Injection, Stop

OPENING = {
    "OS.append": lambda folder: REAL.append(folder / "file"),
    "OS.create": lambda folder: REAL.create(folder / "new"),
    "OS.open": lambda folder: REAL.open(folder / "file"),
    "OS.spare": lambda _: REAL.spare(),
    "open_regular": lambda folder: open_regular(folder / "file"),
    "lock.take": lambda folder: lock.take(folder / "file"),
    "lock.hold": lambda folder: lock.hold([folder / "file"]),
}


def opened():
    """Return how many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir() or sys.version_info >= (3, 12), reason="descriptors, and where 3.11 runs handlers")
@pytest.mark.parametrize("name", OPENING)
def test_a_file_that_was_being_opened_is_closed(tmp_path, name):
    """Wherever CPython runs a handler that raises while a file is opened, its descriptor is closed."""
    (tmp_path / "file").touch()

    def run(place):
        (tmp_path / "new").unlink(missing_ok=True)
        one, before, found = Injection(place, Stop()), opened(), []
        try:
            one.run(lambda: found.append(OPENING[name](tmp_path)))
        except Stop:
            found.clear()
        for file in found:
            file.close() if hasattr(file, "close") else [os.close(fd) for fd in (file if isinstance(file, list) else [file])]
        return one, opened() - before

    all_places = run(NOWHERE)[0].handlers
    places = [place + 1 for place, possible in enumerate(all_places) if possible]
    assert len(places) > 3
    assert [] == [one.where for one, left in map(run, places) if left]
