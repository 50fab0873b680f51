"""Log records: those that the stock encoder writes, with the ids of the op's span."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord as Sent
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import TraceFlags

import optree
from optree._builder import SessionTreeBuilder
from optree._nodes import LogEntry
from optree.testing import Ticking
from optree_otel.signals import names
from optree_otel.signals.limits import PROFILES
from optree_otel.signals.logs import DETAILS, OtlpLog, details, encode, encode_record, heartbeat, log_records
from optree_otel.signals.protobuf import KeyValues
from optree_otel.signals.resource import request
from optree_otel.signals.scope import SpanScope, trace_id
from tests.otel.tree_of_all import TXN, tree_of_all

SECRET = "sk-abcdefghijklmnop1234"
DEFAULT = PROFILES["default"]
RESOURCE = Resource({"service.name": "researcher"})
SCOPE = InstrumentationScope("optree", optree.__version__)
text = st.text(max_size=200)
values = text | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | st.none() | st.lists(text, max_size=3)


def told(record) -> dict:
    """Return the attributes of a record that was sent."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in record.attributes}


@settings(deadline=None)
@given(
    times=st.tuples(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1)),
    severity=st.sampled_from(list(SeverityNumber)),
    words=st.tuples(text, text),
    body=values,
    attributes=st.dictionaries(text, values, max_size=4),
    ids=st.tuples(st.integers(0, (1 << 128) - 1), st.integers(0, (1 << 64) - 1)),
    sampled=st.booleans(),
)
def test_a_record_has_the_bytes_of_the_stock_encoder(times, severity, words, body, attributes, ids, sampled):
    """All that a record can hold, resource and scope included."""
    stock = LogRecord(
        timestamp=times[0], observed_timestamp=times[1], severity_number=severity, severity_text=words[0], body=body,
        attributes=attributes, event_name=words[1],
    )  # fmt: skip
    stock.trace_id, stock.span_id, stock.trace_flags = ids[0], ids[1], TraceFlags(int(sampled))
    readable = ReadableLogRecord(stock, RESOURCE, SCOPE)
    ours = OtlpLog(
        times[0], severity.value, words[0], body, list(readable.log_record.attributes.items()),
        ids[0].to_bytes(16) if ids[0] else b"", ids[1].to_bytes(8) if ids[1] else b"", words[1], times[1], int(sampled),
    )  # fmt: skip
    resource = KeyValues(1).encode(list(RESOURCE.attributes.items()))
    assert encode_logs([readable]).SerializeToString() == request([(resource, [encode_record(ours)])])


def test_an_ops_lines_carry_the_ids_of_its_span():
    """With severity, direction and details; one that was sent before is not sent again."""
    builder = tree_of_all()
    op = builder.node.turns[0].ops[0]
    scope = SpanScope(TXN, trace_id(TXN), builder.node)
    found = [Sent.FromString(data) for data in log_records(op, scope)]
    assert [("asked", 5, "VRB"), ("slow", 13, "WRN")] == [
        (record.body.string_value, record.severity_number, record.severity_text) for record in found
    ]
    assert {(trace_id(TXN), scope.span_id(op.op_id))} == {(record.trace_id, record.span_id) for record in found}
    assert [int(entry.timestamp * 1e6) for entry in op.logs] == [record.time_unix_nano for record in found]
    first = told(found[0])
    assert ("request", {"url": "https://api.openai.com/v1"}) == (first[names.LOG_DIRECTION], json.loads(first[names.LOG_DETAILS]))
    assert ["slow"] == [Sent.FromString(data).body.string_value for data in log_records(op, scope, 1)]


@pytest.mark.parametrize("message", [SECRET, f"Bearer {SECRET}", "\ud800", "x" * 100_000, ""])
def test_a_line_is_made_fit_to_leave(message):
    """Without credentials, cut with a mark, and never refused."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    op = builder.begin_op("tool", "t")
    op.end()
    op.node.logs = [LogEntry(1.0, "??", message, None, b'{"token":"%b"}' % SECRET.encode())]
    (data,) = log_records(op.node, SpanScope(TXN, trace_id(TXN), builder.node))
    found = Sent.FromString(data)
    assert SECRET.encode() not in data
    assert DEFAULT.value_bytes >= len(found.body.string_value.encode())
    assert (9, "[REDACTED]") == (found.severity_number, json.loads(told(found)[names.LOG_DETAILS])["token"])


def test_a_bad_record_costs_nothing_else():
    """Times, severities and ids that are none are left out."""
    found = Sent.FromString(encode(OtlpLog(-5, 99, "x", float("nan"), [("a", b"x")], b"short", bytes(8), SECRET), DEFAULT))
    assert (0, 0, b"", b"", "nan", "[REDACTED]") == (
        found.time_unix_nano, found.severity_number, found.trace_id, found.span_id, found.body.string_value, found.event_name
    )  # fmt: skip


def test_a_heartbeat_tells_what_is_open_and_used():
    """Of a session: turns, totals, and the op that it is in."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    builder.begin_turn()
    builder.begin_op("llm", "openai:m").account(input_tokens=7, cache_read_tokens=2, cost_usd=0.5)
    scope = SpanScope(TXN, trace_id(TXN), builder.node)
    found = Sent.FromString(heartbeat(builder.node, scope, 2_000.0))
    expected = {names.TURNS: 1, names.TOTAL + "input_tokens": 7, names.TOTAL + "cost_usd": 0.5, names.CURRENT_OP: "1.1 openai:m"}
    assert expected == {key: told(found)[key] for key in expected}
    assert ("optree.heartbeat", scope.session_span_id, 2_000_000_000) == (found.event_name, found.span_id, found.time_unix_nano)


def test_a_calls_content_can_go_to_a_record():
    """As the event that the conventions name, with the fields that the span would have."""
    builder = tree_of_all()
    op = builder.node.turns[0].ops[0]
    scope = SpanScope(TXN, trace_id(TXN), builder.node, pool=builder.core.pool)
    found = Sent.FromString(details(op, scope))
    assert (DETAILS, scope.span_id(op.op_id)) == (found.event_name, found.span_id)
    assert {names.INPUT_MESSAGES, names.OUTPUT_MESSAGES, names.TOOL_DEFINITIONS, names.REQUEST_MODEL, names.INPUT_TOKENS} <= set(
        told(found)
    )


def test_records_of_services_are_groups_of_one_request():
    """The request for spans is that for log records."""
    builder = tree_of_all()
    lines = log_records(builder.node.turns[0].ops[0], SpanScope(TXN, trace_id(TXN), builder.node))
    found = ExportLogsServiceRequest.FromString(request([(b"", lines)]))
    assert ["asked", "slow"] == [record.body.string_value for record in found.resource_logs[0].scope_logs[0].log_records]
