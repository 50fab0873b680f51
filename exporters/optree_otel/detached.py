"""A Python process that outlives the one that starts it: not its child, tied to no terminal, without its descriptors."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

IS_POSSIBLE: Final = sys.platform == "win32" or hasattr(os, "posix_spawn")
"""Whether such a process can be started on this system."""


def _command(code: str) -> list[str]:
    return [sys.executable, "-S", "-P", *(["-B"] if sys.dont_write_bytecode else []), "-c", code]


if sys.platform == "win32":
    import subprocess
    import threading

    _FIRST: Final = """
import os, sys, threading
_end = threading.Thread(target=os.read, args=(0, 1), daemon=True)
_end.start()
_end.join({seconds})
"""

    def start(code: str, environ: Mapping[str, str], seconds: float) -> int:
        """Start a process that executes *code* once this one has ended, or after some seconds. Raises `OSError`.

        Returns a descriptor that must stay open: by its closing the process knows.
        """
        read_end, write_end = os.pipe()
        apart = subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP
        null = subprocess.DEVNULL
        options: dict[str, Any] = {"stdin": read_end, "stdout": null, "stderr": null, "env": environ}
        command = _command(_FIRST.format(seconds=seconds) + code)
        try:
            try:
                process = subprocess.Popen(command, creationflags=apart | subprocess.CREATE_BREAKAWAY_FROM_JOB, **options)  # noqa: S603 - itself
            except PermissionError:  # where all that is started here ends with what started it
                process = subprocess.Popen(command, creationflags=apart, **options)  # noqa: S603 - itself
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        process.returncode = 0  # it is not waited for, and that is no fault to warn of
        return write_end

    def begin(longest: float) -> None:
        """End this process after *longest* seconds, whatever it is at; the first that *code* does."""
        timer = threading.Timer(longest, os._exit, [0])
        timer.daemon = True
        timer.start()

else:
    _FIRST: Final = """
import os, select, sys
if os.fork():
    os._exit(0)
select.select([3], [], [], {seconds})
os.close(3)
"""
    _END: Final = 3
    """The descriptor that tells the program's end: the first after stdin, stdout and stderr."""

    def start(code: str, environ: Mapping[str, str], seconds: float) -> int:
        """Start a process that executes *code* once this one has ended, or after some seconds. Raises `OSError`.

        Returns a descriptor that must stay open: by its closing the process knows.
        """
        command = _command(_FIRST.format(seconds=seconds) + code)
        read_end, write_end = os.pipe()
        closed = [(os.POSIX_SPAWN_CLOSE, number) for number in _inheritable() if number != _END]
        null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(_END)]
        options: dict[str, Any] = {
            "file_actions": [(os.POSIX_SPAWN_DUP2, read_end, _END), *null, *closed],
            "setsigmask": (),
            "setsigdef": (signal.SIGINT, signal.SIGTERM, signal.SIGALRM),
        }
        try:
            os.posix_spawn(sys.executable, command, environ, setsid=True, **options)
        except NotImplementedError:  # not by every C library: then it leaves this session as soon as it runs
            os.posix_spawn(sys.executable, command, environ, setpgroup=0, **options)
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        return write_end

    def begin(longest: float) -> None:
        """Leave the other process's session, and end after *longest* seconds, whatever it is at; the first that *code* does."""
        os.setsid()
        signal.alarm(int(longest))

    def _inheritable() -> list[int]:
        """Return the descriptors that a started process would get, beyond the first three."""
        try:
            numbers = [int(path.name) for path in Path("/dev/fd").iterdir()]
        except OSError:
            return []
        result: list[int] = []
        for number in numbers:
            with suppress(OSError):  # that of the listing itself is closed by now
                if number > 2 and os.get_inheritable(number):  # noqa: PLR2004 - stdin, stdout, stderr
                    result.append(number)
        return result
