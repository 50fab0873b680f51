"""Phoenix and MLflow have every node of a session as one span, with its parent: `make test-others`, not in each run."""

from base64 import b64decode

import pytest

from tests.otel.backends.waiting import wait_for
from tests.otel.mirroring import expected, loaded, run, trace_of


def family(spans, span_id, parent_id):
    """Return the spans' ids with those of their parents, as hex or nothing."""
    return sorted((span_id(span), parent_id(span) or "") for span in spans)


@pytest.mark.others
def test_phoenix_has_the_tree(phoenix, tmp_path):
    """Each node is exactly one span below its parent's in the program's project, and has its kind for Phoenix's page."""
    txn, _ = run(["everything"], tmp_path, phoenix.http, OPTREE_OTEL_PROFILE="phoenix", OTEL_SERVICE_NAME="agents")
    wanted = sorted((span.span_id, span.parent_id) for span in expected(loaded(tmp_path, txn).session))
    found = wait_for(lambda: spans if len(spans := phoenix.spans("agents")) >= len(wanted) else [], 60)
    assert wanted == family(found, lambda span: span["context"]["span_id"], lambda span: span["parent_id"])
    assert {trace_of(txn)} == {span["context"]["trace_id"] for span in found}
    assert {"AGENT", "CHAIN", "LLM", "TOOL"} == {span["span_kind"] for span in found}


@pytest.mark.others
def test_mlflow_has_the_tree(mlflow, tmp_path):
    """Each node is exactly one span below its parent's in one trace."""
    more = {"OPTREE_OTEL_PROFILE": "mlflow", "OTEL_EXPORTER_OTLP_HEADERS": "x-mlflow-experiment-id=0"}
    txn, _ = run(["everything"], tmp_path, mlflow.http, **more)
    wanted = sorted((span.span_id, span.parent_id) for span in expected(loaded(tmp_path, txn).session))
    found = wait_for(lambda: spans if len(spans := mlflow.spans(trace_of(txn))) >= len(wanted) else [], 60)
    assert wanted == family(
        found, lambda span: b64decode(span["span_id"]).hex(), lambda span: b64decode(span.get("parent_span_id", "")).hex()
    )
