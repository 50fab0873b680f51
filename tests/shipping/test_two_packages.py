"""The PyTree library of the same name, installed before ours or after it: whoever imports `optree` is told what has happened."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

from tests.shipping.test_wheel import built

THEIRS = {
    "optree/__init__.py": "from optree import accessors, ops\nfrom optree.version import __version__\n",
    "optree/accessors.py": "import optree._C as _C\n",
    "optree/dataclasses.py": "",
    "optree/functools.py": "from optree.ops import tree_map\n",
    "optree/ops.py": "import optree._C as _C\ntree_map = map\n",
    "optree/pytree.py": "",
    "optree/treespec.py": "",
    "optree/version.py": "__version__ = '9.9.9'\n",
    "optree/py.typed": "",
    f"optree/_C{sysconfig.get_config_var('EXT_SUFFIX')}": "compiled",
    "optree-9.9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: optree\nVersion: 9.9.9\n",
    "optree-9.9.9.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
}
"""What of version 0.20.0 of it counts here: its names, and that its first import leads to `optree._C`."""
SAID = ("two packages named optree are mixed up in", "belong to the PyTree library optree", "pip uninstall -y optree optree-tracing")


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """Return the path of our wheel."""
    return built(tmp_path_factory.mktemp("ours"), OPTREE_PURE="1")


@pytest.fixture(scope="module", params=["stand-in", "real"])
def theirs(request, tmp_path_factory):
    """Return the path of the other package's wheel: one that is laid out the same, and the newest one where an index can be reached."""
    folder = tmp_path_factory.mktemp("theirs")
    if request.param == "real":
        if not os.environ.get("CI"):
            pytest.skip("needs an index: runs where CI is set")
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, "optree"], check=True)
        return next(folder.iterdir())
    path = folder / "optree-9.9.9-py3-none-any.whl"
    names = [*THEIRS, "optree-9.9.9.dist-info/RECORD"]
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in THEIRS.items():
            wheel.writestr(name, text)
        wheel.writestr(names[-1], "".join(f"{name},,\n" for name in names))
    return path


class Environment:
    """A virtual environment that has what ours needs, but neither of the two."""

    def __init__(self, folder):
        venv.create(folder)
        self.python = folder / "bin" / "python"
        packages = next((folder / "lib").glob("python*")) / "site-packages"
        (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def pip(self, *args):
        """Run pip."""
        command = [sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check", *args]
        subprocess.run(command, check=True, capture_output=True)

    def install(self, wheel):
        """Install a wheel, and nothing that it needs."""
        self.pip("install", "--no-deps", "--no-index", "--no-compile", "--ignore-installed", wheel)

    def run(self, *command):
        """Run a command of the environment; returns its exit code, and what it printed."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        run = subprocess.run(
            [self.python.parent / command[0], *command[1:]],
            cwd=self.python.parent,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return run.returncode, run.stdout + run.stderr


@pytest.fixture
def environment(tmp_path):
    """Return an empty environment."""
    return Environment(tmp_path / "venv")


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_both_in_one_environment(environment, ours, theirs, first):
    """In either order, importing optree and every optree command fail with the promised message; ours alone, afterwards, works."""
    for wheel in (ours, theirs) if first == "ours" else (theirs, ours):
        environment.install(wheel)
    for command in (["python", "-c", "import optree"], ["optree", "--version"], ["optree", "ls"], ["python", "-m", "optree", "ls"]):
        code, said = environment.run(*command)
        assert 1 == code
        assert all(part in said for part in SAID)
        if command[1] == "-c":
            assert "ImportError: " in said
        else:
            assert ("optree: ", 1) == (said[:8], said.count("\n"))
    environment.pip("uninstall", "-y", "optree", "optree-tracing")
    environment.install(ours)
    assert (0, "") == environment.run("python", "-c", "import optree; optree.session")
    assert 0 == environment.run("optree", "--version")[0]


def test_theirs_taken_away_again(environment, ours, theirs):
    """Where their removal took files of ours along, every optree command says so, and what to do."""
    environment.install(ours)
    environment.install(theirs)
    environment.pip("uninstall", "-y", "optree")
    for command in (["optree", "--version"], ["python", "-m", "optree", "ls"]):
        code, said = environment.run(*command)
        assert (1, "optree: ", 1) == (code, said[:8], said.count("\n"))
        assert "pip install --force-reinstall --no-deps optree-tracing" in said
    environment.pip("install", "--force-reinstall", "--no-deps", "--no-index", "--no-compile", ours)
    assert 0 == environment.run("optree", "--version")[0]


def test_the_name_of_their_compiled_part_is_no_module_of_ours(environment, ours):
    """In an environment without theirs, `optree._C` is a module that is not there, for programs that look whether it is."""
    environment.install(ours)
    code = "import optree\ntry:\n    import optree._C\nexcept ModuleNotFoundError as error:\n    print(error.name)"
    assert (0, "optree._C\n") == environment.run("python", "-c", code)
