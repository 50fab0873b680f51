import importlib
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from time import time

import pytest

from optree import Config
from tests.cli.commands.test_export import dead, line, mirrored
from tests.docs.test_docs import PUBLIC

__all__ = ["line"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)


@pytest.mark.parametrize("package", PUBLIC)
def test_api_pages(package):
    """The API page of a package has each public name of it, once, and no other."""
    page = DOCS / "api" / f"{package.rpartition('.')[2]}.md"
    public = importlib.import_module(package).__all__
    assert Counter(f"{package}.{name}" for name in public) == Counter(DIRECTIVE.findall(page.read_text()))


def test_settings():
    """The page of settings has each option of `configure`, once, with its variable."""
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)`", (DOCS / "reference" / "settings.md").read_text(), re.MULTILINE)
    variables = {name: f"OPTREE_{name.upper()}" for name in Config.__struct_fields__} | {"enabled": "OPTREE_DISABLED"}
    assert sorted(variables.items()) == sorted(rows)


def test_what_removes_sessions(line):
    """The commands that the page of files has for it remove one session with all that is noted of it, its bill, and those that are old."""
    page = (DOCS / "reference" / "files.md").read_text().partition("## Remove sessions")[2].partition("\n## ")[0]
    one, old, bill = re.findall(r"^(?:find|sed) [^#\n]*", page, re.MULTILINE)
    (line.folder / ".optree").symlink_to(line.base)
    kept, ended, killed = line.record(), mirrored(line, dead()), mirrored(line, dead(), "kill", code=-9)
    for txn in (ended, killed):
        _shell(line, one.replace("TXN", txn))
    assert {kept} == line.txns()
    assert [] == [path for path in line.base.rglob("*") if ended in path.name or killed in path.name]
    assert [ended] == line.json("ledger", "--check")["withoutSession"]
    _shell(line, bill.replace("TXN", ended))
    checked = line.json("ledger", "--check")
    assert ([], 1, 0) == (checked["withoutSession"], checked["agreed"], checked["unreadable"])
    young = line.record()
    os.utime(next(line.sessions.glob(f"{kept}.*")), (time() - 91 * 86_400,) * 2)
    _shell(line, old)
    assert {young} == line.txns()


def _shell(line, command):
    subprocess.run(["sh", "-c", command], cwd=line.folder, env=line.env | {"HOME": str(line.folder)}, check=True)
