"""Gives processes that tests start the same fault, and learns which lines they execute.

Python takes a module's compiled form out of the folder that PYTHONPYCACHEPREFIX names, and programs pass that variable on to those that
they start. What `put` writes there is taken in place of the source, until it is removed again.
"""

from __future__ import annotations

import ast
import importlib.util
import marshal
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType

from tests.mutants import lines

_UNCHECKED = (1).to_bytes(4, "little") + bytes(8)
"""What stands before the code of a compiled form that is not compared with its source."""
_PLAIN = ast.parse("import os; os.environ['OPTREE_PURE'] = '1'").body
"""What a process begins with: tests do not pass on each variable."""


def prepare(root: Path, folder: Path) -> None:
    """Let all processes that are started from now on take compiled modules out of a folder, and none run their compiled twins."""
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each would compile all that it imports
    sys.dont_write_bytecode = False
    _begin(root, "")


@contextmanager
def followed(root: Path, paths: list[str], to: Path) -> Iterator[None]:
    """Have all processes that are started, or forked, write which lines of some files they execute."""
    os.register_at_fork(after_in_child=lambda: lines.write(paths, str(to)))
    _begin(root, Path(lines.__file__).read_text() + f"\nwrite({paths!r}, {str(to)!r})")
    try:
        yield
    finally:
        _begin(root, "")


@contextmanager
def put(path: str, code: CodeType) -> Iterator[None]:
    """Have all processes that are started take this for a module."""
    compiled = _put(path, code)
    try:
        yield
    finally:
        compiled.unlink(missing_ok=True)


def _begin(root: Path, last: str) -> None:
    """Have optree itself begin without compiled twins, and end with a text that is executed."""
    path = root / "optree" / "__init__.py"
    tree = ast.parse(path.read_text())
    tree.body[1:1] = _PLAIN  # behind the docstring
    tree.body += ast.parse(f"exec({last!r}, {{}})").body
    _put(str(path), compile(ast.fix_missing_locations(tree), str(path), "exec"))


def _put(path: str, code: CodeType) -> Path:
    compiled = Path(importlib.util.cache_from_source(path))
    compiled.parent.mkdir(parents=True, exist_ok=True)
    compiled.write_bytes(importlib.util.MAGIC_NUMBER + _UNCHECKED + marshal.dumps(code))
    return compiled
