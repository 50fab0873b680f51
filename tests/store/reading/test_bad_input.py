"""Files that are not what they should be: each gives a clear error that names it, or loads as far as it is valid."""

import gzip
import json
import os
from zlib import crc32

import pytest
import zstandard

from optree._store import load
from optree._store.files import compression
from optree._store.reading.formats import read_meta
from optree._tree import format_tree, walk_ops
from optree.errors import DamagedError, FormatError, NotFoundError, OptreeError
from tests.store.test_journal import busy

GOOD = {
    "version": 1,
    "meta": {},
    "session": {
        "id": "t", "path": "", "traceId": "", "agentId": "a", "callPath": "a", "originTxnId": "t", "startedAt": 1.0, "turns": [],
    },
    "pool": {"blobs": {}, "links": {}},
}  # fmt: skip
CASES = {
    "empty": (b"", DamagedError, "x.json.zst is empty: nothing was ever written to it"),
    "zeros": (bytes(512), FormatError, "neither zstd, gzip nor JSON"),
    "picture": (b"\x89PNG\r\n\x1a\n", FormatError, "neither zstd, gzip nor JSON"),
    "text": (b"hello", FormatError, "neither zstd, gzip nor JSON"),
    "list": (b"[1, 2]", FormatError, "neither zstd, gzip nor JSON"),
    "other JSON": (b'{"a": 1}', FormatError, "it has no 'version' and 'session'"),
    "broken JSON": (b'{"version": 1, "session": ', DamagedError, "x.json.zst is damaged: no part of it can be read"),
    "wrong types": (b'{"version": 1, "session": {"id": 3}}', FormatError, "is JSON, but no session"),
    "future": (
        json.dumps({**GOOD, "version": 7}).encode(),
        FormatError,
        "version 7; this optree reads up to 1.*pip install -U optree-tracing",
    ),
    "future in zstd": (zstandard.compress(json.dumps({**GOOD, "version": 7}).encode()), FormatError, "version 7"),
    "version as text": (json.dumps({**GOOD, "version": "1"}).encode(), FormatError, "version 1"),
    "zstd of nothing": (zstandard.compress(b""), DamagedError, "no part of it can be read"),
    "zstd magic": (b"\x28\xb5\x2f\xfd", DamagedError, "no part of it can be read"),
    "zstd of text": (zstandard.compress(b"hello"), (FormatError, DamagedError), "x.json.zst"),
    "gzip magic": (b"\x1f\x8b", DamagedError, "no part of it can be read"),
    "gzip of text": (gzip.compress(b"hello"), (FormatError, DamagedError), "x.json.zst"),
    "tar": (b"./file" + bytes(500), FormatError, "neither zstd, gzip nor JSON"),
}


@pytest.fixture
def path(tmp_path):
    """Return the name of a snapshot."""
    return tmp_path / "x.json.zst"


@pytest.mark.parametrize("case", CASES)
def test_a_file_that_is_none_gives_an_error_that_names_it(path, case):
    """Empty, foreign, future and broken files each give one of our errors, with the file's name and what to do."""
    data, kind, said = CASES[case]
    path.write_bytes(data)
    with pytest.raises(kind, match=said):
        load(path)
    assert {} == read_meta(path)


def test_the_smallest_file_loads(path):
    """What the cases are made from is good."""
    path.write_bytes(json.dumps(GOOD).encode())
    assert ("a", "clean", "t") == (load(path).session.agent_id, load(path).damage.state, load(path).txn)


def test_members_that_are_not_known_are_passed_over(path):
    """A file with members of a later minor version loads."""
    path.write_bytes(json.dumps({"flags": [1], **GOOD, "session": {**GOOD["session"], "mood": "blue"}}).encode())
    assert "clean" == load(path).damage.state


@pytest.mark.parametrize("odd", [[1], ["a"], "words", 1, None, True])
def test_attributes_that_are_no_object(path, odd):
    """A session, turn or op with something else in the place of its attributes has none."""
    op = {"opId": "t:1.1", "path": "1.1", "kind": "tool", "name": "x", "startedAt": 1.0, "logs": [], "accounting": [], "attributes": odd}
    turn = {"id": "t:1", "path": "1", "index": 1, "startedAt": 1.0, "ops": [op], "attributes": odd}
    path.write_bytes(json.dumps({**GOOD, "session": {**GOOD["session"], "turns": [turn], "attributes": odd}}).encode())
    loaded = load(path)
    [(session, found, tool)] = walk_ops(loaded.session)
    assert [{}, {}, {}] == [session.attributes, found.attributes, tool.attributes]
    assert "x" in format_tree(loaded.session)


def test_a_file_that_asks_for_terabytes_is_not_unpacked(path, monkeypatch):
    """Unpacking stops at a limit that the error tells, with what to do: a small file cannot fill the memory."""
    monkeypatch.setattr(compression, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(compression, "SPARE_BYTES", 1 << 20)
    bomb = b'{"version":1,"session":"' + b"a" * (64 << 20) + b'"}'
    for data in (zstandard.compress(bomb), gzip.compress(bomb, 1)):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=r"unpacks to more than \d+ MB .* unpack it yourself"):
            load(path)


def test_a_frame_that_lies_about_its_size_is_refused(path):
    """A frame whose header declares an absurd size or window gives an error, not an allocation."""
    path.write_bytes(b"\x28\xb5\x2f\xfd\xe0" + (1 << 44).to_bytes(8, "little") + b"\x01\x00\x00")
    with pytest.raises(OptreeError):
        load(path)


def test_a_file_nested_without_end_is_refused(path):
    """JSON that is nested a hundred thousand levels deep gives an error, not a crash."""
    deep = b'{"version":1,"session":' + b'{"turns":[{"ops":[{"childSession":' * 50_000
    path.write_bytes(deep)
    with pytest.raises(OptreeError):
        load(path)
    path.write_bytes(deep + b"1" + b"}]}]}" * 50_000 + b"}")
    with pytest.raises(OptreeError):
        load(path)


def test_a_symlink_in_the_directory_is_no_session(directory, tmp_path):
    """Links in the sessions directory are not followed: neither snapshots nor live directories."""
    directory.sessions.mkdir(parents=True)
    path = tmp_path / "other.json"
    path.write_bytes(json.dumps(GOOD).encode())
    (directory.sessions / "link.json").symlink_to(path)
    (tmp_path / "elsewhere.live").mkdir()
    (directory.sessions / "linked.live").symlink_to(tmp_path / "elsewhere.live")
    assert [] == directory.saved()
    with pytest.raises(NotFoundError):
        load("link", directory)


def test_a_directory_in_the_place_of_a_snapshot_gives_an_error(directory):
    """A directory with a snapshot's name gives an error, not a traceback of ours."""
    directory.snapshot("a").mkdir(parents=True)
    with pytest.raises((OptreeError, OSError)):
        load("a", directory)


def test_a_journal_of_a_newer_optree_stops_the_load(begin, directory):
    """A session whose journal only a newer optree reads is refused as a whole: half of it would be a lie."""
    builder, store = begin()
    busy(builder)
    store.flush()
    body = b'{"t":"journal","format":2,"minReader":2,"txn":"txn-1","writer":"0001","segment":1,"first":1,"created":1.0,"optree":"3.0.0"'
    (store.live / "j-0001-000001.jsonl").write_bytes(b'%b,"c":"%08x"}\n' % (body, crc32(body)))
    with pytest.raises(FormatError, match=r"j-0001-000001.jsonl was written by optree 3.0.0 in journal format 2"):
        load("txn-1", directory)


def test_names_in_the_live_directory_that_are_not_ours_do_not_matter(begin, directory):
    """Editors' backups and other files in a live directory are passed over."""
    builder, store = begin()
    busy(builder)
    store.flush()
    for name in ("notes.txt", "j-0000-000001.jsonl~", ".j-0000-000002.jsonl.swp", "cursor-otlp.json"):
        (store.live / name).write_bytes(b"\x00")
    loaded = load("txn-1", directory)
    assert ("clean", ["j-0000-000001.jsonl"]) == (loaded.damage.state, loaded.sources)


def test_a_journal_that_is_a_pipe_does_not_block(begin, directory):
    """A named pipe among the journals, which would block for ever when opened, is not opened."""
    builder, store = begin()
    busy(builder)
    store.flush()
    os.mkfifo(store.live / "j-0002-000001.jsonl")
    assert 5 == len(load("txn-1", directory).session.turns[0].ops)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"{}\n", b'{"t":"journal","format":1}\n', b"\n\n\n"])
def test_a_foreign_journal_beside_ours_is_reported(begin, directory, data):
    """A file with a journal's name and other content is damage that is named; the rest loads."""
    builder, store = begin()
    busy(builder)
    store.flush()
    (store.live / "j-0003-000001.jsonl").write_bytes(data)
    loaded = load("txn-1", directory)
    assert 5 == len(loaded.session.turns[0].ops)
    assert ["j-0003-000001.jsonl"] == [flaw.file for flaw in loaded.damage.flaws]
