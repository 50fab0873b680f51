"""Responses of OpenAI's that run in the background: what is retrieved of one belongs to the op of the call that asked for it."""

from __future__ import annotations

import re
from time import monotonic
from typing import Any, Final, Self

from optree._builder import Op
from optree._builder.handles import account_late
from optree._capture.calls.bodies import MOST_BYTES, loads
from optree._interrupts import pass_on
from optree._providers import usage
from optree._providers.messages import is_under_way
from optree._tracing.faults import guarded
from optree._tracing.results import has_figures
from optree._values import is_object

_PLACE: Final = re.compile(r"/responses/([\w-]+)/?$")
_MOST, _MOST_SECONDS = 256, 3600.0
_ops: dict[str, tuple[Op, float]] = {}
"""By the id of a response that was under way when its call returned, the op of that, and when that was.

An op keeps its whole tree: of too many the oldest are forgotten, and those that nobody has retrieved here for an hour.
"""


def expect_response(op: Op, answer: dict[str, Any]) -> None:
    """Take that an op's answer is under way, and will be retrieved."""
    if isinstance(name := answer.get("id"), str):
        now = monotonic()
        _ops[name] = op, now
        for old in [known for known, (_, begun) in list(_ops.items()) if now - begun > _MOST_SECONDS] or list(_ops)[:-_MOST]:
            _ops.pop(old, None)


class Retrieval:
    """A request for a response that is under way, while a client sends it: a `Watch` but for `returned`, which is each client's own."""

    def __init__(self, name: str) -> None:
        self._name = name

    @classmethod
    def of(cls, path: str) -> Self | None:
        """Return that of a GET request to *path*; None if it retrieves no response that an op waits for."""
        found = _PLACE.search(path) if _ops else None
        return cls(found[1]) if found is not None and found[1] in _ops else None

    def begin(self) -> None:
        """Do nothing."""

    def raised(self, error: BaseException) -> None:
        """Do nothing: it can be retrieved again."""

    @guarded
    def answered(self, content: bytes) -> None:
        """Take what came; once the response is whole, its op has it and what it took."""
        try:
            answer = loads(content) if len(content) <= MOST_BYTES else None
        except (ValueError, RecursionError) as error:
            pass_on(error)
            return
        if not is_object(answer) or answer.get("id") != self._name or answer.get("object") != "response" or is_under_way(answer):
            return
        op, _ = _ops.pop(self._name, (None, 0.0))
        if op is None:  # another thread was quicker
            return
        figures, failed = usage.read(answer), answer.get("status") == "failed"
        if has_figures(figures) or failed:
            account_late(op, figures if has_figures(figures) else None, failed=failed)
        if op.spending is not None:
            op.spending.commit(op)
        op.response(answer)
        if failed:
            op.log(f"the response failed in the background: {answer.get('error')}", "WRN")
