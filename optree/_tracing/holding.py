"""How a `with` statement is known to be over, however it ended.

A handler of a signal may raise at the first bytecode of `__exit__`, before anything in it can catch that. So the end of a block is not
known by `__exit__` alone: what a `with` statement gets as the `__exit__` of a scope is an object that nothing else holds, neither the
frames of a traceback, and that dies with the statement.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from sys import getrefcount
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec
from weakref import ref

from optree._builder import Op, SessionTreeBuilder, Stream, Turn
from optree._builder.guard import FAULTS
from optree._interrupts import suppress
from optree._nodes import OpKind
from optree._tracing.context import ABANDONED, CURRENT, Holder, Scope
from optree._tracing.faults import fault
from optree._tracing.runtime import report_problem

P = ParamSpec("P")


class HeldScope:
    """What one `with` statement has of a scope: the scope, once it is entered, and a weak reference that tells whether it is over."""

    __slots__ = ("holder", "scope", "thread")

    def __init__(self) -> None:
        self.scope: Scope | None = None
        self.holder: Holder | None = None
        self.thread = get_ident()


_NO_ROOM = HeldScope()
_ELSEWHERE: Final = (
    "the block of session {} ended in another context than it began in, as in a generator whose steps run in several: what was recorded "
    "there meanwhile may be elsewhere, and no budget has counted it; decorate the generator with @optree.session instead"
)


class Exit:
    """A descriptor for `__exit__`, or with *awaited* for `__aexit__`, of a class whose method `leave` takes the scope and the exception.

    Each `with` statement gets a callable of its own, whose weak reference dies with the block.

    Its objects keep in `_held` what the `with` statement of this thread has that is about to enter them. Called on the class, as
    `contextlib.ExitStack` does, or without a `with` statement, it is a method like others, and nothing tells that the block is over but it.
    """

    def __init__(self, *, awaited: bool = False) -> None:
        self._left: Any = _awaited if awaited else left
        self._nothing: Any = _nothing_awaited if awaited else _nothing

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self._left
        try:
            held = HeldScope()
            leave = partial(self._left, instance, held=held)
            held.holder = ref(leave)
            instance._held = held  # noqa: SLF001 - of the classes that this is for
        except RecursionError:  # nothing can be called here: nothing is begun either
            instance._held = _NO_ROOM  # noqa: SLF001 - as above
            return self._nothing
        except Exception as error:  # noqa: BLE001 - then nothing but a call tells that the block is over
            fault(error)
            return partial(self._left, instance)
        return leave


def take_held(instance: Any) -> HeldScope:
    """Return the `HeldScope` of the `with` statement that enters an object now; an empty one where there is no such statement.

    Raises `RecursionError` where the statement had no room for it: what is begun then would not be ended.
    """
    held: HeldScope | None = instance._held  # noqa: SLF001 - as above
    instance._held = None  # noqa: SLF001 - as above
    if held is _NO_ROOM:
        raise RecursionError
    return (
        held if held is not None and held.thread == get_ident() and held.holder is not None and held.holder() is not None else HeldScope()
    )


def left(instance: Any, _kind: object, error: BaseException | None, _trace: object, *, held: HeldScope | None = None) -> None:
    """Leave the node that was entered; raises only exceptions of the program's."""
    try:
        scope = held.scope if held is not None else None
        if error is None and scope is not None and scope is not CURRENT.get() and scope.turn is None and scope.op is None:
            report_problem(_ELSEWHERE.format(scope.session.agent), happened=True)
        instance.leave(scope, error)
    except RecursionError:  # nothing can be called here: the next call ends what was left open
        FAULTS.stack += 1
    except Exception as flaw:  # noqa: BLE001 - no memory, a fault of ours: it must not reach the program
        fault(flaw)


def block_not_entered(instrument: Any, scope: Scope | None, op: Op | None, before: Scope | None, error: BaseException) -> Any:
    """Take what a compiled `__enter__` raised, of an *op* perhaps that no scope has; returns what the block gets, which records nothing."""
    try:
        try:
            if op is not None and scope is None:
                op.end(*ABANDONED)
            raise error  # noqa: TRY301 - as it came out of C
        except BaseException:
            instrument.undo(scope, before)
            raise
    except RecursionError:
        FAULTS.stack += 1
    except Exception as flaw:  # noqa: BLE001 - the block runs, recorded or not
        fault(flaw)
    return instrument.unrecorded


def left_after(flaw: BaseException | None, leave: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Leave what was entered in C, as `left` does; *flaw* is what a compiled `__exit__` raised as it tried, raised behind it."""
    try:
        try:
            leave(*args, **kwargs)
        finally:
            if flaw is not None:
                raise flaw
    except RecursionError:  # as above
        FAULTS.stack += 1
    except Exception as fault_of_ours:  # noqa: BLE001 - as above
        fault(fault_of_ours)


def left_block(instance: Any, held: HeldScope, error: BaseException | None, flaw: BaseException | None) -> None:
    """Leave a block that was entered by a compiled `__enter__`."""
    left_after(flaw, _leave_block, instance, held, error)


def _leave_block(instance: Any, held: HeldScope, error: BaseException | None) -> None:
    instance.leave(held.scope, error)


def _nothing(_kind: object, _error: BaseException | None, _trace: object) -> None:
    return


async def _nothing_awaited(_kind: object, _error: BaseException | None, _trace: object) -> None:
    return


async def _awaited(instance: Any, _kind: object, error: BaseException | None, _trace: object, *, held: HeldScope | None = None) -> None:
    left(instance, None, error, None, held=held)


class ContextManager:
    """What is entered by `with` and `async with`, and whose method `leave` takes the end of the block."""

    if TYPE_CHECKING:

        def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None: ...

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
        ) -> None: ...

    else:
        __exit__ = Exit()
        __aexit__ = Exit(awaited=True)


def abandon_last(builder: SessionTreeBuilder, kind: OpKind) -> None:
    """End the op that was begun last, if it is of a kind and nothing refers to it, or to its session, but the builders."""
    core = builder.core
    op = core.ops.get(next(reversed(core.ops), ""))
    if op is None or op.bare.kind != kind or not _is_alone(op, core.stream):
        return
    child = core.builders.get(op.path)
    if child is None or _is_alone(child, core.stream):
        abandon(op)


def abandon_turn(builder: SessionTreeBuilder) -> None:
    """End the turn that is open, if nothing refers to it but the builder."""
    turn = builder.current_turn
    if turn is not None and not turn.implicit and _is_alone(turn, builder.core.stream):
        turn.end(*ABANDONED)


def abandon(op: Op) -> None:
    """End an op that was interrupted, and the session in it."""
    child = op.builder.core.builders.get(op.path)
    if child is not None:
        child.end_session(*ABANDONED)
    op.end(*ABANDONED)


def clear_frames() -> None:
    """Clear the variables of optree's own frames that the exception in flight has left."""
    trace = None if (error := sys.exception()) is None else error.__traceback__
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        if frame.f_globals.get("__name__", "").startswith("optree."):
            with suppress(RuntimeError):  # it still runs
                frame.clear()
                _ = frame.f_locals  # before 3.13 a copy is kept, which this brings up to date


def _is_alone(handle: Op | Turn | SessionTreeBuilder, stream: Stream) -> bool:
    """Tell whether only a container and a variable refer to *handle*, once entries that wait, as its first log line, are delivered."""
    return getrefcount(handle) == _ALONE or (stream.flush() and getrefcount(handle) == _ALONE)


def _references(handle: object) -> int:
    return getrefcount(handle)


def _alone() -> int:
    """Return how many references `_is_alone` counts then."""
    held = [object()]
    handle = held[0]
    return _references(handle)


_ALONE = _alone()


class AsyncItems(AsyncGenerator[Any, Any]):
    """An async generator's items, each read within a block of a subclass's, and noted there.

    It is no generator itself: when the program drops it, Python closes *items* in the way it would have without; and an event loop that
    ends closes all generators at once, which raises in one that stands around another.
    """

    def __init__(self, items: AsyncGenerator[Any, Any]) -> None:
        self._items = items
        self._is_begun = self._is_running = self._is_over = False

    async def __anext__(self) -> Any:
        return await self._read(self._items.__anext__)

    async def asend(self, value: Any) -> Any:
        """Send a value in."""
        return await self._read(partial(self._items.asend, value))

    async def athrow(self, *error: Any) -> Any:
        """Throw an exception in."""
        return await self._read(partial(self._items.athrow, *error))

    async def aclose(self) -> None:
        """Close it: the program wants no more items."""
        await (self._read(self._items.aclose, is_close=True) if self._is_begun else self._items.aclose())

    async def _read(self, step: Callable[[], Awaitable[Any]], *, is_close: bool = False) -> Any:
        if self._is_over or self._is_running:  # of one that is running Python says so
            return await step()
        if not self._is_begun:
            self._begin()
            self._is_begun = True
        if is_close:
            self._closes()
        self._is_running = True
        try:
            with self._within(is_close=is_close):
                item = await step()
        except StopAsyncIteration:
            self._end(None)
            raise
        except BaseException as error:
            self._end(error)
            raise
        finally:
            self._is_running = False
        if is_close:
            self._end(GeneratorExit())
        else:
            self._keep(item)
        return item

    @abstractmethod
    def _begin(self) -> None:
        """Begin, ahead of the first item."""

    @abstractmethod
    def _within(self, *, is_close: bool) -> Any:
        """Return the block that an item is read in, or the close."""

    @abstractmethod
    def _keep(self, item: Any) -> None:
        """Take an item that the program gets."""

    def _closes(self) -> None:
        """Note that the program wants no more."""

    @abstractmethod
    def _over(self, error: BaseException | None) -> None:
        """Note that there are no more, and by which exception."""

    def _end(self, error: BaseException | None) -> None:
        self._is_over = True
        self._over(error)

    def __del__(self) -> None:
        if self._is_begun and not self._is_over:
            self._closes()
            del self._items  # first, for what is open in it
            self._end(GeneratorExit())
