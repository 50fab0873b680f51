"""What each reader makes of files that are not as they should be: it says where, goes on, and ends."""

import gzip
import random
import shutil
from functools import partial

import pytest
import zstandard

from optree._formats.installed import detected
from optree._tree import walk_sessions
from optree.errors import FormatError, OptreeError
from tests.formats.samples import FORMATS, WRITTEN, placed, sample
from tests.growth import SQUARE, growth

NAMES = [form.name for form in FORMATS]
LINES = [form for form in FORMATS if form.name in ("events", "events-v1", "transcript", "ai-agent-v3", "claude-code", "codex")]
"""Formats whose files are a record a line."""
every = pytest.mark.parametrize("form", FORMATS, ids=NAMES)
of_written = pytest.mark.parametrize("form", WRITTEN, ids=[form.name for form in WRITTEN])
of_lines = pytest.mark.parametrize("form", LINES, ids=[form.name for form in LINES])


@pytest.fixture
def written(form, tmp_path):
    """Return what to read a sample session from, and the file in it that is to be damaged."""
    target = tmp_path / "out" / f"t{form.suffix}"
    target.parent.mkdir()
    return target, placed(form, target)


def read(form, path):
    """Read what is there; what is none of it raises our own errors only."""
    try:
        return form.read(path)
    except (OptreeError, OSError):
        return None


def spoken(tree):
    """Return how much is in a tree."""
    return sum(1 + len(session.messages) + sum(1 + len(turn.ops) for turn in session.turns) for session in walk_sessions(tree.session))


@every
def test_what_is_written_is_detected_by_nobody_else(form, written):
    """A format's own files are known by their content, to that format alone."""
    target, _ = written
    assert [form.name] == [one.name for one in detected(target, FORMATS)]


@every
@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gzip", "zstd"])
def test_packed_files_are_read(form, written, pack):
    """A file that was packed with gzip or zstd is read, and detected, as it was."""
    target, file = written
    before = read(form, target)
    data = file.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    packed = file.with_name(f"{file.name}.packed")
    packed.write_bytes(pack(data))
    packed.replace(file)
    assert form.name in [one.name for one in detected(target, FORMATS)]
    found = read(form, target)
    assert spoken(before.trees[0]) == spoken(found.trees[0])


@every
def test_a_file_cut_anywhere_ends_the_reading_well(form, written):
    """A file that breaks off is read as far as it goes, or refused with an error of ours; nothing else is raised."""
    target, file = written
    data = file.read_bytes()
    for length in range(0, len(data), 97):
        file.write_bytes(data[:length])
        read(form, target)


@every
def test_noise_ends_the_reading_well(form, written):
    """Random bytes, alone or within a file, raise nothing but errors of ours."""
    target, file = written
    data = file.read_bytes()
    chance = random.Random(7)
    for size in (0, 1, 3, 97, 5000):
        file.write_bytes(chance.randbytes(size))
        read(form, target)
    for _ in range(60):
        at = chance.randrange(len(data))
        file.write_bytes(data[:at] + chance.randbytes(chance.randrange(1, 40)) + data[at + chance.randrange(40) :])
        read(form, target)


@every
@pytest.mark.parametrize("beginning", [b"", b"{", b"[", b'{"object"'])
@pytest.mark.parametrize("blanks", [b"\n", b" ", b"\n ", b"#\n", b"- ", b"`", b"a "])
def test_what_repeats_is_looked_at_in_linear_time(form, tmp_path, beginning, blanks):
    """Whether a file is of a format is told in a time that grows with what is looked at, whatever stands there."""
    assert SQUARE > growth(lambda size: partial(form.detect, tmp_path / "x", beginning + blanks * size), 500)


@every
def test_json_of_another_kind_ends_the_reading_well(form, written):
    """Values of any other type in any place of a document raise nothing but errors of ours."""
    target, file = written
    data = file.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    places = [at for at in range(len(data)) if data[at : at + 1] == b":"]
    for place in places[:: max(1, len(places) // 30)]:
        for value in (b"null,", b"[],", b"{},", b'"x",', b"1e999,", b"-1,", b'"x":'):
            file.write_bytes(data[: place + 1] + value + data[place + 1 :])
            read(form, target)
            comma = data.find(b",", place)
            if comma > 0:
                file.write_bytes(data[: place + 1] + value[:-1] + data[comma:])
                read(form, target)


@of_lines
def test_a_bad_line_is_reported_by_its_number(form, written):
    """A bad line in the middle and a torn last one are reported by number, and all others are read."""
    target, file = written
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], b'{"broken": \n', *lines[1:], lines[-1][: len(lines[-1]) // 2]]))
    found = form.read(target)
    assert {2, len(lines) + 2} <= {fault.line for fault in found.faults}
    with pytest.raises(FormatError, match="2"):
        form.read(target, strict=True)


@of_lines
@pytest.mark.parametrize(
    "change", [lambda data: b"\xef\xbb\xbf" + data, lambda data: data.replace(b"\n", b"\r\n"), lambda data: data.rstrip(b"\n")]
)
def test_marks_and_line_ends_of_others_do_not_matter(form, written, change):
    """A byte order mark, CRLF, and a last line without an end change nothing."""
    target, file = written
    before = form.read(target)
    file.write_bytes(change(file.read_bytes()))
    found = form.read(target)
    assert before.faults == found.faults
    assert [spoken(tree) for tree in before.trees] == [spoken(tree) for tree in found.trees]


@of_lines
def test_unknown_members_and_types_are_not_in_the_way(form, written):
    """A member that nobody knows changes nothing, and a type that nobody knows is reported by its line."""
    target, file = written
    lines = file.read_bytes().splitlines()
    first = b'{"unknown_member": {"a": [1]}, ' + lines[0].lstrip()[1:]
    strange = b'{"event_type": "of_tomorrow", "type": "of_tomorrow", "recordType": "of_tomorrow", "version": 3, "sessionId": "t"}'
    before = form.read(target)
    file.write_bytes(b"\n".join([first, *lines[1:], strange]) + b"\n")
    found = form.read(target)
    assert [spoken(tree) for tree in before.trees] == [spoken(tree) for tree in found.trees]
    assert len(lines) + 1 in {fault.line for fault in found.faults}


@of_lines
def test_the_same_lines_twice_are_there_once(form, written):
    """Lines that are delivered twice are reported, and make nothing twice."""
    target, file = written
    lines = file.read_bytes().splitlines(keepends=True)
    before = form.read(target)
    file.write_bytes(b"".join(lines + lines))
    found = form.read(target)
    assert found.faults
    assert [spoken(tree) for tree in before.trees] == [spoken(tree) for tree in found.trees]


@of_lines
def test_duplicate_keys_are_read(form, written):
    """A member that is there twice has its last value, as JSON readers have it, and nothing fails."""
    target, file = written
    lines = file.read_bytes().splitlines()
    before = form.read(target)
    key, _, _ = lines[0].lstrip()[1:].partition(b",")
    file.write_bytes(b"\n".join([b"{" + key + b", " + lines[0].lstrip()[1:], *lines[1:]]) + b"\n")
    found = form.read(target)
    assert [spoken(tree) for tree in before.trees] == [spoken(tree) for tree in found.trees]


@of_written
def test_what_is_there_is_not_overwritten(form, written):
    """A second export to the same place is refused, and changes nothing."""
    target, file = written
    before = file.read_bytes()
    with pytest.raises(OptreeError, match=r"there already|already: remove it"):
        form.write(sample(), target)
    assert before == file.read_bytes()


@of_written
def test_files_are_for_their_owner_only(form, written):
    """What an export writes, only its owner can read."""
    _, file = written
    assert 0o600 == file.stat().st_mode & 0o777, form.name


@every
def test_a_missing_file_is_an_error_of_the_system(form, written):
    """A file that is not there gives an error that names it, of ours or the system's."""
    target, _ = written
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    with pytest.raises((OptreeError, OSError)):
        form.read(target)
