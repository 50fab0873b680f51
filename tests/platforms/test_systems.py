"""optree as on macOS and Windows: without the names that these lack, in programs of its own (`tests/platforms/start`)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("mypy", reason="typeshed's stubs come with mypy: make .venv/has-dev")
from optree._speed import compile as building
from tests.platforms.typeshed import differences

ROOT = Path(__file__).parents[2]
AGENT = """
import os, sys
import optree

@optree.session(agent="a")
def work():
    with optree.turn(user="q"), optree.llm(provider="openai", model="m") as op:
        op.account(input_tokens=1, output_tokens=2, cost_usd=0.1)
        if "die" in sys.argv:
            os._exit(9)
        op.response("done")
    print(optree.flush("sync"), optree.flush("snapshot"))

work()
health = optree.health()
print(health["ok"], health["problems"])
sys.exit(7)
"""
CALLS = {"darwin": "posix", "win32": "windows"}
"""The module of `optree._syscalls` that is each system's."""


@pytest.fixture(scope="module", params=["darwin", "win32"])
def system(request):
    """Return the name of a system."""
    return request.param


@pytest.fixture(scope="module")
def told(system, tmp_path_factory):
    """Return the file that tells programs which system to pretend."""
    path = tmp_path_factory.mktemp("told") / f"{system}.json"
    path.write_text(json.dumps({"system": system, **differences(system)}))
    return path


def test_without_stubs_nothing_is_taken_away_and_that_fails(system, monkeypatch):
    """Where typeshed's stubs are missing no test would miss anything: the run ends before its first, and says what to install."""
    monkeypatch.setattr(Path, "rglob", lambda *_: iter(()))
    with pytest.raises(SystemExit, match=r"needs typeshed's stubs.*make \.venv/has-dev"):
        differences(system)


@pytest.fixture
def run(system, told, tmp_path):
    """Return a function that runs Python as on that system, in a directory of its own."""
    place = os.pathsep.join([str(ROOT / "tests/platforms/start"), str(ROOT), str(ROOT / "exporters")])
    environment = os.environ | {"OPTREE_TEST_SYSTEM": str(told), "PYTHONPATH": place, "OPTREE_BASE_DIR": str(tmp_path / "base")}
    environment |= {"OPTREE_PURE": "1"} if system == "win32" else {}

    def start(*arguments, **given):
        command = [sys.executable, *map(str, arguments)]
        given = {"text": True, "encoding": "utf-8", **given}
        return subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False, **given)

    return start


@pytest.fixture
def agent(tmp_path):
    """Return a program that records a session."""
    path = tmp_path / "agent.py"
    path.write_text(AGENT)
    return path


def test_a_session_is_traced_and_kept(run, agent, tmp_path):
    """A session is on disk when `flush("sync")` says so, in a snapshot when `flush("snapshot")` does; nothing is left beside that."""
    ran = run(agent)
    assert ("True True\nTrue []\n", 7) == (ran.stdout, ran.returncode), ran.stderr
    assert [".json.zst"] == [path.name[path.name.index(".") :] for path in (tmp_path / "base" / "sessions").iterdir()]
    assert [1] == [line.count("costUsd") for line in (tmp_path / "base" / "accounting.jsonl").read_text().splitlines()]


def test_what_the_system_lacks_is_gone(system, run):
    """What runs is the module for that system, and names that it lacks are not there."""
    ran = run(
        "-c",
        "import optree._syscalls as s, optree._store.files.system as t; print(s.calls.__name__, hasattr(t.os, 'fdatasync'), t.os.name)",
    )
    name = {"darwin": "posix", "win32": "nt"}[system]
    assert f"optree._syscalls.{CALLS[system]} False {name}\n" == ran.stdout, ran.stderr


def test_a_program_is_run_killed_loaded_and_resumed(run, agent, tmp_path):
    """`optree run` has the program's exit code; what was killed is shown as interrupted, goes on, and is billed once."""
    ran = run("-m", "optree", "run", "--", sys.executable, agent, "die")
    assert (9, True) == (ran.returncode, "was interrupted (exit code 9)" in ran.stderr), ran.stderr
    shown = run("-m", "optree", "load", "last")
    assert (0, True) == (shown.returncode, "of a: interrupted" in shown.stdout), shown.stderr
    again = run("-m", "optree", "load", "last", "--", sys.executable, agent)
    assert (7, True) == (again.returncode, "is saved in" in again.stderr), again.stderr
    assert 2 == len((tmp_path / "base" / "accounting.jsonl").read_text().splitlines())
    assert 1 == len(list((tmp_path / "base" / "sessions").glob("*.zst")))


def test_a_process_outlives_the_one_that_starts_it(system, run, tmp_path):
    """What a program has not sent is delivered by a process that begins once the program has ended, on the same system."""
    made, written = tmp_path / "made", tmp_path / "written"
    code = f"""
sys.path[:] = {[str(ROOT), *sys.path]!r}
from optree._syscalls import calls
print(calls.__name__, hasattr(calls.os, "fdatasync"), file=open({str(written)!r}, "x"), flush=True)
os.replace({str(written)!r}, {str(made)!r})
"""
    started = (
        f"import os; from optree_otel import detached as d; d.start({code!r}, dict(os.environ), 60); print(os.path.exists({str(made)!r}))"
    )
    ran = run("-c", started)
    assert "False\n" == ran.stdout, ran.stderr
    waited = run("-c", f"import os, time\nwhile not os.path.exists({str(made)!r}): time.sleep(0.01)")
    assert (0, f"optree._syscalls.{CALLS[system]} False\n") == (waited.returncode, made.read_text())


@pytest.mark.parametrize("system", ["darwin"], indirect=True)
def test_a_promised_sync_goes_through_the_drive(run, tmp_path):
    """On macOS a file is forced to the disk with F_FULLFSYNC; where a file system has none, with fsync."""
    code = """
import os, pretended
from optree._syscalls import calls
fd = calls.open_file("file", os.O_WRONLY | os.O_CREAT)
calls.fdatasync(fd), calls.fsync(fd), calls.fsync_directory(".")
print(len(pretended.fullsyncs), end=" ")
asked, synced = [], []
def refused(fd, command, argument=0):
    asked.append(command)
    raise OSError(45, "Operation not supported")
pretended.MACOS["fcntl"]["fcntl"] = refused  # what optree's modules see; to set it in `calls.fcntl` changes the real module alone
os.fsync = synced.append
calls.fdatasync(fd), calls.fsync(fd)
print(asked == [calls.fcntl.F_FULLFSYNC] * 2, synced == [fd] * 2)
"""
    ran = run("-c", code, cwd=tmp_path)
    assert "3 True True\n" == ran.stdout, ran.stderr


@pytest.mark.parametrize("system", ["darwin"], indirect=True)
def test_all_that_is_synced_goes_through_the_drive(run, agent):
    """Journal, snapshot, ledger and the directories of their names are forced to disk with F_FULLFSYNC alone."""
    code = f"""
import atexit, os, runpy, sys, pretended
real, synced = os.fsync, []
def fsync(fd):
    path = os.readlink(f"/dev/fd/{{fd}}")
    synced.append("directory" if os.path.isdir(path) else path)
    real(fd)
def fdatasync(fd):
    sys.exit("macOS has no such call")
def say():
    print(len(synced) == len(pretended.fullsyncs), "directory" in synced)
    print(*(any(end in one for one in synced) for end in ("/accounting.jsonl", ".live/", ".json.zst")))
os.fsync, os.{"fdatasync"} = fsync, fdatasync
atexit.register(say)
runpy.run_path({str(agent)!r})
"""
    ran = run("-c", code)
    assert "True True\nTrue []\nTrue True\nTrue True True\n" == ran.stdout, ran.stderr


def test_a_run_of_tests(system, tmp_path):
    """Tests that are run as on that system start processes with spawn; one of what it lacks is left out, and the reason is shown."""
    tests = f"""
import multiprocessing, os
def test_start():
    assert "spawn" == multiprocessing.get_start_method()
def test_lacking():
    os.{"fdatasync"}
"""
    (tmp_path / "test_some.py").write_text(tests)
    command = [sys.executable, "-m", "tests.platforms", system, "-rs", "-p", "no:cacheprovider", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert 0 == ran.returncode, ran.stdout
    assert "1 passed, 1 skipped" in ran.stdout
    assert f"{system}: needs os.{'fdatasync'}" in ran.stdout


@pytest.mark.parametrize("arguments", [[], ["die"]])
def test_what_is_kept_is_its_owners_alone(run, system, agent, tmp_path, arguments):
    """Each folder is made with 0700, whatever the umask: that makes it its owner's on Windows too, as of Python 3.12.4. Files have 0600."""
    code = f"import os, runpy, sys; os.umask(0); sys.argv[1:] = {arguments}; runpy.run_path({str(agent)!r})"
    assert (9 if arguments else 7) == run("-c", code).returncode
    kept = [path for path in (tmp_path / "base").rglob("*") if path.is_dir() or system == "darwin"]
    assert [] == [path for path in kept if path.stat().st_mode & 0o777 != (0o700 if path.is_dir() else 0o600)]
    assert any(path.name.endswith(".live" if arguments else "sessions") for path in kept)


WINDOWS = pytest.mark.parametrize("system", ["win32"], indirect=True)


@WINDOWS
def test_what_is_promised_is_flushed(run, agent):
    """Journal, snapshot and ledger are forced to the disk by `os.fsync`, which is FlushFileBuffers there; no directory is."""
    code = f"""
import atexit, os, runpy
real, synced = os.fsync, []
def fsync(fd):
    synced.append(os.path.realpath(f"/proc/self/fd/{{fd}}"))
    real(fd)
def say():
    print(*(any(end in one for one in synced) for end in ("/accounting.jsonl", ".live/", ".json.zst")), any(map(os.path.isdir, synced)))
os.fsync = fsync
atexit.register(say)
runpy.run_path({str(agent)!r})
"""
    ran = run("-c", code)
    assert "True True\nTrue []\nTrue True True False\n" == ran.stdout, ran.stderr


@WINDOWS
def test_colours_are_asked_of_the_console(run):
    """A console that has no mode, or that refuses escape sequences, gets no colours; of the others they are asked beside what it has."""
    code = """
import sys
from optree._syscalls import windows
asked = []
def get(handle, mode):
    mode._obj.value = 3
    return 1
def put(handle, mode):
    asked.append(mode)
    return 1
for windows._kernel.GetConsoleMode, windows._kernel.SetConsoleMode in ((get, put), (get, lambda *_: 0), (lambda *_: 0, put)):
    print(windows.shows_colours(sys.stdout), asked)
"""
    ran = run("-c", code)
    assert "True [7]\nFalse [7]\nFalse [7]\n" == ran.stdout, ran.stderr


def test_nothing_is_compiled_there(monkeypatch):
    """On Windows the build takes no compiler, also if one is named: the package is built without compiled parts."""
    monkeypatch.setattr(building, "os", SimpleNamespace(name="nt", environ={"CC": "gcc"}))
    hook = object.__new__(building.Compile)
    with pytest.raises(OSError, match="no compiler is known for cpython on"):
        hook._compiled("optree/_speed/_twins", ".pyd")


@WINDOWS
def test_files_that_others_have_open_are_tried_for(run, tmp_path):
    """A file that another program has open is removed or replaced as soon as it is closed; if it stays open, what is there stays whole."""
    code = """
import threading
from pathlib import Path
from optree._store.files.system import REAL
from optree._syscalls import calls
calls.PATIENCE_SECONDS = 60.0
for change in (lambda: REAL.unlink(Path("old")), lambda: REAL.replace(Path("old"), [b"new"])):
    Path("old").write_bytes(b"old")
    file = open("old")
    closing = threading.Timer(0.05, file.close)
    closing.start()
    change()
    print(file.closed, Path("old").exists() and Path("old").read_bytes())
calls.PATIENCE_SECONDS = 0.01
with open("old") as file:
    try:
        REAL.replace(Path("old"), [b"newer"])
    except PermissionError:
        print(Path("old").read_bytes())
"""
    ran = run("-c", code, cwd=tmp_path)
    assert "True False\nTrue b'new'\nb'new'\n" == ran.stdout, ran.stderr


@WINDOWS
def test_locks(run, tmp_path):
    """A lock is for one, or shared; who has it is refused it again, also by another descriptor, until it is given back or closed."""
    code = """
import os
from optree._store.files.lock import hold, take
from optree._store.files.system import REAL
from pathlib import Path
path = Path("LOCK")
held = take(path)
print(held >= 0, take(path, seconds=0.0), hold([path]))
REAL.unlock(held), REAL.unlock(held)
one, two = hold([path]), hold([path])
print(len(one), len(two), take(path, seconds=0.0))
REAL.close(one[0]), REAL.close(two[0])
print(REAL.lock(held), REAL.lock(held))
"""
    ran = run("-c", code, cwd=tmp_path)
    assert "True -1 None\n1 1 -1\nTrue False\n" == ran.stdout, ran.stderr


@WINDOWS
@pytest.mark.parametrize("txn", ["con", "NUL", "com1", "Lpt9"])
def test_devices_name_no_session(run, txn):
    """A name that Windows keeps for a device is refused, and the message says so."""
    code = f"""
import optree
from optree._store.reading.directory import checked
try:
    checked({txn!r})
except optree.SetupError as error:
    print(error)
print(checked("console"))
"""
    said = f"'{txn}' cannot name a session on this system, where it is a device: use another name"
    ran = run("-c", code)
    assert f"{said}\nconsole\n" == ran.stdout, ran.stderr


@WINDOWS
def test_links_are_not_followed(run, tmp_path):
    """A link in a file's place is refused."""
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    code = """
from pathlib import Path
from optree._store.files.system import REAL
try:
    REAL.append(Path("link"))
except OSError as error:
    print(type(error).__name__, error.filename)
"""
    ran = run("-c", code, cwd=tmp_path)
    assert "OSError link\n" == ran.stdout, ran.stderr
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("encoding", ["cp1252", "cp437", "ascii"])
def test_consoles_of_few_characters(run, agent, encoding):
    """What a console's code page lacks is drawn in ASCII, and nothing fails."""
    run(agent)
    code = f"""
import sys
from optree._cli import main
sys.stdout.reconfigure(encoding={encoding!r})
sys.argv[1:] = ["tree", "last"]
main()
"""
    ran = run("-c", code, encoding=encoding)
    assert 0 == ran.returncode, ran.stderr
    assert "1.1 llm openai:m" in ran.stdout
