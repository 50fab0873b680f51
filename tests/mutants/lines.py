"""Says which lines of some modules are executed: `following` is the function for `sys.settrace`.

This text is executed in each process of Python that a test starts, too (`children`), where nothing of the tests can be imported.
"""

import os
import sys
import threading

MOST_CALLS = 300
"""Calls of one function that are looked at: those that follow execute no other lines, but for a few."""
_calls = os.open, os.write, os.close  # as they are before a test makes them fail


def following(paths, executed):
    """Return a trace function that calls ``executed(path, line)`` for the lines of files, but not while modules are imported."""
    calls = {}

    def line(frame, event, _argument):
        if event == "line":
            executed(frame.f_code.co_filename, frame.f_lineno)
        return line

    def called(frame, _event, _argument):
        if frame.f_code.co_filename not in paths or calls.get(id(frame.f_code), 0) >= MOST_CALLS:
            return None
        calls[id(frame.f_code)] = calls.get(id(frame.f_code), 0) + 1
        return None if _is_import(frame) else line

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
