"""Where a span stands in a tree while it is recorded."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from optree import Op, SessionTreeBuilder, Turn


class SpanPlace(Struct):
    """Where a span stands, and where what happens within it goes."""

    builder: SessionTreeBuilder
    """The session that holds what happens within."""
    turn: Turn
    within: Op | None = None
    """The op that was current there; None right inside a turn."""
    own: Op | None = None
    """The span's own op; None for a root span, which has a session and a turn instead."""
    above: SpanPlace | None = None
    in_tool: bool = False
    billed: bool = False
    """Its own figures are accounted for."""
    accounted: bool = False
    """Something within it is accounted for: its own figures say the same again."""
    told: dict[str, Any] = {}
    """The attributes that are recorded of it."""
    asked: tuple[list[Any] | None, dict[str, Any]] | None = None
    """The messages and other members of the request that is recorded of it."""
    foreign: bool = True
    """False where the turn is one that the program itself has begun: what it says is not for spans to add to."""
