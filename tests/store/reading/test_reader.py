"""Reading journals: the valid part, and an exact account of the rest."""

import gzip
import random
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import msgspec
import pytest

from optree import _records as r
from optree._nodes import LogEntry
from optree._store import SessionStore, load
from optree._store.files.system import OS
from optree._store.reading.directory import Directory
from optree._store.reading.numbering import last_number, saved_vector
from optree._store.reading.reader import agreed_seed, read_journal
from optree._store.saving import StoreOptions
from optree._tree import walk_ops
from optree.errors import FormatError

GOLDEN = Path(__file__).parents[1] / "golden" / "journal-1.jsonl"
DATA = GOLDEN.read_bytes()
LINES = DATA.splitlines(keepends=True)
STARTS = [sum(map(len, LINES[:number])) for number in range(len(LINES) + 1)]
WHOLE = read_journal(GOLDEN).records


class Memory(OS):
    """A disk that holds one file."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def pieces(self, path: Path) -> Iterator[bytes]:  # noqa: ARG002 - there is but one
        """Yield it, a few bytes at once."""
        return (self.data[at : at + 997] for at in range(0, len(self.data), 997))


def read(data, after=0):
    """Read bytes as a journal."""
    return read_journal(GOLDEN, after, Memory(data))


def as_written(found):
    """Tell whether each record that was read is one that was written."""
    return all(record == WHOLE[record.n - 1] for record in found.records)


def line(record, seed):
    """Return a record as a line of a file whose header gives *seed*."""
    return r.line(record, seed)


SEED = crc32(LINES[0])


def test_the_golden_journal_is_clean():
    """All records of an undamaged file are there, numbered without a gap (S4-97)."""
    found = read(DATA)
    assert [] == found.flaws
    assert list(range(1, len(LINES))) == [record.n for record in found.records]
    assert 27 == len(WHOLE)


def test_every_flipped_byte_is_found():
    """Whatever single byte of a journal changes, in whatever way, it is reported, and nothing false is read."""
    choice = random.Random(1)
    for offset in range(len(DATA)):
        changed = bytearray(DATA)
        changed[offset] ^= choice.randrange(1, 256)
        found = read(bytes(changed))
        assert found.flaws, offset
        assert as_written(found), offset


def test_every_missing_byte_is_found():
    """Whatever single byte is taken out, it is reported, and nothing false is read; only the last newline is no loss."""
    for offset in range(len(DATA)):
        found = read(DATA[:offset] + DATA[offset + 1 :])
        assert found.flaws, offset
        assert as_written(found), offset


def test_every_truncation_is_a_torn_tail_or_harmless():
    """A file cut anywhere gives what was whole before the cut; the rest is a torn tail with its exact place and size."""
    for size in range(1, len(DATA)):
        found = read(DATA[:size])
        whole = max(number for number, start in enumerate(STARTS) if start <= size)
        assert WHOLE[: max(0, whole - 1)] == found.records
        torn = [("torn tail", STARTS[whole], size - STARTS[whole])] if size > STARTS[whole] else []
        assert torn == [(flaw.kind, flaw.offset, flaw.size) for flaw in found.flaws]


def test_an_empty_file_is_no_damage():
    """By itself a file of no bytes tells nothing: it was made, and nothing was written yet. `test_emptied.py` has what tells more."""
    found = read(b"")
    assert [] == found.flaws
    assert (None, []) == (found.header, found.records)


@pytest.mark.parametrize("number", [1, 10, 20])
def test_a_corrupt_line_in_the_middle_costs_itself(number):
    """What follows a damaged line is read; the damage is said with its place and size to the byte."""
    changed = LINES[number].replace(b'"', b"'", 1)
    found = read(b"".join([*LINES[:number], changed, *LINES[number + 1 :]]))
    assert WHOLE[: number - 1] + WHOLE[number:] == found.records
    assert [("corrupt", STARTS[number], len(changed)), ("lost records", STARTS[number + 1], 0)] == [
        (flaw.kind, flaw.offset, flaw.size) for flaw in found.flaws
    ]
    assert f"at byte {STARTS[number]}, {len(changed)} bytes" in str(found.flaws[0])


def test_missing_lines_are_seen_by_their_numbers():
    """Lines that are gone altogether are missed by their numbers."""
    found = read(b"".join([*LINES[:5], *LINES[8:]]))
    assert ["records 5 to 7 are missing"] == [flaw.said for flaw in found.flaws]


def test_missing_numbers_that_a_gap_tells_of_are_no_flaw():
    """A writer says which numbers a failed sync took from it: those, and no others, are told once, as records that it counts."""
    missed = ["records 5 to 7 are missing"]
    for omitted, expected in (([], missed), ([(5, 6)], missed), ([(5, 7)], []), ([(2, 3), (5, 7)], [])):
        gap = line(r.Gap(1.0, 3, "", omitted, n=len(LINES)), SEED)
        for after in (0, 6, len(LINES)):
            found = read(b"".join([*LINES[:5], *LINES[8:], gap]), after)
            assert expected == [flaw.said for flaw in found.flaws], (omitted, after)
            assert len(LINES) == found.last


def test_zeros_behind_the_end_are_a_torn_tail():
    """Zeros, as a file system leaves them after power loss, are no records."""
    found = read(DATA + bytes(4096))
    assert WHOLE == found.records
    assert [("torn tail", len(DATA), 4096)] == [(flaw.kind, flaw.offset, flaw.size) for flaw in found.flaws]


def test_lines_of_another_journal_do_not_pass():
    """Valid lines of another file, as a re-used block may hold them, fail the checksum that the header seeds."""
    other = line(r.TurnBegin("99", 1.0, n=28), crc32(b"another header"))
    own = line(r.TurnBegin("99", 1.0, n=28), SEED)
    assert ["corrupt"] == [flaw.kind for flaw in read(DATA + other).flaws]
    assert [] == read(DATA + own).flaws


@pytest.mark.parametrize("data", [b"hello\n", b'{"t":"journal"}\n', LINES[1], b"\x00" * 64 + b"\n"])
def test_a_foreign_file_is_called_so(data):
    """A file that does not begin with our header gives nothing, and is called foreign."""
    found = read(data)
    assert [("foreign", 0, len(data))] == [(flaw.kind, flaw.offset, flaw.size) for flaw in found.flaws]
    assert [] == found.records


def test_a_journal_for_newer_readers_is_refused_with_advice():
    """A header whose minReader is above ours gives an error that names the version and what to do."""
    header, _ = r.header_line(r.Header(9, 2, "golden-1", "0000", 1, 1, 0.0, "9.1.0"))
    with pytest.raises(FormatError, match=r"optree 9\.1\.0 in journal format 9.*pip install -U optree-tracing"):
        read(header)


def test_a_newer_format_that_old_readers_may_read_is_read():
    """A header of a newer format with minReader 1 is read, and members that it adds are passed over."""
    header, seed = r.header_line(r.Header(2, 1, "golden-1", "0000", 1, 1, 0.0, "9.1.0"))
    body = b'{"t":"turn.begin","path":"1","ts":1.0,"colour":"blue","n":1'
    found = read(header + b'%b,"c":"%08x"}\n' % (body, crc32(body, seed)))
    assert [] == found.flaws
    assert [r.TurnBegin("1", 1.0, n=1)] == found.records


def test_a_record_of_an_unknown_type_is_counted_and_passed_over():
    """A type that only a newer optree knows is no damage to what follows it."""
    body = b'{"t":"teleport","path":"1","n":28'
    more = b'%b,"c":"%08x"}\n' % (body, crc32(body, SEED))
    found = read(DATA + more + line(r.TurnBegin("99", 1.0, n=29), SEED))
    assert (1, []) == (found.unknown, found.flaws)
    assert "99" == found.records[-1].path


def test_a_line_with_the_right_checksum_and_a_wrong_shape_is_corrupt():
    """A record that does not follow the schema is reported, not raised."""
    body = b'{"t":"turn.begin","path":7,"n":28'
    found = read(DATA + b'%b,"c":"%08x"}\n' % (body, crc32(body, SEED)))
    assert WHOLE == found.records
    assert ["corrupt"] == [flaw.kind for flaw in found.flaws]
    assert "does not follow the schema" in found.flaws[0].said


def test_what_a_snapshot_covers_is_left_out():
    """Records up to a given number are checked and left out."""
    assert WHOLE[20:] == read(DATA, 20).records


def test_the_last_number_of_a_file():
    """A writer goes on from the number of the last record that can be read; of a file that has none, from 0."""
    assert [27, 1, 0] == [last_number(GOLDEN, Memory(b"".join(LINES[:lines]))) for lines in (28, 2, 1)]


def test_what_snapshots_have_of_each_writer(tmp_path):
    """What a session's snapshots say of their records is taken together; what can be no writer, or no number, is left out."""
    directory = Directory.of(tmp_path)
    directory.sessions.mkdir(parents=True)
    said = {"0000": 0, "0001": 5, "123": 1, "x": 1, "0002": -1, "0003": 2**53, "0004": True, "0005": 2**53 - 1}
    directory.snapshot("t", "none").write_bytes(msgspec.json.encode({"version": 1, "meta": {"journal": said}}))
    assert {"0000": 0, "0001": 5, "0005": 2**53 - 1} == saved_vector(directory, "t")
    directory.snapshot("t", "gzip").write_bytes(gzip.compress(b'{"version":1,"meta":{"journal":{"0000":7,"0001":4}}}'))
    assert {"0000": 7, "0001": 5, "0005": 2**53 - 1} == saved_vector(directory, "t")


def test_details_of_a_log_line_come_back():
    """A log line with details is read as it was written (S4-97)."""
    from optree._nodes import LogEntry
    from optree._values import raw

    entry = LogEntry(1.0, "VRB", "sent", None, raw({"size": 3}))
    found = read(DATA + line(r.Entries("1.1", 1, [entry], n=28), SEED))
    assert [] == found.flaws
    assert b'{"size":3}' == bytes(found.records[-1].logs[0].details)


def test_a_line_that_is_there_twice_counts_once(begin, directory):
    """A repeated line adds nothing, and is said: not even the log lines of another process, which have no places of their own."""
    _, store = begin()
    store.flush()
    joined = SessionStore("txn-1", StoreOptions(directory), owner=False)
    for record in (r.OpBegin("1.1000001", 1.0, "tool", "far"), r.Entries("1.1000001", -1, [LogEntry(1.0, "VRB", "once")])):
        joined.stream.put(record)
        joined.stream.flush()
    joined.close(0.0)
    path = joined.journal.path
    data = path.read_bytes()
    path.write_bytes(data + data.splitlines(keepends=True)[-1])
    loaded = load("txn-1", directory)
    (op,) = [op for *_, op in walk_ops(loaded.session)]
    assert (["once"], "damaged", []) == ([entry.message for entry in op.logs], loaded.damage.state, loaded.damage.lost())
    assert ["j-0001-000001.jsonl: record 2 is there again, and passed over"] == [
        line.partition(" (at")[0] for line in loaded.damage.lines()
    ]


def test_a_line_that_is_there_twice_is_not_kept_aside(begin, directory):
    """An interrupt behind a write has the record written again: the session ends without a copy of that file, since nothing is missing."""
    builder, store = begin()
    store.flush()
    joined = SessionStore("txn-1", StoreOptions(directory), owner=False)
    joined.stream.put(r.OpBegin("1.1000001", 1.0, "tool", "far"))
    joined.stream.flush()
    joined.close(0.0)
    path = joined.journal.path
    data = path.read_bytes()
    path.write_bytes(data + data.splitlines(keepends=True)[-1])
    builder.end_session()
    store.close(60.0)
    assert ["txn-1.json.zst"] == sorted(path.name for path in directory.sessions.iterdir())


@pytest.mark.parametrize("garbage", [b"\0" * 40, b"garbage", b"\n", b'{"t":"journal","format":9'])
def test_a_journal_whose_header_is_garbage_loses_the_header(garbage):
    """Of a journal whose first line was damaged all records are read: they are checked by the seed that their checksums agree on."""
    found = read(garbage + DATA[len(garbage) :])
    assert (WHOLE, None, 1) == (found.records, found.header, found.first)
    flaws = found.flaws[: 1 + garbage.count(b"\n")]
    assert (flaws, ["corrupt"], STARTS[1]) == (found.flaws, [*{flaw.kind for flaw in flaws}], sum(flaw.size for flaw in flaws))
    assert "its first line is damaged; the others are checked by what their checksums agree on" == flaws[0].said


def test_no_flipped_bit_of_a_header_costs_a_record():
    """Whichever bit of the first line is flipped, its newline's too, all records are read and the damage is said."""
    for bit in range(8 * len(LINES[0])):
        found = read(DATA[: bit // 8] + bytes([DATA[bit // 8] ^ 1 << bit % 8]) + DATA[bit // 8 + 1 :])
        assert WHOLE == found.records, bit
        assert (0, "corrupt") == (found.flaws[0].offset, found.flaws[0].kind), bit


def test_a_header_that_is_gone_costs_no_record():
    """A journal without its first line, and one of which the first kilobyte is zeros, gives the records that it has."""
    assert WHOLE == read(b"".join(LINES[1:])).records
    kept = next(number for number, start in enumerate(STARTS) if start > 1024)
    zeroed = read(bytes(1024) + DATA[1024:])
    assert (WHOLE[kept - 1 :], [("corrupt", 0, STARTS[kept])]) == (
        zeroed.records,
        [(flaw.kind, flaw.offset, flaw.size) for flaw in zeroed.flaws],
    )


@pytest.mark.parametrize("which", range(1, len(LINES)))
def test_a_later_record_in_the_place_of_the_header(which):
    """Whichever record stands where the first line was, moved there or copied, each record is read once, in order, and none is missing."""
    gone = "its first line is missing; the others are checked by what their checksums agree on"
    moved = read(b"".join([LINES[which], *LINES[1:which], *LINES[which + 1 :]]))
    assert (WHOLE, [gone]) == (moved.records, [flaw.said for flaw in moved.flaws])
    copied = read(b"".join([LINES[which], *LINES[1:]]))
    assert (WHOLE, [gone, f"record {which} is there again, and passed over"]) == (copied.records, [flaw.said for flaw in copied.flaws])


def test_a_number_far_ahead_takes_no_time():
    """Behind a record whose number is far ahead all between is missing, and saying so takes no step for each."""
    far = 10**15
    found = read(DATA + line(r.OpBegin("1.9", 1.0, "tool", "x", n=far), SEED))
    [flaw] = found.flaws
    assert ("lost records", f"records {WHOLE[-1].n + 1} to {far - 1} are missing") == (flaw.kind, flaw.said)


def test_records_in_reverse_without_a_header():
    """Of a file whose lines stand in reverse, the first one gone, each record is read, in order, and none is missing."""
    found = read(b"".join(reversed(LINES[1:])))
    assert (WHOLE, ["corrupt"]) == (found.records, [flaw.kind for flaw in found.flaws])


def test_records_that_stand_in_another_order():
    """Records of a file with its first line that stand behind later ones are read once, in order; only what is in none is missing."""
    found = read(b"".join([LINES[0], *LINES[5:9], LINES[2], LINES[1], LINES[2], *LINES[9:]]))
    assert [record for record in WHOLE if record.n not in (3, 4)] == found.records
    said = [("repeated", "record 2 is there again, and passed over"), ("lost records", "records 3 to 4 are missing")]
    assert said == [(flaw.kind, flaw.said) for flaw in found.flaws]


@pytest.mark.parametrize("lines", [1, 2])
def test_lines_that_do_not_agree_are_not_shown(lines):
    """Without a first line one record is none, nor are two of which one was changed: with some seed each by itself would be right."""
    changed = LINES[2].replace(b'"', b"'", 1)
    found = read(b"".join([b"garbage\n", LINES[1], changed][: lines + 1]))
    assert ([], None) == (found.records, found.header)
    (flaw,) = found.flaws
    assert ("corrupt", "its first line is damaged, and without it too few other lines can be checked") == (flaw.kind, flaw.said)


def test_two_lines_that_agree_beside_more_that_do_not_are_not_shown():
    """Without a first line two lines agree on a seed, and five that were changed in other places on none: nothing is shown."""
    changed = [line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :] for place, line in enumerate(LINES[3:8], 10)]
    data = b"".join([b"garbage\n", *LINES[1:3], *changed])
    assert None is agreed_seed(GOLDEN, Memory(data))
    assert SEED == agreed_seed(GOLDEN, Memory(b"".join([b"garbage\n", *LINES[1:3], changed[0]])))
    found = read(data)
    assert ([], None, ["corrupt"]) == (found.records, found.header, [flaw.kind for flaw in found.flaws])


def test_a_text_that_was_replaced_in_many_lines_is_not_shown():
    """Lines changed at one place in one way agree with each other on a wrong seed: they are not most of all, and not shown."""
    lines = [LINES[0].replace(b"golden", b"golfen"), *LINES[1:]]
    begun = [number for number, text in enumerate(lines) if text.startswith(b'{"t":"op.begin","path":"1')]
    assert 1 < len(begun) < len(lines) / 2
    for number in begun:
        lines[number] = lines[number].replace(b'"path":"1', b'"path":"2', 1)
    found = read(b"".join(lines))
    assert [record for number, record in enumerate(WHOLE, 1) if number not in begun] == found.records


def test_a_newline_that_is_damaged_costs_one_record():
    """Where two lines have become one, the second is read."""
    for other in (b"", b"\x0b", b"}"):
        found = read(b"".join([*LINES[:5], LINES[5][:-1] + other, *LINES[6:]]))
        assert WHOLE[:4] + WHOLE[5:] == found.records
        assert ("corrupt", STARTS[5], len(LINES[5]) - 1 + len(other)) == (found.flaws[0].kind, found.flaws[0].offset, found.flaws[0].size)


def test_a_file_of_other_bytes_is_called_foreign():
    """A file without anything like our lines is foreign."""
    assert ["foreign"] == [flaw.kind for flaw in read(b"\xfe" * 300).flaws]
