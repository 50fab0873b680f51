"""A Jaeger's own JSON, as its page downloads it and `/api/traces` answers."""

import json

import pytest

from optree import FormatError
from optree_otel.incoming import InEvent, InSpan, read, sessions
from optree_otel.incoming.spans import CLIENT, ERROR, OK
from tests.otel.backends.ask import get
from tests.otel.incoming.made import TRACE
from tests.otel.incoming.test_own import nodes, times
from tests.otel.mirroring import expected, loaded, run, trace_of

MICROSECONDS = 0.0021
"""In ms: start and duration are cut to microseconds each."""
CALL = {
    "traceID": TRACE,
    "spanID": "b1",
    "operationName": "chat gpt-4o",
    "references": [
        {"refType": "FOLLOWS_FROM", "traceID": TRACE, "spanID": "00000000000000f0"},
        {"refType": "CHILD_OF", "traceID": "f" * 32, "spanID": "00000000000000f1"},
        {"refType": "CHILD_OF", "traceID": TRACE, "spanID": "00000000000000a1"},
    ],
    "startTime": 1_700_000_000_000_001,
    "duration": 250,
    "tags": [
        {"key": "gen_ai.operation.name", "type": "string", "value": "chat"},
        {"key": "gen_ai.usage.input_tokens", "type": "int64", "value": 12},
        {"key": "as text", "type": "int64", "value": "9007199254740993"},
        {"key": "gen_ai.request.temperature", "type": "float64", "value": 1},
        {"key": "stream", "type": "bool", "value": True},
        {"key": "raw", "type": "binary", "value": "AP8="},
        {"key": "span.kind", "type": "string", "value": "client"},
        {"key": "error", "type": "bool", "value": True},
        {"key": "otel.status_code", "type": "string", "value": "ERROR"},
        {"key": "otel.status_description", "type": "string", "value": "no luck"},
        {"key": "otel.scope.name", "type": "string", "value": "tracer"},
    ],
    "logs": [
        {
            "timestamp": 1_700_000_000_000_100,
            "fields": [{"key": "event", "type": "string", "value": "said"}, {"key": "n", "type": "int64", "value": 3}],
        }
    ],
    "processID": "p1",
    "warnings": None,
}
PROCESSES = {"p1": {"serviceName": "planner", "tags": [{"key": "host.name", "type": "string", "value": "here"}]}}


def answer(*spans):
    """Return the answer of a Jaeger with these spans in one trace."""
    return {"data": [{"traceID": TRACE, "spans": list(spans), "processes": PROCESSES, "warnings": None}], "total": 0, "errors": None}


def changed(**members):
    """Return the call with other members."""
    return CALL | members


def one(document):
    """Return the only span of a document that nothing is wrong with."""
    found = read(json.dumps(document).encode())
    assert [] == found.notes
    [span] = found.spans
    return span


def unprefixed(found):
    """Return nodes with tools' names without their provider: a span has the two apart, so a tool comes back as ``provider:name``."""
    return {key: tuple(one.removeprefix("web:") if isinstance(one, str) else one for one in node) for key, node in found.items()}


def test_out_and_in_by_a_real_jaeger(jaeger, tmp_path):
    """A session with sub-agents, threads and other processes comes back from what a Jaeger answers as the tree that it was."""
    txn, whole, *_ = run(["everything"], tmp_path, jaeger.http)
    assert "True" == whole
    tree = loaded(tmp_path, txn).tree
    jaeger.wait_for_trace(trace_of(txn), len(expected(tree.session)))
    found = read(get(jaeger.address("query"), f"/api/traces/{trace_of(txn)}"))
    [again] = sessions(found.spans, found.notes)
    assert [] == found.notes
    assert unprefixed(nodes(tree)) == unprefixed(nodes(again))
    before, after = times(tree), times(again)
    assert [] == [key for key, value in before.items() if abs(value - after[key]) > MICROSECONDS]
    assert tree.session.totals.cost_usd == again.session.totals.cost_usd > 0


def test_all_that_a_span_has():
    """Typed tags, the parent among the references, an event by its name, the status, the kind, and the service of the process."""
    wanted = InSpan(
        TRACE,
        "00000000000000b1",
        "chat gpt-4o",
        1_700_000_000_000_001_000,
        1_700_000_000_000_251_000,
        "00000000000000a1",
        CLIENT,
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.usage.input_tokens": 12,
            "as text": 9007199254740993,
            "gen_ai.request.temperature": 1.0,
            "stream": True,
            "raw": b"\x00\xff",
        },
        [InEvent(1_700_000_000_000_100_000, "said", {"n": 3})],
        ERROR,
        "no luck",
        {"host.name": "here", "service.name": "planner"},
        "tracer",
        1,
    )
    assert wanted == one(answer(CALL))
    assert wanted == one([answer(CALL)["data"][0]])


@pytest.mark.parametrize(
    ("change", "name", "wanted"),
    [
        ({"references": []}, "parent_id", ""),
        ({"references": CALL["references"][:2]}, "parent_id", "00000000000000f0"),
        ({"references": None, "parentSpanID": "a2"}, "parent_id", "00000000000000a2"),
        ({"tags": []}, "status", 0),
        ({"tags": [{"key": "error", "type": "bool", "value": True}]}, "status", ERROR),
        ({"tags": [{"key": "otel.status_code", "type": "string", "value": "OK"}]}, "status", OK),
        ({"processID": "p9"}, "resource", {}),
        ({"processID": "", "process": {"serviceName": "alone"}}, "resource", {"service.name": "alone"}),
        ({"duration": 0}, "end_ns", 1_700_000_000_000_001_000),
    ],
)
def test_what_older_ones_write(change, name, wanted):
    """What is not there, and what OpenTracing's clients wrote."""
    assert wanted == getattr(one(answer(changed(**change))), name)


def test_a_short_trace_id():
    """An id comes back whole that was written without its leading zeros."""
    short = {"traceID": "abc", "references": [{"refType": "CHILD_OF", "traceID": "abc", "spanID": "a1"}]}
    span = one(answer(changed(**short)))
    assert ("abc".zfill(32), "a1".zfill(16)) == (span.trace_id, span.parent_id)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"startTime": "soon"}, "its start 'soon' is no time in microseconds"),
        ({"duration": -1}, "its duration '-1' is no time in microseconds"),
        ({"traceID": "xyz"}, "trace id"),
        ({"tags": [{"key": "n", "type": "int64", "value": "many"}]}, "invalid literal for int()"),
        ({"tags": [{"key": "n", "type": "int64", "value": None}]}, "int()"),
    ],
)
def test_a_bad_span(change, said):
    """It is passed over with its number, and the one beside it is kept."""
    found = read(json.dumps(answer(changed(**change), CALL, 7)).encode())
    assert ["chat gpt-4o"] == [span.name for span in found.spans]
    assert ["span 1 is passed over: ", "span 3 is passed over: "] == [note[:23] for note in found.notes]
    assert said in found.notes[0]


def test_a_trace_that_is_not_there():
    """An answer without a trace is refused, and says what a file must hold."""
    for document in ({"data": [], "errors": [{"code": 404, "msg": "trace not found"}]}, {"data": None}, {"data": [{"spans": 3}]}):
        with pytest.raises(FormatError, match="nor the 'data' of a Jaeger's answer"):
            read(json.dumps(document).encode())
