"""A real Jaeger beside the demo: the run is mirrored to it live, and afterwards it is asked for the trace.

`make demo-jaeger` builds one first; `make demo` takes one that is there: OPTREE_JAEGER, or what `make backends` has built.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import optree
from optree._ids import trace_id

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.otel.backends.binaries import MissingError
from tests.otel.backends.jaeger import Jaeger

WAIT_SECONDS = 20


class Beside:
    """What Jaeger has of one session."""

    def __init__(self, jaeger: Jaeger, txn: str) -> None:
        self._jaeger = jaeger
        self._trace = trace_id(txn)

    def address(self) -> str:
        """Where to look: Jaeger's page, or, of a Jaeger that was built without its pages, its answer in JSON."""
        has_pages = os.environ.get("OPTREE_JAEGER") or os.environ.get("OPTREE_JAEGER_UI")
        return f"{self._jaeger.ui}/{'trace' if has_pages else 'api/traces'}/{self._trace}"

    def count(self) -> int:
        """How many spans Jaeger has now."""
        return len(self._jaeger.trace(self._trace))

    def checks(self, loaded: optree.Loaded) -> dict[str, bool]:
        """Compare Jaeger's trace with the tree: each node exactly one span, below its parent, with nothing to warn of."""
        sessions = list(optree.walk_sessions(loaded.session))
        nodes = Counter(("session", session.path) for session in sessions)
        nodes.update(("turn", turn.path) for session in sessions for turn in session.turns)
        nodes.update(("session_op" if op.kind == "session" else op.kind, op.path) for _, _, op in optree.walk_ops(loaded.session))
        with suppress(TimeoutError):
            self._jaeger.wait_for_trace(self._trace, nodes.total(), WAIT_SECONDS)
        spans = self._jaeger.shown(self._trace)
        told = Counter((span.attributes["optree.kind"], span.attributes["optree.path"]) for span in spans)
        ids = {span.span_id for span in spans}
        roots = sum(not span.parent_id for span in spans)
        orphans = sum(bool(span.parent_id) and span.parent_id not in ids for span in spans)
        warnings = [f"{span.name}: {warning}" for span in spans for warning in span.warnings]
        return {
            f"Jaeger has {len(spans)} spans in one trace, the tree {nodes.total()} nodes, each node exactly one span": told == nodes,
            f"of these spans {roots} is the root, {orphans} are without their parent": (roots, orphans) == (1, 0),
            f"Jaeger warns of {'; '.join(warnings) or 'nothing'}": not warnings,
        }


@contextmanager
def jaeger_beside(txn: str, *, must: bool) -> Iterator[Beside | None]:
    """Start a Jaeger, and let programs that are started from here mirror to it; None where there is none, unless there *must* be one."""
    with ExitStack() as running:
        try:
            jaeger = running.enter_context(_started(Path(running.enter_context(tempfile.TemporaryDirectory()))))
        except (MissingError, RuntimeError) as missing:
            if must:
                raise SystemExit(f"demo: {missing}") from missing
            yield None
            return
        os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.http, "OPTREE_OTEL_PROFILE": "jaeger"}
        yield Beside(jaeger, txn)


def _started(folder: Path) -> Jaeger:
    """Start a Jaeger; raises `MissingError` if there is none, or nothing to send with."""
    if importlib.util.find_spec("requests") is None:
        raise MissingError("optree is installed without its extra for OpenTelemetry: pip install 'optree-tracing[otel]'")
    return Jaeger(folder)
