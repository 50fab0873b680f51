"""The errors that optree raises, as a family.

    OptreeError
    ├── SetupError            misuse at set-up time: a wrong option, a call in the wrong place
    │   └── CycleError        an agent that calls itself, where ``cycles="block"`` was asked for
    ├── NotFoundError         no session of that name; the message lists those that exist
    ├── StoreError            a file that cannot be used
    │   ├── FormatError       not one of our files, or of a version that this one cannot read
    │   ├── DamagedError      ours, but so damaged that nothing of it can be read
    │   └── BusyError         another process is writing this session
    ├── PathError             text that is no path
    └── BudgetExceeded        a call of a model that would pass a limit of `optree.budget`

Only set-up, loading, the command line, a budget that the program opened, and a replay in place of a tool raise them; recording never does.
"""

from __future__ import annotations


class OptreeError(Exception):
    """Base of all errors of optree; its text says what to do next."""


class SetupError(OptreeError):
    """optree is used in a way that cannot work; raised before anything is recorded."""


class CycleError(SetupError):
    """An agent was called by itself, directly or through others, and `cycles="block"` is set."""


class NotFoundError(OptreeError):
    """No saved session has the given txn."""


class StoreError(OptreeError):
    """A file of the store cannot be used."""


class FormatError(StoreError):
    """The file is not in a format, or not of a version, that this optree reads."""


class DamagedError(StoreError):
    """The file is one of ours, but nothing in it can be read."""


class BusyError(StoreError):
    """Another writer has the session or the file: another process, or this one in a call that a signal's handler interrupts."""


class PathError(OptreeError, ValueError):
    """The text is not a path such as ``1.2`` or ``1.2.3.1``."""


class BudgetExceeded(OptreeError):  # noqa: N818 - it is no error of the program's
    """A call of a model would pass a limit of `optree.budget`; raised before it is made, where the program makes it."""

    def __init__(self, which: str, limit: float, used: float, reserved: float, wanted: float = 0) -> None:
        super().__init__(which, limit, used, reserved, wanted)
        self.which: str = which
        """The limit's name: ``usd``, ``tokens``, ``calls`` or ``seconds``."""
        self.limit: float = limit
        self.used: float = used
        """What the calls that are over took."""
        self.reserved: float = reserved
        """What is held for calls that are under way."""
        self.wanted: float = wanted
        """What the call that was refused may take."""

    def __str__(self) -> str:
        held = f", {self.reserved:g} reserved by calls under way" if self.reserved else ""
        wanted = f", and this call may take {self.wanted:g}" if self.wanted else ""
        return f"budget of {self.limit:g} {self.which}: {self.used:g} used{held}{wanted}; end with what is there, or give more"
