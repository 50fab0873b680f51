"""What the page about the files says of them."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import fields

import optree
from optree import _nodes

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "files.md").read_text("utf-8")
ROWS = re.findall(r"^\| [a-z ,']+ \| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
KINDS = [name for name, kind in vars(_nodes).items() if isinstance(kind, type) and issubclass(kind, _nodes._Leaf | _nodes._Node)]


def test_members():
    """Each node and entry is in the table, with all its members, the trace fields among them, in their order (S4-146)."""
    assert {name for name in KINDS if not name.startswith("_")} == {name for name, _ in ROWS}
    assert [(name, [one.encode_name for one in fields(getattr(_nodes, name))]) for name, _ in ROWS] == [
        (name, re.findall(r"`(\w+)`", members)) for name, members in ROWS
    ]


@pytest.mark.skipif(
    not (shutil.which("jq") and shutil.which("zstd")) and not os.environ.get("CI"), reason="needs the commands: apt install jq zstd"
)
def test_the_bill_by_jq(tmp_path):
    """The page's command prints a line for each call of a model, a sub-agent's too."""
    [command] = re.findall(r"^zstd -dc .*\| jq .*$", PAGE, re.MULTILINE)
    optree.configure(base_dir=tmp_path)
    with optree.session("lead") as session:
        for _ in range(2):
            with optree.llm(provider="openai", model="gpt-5") as op:
                op.account(input_tokens=10, output_tokens=2, cost_usd=0.5)
            with optree.session("helper"), optree.llm(provider="openai", model="gpt-5-mini") as op:
                op.account(input_tokens=3)
    assert optree.flush("snapshot")
    command = command.replace("~/.optree", str(tmp_path)).replace("TXN", session.txn)
    said = subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True).stdout
    assert ["gpt-5\t12\t0.5", "gpt-5-mini\t3\t"] * 2 == said.splitlines()
