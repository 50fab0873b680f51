"""The transcript of a session that is recorded right now, written on a background thread: the program waits for nothing of it.

    with optree.session(agent="researcher") as session:
        transcript = follow(session, "storage/transcripts")
        ...

The journal, the console and the ledger are the same with it and without.
"""

from __future__ import annotations

from pathlib import Path

from optree import Session, SetupError
from optree.exporting import Reasoning, Record, RecordSubscription, text
from optree_formats import AnyPath
from optree_formats.transcript.of_tree import Transcriber, known
from optree_formats.transcript.reader import read
from optree_formats.transcript.recorder import BUFFER, LOGGER, Mask, Recorder, Subscription, masked
from optree_formats.transcript.runs import SUFFIX
from optree_formats.transcript.wire import Event, ToolPayload

_Key = tuple[str, str, str, str]


def follow(session: Session, directory: AnyPath, *, mask: Mask | None = None, redacted: bool = True, buffer: int = BUFFER) -> Follower:
    """Write a session's whole tree to *directory* from now on, a file a run, beginning with what it has so far.

    Close what is returned when the session has ended. A resumed session goes on in its files, with what they lack. In a process that has
    joined a session of another, what this process records of it is written; run ids follow from the session's, so the files of all
    processes are linked. Credentials are replaced, after *mask*, unless *redacted* is off. Raises `SetupError` if the directory is not
    there.
    """
    return Follower(session, Path(directory), masked(mask) if redacted else mask, buffer)


class Follower:
    """Writes one session's transcript while it runs."""

    def __init__(self, session: Session, directory: Path, mask: Mask | None, buffer: int) -> None:
        if not directory.is_dir():
            raise SetupError(f"{directory} is no directory: make it before a session is followed into it")
        self._txn = session.txn
        self._directory = directory
        self._mask = mask
        self._buffer = buffer
        self._recorders: dict[str, Recorder] = {}
        self._there: dict[str, set[_Key]] | None = None
        """What files had before, by the path of the session; None once the backlog is written."""
        self._lost = 0
        self._last_failure = ""
        self._subscription = RecordSubscription(
            session.builder, self._transcribe, earlier=self._catch_up, begin=self._begin, ordered=False, name="transcript"
        )

    @property
    def dropped(self) -> int:
        """Records that were dropped since the disk was too slow, and events that could not be written."""
        return self._lost + self._subscription.dropped + sum(recorder.failures for recorder in list(self._recorders.values()))

    @property
    def problems(self) -> list[str]:
        """What went wrong, for people."""
        failures = [
            self._subscription.last_failure,
            self._last_failure,
            *(recorder.last_failure for recorder in list(self._recorders.values())),
        ]
        return [failure for failure in failures if failure]

    def subscribe(self, path: str = "", buffer: int | None = None) -> Subscription:
        """Return a subscription to the events of the session at *path*, the root's by default, from now on."""
        return self._recorder(path).subscribe(buffer)

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all that was recorded so far is written; False if it is not within *timeout* seconds."""
        return self._subscription.flush(timeout)

    def close(self, timeout: float = 5.0) -> bool:
        """Write what has come so far and close the files; False if *timeout* seconds do not do. The second call does nothing."""
        again = self._subscription.finished
        done = self._subscription.close(timeout)
        if done and not again:
            self._transcriber.finish()
        for recorder in list(self._recorders.values()):
            recorder.close()
        return done

    def _begin(self, subscription: RecordSubscription) -> None:
        def thought(path: str) -> Reasoning | None:
            node = subscription.ended(path)
            return node.reasoning if node is not None and node.kind == "llm" else None

        tree = subscription.tree
        self._transcriber = Transcriber(self._txn, tree.pool, self._emit, known(tree), thought)

    def _catch_up(self, records: list[Record]) -> None:
        """Write what the session has already, as far as the files lack it."""
        self._there = {}
        for record in records:
            self._transcribe(record)
        self._there = None

    def _transcribe(self, record: Record) -> None:
        try:
            self._transcriber.take(record)
        except Exception as error:  # noqa: BLE001 - a record that nothing can be made of: the next one may do
            self._failed(error)

    def _emit(self, path: str, event: Event) -> None:
        try:
            recorder = self._recorder(path)
            if self._there is not None:
                keys = self._there.get(path)
                if keys is None:
                    keys = self._there[path] = _keys(recorder.path)
                if _key(event) in keys:
                    return
            recorder.write(event)
        except Exception as error:  # noqa: BLE001 - an event that cannot be written is reported; the next one may be written
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._lost += 1
        self._last_failure = f"{type(error).__name__}: {text(error)}"
        if self._lost == 1:
            LOGGER.warning("transcript of %s: an event is left out: %s", self._txn, self._last_failure)

    def _recorder(self, path: str) -> Recorder:
        result = self._recorders.get(path)
        if result is None:
            run_id = self._transcriber.run_id(path)
            recorder = Recorder(self._directory / f"{run_id}{SUFFIX}", run_id, mask=self._mask, buffer=self._buffer)
            result = self._recorders.setdefault(path, recorder)
        return result


def _keys(path: Path) -> set[_Key]:
    """Return what a file has already, as of a session that is resumed."""
    return {_key(event) for event in read(path) if isinstance(event, Event)} if path.exists() else set()


def _key(event: Event) -> _Key:
    """Return the key by which an event is recognised in its run, with the time of those that begin or end it: a run may have several."""
    call = event.payload.call_id if isinstance(event.payload, ToolPayload) else ""
    return event.type, event.path, call, event.timestamp if event.type.startswith("run.") else ""
