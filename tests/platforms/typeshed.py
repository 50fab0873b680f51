"""What modules of the standard library lack on a system, by typeshed's stubs."""

import ast
import sys
from importlib.util import find_spec
from pathlib import Path

MISSING = "tests.platforms needs typeshed's stubs, which mypy brings: make .venv/has-dev, or pip install --force-reinstall mypy"


def differences(system: str) -> dict[str, object]:
    """Return what Linux has and *system* lacks: names by module, and whole modules."""
    if (spec := find_spec("mypy")) is None:
        raise SystemExit(MISSING)
    stubs = Path(str(spec.origin)).parent / "typeshed" / "stdlib"
    lacking: dict[str, list[str]] = {}
    absent: list[str] = []
    for path in sorted(stubs.rglob("*.pyi")):
        source = path.read_text("utf-8")
        if "sys.platform" in source:
            module = ".".join(path.relative_to(stubs).with_suffix("").parts).removesuffix(".__init__")
            here, there = (_names(ast.parse(source).body, one) for one in ("linux", system))
            if here and not there:
                absent.append(module)
            elif here - there:
                lacking[module] = sorted(here - there)
    if not lacking:
        raise SystemExit(f"{MISSING}: there are none in {stubs}")
    return {"lacking": lacking, "absent": absent}


def _names(body: list[ast.stmt], system: str) -> set[str]:
    """Return the names that a stub defines on a system; what it imports for itself alone is none of them."""
    found: set[str] = set()
    for node in body:
        match node:
            case ast.If():
                found |= _names(node.body if _holds(node.test, system) else node.orelse, system)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Assign():
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.ImportFrom():
                found |= {alias.asname for alias in node.names if alias.asname == alias.name}
    return found - {"__all__"}


def _holds(test: ast.expr, system: str) -> bool:
    return bool(eval(compile(ast.Expression(test), "<stub>", "eval"), {"sys": _System(system), "TYPE_CHECKING": False}))


class _System:
    version_info = sys.version_info

    def __init__(self, platform: str) -> None:
        self.platform = platform
