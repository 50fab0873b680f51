"""The operating system's calls that differ between Linux, macOS and Windows, as a module of functions that POSIX names.

They take POSIX's arguments, and return its results or raise its `OSError`s; other modules call them as `calls`. Other differences between
systems stand where they matter: how `optree run` waits for its program (`optree._cli.program`), and how a process is started
that outlives this one (`optree_otel.handover`).
"""

import sys

if sys.platform == "win32":
    from optree._syscalls import windows as calls
else:
    from optree._syscalls import posix as calls

register_at_fork = calls.register_at_fork

__all__ = ["calls", "register_at_fork"]
