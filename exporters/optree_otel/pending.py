"""What earlier runs could not deliver: sessions on disk of which a collector does not have all spans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from optree import Directory, Loaded, NotFoundError, OptreeError, load
from optree_otel.delivered import (
    BACKGROUND_BYTES,
    Addressee,
    DeliveredFile,
    addressed,
    delivered,
    forget,
    is_done,
    is_sending,
    kept,
    mark_open,
    pending,
)
from optree_otel.session_exporter import Key, SavedView, SessionExporter, last_round, lasting, nodes

if TYPE_CHECKING:
    from optree_otel.live import Live
    from optree_otel.live_trace import LiveItem
    from optree_otel.settings import Settings
    from optree_otel.signals.limits import Profile
    from optree_otel.signals.resource import Resources

WRITER = "resent"


class SpanPipeline(Protocol):
    """What of the mirror sends saved sessions."""

    settings: Settings
    profile: Profile
    resources: Resources
    addressee: Addressee
    exporters: dict[str, SessionExporter]
    """What is on its way, by txn."""
    others: dict[str, Addressee | None]
    """Sessions that wait for a program with other settings; None of those that note no addressee."""
    large: int
    """How many are too large to be sent in the background."""
    live: Live | None

    def send(self, exporter: SessionExporter, keys: Sequence[Key], beside: Sequence[LiveItem] = ()) -> None:
        """Put nodes on their way; *beside*, on the way to the live trace."""
        ...

    def settle(self, exporter: SessionExporter) -> None:
        """Let go of a session of which nothing is on its way any more."""
        ...


class Sent(Struct):
    """What was put on its way of one session."""

    txn: str
    spans: int
    reason: str = ""
    """Why it was left out."""
    missing: bool = False
    """True if it was left out though the collector does not have it, or not yet."""


def sweep(
    mirror: SpanPipeline,
    directory: Directory,
    *,
    also_open: bool = False,
    go_on: Callable[[], bool] = lambda: True,
    most: int | None = None,
) -> list[Sent]:
    """Put on their way what is missing of all sessions that are pending and that no process is recording or sending.

    Those that are for another addressee than the mirror's, or that nobody noted one for, are left, and counted in `others`.
    Nodes that a crash left open are sent only with *also_open*: then they count as interrupted for good, and a session that is resumed
    later goes on in a round of its own. *go_on* is asked before each session; the sweep ends where it says no. Sessions of over *most*
    bytes on disk are passed over, and counted in `large`. Never raises.
    """
    result: list[Sent] = []
    for txn in pending(directory.sessions, also_open=also_open):
        if txn in mirror.exporters or _is_busy(txn, directory):
            continue
        if not _is_for(mirror, noted := addressed(directory.sessions, txn)):
            mirror.others[txn] = noted
            continue
        if most is not None and directory.size(txn) > most:
            mirror.large += 1
            continue
        if not go_on():
            break
        try:
            loaded = load(txn, directory)
        except NotFoundError:
            forget(directory.sessions, txn)
        except (OptreeError, OSError) as error:
            result.append(Sent(txn, 0, str(error)))
        else:
            result.append(send(mirror, loaded, directory, also_open=also_open))
    return result


def outlived(mirror: SpanPipeline, directory: Directory) -> list[str]:
    """Return the pending sessions whose process has gone, and in which others are at work still."""
    sessions = directory.sessions
    return [
        txn
        for txn in pending(sessions)
        if txn not in mirror.exporters
        and is_sending(sessions, txn)
        and not _is_recording(txn, directory)
        and _is_for(mirror, addressed(sessions, txn))
    ]


def gather(mirror: SpanPipeline, shared: dict[str, Directory]) -> dict[str, Directory]:
    """Put on their way what other processes left of sessions of this one that have ended, those processes having gone. Never raises.

    Returns the sessions that are not to be sent yet, since a process is at work in them or has left something open. Those that are large
    or cannot be read are for a later run.
    """
    later: dict[str, Directory] = {}
    for txn, directory in shared.items():
        if is_sending(directory.sessions, txn):
            later[txn] = directory
        elif txn not in mirror.exporters and directory.size(txn) <= BACKGROUND_BYTES:
            with suppress(OptreeError, OSError):
                loaded = load(txn, directory)
                if loaded.session.ended_at is None or loaded.open_nodes():
                    later[txn] = directory
                else:
                    send(mirror, loaded, directory, own=True)
    return later


def send(
    mirror: SpanPipeline, loaded: Loaded, directory: Directory, *, also_open: bool = False, again: bool = False, own: bool = False
) -> Sent:
    """Put on its way what is missing of a loaded session; with *again* everything, in one round, under the same ids.

    With *own*, this process is the one that has recorded it.
    """
    sessions, txn = directory.sessions, loaded.txn
    if again and not is_sending(sessions, txn):
        notes = lasting(delivered(sessions, txn) | kept(sessions, txn))
        forget(sessions, txn)
        DeliveredFile(sessions, txn, WRITER).add(notes)
    elif is_done(sessions, txn):
        return _done(addressed(sessions, txn), mirror.addressee, txn)
    exporter = Resent(
        SavedView(loaded.tree),
        sessions,
        WRITER,
        resources=mirror.resources,
        profile=mirror.profile,
        addressee=mirror.addressee,
        content=mirror.settings.content in ("span_only", "span_and_event"),
        openinference=mirror.settings.openinference,
        trace_per_turn=mirror.settings.trace_per_turn,
    )
    if not exporter.file.held or is_sending(sessions, txn, exporter.file) or (not own and _is_recording(txn, directory)):
        exporter.file.release()
        return Sent(txn, 0, "another process is sending it", missing=True)
    exporter.ended = also_open or loaded.session.ended_at is not None
    keys = exporter.missing(also_open=also_open)
    mirror.send(exporter, keys, mirror.live.missing(exporter, also_open=also_open) if mirror.live is not None else ())
    if not keys:
        mirror.settle(exporter)
    return Sent(txn, len(keys))


def _done(to: Addressee | None, now: Addressee, txn: str) -> Sent:
    """Return the outcome for a session that is delivered: *now* has it, unless it is known to have gone to another address."""
    if to is None or to.endpoint == now.endpoint:
        return Sent(txn, 0, "is delivered already; send it once more with --again")
    return Sent(txn, 0, f"is delivered, to {to.endpoint}; send it here as well with --again", missing=True)


class Resent(SessionExporter):
    """A session that was loaded: all of it is on disk."""

    @property
    def finished(self) -> bool:
        """True if nothing of it is on its way any more."""
        return self.settled

    def close(self) -> None:
        """Note that the session is delivered whole, or as far as it has ended."""
        if self.ended:
            self.mark_done()
        else:
            mark_open(self._sessions, self.txn)


def _is_for(mirror: SpanPipeline, noted: Addressee | None) -> bool:
    return noted is not None and noted.digest == mirror.addressee.digest


def _is_recording(txn: str, directory: Directory) -> bool:
    return directory.is_running(txn)


def _is_busy(txn: str, directory: Directory) -> bool:
    return _is_recording(txn, directory) or is_sending(directory.sessions, txn)


def waiting(directory: Directory, txn: str) -> int:
    """Return how many nodes of a pending session have ended and are not delivered; raises what `optree.load` raises."""
    noted = delivered(directory.sessions, txn)
    last = last_round(noted)
    ended = [str(key) for key, node in nodes(load(txn, directory).session) if node.ended_at is not None]
    return sum((f"{key}#{last}" if key == "/session" and last else key) not in noted for key in ended)
