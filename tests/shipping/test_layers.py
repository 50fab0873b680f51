import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "optree"
CEILING = 400  # lines in a file
EVERY_WAY = """
import optree
import optree as tracing, optree.tree
from optree import turn, __init__
from .. import llm
from ..tree import Node
def f(): from optree import tool
"""


def test_nothing_below_the_facade_imports_it():
    """No module of optree imports the facade, which would turn the layers into a circle."""
    above = {PACKAGE / "__init__.py", PACKAGE / "testing.py"}
    found = {
        str(path.relative_to(ROOT)): names
        for path in sorted(PACKAGE.rglob("*.py"))
        if path not in above and (names := facade_imports(path.read_text(), path.relative_to(ROOT)))
    }
    assert {} == found


def test_facade_imports_are_seen():
    """The check above sees each way to import the facade, and lets submodules pass."""
    path = Path("optree/tree/made_up.py")
    assert ["optree", "optree", "turn", "__init__", "llm", "tool"] == facade_imports(EVERY_WAY, path)


def test_no_file_is_too_long():
    """A file of the product has 400 lines at most."""
    files = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "exporters").rglob("*.py")])
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {} == {name: length for name, length in lengths.items() if length > CEILING}


def facade_imports(source, path):
    """Return what a module at a path below the root imports from `optree` itself, in source order."""
    found = []
    for node in sorted(ast.walk(ast.parse(source)), key=lambda node: getattr(node, "lineno", 0)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name == "optree"]
        elif isinstance(node, ast.ImportFrom) and is_facade(node, path):
            found += [alias.name for alias in node.names if not is_submodule(alias.name)]
    return found


def is_facade(node, path):
    """Tell whether `from … import` names `optree` itself; a dot is the module's folder, each further one its parent."""
    if node.level == 0:
        return node.module == "optree"
    return node.module is None and path.parents[node.level - 1] == Path("optree")


def is_submodule(name):
    """Tell whether `optree.<name>` is a module or a package."""
    return name != "__init__" and ((PACKAGE / f"{name}.py").exists() or (PACKAGE / name).is_dir())
