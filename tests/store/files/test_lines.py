"""Files of JSON lines: every good line is read, every bad one is named by its number."""

import gzip
import io
import json

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from optree import FormatError
from optree._store.files import lines
from optree._store.files.lines import BadLine, LineBlock, decoded, head_of, opened
from tests.growth import peak


class One(msgspec.Struct):
    """A line."""

    a: int


DECODE = msgspec.json.Decoder(One).decode_lines


def read(data, decode=DECODE):
    """Return the values, and the bad lines' numbers."""
    values, bad = [], []
    for part in decoded(io.BytesIO(data), decode):
        if isinstance(part, BadLine):
            bad.append(part.line)
        else:
            values += [value.a for value in part.values]
    return values, bad


@pytest.mark.parametrize(
    ("data", "values", "bad"),
    [
        (b"", [], []),
        (b"\n \n\r\n", [], []),
        (b'{"a":1}', [1], []),
        (b'\xef\xbb\xbf{"a":1}\r\n{"a":2}\r\n', [1, 2], []),
        (b'{"a":1}\n{"a":2}\n{"a"', [1, 2], [3]),
        (b'{"a":1}\nnonsense\n\n{"a":"x"}\n{"a":5}\n', [1, 5], [2, 4]),
        (b'{"a":1,"a":2,"b":3}\n', [2], []),
        (b'\xff\xfe\n{"a":2}\n', [2], [1]),
        (b"[" * 100_000 + b'\n{"a":2}\n', [2], [1]),
    ],
    ids=["empty", "blank", "no newline", "BOM and CRLF", "torn", "in the middle", "duplicate and unknown keys", "not UTF-8", "deep"],
)
def test_whatever_is_wrong_is_named(data, values, bad):
    """Each bad line is found by its number, and all others are read."""
    assert (values, bad) == read(data)


@given(st.lists(st.sampled_from([b'{"a":1}', b'{"a":', b"", b"x", b'{"a":"y"}']), max_size=40), st.integers(8, 60))
def test_blocks_do_not_matter(rows, size):
    """However the lines fall into blocks, the same lines are good and bad."""
    before, lines.BLOCK_BYTES = lines.BLOCK_BYTES, size
    try:
        values, bad = read(b"\n".join(rows))
    finally:
        lines.BLOCK_BYTES = before
    assert [1] * rows.count(b'{"a":1}') == values
    assert [number for number, row in enumerate(rows, 1) if row not in {b'{"a":1}', b""}] == bad


def test_a_value_knows_its_line():
    """Blank lines count, and so do several values on one line."""
    (block,) = decoded(io.BytesIO(b'\n{"a":1}\n\n{"a":2} {"a":3}\n{"a":4}\n'), DECODE)
    assert isinstance(block, LineBlock)
    assert [2, 4, 4, 5] == [block.line_of(index) for index in range(4)]


@pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, zstandard.compress, lambda data: zstandard.compress(data[:9]) + zstandard.compress(data[9:])]
)
def test_compressed_files(tmp_path, pack):
    """Files of gzip and zstd, also of several frames, are unpacked as they are read."""
    path = tmp_path / "lines"
    path.write_bytes(pack(b'{"a":1}\n{"a":2}\n'))
    with opened(path) as file:
        assert [1, 2] == [value.a for block in decoded(file, DECODE) for value in block.values]
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.read(1)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_the_beginning_of_a_file(tmp_path, pack):
    """So many bytes are unpacked as are asked for, no more; of a file that has less, or breaks off, what there is, of a directory none."""
    path, text = tmp_path / "lines", b"".join(b"%d\n" % number for number in range(100_000))
    path.write_bytes(pack(text))
    for limit in (0, 1, 5000, 100_000):
        assert text[:limit] == head_of(path, limit)
    assert text == head_of(path, 2 * len(text))
    path.write_bytes(pack(text)[:-200])
    assert text[:100_000] == head_of(path, 100_000)
    assert text.startswith(head_of(path, 2 * len(text)))
    assert b"" == head_of(tmp_path)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_compressed_file_that_breaks_off(tmp_path, pack):
    """What can be unpacked is read, up to the line that is torn."""
    path = tmp_path / "lines"
    rows = b"".join(json.dumps({"a": number, "b": str(number * 7919)}).encode() + b"\n" for number in range(200_000))
    path.write_bytes(pack(rows)[:-2000])
    with opened(path) as file:
        parts = list(decoded(file, DECODE))
    values = [value.a for part in parts if isinstance(part, LineBlock) for value in part.values]
    assert list(range(len(values))) == values
    assert 100_000 < len(values) < 200_000


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_what_breaks_off_is_told(tmp_path, pack):
    """A small file that breaks off gives what it holds, and a fault at the line where it does, also where that is between two lines."""
    path = tmp_path / "lines"
    rows = b"".join(json.dumps({"a": number, "b": str(number * 7919)}).encode() + b"\n" for number in range(20_000))
    for cut in (pack(rows)[:-1500], zstandard.compress(rows)[:-4] if pack is zstandard.compress else gzip.compress(rows)[:-8]):
        path.write_bytes(cut)
        with opened(path) as file:
            parts = list(decoded(file, DECODE))
        count = sum(len(part.values) for part in parts if isinstance(part, LineBlock))
        assert isinstance(parts[-1], BadLine)
        assert count + 1 == parts[-1].line
        assert count > 100


def test_memory_is_bounded(tmp_path):
    """A file of 40 MB takes the memory of some blocks, as one of 5 MB does."""
    path = tmp_path / "lines"

    def reading(count):
        path.write_bytes(b'{"a":1234567}\n' * count)

        def work():
            with opened(path) as file:
                assert count == sum(len(block.values) for block in decoded(file, DECODE))

        return work

    assert peak(reading(5_000_000 // 14)) * 2 > peak(reading(40_000_000 // 14))


def test_a_line_without_end_is_given_up(monkeypatch):
    """A file that is no file of lines is not read into memory."""
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 3 << 20)
    with pytest.raises(FormatError, match="longer than"):
        list(decoded(io.BytesIO(b"x" * (5 << 20)), DECODE))
