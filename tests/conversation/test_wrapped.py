import pytest

from optree.conversation.views.rendering import wrapped
from tests.growth import SQUARE, growth


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["x-", "é", "\n", " ", "a\n", "x ", "\x1b[m", "e\u0301"])
def test_time_grows_with_the_text(piece):
    """Eight times as long a text takes about eight times as long to wrap, whether it has blanks or not."""
    assert growth(lambda size: lambda: list(wrapped(piece * (size // len(piece)), 80)), 1 << 11) < SQUARE


def test_long_words_are_broken():
    """A long word is broken where the line is full, and loses no character."""
    assert ["abcde", "fghij", "kl"] == list(wrapped("abcdefghij kl", 5))
    assert ["密密", "密"] == list(wrapped("密密密", 5))
