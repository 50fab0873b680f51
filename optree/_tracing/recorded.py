"""What a tool's call gives in a replay: the result or the failure that was recorded, in place of a run of the tool."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, cast

from optree._builder import Op
from optree._builder.outcome import outcome
from optree._interrupts import pass_on
from optree._tracing import context
from optree._values import foreign_type, is_list, is_object

RESULT_TYPE: Final = "result.type"
"""Attribute of a tool op whose result JSON cannot hold exactly: the class of that part."""


class Recorded(NamedTuple):
    """How a tool's call ended when it was recorded."""

    value: Any
    error: str | None = None
    """What it failed with."""
    has_value: bool = True
    """False if it failed without a result."""
    attributes: Mapping[str, Any] = MappingProxyType({})
    """The attributes of its op."""

    def result(self, of: str = "") -> Any:
        """Return the recorded result, or raise the recorded exception; *of*: the package to prefer if class names clash."""
        if self.error is not None:
            raise exception_of(self.error, of)
        return self.value

    def items(self) -> Generator[Any, Any, Any]:
        """Yield what a generator yielded, its texts in one, and end as it did."""
        found, returned = self._parts()
        yield from found
        if self.error is not None:
            raise exception_of(self.error)
        return returned

    async def items_async(self) -> AsyncGenerator[Any, Any]:
        """Do the same for an asynchronous generator."""
        for item in self.items():
            yield item

    def _parts(self) -> tuple[list[Any], Any]:
        found, returned = self.value, None
        if is_object(found) and found.keys() == {"items", "returned"}:
            found, returned = found["items"], found["returned"]
        if not self.has_value or found is None:
            return [], returned
        return (found if is_list(found) else [found]), returned


class ReplayTool(Protocol):
    """Return the recorded result of a tool's call, by its op; None if it must run. Raises `OptreeError` if it differs."""

    def __call__(self, op: Op, *, is_stream: bool = False, is_remote: bool = False, runs: str = "") -> Recorded | None:
        """Return it; *is_stream*: to a generator; *is_remote*: by another program, with all it called; *runs*: why it runs anyway."""
        ...


class _CurrentReplay:
    """The replay of this process, if there is one."""

    __slots__ = ("answer_tool",)

    def __init__(self) -> None:
        self.answer_tool: ReplayTool | None = None


CURRENT_REPLAY: Final = _CurrentReplay()


def recorded(instrument: object, *, is_stream: bool = False, scope: context.Scope | None = None) -> Recorded | None:
    """Return the recorded result for the current (or *scope*'s) decorated call; None if it must run."""
    answer_tool, where = CURRENT_REPLAY.answer_tool, scope or context.here()
    if answer_tool is None or where is None or where.op is None or getattr(where.finish, "__self__", None) is not instrument:
        return None
    return answer_tool(where.op, is_stream=is_stream)


def note_type(op: Op, value: object) -> None:
    """Note on a tool's op if its response, which is of this value, is not all of it."""
    note_foreign(op, foreign_type(value))


def note_foreign(op: Op, name: str | None) -> None:
    """Note on a tool's op which class its result has that JSON does not hold."""
    if name is not None and op.bare.kind == "tool":
        op.builder.set_op(op, **{RESULT_TYPE: name})


def exception_of(said: str, of: str = "") -> BaseException:
    """Return an exception by what an op's error says of it, `ValueError: no such city`: of that class, as far as it is known, and text.

    *of*: the package whose class it is if there are several of that name.
    """
    name, _, text = said.partition(": ")
    if not name.isidentifier():
        name, text = "RuntimeError", said
    kinds = _named(name)
    kinds = [kind for kind in kinds if of and kind.__module__.partition(".")[0] == of] or kinds
    if len(kinds) == 1:
        for made in _made(kinds[0], text):
            if outcome(made) == ("failed", said):
                return made
    try:
        return _stand_in(name, text, tuple(kinds) or (RuntimeError,))
    except Exception as error:  # noqa: BLE001 - classes that do not go together
        pass_on(error)
        return _stand_in(name, text, (RuntimeError,))


def _named(name: str) -> list[type[BaseException]]:
    """Return the exceptions of a name that the program has; of Python's own that one."""
    found, pending = dict[type[BaseException], None](), [BaseException]
    while pending:
        for kind in type.__subclasses__(pending.pop()):
            if kind.__name__ == name and "optree_replay" not in vars(kind):
                found[kind] = None
            pending.append(kind)
    own = [kind for kind in found if kind.__module__ == "builtins"]
    kinds = own or list(found)
    return [kind for kind in kinds if not any(other is not kind and issubclass(other, kind) for other in kinds)]


def _made(kind: type[BaseException], text: str) -> Iterator[BaseException]:
    """Yield what a class makes of a text."""
    for arguments in ((text,) if text else (), *_literal(text)):
        try:
            yield kind(*arguments)
        except Exception as error:  # noqa: BLE001 - it may want other arguments, and anything may be in it
            pass_on(error)


def _literal(text: str) -> list[tuple[Any, ...]]:
    """Return the arguments of an exception whose text shows a value as Python does, as that of a `KeyError`."""
    try:
        return [(literal_eval(text),)] if text[:1] in "'\"([{0123456789" and text else []
    except Exception as error:  # noqa: BLE001 - any text
        pass_on(error)
        return []


def _stand_in(name: str, text: str, kinds: tuple[type[BaseException], ...]) -> BaseException:
    """Return an exception that is of all of some classes, and has a text; what else these have is missing."""

    def begin(self: BaseException, *arguments: object) -> None:
        self.args = arguments

    def show(_self: BaseException) -> str:
        return text

    members: dict[str, Any] = {"__init__": begin, "__str__": show, "optree_replay": True, "__module__": kinds[0].__module__}
    made = cast("type[BaseException]", type(name, kinds, members))
    return made(text)
