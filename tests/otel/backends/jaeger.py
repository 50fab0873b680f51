"""Jaeger v2: OTLP in, traces kept in memory, asked over its own API."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.otel.backends.ask import ask
from tests.otel.backends.binaries import JAEGER
from tests.otel.backends.server import Server
from tests.otel.backends.spans import Span, spans_of
from tests.otel.backends.waiting import wait_for

WARNINGS = "@jaeger@warnings"
"""The attribute by which Jaeger tells what it mended in a span, or finds wrong with it."""
CONFIGURATION = """\
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines: {{traces: {{receivers: [otlp], processors: [batch], exporters: [jaeger_storage_exporter]}}}}
  telemetry: {{metrics: {{level: none}}}}
extensions:
  jaeger_storage: {{backends: {{mem: {{memory: {{max_traces: 100000}}}}}}}}
  jaeger_query: {{storage: {{traces: mem}}, ui: {{assets_path: "{ui}"}}, http: {{endpoint: "{query}"}}, grpc: {{endpoint: "{query_grpc}"}}}}
receivers: {{otlp: {{protocols: {{grpc: {{endpoint: "{grpc}"}}, http: {{endpoint: "{http}"}}}}}}}}
processors: {{batch: {{timeout: 20ms}}}}
exporters: {{jaeger_storage_exporter: {{trace_storage: mem}}}}
"""


class Jaeger(Server):
    """A running Jaeger."""

    program = JAEGER
    wants = ("otlp-http", "otlp-grpc", "query", "query-grpc")

    @property
    def ui(self) -> str:
        """The URL of its pages: those in the folder OPTREE_JAEGER_UI, else its own, for which Go's module has only a placeholder."""
        return f"http://{self.address('query')}"

    def command(self) -> list[str]:
        """Write its configuration and return its arguments."""
        settings = CONFIGURATION.format(
            http=self.address("otlp-http"),
            grpc=self.address("otlp-grpc"),
            query=self.address("query"),
            query_grpc=self.address("query-grpc"),
            ui=os.environ.get("OPTREE_JAEGER_UI", ""),
        )
        (self.folder / "jaeger.yaml").write_text(settings)
        return [f"--config={self.folder / 'jaeger.yaml'}"]

    def trace(self, trace_id: str) -> list[Span]:
        """Return the spans of a trace (32 hex digits) as far as they have arrived, as they are stored; empty if there are none."""
        return _spans(self._ask(f"/api/v3/traces/{trace_id}", raw_traces="true"))

    def shown(self, trace_id: str) -> list[Span]:
        """Return the spans of a trace as Jaeger's pages show them, with its warnings on what it finds wrong with the whole.

        Ask when the trace is whole: the memory store keeps the warnings of each such answer, also that a parent is missing.
        """
        return _spans(self._ask(f"/api/v3/traces/{trace_id}"))

    def wait_for_trace(self, trace_id: str, spans: int, seconds: float = 20) -> list[Span]:
        """Return the spans of a trace as soon as there are at least so many.

        Raises:
            TimeoutError: There were fewer, after so many seconds.

        """
        return wait_for(lambda: found if len(found := self.trace(trace_id)) >= spans else [], seconds)

    def services(self) -> list[str]:
        """Return the names of all services, sorted."""
        return sorted(self._ask("/api/v3/services").get("services", []))

    def operations(self, service: str) -> list[str]:
        """Return the span names of a service, sorted."""
        return sorted({operation["name"] for operation in self._ask("/api/v3/operations", service=service).get("operations", [])})

    def find(self, service: str, operation: str = "", depth: int = 100) -> dict[str, list[Span]]:
        """Return the traces that a service has a span in, by trace id: at most *depth*, of those that began in the last week."""
        now = datetime.now(UTC)
        query: dict[str, str | int] = {
            "query.service_name": service,
            "query.operation_name": operation,
            "query.start_time_min": (now - timedelta(days=7)).isoformat(),
            "query.start_time_max": (now + timedelta(days=1)).isoformat(),
            "query.num_traces": depth,
            "query.raw_traces": "true",
        }
        found: dict[str, list[Span]] = {}
        for span in _spans(self._ask("/api/v3/traces", **query)):
            found.setdefault(span.trace_id, []).append(span)
        return found

    def _ask(self, path: str, **query: str | int) -> Any:
        return ask(self.address("query"), path, **query) or {}


def _spans(answer: dict[str, Any]) -> list[Span]:
    spans = spans_of(answer.get("result", {}))
    for span in spans:
        span.warnings = span.attributes.pop(WARNINGS, [])
    return spans
