"""Counts and US dollars as providers and programs give them: within bounds, or left out with a sentence that says why."""

from __future__ import annotations

from math import isfinite
from typing import Any, Final, cast

from optree._interrupts import pass_on
from optree._values import text
from optree.redaction import redact

MAX_COUNT: Final = 10**12
"""Largest count that a call can come to, of tokens or of characters: a million of them still add up within 64 bits."""
MAX_DOLLARS: Final = 1e9
"""Most that a call can cost: a million of them still add up to the dollar."""
_LARGEST: Final = 10**18
"""Beyond all bounds: floats cannot hold any whole number."""


def count(value: object, name: str, flaws: list[str]) -> int | None:
    """Return a count; None for a value that is not a number or above `MAX_COUNT`, 0 for one below 0. *flaws* gets what is wrong with it."""
    if value is None:
        return None
    if type(value) is int and 0 <= value <= MAX_COUNT:
        return value
    number = _number(value)
    if number is None or number > MAX_COUNT:
        why = "is no count" if number is None else f"is more than any call can come to ({MAX_COUNT:.0e})"
        flaws.append(f"{name}={_shown(value)} {why}, and is left out")
        return None
    if number < 0:
        flaws.append(f"{name}={_shown(value)} is below 0, and counts as 0")
    return int(max(number, 0))


def dollars(value: object, name: str, flaws: list[str]) -> float | None:
    """Return US dollars, which may be a credit; None for one that is not a number or beyond `MAX_DOLLARS`. *flaws* gets what is wrong."""
    if value is None or (type(value) is float and -MAX_DOLLARS <= value <= MAX_DOLLARS):
        return value
    amount = _number(value)
    if amount is None:
        flaws.append(f"{name}={_shown(value)} is no amount of money: the cost is unknown")
    elif abs(amount) > MAX_DOLLARS:
        flaws.append(f"{name}={_shown(value)} is more than any call can cost ({MAX_DOLLARS:.0e}): the cost is unknown")
        amount = None
    return None if amount is None else float(amount)


def _number(value: object) -> float | None:
    """Return a finite number, also out of a text or a number of another library; None for a truth value and anything else."""
    if type(value) is int:
        return max(-_LARGEST, min(value, _LARGEST))
    try:
        if isinstance(value, bool) or value is None:
            return None
        number = float(cast("Any", value))
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a value's own code may raise anything
        pass_on(error)
        return None
    return number if isfinite(number) else None


def _shown(value: object) -> str:
    shown = redact(text(value))[:40]
    return repr(shown) if issubclass(type(value), str) else shown
