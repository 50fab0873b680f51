import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import ROOT, varying

BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n", re.MULTILINE)


@pytest.mark.usefixtures("real_model")
def test_the_tutorial_as_a_reader_follows_it(tmp_path):
    """The programs of the tutorial, saved under the names that they begin with, print what it shows, command by command."""
    shown, printed = [], []
    for kind, text in BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text()):
        if kind == "python" and (name := re.match(r"# (\w+\.py)\n", text)):
            (tmp_path / name[1]).write_text(text)
        elif kind == "console":
            _, *parts = COMMAND.split(text)
            shown += [(command, varying(output.replace("Killed\n", ""))) for command, output in zip(parts[::2], parts[1::2], strict=True)]
            printed += [(command, varying(output_of(command, tmp_path))) for command in parts[::2]]
    assert shown == printed
    assert 8 == len(shown)


@pytest.mark.parametrize(("page", "modules"), [("tutorial.md", ("agent", "test_agent")), ("howto/replay.md", ("weather", "test_recorded"))])
def test_the_tests_that_a_page_has_recorded(tmp_path, page, modules):
    """The recordings of a page's tests are written by the option, and then these pass, also where the provider answers no more."""
    blocks = [text for kind, text in BLOCK.findall((ROOT / "docs" / page).read_text()) if kind == "python"]
    for name in modules:
        (tmp_path / f"{name}.py").write_text(next(text for text in blocks if text.startswith(f"# {name}.py\n")))
    command = f"python -m pytest -q -p no:cacheprovider {modules[1]}.py"
    assert " passed" in output_of(f"{command} --optree-update", tmp_path)
    program = tmp_path / f"{modules[0]}.py"
    program.write_text(re.sub(r"(?m)^def (?:answer|model)\(request.*$", "\\g<0>\n    raise OSError('no network')", program.read_text()))
    assert "no network" in program.read_text()
    for options in ("", " --optree-update"):
        assert " passed" in output_of(command + options, tmp_path)


def output_of(command, folder):
    """Return what a command of the shell prints, with this Python and this optree first on its path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPTREE_")}
    # what a program prints comes at once, as on a terminal: a pipe's is held back, and gone when it is killed
    environment |= {"PATH": path, "HOME": str(folder), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    run = subprocess.run(["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return (run.stdout + run.stderr).replace("Killed\n", "").replace(str(folder), "/home/ada")  # not each shell says that
