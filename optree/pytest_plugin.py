"""A plugin for pytest: the fixture `optree_session`, and in the report of a test that failed with it the trees of what was recorded.

pytest loads it wherever optree is installed; `-p no:optree` leaves it out.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

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
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Add the trees to the report of a test that failed."""
    report = yield
    recording = item.stash.get(_RECORDING, None)
    if report.failed and recording is not None:
        trees = [(f"optree session {session.txn}", format_tree(session)) for session in recording.sessions]
        report.sections += trees or [("optree", "no session was recorded")]
    return report
