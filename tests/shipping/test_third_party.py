import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "howto" / "exporters.md").read_text()
RECORDED = """
import optree
with optree.session("assistant"):
    with optree.llm(provider="openai", model="gpt-4o") as op:
        op.response("Not much.")
    with optree.tool("search"):
        pass
optree.flush("snapshot")
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return a directory that the package from the documents is installed into, beside optree."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    [module, *_] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    [project] = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (source / "optree_ops_csv.py").write_text(module)
    (source / "pyproject.toml").write_text(project)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", target, source], check=True)
    return target


def test_a_format_of_another_package(site, tmp_path):
    """A format of ten lines, in a package of its own that imports the public modules alone, is listed and written by the command line."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (site, ROOT, ROOT / "exporters"))), "OPTREE_BASE_DIR": str(tmp_path)}

    def run(*command):
        return subprocess.run([sys.executable, *command], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    run("-c", RECORDED)
    assert "ops-csv" in [line.split()[0] for line in run("-m", "optree", "formats").splitlines() if line]
    assert "1.1,llm,ok\n1.2,tool,ok\n" == run("-m", "optree", "export", "last", "--to", "ops-csv", "-o", "-")


def test_it_is_short():
    """The example is some ten lines of code."""
    [module, *_] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert 10 >= len([line for line in module.splitlines()[1:] if line])
