"""Decorating functions of all four kinds: plain, coroutine, generator, async generator.

A generator runs in pieces, each in the context of the caller that asks for it, perhaps another task's. So no token is held across a
`yield`: the scope is put in place before each piece and taken out after it, by value.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from optree._builder import Op
from optree._builder.guard import FAULTS
from optree._builder.outcome import outcome
from optree._interrupts import pass_on
from optree._nodes import Status
from optree._tracing import context
from optree._tracing.context import CURRENT, Holder, Scope
from optree._tracing.faults import PIECE, SESSION, UnrecordedPiece, fault, guarded, unless_faulty
from optree._tracing.holding import AsyncItems, Exit, HeldScope, left_after, take_held
from optree._tracing.recorded import CURRENT_REPLAY, Recorded, recorded
from optree._tracing.results import Result
from optree._tracing.runtime import RUNTIME
from optree._values import MAX_ITEMS, MAX_TEXT, decode, encode, foreign_type
from optree.errors import SetupError

F = TypeVar("F", bound=Callable[..., Any])
_METHODS: tuple[Any, ...] = (staticmethod, classmethod)
INSTRUMENT = "optree_instrument"  # the attribute of a decorated function that has its instrument
_DATA = frozenset({str, int, float, bool, list, dict, tuple})
KEPT_BYTES = MAX_TEXT // 2
"""JSON of a generator's items that is kept for the op's response; what comes after it is counted."""


class Names(NamedTuple):
    """What a function calls its arguments."""

    positional: list[str]
    rest: str = "args"
    defaults: Mapping[str, Any] = MappingProxyType({})
    """Values of arguments that are not given, as far as they are data."""


_NO_NAMES = Names([])


class Instrument(Protocol):
    """What a decorator needs of `scopes`."""

    def begin(self, before: Scope | None, holder: Holder | None = None, arguments: Mapping[str, Any] | None = None) -> Scope:
        """Open a node, with the *arguments* of the function that it is a call of."""
        ...

    def undo(self, scope: Scope | None, before: Scope | None) -> None:
        """End what an entry began that was interrupted."""
        ...

    def finish(self, handle: Any, status: Status, error: str | None) -> None:
        """End it."""
        ...

    def inherited(self, handle: Any) -> bool:
        """Tell whether a node is another process's: this one was forked since."""
        ...

    def called(self, handle: Any, arguments: Mapping[str, Any]) -> None:
        """Take the arguments."""
        ...

    def result(self, handle: Any) -> Result:
        """Return the `Result` that takes what one call gives back."""
        ...


def wrapped(function: F, again: Callable[[Callable[..., Any]], Any]) -> F:
    """Return *function* decorated; each call gets the instrument that *again* makes for it."""
    if isinstance(function, _METHODS):
        method: Any = function
        around: F = type(method)(wrapped(method.__func__, again))
        return around
    if inspect.isclass(function):
        raise SetupError(f"the class {function.__name__} cannot be traced as a whole: decorate its method that runs")
    names = _parameters(function)
    make: Callable[..., Any] = next((make for is_one, make in _KINDS if is_one(function)), _function)
    instrument = again(function)
    decorated: F = make(function, instrument, names)
    setattr(decorated, INSTRUMENT, instrument)
    return decorated


def name_of(function: Callable[..., Any]) -> str:
    """Return what a function is called."""
    inner = getattr(function, "func", function)  # of a functools.partial
    return getattr(inner, "__name__", type(inner).__name__)


def _function(function: Callable[..., Any], instrument: Instrument, names: Names) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not RUNTIME.config.enabled:
            return function(*args, **kwargs)
        with _begun(instrument, names, args, kwargs) as piece:
            given = None if CURRENT_REPLAY.answer_tool is None else recorded(instrument)
            return piece.result(function(*args, **kwargs) if given is None else given.result())

    return call


def _coroutine(function: Callable[..., Any], instrument: Instrument, names: Names) -> Any:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        if not RUNTIME.config.enabled:
            return await function(*args, **kwargs)
        with _begun(instrument, names, args, kwargs) as piece:
            given = None if CURRENT_REPLAY.answer_tool is None else recorded(instrument)
            return piece.result(await function(*args, **kwargs) if given is None else given.result())

    return call


def _generator(function: Callable[..., Any], instrument: Instrument, names: Names) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)  # first: wrong arguments must not leave a node open
        stream = _begun_stream(instrument, names, args, kwargs)
        step: Callable[[], Any] = lambda: next(inner)  # noqa: E731 - replaced by send and throw below
        try:
            if (given := stream.recorded()) is not None:
                inner = given.items()  # the other has not begun
            while True:
                try:
                    with stream:
                        item = step()
                except StopIteration as stop:
                    stream.end(None, stop.value)
                    return stop.value
                stream.keep(item)
                try:
                    sent = yield item
                except GeneratorExit:
                    with stream:
                        inner.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - thrown in by the consumer: the inner generator's to handle
                    step = functools.partial(inner.throw, error)
                else:
                    step = functools.partial(inner.send, sent)
        except BaseException as error:
            stream.end(error)
            raise

    return call


def async_generator(function: Callable[..., Any], instrument: Instrument | None = None, names: Names = _NO_NAMES) -> Any:
    """Return an async generator function that yields what *function*'s generator yields; with an instrument that is recorded."""

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)  # first: wrong arguments must not leave a node open
        stream = _begun_stream(instrument, names, args, kwargs)
        try:
            if (given := stream.recorded()) is not None:
                inner = given.items_async()  # the other has not begun
            step: Callable[[], Any] = inner.__anext__
            while True:
                try:
                    with stream:
                        item = await step()
                except StopAsyncIteration:
                    stream.end(None)
                    return
                stream.keep(item)
                try:
                    sent = yield item
                except GeneratorExit:
                    with stream:
                        await inner.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001 - thrown in by the consumer: the inner generator's to handle
                    step = functools.partial(inner.athrow, error)
                else:
                    step = functools.partial(inner.asend, sent)
        except BaseException as error:
            stream.end(error)
            raise

    return call


_KINDS: Any = (
    (inspect.isasyncgenfunction, async_generator), (inspect.isgeneratorfunction, _generator), (inspect.iscoroutinefunction, _coroutine),
)  # fmt: skip


def _begun(instrument: Instrument, names: Names, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Piece | UnrecordedPiece:
    """Return the piece that records a call; where there is no stack or memory for it, one that records nothing."""
    try:
        return _Piece(instrument, names, args, kwargs)
    except RecursionError:
        FAULTS.stack += 1
    except Exception as error:  # noqa: BLE001 - the function runs, recorded or not
        fault(error)
    return PIECE


def _begun_stream(instrument: Instrument | None, names: Names, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Stream | UnrecordedPiece:
    """Return what records a run of a generator; the generator runs, recorded or not."""
    if instrument is None or not RUNTIME.config.enabled:
        return PIECE
    try:
        return _Stream(instrument, names, args, kwargs)
    except RecursionError:
        FAULTS.stack += 1
    except Exception as error:  # noqa: BLE001 - as said
        fault(error)
    return PIECE


class _Piece:
    """One call of a function or coroutine: opened where the call runs, ended with it. What cannot be recorded runs all the same."""

    __slots__ = ("_args", "_held", "_instrument", "_kwargs", "_names", "_open", "_scope")

    __exit__ = Exit()

    def __init__(self, instrument: Instrument, names: Names, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._instrument, self._names, self._args, self._kwargs = instrument, names, args, kwargs
        self._open = False
        self._held: HeldScope | None = None
        self._scope: Scope | None = None

    def __enter__(self) -> Self:
        instrument, before, scope = self._instrument, None, None
        try:
            try:
                held, before = take_held(self), context.here()
                arguments = bound_arguments(self._names, self._args, self._kwargs)
                scope = self._scope = held.scope = instrument.begin(before, held.holder, arguments)
                instrument.called(scope.handle, arguments)
                if scope.session is not SESSION:
                    context.enter(scope)
            except RecursionError:
                FAULTS.stack += 1
            except Exception as error:  # noqa: BLE001 - the program's function runs, recorded or not
                fault(error)
        except BaseException:  # out of a signal's handler: it does not run, and nothing else ends what was begun
            instrument.undo(scope, before)
            raise
        return self

    def result(self, value: Any) -> Any:
        """Record and return what the function returned; the node of a stream is open until the program has read it."""
        try:
            if self._scope is not None:
                self._open = _taken(self._instrument, self._scope, value)
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - the program has its result, recorded or not
            fault(error)
        return value

    def leave(self, _scope: Scope | None, error: BaseException | None) -> None:
        """End the node, then put back what was before."""
        if self._scope is not None:
            _leave(self._instrument, self._scope, self._open, error)


def not_entered(instrument: Instrument, scope: Scope | None, op: Op | None, before: Scope | None, error: BaseException) -> None:
    """Take what a compiled piece raised where it begins, of an *op* perhaps that no scope has yet: as `_Piece.__enter__` does."""
    try:
        if op is not None and scope is None:
            op.end(*context.ABANDONED)
        if isinstance(error, RecursionError):
            FAULTS.stack += 1
        elif isinstance(error, Exception):
            fault(error)
        else:
            raise error  # noqa: TRY301 - as it came out of C
    except BaseException:
        instrument.undo(scope, before)
        raise


def take_result(instrument: Instrument, scope: Scope, value: Any) -> bool:
    """Take what a function returned, for a compiled piece; True for a stream, whose node ends when the program has read it."""
    return unless_faulty(functools.partial(_taken, instrument, scope, value), otherwise=False)


def _taken(instrument: Instrument, scope: Scope, value: Any) -> bool:
    handle = scope.handle
    result = instrument.result(handle)
    items = _Items(instrument, handle, result)
    if result.watch(value, items.keep, items.end):
        return True
    result.returned(value)
    return False


def _leave(instrument: Instrument, scope: Scope, is_stream: bool, error: BaseException | None) -> None:
    try:
        if not is_stream:
            instrument.finish(scope.handle, *outcome(error))
    except BaseException:  # an interrupt: what is begun is done whole
        instrument.finish(scope.handle, *outcome(error))
        raise
    finally:
        if CURRENT.get() is scope:
            context.leave(scope)


def left_call(instrument: Instrument, scope: Scope, is_stream: bool, error: BaseException | None, flaw: BaseException | None) -> None:
    """End the node of a compiled piece, then put back what was before."""
    left_after(flaw, _leave, instrument, scope, is_stream, error)


class _Items:
    """What one call yields: taken as it comes, or kept for the result."""

    __slots__ = ("_foreign", "_handle", "_instrument", "_kept", "_more", "_result", "_room", "_taken")

    def __init__(self, instrument: Instrument, handle: Any, result: Result) -> None:
        self._instrument, self._handle, self._result = instrument, handle, result
        self._kept: list[Any] = []
        self._taken: bool | None = None
        self._more = 0
        self._foreign: str | None = None
        self._room = KEPT_BYTES

    @guarded
    def keep(self, item: Any) -> None:
        """Keep an item for the response, beside what takes it as it comes."""
        taken = self._result.take(item)
        self._taken = taken and self._taken is not False
        if taken and type(item) is not str:
            return
        if self._room <= 0:
            self._more += 1
            return
        data = encode(item, MAX_ITEMS)  # as it is now: the next item may be the same object, changed
        self._room -= len(data)
        self._kept.append(decode(data))
        self._foreign = self._foreign or foreign_type(item)

    @guarded
    def end(self, error: BaseException | None, value: Any = None) -> None:
        """End the node, with what was yielded as its result."""
        if self._instrument.inherited(self._handle):
            return
        result: Any = self._kept
        if result and not self._more and all(type(item) is str for item in result):
            result = "".join(result)
        if self._more:
            result = {"items": result, "more": self._more}
        if value is not None:
            result = {"items": result, "returned": value}
        status, message = outcome(error)
        nothing = error is not None and result == []
        if (not self._taken and not nothing) or value is not None:
            self._result.returned(result)
        self._result.foreign(self._foreign or foreign_type(value))
        self._result.ended(status)
        self._instrument.finish(self._handle, status, message)


class _Stream(_Items):
    """One run of a generator; entered around each of its pieces."""

    __slots__ = ("_held", "_scope", "_within")

    __exit__ = Exit()

    def __init__(self, instrument: Instrument, names: Names, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        before, scope = context.here(), None
        try:
            arguments = bound_arguments(names, args, kwargs)
            scope = self._scope = self._within = instrument.begin(before, None, arguments)
            scope.piece = scope
            self._held: HeldScope | None = None
            super().__init__(instrument, scope.handle, instrument.result(scope.handle))
            instrument.called(scope.handle, arguments)
        except BaseException:
            instrument.undo(scope, before)
            raise

    def __enter__(self) -> Self:
        try:
            held = take_held(self)
            self._scope.before, self._scope.holder = context.here(), held.holder
            context.enter(self._within, self._scope)
        except RecursionError:
            FAULTS.stack += 1
        except Exception as error:  # noqa: BLE001 - the piece runs, recorded or not
            fault(error)
        return self

    def recorded(self) -> Recorded | None:
        """Return what it gets in a replay; None for a generator that runs."""
        return None if CURRENT_REPLAY.answer_tool is None else recorded(self._instrument, is_stream=True, scope=self._scope)

    def leave(self, _scope: Scope | None, _error: BaseException | None) -> None:
        """Put back what was before the piece; the generator may be inside a block of its own when it yields."""
        self._within = context.here() or self._scope  # a block of its own that was interrupted is ended here
        context.leave(self._within, self._scope)


class RecordedItems(AsyncItems):
    """An async generator's items, each read within a node that begins with the first one."""

    def __init__(self, items: AsyncGenerator[Any, Any], instrument: Instrument, on_close: Callable[[], None]) -> None:
        super().__init__(items)
        self._instrument, self._on_close = instrument, on_close

    def _begin(self) -> None:
        self._stream = _begun_stream(self._instrument, _NO_NAMES, (), {})

    def _within(self, *, is_close: bool) -> Any:  # noqa: ARG002 - the close too is within the node
        return self._stream

    def _keep(self, item: Any) -> None:
        self._stream.keep(item)

    @guarded
    def _closes(self) -> None:
        self._on_close()

    def _over(self, error: BaseException | None) -> None:
        self._stream.end(error)


def _parameters(function: Callable[..., Any]) -> Names:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        pass_on(error)
        return Names([])
    positional = [item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    defaults = {item.name: item.default for item in parameters if type(item.default) in _DATA}
    return Names(positional, next((item.name for item in parameters if item.kind is item.VAR_POSITIONAL), "args"), defaults)


def bound_arguments(names: Names, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name; `self` and `cls` are left out, further positional ones go under the name of the ``*args``."""
    arguments = dict(zip(names.positional, args, strict=False))
    if names.positional[:1] in (["self"], ["cls"]):
        arguments.pop(names.positional[0], None)
    if len(args) > len(names.positional):
        arguments[names.rest] = list(args[len(names.positional) :])
    arguments.update(kwargs)
    for name, value in names.defaults.items():
        arguments.setdefault(name, value)
    return arguments
