import re

from optree import _ids as ids


def test_drawn_txns_sort_in_the_order_in_which_they_were_drawn():
    """Of one process, each is later than the one before, to the millisecond that stands in it."""
    drawn = [ids.new_txn() for _ in range(2_000)]
    assert [] == [txn for txn in drawn if not re.fullmatch(r"[0-9a-z]{8}-[0-9a-z]{8}", txn)]
    moments = [ids.txn_time(txn) for txn in drawn]
    assert sorted(set(moments)) == moments


def test_a_clock_that_is_set_back_is_believed(monkeypatch):
    """A txn names the time that its session begins at, also where the clock showed a later one before."""
    ids.new_txn()
    monkeypatch.setattr(ids, "time_ns", lambda: 1_700_000_000_000_000_000)
    assert [1_700_000_000_000.0, 1_700_000_000_001.0] == [ids.txn_time(ids.new_txn()) for _ in range(2)]


def test_other_names_tell_no_time():
    """What somebody else called a session says nothing of when it began."""
    assert [None] * 4 == [ids.txn_time(txn) for txn in ("txn-1", "file-0123456789abcdef01234567", "mwsr0ai6", "MWSR0AI6-27IO80I9")]
