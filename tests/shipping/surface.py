"""The public names of optree with their signatures, a line each; ``python -m tests.shipping.surface`` writes them to surface.txt.

Signatures are read from the sources, so that they are the same with every Python.
"""

import ast
import importlib
import inspect
import sys
from functools import cache
from pathlib import Path

PACKAGES = ("optree", "optree.exporting", "optree.conversation", "optree.testing", "optree.compare", "optree.redaction")
FILE = Path(__file__).with_name("surface.txt")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def surface():
    """Return the lines: each name that a package lists as public, and each public member of a class."""
    return [line for package in PACKAGES for line in _lines(package, importlib.import_module(package))]


def _lines(package, module):
    for name in sorted(module.__all__):
        value = inspect.unwrap(getattr(module, name))
        node = _definition(value)
        if isinstance(node, ast.ClassDef):
            yield f"{package}.{name}: class({', '.join(map(ast.unparse, node.bases))})"
            yield from sorted(line for member in node.body for line in _member(member))
        else:
            yield f"{package}.{name}{_signature(node)}" if isinstance(node, FUNCTIONS) else f"{package}.{name}: {_kind(value)}"


def _definition(value):
    """Return where a class or a function is defined; None for what is neither."""
    if not (inspect.isclass(value) or inspect.isroutine(value)) or not str(value.__module__).startswith("optree"):
        return None
    found = _parsed(value.__module__)
    for name in value.__qualname__.split("."):
        there = [node for node in found.body if getattr(node, "name", None) == name]
        if not there:
            return None
        found = there[-1]
    return found


def _kind(value):
    if inspect.isroutine(value):
        return "function"
    return "type" if type(value).__module__ in {"typing", "types"} else type(value).__name__


@cache
def _parsed(module):
    return ast.parse(Path(sys.modules[module].__file__).read_text())


def _member(node):
    name = node.name if isinstance(node, FUNCTIONS) else node.target.id if isinstance(node, ast.AnnAssign) else "_"
    if name.startswith("_") and name != "__init__":
        return
    if isinstance(node, ast.AnnAssign):
        default = "" if node.value is None else f" = {ast.unparse(node.value)}"
        yield f"    .{name}: {ast.unparse(node.annotation)}{default}"
        return
    kinds = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
    mark = next((f"{kind} " for kind in ("property", "classmethod", "staticmethod", "overload") if kind in kinds), "")
    yield f"    {mark}.{name}{_signature(node)}"


def _signature(node):
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"({ast.unparse(node.args)}){returns}"


if __name__ == "__main__":
    FILE.write_text("\n".join(surface()) + "\n")
