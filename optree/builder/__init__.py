"""The one authority for ids, order, time, path, caps and redaction; all others observe."""

from optree.builder import quick, unrecorded
from optree.builder.handles import Op
from optree.builder.session_tree import SessionTreeBuilder
from optree.builder.stream import Stream, Taker
from optree.builder.turns import Turn

unrecorded.install()
quick.install()

__all__ = ["Op", "SessionTreeBuilder", "Stream", "Taker", "Turn"]
