"""The peers that run beside optree, each doing the same logical work in its own API. All imports are inside: a peer may be missing.

OpenTelemetry keeps its spans in memory and drops each at its end: the cheapest it can do. structlog writes JSON lines through a 64 KiB
buffer, which its own BytesLogger would not. logging and eliot write each line as it comes, as they do when used as documented.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import work
from benchmarks.measure import Job, Variant

FIGURES = {
    "gen_ai.request.model": work.MODEL,
    "gen_ai.usage.input_tokens": work.INPUT,
    "gen_ai.usage.output_tokens": work.OUTPUT,
    "gen_ai.usage.cached_tokens": work.CACHED,
    "cost_usd": work.COST,
    "latency_ms": work.LATENCY,
}
NAMES = {key.replace(".", "_"): value for key, value in FIGURES.items()}
SPAN_EVENTS = 100
"""A span keeps 128 events by default; a new one is taken before that."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer's whole op and its one log line."""

    name: str
    does: str
    op: Variant
    log: Variant


def repeated(logs: list[Callable[[], object]], calls: int) -> Callable[[], None]:
    """Return a loop that calls each of these that often."""

    def loop() -> None:
        for log in logs:
            for _ in range(calls):
                log()

    return loop


def idle_tracer() -> Any:
    """Return a tracer of OpenTelemetry's SDK whose spans go nowhere: its processor does nothing. Raises `ImportError` without the SDK."""
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SpanProcessor())
    return provider.get_tracer("bench")


def opentelemetry(_folder: Path) -> Peer:
    """OpenTelemetry's SDK with a processor that does nothing: spans with events and attributes, no export."""
    tracer = idle_tracer()

    def op(ops: int) -> Job:
        def do() -> None:
            for size in work.turns(ops):
                with tracer.start_as_current_span("turn"):
                    for _ in range(size):
                        with tracer.start_as_current_span("chat gpt-5") as span:
                            fill_span(span)

        return Job(do)

    def log(calls: int) -> Job:
        spans = [tracer.start_span("chat gpt-5") for _ in range(calls // SPAN_EVENTS)]

        def do() -> None:
            for span in spans:
                add = span.add_event
                for _ in range(SPAN_EVENTS):
                    add("log", {"severity": "VRB", "message": work.LOG})

        return Job(do)

    return Peer("OTel SDK, no-op processor", "memory, dropped at the end of the span", op, log)


def fill_span(span: Any) -> None:
    """Record what an op has beside its begin and end."""
    for message in work.LOGS:
        span.add_event("log", {"severity": "VRB", "message": message})
    for chunk in work.CHUNKS:
        span.add_event("reasoning", {"text": chunk})
    span.set_attributes(FIGURES)


def structlog(folder: Path) -> Peer:
    """Use structlog with a JSON renderer (by orjson where it is there), into a buffered file."""
    import structlog as library

    try:
        from orjson import dumps
    except ImportError:
        from json import dumps
    file = (folder / "structlog.jsonl").open("wb", buffering=1 << 16)

    class Buffered:
        def msg(self, line: Any) -> None:
            file.write(line if isinstance(line, bytes) else line.encode())
            file.write(b"\n")

        debug = info = msg

    stamped = library.processors.TimeStamper(fmt="iso", utc=True)
    rendered = library.processors.JSONRenderer(serializer=dumps)
    base = library.wrap_logger(
        Buffered(),
        processors=[library.processors.add_log_level, stamped, rendered],
        wrapper_class=library.make_filtering_bound_logger(10),
        cache_logger_on_first_use=True,
    )

    def op(ops: int) -> Job:
        def do() -> None:
            for number in range(ops):
                logger = base.bind(turn=number // work.OPS_PER_TURN, op=number)
                logger.info("begin", kind="llm", name="chat gpt-5")
                for message in work.LOGS:
                    logger.info(message)
                for chunk in work.CHUNKS:
                    logger.debug("reasoning", text=chunk)
                logger.info("accounting", **FIGURES)
                logger.info("end", status="ok")

        return Job(do, file.flush, lambda: _empty(file))

    def log(calls: int) -> Job:
        info = base.bind(turn=1, op=1).info
        return Job(repeated([lambda: info(work.LOG)], calls), file.flush, lambda: _empty(file))

    return Peer("structlog, JSON lines to a file", "file, through a 64 KiB buffer", op, log)


def logging(folder: Path) -> Peer:
    """The standard library's logging with a FileHandler: text lines."""
    import logging as library

    handler = library.FileHandler(folder / "logging.log", "w")
    handler.setFormatter(library.Formatter("%(asctime)s %(levelname)s %(op)s %(message)s"))
    logger = library.getLogger("optree-bench")
    logger.setLevel(library.DEBUG)
    logger.propagate = False
    logger.addHandler(handler)

    def op(ops: int) -> Job:
        def do() -> None:
            for number in range(ops):
                extra = {"op": number}
                logger.info("begin %s %s", "llm", "chat gpt-5", extra=extra)
                for message in work.LOGS:
                    logger.info(message, extra=extra)
                for chunk in work.CHUNKS:
                    logger.debug("reasoning %s", chunk, extra=extra)
                logger.info("accounting %s", FIGURES, extra=extra)
                logger.info("end %s", "ok", extra=extra)

        return Job(do, handler.flush, lambda: _empty(handler.stream))

    def log(calls: int) -> Job:
        extra = {"op": 1}
        return Job(repeated([lambda: logger.info(work.LOG, extra=extra)], calls), handler.flush, lambda: _empty(handler.stream))

    return Peer("logging, text to a file", "file, one write a line", op, log)


def eliot(folder: Path) -> Peer:
    """Use eliot's actions and messages, as JSON lines in a file."""
    import eliot as library

    file = (folder / "eliot.jsonl").open("wb")
    library.to_file(file)

    def op(ops: int) -> Job:
        def do() -> None:
            for size in work.turns(ops):
                with library.start_action(action_type="turn"):
                    for _ in range(size):
                        with library.start_action(action_type="llm", model=work.MODEL) as action:
                            for message in work.LOGS:
                                action.log(message_type="log", severity="VRB", message=message)
                            for chunk in work.CHUNKS:
                                action.log(message_type="reasoning", text=chunk)
                            action.log(message_type="accounting", **NAMES)

        return Job(do, file.flush, lambda: _empty(file))

    def log(calls: int) -> Job:
        action = library.start_action(action_type="llm", model=work.MODEL)
        line = repeated([lambda: action.log(message_type="log", severity="VRB", message=work.LOG)], calls)
        return Job(line, file.flush, lambda: _empty(file))

    return Peer("eliot, JSON lines to a file", "file, one write a line", op, log)


def _empty(file: Any) -> None:
    file.flush()
    file.seek(0)
    file.truncate()


PEERS: dict[str, Callable[[Path], Peer]] = {
    "opentelemetry-sdk": opentelemetry,
    "structlog": structlog,
    "logging": logging,
    "eliot": eliot,
}
"""By the name of the distribution to install."""


def installed(folder: Path) -> tuple[list[Peer], list[str]]:
    """Return the peers that are here, and the names of those that are not. Their files lie in *folder*."""
    here: list[Peer] = []
    missing: list[str] = []
    for name, make in PEERS.items():
        try:
            here.append(make(folder))
        except ImportError:
            missing.append(name)
    return here, missing
