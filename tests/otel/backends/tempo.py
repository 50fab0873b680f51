"""Grafana Tempo: OTLP in, traces asked by id or by TraceQL. It is not built here: the tests use one that is on the machine."""

from __future__ import annotations

import json

from tests.otel.backends.ask import ask, get
from tests.otel.backends.binaries import TEMPO
from tests.otel.backends.server import HOST, Server, listens
from tests.otel.backends.spans import Span, spans_of
from tests.otel.backends.waiting import wait_for


class Tempo(Server):
    """A running Tempo."""

    program = TEMPO
    wants = ("otlp-http", "otlp-grpc", "query", "internal", "gossip")

    def command(self) -> list[str]:
        """Write its configuration and return its arguments."""
        protocols = {"grpc": {"endpoint": self.address("otlp-grpc")}, "http": {"endpoint": self.address("otlp-http")}}
        settings = {
            "server": {
                "http_listen_address": HOST,
                "http_listen_port": self.ports["query"],
                "grpc_listen_address": HOST,
                "grpc_listen_port": self.ports["internal"],
            },
            "memberlist": {"bind_addr": [HOST], "bind_port": self.ports["gossip"]},
            "distributor": {"receivers": {"otlp": {"protocols": protocols}}},
            "live_store": {
                "max_trace_idle": "1s",  # with the next line: else a search sees a trace after some 11 s only
                "flush_check_period": "1s",
                "wal": {"path": str(self.folder / "live")},  # here and below: else in a folder that all Tempos of the machine share
                "shutdown_marker_dir": str(self.folder / "marker"),
            },
            "query_frontend": {"query_end_cutoff": "0s"},  # else a search leaves out the last 30 s
            "backend_scheduler": {"local_work_path": str(self.folder / "work")},
            "storage": {
                "trace": {"backend": "local", "wal": {"path": str(self.folder / "wal")}, "local": {"path": str(self.folder / "blocks")}}
            },
            "usage_report": {"reporting_enabled": False},
        }
        (self.folder / "tempo.yaml").write_text(json.dumps(settings))  # JSON is YAML
        return [f"-config.file={self.folder / 'tempo.yaml'}"]

    def ready(self) -> bool:
        """Whether it says so."""
        try:
            return (
                get(self.address("query"), "/ready") is not None and listens(self.ports["otlp-http"]) and listens(self.ports["otlp-grpc"])
            )
        except (OSError, RuntimeError):
            return False

    def trace(self, trace_id: str) -> list[Span]:
        """Return the spans of a trace (32 hex digits) as far as they have arrived; empty if there are none."""
        answer = ask(self.address("query"), f"/api/v2/traces/{trace_id}")
        return spans_of(answer["trace"]) if answer else []

    def wait_for_trace(self, trace_id: str, spans: int, seconds: float = 20) -> list[Span]:
        """Return the spans of a trace as soon as there are at least so many.

        Raises:
            TimeoutError: There were fewer, after so many seconds.

        """
        return wait_for(lambda: found if len(found := self.trace(trace_id)) >= spans else [], seconds)

    def search(self, traceql: str, limit: int = 100) -> dict[str, list[str]]:
        """Return the ids of the spans that a TraceQL query finds, by trace id: at most *limit* traces, with as many spans each."""
        answer = ask(self.address("query"), "/api/search", q=traceql, limit=limit, spss=limit)
        return {
            trace["traceID"].zfill(32): [span["spanID"].zfill(16) for found in trace.get("spanSets", []) for span in found["spans"]]
            for trace in answer.get("traces", [])
        }
