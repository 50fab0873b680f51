"""A plugin for pytest: the fixture `optree_session`, and in the report of a test that failed with it the trees of what was recorded.

pytest loads it wherever optree is installed; `-p no:optree` leaves it out.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from optree.capture.program import PROGRAM
from optree.testing import Recording, capture
from optree.tree.text import format_tree

__all__ = ["optree_session", "pytest_runtest_makereport"]

_RECORDING = pytest.StashKey[Recording]()


@pytest.fixture
def optree_session(request: pytest.FixtureRequest) -> Generator[Recording, None, None]:
    """Record what the test does in memory, as `optree.testing.capture` does."""
    with capture() as recording:
        request.node.stash[_RECORDING] = recording
        yield recording


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
