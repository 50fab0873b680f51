"""Links, pipes, devices, holes and other files that are not what their names say: nothing hangs, nothing outside is written."""

import json
import os
import signal
import socket
import stat
import sys
import tracemalloc
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import zstandard

from optree._store import Directory, load
from optree._store.files.descriptors import open_regular
from optree._store.reading.formats import read_meta
from optree._store.reading.reader import read_journal
from optree._store.saving import StoreOptions
from optree._store.settle import settle, settle_all
from optree.errors import OptreeError, SetupError
from tests.cli.conftest import CommandLine
from tests.formats.samples import FORMATS, WRITTEN, placed, sample

every = pytest.mark.parametrize("form", FORMATS, ids=[form.name for form in FORMATS])
GIGABYTE = 1 << 30


class Hangs(BaseException):
    """A test takes far too long."""


@pytest.fixture(autouse=True)
def _ends():
    """End a test that hangs."""

    def stop(*_):
        raise Hangs

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@contextmanager
def within(most):
    """Check that no more memory than *most* bytes is taken at once by what is done inside."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
        assert peak < most
    finally:
        tracemalloc.stop()


def strange(path, what):
    """Make something at *path* that is no regular file."""
    if what == "pipe":
        os.mkfifo(path)
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            here = Path.cwd()
            os.chdir(path.parent)
            one.bind(path.name)
            os.chdir(here)
    elif what == "directory":
        path.mkdir()
    else:
        path.symlink_to(
            {"link to a pipe": "pipe", "link to a device": "/dev/zero", "circle": path.name, "link to nothing": "nothing"}[what]
        )
        if what == "link to a pipe":
            os.mkfifo(path.parent / "pipe")
    return path


STRANGE = ["pipe", "socket", "directory", "link to a pipe", "link to a device", "circle", "link to nothing"]
each = pytest.mark.parametrize("what", STRANGE)


def everything(folder):
    """Return all files below a folder, with what is in them and when it was changed."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path(folder).rglob("*") if path.is_file()}


def snapshot(txn="t", **more):
    """Return the JSON of a small session that has ended."""
    session = {
        "id": txn, "path": "", "traceId": "", "agentId": "a", "callPath": "a", "originTxnId": txn, "startedAt": 1.0, "turns": [],
        "endedAt": 2.0,
    }  # fmt: skip
    return json.dumps({"version": 1, "meta": {}, "session": session, "pool": {"blobs": {}, "links": {}}} | more).encode()


@each
def test_what_is_no_file_is_not_waited_for(tmp_path, what):
    """A pipe, a socket, a device or a circle of links in the place of a file gives an error at once, not a wait."""
    path = strange(tmp_path / "x.json", what)
    with pytest.raises(OSError):  # noqa: PT011 - which, the system says
        open_regular(path)
    with pytest.raises((OptreeError, OSError)):
        load(path)
    assert {} == read_meta(path)


@every
@each
def test_no_format_waits_for_what_is_no_file(tmp_path, form, what):
    """Detection and reading of every format end, with an error that can be shown, whatever stands in the place of the file."""
    path = strange(tmp_path / f"x{form.suffix}", what)
    with suppress(OptreeError, OSError):
        form.detect(path, b"")
    with suppress(OptreeError, OSError):
        assert [] == form.read(path).trees


@each
def test_the_sessions_directory_may_hold_anything(tmp_path, what):
    """What is no session among sessions is passed over by every command, and one that is named is said not to be followed."""
    line = CommandLine(tmp_path)
    line.sessions.mkdir(parents=True)
    (line.sessions / "good.json").write_bytes(snapshot("good"))
    strange(line.sessions / "bad.json.zst", what)
    assert ["good"] == [row["txn"] for row in line.json("ls")]
    assert 1 == line.json("status")["sessions"]
    assert "no session 'bad': bad.json.zst in" in line.read("tree", "bad", code=1).stderr
    with suppress(OptreeError):
        settle_all(StoreOptions(Directory.of(line.base)))


@pytest.mark.parametrize("what", ["file", "pipe", "socket", "circle", "link to nothing", "link to a device"])
def test_a_live_that_is_no_directory(tmp_path, what):
    """A `.live` that is a file, a pipe or a link is no live directory: the snapshot beside it loads, and nothing is settled."""
    directory = Directory.of(tmp_path)
    directory.sessions.mkdir()
    (directory.sessions / "t.json").write_bytes(snapshot())
    live = directory.sessions / "t.live"
    live.write_bytes(b"x") if what == "file" else strange(live, what)
    assert [("t", None)] == [(saved.txn, saved.live) for saved in directory.saved()]
    assert "ended" == load("t", directory).state
    assert [] == settle_all(StoreOptions(directory))
    assert os.path.lexists(live)


def test_a_linked_live_directory_is_not_followed(tmp_path):
    """A `.live` that leads elsewhere is neither read, settled, resumed nor removed: what lies there stays as it is."""
    line = CommandLine(tmp_path)
    txn = line.record("kill", code=-9)
    elsewhere = tmp_path / "elsewhere"
    live = line.sessions / f"{txn}.live"
    live.rename(elsewhere)
    live.symlink_to(elsewhere)
    (line.sessions / f"{txn}.json").write_bytes(snapshot(txn))
    before = everything(elsewhere)
    directory = Directory.of(line.base)
    assert (None, "ended") == (directory.find(txn).live, load(txn, directory).state)
    assert not settle(txn, StoreOptions(directory))
    line.read("load", txn)
    line.read("tree", txn)
    line.read("logs", txn)
    assert "is a link: nothing is written through it" in line("load", txn, "--", "true", code=2).stderr
    assert before == everything(elsewhere)
    (line.sessions / f"{txn}.json").unlink()
    assert f"no session '{txn}': {txn}.live in" in line.read("tree", txn, code=1).stderr


@each
def test_a_journal_or_lock_that_is_no_file(tmp_path, what):
    """What stands in the place of a journal or of the lock is not opened; the rest loads, and the session goes on."""
    line = CommandLine(tmp_path)
    txn = line.record("kill", code=-9)
    live = line.sessions / f"{txn}.live"
    strange(live / "j-0007-000001.jsonl", what)
    assert "researcher" in line.read("tree", txn).stdout
    (live / "LOCK").unlink()
    (live / "pipe").unlink(missing_ok=True)
    strange(live / "LOCK", what)
    assert "interrupted" in line.read("tree", txn).stdout
    line.json("status")


@pytest.mark.parametrize(
    "name", ["j-0000-1.jsonl", "j-0abc-000001.jsonl", "j-0001-00000x.jsonl", f"j-{'9' * 30}-000001.jsonl", "j-1-2-3.jsonl"]
)
def test_journals_with_names_that_are_none(tmp_path, name):
    """A file in a live directory whose name is nearly a journal's is passed over, also when the session goes on."""
    line = CommandLine(tmp_path)
    txn = line.record("kill", code=-9)
    (line.sessions / f"{txn}.live" / name).write_bytes(b"{}\n")
    assert "interrupted" in line.read("tree", txn).stdout
    line("load", txn, "--", sys.executable, line.agent, "why")


@pytest.mark.parametrize(
    "meta",
    [
        {"journal": 3}, {"journal": {"x": 1, "0000": "y", "0001": -1, "0002": 1e300}}, {"createdAt": "x", "agentId": "a"},
        {"createdAt": 1, "agentId": ["\x1b"], "result": 3, "summary": []},
        {"createdAt": 1, "agentId": "a", "summary": {"inputTokens": "x"}},
        {"createdAt": 1, "agentId": "a", "savedAt": "x", "endedAt": {}}, {"damage": 3},
        {"createdAt": 1e300, "agentId": "a"},
    ],
    ids=range(8),
)  # fmt: skip
def test_the_head_of_a_snapshot_may_say_anything(tmp_path, meta):
    """Values of any type in a snapshot's meta neither end a listing nor a load."""
    line = CommandLine(tmp_path)
    line.sessions.mkdir(parents=True)
    (line.sessions / "t.json").write_bytes(snapshot(meta=meta))
    assert ["t"] == [row["txn"] for row in line.json("ls")]
    line.read("ls")
    line.read("load", "t")
    line("load", "t", "--", sys.executable, line.agent, "why")


def test_links_in_a_directory_that_is_imported(tmp_path):
    """Links that lead in a circle or nowhere, and pipes, in a directory that is imported are passed over with a note."""
    line = CommandLine(tmp_path)
    folder = tmp_path / "got"
    folder.mkdir()
    (folder / "a.json").write_bytes(snapshot("good"))
    (folder / "round").symlink_to(folder)
    for number, what in enumerate(("pipe", "circle", "link to nothing", "link to a device")):
        strange(folder / f"b{number}.json", what)
    found = line.json("import", folder)
    assert ["good"] == [one["txn"] for one in found["imported"]]
    assert 4 <= len(found["notes"])


def test_an_export_writes_through_no_link(tmp_path):
    """A place whose folders lead elsewhere is refused; a file that is a link is replaced only by --force, and what it leads to stays."""
    line = CommandLine(tmp_path)
    txn = line.record()
    (tmp_path / "elsewhere").mkdir()
    out = tmp_path / "out.ai-agent"
    out.mkdir()
    (out / "session").symlink_to(tmp_path / "elsewhere")
    assert "is a link, and nothing is written through it" in line.read("export", txn, "--to", "ai-agent-v3", "-o", out, code=2).stderr
    assert [] == list((tmp_path / "elsewhere").iterdir())
    precious, target = tmp_path / "precious", tmp_path / "x.json"
    precious.write_text("precious")
    os.link(precious, target)
    line.read("export", txn, "--to", "json", "--force", "-o", target)
    target.unlink()
    target.symlink_to(precious)
    line.read("export", txn, "--to", "json", "-o", target, code=2)
    line.read("export", txn, "--to", "json", "--force", "-o", target)
    assert ("precious", False) == (precious.read_text(), target.is_symlink())
    target.unlink()
    target.symlink_to("nothing")
    line.read("export", txn, "--to", "json", "-o", target, code=2)
    target.unlink()
    os.mkfifo(target)
    assert "is no file" in line.read("export", txn, "--to", "json", "--force", "-o", target, code=2).stderr


def test_a_snapshot_is_replaced_and_not_written_through(tmp_path):
    """A snapshot that is a hard or a symbolic link to another file is replaced as the session is saved; the other file stays."""
    line = CommandLine(tmp_path)
    txn = line.record()
    line.read("load", txn)  # on a busy machine the session is settled by whoever comes next
    file, kept = line.sessions / f"{txn}.json.zst", tmp_path / "kept"
    os.link(file, kept)
    before = kept.read_bytes()
    line("load", txn, "--", sys.executable, line.agent, "why")
    assert (before, True) == (kept.read_bytes(), not file.samefile(kept))


@pytest.mark.parametrize("what", ["directory", "pipe", "link to a device", "circle"])
def test_a_ledger_that_is_no_file(tmp_path, what):
    """A ledger that is a directory, a pipe or a link: the session is saved, the fault is said, and reading it gives one line."""
    line = CommandLine(tmp_path)
    line.base.mkdir()
    strange(line.base / "accounting.jsonl", what)
    txn = line.record()
    assert "researcher" in line.read("tree", txn).stdout


def test_all_that_holds_content_is_its_owners(tmp_path):
    """Every file that holds what a session held can be read by its owner only: sessions, ledger, exports in each format, pages."""
    line = CommandLine(tmp_path)
    txn = line.record()
    killed = line.record("kill", code=-9)
    made = tmp_path / "made"
    for form in WRITTEN:
        line.read("export", txn, "--to", form.name, "-o", f"{made}/{form.name}/")
    line.read("diff", txn, killed, "--html", made / "diff.html")
    files = [path for folder in (line.base, made) for path in folder.rglob("*") if path.is_file()]
    assert 20 < len(files)
    assert {0o600} == {stat.S_IMODE(path.stat().st_mode) for path in files}
    assert {0o700} == {
        stat.S_IMODE(path.stat().st_mode) for folder in (line.base, made) for path in [folder, *folder.rglob("*")] if path.is_dir()
    }


def test_a_page_keeps_the_mode_that_a_file_has(tmp_path):
    """A page that is written into a file that is there follows what its owner chose for it."""
    line = CommandLine(tmp_path)
    txn, page = line.record(), tmp_path / "d.html"
    page.touch(0o644)
    line.read("diff", txn, txn, "--html", page)
    assert (0o644, True) == (stat.S_IMODE(page.stat().st_mode), page.read_text().startswith("<!"))


def test_a_gigabyte_in_one_line_of_a_journal(tmp_path):
    """A line of a gigabyte, of zeros or of letters, is reported with its size, and takes little memory; all others are read."""
    line = CommandLine(tmp_path)
    txn = line.record("kill", code=-9)
    [journal] = (line.sessions / f"{txn}.live").glob("j-0000-*")
    whole = journal.read_bytes()
    records = len(read_journal(journal).records)
    cut = whole.index(b"\n", len(whole) // 2) + 1
    with journal.open("wb") as file:
        file.write(whole[:cut])
        file.seek(GIGABYTE, os.SEEK_CUR)
        file.write(b"\n" + whole[cut:])
    with within(32 << 20):
        found = read_journal(journal)
    assert (records, [(cut, GIGABYTE + 1, "corrupt")]) == (
        len(found.records),
        [(flaw.offset, flaw.size, flaw.kind) for flaw in found.flaws],
    )


@pytest.mark.parametrize(
    "head", [snapshot()[:-1], b"{", b"", zstandard.compress(snapshot()), b"\x1f\x8b\x08"], ids=["cut", "{", "none", "zstd", "gzip"]
)
def test_a_gigabyte_of_nothing_in_the_place_of_a_session(tmp_path, head):
    """A file with a hole of many gigabytes is read up to the hole, in little memory, by load and in a listing."""
    line = CommandLine(tmp_path)
    line.sessions.mkdir(parents=True)
    path = line.sessions / "t.json"
    with path.open("wb") as file:
        file.write(head)
        file.truncate(64 * GIGABYTE)
    with within(64 << 20):
        with suppress(OptreeError):
            assert "a" == load(path).session.agent_id
        assert isinstance(read_meta(path), dict)
        assert ["t"] == [row["txn"] for row in line.json("ls")]


@every
def test_a_gigabyte_in_one_line_of_any_format(tmp_path, form):
    """A line of a gigabyte behind the first one of any format's file ends the reading, with little memory, or is passed over."""
    target = tmp_path / "in" / f"t{form.suffix}"
    target.parent.mkdir()
    file = placed(form, target)
    with file.open("r+b") as out:
        out.truncate(file.stat().st_size + GIGABYTE)
    with within(400 << 20), suppress(OptreeError, OSError):
        form.read(target)


def test_a_program_that_makes_files_elsewhere_is_refused(tmp_path):
    """A format that makes its file elsewhere than it was told is refused, whatever way it took."""
    from optree._cli.commands.export import Writing, export_to_file
    from optree._store.reading.recovery import Loaded

    class Stray:
        name, suffix, about, cannot_hold = "stray", ".x", "", ()
        goes = ""

        def write(self, _tree, target):
            place = (target.parent / self.goes).resolve() if self.goes.startswith("/") else target.parent / self.goes
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("x")
            return [place]

    (tmp_path / "got.json").write_bytes(msgspec.json.encode({"version": 1, "session": sample().session, "pool": sample().pool}))
    loaded: Loaded = load(tmp_path / "got.json")
    form = Stray()
    for form.goes in ("../stray", "a/../../stray", str(tmp_path / "absolute")):
        with pytest.raises(SetupError, match="is elsewhere than it was told"):
            export_to_file(loaded, Writing(form, f"{tmp_path}/out/"), several=False)
    form.goes = "inner/x"
    assert [str(tmp_path / "out/inner/x")] == export_to_file(loaded, Writing(form, f"{tmp_path}/out/"), several=False).files
