"""optree: what an LLM agent does, as one live tree that survives a crash.

    import optree

    @optree.session(agent="researcher")
    def research(question): ...

See the README for a first example and docs/ for the rest. Everything public is listed in ``__all__``.
"""

from optree._guard import end_by_interrupts, raise_interrupts, refuse_the_other_optree

end_by_interrupts()
refuse_the_other_optree(__file__)

from optree._builder import Op, SessionTreeBuilder, Turn  # noqa: E402 - the guard must come first
from optree._capture import instrument, instrument_client, uninstrument, uninstrument_client  # noqa: E402
from optree._nodes import AccountingEntry, LogEntry, Message, OperationNode, SessionNode, Totals, TurnNode  # noqa: E402
from optree._store import Damage, Directory, Loaded  # noqa: E402
from optree._tracing import (  # noqa: E402
    Budget,
    Config,
    Session,
    budget,
    child_env,
    configure,
    current,
    current_session,
    flush,
    health,
    llm,
    load,
    session,
    tool,
    turn,
    wrap,
)
from optree._tree import Path, Tree, flatten, format_tree, snapshot_summary, walk_ops, walk_sessions  # noqa: E402
from optree._version import __version__ as __version__  # noqa: E402 - the guard must come first
from optree.errors import (  # noqa: E402
    BudgetExceeded,
    BusyError,
    CycleError,
    DamagedError,
    FormatError,
    NotFoundError,
    OptreeError,
    PathError,
    SetupError,
    StoreError,
)
from optree.redaction import Redaction  # noqa: E402

raise_interrupts()

__all__ = [
    "AccountingEntry",
    "Budget",
    "BudgetExceeded",
    "BusyError",
    "Config",
    "CycleError",
    "Damage",
    "DamagedError",
    "Directory",
    "FormatError",
    "Loaded",
    "LogEntry",
    "Message",
    "NotFoundError",
    "Op",
    "OperationNode",
    "OptreeError",
    "Path",
    "PathError",
    "Redaction",
    "Session",
    "SessionNode",
    "SessionTreeBuilder",
    "SetupError",
    "StoreError",
    "Totals",
    "Tree",
    "Turn",
    "TurnNode",
    "budget",
    "child_env",
    "configure",
    "current",
    "current_session",
    "flatten",
    "flush",
    "format_tree",
    "health",
    "instrument",
    "instrument_client",
    "llm",
    "load",
    "session",
    "snapshot_summary",
    "tool",
    "turn",
    "uninstrument",
    "uninstrument_client",
    "walk_ops",
    "walk_sessions",
    "wrap",
]
