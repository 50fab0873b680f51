import ast
from collections import defaultdict
from pathlib import Path

from tests.shipping.surface import FILE, surface

ROOT = Path(__file__).resolve().parents[2]


def test_no_class_has_the_name_of_another():
    """No two classes of optree and its exporters have one name: an `except`, an `isinstance` or a traceback means one thing."""
    places = defaultdict(list)
    for path in sorted([*(ROOT / "optree").rglob("*.py"), *(ROOT / "exporters").rglob("*.py")]):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert "SessionTreeBuilder" in places
    assert {} == {name: files for name, files in places.items() if len(files) > 1}


def test_errors_are_one_family():
    """What a program may have to catch is of the family in `optree.errors`; other exceptions never leave the module that they are for."""
    bases = {}
    for path in [*(ROOT / "optree").rglob("*.py"), *(ROOT / "exporters").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {ast.unparse(base) for base in node.bases}
    family = {"OptreeError"}
    while more := {name for name, above in bases.items() if above & family} - family:
        family |= more
    assert {"SetupError", "StoreError", "InvalidEventError"} <= family
    others = {name for name, above in bases.items() if name not in family and any(one.endswith(("Error", "Exception")) for one in above)}
    assert {"NotOurs", "CarriedRefusal", "WrongError", "NotProtobufError", "UnfitError", "NeedsCareError"} == others


def test_public_surface():
    """What is public is listed in surface.txt with its signatures; after a change that is meant: python -m tests.shipping.surface."""
    assert FILE.read_text().splitlines() == surface()


def test_tests_that_are_called_slow_are_there():
    """Each line of `tests/slow.txt` names a test function: one that is renamed would be run by `make test` again, unsaid."""
    names = [line.split()[0] for line in (ROOT / "tests/slow.txt").read_text().splitlines() if not line.startswith("#")]
    assert names
    for path, _, function in (name.partition("::") for name in names):
        assert f"def {function}(" in (ROOT / path).read_text(), f"{path}::{function}"


def test_tests_are_bundled(request):
    """`--dist loadgroup` has one process run what a module makes once; pytest-xdist 3.8 does nothing for it with pytest 9.2, unsaid."""
    assert request.config.getoption("loadgroup", default=False) is ("@" in request.node.nodeid)
