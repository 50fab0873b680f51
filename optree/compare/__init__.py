"""Sessions compared: with each other (`compare`), and each LLM call with the one before (`context_changes`)."""

from optree.compare.cache import edit_phrase
from optree.compare.call import CallContext
from optree.compare.comparison import Comparison, Difference, compare, walk
from optree.compare.context import context_changes
from optree.compare.details import Change, change_phrase
from optree.compare.figures import Figures
from optree.compare.messages import Edit, Messages
from optree.compare.page import format_page
from optree.compare.text import format_comparison

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
