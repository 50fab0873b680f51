"""How a node ended, as a span says it: ERROR for failed and interrupted nodes, unset for the others; nothing where nobody knows."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from optree import OperationNode, SessionNode, TurnNode
from optree.exporting import ENDED, state
from optree_otel import names
from optree_otel.spans import ERROR, UNSET
from optree_otel.wire import Attribute

OTHER: Final = "_OTHER"
"""What the conventions call an error of no known type."""
_TYPE = re.compile(r"(?:[a-z_]\w*\.)*[A-Z]\w*(?=:|$)")


class Outcome(NamedTuple):
    """A span's status and message, and the attributes that tell the rest."""

    status: int
    message: str
    attributes: list[Attribute]


OK: Final = Outcome(UNSET, "", [(names.STATUS, "ok")])


def outcome(node: SessionNode | TurnNode | OperationNode) -> Outcome:
    """Return what a span says of its node's end; one without an end was interrupted, one without a status says nothing."""
    status, error = state(node, live=False), node.error
    if status == "ok":
        return OK
    if status == ENDED:
        return Outcome(UNSET, "", [(names.ERROR, error)] if error else [])
    if status == "cancelled":
        told: list[Attribute] = [(names.STATUS, status)]
        return Outcome(UNSET, "", [*told, (names.ERROR, error)] if error else told)
    if status == "failed":
        return Outcome(ERROR, error or "failed", [(names.STATUS, status), (names.ERROR_TYPE, error_type(error))])
    told = [(names.STATUS, "interrupted"), (names.ERROR_TYPE, "interrupted")]
    return Outcome(ERROR, "interrupted", [*told, (names.ERROR, error)] if error else told)


def error_type(error: str | None) -> str:
    """Return the class that an error text begins with (``TimeoutError: …``), else `OTHER`."""
    found = _TYPE.match(error) if error else None
    return found.group() if found is not None else OTHER
