"""Puts small faults into the library, one at a time, and looks whether the tests notice.

    python -m tests.mutants [GROUP | FILE]… [--sample N] [--seed N] [--seconds N] [--least PERCENT] [--tests PATH…]

Each file has a seeded sample of all faults that it could have (`faults`); those tests run that execute the line (`serving`). Prints each
fault that no test noticed, and counts for each file. Exit code 1 where fewer than --least percent are noticed.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.mutants.faults import Mutant, count, made

ROOT = Path(__file__).resolve().parents[2]


class Group(NamedTuple):
    """Modules, and the tests that are there for them."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


GROUPS = {
    "tree": Group(
        ("optree/_tree/*.py",),
        (
            *("tests/tree", "tests/builder", *(f"tests/cli/commands/test_{name}.py" for name in ("tree", "show", "status"))),
            "tests/store/reading/test_recovery.py",
            *("tests/conversation/test_of_tree.py", "tests/conversation/test_agent.py", "tests/store/test_resume.py"),
        ),
    ),
    "values": Group(
        ("optree/_values.py", "optree/_providers/usage.py", "optree/_providers/messages.py"),
        (
            *("tests/test_values.py", "tests/providers/test_usage.py", "tests/providers/test_messages.py", "tests/tree", "tests/builder"),
            *("tests/conversation/test_of_tree.py", "tests/conversation/test_of_tree_providers.py", "tests/conversation/test_agent.py"),
            *("tests/cli/commands/test_messages.py", "tests/cli/commands/test_cost.py"),
        ),
    ),
    "redaction": Group(
        ("optree/redaction/*.py",),
        ("tests/redaction", "tests/tree/test_redacted.py", "tests/test_visible.py", "tests/test_values.py"),
    ),
    "store": Group(
        ("optree/_store/*.py", "optree/_store/files/*.py", "optree/_store/reading/*.py"),
        (
            *("tests/store", "tests/cli/test_settled.py"),
            *(f"tests/cli/commands/test_{name}.py" for name in ("ls", "load", "killed", "ledger", "import_formats")),
            *(f"tests/security/test_{name}.py" for name in ("txns", "links_and_pipes", "bombs")),
        ),
    ),
    "builder": Group(
        ("optree/_builder/*.py",),
        (
            "tests/builder",
            "tests/tree",
            "tests/tracing",
            *("tests/store/reading/test_snapshot.py", *(f"tests/store/test_{name}.py" for name in ("journal", "resume", "speed"))),
        ),
    ),
    "otel": Group(
        tuple(f"exporters/optree_otel/signals/{name}.py" for name in ("mapping", "llm", "content", "names")),
        ("tests/docs/test_opentelemetry_reference.py", "tests/otel/signals", "tests/otel/test_live_trace.py"),
    ),
    "formats": Group(
        (
            *("optree/_formats/ai_agent/*.py", "exporters/optree_formats/transcript/of_tree.py"),
            *("exporters/optree_formats/transcript/to_tree.py", "exporters/optree_formats/markdown/of_tree.py"),
            "exporters/optree_formats/markdown/to_tree.py",
        ),
        (
            *("tests/formats", "tests/security/test_txns.py"),
            *("tests/cli/commands/test_import_formats.py", "tests/cli/commands/test_export_formats.py"),
        ),
    ),
}


def main() -> int:
    """Attack what the command line names; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", nargs="*", help=f"groups ({', '.join(GROUPS)}) or files; all groups by default")
    parser.add_argument("--sample", type=int, default=40, help="faults of each file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="time for a group; what is left then is not tried")
    parser.add_argument("--least", type=float, default=90.0, help="percent that must be noticed")
    parser.add_argument("--tests", nargs="+", default=(), metavar="PATH", help="these tests, in place of those that a group has")
    options = parser.parse_args()
    os.environ["OPTREE_PURE"] = "1"  # what runs is what has the fault
    found = [outcome for name, files in _chosen(options.what) for outcome in _attacked(options.tests or GROUPS[name].tests, files, options)]
    killed = sum(outcome.killed for outcome in found)
    print(f"{killed} of {len(found)} faults were noticed: {100 * killed / max(1, len(found)):.1f} %")
    return int(100 * killed < options.least * len(found))


def _chosen(what: list[str]) -> Iterator[tuple[str, list[str]]]:
    for name, group in GROUPS.items():
        files = [str(path.relative_to(ROOT)) for pattern in group.modules for path in sorted(ROOT.glob(pattern))]
        wanted = [file for file in files if not what or name in what or file in what]
        if wanted:
            yield name, wanted


def _attacked(tests: tuple[str, ...], files: list[str], options: argparse.Namespace) -> list:
    """Return what became of the faults of a group's files, and print it."""
    mutants = [made(file, source, number) for file in files for source, number in _sampled(file, options)]
    random.Random(options.seed).shuffle(mutants)
    reading, writing = os.pipe()
    if not (pid := os.fork()):  # nothing of optree is imported in this process, so that each group begins afresh
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(_served(tests, mutants, options.seconds), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        outcomes = pickle.load(pipe)
    os.waitpid(pid, 0)
    for file in files:
        own = [outcome for outcome in outcomes if outcome.mutant.path == file]
        survived = [outcome for outcome in own if not outcome.killed]
        print(f"{file}: {len(own) - len(survived)} of {len(own)}")
    sys.stdout.flush()
    return outcomes


def _sampled(file: str, options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    source = (ROOT / file).read_text()
    places = count(source)
    for number in sorted(random.Random(f"{options.seed}:{file}").sample(range(places), min(places, options.sample))):
        yield source, number


def _served(tests: tuple[str, ...], mutants: list[tuple[Mutant, object]], seconds: float) -> list:
    import pytest

    from tests.mutants import children, serving

    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
        results = Path(folder) / "results"
        children.prepare(ROOT, Path(folder) / "compiled")
        said = serving.Said(seconds)
        plugin = serving.Serving(ROOT, mutants, results, said)
        arguments = [*serving.ARGUMENTS, *tests]
        serving.in_fork(lambda: int(pytest.main(arguments, plugins=[plugin])), 36_000.0)
        known, outcomes, left = pickle.loads(results.read_bytes())
        trees = dict(mutants)
        return outcomes + [said(serving.anew(mutant, trees[mutant], ROOT, known)) for mutant in left if not said.over]


if __name__ == "__main__":
    sys.exit(main())
