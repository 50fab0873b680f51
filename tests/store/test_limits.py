"""A time limit that hits the store's own calls reaches the program, though its exception is an `OSError`, as theirs are."""

import signal
from pathlib import Path

import pytest

from optree.store.directory import is_directory, is_there, journals
from optree.store.saving import sweep
from optree.store.settle import leave
from optree.store.system import OS


def hit(*_, **__):
    """Be interrupted by a signal whose handler raises."""
    signal.raise_signal(signal.SIGINT)


class HitPath(type(Path())):
    """A path of which nothing can be asked without a signal."""

    stat = lstat = iterdir = __fspath__ = hit


class HitOS(OS):
    """A system that takes a signal while a directory is removed."""

    remove_directory = hit


@pytest.mark.parametrize(
    "call",
    [
        lambda path: leave(path, [], HitOS()),
        lambda path: sweep(HitPath(path), OS()),
        lambda path: OS().make_directory(HitPath(path)),
        lambda path: is_there(HitPath(path)),
        lambda path: is_directory(HitPath(path)),
        lambda path: journals(HitPath(path)),
    ],
    ids=["leave", "sweep", "make_directory", "is_there", "is_directory", "journals"],
)
def test_a_time_limit_reaches_the_program(call, tmp_path):
    """What keeps the system's errors for itself passes on a handler's."""

    def limit(*_):
        raise TimeoutError("too long")

    before = signal.signal(signal.SIGINT, limit)
    try:
        with pytest.raises(TimeoutError, match="too long"):
            call(tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
