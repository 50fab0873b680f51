"""A plugin for pytest: the fixtures `optree_session` and `optree_replay`, `--optree-update`, and trees in the reports of tests that failed.

pytest loads it wherever optree is installed; `-p no:optree` leaves it out.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import crc32

import pytest

from optree._capture.calls.program import PROGRAM
from optree._tree.text import format_tree
from optree.errors import OptreeError
from optree.testing import UPDATING, Recording, capture, replay

__all__ = [
    "optree_replay",
    "optree_session",
    "pytest_addoption",
    "pytest_configure",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
    "pytest_unconfigure",
]

_RECORDING = pytest.StashKey[Recording]()
_REPLAYING = pytest.StashKey[ExitStack]()
_MARKER = "optree_replay(file=None, *, at=None, tools='recorded'): what the fixture optree_replay replays, as optree.testing.replay does"
_STRANGE = re.compile(r"[^\w.\[\]-]")
_MOST_NAME = 200
"""Bytes of a recording's name; of a longer one the end is its checksum."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    said = "write the recordings of tests that replay one which is not there, or differs: models are asked and tools run"
    parser.getgroup("optree").addoption("--optree-update", action="store_true", help=said)


def pytest_configure(config: pytest.Config) -> None:
    """Take the option, and name the marker."""
    UPDATING.on = bool(config.getoption("--optree-update"))
    config.addinivalue_line("markers", _MARKER)


def pytest_unconfigure() -> None:
    """Write no more recordings."""
    UPDATING.on = False


@pytest.fixture
def optree_session(request: pytest.FixtureRequest) -> Generator[Recording, None, None]:
    """Record what the test does in memory, as `optree.testing.capture` does."""
    with capture() as recording:
        _test(request).stash[_RECORDING] = recording
        yield recording


@pytest.fixture
def optree_replay(request: pytest.FixtureRequest, optree_session: Recording) -> Generator[Recording, None, None]:
    """Give the test what models and tools gave in its recording, and record it as `optree_session` does.

    The recording is ``recordings/<module>/<test>.json`` beside the test, ``<class>.<test>.json`` in a class, or what the marker
    `optree_replay` says.
    """
    test = _test(request)
    marker = test.get_closest_marker("optree_replay")
    told: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    file = _file(request, *(() if marker is None else marker.args))
    test.stash[_REPLAYING] = stack = ExitStack()
    try:
        stack.enter_context(replay(file, **told))
    except OptreeError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None  # how the plugin came to it helps nobody
    yield optree_session
    stack.__exit__(GeneratorExit, GeneratorExit(), None)  # where the test was not begun


def _test(request: Any) -> pytest.Item:
    """Return the test of a fixture's request, whose type pytest 9.1 leaves open."""
    return request.node  # type: ignore[no-any-return]


def _file(request: pytest.FixtureRequest, file: str | Path | None = None) -> Path:
    return request.path.parent / (Path("recordings", request.path.stem, f"{_name(request)}.json") if file is None else file)


def _name(request: pytest.FixtureRequest) -> str:
    """Return what a test's recording is called: its name and those of its classes, characters that no file has as URLs write them."""
    classes = [node.name for node in _test(request).listchain() if isinstance(node, pytest.Class)]
    name = _STRANGE.sub(lambda found: quote(found[0], safe=""), ".".join([*classes, _test(request).name]))
    data = name.encode()
    if len(data) <= _MOST_NAME:
        return name
    return f"{data[: _MOST_NAME - 9].decode(errors='ignore')}-{crc32(data):08x}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """End the replay with the test: what differs is the test's failure."""
    stack = item.stash.get(_REPLAYING, None)
    if stack is None:
        return (yield)
    with stack.pop_all():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Add the trees to the report of a test that failed. A session of calls outside of all sessions ends with the test, as that ended."""
    report = yield
    recording = item.stash.get(_RECORDING, None)
    if recording is not None and (call.when == "call" or report.failed):
        PROGRAM.end(call.excinfo.value if report.failed and call.excinfo is not None else None, recording.sessions)
    if report.failed and recording is not None:
        trees = [(f"optree session {session.txn}", format_tree(session)) for session in recording.sessions]
        report.sections += trees or [("optree", "no session was recorded")]
    return report
