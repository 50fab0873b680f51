"""Standard streams that were closed by whoever started the command: Python has None in their place."""

from __future__ import annotations

import io
import os
import sys

from optree.cli.screen import OutputError


class Closed(io.TextIOBase):
    """A stream that nothing can be written to."""

    def write(self, text: str, /) -> int:  # noqa: ARG002 - it goes nowhere
        """Raise `OutputError`."""
        raise OutputError("stdout cannot be written: it is closed")


def stand_in() -> None:
    """Put a stream in the place of each that is closed: writing to stdout is an error, what is said on stderr is lost."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] - it is, after `>&-`
        sys.stdout = Closed()
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - for as long as the process lives
