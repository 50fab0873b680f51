"""The conventions' metrics: what the stock SDK would count and write."""

import threading

import msgspec
import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource

import optree
from optree._builder import SessionTreeBuilder
from optree.testing import Ticking
from optree_otel.signals import metrics, names
from optree_otel.signals.metrics import (
    DURATION,
    DURATION_BOUNDS,
    FIRST_CHUNK,
    TOKEN_BOUNDS,
    TOKENS,
    Meter,
    MetricInstrument,
    Point,
    encode_metric,
    encode_point,
)
from optree_otel.signals.protobuf import KeyValues
from optree_otel.signals.resource import request
from tests.otel.tree_of_all import tree_of_all

VALUES = [0, 0.005, 0.01, 0.02, 1, 3, 4, 5, 70_000_000, 1e12]


def call(status="ok", error=None, name="openai:m", **figures):
    """Return the node of one model call that took 2 s."""
    builder = SessionTreeBuilder("agent", now=Ticking())
    op = builder.begin_op("llm", name)
    op.account(**figures)
    op.end(status, error)
    op.node.ended_at = op.node.started_at + 2000
    return op.node


def points(data: bytes) -> list[tuple[dict, int, float]]:
    """Return a metric's points as (attributes, count, sum)."""
    return [
        ({pair.key: pair.value.string_value or pair.value.bool_value for pair in point.attributes}, point.count, point.sum)
        for point in Metric.FromString(data).histogram.data_points
    ]


@pytest.mark.parametrize("instrument", [TOKENS, DURATION, FIRST_CHUNK])
@pytest.mark.parametrize("attributes", [{}, {"gen_ai.token.type": "input", "gen_ai.request.model": "m"}])
def test_a_histogram_has_the_bytes_of_the_stock_sdk(instrument: MetricInstrument, attributes):
    """The same values given to the stock SDK and to ours end as the same request, byte for byte."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], Resource({"service.name": "x"}), shutdown_on_exit=False)
    stock = provider.get_meter("optree", optree.__version__).create_histogram(
        instrument.name, instrument.unit, instrument.description, explicit_bucket_boundaries_advisory=list(instrument.bounds)
    )
    ours = Point([0] * (len(instrument.bounds) + 1))
    for value in VALUES:
        stock.record(float(value), attributes)
        ours.add(float(value), instrument.bounds)
    data = reader.get_metrics_data()
    point = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points[0]
    encoded = encode_point(ours, instrument, list(attributes.items()), point.start_time_unix_nano, point.time_unix_nano)
    resource = KeyValues(1).encode([("service.name", "x")])
    assert encode_metrics(data).SerializeToString() == request([(resource, [encode_metric(instrument, [encoded])])])
    provider.shutdown()


def test_the_boundaries_are_those_of_the_conventions():
    """Source: semantic-conventions-genai, docs/gen-ai/gen-ai-metrics.md."""
    assert (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864) == TOKEN_BOUNDS
    assert (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92) == DURATION_BOUNDS


def test_what_overflows_is_counted_in_one_point(monkeypatch):
    """However many agents and models there are, the points are few, those there are go on, and nothing that was counted goes missing."""
    monkeypatch.setattr(metrics, "MOST_POINTS", 10)
    meter = Meter(start_ns=1)
    for number in range(100):
        meter.record(call(name=f"openai:m{number}", input_tokens=3), f"agent-{number // 2}")
    for _ in range(5):
        meter.record(call(name="openai:m0", input_tokens=3), "agent-0")
    found: dict[str, list[tuple[dict, int, float]]] = {}
    for kinds in meter.encoded(2).values():
        for data in kinds:
            found.setdefault(Metric.FromString(data).name, []).extend(points(data))
    durations, tokens = found[names.OPERATION_DURATION], found[names.TOKEN_USAGE]
    assert (105, 210.0) == (sum(count for _, count, _ in durations), sum(total for *_, total in durations))
    assert (210, 315.0) == (sum(count for _, count, _ in tokens), sum(total for *_, total in tokens))
    of_m0 = [[count for told, count, _ in kind if told.get(names.REQUEST_MODEL) == "m0"] for kind in (durations, tokens)]
    assert [[6], [6, 6]] == of_m0
    assert (10, 10) == tuple(sum(names.OVERFLOW not in told for told, *_ in kind) for kind in (durations, tokens))
    assert 2 <= sum(names.OVERFLOW in told for told, *_ in durations + tokens) <= 10


def test_tokens_and_durations_are_counted_by_service_and_model():
    """Input tokens with the cached ones; each kind of token is a point of its own."""
    meter = Meter(start_ns=1)
    meter.record(call(input_tokens=10, cache_read_tokens=90, output_tokens=7), "planner")
    meter.record(call(input_tokens=50, output_tokens=3), "planner")
    meter.record(call(input_tokens=1, output_tokens=1), "reader")
    about = {names.OPERATION: "chat", names.PROVIDER: "openai", names.REQUEST_MODEL: "m"}
    found = meter.encoded(2)
    assert ["planner", "reader"] == sorted(found)
    assert [[(about, 2, 4.0)], [({**about, names.TOKEN_TYPE: "input"}, 2, 150.0), ({**about, names.TOKEN_TYPE: "output"}, 2, 10.0)]] == [
        points(data) for data in found["planner"]
    ]


def test_the_time_to_the_first_chunk_is_counted():
    """In seconds, of calls whose answers were streamed alone."""
    meter = Meter(start_ns=1)
    for seconds in (0.5, 0.25, None):
        node = call()
        if seconds is not None:
            node.attributes_json = msgspec.Raw(msgspec.json.encode({"time_to_first_chunk": seconds}))
        meter.record(node, "x")
    found = {Metric.FromString(data).name: points(data) for data in meter.encoded(2)["x"]}
    [(about, count, total)] = found[names.TIME_TO_FIRST_CHUNK]
    assert (2, 0.75, "m", 3) == (count, total, about[names.REQUEST_MODEL], found[names.OPERATION_DURATION][0][1])


def test_it_counts_from_its_start_on():
    """Cumulative: a second look shows all, from the same start to a later time."""
    meter = Meter(start_ns=1)
    for now in (5, 9):
        meter.record(call(), "x")
        point = Metric.FromString(meter.encoded(now)["x"][0]).histogram.data_points[0]
        assert (1, now) == (point.start_time_unix_nano, point.time_unix_nano)
    assert 2 == point.count


def test_a_failed_call_counts_under_its_error():
    """For durations; tokens have no error."""
    meter = Meter(start_ns=1)
    meter.record(call("failed", "TimeoutError: slow", input_tokens=3), "x")
    duration, tokens = meter.encoded(2)["x"]
    assert [("TimeoutError", False)] == [(points(duration)[0][0][names.ERROR_TYPE], names.ERROR_TYPE in points(tokens)[0][0])]


def test_a_call_without_known_tokens_counts_none():
    """Where usage is not known it must not be reported."""
    builder = SessionTreeBuilder("agent", now=Ticking())
    op = builder.begin_op("llm", "openai:m")
    op.end()
    meter = Meter(start_ns=1)
    meter.record(op.node, "x")
    assert [names.OPERATION_DURATION] == [Metric.FromString(data).name for data in meter.encoded(2)["x"]]


def test_only_ended_model_calls_are_counted():
    """Tools, sub-agents, steps and open calls are passed over."""
    meter = Meter(start_ns=1)
    for op in tree_of_all().node.turns[0].ops[1:]:
        meter.record(op, "x")
    meter.record(SessionTreeBuilder("agent").begin_op("llm", "m").node, "x")
    assert {} == meter.encoded(2)


def test_any_thread_may_record():
    """Nothing is lost between them."""
    meter, node = Meter(start_ns=1), call(input_tokens=1)
    threads = [threading.Thread(target=lambda: [meter.record(node, "x") for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 800 == points(meter.encoded(2)["x"][0])[0][1]


KEYS = ("AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE")


def answered_by(model):
    """Return the node of a call that another model answered than the one that was asked."""
    builder = SessionTreeBuilder("agent", now=Ticking())
    op = builder.begin_op("llm", "openai:m")
    op.account(input_tokens=3, actual_model=model)
    op.end()
    return op.node


@pytest.mark.parametrize(
    ("service", "one"),
    [
        ("x", lambda key: call(name=f"openai:{key}", input_tokens=3)),
        ("x", lambda key: call(name=f"{key}:m", input_tokens=3)),
        ("x", answered_by),
        ("x", lambda key: call("failed", f"{key}: no", input_tokens=3)),
        ("", lambda _: call(input_tokens=3)),
    ],
    ids=["model", "provider", "answering model", "error", "service"],
)
def test_labels_hold_no_credentials(service, one):
    """Names may be anything: those that are hidden are one, whose figures are added up, in one resource."""
    meter = Meter(start_ns=1)
    for key in KEYS:
        meter.record(one(key), service or key)
    [(named, metrics)] = meter.encoded(2).items()
    assert [[2], [2, 2]] == [[count for _, count, _ in points(data)] for data in metrics]
    assert [] == [key for key in KEYS for data in (named.encode(), *metrics) if key.encode() in data]
