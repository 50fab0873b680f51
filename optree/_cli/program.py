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
    import socket
    from contextlib import suppress
    from typing import NoReturn, Self

    FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
    _CHANGED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
    _ANSWER_SECONDS = 1.0
    _MOST_DESCRIPTORS = 1024

    def run_program(command: list[str], environment: Mapping[str, str]) -> int:
        """Run a program to its end, with this process's stdin, stdout and stderr; returns its exit code, 128 + n if signal n ended it.

        A signal to this process goes on to the program, except one to the whole process group (Ctrl-C, killpg), which the program gets
        itself. Raises `FileNotFoundError`, or another `OSError` if it cannot be started.
        """
        waited = {*FORWARDED, signal.SIGCHLD}
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
        try:
            with _Witness() as witness:
                pid = os.posix_spawnp(command[0], command, environment, setsigmask=mask, setsigdef=_CHANGED_BY_PYTHON)
                status = _wait(pid, waited, witness)
            while signal.sigpending() & waited:
                signal.sigwait(waited)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code

    def command_line(command: list[str]) -> str:
        """Return what is typed to run a command."""
        return shlex.join(command)

    def _wait(pid: int, waited: set[signal.Signals], witness: _Witness) -> int:
        while True:
            number = signal.sigwait(waited)
            if number != signal.SIGCHLD:
                if not witness.got(number):
                    os.kill(pid, number)
                continue
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended == pid:
                return status

    class _Witness:
        """A process in our process group that only reports the signals it got: those were sent to the whole group.

        What a process gets does not say it: `kill` and `killpg` look alike to who gets them.
        """

        def __enter__(self) -> Self:
            theirs, ours = socket.socketpair()
            with theirs:
                self._pid = os.fork()
                if not self._pid:
                    _tell(theirs.fileno())
            self._asked = ours
            ours.settimeout(_ANSWER_SECONDS)
            return self

        def __exit__(self, *_: object) -> None:
            self._asked.close()  # which ends it, unless it is stopped
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

        def got(self, number: int) -> bool:
            """Tell whether it got this signal since it was last asked; no, if it is stopped or was killed.

            One more that came to this process meanwhile is taken too: to the group again, it would count as one there, and sent to this
            process alone so soon behind, the program might get both as one as well.
            """
            result = self._asks(number)
            while result and number in self._pending():
                signal.sigwait({number})
                self._asks(number)
            return result

        def _pending(self) -> set[int]:
            """Return the signals that wait for this process."""
            with suppress(PermissionError):  # the leader of a session may not; it waits all the same
                os.setpgid(0, os.getpgrp())  # changes nothing, but returns when a signal that goes to the group has gone to each of it
            return {*map(int, signal.sigpending())}

        def _asks(self, number: int) -> bool:
            self._pending()
            try:
                self._asked.send(bytes([number]))
                return self._asked.recv(1) == b"y"
            except OSError:
                self._asked.close()
                return False

    def _tell(asked: int) -> NoReturn:
        """Be the witness, in a process of its own: its signals are blocked."""
        try:
            os.closerange(0, asked)
            os.closerange(asked + 1, _MOST_DESCRIPTORS)
            while question := os.read(asked, 1):
                got = question[0] in signal.sigpending()
                if got:
                    signal.sigwait({question[0]})
                os.write(asked, b"y" if got else b"n")
        finally:
            os._exit(0)
