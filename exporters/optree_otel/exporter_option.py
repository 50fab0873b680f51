"""What takes spans in place of a collector's address: exporters and processors of opentelemetry-sdk, by option ``exporter``.

The SDK is not loaded for it: where nobody has, nobody can have made one of its objects.
"""

from __future__ import annotations

import sys
from typing import Any, Final, cast

STOCK: Final = "sdk"
"""The word for the stock OTLP exporter inside the SDK's batch processor."""
_EXPORTER: Final = "opentelemetry.sdk.trace.export", "SpanExporter"
_PROCESSOR: Final = "opentelemetry.sdk.trace", "SpanProcessor"
_METHODS: Final = ("on_end", "force_flush", "shutdown")
"""What a processor has that is no subclass: a tracer provider takes such a one too, and LangSmith's is one."""
Exporters = tuple[Any, ...]
"""Exporters, processors, and the word `STOCK`."""


def exporters_of(option: object) -> Exporters | None:
    """Return what an option names, one or a list of them; None if something of it takes no spans."""
    exporters: Exporters = tuple(cast("list[Any]", option)) if isinstance(option, (list, tuple)) else (option,)
    return (
        exporters
        if exporters and all(exporter == STOCK or is_exporter(exporter) or is_processor(exporter) for exporter in exporters)
        else None
    )


def is_exporter(value: object) -> bool:
    """Tell whether this is a SpanExporter."""
    return _is(value, *_EXPORTER)


def is_processor(value: object) -> bool:
    """Tell whether this is a SpanProcessor, or has what is called of one."""
    return _is(value, *_PROCESSOR) or all(callable(getattr(type(value), method, None)) for method in _METHODS)


def name(exporter: object) -> str:
    """Return what tells them apart in messages, and on disk: their class, what is in them, and the address that they send to, if any."""
    inner, address = getattr(exporter, "span_exporter", None), getattr(exporter, "_endpoint", None)
    inside = f"({name(inner)})" if is_exporter(inner) else f"({address})" if isinstance(address, str) else ""
    return f"{type(exporter).__module__}.{type(exporter).__qualname__}{inside}"


def _is(value: object, module: str, kind: str) -> bool:
    cls = getattr(sys.modules.get(module), kind, None)
    return cls is not None and isinstance(value, cls)
