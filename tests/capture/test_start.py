"""Programs that do not name optree are recorded where they are started for it, and are not touched where they are not."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from optree._capture import LIBRARIES, START, compared
from optree._store import Directory
from optree._store.reading.recovery import load
from tests.capture.clients.websocket_model import HEARS, SAID, of_responses
from tests.capture.sdk_calls import CHAT
from tests.cli.conftest import CommandLine

AGENT = """
import sys
import openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
print(client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Weather?"}]).choices[0].message.content)
"""


@pytest.fixture
def line(tmp_path):
    """Return a command line in a folder of its own, with a program that does not know optree."""
    line = CommandLine(tmp_path)
    (line.folder / "weather.py").write_text(AGENT)
    return line


def session_of(line):
    """Return the only session that was saved."""
    [txn] = line.txns()
    return load(txn, Directory.of(line.base)).session


def test_run_auto(line, provider):
    """`optree run --auto` records a program that does not name optree, as a session of its script's name, and prints where it is."""
    provider.says(CHAT)
    run = line("run", "--auto", "--", sys.executable, "weather.py", provider.url)
    assert "It rains\n" == run.stdout
    session = session_of(line)
    assert ("weather", "ok", 1, 12) == (session.agent_id, session.status, session.totals.llm_requests, 12)
    assert session.id in run.stderr


def test_what_is_waited_for_is_what_is_hooked():
    """A Python that was started for it waits for each package that has hooks, and for no other."""
    names = {}
    exec(Path(START, "optree_auto.py").read_text(), names)
    hooked = {module for library in LIBRARIES.values() for module in library.modules}
    assert hooked == {module for module in hooked if module.startswith(names["LIBRARIES"])}
    assert names["LIBRARIES"] == tuple(name for name in names["LIBRARIES"] if any(f"{module}.".startswith(f"{name}.") for module in hooked))


def test_what_goes_on_with_it_is_recorded_too(line, provider):
    """The command that is printed to go on with a failed run records calls as the run did."""
    provider.says(CHAT)
    (line.folder / "weather.py").write_text(AGENT + "raise RuntimeError\n")
    said = line("run", "--auto", "--", sys.executable, "weather.py", provider.url, code=1).stderr
    command = said.partition("go on with: optree ")[2].splitlines()[0]
    assert "--auto" in command
    line(*shlex.split(command), code=1)
    assert 2 == session_of(line).totals.llm_requests


@pytest.mark.parametrize("options", [(), ("-E",), ("-I",)])
def test_a_child_of_an_installation(line, provider, tmp_path, options):
    """Where the `.pth` file is installed, OPTREE_AUTO is enough, also for children and for Pythons that ignore PYTHONPATH."""
    provider.says(CHAT)
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    site = next((tmp_path / "venv").glob("lib/*/site-packages"))
    paths = [path for path in sys.path if path.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join([*paths, str(line.env["PYTHONPATH"])]) + "\n")
    for name in ("optree-auto.pth", "optree_auto.py"):
        (site / name).write_bytes((Path(START) / name).read_bytes())
    python = str(tmp_path / "venv/bin/python")
    starter = f"import subprocess; subprocess.run({[python, *options, str(line.folder / 'weather.py'), provider.url]}, check=True)"
    environment = {name: value for name, value in line.env.items() if name != "PYTHONPATH"} | {"OPTREE_AUTO": "1"}
    run = subprocess.run([python, "-c", starter], env=environment, cwd=line.folder, capture_output=True, text=True, check=True)
    assert "It rains\n" == run.stdout
    assert 1 == session_of(line).totals.llm_requests


def test_nothing_is_imported_before_it_is_needed(line):
    """A Python that is started so has nothing of optree in it until a library is imported whose calls are recorded."""
    said = "import sys; print([name for name in sys.modules if name.partition('.')[0] == 'optree'], sys.path[0] == '')"
    environment = line.env | {"OPTREE_AUTO": "1", "PYTHONPATH": START}
    run = subprocess.run([sys.executable, "-c", said], env=environment, capture_output=True, text=True, check=True)
    assert ("[] True\n", "") == (run.stdout, run.stderr)


def test_switched_off_nothing_waits_for_an_import(line):
    """Switched off, `optree run --auto` leaves a program's imports alone, and says at the end why nothing was recorded."""
    named = "[one for one in sys.modules if one.startswith('optree.')]"
    run = line("run", "--auto", "--", sys.executable, "-c", f"import openai, sys; print({named})", env={"OPTREE_DISABLED": "1"})
    assert ("[]\n", "optree: the program recorded nothing: OPTREE_DISABLED='1' switches optree off\n") == (run.stdout, run.stderr)


@pytest.mark.skipif("OPTREE_TEST_SYSTEM" in os.environ, reason="what pretends to be another system is a sitecustomize itself")
def test_a_sitecustomize_of_the_programs_own_runs(line, tmp_path):
    """Another sitecustomize on the path runs as it would, and the program's path has no folder of optree's."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("print('own')")
    environment = line.env | {"OPTREE_AUTO": "1", "PYTHONPATH": f"{START}:{tmp_path / 'own'}"}
    program = f"import sys, sitecustomize; print({START!r} in sys.path, sitecustomize.__file__)"
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert f"own\nFalse {tmp_path / 'own/sitecustomize.py'}\n" == run.stdout


def test_a_python_without_optree(line, tmp_path):
    """Where optree is not installed the program runs as it is, and it is said once that nothing is recorded."""
    (tmp_path / "httpx.py").write_text("print('httpx')")
    environment = {name: value for name, value in line.env.items() if name != "PYTHONPATH"} | {"OPTREE_AUTO": "1", "PYTHONPATH": START}
    program = "import sys; sys.modules['optree'] = None; sys.path.insert(0, '.'); import httpx, json"
    run = subprocess.run([sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "httpx\n" == run.stdout
    assert 1 == run.stderr.count("calls of models are not recorded")


@pytest.mark.skipif("OPTREE_TEST_SYSTEM" in os.environ, reason="what pretends to be another system is a sitecustomize itself")
def test_a_python_without_optree_has_its_own_sitecustomize(line, tmp_path):
    """One that `optree run --auto` starts, and that has no optree, runs its own sitecustomize, and says that nothing is recorded."""
    for folder in ("start", "own"):
        (tmp_path / folder).mkdir()
    shutil.copy(Path(START) / "sitecustomize.py", tmp_path / "start")  # as a wheel has it: the rest is in the environment's own folder
    (tmp_path / "own/sitecustomize.py").write_text("print('own')")
    environment = line.env | {"PYTHONPATH": f"{tmp_path / 'start'}:{tmp_path / 'own'}"}
    hidden = [sys.executable, "-S", "-c", "import sys; sys.modules['optree_auto'] = None; import sitecustomize"]
    run = subprocess.run(hidden, env=environment, capture_output=True, text=True, check=True)
    assert "own\n" == run.stdout
    assert f"optree: calls of models are not recorded: optree is not installed for {sys.executable}\n" == run.stderr


def test_the_list(line):
    """`optree instrument` lists each library with the release that is installed and the one that was tried."""
    said = line("instrument").stdout
    assert said == line("instrument", "--list").stdout
    assert {"httpx", "httpx2", "openai", "anthropic"} <= set(said.split())
    assert "OPTREE_AUTO is off" in said


@pytest.mark.parametrize(
    ("release", "expected"), [("2.9", "older"), ("3.0.1", None), ("3.60", None), ("4.0", "newer"), (None, None), ("x", None)]
)
def test_a_release_that_was_not_tried(release, expected):
    """A release is older or newer than those that were tried by its first number."""
    assert expected == compared("openai", release)


@pytest.mark.parametrize("release", ["2.54.0", "99.1"])
def test_the_list_marks_what_was_not_tried(line, release):
    """`optree instrument` marks a library that is older or newer than what was tried."""
    about = line.folder / "openai-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: openai\nVersion: {release}\n")
    age = "older" if release == "2.54.0" else "newer"
    env = {"PYTHONPATH": f"{line.folder}:{line.env.get('PYTHONPATH', '')}"}
    assert f"{release} ({age})" in line("instrument", env=env).stdout
    libraries = {one["name"]: one for one in json.loads(line("instrument", "--json", env=env).stdout)["libraries"]}
    assert (release, age) == (libraries["openai"]["installed"], libraries["openai"]["compared"])


@pytest.mark.parametrize(("value", "is_on"), [("1", True), ("Yes", True), ("0", False), ("off", False), ("", False)])
def test_it_is_on_as_any_switch(line, value, is_on):
    """What the variable says is read as each other switch of the environment: by the list, and where Python starts."""
    environment = line.env | {"OPTREE_AUTO": value, "PYTHONPATH": START}
    ask = "import sys; print(any(type(one).__name__ == 'Finder' for one in sys.meta_path))"
    run = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    said = line("instrument", env={"OPTREE_AUTO": value}).stdout
    assert (f"{is_on}\n", True) == (run.stdout, f"OPTREE_AUTO is {'on' if is_on else 'off'}" in said)
    libraries = json.loads(line("instrument", "--json", env={"OPTREE_AUTO": value}).stdout)["libraries"]
    assert [is_on and one["installed"] is not None for one in libraries] == [one["on"] for one in libraries]


TALKS = """
import json, sys
from websockets.sync.client import connect
with connect(sys.argv[1]) as connection:
    connection.send(json.dumps({"type": "response.create", "model": "gpt-5", "input": "Weather?"}))
    while json.loads(connection.recv())["type"] != "response.completed":
        continue
"""


def test_a_program_with_a_websocket_alone(line, model):
    """A program that imports no other library than websockets is recorded too."""
    model.says(HEARS, *of_responses(SAID))
    (line.folder / "talks.py").write_text(TALKS)
    line("run", "--auto", "--", sys.executable, "talks.py", f"ws://{model.url}/responses")
    session = session_of(line)
    assert ("talks", "ok", 1, 8) == (session.agent_id, session.status, session.totals.llm_requests, session.totals.input_tokens)
