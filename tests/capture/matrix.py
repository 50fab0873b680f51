"""What capture was tried on, as tests say by the marker `captured`; ``python -m tests.capture.matrix`` writes it to the page about it.

Tests are read and not run, nor imported: some need an environment of their own.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.capture import documented

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/captured.md"
WHAT = {
    "plain": "an answer as a whole",
    "streamed": "one that comes as a stream",
    "tools": "the model asks for tools, and gets what they gave",
    "parsed": "an answer of a type that the program gives",
    "thinking": "the model's reasoning",
    "cached": "tokens that were written to the provider's cache, or read from it",
    "sub-agents": "agents that others call, or hand over to",
    "at once": "calls that run at the same time",
    "retries": "what is tried again after a failure",
    "failed": "calls, or runs, that fail",
    "cancelled": "calls, or runs, that the program does not read to their end",
    "killed": "the process is killed",
    "resumed": "and goes on by `optree load`",
}
CHECKS = {
    "requests": "what was asked is what the provider was sent, each request once",
    "calls": "each call is there, once",
    "answers": "what models answered is there",
    "tokens": "tokens, by kind, of each call or in all",
    "price": "what each call costs, and that the sum is that of the session",
    "tools": "each call of a tool, with arguments and result",
    "agents": "each agent is a session, within the one that called it",
}
ADDED = {"one line": "one", "--auto": "none (`--auto`)"}
FOR_ITSELF = ("google-adk", "crewai", "litellm", "agno", "dspy", "llama-index-core", "smolagents", "strands-agents")
"""Packages that are tried in environments of their own."""
HEAD = """# What capture was tried on

<!-- python -m tests.capture.matrix writes this page: what is here is what tests say by the marker `captured`. -->

Each row is a test, which runs a program on the real package, in this version, against a provider on the same machine that answers as the
test has it; CI runs them all. A program in `test_documented*.py` is one as the package's documentation writes it: it is run as it is by
`optree run --auto`, and with one line before it, `import optree; optree.instrument()`. The other tests call `optree.instrument()` in their
own process, or set `OPTREE_AUTO=1` for a child. How it works, and what is not seen yet, is in [the how-to](../howto/capture.md).

*What* is what of the interface the program uses:

{what}

*Checked* is what the test compares; what is not named there it does not compare:

{checks}

Prices are compared to the millionth of a cent, by a table in which the provider on the same machine has the prices of the real one. A call
that was under way when the process was killed has an unknown cost, and is counted as that. What Claude Code costs is what it tells, or else
what genai-prices says.
"""


class Row(NamedTuple):
    """What one marker of a test says."""

    package: str
    interface: str
    what: tuple[str, ...]
    added: tuple[str, ...]
    checks: tuple[str, ...]
    test: str


def rows() -> Iterator[Row]:
    """Yield what the markers of all tests of capture say, in their order."""
    for path in sorted(Path(__file__).parent.rglob("test_*.py"), key=lambda path: path.name):
        for node in ast.parse(path.read_text("utf-8")).body:
            marks = node.decorator_list if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else []
            for mark in marks:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.captured":
                    yield _row(mark, f"{path.name}::{node.name}")


def _row(mark: ast.Call, test: str) -> Row:
    package, interface, *what = (_value(argument) for argument in mark.args)
    named = {keyword.arg: _value(keyword.value) for keyword in mark.keywords}
    row = Row(package, interface, tuple(what), _several(named.pop("added")), _several(named.pop("checks")), test)
    unknown = [*named, *({*row.what} - {*WHAT}), *({*row.checks} - {*CHECKS}), *({*row.added} - {*ADDED})]
    if unknown or not what:
        raise ValueError(f"{test}: a marker `captured` with {', '.join(map(str, unknown)) or 'nothing that was tried'}")
    return row


def _value(node: ast.expr) -> object:
    return getattr(documented, node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)


def _several(value: object) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def versions() -> dict[str, str]:
    """Return the version of each package that tests run on: what is installed for them is pinned."""
    pinned = re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    own = re.findall(rf"({'|'.join(FOR_ITSELF)})(?:\[[\w,]+\])?==([\w.*]+)", (ROOT / "Makefile").read_text())
    return dict(pinned) | dict(own)


def page() -> str:
    """Return the page."""
    known = versions()
    by_package: dict[str, list[Row]] = {}
    for row in rows():
        by_package.setdefault(row.package, []).append(row)
    told = HEAD.format(what=_explained(WHAT), checks=_explained(CHECKS))
    return told + "".join(_section(package, known[package], found) for package, found in sorted(by_package.items()))


def _explained(words: dict[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {word} | {meaning} |" for word, meaning in words.items())])


def _section(package: str, version: str, found: list[Row]) -> str:
    lines = ["| Interface | What | Lines added | Checked | Test |", "|---|---|---|---|---|"]
    for row in sorted(found, key=lambda row: ("test_documented" not in row.test, row.interface.lower(), row.test)):
        added = " or ".join(ADDED[one] for one in row.added)
        lines.append(f"| {row.interface} | {', '.join(row.what)} | {added} | {', '.join(row.checks)} | `{row.test}` |")
    note = "\nIn an environment of its own: `make test-frameworks`.\n" if package in FOR_ITSELF else ""
    return f"\n## {package} {version.replace('*', 'x')}\n{note}\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
