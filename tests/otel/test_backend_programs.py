import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.otel.backends.binaries import COLLECTOR, JAEGER, MissingError
from tests.otel.backends.build import provide
from tests.otel.backends.progress import BuildError, follow
from tests.otel.backends.server import HOST, free_ports, listens
from tests.otel.backends.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]


def test_jaeger_has_no_trace_that_it_did_not_get(jaeger):
    """A trace that is not there is no error."""
    assert [] == jaeger.trace("ab" * 16)


def test_a_backend_ends_with_the_run_that_started_it(tmp_path):
    """Also where the run is killed, nothing that it started goes on."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom tests.otel.backends.server import running\n"
        "with running(sys.argv[2:], Path(sys.argv[1])):\n    sys.stdin.read()\n"
    )
    [port] = free_ports(1)
    server = [sys.executable, "-m", "http.server", "--bind", HOST, str(port)]
    command = [sys.executable, "-c", script, str(tmp_path / "log"), *server]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as run:
        wait_for(lambda: listens(port))
        run.kill()
    wait_for(lambda: not listens(port))


def test_waiting_ends_at_its_deadline():
    """What does not come is an error that tells what was there instead."""
    with pytest.raises(TimeoutError, match=r"not so within 0.05 s, last seen: \[\]"):
        wait_for(list, 0.05)


def test_a_backend_that_the_environment_names_must_be_a_program(monkeypatch, tmp_path):
    """A name that leads nowhere is refused, by the name of the variable; one that leads to a program is taken."""
    monkeypatch.setenv("OPTREE_JAEGER", str(tmp_path / "nothing"))
    with pytest.raises(MissingError, match=r"OPTREE_JAEGER names .*/nothing, which is no program that can be run here"):
        JAEGER.find()
    monkeypatch.setenv("OPTREE_JAEGER", sys.executable)
    assert Path(sys.executable) == JAEGER.find()


def without_backends(tmp_path, command, **env):
    """Run a command on a machine with neither Go nor backends."""
    kept = {name: value for name, value in os.environ.items() if name not in {"CI", "OPTREE_JAEGER", "OPTREE_COLLECTOR", "OPTREE_TEMPO"}}
    environment = {**kept, "OPTREE_BACKENDS_DIR": str(tmp_path / "none"), "PATH": str(tmp_path), **env}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


ONE_TEST = ["-m", "pytest", "-p", "no:cacheprovider", "tests/otel/test_backend_programs.py", "-k", "test_jaeger_has_no_trace"]


def test_what_needs_a_missing_backend_is_left_out_by_name(tmp_path):
    """Where Jaeger was not built, its tests are left out, and the run ends by naming them and what to do."""
    run = without_backends(tmp_path, ONE_TEST)
    assert 0 == run.returncode
    assert (
        "tests/otel/test_backend_programs.py::test_jaeger_has_no_trace_that_it_did_not_get: "
        "jaeger is not built: run `make backends` (needs Go 1.25 or newer), or set OPTREE_JAEGER to a ready program\n"
    ) in run.stdout


def test_ci_leaves_nothing_out(tmp_path):
    """In CI a missing backend fails the run."""
    run = without_backends(tmp_path, ONE_TEST, CI="true")
    assert 1 == run.returncode
    assert "CI runs the tests of every backend, but jaeger is not built" in run.stdout


def test_building_without_go_says_what_to_do(tmp_path):
    """Where Go is missing, the builder says what to install or to set."""
    run = without_backends(tmp_path, ["-m", "tests.otel.backends.build"])
    assert 1 == run.returncode
    assert "jaeger cannot be built: install Go 1.25 or newer, or set OPTREE_JAEGER to a ready program\n" == run.stderr


def test_what_is_there_is_not_built(tmp_path):
    """The builder takes a program that the environment names, and one that was built before."""
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / COLLECTOR.cached().name).touch()
    run = without_backends(tmp_path, ["-m", "tests.otel.backends.build"], OPTREE_JAEGER=sys.executable)
    assert f"jaeger: {sys.executable}\notelcol: {tmp_path / 'none' / COLLECTOR.cached().name}\n" == run.stdout
    assert 0 == run.returncode


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a Go that was never used, and without backends; returns where they will be."""
    (tmp_path / "go").write_text("""#!/bin/sh\necho '{"GOMODCACHE": "/nowhere", "GOCACHE": "/nowhere", "GOFLAGS": "-x"}'\n""")
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("OPTREE_BACKENDS_DIR", str(tmp_path / "backends"))
    monkeypatch.delenv("OPTREE_JAEGER", raising=False)
    return tmp_path / "backends"


def test_two_builds_at_once_build_once(machine, capsys):
    """The second one waits for the first and takes what that built; nothing but the program stays."""
    environments = []

    def build(scratch, env, out):
        environments.append(env)
        (scratch / "by the way").touch()
        wait_for(lambda: "another process is building it; waiting" in capsys.readouterr().out)
        out.touch()

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(provide, JAEGER, build) for _ in range(2)]:
            done.result()
    [env] = environments
    assert {JAEGER.cached().name, ".jaeger.lock"} == {path.name for path in machine.iterdir()}
    assert (str(machine / ".building-jaeger" / "modules"), "-x -modcacherw") == (env["GOMODCACHE"], env["GOFLAGS"])


def test_a_build_that_fails_leaves_nothing(machine):
    """What was made before it failed is removed, and the text of the command that failed is told."""

    def build(scratch, env, out):
        out.touch()
        follow([sys.executable, "-c", "import sys; sys.exit('no such module')"], scratch, env, "fetching")

    with pytest.raises(BuildError, match=r"failed with status 1:\nno such module$"):
        provide(JAEGER, build)
    assert [".jaeger.lock"] == [path.name for path in machine.iterdir()]
