"""The page on views shows what the commands on it print. To write it anew: ``python tests/conversation/test_views_page.py``."""

import contextlib
import io
import os
import re
import shlex
from pathlib import Path
from unittest.mock import patch

from typer.testing import CliRunner

from optree._cli.commands.messages import MessageView

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "howto" / "views.md"
DATA = ROOT / "tests" / "conversation" / "data_views"
SHOWN = re.compile(r"```console\n\$ optree (messages [^\n]*)\n```\n(?:\n````?(?:text|mermaid|markdown)\n.*?\n````?\n)?", re.DOTALL)


def refreshed(page):
    """Return a page with what its commands print now."""
    return SHOWN.sub(lambda found: f"```console\n$ optree {found[1]}\n```\n\n{block(found[1])}\n", page)


def block(command):
    """Return what a command prints as a block of Markdown."""
    words = [str(DATA / word.replace(".jsonl", ".v2.jsonl")) if word.endswith(".jsonl") else word for word in shlex.split(command)]
    form = words[words.index("--format") + 1] if "--format" in words else "text"
    kind = {"md": "markdown"}.get(form, form)
    fence = "````" if kind == "markdown" else "```"
    return f"{fence}{kind}\n{printed(words)}\n{fence}"


def printed(words):
    """Return what a command prints, 100 columns wide."""
    from optree._cli.app import app

    with patch.dict(os.environ, {"COLUMNS": "100"}), contextlib.redirect_stderr(io.StringIO()):
        ran = CliRunner().invoke(app, words)
    assert 0 == ran.exit_code, ran.output
    return "\n".join(line.rstrip() for line in ran.output.rstrip().split("\n"))


def test_page():
    """Each view of the seeds' examples is on the page as it is (S0-86, S0-87, S0-88, S0-89, S0-107)."""
    page = PAGE.read_text()
    assert page == refreshed(page)
    shown = set(re.findall(r"--view (\w+)", page))
    assert set(MessageView) - {MessageView.TRANSCRIPTS} == shown
    assert 5 <= page.count("```mermaid")


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text()))
