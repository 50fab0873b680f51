"""Responses of OpenAI's that run in the background: what is retrieved of one belongs to the op of the call that asked for it."""

from __future__ import annotations

import re
from typing import Any, Final, Self

from optree._builder import Op
from optree._builder.handles import account_late
from optree._capture.calls.bodies import MOST_BYTES, loads
from optree._interrupts import pass_on
from optree._providers import usage
from optree._providers.messages import is_under_way
from optree._tracing.faults import guarded
from optree._values import is_object

_PLACE: Final = re.compile(r"/responses/([\w-]+)/?$")
_MOST: Final = 1000
_ops: dict[str, Op] = {}
"""By the id of a response that was under way when its call returned, the op of that; the oldest of too many are forgotten."""


def await_response(op: Op, answer: dict[str, Any]) -> None:
    """Take that an op's answer is under way, and will be retrieved."""
    if isinstance(name := answer.get("id"), str):
        _ops[name] = op
        while len(_ops) > _MOST:
            _ops.pop(next(iter(_ops)), None)


class Retrieval:
    """A request for a response that is under way: a `Watch`, but for how a client returns what came."""

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
        op = _ops.pop(self._name, None)
        if op is None:  # another thread was quicker
            return
        failed = answer.get("status") == "failed"
        account_late(op, usage.read(answer), failed=failed)
        op.response(answer)
        if failed:
            op.log(f"the response failed in the background: {answer.get('error')}", "WRN")
