"""Ids that a file from elsewhere gives: whatever they are, nothing is read or written outside the places that the user named."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from optree._ids import is_node_id, is_txn, node_id, txn_of
from optree._store import Directory, load
from optree._store.importing import save
from optree._tree import walk_sessions
from optree.errors import OptreeError
from tests.cli.conftest import CommandLine
from tests.formats.samples import WRITTEN, sample

BAD = [
    "../../evil", "/tmp/evil", "..", ".", "", "a/b", "a\\b", "C:\\evil", "a\nb", "a\x1b[8mb", "a\0b", "a" * 65, "a" * 5000, "~root", "-rf",
    "$HOME", "*", ".live", "é", "a\u202eb", "\u2025/\u2025/evil", "a b", " a", "a\n",
    "\uff0e\uff0e\uff0fevil", "%2e%2e%2fevil", "a.json.zst", "CON:",
]  # fmt: skip
odd = pytest.mark.parametrize("txn", BAD, ids=[ascii(txn)[:30] for txn in BAD])
every = pytest.mark.parametrize("form", WRITTEN, ids=[form.name for form in WRITTEN])


def named(txn, child=""):
    """Return a tree whose sessions bear ids as a hostile file gives them."""
    tree = sample()
    for session in walk_sessions(tree.session):
        session.origin_txn_id = child if child and session.path else txn
        session.id = node_id(txn, session.path)
        for turn in session.turns:
            for op in turn.ops:
                op.op_id = node_id(txn, op.path)
    return tree


def document(txn, child=""):
    """Return the JSON of a snapshot with such a tree."""
    tree = named(txn, child)
    whole = {"version": 1, "meta": {"txn": txn}, "session": tree.session, "pool": tree.pool}
    return msgspec.json.encode(whole)


def everything(folder):
    """Return all files below a folder, and what is in them."""
    return {path.relative_to(folder): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@odd
def test_a_text_that_can_be_no_txn_becomes_one(txn):
    """What a file calls a session stays if it may name one; all else becomes a name that is made of it, the same each time."""
    assert not is_txn(txn)
    assert is_txn(txn_of(txn))
    assert txn_of(txn) == txn_of(txn) != txn_of(f"{txn}x")
    assert "mwr0ix0c-abcd1234" == txn_of("mwr0ix0c-abcd1234")


@pytest.mark.parametrize("told", [None, 3, True, ["a"], {"a": 1}, b"a", "\ud800"])
def test_what_is_no_text_becomes_a_txn_too(told):
    """A txn of another type, or with half a character, is none, and no error."""
    assert is_txn(txn_of(told))


def test_ids_of_nodes_are_printable():
    """A node's id may be ours or another program's; it has no space, no slash, no control character, and no more than 256."""
    assert all(map(is_node_id, ["t:1.2", "t", "3f2b0c9e-1111-4222-8333-444455556666", "op_1.a", "agent#1", "a" * 256]))
    assert not any(map(is_node_id, ["", "a b", "a/b", "a\\b", "a\n", "é", "\x1b", "a" * 257]))


@odd
def test_a_snapshot_is_shown_under_a_safe_txn(tmp_path, txn):
    """A snapshot with such a txn loads whole under another, which is said; nothing of it counts as damage."""
    path = tmp_path / "got.json"
    path.write_bytes(document(txn))
    loaded = load(path)
    assert txn_of(txn) == loaded.txn == loaded.session.origin_txn_id == loaded.session.id
    assert "clean" == loaded.damage.state
    assert [f"{txn[:80]!r} cannot name a session: it is called {loaded.txn} here"] == loaded.damage.lines()
    assert [f"{loaded.txn}:1.2"] == [session.id for session in walk_sessions(loaded.session)][1:]
    assert f"{loaded.txn}:1.1" == loaded.session.turns[0].ops[0].op_id
    assert 812 == loaded.session.totals.input_tokens


def test_what_is_right_stays(tmp_path):
    """The ids of a file that could be any stay as they are, those of another program too."""
    tree = sample()
    tree.session.turns[0].ops[1].child_session.id = "3f2b0c9e-1111-4222-8333-444455556666"
    path = tmp_path / "a.json"
    path.write_bytes(msgspec.json.encode({"version": 1, "session": tree.session, "pool": tree.pool}))
    loaded = load(path)
    assert [] == loaded.damage.lines()
    assert ["t", "3f2b0c9e-1111-4222-8333-444455556666"] == [session.id for session in walk_sessions(loaded.session)]
    assert ["t", "t"] == [session.origin_txn_id for session in walk_sessions(loaded.session)]


@every
@pytest.mark.parametrize("where", ["root", "child"])
def test_an_export_stays_where_it_was_sent(tmp_path, form, where):
    """Exported to any format, with --force, a file with ids that lead out writes below the directory that was named, and nowhere else."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    line = CommandLine(tmp_path / "a" / "b")
    (tmp_path / "evil.json").write_text("precious")
    got = line.folder / "got.json"
    got.write_bytes(document("../../evil") if where == "root" else document("t", "../../../../evil"))
    before = everything(tmp_path)
    out = line.folder / "out"
    line.read("export", got, "--to", form.name, "--force", "-o", f"{out}/")
    after = everything(tmp_path)
    assert before.items() <= after.items()
    new = after.keys() - before.keys()
    assert new
    assert all((tmp_path / path).is_relative_to(out) for path in new)
    line.read("import", next(path for path in sorted(out.iterdir())), env={"OPTREE_SESSIONS_DIR": str(line.folder / "s")})


def test_each_command_takes_such_a_file(tmp_path):
    """A file whose ids lead out can be looked at with every command; what is wrong with it is said once by load."""
    line = CommandLine(tmp_path)
    got = tmp_path / "got.json"
    got.write_bytes(document("../../evil"))
    before = everything(tmp_path)
    for command in (["tree"], ["show"], ["cost"], ["messages"], ["logs"]):
        line.read(command[0], got, *(["1.1"] if command == ["show"] else []))
    said = line.read("load", got).stdout
    assert "'../../evil' cannot name a session: it is called file-" in said
    assert before == everything(tmp_path)


def test_a_name_with_line_breaks_and_escapes_reaches_no_terminal(tmp_path):
    """A file whose own name holds escapes and line breaks is named in errors without them."""
    line = CommandLine(tmp_path)
    path = tmp_path / "x\n[txn:forged] \x1b[2J\u202e.json"
    path.write_text("no session")
    said = line.read("load", path, code=3).stderr
    assert 1 == len(said.splitlines())
    assert not set("\x1b\u202e") & set(said)


@pytest.mark.parametrize("what", ["a" * 5000, "/" + "a" * 5000, "a\0b", "./a\0b", "../" * 2000, "", ".", "..", "/", "~", "-", "last\n"])
def test_arguments_that_name_nothing_give_an_error_of_ours(tmp_path, what):
    """A txn argument that is far too long, or holds what no name may, gives an error, not a traceback."""
    with pytest.raises((OptreeError, OSError)):
        load(what, Directory.of(tmp_path))


def test_an_import_goes_into_the_sessions_directory(tmp_path):
    """A snapshot of the original ai-agent whose txn leads out is imported under a safe one; imported again it is the same."""
    line = CommandLine(tmp_path)
    tree = {"id": "../x", "agentId": "a", "startedAt": 1, "turns": [], "traceId": "../../evil"}
    path = tmp_path / "got.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"version": 2, "originTxnId": "/etc/evil", "opTree": tree}).encode()))
    found = line.json("import", path)
    txn = txn_of("/etc/evil", "ai-agent")
    assert [txn] == [one["txn"] for one in found["imported"]]
    assert ["'/etc/evil' cannot name a session"] == [fault["said"].partition(":")[0] for fault in found["faults"]][:1]
    assert {txn} == line.txns()
    assert "is there already" in line.read("import", path, code=1).stderr


@odd
def test_spans_whose_txn_leads_out_are_not_lost(tmp_path, txn):
    """Spans of optree's own under a txn that can be none become a session under a safe one, and that is said."""
    attributes = {"optree.kind": "session", "optree.path": "", "optree.txn": txn, "gen_ai.agent.name": "a"}
    span = {
        "traceId": "0" * 31 + "1", "spanId": "0" * 15 + "1", "name": "a", "startTimeUnixNano": "1", "endTimeUnixNano": "2",
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()],
    }  # fmt: skip
    path = tmp_path / "spans.json"
    path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}))
    found = CommandLine(tmp_path).json("import", path)
    assert [txn_of(txn, "otel")] == [one["txn"] for one in found["imported"]]
    assert any("cannot name a session" in note for note in found["notes"])


def test_a_format_of_somebody_elses_is_held_to_it(tmp_path, monkeypatch):
    """A tree whose txn leads out, from a format that checks nothing, is saved under a safe one."""
    from optree._cli.commands import import_
    from optree._formats import Read

    class Careless:
        name, suffix, about, cannot_hold = "careless", ".x", "", ()

        def detect(self, *_):
            return True

        def read(self, *_, **__):
            return Read([named("../../evil")], [])

    (tmp_path / "x").write_text("x")
    monkeypatch.setattr(import_, "installed_formats", lambda: ([Careless()], []))
    found = import_.read_files([tmp_path / "x"], None, strict=False, step=lambda: None)
    assert [txn_of("../../evil")] == [tree.session.origin_txn_id for tree in found.trees]
    assert 1 == len(found.notes)
    assert tmp_path / "s" / f"{txn_of('../../evil')}.json.zst" == save(found.trees[0], Directory(tmp_path / "s", tmp_path / "bill.jsonl"))


@pytest.mark.parametrize("parent", ["../../evil:1.1", "/etc/evil:1", "a b:1", "", ":", "t:../..", "t:1.1.x", "t:" + "1." * 5000 + "1"])
def test_a_parent_in_the_environment_that_leads_out_is_refused(tmp_path, parent):
    """A process whose OPTREE_PARENT names no session, or no node, says so and records a session of its own, where all are."""
    line = CommandLine(tmp_path)
    run = subprocess.run(
        [sys.executable, line.agent, "why"],
        env=line.env | {"OPTREE_PARENT": parent},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "found why" in run.stdout
    assert 1 == len(line.txns())
    assert not list(tmp_path.rglob("*evil*"))


def test_a_journal_that_names_another_session_writes_to_no_other(tmp_path):
    """A live directory whose journal says another txn is told as such: nothing of it is shown, and nothing is written."""
    line = CommandLine(tmp_path)
    txn = line.record("kill", code=-9)
    live = line.sessions / f"{txn}.live"
    other = live.with_name("other.live")
    live.rename(other)
    assert ["other"] == [row["txn"] for row in line.json("ls")]
    before = everything(other)
    assert f"j-0000-000001.jsonl: is of session '{txn}', not of this one" in line.read("tree", "other", code=3).stderr
    line.json("status")
    assert ({"other"}, before) == (line.txns(), everything(other))
    other.rename(live)
    assert "researcher" in line.read("tree", txn).stdout


def test_a_snapshot_under_another_name_is_not_gone_on_with(tmp_path):
    """A snapshot that says another txn than its name can be looked at; to go on with it would replace that other session's file."""
    line = CommandLine(tmp_path)
    txn = line.record()
    line.read("load", txn)  # on a busy machine the session is settled by whoever comes next
    copy = line.sessions / "copy.json.zst"
    copy.write_bytes((line.sessions / f"{txn}.json.zst").read_bytes())
    before = everything(line.sessions)
    assert "researcher" in line.read("tree", "copy").stdout
    run = line("load", "copy", "--", "true", code=2)
    assert f"optree: the file of copy holds session {txn}" in run.stderr
    after = everything(line.sessions)
    assert before.items() <= after.items()
    assert copy.exists()
