"""The one authority for ids, order, time, path, caps and redaction; all others observe.

In come calls of handles and of `SessionTreeBuilder`, from any thread; out go records, in order, to the takers of a `Stream`, and the live
tree. Only the builder changes that tree, by the same functions as the loader (`optree._tree.apply`); nothing here opens a file.
"""

from optree._builder import quick, unrecorded
from optree._builder.handles import Op
from optree._builder.session_tree import SessionTreeBuilder
from optree._builder.stream import Stream, Taker
from optree._builder.turns import Turn

unrecorded.install()
quick.install()

__all__ = ["Op", "SessionTreeBuilder", "Stream", "Taker", "Turn"]
