"""`optree import` of files in formats, told apart by their content."""

import gzip
import json
import subprocess
import sys

import pytest
import zstandard

from optree._formats.ai_agent import AI_AGENT, AI_AGENT_V3
from optree._formats.plain_json import JSON
from optree_formats.events import EVENTS
from optree_formats.transcript import FORMAT as TRANSCRIPT
from tests.formats.examples import EXAMPLES, JACK_AND_JILL
from tests.formats.originals import TXN, document
from tests.formats.samples import sample
from tests.formats.transcript.lines import CHILD, RUN
from tests.formats.transcript.lines import line as transcript_line
from tests.formats.transcript.lines import step as transcript_step

BAD = '{"message_id": "1", "event_type": "transcript_entry", "agent_id": "a", "role": "user", "content": "hi"}\n' + "nonsense\n" * 25


@pytest.fixture
def log(optree):
    """Return a file of events without a telling name."""
    path = optree.folder / "log"
    path.write_text(JACK_AND_JILL)
    return path


def test_a_conversation(optree, log):
    """A file of events becomes a session that is listed and shown."""
    [made] = optree.json("import", log)["imported"]
    assert ("agent_root", 2) == (made["agentId"], made["ops"])
    assert "1.2 Jill" in optree.read("tree", "last").stdout
    assert [made["txn"]] == [row["txn"] for row in optree.json("ls")]


@pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["gzip", "plain"])
def test_a_snapshot_of_ai_agent_is_billed(optree, pack):
    """An original's file becomes a session with its bill in the ledger, each entry once."""
    [path] = AI_AGENT.write(sample(), optree.folder / "x")
    path.write_bytes(pack(gzip.decompress(path.read_bytes())))
    optree.json("import", path)
    assert 2 == len((optree.base / "accounting.jsonl").read_text().splitlines())
    optree.json("import", path, "--replace")
    assert 2 == len((optree.base / "accounting.jsonl").read_text().splitlines())


def test_a_place_that_cannot_be_written_is_named(optree, log):
    """Where no session can be saved, the file that could not be written is named, with what to do."""
    said = optree.read("import", log, "--sessions-dir", log / "here", code=1).stderr
    assert f"optree: {log}/here/" in said
    assert "cannot be written: a file stands where its directory would be; name another place" in said


def test_a_folder(optree):
    """A folder of a format that is made of folders is imported whole."""
    AI_AGENT_V3.write(sample(), optree.folder / "sessions")
    assert ["t"] == [one["txn"] for one in optree.json("import", optree.folder / "sessions")["imported"]]


UNENDED = {
    "version": 1,
    "opTree": {
        "id": "x",
        "startedAt": 1e12,
        "turns": [{"index": 1, "startedAt": 1e12 + 2000.0, "ops": []}],
        "attributes": {"agentId": "a"},
    },
}


def test_how_long_a_session_without_an_end_took_is_not_told_by_its_import(optree):
    """What an imported session's records tell is what it lasted in every listing, not until it was imported; an older head is no word."""
    path = optree.folder / "x.json.gz"
    path.write_bytes(gzip.compress(json.dumps(UNENDED).encode()))
    optree.json("import", path)
    assert [2.0] == [row["durationSeconds"] for row in optree.json("ls")]
    assert "2.00 s" in optree.read("ls").stdout
    assert "(at least 2.00 s)" in optree.read("status").stdout
    assert "interrupted at least 2.00 s" in optree.read("tree", "last").stdout.replace("⚡ ", "")
    [saved] = optree.sessions.glob("*.json.zst")
    plain = zstandard.ZstdDecompressor().stream_reader(saved.read_bytes(), read_across_frames=True).read()
    known = json.loads(plain)
    assert 1e12 + 2000.0 == known["meta"].pop("lastSeenAt")
    saved.write_bytes(zstandard.compress(json.dumps(known).encode()))
    assert [2.0] == [row["durationSeconds"] for row in optree.json("ls")]


@pytest.mark.parametrize("name", EXAMPLES)
def test_nothing_is_made_up_of_a_conversation(optree, name):
    """Of an imported conversation no view gives an outcome, and none a duration where its events have no times."""
    path = optree.folder / "x.jsonl"
    path.write_text(EXAMPLES[name])
    [made] = optree.json("import", path)["imported"]
    assert [("ended", None)] == [(row["state"], row["durationSeconds"]) for row in optree.json("ls")]
    [row] = optree.read("ls").stdout.splitlines()[1:]
    assert ("ended", "-") == (row.split()[2], row.split()[5])
    views = [optree.read(*view).stdout for view in (["ls"], ["tree"], ["load", "last"], ["show", "last", ""], ["status"])]
    assert [] == [word for word in (" ms", "lasted", "✓", "at least", "cancelled", "failed") for view in views if word in view]
    assert ["interrupted  none"] == [line for view in views for line in view.splitlines() if "interrupted" in line]
    assert [] == optree.json("load", made["txn"])["open"]


def test_a_conversation_with_times_lasted_as_long_as_they_tell(optree):
    """A conversation whose events have times is shown to last from the first to the last of them, still without an outcome."""
    path = optree.folder / "x.jsonl"
    lines = [
        {"message_id": "1", "event_type": "agent_created", "agent_id": "a", "timestamp": 1e12},
        {"message_id": "2", "event_type": "transcript_entry", "agent_id": "a", "role": "user", "content": "hi", "timestamp": 1e12 + 2500},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    optree.json("import", path)
    assert [("ended", 2.5)] == [(row["state"], row["durationSeconds"]) for row in optree.json("ls")]
    assert "2.50 s" in optree.read("tree", "last").stdout


def test_how_long_nothing_was_seen_of_is_unknown(optree):
    """Of an interrupted session of which nothing but its begin is known no listing tells how long it lasted."""
    path = optree.folder / "x.json.gz"
    path.write_bytes(gzip.compress(json.dumps({**UNENDED, "opTree": {**UNENDED["opTree"], "turns": []}}).encode()))
    [made] = optree.json("import", path)["imported"]
    assert [("interrupted", None)] == [(row["state"], row["durationSeconds"]) for row in optree.json("ls")]
    views = [optree.read(*view).stdout for view in (["ls"], ["load", "last"], ["status"], ["tree"])]
    assert [] == [word for word in ("≥", "at least", "0.00 s", "lasted") for view in views if word in view]
    assert f"interrupted  1: {made['txn']}\n" in views[2]


def test_a_sub_agents_file_is_not_imported_twice(optree):
    """A file that is read with its parent's becomes no session of its own, wherever it stands among those that are named."""
    [main, *others] = TRANSCRIPT.write(sample(), optree.folder / "x.transcript.jsonl")
    assert len(others) > 0
    for files in ([main, *others], [*others, main]):
        found = optree.json("import", *files, "--replace")
        assert ([sample().session.origin_txn_id], []) == ([one["txn"] for one in found["imported"]], found["leftOut"])
        assert {f"{path.name}: passed over, it is read with {main.name}" for path in files if path != main} == set(found["notes"])
    assert 1 == len(optree.json("ls"))


def test_a_sub_agents_records_are_not_imported_twice(optree):
    """Records of version 3, file by file, make the sessions that their folder makes, and their calls are billed once."""
    AI_AGENT_V3.write(sample(), optree.folder / "x")
    files = sorted((optree.folder / "x" / "session").iterdir())
    assert len(files) > 1
    assert 1 == len(optree.json("import", *files)["imported"])
    alone = optree.json("ledger")["total"]
    whole = optree.json("import", optree.folder / "x", "--replace")
    assert ([1], alone) == ([len(whole["imported"])], optree.json("ledger")["total"])


def test_files_that_lead_to_each_other_are_imported_once(optree):
    """Of two transcripts each of which says that it called the other one becomes a session, with the other in it."""
    for own, other in ((RUN, CHILD), (CHILD, RUN)):
        lines = [
            transcript_line(1, "run.started", transcript_step("review", "workflow"), run_id=own, parent_run_id=other),
            transcript_line(2, "step.started", transcript_step(), path="a", run_id=own, child_run_id=other),
        ]
        (optree.folder / f"{own}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert 1 == len(optree.json("import", *(optree.folder / f"{one}.jsonl" for one in (RUN, CHILD)))["imported"])


def test_several_files_of_several_formats(optree, log):
    """Files in different formats are imported together."""
    [path] = AI_AGENT.write(sample(), optree.folder / "x")
    assert {"agent_root", "lead"} == {one["agentId"] for one in optree.json("import", log, path)["imported"]}


def test_faults_are_said_by_line_and_counted(optree):
    """At most twenty faults are told on stderr, by file and line, then how many more; JSON has them all."""
    path = optree.folder / "log"
    path.write_text(BAD)
    run = optree.read("import", path)
    said = run.stderr.splitlines()
    assert 21 == len(said)
    assert said[0].startswith("optree: log, line 2: is not JSON")
    assert "optree: and 5 more such notes; --json has them all" == said[-1]
    found = optree.json("import", path, "--replace")["faults"]
    assert ([("log", line) for line in range(2, 27)]) == [(one["file"], one["line"]) for one in found]


def test_strict(optree):
    """With --strict the first fault stops the import, and nothing is saved."""
    path = optree.folder / "log"
    path.write_text(BAD)
    assert "log, line 2: is not JSON" in optree.read("import", path, "--strict", code=3).stderr
    assert set() == optree.txns()


def test_the_format_can_be_named(optree):
    """--from says which format it is where the content does not, and a wrong one is refused."""
    path = optree.folder / "log"
    path.write_text("\n" * 70_000 + JACK_AND_JILL)
    assert "tried were ai-agent, ai-agent-v1" in optree.read("import", path, code=3).stderr
    assert 1 == len(optree.json("import", path, "--from", "events")["imported"])
    assert "there is no exporter or format 'paper'" in optree.read("import", path, "--from", "paper", code=2).stderr


def test_a_file_in_no_format_without_the_extra(optree):
    """Without the libraries of the extra a file that nobody knows is refused with what it was looked at for, as with them."""
    path = optree.folder / "x.txt"
    path.write_text("hello\n")
    without = "import sys; sys.modules['google'] = sys.modules['opentelemetry'] = None; from optree._cli import main; main()"
    run = subprocess.run([sys.executable, "-c", without, "import", path], check=False, env=optree.env, capture_output=True, text=True)
    assert (3, True, False) == (run.returncode, "tried were ai-agent, " in run.stderr, "protobuf, which" in run.stderr)
    path.write_bytes(b"\x0a\x00")
    run = subprocess.run([sys.executable, "-c", without, "import", path], check=False, env=optree.env, capture_output=True, text=True)
    assert (2, True) == (run.returncode, "x.txt is protobuf, which needs more: pip install" in run.stderr)


def test_a_file_in_no_format_says_what_was_tried(optree):
    """A file that nobody knows is refused with what it was looked at for; so is a directory, and a file that is not there."""
    path = optree.folder / "x"
    path.write_text('{"a": 1}')
    said = optree.read("import", path, code=3).stderr
    assert "events-v1" in said
    assert "otel; --from NAME says which it is" in said
    (optree.folder / "empty").mkdir()
    assert "is a directory in no format that is known" in optree.read("import", optree.folder / "empty", code=3).stderr
    assert "nowhere is no file" in optree.read("import", optree.folder / "nowhere", code=1).stderr


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
@pytest.mark.parametrize("head", [b'{"version":1,"meta":{"a":"', b'{"seq":1,"run_id":"', JACK_AND_JILL.encode(), b"# Session Log\n", b""])
def test_a_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch, pack, head):
    """A packed file of any format that unpacks to more than the limit is refused in bounded memory, with what to do."""
    from optree._cli.commands import import_
    from optree._store.files import compression
    from optree.errors import FormatError

    monkeypatch.setattr(compression, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(compression, "SPARE_BYTES", 1 << 20)
    path = tmp_path / "x"
    path.write_bytes(pack(head + b"\n" * (32 << 20)))
    with pytest.raises(FormatError, match=r"^x unpacks to more than \d+ MB .*: if that is right, unpack it yourself"):
        import_.read_files([path], None, strict=False, step=lambda: None)


@pytest.mark.parametrize("wrong", ["1.x", "1.", "1.2.3", "x"])
def test_a_snapshot_with_paths_that_are_none_is_refused(optree, wrong):
    """`load` and `import` refuse a document in which an op's path is none, and name it."""
    path = optree.folder / "x.json"
    [path] = JSON.write(sample(), path)
    document = json.loads(path.read_text())
    document["session"]["turns"][0]["ops"][0]["path"] = wrong
    path.write_text(json.dumps(document))
    for command in ("load", "import"):
        assert f"a node has the path '{wrong}', and paths are numbers" in optree.read(command, path, code=3).stderr


def test_twice(optree, log):
    """A second import is refused and says how to replace; --replace does."""
    optree.json("import", log)
    assert "--replace puts the imported one in its place" in optree.json("import", log, code=1)["leftOut"][0]["said"]
    assert 1 == len(optree.json("import", log, "--replace")["imported"])


def test_out_and_in_again_is_the_same(optree, log):
    """What was imported is exported as it was, byte for byte."""
    optree.json("import", log)
    assert JACK_AND_JILL == optree("export", "last", "--to", "events", "-o", "-").stdout


def test_a_file_that_several_formats_take_needs_a_name(optree, monkeypatch):
    """A file that two formats take for theirs is refused with their names."""
    from pathlib import Path

    from optree._cli.commands import import_
    from optree.errors import SetupError

    path = Path(optree.folder / "log")
    path.write_text(EXAMPLES["seed000_jack_and_jill"])
    monkeypatch.setattr(EVENTS, "detect", lambda _path, _head: True)
    with pytest.raises(SetupError, match="may be in several formats, events, events-v1: say which it is, as in --from events"):
        import_.read_files([path], None, strict=False, step=lambda: None)


def test_formats_of_others_are_found(optree, log):
    """A format that another package brings by an entry point is used as ours are; one that cannot be loaded says what to install."""
    site = optree.folder / "site"
    info = site / "elsewhere-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\nProvides-Extra: broken\n")
    (info / "entry_points.txt").write_text("[optree.formats]\nshout = elsewhere:SHOUT\nbroken = elsewhere_missing:X [broken]\n")
    (site / "elsewhere.py").write_text(
        "from optree_formats.events import Events\n"
        "class Shout(Events):\n"
        "    def detect(self, path, head):\n"
        "        return head.startswith(b'SHOUT')\n"
        "SHOUT = Shout('shout', 2, 'events of another package', ())\n"
    )
    env = {"PYTHONPATH": f"{site}:{optree.env['PYTHONPATH']}"}
    found = json.loads(optree("formats", "--json", env=env).stdout)
    assert "shout" in [one["name"] for one in found["formats"]]
    assert ["format broken cannot be loaded (No module named 'elsewhere_missing'): pip install 'elsewhere[broken]'"] == found["problems"]
    assert 1 == len(json.loads(optree("import", log, "--from", "shout", "--json", env=env).stdout)["imported"])
    assert "pip install 'elsewhere[broken]'" in optree("export", "last", "--to", "broken", env=env, code=2).stderr


def test_a_format_that_is_named_must_be_there(optree):
    """What holds nothing of a session in the format that is named is refused, and saved nowhere."""
    (optree.folder / "text").write_text("hello world\n")
    run = optree("import", "text", "--from", "markdown", code=3)
    assert "text holds nothing of a session as markdown has it" in run.stderr
    assert set() == optree.txns()


def test_a_folder_of_exports_is_given_back_as_it_lies(optree):
    """Of a folder in no format all files are read that are in one; what is passed over is named."""
    first, second = optree.record(), optree.record()
    for txn in (first, second):
        optree("export", txn, "--to", "markdown", "-o", "backup/")
    (optree.folder / "backup" / "notes.txt").write_text("mine\n")
    run = optree("import", "backup", "--sessions-dir", "other")
    assert {first, second} <= set(run.stdout.split())
    assert "notes.txt: passed over, it is in no format that is known" in run.stderr
    files = sorted(map(str, (optree.folder / "backup").glob(f"{first}*")))
    again = optree("import", *files, "--sessions-dir", "third")
    assert first in again.stdout
    assert "passed over, the log that it is about has all of it" in again.stderr


# Files that are not whole, among others


def broken(folder, name="a.json.gz", keep=0.5):
    """Write a snapshot of the original whose text breaks off; returns its path."""
    [path] = AI_AGENT.write(sample(), folder / name)
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(text[: int(len(text) * keep)]))
    return path


def test_a_file_left_behind_never_replaces_a_session(optree):
    """What a killed writer left beside a session's file is passed over in a folder, and named: the session stays whole."""
    folder = optree.folder / "sessions"
    folder.mkdir()
    AI_AGENT.write(sample(), folder / "t.json.gz")
    broken(folder, "t.json.gz.tmp-702094-1768162665628")
    broken(folder, ".tmp-t.json.gz")
    for option in ([], ["--replace"], ["--replace", "--force"]):
        found = optree.json("import", folder, *option)
        assert [("t", 3)] == [(one["txn"], one["ops"]) for one in found["imported"]]
        said = [note for note in found["notes"] if "left it behind" in note]
        assert ["t.json.gz.tmp-702094-1768162665628", ".tmp-t.json.gz"] == [note.split(":")[0] for note in said][::-1]
    found = optree.json("import", *sorted(folder.iterdir()), "--replace")  # as a shell expands a pattern
    assert ([3], 2) == ([one["ops"] for one in found["imported"]], len(found["notes"]))


def test_a_session_is_not_replaced_by_less_of_it(optree):
    """A file with less than the session that is there leaves it as it is; --force replaces it, and says what went."""
    [path] = AI_AGENT.write(sample(), optree.folder / "x.json.gz")
    optree.json("import", path)
    short = broken(optree.folder, "y.json.gz", 0.6)
    left = optree.json("import", short, "--replace", code=1)["leftOut"]
    assert ["t"] == [one["txn"] for one in left]
    assert "has more than the one in y.json.gz" in left[0]["said"]
    assert "--force" in left[0]["said"]
    whole = len(optree.read("tree", "t").stdout.splitlines())
    run = optree.read("import", short, "--replace", "--force")
    assert "session t had more" in run.stderr
    assert whole > len(optree.read("tree", "t").stdout.splitlines())
    assert "--force is for --replace" in optree.read("import", short, "--force", code=2).stderr


def test_a_bad_file_does_not_stop_the_others(optree, log):
    """An empty file, and one that is none, are each named; the others are imported, and the exit code says that it was in part."""
    (optree.folder / "a.json.gz").touch()
    (optree.folder / "b.json").write_text('{"opTree": 5, "version": 9}')
    run = optree.read("import", optree.folder / "a.json.gz", optree.folder / "b.json", log, optree.folder / "nowhere", code=1)
    assert "agent_root" in run.stdout
    for name in ("a.json.gz is empty", "b.json", "nowhere is no file"):
        assert name in run.stderr
    found = optree.json("import", optree.folder / "a.json.gz", log, "--replace", code=1)
    assert ["a.json.gz"] == [one["file"] for one in found["failed"]]
    assert 1 == len(found["imported"])
    assert set() != optree.txns()
    assert "is empty" in optree.read("import", optree.folder / "a.json.gz", log, "--strict", code=3).stderr


def test_a_folder_with_files_of_all_versions(optree):
    """The original's folder has snapshots of its older versions beside the records of version 3: all are imported."""
    folder = optree.folder / "sessions"
    AI_AGENT_V3.write(sample(), folder)
    (folder / f"{TXN}.json.gz").write_bytes(gzip.compress(json.dumps(document(1)).encode()))
    assert {"t", TXN} == {one["txn"] for one in optree.json("import", folder)["imported"]}


@pytest.mark.parametrize("named", [(), ("--from", "transcript")], ids=["plain", "named"])
def test_naming_the_format_takes_what_the_content_tells(optree, named):
    """A transcript that only began, a packed one, and a folder with one in it are imported alike, whether the format is named or not."""
    lines = transcript_line(1, "run.started", transcript_step("review", "workflow")) + b"\n"
    (optree.folder / "begun").write_bytes(lines)
    (optree.folder / "there").mkdir()
    (optree.folder / "there" / "packed.gz").write_bytes(gzip.compress(lines))
    for place in ("begun", "there"):
        assert 1 == len(optree.json("import", optree.folder / place, "--replace", *named)["imported"])


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_the_original_comes_out_as_it_came_in(optree, version):
    """A file of the original that is imported is listed as ended, shown without a word of interruption, and exported as the same JSON."""
    path = optree.folder / f"{TXN}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document(version)).encode()))
    optree.json("import", path)
    assert ["ended"] == [row["state"] for row in optree.json("ls")]
    assert "interrupted" not in optree.read("tree", "last").stdout
    out = optree.folder / "out.json.gz"
    assert "" == optree.read("export", "last", "--to", "ai-agent", "-o", out).stderr
    assert document(version) == json.loads(gzip.decompress(out.read_bytes()))


def test_what_a_line_of_the_original_says_is_shown(optree):
    """`optree show` has a log line's stack, headend and remote as its details, and `optree logs` its own agent."""
    path = optree.folder / f"{TXN}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document(1)).encode()))
    optree.json("import", path)
    shown = optree.read("show", "last", "1.1").stdout
    assert '"stack":"Error: 429\\n    at f (x.js:1)","headendId":"slack"' in shown
    assert '{"ai-agent"' not in shown.partition("accounting")[0]
    lines = [one for one in optree.read("logs", "last").stdout.splitlines() if "of a helper" in one]
    assert [True, True] == [" helper [VRB] " in line for line in lines]
