"""The compiled inner loops of OTLP's bytes, where there are any: `_quick`, in C. They return None for what they leave to Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from optree import LogEntry
from optree.exporting import usable_accelerator

if TYPE_CHECKING:
    from optree_otel import _quick
else:
    try:
        from optree_otel import _quick
    except ImportError:
        _quick = None

attributes: Callable[[Any, Mapping[Any, bytes], Mapping[str, list[bytes]]], bytes | None] | None = (
    _quick.attributes if usable_accelerator(_quick) else None
)
"""The bytes of attributes, given the pairs, what was written of short texts, and what stands before numbers by key and size."""


def log_lines(fronts: dict[str, bytes], key: bytes) -> Callable[[Any, int], bytes | None] | None:
    """Return the function that writes log lines as events, given what stands between time and text by severity, and the text's key."""
    if not usable_accelerator(_quick):
        return None
    try:
        _quick.prepare(LogEntry, UNSET, fronts, key)
    except (TypeError, AttributeError):  # another msgspec than any known: it keeps fields elsewhere
        return None
    return _quick.log_lines
