"""Leaves out the tests that need what the pretended system lacks, each with its reason, and starts processes as that system does.

A test needs what its own text names, that of the functions and texts of its file that it uses, and that of the programs beside it that it
starts: `os.fork` of a test of forks. What cannot be told so stands in `LEFT_OUT`.
"""

import ast
import json
import multiprocessing
import os
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOUND = json.loads(Path(os.environ["OPTREE_TEST_SYSTEM"]).read_text("utf-8"))
SYSTEM = FOUND["system"]
_NAMES = {f"{module}.{name}" for module, names in FOUND["lacking"].items() for name in names}
_MODULES = set(FOUND["absent"])
_WORD = re.compile(r"(?<![\w.])(\w+)\.(\w+)")
_FORKS = re.compile(r"""(get_context|set_start_method)\(["']fork""")
_PROC = re.compile(r"/proc/")
_SIGNALS = re.compile(r"\.send_signal\(|code=1[34]\d\b")
"""A signal sent to another program, and 128 + n as the exit code of one that a signal has ended."""

_BOTH = {
    "test_the_unit_tests_pass_without_it": "runs tests again that have run",
    "test_without_descriptors_the_end_of_a_thread_ends_no_program": "only glibc needs a library to end a thread",
}
LEFT_OUT: dict[str, dict[str, str]] = {"darwin": _BOTH, "win32": _BOTH}
"""Why tests are left out whose text does not say it: by the end of their id."""


def pytest_configure():
    if SYSTEM in ("darwin", "win32"):
        multiprocessing.set_start_method("spawn")


def pytest_collection_modifyitems(items):
    for item in items:
        reason = _reason(item)
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"{SYSTEM}: {reason}"))


def _reason(item):  # noqa: PLR0911 - one for each kind of reason
    method = getattr(item, "callspec", None) and item.callspec.params.get("method")
    if SYSTEM == "win32" and method in ("fork", "forkserver"):
        return "needs os.fork"
    for end, said in LEFT_OUT[SYSTEM].items():
        if end in item.nodeid:
            return said
    for text in _texts(item):
        needed = {f"{module}.{name}" for module, name in _WORD.findall(text)}
        lacking = sorted((needed & _NAMES) | {one for one in needed if one.partition(".")[0] in _MODULES})
        if lacking:
            return f"needs {lacking[0]}"
        if _FORKS.search(text):
            return "needs os.fork"
        if _PROC.search(text):
            return "reads /proc"
        if SYSTEM == "win32" and _SIGNALS.search(text):
            return "needs signals between programs"
    return None


def _texts(item):
    """Return the texts that a test is made of: its own, that of what it uses in its file, and of programs beside it."""
    path = Path(item.path)
    parts = _parts(path)
    name = getattr(item, "originalname", None) or item.name
    pending, seen = [name, *getattr(item, "fixturenames", [])], set()
    while pending:
        one = pending.pop()
        if one in seen or one not in parts:
            continue
        seen.add(one)
        text, used = parts[one]
        yield text
        pending += used
        for program in re.findall(r"\w+\.py\b", text):
            beside = path.with_name(program)
            if beside.is_file():
                yield beside.read_text("utf-8")


@cache
def _parts(path):
    """Return the texts at the top of a test's file, by name, with the names that each uses."""
    source = path.read_text("utf-8")
    found = {}
    for node in ast.parse(source).body if path.suffix == ".py" else ():
        used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} | {
            one.arg for one in ast.walk(node) if isinstance(one, ast.arg)
        }
        text = ast.get_source_segment(source, node) or ""
        text += "".join(ast.unparse(one) for one in getattr(node, "decorator_list", ()))
        names = [getattr(node, "name", "")]
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        for name in names:
            found[name] = (text, used)
    return found
