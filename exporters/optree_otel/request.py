"""Requests to a collector: spans, log records or metrics under their resource and scope, and how large they become.

The three requests of OTLP have one shape: resources, in each the scopes, in each the items. Ours has one scope, ``optree``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from optree import __version__
from optree_otel.wire import field, some, varint

Group = tuple[bytes, Sequence[bytes]]
"""An encoded resource, and the encoded items that come from it."""

SCOPE: Final = some(1, b"optree") + some(2, __version__.encode())
_SCOPE_FIELD: Final = field(1, SCOPE)


def request(groups: Iterable[Group]) -> bytes:
    """Return an ExportTraceServiceRequest of encoded spans; of log records or metrics the request for these, which looks the same."""
    return of_joined((resource, [joined(items)]) for resource, items in groups)


def joined(items: Iterable[bytes]) -> bytes:
    """Return encoded items as the fields of their scope's list."""
    out: list[bytes] = []
    for item in items:
        out += (b"\x12", varint(len(item)), item)
    return b"".join(out)


def of_joined(groups: Iterable[Group]) -> bytes:
    """Return a request of items that are `joined` already."""
    out: list[bytes] = []
    for resource, items in groups:
        scope_size = len(_SCOPE_FIELD) + sum(map(len, items))
        head = field(1, resource)
        out += (b"\x0a", varint(len(head) + 1 + len(varint(scope_size)) + scope_size), head, b"\x12", varint(scope_size), _SCOPE_FIELD)
        out += items
    return b"".join(out)
