"""Answers that are put together from chunks."""

from optree._providers.merging import extend
from optree._values import MAX_ITEMS


def test_a_list_without_end():
    """Of a list that grows with each chunk the first items are kept."""
    holder = {}
    for _ in range(3):
        extend(holder, "annotations", [{"url": "x"}] * (MAX_ITEMS // 2))
    assert MAX_ITEMS == len(holder["annotations"])
