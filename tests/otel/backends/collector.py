"""The OpenTelemetry Collector: OTLP in; a file, another backend, or both out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.otel.backends.binaries import COLLECTOR
from tests.otel.backends.server import Server
from tests.otel.backends.spans import Span, spans_of


class Collector(Server):
    """A running Collector."""

    program = COLLECTOR
    wants = ("otlp-http", "otlp-grpc")

    def __init__(self, folder: Path, to: str = ""):
        """Start it; it writes what it gets to a file, and passes it on if *to* is the address of an OTLP/gRPC receiver."""
        self.to = to
        self.file = folder / "traces.jsonl"
        super().__init__(folder)

    def command(self) -> list[str]:
        """Write its configuration and return its arguments."""
        exporters: dict[str, Any] = {"file": {"path": str(self.file), "append": True, "flush_interval": "50ms"}}
        if self.to:
            exporters["otlp"] = {"endpoint": self.to, "tls": {"insecure": True}}
        protocols = {"grpc": {"endpoint": self.address("otlp-grpc")}, "http": {"endpoint": self.address("otlp-http")}}
        settings = {
            "receivers": {"otlp": {"protocols": protocols}},
            "exporters": exporters,
            "service": {
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": list(exporters)}},
                "telemetry": {"metrics": {"level": "none"}},
            },
        }
        (self.folder / "collector.yaml").write_text(json.dumps(settings))  # JSON is YAML
        return [f"--config=file:{self.folder / 'collector.yaml'}"]

    def batches(self) -> list[dict[str, Any]]:
        """Return what it received so far, a request an item: OTLP's JSON, as its file has it."""
        text = self.file.read_text() if self.file.exists() else ""
        whole, _, _ = text.rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def spans(self) -> list[Span]:
        """Return the spans that it received so far, one that was sent twice twice."""
        return [span for batch in self.batches() for span in spans_of(batch)]
