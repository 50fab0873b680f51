"""Sessions directories of a test's own, and sessions in them."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from optree._builder import SessionTreeBuilder
from optree._store import Directory, SessionStore, journal, open_session, resume_session
from optree._store.saving import StoreOptions

Opened = tuple[SessionTreeBuilder, SessionStore]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a journal try a new segment at once after a failure."""
    monkeypatch.setattr(journal, "RETRY_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def _slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a flush wait for a busy disk, where a test does not say how long."""
    monkeypatch.setattr(SessionStore.flush, "__defaults__", ("write", 60.0))


@pytest.fixture
def no_input() -> Iterator[None]:
    """Close the standard input, as daemons do: the file that is opened next has its descriptor, 0. Nothing may have it at the end."""
    kept = os.dup(0)
    os.close(0)
    try:
        yield
        until = monotonic() + 10.0
        while (found := _first()) and monotonic() < until:  # a thread may have a file open for a moment
            sleep(0.01)
        assert None is found
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def _first() -> os.stat_result | None:
    with suppress(OSError):
        return os.fstat(0)
    return None


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    """Return a sessions directory that is not there yet."""
    return Directory.of(tmp_path / "base")


@pytest.fixture
def opened() -> Iterator[list[SessionStore]]:
    """Close the stores that are put here at the end of the test."""
    stores: list[SessionStore] = []
    yield stores
    for store in stores:
        store.close(0.0)


@pytest.fixture
def begin(directory: Directory, opened: list[SessionStore]) -> Callable[..., Opened]:
    """Return a function that begins a root session on disk, named ``txn-1``, ``txn-2`` and so on."""

    def one(agent: str = "agent", *, txn: str = "", attributes: Any = None, **options: Any) -> Opened:
        name = txn or f"txn-{len(opened) + 1}"
        options = {"directory": directory, **options}
        builder, store = open_session(agent, StoreOptions(**options), txn=name, attributes=attributes)
        opened.append(store)
        return builder, store

    return one


@pytest.fixture
def again(opened: list[SessionStore]) -> Callable[..., Opened]:
    """Return a function that resumes a session."""

    def one(txn: str, directory: Directory, **options: Any) -> Opened:
        builder, store, _ = resume_session(txn, StoreOptions(directory, **options))
        opened.append(store)
        return builder, store

    return one


@pytest.fixture
def killed(directory: Directory, tmp_path: Path) -> Callable[..., Directory]:
    """Return a function that copies what is on disk at this moment, as a process that is killed now would leave it.

    All but the LOCK file: when a process was last known to live is no part of the trees that are compared.
    """
    images = iter(range(100))

    def image(of: Directory = directory) -> Directory:
        base = of.sessions.parent
        return Directory.of(shutil.copytree(base, tmp_path / f"killed-{next(images)}", ignore=shutil.ignore_patterns(".tmp-*", "LOCK")))

    return image
