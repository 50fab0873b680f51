"""The tree: a fold over records, and what can be read from it.

In come records (`fold`) or a tree (`unfold`, totals, walks, text), out go a tree, records and figures. Only `fold.py`, `apply.py` and
`totals.py` change nodes; nothing here opens a file or knows a thread.
"""

from optree._tree.fold import Fold, Tree
from optree._tree.path import Path
from optree._tree.text import format_tree, snapshot_summary
from optree._tree.walk import flatten, walk_ops, walk_sessions

__all__ = ["Fold", "Path", "Tree", "flatten", "format_tree", "snapshot_summary", "walk_ops", "walk_sessions"]
