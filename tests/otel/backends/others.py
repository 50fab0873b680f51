"""Phoenix and MLflow, each of an environment of its own (`make test-others` makes them): OTLP in over HTTP, spans asked over HTTP."""

from __future__ import annotations

from typing import Any

from tests.otel.backends.ask import ask
from tests.otel.backends.binaries import MLFLOW, PHOENIX
from tests.otel.backends.server import HOST, Server, listens


class Phoenix(Server):
    """A running Phoenix, with its data in a folder."""

    program = PHOENIX
    wants = ("otlp-http", "otlp-grpc")

    def command(self) -> list[str]:
        """Return its arguments."""
        return ["serve"]

    def environment(self) -> dict[str, str]:
        """Return its settings, which are variables."""
        return {
            "PHOENIX_HOST": HOST,
            "PHOENIX_PORT": str(self.ports["otlp-http"]),
            "PHOENIX_GRPC_PORT": str(self.ports["otlp-grpc"]),
            "PHOENIX_WORKING_DIR": str(self.folder),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }

    def ready(self) -> bool:
        """Whether it answers."""
        return listens(self.ports["otlp-http"])

    def spans(self, project: str) -> list[dict[str, Any]]:
        """Return a project's spans as it gives them; empty as long as there is no such project."""
        answer = ask(self.address("otlp-http"), f"/v1/projects/{project}/spans", limit=1000)
        return answer["data"] if answer else []


class MLflow(Server):
    """A running MLflow, with its data in a folder."""

    program = MLFLOW
    wants = ("otlp-http",)

    def command(self) -> list[str]:
        """Return its arguments."""
        data = ["--backend-store-uri", f"sqlite:///{self.folder / 'data'}", "--artifacts-destination", str(self.folder / "artifacts")]
        return ["server", "--host", HOST, "--port", str(self.ports["otlp-http"]), "--workers", "1", *data]

    def ready(self) -> bool:
        """Whether it says so."""
        try:
            return ask(self.address("otlp-http"), "/api/2.0/mlflow/experiments/get", experiment_id="0") is not None
        except (OSError, RuntimeError):
            return False

    def spans(self, trace_id: str) -> list[dict[str, Any]]:
        """Return a trace's spans as it gives them, ids in base64; empty as long as it has none."""
        answer = ask(self.address("otlp-http"), "/api/3.0/mlflow/traces/get", trace_id=f"tr-{trace_id}")
        return answer["trace"].get("spans", []) if answer else []
