"""The records of a session from its beginning: those that it has by now, then each as it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from optree._builder.subscriber import Subscriber
from optree._interrupts import pass_on
from optree._nodes import OperationNode, SessionNode
from optree._records import Gap, Record
from optree._tree.fold import Tree
from optree._tree.unfold import unfold

if TYPE_CHECKING:
    from optree._builder.session_tree import SessionTreeBuilder


class RecordSubscription:
    """Calls *handle* with each record of a running session in order, on a background thread: the program waits for nothing of it.

    ```python
    import optree
    from optree.exporting import RecordSubscription

    with optree.session("assistant") as session:
        subscription = RecordSubscription(session.builder, print)
    subscription.close()
    ```

    Args:
        builder: The session's, or that of any session within it: the records are those of the whole tree, as far as this process makes it.
        handle: Takes one record. What it raises is counted, and goes no further. Records that it is too slow for are dropped and counted.
        earlier: Takes the records that the session has by now; by default *handle* does, one by one. In a process that has joined a session
            of another there are none: what another process began is its to hand out.
        begin: Called with this subscription before any record can be missed or come twice, on the thread that subscribes.
        ordered: Whether an operation's log lines come before its end at all events, for which the thread that ends it is made to wait.
        name: That of the thread, which subscriptions of the same name share: a slow *handle* holds up those of the others.
    """

    def __init__(
        self,
        builder: SessionTreeBuilder,
        handle: Callable[[Record], None],
        *,
        earlier: Callable[[list[Record]], None] | None = None,
        begin: Callable[[RecordSubscription], None] | None = None,
        ordered: bool = True,
        name: str = "subscription",
    ) -> None:
        while builder.parent is not None:
            builder = builder.parent
        self.tree: Tree = builder.whole
        """The live tree, perhaps without its newest entries."""
        self._core = core = builder.core
        self._handle = handle
        self._handle_earlier = earlier or self._one_by_one
        self._subscriber = Subscriber(self._take, name)
        core.settle()
        held = core.stream.enter()  # nothing begins between the copy and the first record
        try:
            if begin is not None:
                begin(self)
            self._earlier: list[Record] = [] if core.base else unfold(self.tree)
            core.stream.subscribe(self._subscriber, ordered=ordered)
        finally:
            core.stream.leave(held)
        self._subscriber.take([Gap(ts=0.0, dropped=0)])  # wakes the thread, which takes the earlier records first

    @property
    def sessions(self) -> dict[str, SessionNode]:
        """The nodes of the sessions that this process records, by path."""
        return {path: builder.node for path, builder in list(self._core.builders.items())}

    @property
    def dropped(self) -> int:
        """Records that were dropped, since *handle* was too slow."""
        return self._subscriber.dropped

    @property
    def failures(self) -> int:
        """How often *handle* raised."""
        return self._subscriber.failures

    @property
    def last_failure(self) -> str:
        """What it raised last; empty if it never did."""
        return self._subscriber.last_failure

    @property
    def finished(self) -> bool:
        """True once it is closed and has handled everything."""
        return self._subscriber.finished

    def flush(self, timeout: float = 0.25) -> bool:
        """Wait until what has happened so far is handled; False if it is not within *timeout* seconds."""
        self._core.stream.flush()
        return self._subscriber.flush(timeout)

    def close(self, timeout: float = 0.25) -> bool:
        """Hand out what has happened so far and no more; False if not all of it was handled within *timeout* seconds."""
        done = self.flush(timeout)
        self._core.stream.unsubscribe(self._subscriber)
        self._subscriber.close()
        return done

    def ended(self, path: str) -> OperationNode | None:
        """Return an operation that has ended in this process, whole; None if none has at that path."""
        node = self._core.ended.get(path)
        if node is not None and self._core.stream.behind:
            self._core.stream.flush()
        return node

    def _take(self, record: Record) -> None:
        earlier, self._earlier = self._earlier, []
        if earlier:
            try:
                self._handle_earlier(earlier)
            except Exception as error:  # noqa: BLE001 - counted; the record that came meanwhile is handled all the same
                self._failed(error)
        if not (isinstance(record, Gap) and not record.dropped):
            self._handle(record)

    def _one_by_one(self, records: list[Record]) -> None:
        for record in records:
            try:
                self._handle(record)
            except Exception as error:  # noqa: BLE001 - counted, as each later record's is
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        pass_on(error)
        self._subscriber.failures += 1
        self._subscriber.last_failure = repr(error)
