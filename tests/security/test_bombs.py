"""Files that ask for far more than they hold: packed, nested, repeated. Nothing of them is made before they are refused."""

import gzip
import json
import tracemalloc
from contextlib import contextmanager, suppress

import pytest
import zstandard

from optree._formats.ai_agent import AI_AGENT_V3
from optree._store import load
from optree._store.files import compression
from optree._store.files.lines import check_size, opened
from optree.errors import FormatError, OptreeError
from tests.cli.conftest import CommandLine
from tests.formats.samples import FORMATS, placed
from tests.growth import SQUARE, growth

PACKERS = {"gzip": lambda data: gzip.compress(data, 9), "zstd": zstandard.ZstdCompressor(19).compress}
packed = pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
every = pytest.mark.parametrize("form", FORMATS, ids=[form.name for form in FORMATS])
START = {"recordType": "session_start", "version": 3, "sessionId": "s", "agentId": "a", "seq": 1}


@contextmanager
def within(most):
    """Check that no more memory than *most* bytes is taken at once by what is done inside."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


@pytest.fixture
def _small(monkeypatch):
    """Let files unpack to 2 MB, so that bombs may be small."""
    monkeypatch.setattr(compression, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(compression, "SPARE_BYTES", 1 << 20)


@pytest.mark.slow
@pytest.mark.usefixtures("_small")
@packed
@every
def test_a_file_of_any_format_that_unpacks_without_end(tmp_path, form, pack):
    """A file of any format, followed by 256 MB of what unpacks from little, is refused by the command line in little memory."""
    target = tmp_path / f"t{form.suffix}"
    file = placed(form, target)
    data = file.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    file.write_bytes(pack(data + b" " * (256 << 20)))
    (tmp_path / "line").mkdir()
    line = CommandLine(tmp_path / "line")
    with within(160 << 20):
        said = [line.read(command, target, code=3).stderr for command in ("import", "tree")]
    assert all("MB from" in one and "is not read further" in one for one in said)
    assert set() == line.txns()


@pytest.mark.usefixtures("_small")
@packed
def test_ai_agent_snapshots_that_unpack_without_end(tmp_path, pack):
    """Snapshots of versions 1 and 2 with a log line of 256 MB are refused by load and by a listing, in little memory."""
    for version in (1, 2):
        head = b'{"version":%d,"opTree":{"id":"a","agentId":"a","turns":[],"sessionTitle":"' % version
        path = tmp_path / "a.json.gz"
        path.write_bytes(pack(head + b"x" * (256 << 20) + b'"}}'))
        with within(160 << 20), pytest.raises(FormatError, match="is not read further"):
            load(path)


@pytest.mark.usefixtures("_small")
@packed
def test_records_of_version_3_that_unpack_without_end(tmp_path, pack):
    """A folder whose records are small lines without end is refused, in little memory."""
    folder = tmp_path / "got" / "session"
    folder.mkdir(parents=True)
    line = json.dumps({**START, "attributes": {"x": "y"}}).encode() + b"\n"
    (folder / "s.jsonl").write_bytes(pack(line * 400_000))
    with within(160 << 20), pytest.raises(FormatError, match="is not read further"):
        AI_AGENT_V3.read(tmp_path / "got")


@pytest.mark.usefixtures("_small")
def test_payloads_of_version_3_that_unpack_without_end(tmp_path):
    """One small payload that a thousand ops refer to is unpacked until all together come to the limit; the rest is left out, and said."""
    folder = tmp_path / "got"
    payloads = folder / "payloads" / "s"
    payloads.mkdir(parents=True)
    (payloads / "p.json.gz").write_bytes(gzip.compress(b'"' + b"x" * (300 << 10) + b'"'))
    ref = {"kind": "sdk_request", "path": "payloads/s/p.json.gz", "compression": "gzip", "captured": True}
    ops = [{"opId": f"o{number}", "kind": "llm", "payloadRefs": [ref]} for number in range(1000)]
    records = [
        START,
        {**START, "recordType": "turn_start", "turn": 1, "seq": 2},
        {**START, "recordType": "turn_end", "turn": 1, "seq": 3, "status": "ok", "ops": ops},
    ]
    (folder / "session").mkdir()
    (folder / "session" / "s.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    with within(160 << 20):
        found = AI_AGENT_V3.read(folder)
    [tree] = found.trees
    kept = sum(op.request is not None for op in tree.session.turns[0].ops)
    assert 1 <= kept <= 8
    assert 1000 - kept == sum("there is too much in it" in fault.said for fault in found.faults)


@every
def test_a_file_nested_without_end(tmp_path, form):
    """JSON, or lines, nested a hundred thousand levels deep in the place of any format's file raise an error of ours, or are faults."""
    target = tmp_path / f"t{form.suffix}"
    file = placed(form, target)
    data = file.read_bytes()
    plain = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    for nest in (b"[" * 100_000, b'{"a":' * 100_000, b"- " * 50_000):
        for whole in (plain + nest, plain.replace(b"null", nest, 1), plain.replace(b'"why?"', nest, 1)):
            file.write_bytes(whole)
            with suppress(OptreeError, OSError):
                form.read(target)


@pytest.mark.slow
def test_time_grows_with_the_depth(tmp_path):
    """What it takes to read a snapshot that breaks off grows with the depth in which it does, not with its square."""

    def prepare(size):
        path = tmp_path / f"{size}.json"
        path.write_bytes(b'{"version":1}' + b"[" * size)

        def work():
            with suppress(OptreeError):
                load(path)

        return work

    assert growth(prepare, 4_000) < SQUARE


def test_zeros_behind_what_is_packed(tmp_path):
    """Zeros behind a gzip file end it, however many they are; other bytes behind it are damage."""
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    with path.open("r+b") as file:
        file.truncate(1 << 32)
    with opened(path) as source:
        assert b"one\ntwo\n" == source.read()
    path.write_bytes(gzip.compress(b"one\n") + b"more")
    with opened(path) as source, pytest.raises(EOFError):
        source.read()


def test_what_is_no_bomb_is_read(tmp_path):
    """A file that unpacks to two hundred times its size and less than a gigabyte is what logs are, and is read."""
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"the same line\n" * 4_000_000))
    check_size(path)
