"""Starting the traced program and waiting for it: signals reach it once, and its exit code is ours."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
NOT_FOUND, NOT_EXECUTABLE = 127, 126
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
        while signal.sigtimedwait(waited, 0) is not None:
            pass
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _wait(pid: int, waited: set[signal.Signals]) -> int:
    while True:
        found = signal.sigwaitinfo(waited)
        if found.si_signo != signal.SIGCHLD:
            from_kernel = found.si_code > 0
            if not from_kernel:
                os.kill(pid, found.si_signo)
            continue
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == pid:
            return status
