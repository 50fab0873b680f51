"""`optree export --to FORMAT` and `optree formats`."""

import gzip
import json
import stat
import subprocess

import pytest

from optree_formats.ai_agent import AI_AGENT
from tests.cli.conftest import CommandLine

ALL = ["ai-agent", "ai-agent-v1", "ai-agent-v3", "events", "events-v1", "json", "markdown", "transcript"]


def test_formats_are_listed(ended):
    """Each format stands in the list with how its files' names end and what it leaves out, for people and as JSON."""
    found = ended.json("formats")
    assert ALL == [one["name"] for one in found["formats"]]
    assert [] == found["problems"]
    assert {".events.jsonl", ".json.gz", ".ai-agent", ".json"} <= {one["suffix"] for one in found["formats"]}
    assert ["json"] == [one["name"] for one in found["formats"] if not one["cannotHold"]]
    text = ended.read("formats").stdout
    assert ["NAME", "SUFFIX", "ABOUT"] == text.splitlines()[0].split()
    assert "json leaves out: nothing" in text


@pytest.mark.parametrize("name", ALL)
def test_a_session_is_written_and_read_again(ended, tmp_path, name):
    """Each format's file is named after its session, and import takes it for what it is without being told."""
    [made] = ended.json("export", "last", "--to", name, "-o", f"{tmp_path}/")["sessions"]
    assert made["files"][0].startswith(f"{tmp_path}/{ended.txn}")
    other = CommandLine(tmp_path)
    [path] = [path for path in tmp_path.iterdir() if path.name.startswith(ended.txn)][:1] if name == "ai-agent-v3" else [made["files"][0]]
    found = json.loads(other("import", path, "--json").stdout)
    assert [ended.txn] == [one["txn"] for one in found["imported"]]
    assert [] == found["faults"]


def test_what_is_left_out_is_said_in_one_line(ended, tmp_path):
    """What a format does not hold and this session has is said on stderr, with how much of it; nothing is said where nothing is lost."""
    said = ended.read("export", "last", "--to", "events", "-o", tmp_path / "x").stderr
    assert said.startswith(f"optree: events does not hold all of {ended.txn}; left out: turns (2), ops (2), logs (1)")
    assert 1 == len(said.splitlines())
    assert "" == ended.read("export", "last", "--to", "json", "-o", tmp_path / "y.json").stderr


def test_a_file_to_stdout(ended):
    """With -o - the file goes to stdout as it is, bytes that are no text too."""
    run = ended("export", "last", "--to", "json", "-o", "-")
    assert ended.txn == json.loads(run.stdout)["meta"]["txn"]
    done = subprocess.run(ended.command("export", "last", "--to", "ai-agent", "-o", "-"), env=ended.env, capture_output=True, check=True)
    assert 2 == json.loads(gzip.decompress(done.stdout))["version"]


def test_nothing_is_overwritten_unless_forced(ended, tmp_path):
    """A file that is there stays as it is and is named; --force replaces it; files are their owner's."""
    file = tmp_path / "x.json"
    file.write_text("mine")
    assert (
        f"{file} is there already, and stays as it is: --force replaces it"
        in ended.read("export", "last", "--to", "json", "-o", file, code=2).stderr
    )
    assert ("mine", [file]) == (file.read_text(), list(tmp_path.iterdir()))
    assert f"{file}\n" == ended.read("export", "last", "--to", "json", "-o", file, "--force").stdout
    assert ended.txn == json.loads(file.read_bytes())["meta"]["txn"]
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    assert [file] == list(tmp_path.iterdir())


def test_files_go_where_they_are_wanted(ended, tmp_path):
    """Without -o a file is made here; a directory, there or not, takes files named after their sessions."""
    ended.read("export", "last", "--to", "events", "-o", f"{tmp_path}/new/")
    assert [f"{ended.txn}.events.jsonl"] == [path.name for path in (tmp_path / "new").iterdir()]
    ended.read("export", "last", ended.txn, "--to", "json", "-o", tmp_path / "two", "--force")
    assert [f"{ended.txn}.json"] == [path.name for path in (tmp_path / "two").iterdir()]
    assert f"{ended.txn}.json\n" == ended("export", "last", "--to", "json").stdout
    assert (ended.folder / f"{ended.txn}.json").is_file()


def test_a_folder_of_records_takes_further_sessions(ended, tmp_path):
    """Version 3 of ai-agent's files goes into the folder that is named, beside what other sessions have there."""
    folder = tmp_path / "sessions.ai-agent"
    (folder / "session").mkdir(parents=True)
    (folder / "session" / "other.jsonl").write_text("")
    run = ended.read("export", "last", "--to", "ai-agent-v3", "-o", folder)
    assert f"{folder}/session/{ended.txn}.jsonl and " in run.stdout
    assert {"other.jsonl", f"{ended.txn}.jsonl"} < {path.name for path in (folder / "session").iterdir()}


def test_a_killed_session_is_written_as_far_as_it_came(killed, tmp_path):
    """A session that broke off is written too; what was open stays open."""
    killed.read("export", "last", "--to", "ai-agent", "-o", tmp_path / "x.json.gz")
    [tree] = AI_AGENT.read(tmp_path / "x.json.gz").trees
    assert (None, None) == (tree.session.ended_at, tree.session.status)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--to", "events"], "name a session: optree export last --to events"),
        (["last", "--to", "events", "--endpoint", "http://x"], "--endpoint is for collectors; events writes files"),
        (["last", "--to", "events", "--again"], "--again is for collectors"),
        (["--pending", "--to", "events"], "--pending is for collectors"),
        (["last", "-o", "x"], "--output and --force are for files: name a format with --to"),
        (["last", "--to", "paper"], "there is no exporter 'paper'; choose one of ai-agent, ai-agent-v1"),
        (["last", "last", "--to", "events", "-o", "-"], "one session goes to stdout"),
        (["last", "--to", "events", "-o", "-", "--json"], "--json and the file cannot both go to stdout"),
        (["last", "--to", "ai-agent-v3", "-o", "-"], "files of this session: name a directory for them"),
        (["last", "last", "--to", "events", "-o", "agent.py"], "agent.py is a file: name a directory for several sessions"),
    ],
)
def test_wrong_usage(ended, args, said):
    """Wrong usage says what to do, and writes nothing."""
    run = ended("export", *args, code=2)
    assert said in run.stderr
    assert "" == run.stdout
