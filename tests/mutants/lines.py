"""Says which lines of some modules are executed: `following` is the function for `sys.settrace`.

This text is executed in each process of Python that a test starts, too (`children`), where nothing of the tests can be imported.
"""

import os
import sys
import threading

_calls = os.open, os.write, os.close  # as they are before a test makes them fail


def following(paths, executed):
    """Return a trace function that calls ``executed(path, line)`` for the lines of files, but not while modules are imported."""

    def line(frame, event, _argument):
        if event == "line":
            executed(frame.f_code.co_filename, frame.f_lineno)
        return line

    def called(frame, _event, _argument):
        return line if frame.f_code.co_filename in paths and not _is_import(frame) else None

    return called


def write(paths, to):
    """Write the lines that this process executes from now on to a file: `path:line`, each once, as they are executed."""
    written = set()
    opened, wrote, closed = _calls

    def executed(path, number):
        if (path, number) not in written:
            written.add((path, number))
            fd = opened(to, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            wrote(fd, f"{path}:{number}\n".encode())
            closed(fd)

    tracing = following(frozenset(paths), executed)
    threading.settrace(tracing)
    sys.settrace(tracing)


def _is_import(frame):
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None
