"""Small faults that are put into a module, one at a time: one node of its syntax tree is changed.

What people read is left alone: docstrings, annotations, the texts of errors, sentences, and the fixed parts of f-strings.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

OTHER = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.Continue: ast.Break, ast.Break: ast.Continue,
}  # fmt: skip
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SILENT = (ast.Raise, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Pass, ast.expr_context)
"""What nothing is changed in."""
PASSED_OVER = frozenset(["annotation", "returns", "decorator_list", "bases", "keywords_of_class", "format_spec", "type_ignores"])
TYPES = frozenset(["TYPE_CHECKING", "Literal", "TypeVar", "cast"])
"""Names of what only type checkers look at."""
UNSEEN = frozenset(["__all__", "__slots__"])
"""Names whose values no program looks at."""
Put = Callable[[ast.AST], ast.AST]


class Where(NamedTuple):
    """What a node is part of."""

    statement: ast.stmt | None = None
    scope: str = ""
    """The qualified name that functions and classes have here; ends with a dot."""
    function: str = ""
    """The function around it; empty at a module's or a class's top."""


class Place(NamedTuple):
    """Where a fault can be, and what makes it."""

    node: ast.AST
    where: Where
    change: Callable[[], ast.AST]
    """Changes the tree, and returns what stands there then."""


class Mutant(NamedTuple):
    """A module with one fault."""

    path: str
    number: int
    """Which of the module's places it is."""
    line: int
    statement: int
    """The line that its statement begins on."""
    function: str
    said: str


def count(source: str) -> int:
    """Return how many faults a module can have."""
    return len(_places(source)[1])


def made(path: str, source: str, number: int) -> tuple[Mutant, ast.Module]:
    """Return the fault of that number, and the module that has it."""
    tree, places = _places(source)
    node, where, change = places[number]
    before, statement = ast.unparse(node), getattr(where.statement, "lineno", 1)
    line = getattr(node, "lineno", statement)
    said = f"{_short(before)} → {_short(ast.unparse(change()))}"
    return Mutant(path, number, line, statement, where.function, said), ast.fix_missing_locations(tree)


def _places(source: str) -> tuple[ast.Module, list[Place]]:
    tree = ast.parse(source)
    return tree, list(_of(tree, _nowhere, Where()))


def _of(node: ast.AST, put: Put, where: Where) -> Iterator[Place]:
    """Yield the places in a node and in all that it has; *put* puts another one in its stead."""
    if _is_left_alone(node):
        return
    if isinstance(node, ast.stmt):
        where = where._replace(statement=node)
    for change in _changes(node, put):
        yield Place(node, where, change)
    inside = where
    if isinstance(node, FUNCTIONS):
        yield from _of(node.args, _nowhere, where)
        inside = Where(node, f"{where.scope}{node.name}.<locals>.", f"{where.scope}{node.name}")
    elif isinstance(node, ast.ClassDef):
        inside = Where(node, f"{where.scope}{node.name}.", where.function)
    for child, put_child in _children(node):
        yield from _of(child, put_child, inside)


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, Put]]:
    for field, value in ast.iter_fields(node):
        if field in PASSED_OVER or (field == "args" and isinstance(node, FUNCTIONS)):
            continue
        if isinstance(value, ast.AST):
            yield value, partial(_put, node, field)
        elif isinstance(value, list):
            for at, one in enumerate(value):
                if isinstance(one, ast.AST) and not (isinstance(node, ast.JoinedStr) and isinstance(one, ast.Constant)):
                    yield one, partial(_set, value, at)


def _is_left_alone(node: ast.AST) -> bool:
    """Tell whether nothing is changed within: what no program looks at, and what only type checkers and people do."""
    about = {ast.If: "test", ast.Subscript: "value", ast.Call: "func"}.get(type(node))
    if about is not None:
        return ast.unparse(getattr(node, about)) in TYPES
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        marks = [*node.decorator_list, *getattr(node, "bases", ())]
        return any(word in ast.unparse(one) for one in marks for word in ("overload", "Protocol"))
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = [*getattr(node, "targets", ()), getattr(node, "target", None)]
        return any(isinstance(one, ast.Name) and one.id in UNSEEN for one in targets)
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, SILENT)


def _changes(node: ast.AST, put: Put) -> Iterator[Callable[[], ast.AST]]:
    """Yield what can be changed of one node."""
    if isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            yield partial(_changed, node, partial(_set, node.ops, at, OTHER[type(operator)]()))
    elif isinstance(node, ast.BoolOp | ast.BinOp | ast.AugAssign) and type(node.op) in OTHER:
        yield partial(_changed, node, partial(_put, node, "op", OTHER[type(node.op)]()))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield partial(put, node.operand)
    elif isinstance(node, ast.IfExp) or (isinstance(node, ast.If) and node.orelse):
        yield partial(_changed, node.test, partial(_put, node, "test", ast.UnaryOp(ast.Not(), node.test)))
    elif isinstance(node, ast.Constant):
        yield from (partial(put, ast.Constant(value)) for value in _others(node.value))
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield partial(_changed, node, partial(_put, node, "value", ast.Constant(None)))
    elif isinstance(node, ast.Continue | ast.Break):
        yield partial(put, ast.copy_location(OTHER[type(node)](), node))
    if _can_go(node):
        yield partial(put, ast.copy_location(ast.Pass(), node))


def _others(value: object) -> list[object]:
    """Return what stands in a constant's stead: nothing for sentences, which people read."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1]
    if isinstance(value, bytes):
        return [value + b"X"]
    return [f"{value}X"] if isinstance(value, str) and " " not in value.strip() else []


def _can_go(node: ast.AST) -> bool:
    """Tell whether a statement can be left out, and the module still makes sense: a call, a change of what is there, a deletion."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    return isinstance(node, ast.AugAssign | ast.Delete) or (isinstance(node, ast.Expr) and not isinstance(node.value, ast.Yield))


def _changed(node: ast.AST, change: Callable[[], ast.AST]) -> ast.AST:
    new = change()
    return new if isinstance(new, ast.UnaryOp) else node


def _put(owner: ast.AST, field: str, new: ast.AST) -> ast.AST:
    setattr(owner, field, new)
    return new


def _set(items: list[ast.AST], at: int, new: ast.AST) -> ast.AST:
    items[at] = new
    return new


def _nowhere(new: ast.AST) -> ast.AST:
    raise AssertionError(f"{ast.unparse(new)} stands in nothing's stead")


def _short(said: str) -> str:
    line = " ".join(said.split())
    return line if len(line) < 90 else f"{line[:87]}…"
