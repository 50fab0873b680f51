import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optree._store.files import descriptors, lock
from optree.errors import SetupError
from optree.exporting import lock_shared, unlock
from optree_otel.delivered import DeliveredFile, delivered, forget, is_done, is_sending, kept, mark_done, pending, reopen


def files(sessions: Path) -> list[str]:
    """Return the files in which something is noted."""
    folder = sessions / ".otel"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


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


def test_what_was_opened_is_forgotten(tmp_path: Path):
    """A process that notes for long keeps nothing of the files that it has closed."""
    before = len(descriptors._for_locks)
    for number in range(3):
        file = DeliveredFile(tmp_path, f"txn-{number}", "0")
        file.begin()
        file.add(["1"])
        file.release()
    assert before == len(descriptors._for_locks)


def test_begun_while_somebody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A process that asks who sends a session, and has its file locked for that, does not keep the one that begins from having it."""
    first = DeliveredFile(tmp_path, "txn-1", "0")
    first.add(["1"])
    asking = lock_shared([first.path])
    assert asking
    monkeypatch.setattr(lock, "sleep", lambda _: unlock([asking.pop()]))
    first.begin()
    assert first.held
    assert [] == asking


def test_pending_until_done(tmp_path: Path):
    """A session is pending from its beginning, also with nothing delivered, until it is done."""
    assert [] == pending(tmp_path)
    for txn in ("txn-2", "txn-1"):
        DeliveredFile(tmp_path, txn, "0").begin()
    assert ["txn-1", "txn-2"] == pending(tmp_path)
    assert mark_done(tmp_path, "txn-1")
    assert (["txn-2"], True, False) == (pending(tmp_path), is_done(tmp_path, "txn-1"), is_done(tmp_path, "txn-2"))
    assert ["done/txn-1", "notes/txn-2/0.jsonl"] == files(tmp_path)


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
    assert [] == files(tmp_path)


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
    """Folders and files are their owner's only."""
    DeliveredFile(tmp_path, "txn-1", "0").begin()
    mark_done(tmp_path, "txn-2")
    made = [tmp_path / ".otel", *(tmp_path / ".otel").rglob("*")]
    assert 6 == len(made)
    assert {(True, 0o700), (False, 0o600)} == {(path.is_dir(), path.stat().st_mode & 0o777) for path in made}


def test_reopened_where_nothing_can_be_written(tmp_path: Path):
    """What cannot be removed or looked at is counted too."""
    (tmp_path / ".otel").write_text("a file")
    file = reopen(tmp_path, "txn-1", "0", ["1"])
    assert (2, True) == (file.failures, "Not a directory" in file.last_failure)
    forget(tmp_path, "txn-1")


def test_what_is_done_is_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """However many sessions are done, no folder that grows with them is listed, neither for one session nor for all that are pending."""
    for number in range(50):
        DeliveredFile(tmp_path, f"txn-{number}", "0").add(["1"])
        assert mark_done(tmp_path, f"txn-{number}")
    DeliveredFile(tmp_path, "txn-50", "0").begin()
    listed: list[int] = []
    listdir, scandir = os.listdir, os.scandir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(len(listdir(path))) or listdir(path))
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(len(listdir(path))) or scandir(path))
    assert ["txn-50"] == pending(tmp_path, also_open=True)
    reopen(tmp_path, "txn-50", "1", []).add(["1.1"])
    assert ({"1.1"}, set()) == (delivered(tmp_path, "txn-50"), delivered(tmp_path, "txn-7"))
    assert not is_sending(tmp_path, "txn-7")
    assert mark_done(tmp_path, "txn-50")
    assert listed
    assert max(listed) <= 3


def test_the_first_layout_is_taken_over(tmp_path: Path):
    """Marks and notes that lie side by side in one folder still hold, and come to their places when they are met."""
    folder = tmp_path / ".otel"
    folder.mkdir()
    (folder / "done-1.done").write_text('{"sent":["@2"]}\n')
    (folder / "sent-1.0000.jsonl").write_text('{"sent":["1.1"]}\n')
    (folder / "open-1.0000.jsonl").write_text("")
    (folder / "open-1.open").write_text("")
    (folder / "what is this").write_text("")
    assert is_done(tmp_path, "done-1")
    assert ({"@2"}, {"1.1"}) == (kept(tmp_path, "done-1"), delivered(tmp_path, "sent-1"))
    assert (["sent-1"], ["open-1", "sent-1"]) == (pending(tmp_path), pending(tmp_path, also_open=True))
    assert ["done/done-1", "notes/open-1/0000.jsonl", "notes/sent-1/0000.jsonl", "open/open-1", "what is this"] == files(tmp_path)


@pytest.mark.parametrize("txn", ["done", "open", "notes"])
def test_a_session_with_a_name_of_ours(tmp_path: Path, txn: str):
    """A session may have any name, also that of one of the folders."""
    DeliveredFile(tmp_path, txn, "0").add(["1"])
    assert ([txn], {"1"}) == (pending(tmp_path), delivered(tmp_path, txn))
    assert mark_done(tmp_path, txn, ["@1"])
    assert ([], {"@1"}, True) == (pending(tmp_path), kept(tmp_path, txn), is_done(tmp_path, txn))


def test_killed_between_mark_and_notes(tmp_path: Path):
    """A session that is marked as done while its notes are still there counts as done."""
    DeliveredFile(tmp_path, "txn-1", "0").add(["1"])
    notes = (tmp_path / ".otel" / "notes" / "txn-1" / "0.jsonl").read_bytes()
    assert mark_done(tmp_path, "txn-1")
    DeliveredFile(tmp_path, "txn-1", "0").begin()
    (tmp_path / ".otel" / "notes" / "txn-1" / "0.jsonl").write_bytes(notes)
    assert ([], True) == (pending(tmp_path, also_open=True), is_done(tmp_path, "txn-1"))
