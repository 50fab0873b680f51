"""The tree: a fold over records, and what can be read from it."""

from optree.tree.fold import Fold, Tree
from optree.tree.path import Path
from optree.tree.text import format_tree, snapshot_summary
from optree.tree.walk import flatten, walk_ops, walk_sessions

__all__ = ["Fold", "Path", "Tree", "flatten", "format_tree", "snapshot_summary", "walk_ops", "walk_sessions"]
