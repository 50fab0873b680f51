"""Errors that must not reach the program: counted, and told in `Mirror.health`."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from optree.exporting import pass_on, redact, text


class ExportFaults:
    """How many there were, and the last."""

    def __init__(self) -> None:
        self.count = 0
        self._last = ""

    def note(self, error: Exception) -> None:
        """Count one."""
        self.count += 1
        self._last = str(redact(f"{type(error).__name__}: {text(error)}"))

    @contextmanager
    def caught(self) -> Generator[None]:
        """Catch and count what is raised inside."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - that is what it is for
            pass_on(error)
            self.note(error)

    def problems(self) -> list[str]:
        """Return a text about them; none if there are none."""
        return [f"OpenTelemetry: {self.count} faults of the mirror itself, the last: {self._last}"] if self.count else []
