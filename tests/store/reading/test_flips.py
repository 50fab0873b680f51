"""A bit of a saved file is changed: nothing that is shown of it is altered. `OPTREE_FLIPS=all` changes every bit, one after the other."""

import os
import random
import shutil

import msgspec
import pytest

from optree import _records as r
from optree._nodes import LogEntry, SessionNode
from optree._store import Directory, SessionStore, load
from optree._store.reading.directory import SUFFIXES, journals
from optree._store.reading.formats import read_meta
from optree._tree.walk import to_plain
from optree.errors import OptreeError
from tests.store.test_journal import busy

SAMPLE = None if os.environ.get("OPTREE_FLIPS") == "all" else 300
KINDS = [*SUFFIXES, "owner", "resumed", "joined"]
DERIVED = {"totals", "seenAt", "count", "bytes", "success"}
"""Members that say what the rest comes to: of less, they come to less."""


UNKNOWN = "(unknown)"
GIVEN_AT_BEGIN = {"name", "kind", "agentId", "callPath", "startedAt"}
"""Members that stand in for what the lost begin of a node said: its name is `UNKNOWN` then, and it began when it was first seen."""


def bits(size):
    """Return the bits that are changed."""
    every = range(size * 8)
    return every if SAMPLE is None else random.Random(size).sample(every, min(SAMPLE, len(every)))


def leaves(value, place=()):
    """Yield each value of a tree by its place; nodes stand under their paths, entries under their number."""
    if isinstance(value, dict):
        for key, one in value.items():
            if key not in DERIVED:
                yield from leaves(one, (*place, key))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from leaves(one, (*place, (one.get("path") or one.get("id") or number) if isinstance(one, dict) else number))
    else:
        yield place, value


def saved(begin, again, killed, kind):
    """Make a session; returns where it is, and the file of which bits are changed."""
    builder, store = begin(compression=kind if kind in SUFFIXES else "zstd", attributes={"ingress": {"from": "here"}})
    busy(builder, 2)
    if kind in SUFFIXES:
        builder.end_session()
        assert store.flush("snapshot")
        assert store.close(30.0)
        return store.options.directory, store.options.directory.snapshot("txn-1", kind)
    if kind == "joined":
        joined = SessionStore("txn-1", store.options, owner=False)
        for number in range(3):
            joined.stream.put(r.OpBegin(f"1.{1_000_001 + number}", 1.0, "tool", f"far {number}"))
            joined.stream.put(r.Entries(f"1.{1_000_001 + number}", 0, [LogEntry(1.0, "VRB", f"line {number}")]))
            joined.stream.flush()
        joined.close(0.0)
    store.flush()
    image = killed()
    if kind == "resumed":
        resumed, after = again("txn-1", image)
        assert after.flush("snapshot")
        busy(resumed, 1)
        after.flush()
        image = killed(image)
        shutil.rmtree(image.sessions / "txn-1.json.zst", ignore_errors=True)
        image.snapshot("txn-1").unlink()
    return image, journals(image.live("txn-1"))[-1 if kind != "owner" else 0]


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_shows_altered_values(begin, again, killed, kind):
    """Whichever bit of a snapshot or a journal is flipped, each value that a load or a listing shows is the one that was recorded."""
    directory, path = saved(begin, again, killed, kind)
    whole, data, meta = load("txn-1", directory), path.read_bytes(), read_meta(path) if kind in SUFFIXES else {}
    known = dict(leaves(to_plain(whole.tree)))
    shown = silent = 0
    for bit in bits(len(data)):
        path.write_bytes(data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :])
        assert read_meta(path) in ({}, meta) if kind in SUFFIXES else True
        try:
            loaded = load("txn-1", directory)
        except OptreeError:
            continue
        found = dict(leaves(to_plain(loaded.tree)))
        unknown = {place[:-1] for place, value in found.items() if value == UNKNOWN}
        unknown |= {place[:-2] for place in known if place[-2:-1] == ("prompts",) and place not in found}  # a turn's begin has its prompts
        altered = {
            place: value
            for place, value in found.items()
            if known.get(place) != value and not (place[:-1] in unknown and place[-1] in GIVEN_AT_BEGIN)
        }
        assert {} == altered, f"bit {bit} of {kind}"
        shown += 1
        silent += loaded.damage.state == "clean" and found != known
    assert 0 == silent
    assert shown or kind in ("none", "owner", "gzip", "zstd")
    assert isinstance(whole.session, SessionNode)


@pytest.mark.parametrize("kind", ["owner", "resumed", "joined"])
def test_no_flipped_bit_of_a_header_costs_anything(begin, again, killed, kind):
    """Whichever bit of a journal's first line is flipped, the whole session is shown, and the damage is said."""
    directory, path = saved(begin, again, killed, kind)
    data = path.read_bytes()
    known = dict(leaves(to_plain(load("txn-1", directory).tree)))
    header = data.index(b"\n") + 1
    for bit in range(header * 8) if SAMPLE is None else random.Random(header).sample(range(header * 8), SAMPLE):
        path.write_bytes(data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :])
        loaded = load("txn-1", directory)
        assert (known, "damaged") == (dict(leaves(to_plain(loaded.tree))), loaded.damage.state), f"bit {bit} of {kind}"
        assert "its first line is damaged" in "".join(loaded.damage.lines())


def test_a_damaged_header_outlives_a_resume(begin, again, killed):
    """A session whose journal's first line is damaged goes on with all that it had: numbers go on, and the original is kept aside."""
    builder, store = begin()
    busy(builder, 4)
    store.flush()
    image = killed()
    image.snapshot("txn-1").unlink(missing_ok=True)
    path = journals(image.live("txn-1"))[0]
    data = bytearray(path.read_bytes())
    data[20] ^= 4
    path.write_bytes(data)
    had = load("txn-1", image)
    resumed, after = again("txn-1", image)
    assert max(had.vector.values()) < after.journal.last
    resumed.end_session()
    assert after.close(30.0)
    assert bytes(data) == (image.sessions / "txn-1.damaged" / path.name).read_bytes()
    ended = load("txn-1", image)
    assert [turn.path for turn in had.session.turns] == [turn.path for turn in ended.session.turns]
    assert "its first line is damaged" in "".join(ended.damage.lines())


@pytest.mark.parametrize("kind", [*SUFFIXES, "owner"])
def test_a_damaged_original_outlives_a_resume(begin, again, killed, kind):
    """A session of which a file is damaged goes on: the file is kept as it was, in a place that is said, to the end and behind it."""
    builder, store = begin(compression=kind if kind in SUFFIXES else "zstd")
    busy(builder, 40)
    store.flush()
    if kind in SUFFIXES:
        assert store.snapshot()
    image = killed()
    path = image.snapshot("txn-1", kind) if kind in SUFFIXES else journals(image.live("txn-1"))[0]
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 4
    path.write_bytes(data)
    resumed, after = again("txn-1", image, compression=kind if kind in SUFFIXES else "zstd")
    resumed.end_session()
    assert after.close(30.0)
    assert bytes(data) == (image.sessions / "txn-1.damaged" / path.name).read_bytes()


def test_a_file_that_was_edited_is_read_without_its_sum(begin, directory):
    """A plain snapshot that somebody edited is refused, with what to do: its checksum goes out, and it is read as it is."""
    builder, store = begin(compression="none")
    busy(builder, 1)
    builder.end_session()
    assert store.close(30.0)
    path = directory.snapshot("txn-1", "none")
    document = msgspec.json.decode(path.read_bytes())
    document["session"]["sessionTitle"] = "edited"
    path.write_bytes(msgspec.json.encode(document))
    with pytest.raises(OptreeError, match=r'does not match its checksum: it was changed; .* take its last member out, "crc"'):
        load("txn-1", directory)
    del document["crc"]
    path.write_bytes(msgspec.json.encode(document))
    assert "edited" == load("txn-1", Directory.of(directory.sessions.parent)).session.session_title
