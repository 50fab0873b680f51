"""`optree export --to FORMAT` and `optree formats`."""

import gzip
import json
import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from optree._cli.commands.export import _workplace
from optree._formats.ai_agent import AI_AGENT
from tests.cli.conftest import CommandLine

READ_ONLY = ["claude-code", "codex", "inspect", "openai-agents"]
ALL = ["ai-agent", "ai-agent-v1", "ai-agent-v3", "events", "events-v1", "json", "markdown", "transcript"]


def test_formats_are_listed(ended):
    """Each format stands in the list with how its files' names end and what it leaves out, for people and as JSON."""
    found = ended.json("formats")
    assert ALL == [one["name"] for one in found["formats"] if one["suffix"]]
    assert READ_ONLY == [one["name"] for one in found["formats"] if not one["suffix"]]
    assert [] == found["problems"]
    assert {".events.jsonl", ".json.gz", ".ai-agent", ".json"} <= {one["suffix"] for one in found["formats"]}
    assert ["json"] == [one["name"] for one in found["formats"] if one["suffix"] and not one["cannotHold"]]
    text = ended.read("formats").stdout
    assert ["NAME", "SUFFIX", "ABOUT"] == text.splitlines()[0].split()
    assert "json leaves out: nothing" in text


@pytest.mark.parametrize("name", READ_ONLY)
def test_what_is_only_read_is_not_written(ended, name):
    """An export to a format that is only read is refused, and leaves nothing."""
    assert f"{name} is only read, not written" in ended.read("export", "last", "--to", name, "-o", ended.folder / "out", code=2).stderr
    assert not (ended.folder / "out").exists()


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
    said = ended.read("export", "last", "--to", "events", "--verbatim", "-o", tmp_path / "x").stderr
    assert said.startswith(f"optree: events does not hold all of {ended.txn}; left out: turns (2), ops (2), logs (1)")
    assert 1 == len(said.splitlines())
    assert "" == ended.read("export", "last", "--to", "json", "--verbatim", "-o", tmp_path / "y.json").stderr


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


@pytest.mark.parametrize(
    ("name", "output", "said"),
    [
        ("json", "agent.py/x.json", "agent.py/x.json cannot be written: a file stands where its directory would be; name another place"),
        ("json", "dir.json", "dir.json is there already, and is no file: name another"),
        ("json", "pipe", "pipe is there already, and is no file: name another"),
        ("json", f"{'x' * 300}.json", "xx.json cannot be written: its name is too long; give a shorter one"),
        ("ai-agent-v3", "agent.py", "agent.py cannot be written: a file stands where its directory would be; name another place"),
    ],
)
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_file_that_cannot_be_written_is_named(ended, name, output, said, force):
    """What is in the way of a file is said of the file that was named, with what to do; it stays as it is, and nothing else is left."""
    (ended.folder / "dir.json").mkdir(exist_ok=True)
    if not (ended.folder / "pipe").exists():
        os.mkfifo(ended.folder / "pipe")
    before = sorted(ended.folder.rglob("*"))
    run = ended("export", "last", "--to", name, "-o", output, *force, code=2)
    assert run.stderr.splitlines()[-1].endswith(said)
    assert "Errno" not in run.stderr
    assert before == sorted(ended.folder.rglob("*"))


def test_a_full_disk_is_said_of_the_file(ended, tmp_path):
    """Where there is no room for a file, it is named and nothing is left of it; the exit code is that of a failure."""
    line = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *ended.command("export", "last", "--to", "json", "-o", tmp_path / "x.json")]
    run = subprocess.run(line, env=ended.env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"optree: {tmp_path}/x.json cannot be written: there is no room; make some, or name another place\n" == run.stderr
    assert (1, []) == (run.returncode, list(tmp_path.iterdir()))


def test_files_go_where_they_are_wanted(ended, tmp_path):
    """Without -o a file is made here; a directory, there or not, takes files named after their sessions."""
    ended.read("export", "last", "--to", "events", "-o", f"{tmp_path}/new/")
    assert [f"{ended.txn}.events.jsonl"] == [path.name for path in (tmp_path / "new").iterdir()]
    ended.read("export", "last", ended.txn, "--to", "json", "-o", tmp_path / "two", "--force")
    assert [f"{ended.txn}.json"] == [path.name for path in (tmp_path / "two").iterdir()]
    assert f"{ended.txn}.json\n" == ended("export", "last", "--to", "json").stdout
    assert (ended.folder / f"{ended.txn}.json").is_file()


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_a_session_that_is_named_twice_is_written_once(ended, tmp_path, options):
    """A session that is named again, as by its file, is left out, which is said; the file that is there is the one named first."""
    other = tmp_path / "other.json"
    ended("export", "last", "--to", "json", "-o", other)
    other.write_text(other.read_text().replace('"researcher"', '"someone"'))
    said = ended("export", "last", other, ended.txn, "--to", "json", "-o", tmp_path / "out", *options)
    assert [f"{tmp_path}/out/{ended.txn}.json"] == said.stdout.splitlines()
    assert [str(other), ended.txn] == [line.split()[1] for line in said.stderr.splitlines() if "was named before" in line]
    assert "someone" not in (tmp_path / "out" / f"{ended.txn}.json").read_text()


def test_what_was_written_is_named_also_where_the_next_is_refused(optree, tmp_path):
    """Files that are written are named, also if a later one is there already."""
    first, second = optree.record(), optree.record()
    (tmp_path / f"{second}.json").touch()
    said = optree("export", first, second, "--to", "json", "-o", tmp_path, code=2)
    assert f"{tmp_path}/{first}.json\n" == said.stdout
    assert f"{second}.json is there already" in said.stderr


def test_a_folder_of_records_takes_further_sessions(ended, tmp_path):
    """Version 3 of ai-agent's files goes into the folder that is named, beside what other sessions have there."""
    folder = tmp_path / "sessions.ai-agent"
    (folder / "session").mkdir(parents=True)
    (folder / "session" / "other.jsonl").write_text("")
    run = ended.read("export", "last", "--to", "ai-agent-v3", "-o", folder)
    assert f"{folder}/session/{ended.txn}.jsonl and " in run.stdout
    assert {"other.jsonl", f"{ended.txn}.jsonl"} < {path.name for path in (folder / "session").iterdir()}


KEY = "sk-abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def secretive(optree):
    """Return a command line with a session that has credentials by key, in a text, and in a long text of its own."""
    program = (
        "import optree\n"
        "with optree.session(agent='a'), optree.turn(user='my key is KEY'), optree.tool('t') as op:\n"
        "    op.request(api_key='hunter2hunter2', password='hunter3hunter3 ' * 2000, q='x ' * 20000 + 'KEY')\n"
        "    op.response('ok')\n"
    )
    subprocess.run([sys.executable, "-c", program.replace("KEY", KEY)], env=optree.env, check=True, cwd=optree.folder)
    return optree


def unpacked(folder):
    """Return all that the files below a folder hold, one after the other."""
    files = [path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()]
    return b"".join(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data for data in files)


@pytest.mark.parametrize("name", ALL)
def test_credentials_stay_at_home(secretive, tmp_path, name):
    """Each format's files are without credentials, and it is said; with --verbatim they are whole, and nothing is said of it."""
    run = secretive("export", "last", "--to", name, "-o", f"{tmp_path}/out/")
    assert [] == [secret for secret in (KEY, "hunter2", "hunter3") if secret.encode() in unpacked(tmp_path / "out")]
    assert "credentials are replaced; for a backup that has them: --verbatim" in run.stderr
    run = secretive("export", "last", "--to", name, "-o", f"{tmp_path}/whole/", "--verbatim", "--json")
    assert [False] == [one["redacted"] for one in json.loads(run.stdout)["sessions"]]
    assert KEY.encode() in unpacked(tmp_path / "whole")
    assert "credentials" not in run.stderr


def test_a_verbatim_file_reads_back_as_the_session(secretive, tmp_path):
    """What --verbatim writes makes the very session when it is imported elsewhere; so does stdout."""
    whole = secretive("export", "last", "--to", "json", "-o", "-", "--verbatim").stdout
    (tmp_path / "x.json").write_text(whole)
    secretive("import", tmp_path / "x.json", "--replace")
    assert whole == secretive("export", "last", "--to", "json", "-o", "-", "--verbatim").stdout
    assert KEY in whole
    assert KEY not in secretive("export", "last", "--to", "json", "-o", "-").stdout


def test_a_format_of_several_files_to_stdout(ended):
    """To stdout goes the main file; how many files there are beside it is said on stderr."""
    run = ended("export", "last", "--to", "markdown", "-o", "-")
    assert run.stdout.startswith("# Session Log")
    assert f"optree: {ended.txn}: left out on stdout: 1 more file; --output DIR has all" in run.stderr.splitlines()
    assert "session_start" in ended("export", "last", "--to", "ai-agent-v3", "-o", "-").stdout


def test_what_is_not_in_the_session_is_not_said_to_be_left_out(optree, tmp_path):
    """The line of what is left out names only what the session has: reasoning that came at once is held whole."""
    program = (
        "import optree\n"
        "with optree.session(agent='a'), optree.turn(user='hi'), optree.llm(provider='p', model='m') as op:\n"
        "    op.think('hm')\n"
        "    op.response('x')\n"
    )
    subprocess.run([sys.executable, "-c", program], env=optree.env, check=True, cwd=optree.folder)
    said = {name: optree("export", "last", "--to", name, "-o", f"{tmp_path}/out/").stderr for name in ("markdown", "transcript")}
    assert "" == said["markdown"]
    assert said["transcript"].endswith("; left out: accounting (1), chunks of reasoning (1), latencies as they were measured (1)\n")


@pytest.mark.parametrize("name", ["json", "ai-agent-v3"])
def test_directories_that_are_made_are_private(ended, tmp_path, name):
    """Directories that an export makes are their owner's only, those in between too."""
    ended("export", "last", "--to", name, "-o", f"{tmp_path}/a/b/")
    assert {0o700} == {stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "a", *(tmp_path / "a").rglob("*")] if path.is_dir()}


def test_what_a_killed_export_left_is_removed(ended, tmp_path):
    """A directory of an export that was killed is removed by one a day later; a young one, and what has another name, stay."""
    for name in (".optree-export-old", ".optree-export-new", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("half")
    for name in (".optree-export-old", "other"):
        os.utime(tmp_path / name, (0, 0))
    ended("export", "last", "--to", "json", "-o", tmp_path / "x.json")
    assert {".optree-export-new", "other", "x.json"} == {path.name for path in tmp_path.iterdir()} - {"base", "agent.py"}


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
        (["last", "-o", "x"], "is for files: name a format with --to"),
        (["last", "--to", "paper"], "there is no exporter or format 'paper'; choose one of ai-agent, ai-agent-v1"),
        (["last", "--to", "event"], "there is no exporter or format 'event'; did you mean events? (there are "),
        (["last", "--to", "Markdwn"], "there is no exporter or format 'Markdwn'; did you mean markdown?"),
        (["last", "last", "--to", "events", "-o", "-"], "one session goes to stdout"),
        (["last", "--to", "events", "-o", "-", "--json"], "--json and the file cannot both go to stdout"),
        (["last", "--verbatim"], "is for files"),
        (["last", "last", "--to", "events", "-o", "agent.py"], "agent.py is a file: name a directory for several sessions"),
    ],
)
def test_wrong_usage(ended, args, said):
    """Wrong usage says what to do, and writes nothing."""
    run = ended("export", *args, code=2)
    assert said in run.stderr
    assert "" == run.stdout


def test_exports_to_one_directory_at_once(tmp_path):
    """Where other exports make and remove their directories meanwhile, one writes its own."""
    done = threading.Event()

    def others():
        while not done.is_set():
            for number in range(20):
                (tmp_path / f".optree-export-{number}").mkdir()
            for number in range(20):
                (tmp_path / f".optree-export-{number}").rmdir()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(others)
        try:
            for _ in range(200):
                with _workplace(tmp_path) as folder:
                    assert folder.is_dir()
        finally:
            done.set()
        running.result()
