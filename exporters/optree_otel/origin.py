"""The span of somebody else that a session began in: a web request, a job, a traced program that started this one."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from optree.exporting import is_object
from optree_otel.spans import REMOTE_PARENT, Link

Parent = Literal["child", "link", "ignore"]
"""What a session becomes that begins inside somebody else's span: a child of it in its trace, a trace linked to it, or neither."""
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED = 1


class Origin(msgspec.Struct, frozen=True):
    """A span, as the W3C header ``traceparent`` names it."""

    trace_id: bytes
    span_id: bytes
    linked: bool = False
    """True if the session is linked to it rather than its child."""
    flags: int = REMOTE_PARENT

    def __str__(self) -> str:
        """Return it as it is noted on disk."""
        return f"{'link' if self.linked else 'child'} 00-{self.trace_id.hex()}-{self.span_id.hex()}-01"

    @classmethod
    def parse(cls, noted: str) -> Origin | None:
        """Return what `str` made; None for anything else."""
        kind, _, header = noted.partition(" ")
        return cls.of(header, "link" if kind == "link" else "child")

    @classmethod
    def of(cls, traceparent: object, parent: Parent) -> Origin | None:
        """Return the span that a ``traceparent`` header names; None if it names none, or one that is not recorded."""
        match = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
        if match is None or parent == "ignore" or not int(match[3], 16) & _SAMPLED:
            return None
        return cls(bytes.fromhex(match[1]), bytes.fromhex(match[2]), parent == "link")

    def link(self) -> Link:
        """Return a link to it."""
        return Link(self.trace_id, self.span_id)


def here(attributes: Mapping[str, Any], parent: Parent) -> Origin | None:
    """Return the span that is current in this thread and task, else the one that the process was started from.

    *attributes* are the session's. OpenTelemetry is not loaded for it: where nobody has, no span can be current.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None:
        found = trace.get_current_span().get_span_context()
        if found.is_valid:
            return Origin.of(f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags):02x}", parent)
    ingress: Any = attributes.get("ingress")
    return Origin.of(ingress.get("traceparent"), parent) if is_object(ingress) else None
