import importlib.metadata
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import NODEFAULT, structs

import optree

DOCUMENTED = {
    "decorators and context managers": ["llm", "session", "tool", "turn"],
    "limits": ["Budget", "budget"],
    "hooks in libraries": ["instrument", "instrument_client", "uninstrument", "uninstrument_client"],
    "where one is": ["current", "current_session"],
    "other threads and processes": ["child_env", "wrap"],
    "this process": ["Config", "Redaction", "configure", "flush", "health"],
    "handles": ["Op", "Session", "SessionTreeBuilder", "Turn"],
    "the tree": ["AccountingEntry", "LogEntry", "Message", "OperationNode", "Path", "SessionNode", "Totals", "Tree", "TurnNode"],
    "looking at a tree": ["flatten", "format_tree", "snapshot_summary", "walk_ops", "walk_sessions"],
    "saved sessions": ["Damage", "Directory", "Loaded", "load"],
    "errors": [
        "BudgetExceeded", "BusyError", "CycleError", "DamagedError", "FormatError", "NotFoundError", "OptreeError", "PathError",
        "SetupError", "StoreError",
    ],
}  # fmt: skip
PUBLIC = sorted(name for names in DOCUMENTED.values() for name in names)
ERRORS = DOCUMENTED["errors"]
CLASSES = [name for name in PUBLIC if inspect.isclass(getattr(optree, name))]


def own_members(cls):
    """Return the public methods and properties that a class of ours defines or inherits from one of ours."""
    for base in cls.__mro__:
        if base.__module__.startswith("optree"):
            for name, member in vars(base).items():
                called = getattr(member, "__func__", member)
                if not name.startswith("_") and (inspect.isfunction(called) or isinstance(member, property)):
                    yield name, member


def test_the_public_surface_is_this_list():
    """What `optree` offers is this list: a name is not added or lost by accident."""
    assert PUBLIC == optree.__all__
    assert sorted(optree.__all__) == optree.__all__
    assert [] == [name for name in PUBLIC if not hasattr(optree, name)]


def test_star_import_gives_the_list():
    """A star import gives exactly the public names."""
    code = "from optree import *; print(*sorted(name for name in globals() if not name.startswith('_')))"
    run = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert PUBLIC == run.stdout.split()


@pytest.mark.parametrize("name", PUBLIC)
def test_docstrings(name):
    """Every public class, function, method and property says what it is, in whole sentences."""
    found = getattr(optree, name)
    said = {name: found.__doc__}
    if inspect.isclass(found):
        said |= {f"{name}.{member}": value.__doc__ for member, value in own_members(found)}
    assert [] == [of for of, text in said.items() if not text or not re.match(r"\S.*[.:]", text.strip(), re.DOTALL)]
    generated = [of for of, text in said.items() if text and text.startswith(f"{name}(")]  # what dataclasses write by themselves
    assert [] == generated


@pytest.mark.parametrize("name", [name for name in PUBLIC if inspect.isfunction(getattr(optree, name))])
def test_functions_are_typed(name):
    """Every parameter and result of a public function has a type."""
    signature = inspect.signature(getattr(optree, name))
    assert signature.return_annotation is not signature.empty
    assert [] == [one.name for one in signature.parameters.values() if one.annotation is one.empty]


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_family(name):
    """All errors may be caught as `OptreeError`."""
    assert issubclass(getattr(optree, name), optree.OptreeError)
    assert issubclass(optree.OptreeError, Exception)


def test_all_errors_are_public():
    """An error that optree raises can be named."""
    from optree import errors

    assert set(ERRORS) == {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}


def test_options_are_in_the_environment_too():
    """Each option of `configure` is a field of `Config`, with a default: a program needs none of them."""
    assert optree.Config() == optree.configure()
    for field in structs.fields(optree.Config):
        assert field.default is not NODEFAULT
        assert optree.configure() == optree.configure(**{field.name: getattr(optree.configure(), field.name)})


def test_version_is_that_of_the_package():
    """The version in the package is that of the distribution."""
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'path = "optree/_version.py"' in project
    assert optree.__version__ == importlib.metadata.version("optree-tracing")


@pytest.mark.parametrize("name", CLASSES)
def test_classes_are_shown_by_their_public_home(name):
    """A public class comes from `optree` and is the same however it is reached."""
    found = getattr(optree, name)
    assert found.__module__.startswith("optree.")
    assert found is getattr(sys.modules[found.__module__], name)
