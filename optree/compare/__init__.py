"""Sessions compared: with each other (`compare`), and each LLM call with the one before (`context_changes`).

In come trees, out go what was matched and what differs, and its lines. Nothing here reads a file or changes a tree.
"""

from optree.compare.cache import context_changes, edit_phrase
from optree.compare.calls import CallContext, Edit, Messages
from optree.compare.comparison import Comparison, Difference, Figures, compare, walk
from optree.compare.details import Change, change_phrase
from optree.compare.rendering import format_comparison, format_page

__all__ = [
    "CallContext",
    "Change",
    "Comparison",
    "Difference",
    "Edit",
    "Figures",
    "Messages",
    "change_phrase",
    "compare",
    "context_changes",
    "edit_phrase",
    "format_comparison",
    "format_page",
    "walk",
]
