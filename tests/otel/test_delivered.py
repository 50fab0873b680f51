import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optree.errors import SetupError
from optree_otel.delivered import DeliveredFile, delivered, forget, is_done, mark_done, pending, reopen


def test_union_over_writers(tmp_path: Path):
    """What several processes noted is read as one set."""
    for writer, paths in [("0", ["", "1", "1.1"]), ("1", ["1.2"]), ("0", ["2"])]:
        DeliveredFile(tmp_path, "txn-1", writer).add(paths)
    DeliveredFile(tmp_path, "txn-2", "0").add(["9"])
    assert {"", "1", "1.1", "1.2", "2"} == delivered(tmp_path, "txn-1")


def test_one_line_a_batch(tmp_path: Path):
    """A batch is one line of JSON that people can read; a batch of nothing is none."""
    file = DeliveredFile(tmp_path, "txn-1", "0")
    for paths in (["1.1", "1.2"], [], ["1"]):
        file.add(paths)
    assert '{"sent":["1.1","1.2"]}\n{"sent":["1"]}\n' == file.path.read_text()


@given(cut=st.integers(0, 40))
def test_torn_line(tmp_path_factory: pytest.TempPathFactory, cut: int):
    """A file that was cut anywhere is read up to there, and what is appended afterwards is read again."""
    sessions = tmp_path_factory.mktemp("torn")
    file = DeliveredFile(sessions, "txn-1", "0")
    file.add(["1.1"])
    file.add(["1.2", "1.3"])
    os.truncate(file.path, cut)
    whole = {1: ["1.1"], 2: ["1.1", "1.2", "1.3"]}.get(
        sum(cut >= end for end in (len('{"sent":["1.1"]}'), len('{"sent":["1.1"]}\n{"sent":["1.2","1.3"]}'))), []
    )
    assert set(whole) == delivered(sessions, "txn-1")
    DeliveredFile(sessions, "txn-1", "0").add(["2"])
    assert {*whole, "2"} == delivered(sessions, "txn-1")


@pytest.mark.parametrize("line", [b"\xff\xfe", b"[]", b'{"sent":3}', b'{"sent":["1",2,null]}', b"{}", b"\0" * 64])
def test_lines_of_others(tmp_path: Path, line: bytes):
    """A line that is none of ours is passed over; so are entries that are no paths."""
    file = DeliveredFile(tmp_path, "txn-1", "0")
    file.begin()
    file.path.write_bytes(line + b"\n")
    file.add(["5"])
    assert {"5"} == delivered(tmp_path, "txn-1") - {"1"}


def test_pending_until_done(tmp_path: Path):
    """A session is pending from its beginning, also with nothing delivered, until it is done."""
    assert [] == pending(tmp_path)
    for txn in ("txn-2", "txn-1"):
        DeliveredFile(tmp_path, txn, "0").begin()
    assert ["txn-1", "txn-2"] == pending(tmp_path)
    assert mark_done(tmp_path, "txn-1")
    assert (["txn-2"], True, False) == (pending(tmp_path), is_done(tmp_path, "txn-1"), is_done(tmp_path, "txn-2"))
    assert ["txn-1.done", "txn-2.0.jsonl"] == sorted(path.name for path in (tmp_path / ".otel").iterdir())


def test_reopened(tmp_path: Path):
    """A done session that goes on is pending again, and what it had then counts as delivered."""
    DeliveredFile(tmp_path, "txn-1", "0").add(["1"])
    mark_done(tmp_path, "txn-1")
    reopen(tmp_path, "txn-1", "1", ["1", "2"]).add(["3"])
    assert ({"1", "2", "3"}, ["txn-1"]) == (delivered(tmp_path, "txn-1"), pending(tmp_path))
    reopen(tmp_path, "txn-1", "2", ["8"])
    assert {"1", "2", "3"} == delivered(tmp_path, "txn-1")


def test_forgotten(tmp_path: Path):
    """Nothing is left of a session that is forgotten; forgetting one that is not there is no error."""
    DeliveredFile(tmp_path, "txn-1", "0").begin()
    mark_done(tmp_path, "txn-1")
    for _ in range(2):
        forget(tmp_path, "txn-1")
    assert [] == list((tmp_path / ".otel").iterdir())


def test_cannot_write(tmp_path: Path):
    """A folder that cannot be written is counted with its reason, and raises nothing."""
    (tmp_path / ".otel").write_text("a file")
    file = DeliveredFile(tmp_path, "txn-1", "0")
    file.begin()
    file.add(["1"])
    assert (2, True) == (file.failures, bool(file.last_failure))
    assert (False, set(), []) == (mark_done(tmp_path, "txn-1"), delivered(tmp_path, "txn-1"), pending(tmp_path))


@pytest.mark.parametrize("name", ["", "../up", "a.b", "x" * 65, "a/b"])
def test_names(tmp_path: Path, name: str):
    """A name that would leave the folder is refused."""
    with pytest.raises(SetupError):
        DeliveredFile(tmp_path, name, "0")
    with pytest.raises(SetupError):
        DeliveredFile(tmp_path, "txn-1", name)


def test_private(tmp_path: Path):
    """Folder and files are their owner's only."""
    file = DeliveredFile(tmp_path, "txn-1", "0")
    file.begin()
    mark_done(tmp_path, "txn-2")
    found = [path.stat().st_mode & 0o777 for path in (file.path.parent, file.path, file.path.with_name("txn-2.done"))]
    assert [0o700, 0o600, 0o600] == found


def test_reopened_where_nothing_can_be_written(tmp_path: Path):
    """What cannot be removed or looked at is counted too."""
    (tmp_path / ".otel").write_text("a file")
    file = reopen(tmp_path, "txn-1", "0", ["1"])
    assert (2, True) == (file.failures, "Not a directory" in file.last_failure)
    forget(tmp_path, "txn-1")
