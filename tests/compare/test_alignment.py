from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from optree.compare.alignment import align, best

words = st.lists(st.sampled_from("abcd"), max_size=12)


def longest(a, b):
    """Return the length of a longest common subsequence, by the textbook table."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for x, one in enumerate(a):
        for y, other in enumerate(b):
            table[x + 1][y + 1] = table[x][y] + 1 if one == other else max(table[x][y + 1], table[x + 1][y])
    return table[-1][-1]


@settings(deadline=None)
@given(words, words)
def test_alignment_is_the_longest(a, b):
    """Equal items are paired in order, as many as there can be, and the same ones from both sides."""
    pairs = align(a, b)
    assert longest(a, b) == len(pairs)
    assert all(a[x] == b[y] for x, y in pairs)
    assert all(one[0] < other[0] and one[1] < other[1] for one, other in pairwise(pairs))
    assert [(y, x) for x, y in pairs] == align(b, a)


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False))
def test_what_is_too_different_is_aligned_all_the_same(random):
    """Sequences with more edits than are searched for still give equal pairs in order, most of what is in order among them."""
    a = [f"{number % 700}" for number in range(1500)]
    b = [random.choice(a) if number % 2 else one for number, one in enumerate(a)]
    pairs = align(a, b)
    assert all(a[x] == b[y] for x, y in pairs)
    assert all(one[0] < other[0] and one[1] < other[1] for one, other in pairwise(pairs))
    assert len(pairs) > 100


@settings(deadline=None)
@given(words, words)
def test_best_pairs(a, b):
    """The heaviest pairs are the longest alignment where equal items weigh 1 and others nothing."""
    pairs = best(a, b, lambda x, y: float(a[x] == b[y]))
    assert longest(a, b) == len(pairs)
    assert [(y, x) for x, y in pairs] == best(b, a, lambda x, y: float(b[x] == a[y]))


def test_best_prefers_likeness():
    """Of two partners the one that is more alike is taken, though more pairs would be possible."""
    weights = {(0, 0): 0.1, (1, 0): 0.9, (1, 1): 0.1}
    assert [(1, 0)] == best(["p", "q"], ["r", "s"], lambda x, y: weights.get((x, y), 0.0))
