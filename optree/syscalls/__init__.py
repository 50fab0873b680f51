"""The operating system's calls that differ between Linux, macOS and Windows, as a module of functions that POSIX names.

In come POSIX's arguments, out go its results and `OSError`s; who needs them calls them as `calls`, and keeps what they are about. What
differs otherwise stands where it is used: how `optree run` waits for its program (`optree.cli.program`), and how a process is started
that outlives this one (`optree_otel.handover`).
"""

import sys

if sys.platform == "win32":
    from optree.syscalls import windows as calls
else:
    from optree.syscalls import posix as calls

register_at_fork = calls.register_at_fork

__all__ = ["calls", "register_at_fork"]
