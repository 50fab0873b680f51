"""Responses of OpenAI's that run in the background: what is retrieved of one belongs to the op of the call that asked for it."""

from __future__ import annotations

import re
from time import monotonic
from typing import Any, Final, NamedTuple, Self

from optree._builder import Op
from optree._builder.handles import account_late
from optree._capture.calls.bodies import MOST_BYTES, object_in
from optree._providers import usage
from optree._providers.messages import is_under_way
from optree._tracing.faults import guarded
from optree._tracing.results import has_figures
from optree._tracing.runtime import RUNTIME

_PLACE: Final = re.compile(r"/responses/([\w-]+)(/cancel)?/?$")
_MOST, _MOST_SECONDS = 256, 3600.0
_FORGOTTEN: Final = f"not retrieved within an hour, or among the last {_MOST:,}: its answer, and what it took, stay unknown"


class _Expected(NamedTuple):
    """An op whose answer was under way when its call returned."""

    op: Op
    begun: float
    """Monotonic seconds."""
    forked_at: float
    """Of the process whose op it is."""

    @property
    def is_here(self) -> bool:
        """True in that process."""
        return self.forked_at == RUNTIME.forked_at

    def gives_back(self) -> None:
        """Give back what a budget holds for it: nothing more is to come."""
        if self.op.spending is not None:
            self.op.spending.call.is_to_come = False
            self.op.spending.commit(self.op)


_expected: dict[str, _Expected] = {}
"""By the id of a response that is to be retrieved.

An op keeps its whole tree: of too many the oldest are forgotten, and those that nobody has retrieved here for an hour.
"""


def expect_response(op: Op, answer: dict[str, Any]) -> None:
    """Take that an op's answer is under way, and will be retrieved."""
    if isinstance(name := answer.get("id"), str):
        now = monotonic()
        if op.spending is not None:
            op.spending.call.is_to_come = True
        _expected[name] = _Expected(op, now, RUNTIME.forked_at)
        for old in [known for known, one in list(_expected.items()) if now - one.begun > _MOST_SECONDS] or list(_expected)[:-_MOST]:
            if (one := _expected.pop(old, None)) is not None and one.is_here:
                one.op.log(_FORGOTTEN, "WRN")
                one.gives_back()


class Retrieval:
    """A request for a response that is under way, while a client sends it: a `Watch` but for `returned`, which is each client's own."""

    def __init__(self, name: str, method: str) -> None:
        self._name, self._method = name, method

    @classmethod
    def of(cls, method: str, path: str) -> Self | None:
        """Return that of a request to *path*; None if that retrieves, cancels or deletes no response that an op waits for."""
        found = _PLACE.search(path) if _expected else None
        expected = None if found is None else _expected.get(found[1])
        return cls(found[1], method) if found is not None and expected is not None and expected.is_here else None

    def begin(self) -> None:
        """Do nothing."""

    def raised(self, error: BaseException) -> None:
        """Do nothing: it can be retrieved again."""

    @guarded
    def answered(self, content: bytes | None) -> None:
        """Take what came, None for a stream; once the response is whole, its op has it and what it took."""
        if content is None or self._method == "DELETE":  # the program reads it itself, or nobody will
            expected = _expected.pop(self._name, None) if self._method == "DELETE" else _expected.get(self._name)
            if expected is not None:
                expected.gives_back()
            return
        answer = object_in(content) if len(content) <= MOST_BYTES else None
        if answer is None or answer.get("id") != self._name or answer.get("object") != "response" or is_under_way(answer):
            return
        expected = _expected.pop(self._name, None)
        if expected is None:  # another thread was quicker
            return
        try:
            self._whole(expected.op, answer)
        except BaseException:  # an interrupt, or a fault: it can be retrieved again
            _expected.setdefault(self._name, expected)
            raise
        expected.gives_back()

    def _whole(self, op: Op, answer: dict[str, Any]) -> None:
        figures, failed = usage.read(answer), answer.get("status") == "failed"
        if has_figures(figures) or failed:
            account_late(op, figures if has_figures(figures) else None, failed=failed)
        op.response(answer)
        if failed:
            op.log(f"the response failed in the background: {answer.get('error')}", "WRN")
