"""Starting the traced program and waiting for it: signals reach it once, and its exit code is ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

NOT_FOUND, NOT_EXECUTABLE = 127, 126

if sys.platform == "win32":
    _FROM_CONSOLE = (signal.SIGINT, signal.SIGBREAK)

    def run_program(command: list[str], environment: Mapping[str, str]) -> int:
        """Run a program to its end, with this process's stdin, stdout and stderr; returns its exit code.

        Ctrl-C and Ctrl-Break go to all programs of a console, so the program gets them itself; there are no other signals.
        Raises `FileNotFoundError`, or another `OSError` if it cannot be started.
        """
        before = [(number, signal.signal(number, lambda _number, _frame: None)) for number in _FROM_CONSOLE]
        try:
            with subprocess.Popen(command, env=environment) as program:  # noqa: S603 - what the user asked for
                code = program.wait()
        finally:
            for number, handler in before:
                signal.signal(number, handler)
        return code - (1 << 32) if code >= 1 << 31 else code  # as Python takes it: the codes of crashes fill 32 bits

    def command_line(command: list[str]) -> str:
        """Return what is typed to run a command."""
        return subprocess.list2cmdline(command)

else:
    import shlex

    FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
    _CHANGED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

    def run_program(command: list[str], environment: Mapping[str, str]) -> int:
        """Run a program to its end, with this process's stdin, stdout and stderr; returns its exit code, 128 + n if signal n ended it.

        A signal to this process goes on to the program, except one from the terminal (Ctrl-C), which the program gets itself.
        Raises `FileNotFoundError`, or another `OSError` if it cannot be started.
        """
        waited = {*FORWARDED, signal.SIGCHLD}
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
        try:
            pid = os.posix_spawnp(command[0], command, environment, setsigmask=mask, setsigdef=_CHANGED_BY_PYTHON)
            status = _wait(pid, waited)
            while signal.sigpending() & waited:
                signal.sigwait(waited)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code

    def command_line(command: list[str]) -> str:
        """Return what is typed to run a command."""
        return shlex.join(command)

    def _wait(pid: int, waited: set[signal.Signals]) -> int:
        while True:
            number, has_program = _next(waited)
            if number != signal.SIGCHLD:
                if not has_program:
                    os.kill(pid, number)
                continue
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended == pid:
                return status

    if sys.platform == "darwin":

        def _next(waited: set[signal.Signals]) -> tuple[int, bool]:
            """Wait for a signal; tells too whether the program got it itself.

            macOS does not say who sent it: what a terminal's keys send is taken to be from there while we are in its foreground.
            """
            number = signal.sigwait(waited)
            return number, number in (signal.SIGINT, signal.SIGQUIT) and _is_in_foreground()

        def _is_in_foreground() -> bool:
            try:
                terminal = os.open(os.ctermid(), os.O_RDONLY | os.O_NOCTTY)
            except OSError:
                return False
            try:
                return os.tcgetpgrp(terminal) == os.getpgrp()
            except OSError:
                return False
            finally:
                os.close(terminal)

    else:

        def _next(waited: set[signal.Signals]) -> tuple[int, bool]:
            """Wait for a signal; tells too whether the program got it itself, as it does what the terminal sends."""
            found = signal.sigwaitinfo(waited)
            return found.si_signo, found.si_code > 0
