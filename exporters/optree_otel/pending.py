"""What earlier runs could not deliver: sessions on disk of which a collector does not have all spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from optree import Directory, Loaded, NotFoundError, OptreeError, load
from optree.store.lock import is_running
from optree_otel.delivered import forget, is_done, mark_done, pending
from optree_otel.outlet import Outlet
from optree_otel.view import Saved

if TYPE_CHECKING:
    from optree_otel.mirror import Mirror


class Sent(Struct):
    """What was put on its way of one session."""

    txn: str
    spans: int
    said: str = ""
    """Why it was left out."""


def sweep(mirror: Mirror, directory: Directory, *, also_open: bool = False) -> list[Sent]:
    """Put on their way what is missing of all sessions that are pending and that no process is recording.

    Nodes that a crash left open are sent only with *also_open*: then they count as interrupted for good, and a session that is resumed
    later goes on in a round of its own. Never raises.
    """
    found: list[Sent] = []
    for txn in pending(directory.sessions):
        if txn in mirror.outlets or is_running(directory.live(txn)):
            continue
        try:
            loaded = load(txn, directory)
        except NotFoundError:
            forget(directory.sessions, txn)
        except (OptreeError, OSError) as error:
            found.append(Sent(txn, 0, str(error)))
        else:
            found.append(send(mirror, loaded, directory, also_open=also_open))
    return found


def send(mirror: Mirror, loaded: Loaded, directory: Directory, *, also_open: bool = False, again: bool = False) -> Sent:
    """Put on its way what is missing of a loaded session; with *again* everything, under the same ids."""
    if again:
        forget(directory.sessions, loaded.txn)
    elif is_done(directory.sessions, loaded.txn):
        return Sent(loaded.txn, 0, "is delivered already; send it once more with --again")
    outlet = Resent(
        Saved(loaded.tree),
        directory.sessions,
        "resent",
        resources=mirror.resources,
        profile=mirror.profile,
        content=mirror.settings.content in ("span_only", "span_and_event"),
        openinference=mirror.settings.openinference,
        trace_per_turn=mirror.settings.trace_per_turn,
    )
    outlet.ended = loaded.session.ended_at is not None
    keys = outlet.missing(also_open=also_open)
    mirror.send(outlet, keys)
    if not keys and outlet.ended:
        outlet.close()
    return Sent(loaded.txn, len(keys))


class Resent(Outlet):
    """A session that was loaded: what is on disk is all there is of it."""

    def close(self) -> None:
        """Note that the session is delivered whole."""
        mark_done(self.file.path.parent.parent, self.txn)
