"""The sessions directory: where it is, what lies in it, and how a session is found."""

import inspect
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from optree._store import Directory, load
from optree.errors import NotFoundError, SetupError
from tests.store.test_journal import busy


def put(directory, name, modified):
    """Make a file or live directory with a given time of change."""
    path = directory.sessions / name
    if name.endswith(".live"):
        path.mkdir(parents=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")
    os.utime(path, (modified, modified))


def test_arguments_win_over_environment_and_environment_over_home(monkeypatch, tmp_path):
    """Base, sessions and billing each come from the argument, else the environment, else the home directory (S4-87, S4-88, S4-93)."""
    for name in ("OPTREE_BASE_DIR", "OPTREE_SESSIONS_DIR", "OPTREE_BILLING_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Directory(tmp_path / ".optree" / "sessions", tmp_path / ".optree" / "accounting.jsonl") == Directory.of()
    monkeypatch.setenv("OPTREE_BASE_DIR", "/base")
    assert Directory(Path("/base/sessions"), Path("/base/accounting.jsonl")) == Directory.of()
    monkeypatch.setenv("OPTREE_SESSIONS_DIR", "~/there")
    monkeypatch.setenv("OPTREE_BILLING_FILE", "/bills.jsonl")
    assert Directory(tmp_path / "there", Path("/bills.jsonl")) == Directory.of("/other")
    assert Directory(Path("/s"), Path("/b")) == Directory.of("/other", "/s", "/b")


def test_sessions_are_listed_newest_first(directory):
    """What is ours is listed, newest first, in all compressions; other names are passed over."""
    for modified, name in enumerate(["a.json.zst", "b.json.gz", "c.json", "d.live"], 1):
        put(directory, name, modified)
    for name in ("notes.txt", ".tmp-e.json.zst-1", "e.zst", "..json", "x y.json", "f.json.zst.bak"):
        put(directory, name, 9)
    (directory.live("d") / "j-0000-000001.jsonl").write_bytes(b"x")
    os.utime(directory.live("d") / "j-0000-000001.jsonl", (4, 4))
    os.utime(directory.live("d"), (4, 4))
    (directory.sessions / "g.json").symlink_to(directory.sessions / "a.json.zst")
    assert ["d", "c", "b", "a"] == [saved.txn for saved in directory.saved()]
    assert (None, directory.sessions / "d.live", 4.0) == (
        directory.find("d").snapshot,
        directory.find("d").live,
        directory.find("d").modified,
    )


def test_sessions_are_listed_by_their_begin(directory):
    """What is saved, settled or copied later is no newer for it: the txn tells when a session began, and its file where it does not."""
    first, second, third = (f"mwsr0ai{digit}-27io80i9" for digit in "678")
    for modified, txn in ((3, first), (2, second), (1, third), (5, "named"), (4, "called")):
        put(directory, f"{txn}.json.zst", modified)
    assert [third, second, first, "named", "called"] == [saved.txn for saved in directory.saved()]
    assert third == directory.find("last").txn


def test_a_session_that_is_live_and_saved_is_one(directory):
    """A snapshot and a live directory of one txn are one session, as new as its newest file."""
    put(directory, "a.json.zst", 1)
    put(directory, "a.live", 1)
    put(directory, "b.json.zst", 5)
    journal = directory.live("a") / "j-0000-000001.jsonl"
    journal.write_bytes(b"")
    os.utime(journal, (7, 7))
    os.utime(directory.live("a"), (1, 1))
    assert [("a", 7.0), ("b", 5.0)] == [(saved.txn, saved.modified) for saved in directory.saved()]


def test_the_newest_of_two_snapshots_counts(directory):
    """A session that was saved in two compressions is read from the newer file."""
    put(directory, "a.json.zst", 1)
    put(directory, "a.json.gz", 2)
    assert directory.sessions / "a.json.gz" == directory.find("a").snapshot


def test_a_beginning_is_enough_where_only_one_has_it(directory):
    """A session is found by its txn, by a unique beginning of it, or as `last`; a whole name wins over longer ones."""
    for modified, name in enumerate(["abc-1.json", "abd-1.json", "abd-12.json"], 1):
        put(directory, name, modified)
    assert ["abc-1", "abd-1", "abd-12"] == [directory.find(what).txn for what in ("abc", "abd-1", "last")]
    with pytest.raises(NotFoundError, match="'ab' is the beginning of 3 sessions: abd-12, abd-1, abc-1; write more of it"):
        directory.find("ab")
    with pytest.raises(NotFoundError):
        directory.find("")


def test_a_session_that_is_not_there_lists_those_that_are(directory):
    """The error names sessions that are like what was asked for, or says that there are none and how to make one."""
    with pytest.raises(NotFoundError, match=r"there are none in .*; record one with: optree run -- python"):
        directory.find("abc")
    for modified in range(6):
        put(directory, f"run-{modified}.json", modified)
    with pytest.raises(
        NotFoundError, match=r"no session 'run-9' in .*; there are 6, among them run-\d, run-\d, run-\d \(optree ls lists them\)"
    ):
        load("run-9", directory)
    with pytest.raises(NotFoundError, match="among them run-5, run-4, run-3"):
        load("zzzzzz", directory)


@pytest.mark.parametrize("txn", ["", ".", "..", "../../etc/passwd", "a/b", "a.b", "-a", "a" * 65, "a\n", "ä", "a\x00"])
def test_a_name_cannot_lead_out_of_the_directory(directory, txn):
    """No txn reaches a file outside the sessions directory."""
    with pytest.raises(SetupError, match="cannot name a session: use letters, digits, - and _, at most 64"):
        directory.live(txn)
    with pytest.raises(SetupError):
        directory.snapshot(txn)


def test_a_file_or_live_directory_is_loaded_by_its_path(begin, directory, tmp_path):
    """A snapshot file anywhere, and a live directory, load by path; a path that is none says what to give."""
    builder, store = begin()
    busy(builder, 1)
    assert store.snapshot()
    store.flush()
    moved = tmp_path / "sent.json.zst"
    moved.write_bytes(directory.snapshot("txn-1").read_bytes())
    assert "txn-1" == load(moved).txn
    assert "txn-1" == load(str(directory.live("txn-1"))).txn
    with pytest.raises(NotFoundError, match="is no file: give a txn"):
        load(tmp_path / "nothing.json")


def test_a_directory_that_is_a_file_is_empty(tmp_path):
    """A sessions directory that is no directory, or is not there, has no sessions."""
    (tmp_path / "file").write_text("")
    assert [] == Directory.of(sessions=tmp_path / "file").saved()
    assert [] == Directory.of(sessions=tmp_path / "nothing").saved()


def test_a_full_stack_is_no_missing_home(tmp_path, monkeypatch):
    """A directory that is first asked for near the recursion limit is that one later, too: what failed for want of stack is not kept."""
    monkeypatch.chdir(tmp_path)
    limit = len(inspect.stack()) + 60

    def deep(levels, base):
        return Directory.of(base) if levels == 0 else deep(levels - 1, base)

    before = sys.getrecursionlimit()
    for room in range(60):
        base = tmp_path / f"base{room}"
        sys.setrecursionlimit(limit)
        try:
            with suppress(RecursionError):
                deep(room, base)
        finally:
            sys.setrecursionlimit(before)
        assert Directory.of(base).sessions == base / "sessions"
