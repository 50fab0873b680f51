import json
import sys

import msgspec
import pytest

import optree
from optree._store.files import lock
from optree._tree import walk_ops
from optree_otel.incoming import read, save, sessions
from tests.cli.conftest import ROOT, CommandLine
from tests.otel.incoming.made import AGENT, DATA, LLM, TRACE, Made, otlp
from tests.otel.incoming.test_own import sent
from tests.otel.tree_of_all import TXN, tree_of_all

RUN = DATA / "pydantic_ai.json"


@pytest.fixture
def line(tmp_path):
    """Return the command line, with the exporters that an installed optree would have."""
    made = CommandLine(tmp_path)
    made.env["PYTHONPATH"] = f"{ROOT}:{ROOT / 'exporters'}"
    return made


@pytest.fixture
def where(tmp_path):
    """Return a directory for sessions."""
    return optree.Directory.of(tmp_path)


def billed(path):
    """Return the ids in a ledger."""
    return [json.loads(entry)["id"] for entry in path.read_text().splitlines()]


def test_import(line):
    """An imported session is listed, loaded, shown and billed as if it had been recorded here."""
    [made] = line.json("import", RUN)["imported"]
    [row] = line.json("ls")
    assert (made["txn"], "planner", "ended", 166, 33) == tuple(
        row[key] for key in ("txn", "agentId", "state", "inputTokens", "outputTokens")
    )
    assert "clean" == line.json("load", made["txn"])["damage"]["state"]
    assert "1.4.1.1" in line.read("tree", made["txn"]).stdout
    assert 5 == len(billed(line.base / "accounting.jsonl"))


def test_text(line):
    """For people, the command names what it has made, and the next step."""
    said = line.read("import", RUN, DATA / "openinference_openai.json").stdout
    assert ["TXN", "AGENT", "STARTED", "OPS"] == said.splitlines()[0].split()
    assert said.splitlines()[-1].startswith(f"imported into {line.sessions}; look at one with: optree tree otel-")


def test_twice(line):
    """A second import of a file changes nothing, says why, and fails; the ledger has each entry once."""
    [made] = line.json("import", RUN)["imported"]
    before = (line.sessions / f"{made['txn']}.json.zst").read_bytes()
    again = line.json("import", RUN, code=1)
    assert ([], [made["txn"]]) == (again["imported"], [one["txn"] for one in again["leftOut"]])
    assert "--replace puts the imported one in its place" in again["leftOut"][0]["said"]
    assert before == (line.sessions / f"{made['txn']}.json.zst").read_bytes()
    assert 5 == len(billed(line.base / "accounting.jsonl"))


def test_replace(line):
    """--replace puts a session in the place of the one that is there; entries that are billed are not billed again."""
    line.json("import", RUN)
    assert 1 == len(line.json("import", RUN, "--replace")["imported"])
    ids = billed(line.base / "accounting.jsonl")
    assert (5, 5) == (len(ids), len(set(ids)))


def test_our_own(line):
    """A session of ours that is there is not touched; where it is gone but billed, what is imported is not billed again."""
    txn = line.record()
    loaded = optree.load(line.sessions / f"{txn}.json.zst")
    file = line.folder / "spans.bin"
    file.write_bytes(sent(loaded.tree))
    assert "is there already" in line.json("import", file, code=1)["leftOut"][0]["said"]
    before = billed(line.base / "accounting.jsonl")
    (line.sessions / f"{txn}.json.zst").unlink()
    assert [txn] == [one["txn"] for one in line.json("import", file)["imported"]]
    assert before == billed(line.base / "accounting.jsonl")
    after = optree.load(line.sessions / f"{txn}.json.zst").session
    assert [op.path for *_, op in walk_ops(loaded.session)] == [op.path for *_, op in walk_ops(after)]


def test_resume(line):
    """An imported session can be gone on with."""
    [made] = line.json("import", RUN)["imported"]
    line("load", made["txn"], "--", sys.executable, "-c", "import optree\nwith optree.session('planner'), optree.turn(): pass")
    assert 2 == len(optree.load(line.sessions / f"{made['txn']}.json.zst").session.turns)


def test_notes(line):
    """What is passed over is said on stderr, the rest is imported; a file with nothing in it is an error."""
    file = line.folder / "spans.jsonl"
    file.write_text(json.dumps(otlp(Made()("invoke_agent planner", AGENT))) + "\n{broken")
    said = line.read("import", file)
    assert "optree: spans.jsonl: line 2 is no JSON and is passed over" in said.stderr
    assert f"otel-{TRACE}" in said.stdout
    file.write_text(json.dumps(otlp(Made()("GET /", {}))))
    assert "no session was found" in line.read("import", file, code=1).stderr


@pytest.mark.parametrize(("text", "said"), [("", "is empty"), ("hello", "is no OTLP file"), ('{"a":1}', "holds no OTLP spans")])
def test_unreadable(line, text, said):
    """A file that is no OTLP is named, with exit code 3."""
    file = line.folder / "spans.json"
    file.write_text(text)
    assert f"optree: spans.json {said}" in line.read("import", file, code=3).stderr.replace("is JSON, but ", "")


def test_spread_trace(line):
    """A trace that is spread over files is one session."""
    made = Made()
    root = made("invoke_agent planner", AGENT)
    files = []
    for number, span in enumerate([root, made("chat gpt-4o", LLM, root)]):
        files.append(line.folder / f"{number}.json")
        files[-1].write_text(json.dumps(otlp(span)))
    assert [1] == [one["ops"] for one in line.json("import", *files)["imported"]]


def test_running(where):
    """A session that is running, or was interrupted, keeps its journals: nothing is put in its place."""
    live = where.live(TXN)
    live.mkdir(parents=True)
    tree = tree_of_all().tree
    fd = lock.take(live / "LOCK")
    with pytest.raises(optree.BusyError, match="is running"):
        save(tree, where, replace=True)
    lock.release([fd])
    with pytest.raises(optree.BusyError, match="was interrupted"):
        save(tree, where, replace=True)
    assert [live] == [*where.sessions.iterdir()]


def test_too_deep(where):
    """A session that no snapshot can hold is refused, and nothing of it is written."""
    tree = tree_of_all().tree
    session = tree.session
    for _ in range(70):
        inner = msgspec.json.decode(msgspec.json.encode(tree_of_all().tree.session), type=optree.SessionNode)
        inner.path = f"{session.path}.1.1".strip(".")
        session.turns[0].ops[0].child_session = inner
        session = inner
    with pytest.raises(optree.StoreError, match="nested more than 60 deep"):
        save(tree, where)
    assert not where.sessions.exists()


def test_open_session(where):
    """A session whose root never ended is saved as interrupted."""
    made = Made()
    root = made("invoke_agent planner", AGENT, end_ns=0)
    [tree] = sessions([root])
    save(tree, where)
    assert "interrupted" == optree.load(f"otel-{TRACE}", where).state


def test_formats(where):
    """The snapshot of an imported session is one JSON document, as any other."""
    [tree] = sessions(read(RUN.read_bytes()).spans)
    path = save(tree, where, compression="none")
    assert ["version", "meta", "metaCrc", "session", "pool", "crc"] == list(json.loads(path.read_text()))
