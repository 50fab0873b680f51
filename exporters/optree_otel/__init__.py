"""The tree as OpenTelemetry traces: out to a collector while it runs, and in from other programs' spans.

In come the sessions of this process (`make` is the entry point of the live mirror), saved trees (`exporter.py`) and spans (`incoming`);
out go requests to collectors, and trees. Nothing here changes a tree or the program's own TracerProvider. Everything heavy is imported
where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optree_otel.incoming.processor import OpTreeSpanProcessor as OpTreeSpanProcessor
    from optree_otel.mirror import OtelMirror


def make(options: Mapping[str, Any]) -> OtelMirror | None:
    """Return the mirror for these options (`optree_otel.settings.OPTIONS`) and the environment; None if spans are switched off.

    Raises `SetupError` if they are not, and have no possible destination.
    """
    from optree import SetupError
    from optree_otel.mirror import OtelMirror
    from optree_otel.settings import resolve

    settings = resolve(options)
    if settings.traces is None and settings.problems and not (settings.disabled or settings.traces_off):
        raise SetupError(f"otel has nowhere to send to: {'; '.join(settings.problems)}")
    return None if settings.disabled or settings.traces is None else OtelMirror(settings, options)


def wrong_options(options: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with options, whatever the environment says: a sentence each."""
    from optree_otel.settings import resolve

    assumed = {"OTEL_TRACES_SAMPLER": "traceidratio"}  # else the sampler's argument is not read
    return list(resolve(options, assumed).problems)


def __getattr__(name: str) -> Any:
    if name == "OpTreeSpanProcessor":
        from optree_otel.incoming.processor import OpTreeSpanProcessor

        return OpTreeSpanProcessor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
