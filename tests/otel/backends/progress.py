"""Runs a long command and shows how far it is."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

SHOWN = 20
"""Lines of a failed command that are shown."""


class BuildError(Exception):
    """A command failed; the text says which, and ends with what it said."""


def say(text: str, end: str = "\n") -> None:
    """Show a line at once."""
    sys.stdout.write(f"{text}{end}")
    sys.stdout.flush()


def follow(command: list[str], cwd: Path, env: dict[str, str], doing: str, total: int = 0) -> str:
    """Run a command that says a line on stderr for each step, and return its stdout.

    Args:
        command: The command.
        cwd: Where it runs.
        env: Its environment.
        doing: What it does, for the line that shows how far it is.
        total: How many steps there are at most, 0 if that is not known.

    Raises:
        BuildError: It ended with a status other than 0.

    """
    said: deque[str] = deque(maxlen=SHOWN)
    progress = _Progress(doing, total)
    with (
        tempfile.TemporaryFile("w+") as out,
        subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True) as running,
    ):
        assert running.stderr is not None
        try:
            for line in running.stderr:
                said.append(line)
                progress.step()
        except BaseException:
            running.kill()
            raise
        status = running.wait()
        progress.end()
        out.seek(0)
        answer = out.read()
    if status:
        raise BuildError(f"{' '.join(command)} failed with status {status}:\n{''.join(said) or answer}".rstrip())
    return answer


class _Progress:
    """One line that is written over on a terminal; a line now and then elsewhere."""

    def __init__(self, doing: str, total: int):
        self.doing = doing
        self.total = total
        self.steps = 0
        self.started = self.shown = time.monotonic()
        self.terminal = sys.stdout.isatty()

    def step(self) -> None:
        """Count a step."""
        self.steps += 1
        if time.monotonic() - self.shown >= (0.2 if self.terminal else 20):
            self.show()

    def end(self) -> None:
        """Show the last state."""
        self.show()
        if self.terminal:
            say("")

    def show(self) -> None:
        """Write the line."""
        self.shown = time.monotonic()
        share = f"{min(self.steps, self.total)} of {self.total}" if self.total else str(self.steps)
        line = f"   {self.doing}: {share} ({self.shown - self.started:.0f} s)"
        if self.terminal:
            say(f"\r{line:<60}", end="")
        else:
            say(line)
