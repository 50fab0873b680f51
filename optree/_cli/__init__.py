"""The command line: a command a file; all read what is on disk, except `run` and `load`, which start a program.

In come arguments and the sessions directory, out go lines, tables and files; what a command leaves on disk, the store or a format writes.
Exit codes: 0 it is done; 1 the traced program or the question failed, or nothing was found; 2 wrong usage; 3 damaged or unreadable; 130
Ctrl-C.
"""

from __future__ import annotations

import sys

from optree._guard import refuse_what_is_left

_INTERRUPTED = 130


def main() -> None:
    """Run the command `optree`; never returns."""
    refuse_what_is_left(sys.modules["optree"])
    try:
        from optree._cli.app import app
        from optree._cli.screen import stand_in

        stand_in()
        app(prog_name="optree")
    except KeyboardInterrupt:  # while a command starts; a traceback of imports is of no use
        sys.exit(_INTERRUPTED)
