"""Which sessions are sent: OpenTelemetry's samplers, asked once a session, when it begins, with the id of its trace.

All processes of a session decide alike: the same id, the same answer. What the answer was is on disk, as a mark without which a session
that is not sent would look like one that nobody has mirrored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from optree import SessionNode
from optree.exporting import SessionEnd, Traced
from optree_otel.delivered import is_done, is_unsampled, mark_unsampled, writers
from optree_otel.signals.scope import Origin, Parent, sampled_above, trace_id

SAMPLERS: Final = {
    "always_on": (1.0, False),
    "always_off": (0.0, False),
    "traceidratio": (None, False),
    "parentbased_always_on": (1.0, True),
    "parentbased_always_off": (0.0, True),
    "parentbased_traceidratio": (None, True),
}
"""By OpenTelemetry's names: the ratio, None for the one that the argument says, and whether a span above decides first."""
_LOW_BYTES: Final = 8


class Sampler(Struct, frozen=True):
    """Takes a share of all traces, told by the low eight bytes of their ids, as the SDK's samplers do."""

    ratio: float = 1.0
    by_parent: bool = False

    @property
    def takes_all(self) -> bool:
        """True if there is nothing to decide."""
        return self.ratio >= 1 and not self.by_parent

    def takes(self, trace_id: bytes, above: bool | None) -> bool:
        """Tell whether a trace is sent; *above* is whether the span that it goes on from is, None for none."""
        if self.by_parent and above is not None:
            return above
        return int.from_bytes(trace_id[-_LOW_BYTES:]) < round(self.ratio * (1 << 64))


def sampler(find: Callable[[str], tuple[str, Any]], problems: list[str]) -> Sampler:
    """Return what ``sampler`` and ``sampler_arg`` say, each *found* with what says it; without, one that takes all."""
    source, name = find("sampler")
    ratio, by_parent = SAMPLERS.get(str(name).strip().lower(), (1.0, False))
    if name is not None and str(name).strip().lower() not in SAMPLERS:
        problems.append(impossible(source, name, f"choose one of {', '.join(SAMPLERS)}"))
    return Sampler(_share(*find("sampler_arg"), problems) if ratio is None else ratio, by_parent)


def _share(source: str, value: object, problems: list[str]) -> float:
    """Return a share of all sessions; 1 for a value that is not a share, as in the SDK."""
    try:
        share = 1.0 if value is None else float(str(value))
    except ValueError:
        share = -1.0
    if 0 <= share <= 1:
        return share
    problems.append(impossible(source, value, "give a share of all sessions, from 0 to 1"))
    return 1.0


def impossible(source: str, value: object, advice: str) -> str:
    """Say that an option cannot have a value, or that a variable of the environment can not, which is passed over then."""
    return f"{source}={value!r} is not possible{' and passed over' if source.isupper() else ''}; {advice}"


class Sampling:
    """The decisions of one process. A decision that was made, here or by another process of the session, stands."""

    def __init__(self, by: Sampler) -> None:
        self._by = by
        self.left_out = 0
        """How many sessions were left out."""
        self._left_out: set[str] = set()
        """Open sessions that are not sent: of those that are in memory only there is no mark."""

    def takes(self, session: Traced, root: SessionNode | None, origin: Origin | None, parent: Parent) -> bool:
        """Tell whether a session is sent; if not, that is noted on disk, if the session is. *root* where its own process asks."""
        txn, sessions = session.txn, session.directory.sessions
        if root is None or session.resumed:  # it was decided before, perhaps
            if txn in self._left_out or is_unsampled(sessions, txn):
                return False
            if writers(sessions, txn) or is_done(sessions, txn):
                return True
        if self._by.takes_all:
            return True
        trace = origin.trace_id if origin is not None and not origin.linked else trace_id(txn)
        if self._by.takes(trace, sampled_above(root.attributes, parent) if root is not None else None):
            return True
        self._left_out.add(txn)
        self.left_out += 1
        if session.saved:
            mark_unsampled(sessions, txn)
        return False

    def forget(self, txn: str) -> None:
        """Forget a session that is over, or sent after all."""
        self._left_out.discard(txn)


def has_failed(record: SessionEnd) -> bool:
    """Tell whether a session is to be sent whatever was decided."""
    return not record.path and record.status == "failed"
