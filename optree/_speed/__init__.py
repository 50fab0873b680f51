"""The compiled hot path, where there is one.

`_twins`, in C, does what nearly every call of a few functions does, several times as quick. What is not plain it hands to the Python
function, which alone defines what happens. Where it is missing (no compiler was there, another interpreter, OPTREE_PURE=1 in the
environment) everything works as well, only slower.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from optree._version import __version__

T = TypeVar("T")

if TYPE_CHECKING:
    from optree._speed import _twins
else:
    try:
        from optree._speed import _twins
    except ImportError:
        _twins = None


CONTRACT = 24
"""Rises whenever the two sides expect something else of each other: what was compiled before, in a checkout, is then left alone."""


def usable(module: Any) -> bool:
    """Tell whether a compiled module (None where it is missing) is of this version and wanted."""
    fits = module is not None and (module.version, getattr(module, "CONTRACT", 0)) == (__version__, CONTRACT)
    return fits and not os.environ.get("OPTREE_PURE")


_usable = usable(_twins)
_quickened: list[tuple[type | ModuleType, str]] = []


def prepare(**names: Any) -> bool:
    """Tell the twins the types and functions that they work on; False where there are none, or these are not what they expect."""
    global _usable  # noqa: PLW0603 - found out once, at import
    try:
        if _usable:
            _twins.prepare(names)
    except (LookupError, TypeError, AttributeError):  # another msgspec than any known: it keeps fields elsewhere
        _usable = False
    return _usable


def prepare_journal(journal: type) -> None:
    """Tell the twins the type of journals, which they then write to directly."""
    if _usable:
        with suppress(LookupError, TypeError, AttributeError):  # then records go to it the Python way
            _twins.prepare_journal(journal)


def prepare_calls(**names: Any) -> bool:
    """Tell the twins what calls of decorated functions are made of; False where there are none, or these are not what they expect."""
    if _usable:
        with suppress(LookupError, TypeError, AttributeError):
            _twins.prepare_calls(names)
            return True
    return False


def quicken(owner: type | ModuleType, *names: str) -> None:
    """Replace functions by their twins; each keeps the one it stands for as `__wrapped__`."""
    for name in names:
        setattr(owner, name, _twins.twin(name, getattr(owner, name)))
        _quickened.append((owner, name))


@contextmanager
def plainly() -> Generator[None, None, None]:
    """Put the Python functions back in place within the block, for the whole process: to measure them, and hold the twins against them."""
    twins = [(owner, name, getattr(owner, name)) for owner, name in _quickened]
    for owner, name, twin in twins:
        setattr(owner, name, twin.__wrapped__)
    try:
        yield
    finally:
        for owner, name, twin in twins:
            setattr(owner, name, twin)


def untracked(found: list[T]) -> list[T]:
    """Return a list that will hold only what the collector does not track: it need not look at the list either, where that can be had.

    Else each full collection looks at all nodes of all sessions: 7 ms more for 62,500 ops.
    """
    return _twins.untracked(found) if _usable else found


def presence(texts: list[tuple[str, int]], words: int) -> Callable[[str], int] | None:
    """Return a function that tells which of given texts stand in a text, a bit each, in one pass; None where that is not compiled.

    The texts are ASCII, each with a number below 64, which is that of its bit. Those from the number *words* on are words of names, and
    count where such a name may be given a value; the number before it is that of texts behind which it may be given one by a blank.
    """
    make = getattr(_twins, "presence", None) if usable(_twins) else None
    return make(texts, words) if make is not None else None


def opener(plain: Callable[..., int]) -> Callable[..., int]:
    """Return a function that opens a file as *plain* does, by one call without the interpreter's lock; else *plain* itself."""
    make = getattr(_twins, "opener", None) if usable(_twins) else None
    return make(plain) if make is not None else plain


def compiled() -> bool:
    """Tell whether the compiled hot path is in use."""
    return _usable
