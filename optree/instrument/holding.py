"""How a `with` statement is known to be over, however it ended.

A handler of a signal may raise at the first bytecode of `__exit__`, before anything in it can catch that. So the end of a block is not
known by `__exit__` alone: what a `with` statement gets as the `__exit__` of a scope is an object that nothing else holds, neither the
frames of a traceback, and that dies with the statement.
"""

from __future__ import annotations

from functools import partial
from threading import get_ident
from typing import Any
from weakref import ref

from optree.builder.guard import FAULTS
from optree.instrument.context import Holder, Scope
from optree.instrument.faults import fault


class Held:
    """What one `with` statement has of a scope: the scope, once it is entered, and a weak reference that tells whether it is over."""

    __slots__ = ("holder", "scope", "thread")

    def __init__(self) -> None:
        self.scope: Scope | None = None
        self.holder: Holder | None = None
        self.thread = get_ident()


_NO_ROOM = Held()


class Exit:
    """`__exit__`, or with *awaited* `__aexit__`, of a class whose method `leave` takes the scope that is left, and the exception.

    Its objects keep in `_held` what the `with` statement of this thread has that is about to enter them. Called on the class, as
    `contextlib.ExitStack` does, or without a `with` statement, it is a method like others, and nothing tells that the block is over but it.
    """

    def __init__(self, *, awaited: bool = False) -> None:
        self._left: Any = _awaited if awaited else _left
        self._nothing: Any = _nothing_awaited if awaited else _nothing

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self._left
        try:
            held = Held()
            found = partial(self._left, instance, held=held)
            held.holder = ref(found)
            instance._held = held  # noqa: SLF001 - of the classes that this is for
        except RecursionError:  # nothing can be called here: nothing is begun either
            instance._held = _NO_ROOM  # noqa: SLF001 - as above
            return self._nothing
        except Exception as error:  # noqa: BLE001 - then nothing but a call tells that the block is over
            fault(error)
            return partial(self._left, instance)
        return found


def take_held(instance: Any) -> Held:
    """Return what the `with` statement has that enters an object now; an empty one where there is no such statement.

    Raises `RecursionError` where the statement had no room for it: what is begun then would not be ended.
    """
    held: Held | None = instance._held  # noqa: SLF001 - as above
    instance._held = None  # noqa: SLF001 - as above
    if held is _NO_ROOM:
        raise RecursionError
    return held if held is not None and held.thread == get_ident() and held.holder is not None and held.holder() is not None else Held()


def _left(instance: Any, _kind: object, error: BaseException | None, _trace: object, *, held: Held | None = None) -> None:
    try:
        instance.leave(held.scope if held is not None else None, error)
    except RecursionError:  # nothing can be called here: who comes next ends what was left open
        FAULTS.stack += 1
    except Exception as flaw:  # noqa: BLE001 - no memory, a fault of ours: it must not reach the program
        fault(flaw)


def _nothing(_kind: object, _error: BaseException | None, _trace: object) -> None:
    return


async def _nothing_awaited(_kind: object, _error: BaseException | None, _trace: object) -> None:
    return


async def _awaited(instance: Any, _kind: object, error: BaseException | None, _trace: object, *, held: Held | None = None) -> None:
    _left(instance, None, error, None, held=held)
