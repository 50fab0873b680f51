"""What goes wrong with a session's files while it lives."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from optree.interrupts import pass_on
from optree.store.directory import Directory, refused

LATE = "what came after its end"
"""The step that writes what is recorded into a session that was closed."""


class NotedProblems:
    """Keeps the problems of one session."""

    report: Callable[[str], object] = staticmethod(str)
    """Called with each problem as it occurs."""

    def __init__(self, txn: str, directory: Directory) -> None:
        self.txn, self._directory = txn, directory
        self.problems: deque[str] = deque(maxlen=32)
        """The last of them, each once."""
        self.current_problems: dict[str, str] = {}
        """Those that last, by the step that failed."""
        self.failed: dict[str, tuple[int, Path]] = {}
        """Of each step that failed, the last error's number and the place."""

    def _problem(self, what: str, error: BaseException) -> bool:
        """Note a problem, and go on; an exception out of a signal's handler is raised again."""
        pass_on(error)
        place = self._directory.billing if what == "ledger" else self._directory.sessions
        self.failed[what] = (getattr(error, "errno", None) or 0, place)
        message = f"{what} of session {self.txn}: {refused(error, place)}"
        self.current_problems[what] = message
        if message not in self.problems:
            self.problems.append(message)
            self.report(message)
        return False

    def _forget_problems(self) -> None:
        """In a forked child: they are the parent's."""
        for kept in (self.problems, self.current_problems, self.failed):
            kept.clear()
