"""What the program's threads pay: they look at each record's type, and put those that end a node on their way."""

from __future__ import annotations

from collections.abc import Callable

from optree.exporting import OpBegin, OpEnd, Record, SessionBegin, SessionEnd, TurnBegin, TurnEnd
from optree_otel.outlet import Outlet
from optree_otel.sources import NodeItem
from optree_otel.view import Key

_ENDS: dict[type[Record], str] = {OpEnd: "op", TurnEnd: "turn", SessionEnd: "session"}
_BEGINS: frozenset[type[Record]] = frozenset({OpBegin, TurnBegin, SessionBegin})


class Ends:
    """Picks the records that end nodes; called by the program's threads, one at a time."""

    def __init__(self, outlet: Outlet, put: Callable[[NodeItem], None], beside: Callable[[list[Record]], None] | None) -> None:
        self._outlet = outlet
        self._beside = beside
        self._put = put
        self._first: Record | None = None
        self._taken = 0

    def take(self, batch: list[Record]) -> None:
        """Put ended nodes on their way. A batch that an interrupt broke off comes again: then what was taken of it is passed over.

        A node is counted, put, and taken, in this order: where an interrupt comes between, it is counted or sent twice, but not lost,
        and its session does not count as delivered too early.
        """
        if batch[0] is not self._first:
            self._taken = 0
            if self._beside is not None:
                self._beside(batch)
            self._first = batch[0]
        for record in batch[self._taken :] if self._taken else batch:
            kind = _ENDS.get(type(record))
            if kind is not None:
                outlet = self._outlet
                outlet.asked += 1
                path: str = record.path  # type: ignore[attr-defined]
                if kind == "session" and not path:
                    outlet.ended = True
                self._put(NodeItem(outlet, Key(kind, path), fresh=True))  # pyright: ignore[reportUnknownArgumentType] - as above
            self._taken += 1


class EndsOfPart(Ends):
    """The same where another process owns the session: no record tells when this process's part is over, so what is open is counted.

    *wake* takes up again what was let go of meanwhile.
    """

    def __init__(
        self,
        outlet: Outlet,
        put: Callable[[NodeItem], None],
        beside: Callable[[list[Record]], None] | None,
        wake: Callable[[Outlet], None],
    ) -> None:
        super().__init__(outlet, put, beside)
        self._wake = wake

    def take(self, batch: list[Record]) -> None:
        """Put ended nodes on their way. Where a batch comes again, more may count as open than is: then the session is kept."""
        outlet = self._outlet
        outlet.touched = True
        outlet.open += sum(type(record) in _BEGINS for record in batch)
        super().take(batch)
        outlet.open -= sum(type(record) in _ENDS for record in batch)
        if outlet.resting:
            self._wake(outlet)
