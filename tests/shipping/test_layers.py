import ast
from pathlib import Path

from optree import _interrupts as interrupts

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "optree"
CEILING = 500  # lines in a file
CIRCLES = [  # those that are left, and may only become fewer
    {f"optree._builder.{name}" for name in ("addressed", "core", "entries", "figures", "handles", "session_tree", "turns")},
]
EVERY_WAY = """
import optree
import optree as tracing, optree._tree
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
    path = Path("optree/_tree/made_up.py")
    assert ["optree", "optree", "turn", "__init__", "llm", "tool"] == facade_imports(EVERY_WAY, path)


def test_what_functions_import_is_known():
    """A forked child imports anew what a thread that is not in it was importing for optree: all that functions import is listed for it."""
    sources = [path for root in (PACKAGE, ROOT / "exporters") for path in root.rglob("*.py") if PACKAGE / "_cli" not in path.parents]
    functions = [one for path in sources for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, FUNCTIONS)]
    found = [one for function in functions for one in ast.walk(function) if isinstance(one, ast.Import | ast.ImportFrom)]
    names = {name for one in found for name in ([alias.name for alias in one.names] if isinstance(one, ast.Import) else [one.module])}
    assert interrupts._LOADED_LATER == {name.partition(".")[0] for name in names} - {"time"}  # which is a part of Python itself


def test_no_circles():
    """Modules import each other in no circle, late imports and those for types alone counted; those that are left are listed."""
    found = circles(imports())
    assert [] == [circle for circle in found if not any(circle <= known for known in CIRCLES)]
    assert [{"a", "b"}] == circles({"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": set()})


def imports():
    """Return by module which other modules of optree and its exporters it names, wherever in it; what is compiled is a module too."""
    roots = [(ROOT, "optree"), (ROOT / "exporters", "optree_otel"), (ROOT / "exporters", "optree_formats")]
    paths = [(path.relative_to(base), path) for base, name in roots for path in (base / name).rglob("*") if path.suffix in {".py", ".c"}]
    modules = {".".join(short.with_suffix("").parts).removesuffix(".__init__"): path for short, path in paths}
    return {name: named(path, modules) - {name} if path.suffix == ".py" else set() for name, path in modules.items()}


def named(path, modules):
    """Return the modules that a file imports something of: the module itself where that is one, else the one that it is imported from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {inner if (inner := f"{node.module}.{alias.name}") in modules else node.module for alias in node.names}
    return found & modules.keys()


def circles(graph):
    """Return the sets of modules of which each reaches each other."""
    reached = {name: {*others} for name, others in graph.items()}
    for middle in graph:
        for others in reached.values():
            if middle in others:
                others.update(reached[middle])
    found = [{other for other in others if name in reached[other]} for name, others in reached.items() if name in others]
    return [circle for place, circle in enumerate(found) if circle not in found[:place]]


def test_no_file_is_too_long():
    """A file of the product has 500 lines at most."""
    files = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "exporters").rglob("*.py")])
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {} == {name: length for name, length in lengths.items() if length > CEILING}


def test_files_are_removed_by_one_call():
    """All but the build hook remove files by the call that waits, on Windows, for who has them open: not by `Path.unlink`."""
    files = sorted({*PACKAGE.rglob("*.py"), *(ROOT / "exporters").rglob("*.py")} - {PACKAGE / "_speed" / "compile.py"})
    found = {str(path.relative_to(ROOT)): removals(path.read_text()) for path in files if path.parent != PACKAGE / "_syscalls"}
    assert {} == {name: texts for name, texts in found.items() if texts}
    assert ["path.unlink", "os.remove", "a.b.unlink"] == removals("path.unlink(); os.remove(x); a.b.unlink(); calls.unlink(x)")


def test_sessions_are_saved_by_one_call():
    """What a session's snapshot file is replaced by goes through `optree._store.saving`, whoever saves it (S4-137)."""
    files = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "exporters").rglob("*.py")])
    called = {path: {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)} for path in files}
    found = {str(path.relative_to(PACKAGE)) for path, names in called.items() if "replacing" in names}
    assert {"_store/saving.py", "_store/files/system.py"} == found


def test_a_session_has_one_tracker():
    """Nodes are made by `apply`, and of the original ai-agent's files; their begins by the builder, and for one that is joined (S4-143)."""
    nodes = makers({"SessionNode", "TurnNode", "OperationNode"}, "_tree", "_builder", "_store", "_tracing", "_capture")
    assert {"_tree/apply.py", "_store/reading/ai_agent/reading.py"} == nodes
    begins = makers({"SessionBegin", "TurnBegin", "OpBegin"}, "_builder", "_store", "_tracing", "_capture")
    assert {"_builder/session_tree.py", "_builder/unrecorded.py", "_tracing/joined.py"} == begins


def makers(kinds, *folders):
    """Return the modules in some folders of the package that make something of *kinds*."""
    files = {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for name in folders for path in (PACKAGE / name).rglob("*.py")
    }
    calls = {name: [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)] for name, tree in files.items()}
    return {name for name, made in calls.items() if kinds & {getattr(func, "attr", getattr(func, "id", "")) for func in made}}


def removals(source):
    """Return the calls of a module that remove a file otherwise than by `optree._syscalls` or the store's `OS`, as they stand."""
    seams = {"calls", "self", "system", "REAL", "self._os", "options.system"}
    called = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    named = [(func.attr, ast.unparse(func.value), ast.unparse(func)) for func in called if func.attr in ("unlink", "remove")]
    return [text for attr, of, text in named if (attr == "unlink" and of not in seams) or text == "os.remove"]


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
