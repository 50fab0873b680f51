import base64
import gzip
import json
import math
import re

import pytest
import zstandard
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from optree import FormatError, NotFoundError
from optree_otel.incoming import InEvent, InSpan, read, read_file
from optree_otel.incoming.spans import ERROR
from tests.otel.incoming.made import LLM, Made, otlp

RICH = {**LLM, "n": 3, "ratio": 0.5, "yes": True, "words": ["a", "b"]}


def two():
    """Return a span with all that a span can have, and one below it."""
    span = Made()
    upper = span("upper", RICH, kind=3, status=ERROR, message="no luck", events=[InEvent(17, "said", {"x": "y"})])
    return upper, span("lower", above=upper)


def found_in(data):
    """Read bytes that hold nothing wrong; returns the spans without what their file says of them."""
    found = read(data)
    assert [] == found.notes
    return [bare(span) for span in found.spans]


def bare(span):
    """Return a span without its scope, resource and number."""
    names = ("trace_id", "span_id", "name", "start_ns", "end_ns", "parent_id", "kind", "attributes", "events", "status", "message")
    return InSpan(**{name: getattr(span, name) for name in names})


def as_bytes(document):
    """Return an OTLP document as protobuf."""
    binary = json.loads(json.dumps(document))
    for resource in binary["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):
                    span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    return ParseDict(binary, TracesData()).SerializeToString()


def snake(value):
    """Return a document with its members' names in snake_case."""
    if isinstance(value, list):
        return [snake(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {"".join("_" + c.lower() if c.isupper() else c for c in key): snake(item) for key, item in value.items()}


def base64_ids(document):
    """Return a document with its ids in base64, as protobuf's own JSON has them."""
    text = json.dumps(document)
    for span in two():
        for number in (span.trace_id, span.span_id):
            text = text.replace(f'"{number}"', f'"{base64.b64encode(bytes.fromhex(number)).decode()}"')
    return json.loads(text)


DOCUMENT = otlp(*two())
LINES = b"\n".join(json.dumps(otlp(span)).encode() for span in two()) + b"\n"
PIECES = [as_bytes(otlp(span)) for span in two()]
FORMS = {
    "json": json.dumps(DOCUMENT).encode(),
    "indented": json.dumps(DOCUMENT, indent=2).encode(),
    "lines": LINES,
    "list": json.dumps([otlp(span) for span in two()]).encode(),
    "snake": json.dumps(snake(DOCUMENT)).encode(),
    "base64 ids": json.dumps(base64_ids(DOCUMENT)).encode(),
    "jaeger": json.dumps({"result": DOCUMENT}).encode(),
    "tempo": json.dumps({"trace": DOCUMENT}).encode(),
    "tempo batches": json.dumps({"batches": DOCUMENT["resourceSpans"]}).encode(),
    "protobuf": as_bytes(DOCUMENT),
    "protobuf behind varints": b"".join(bytes([len(piece) & 127 | 128, len(piece) >> 7]) + piece for piece in PIECES),
    "protobuf behind four bytes": b"".join(len(piece).to_bytes(4, "big") + piece for piece in PIECES),
    "protobuf, each compressed": b"".join(
        len(packed).to_bytes(4, "big") + packed for packed in map(zstandard.ZstdCompressor().compress, PIECES)
    ),
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress], ids=["plain", "gzip", "zstd"])
@pytest.mark.parametrize("form", FORMS)
def test_forms(form, pack):
    """Each form of OTLP, plain or compressed, gives the same two spans to the last attribute."""
    assert [bare(span) for span in two()] == found_in(pack(FORMS[form]))


def test_values():
    """Numbers as text, NaN, bytes and maps come out as what they are."""
    pairs = {
        "a": {"intValue": 7},
        "b": {"doubleValue": "NaN"},
        "c": {"bytesValue": "AP8="},
        "d": {"kvlistValue": {"values": [{"key": "k", "value": {"intValue": "1"}}]}},
    }
    document = otlp(Made()("x"))
    document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"] = [{"key": key, "value": value} for key, value in pairs.items()]
    [span] = read(json.dumps(document).encode()).spans
    assert math.isnan(span.attributes.pop("b"))
    assert {"a": 7, "c": b"\x00\xff", "d": {"k": 1}} == span.attributes


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"traceId": "xyz"}, "its trace id 'xyz' is neither 32 hex digits nor 16 bytes in base64"),
        ({"startTimeUnixNano": "soon"}, "its start 'soon' is no time in epoch nanoseconds"),
        ({"endTimeUnixNano": -1}, "its end '-1' is no time in epoch nanoseconds"),
        ({"attributes": [{"key": "n", "value": {"intValue": "many"}}]}, "invalid literal for int() with base 10: 'many'"),
    ],
)
def test_bad_span(change, said):
    """A span that cannot be read is passed over with its number, the one beside it is kept."""
    document = otlp(*two())
    document["resourceSpans"][0]["scopeSpans"][0]["spans"][0] |= change
    found = read(json.dumps(document).encode())
    assert ["lower"] == [span.name for span in found.spans]
    assert [f"span 1 is passed over: {said}"] == found.notes


def test_bad_protobuf_span():
    """In protobuf, too, a bad span is passed over alone: its text is no UTF-8, its id too short."""
    data = as_bytes(DOCUMENT)
    found = read(data.replace(b"upper", b"\xff\xff\xff\xff\xff"))
    assert (["lower"], 1) == ([span.name for span in found.spans], len(found.notes))
    assert found.notes[0].startswith("span 1 is passed over: ")


def test_bad_line():
    """A line that is no JSON is passed over with its number: the last one of a Collector that was killed breaks off."""
    found = read(LINES + LINES[:100])
    assert ["upper", "lower"] == [span.name for span in found.spans]
    assert ["line 3 is no JSON and is passed over: "] == [note[:38] for note in found.notes]


@pytest.mark.parametrize("form", ["protobuf", "protobuf behind four bytes"])
def test_broken_off(form):
    """A protobuf file that breaks off gives what came before, and says so."""
    data = FORMS[form] + FORMS[form][: len(FORMS[form]) // 2]
    found = read(data)
    assert ["upper", "lower"] == [span.name for span in found.spans][:2]
    assert any("breaks off" in note for note in found.notes)


def test_broken_gzip():
    """A compressed file that breaks off is read as far as it goes, and that is noted."""
    data = gzip.compress(LINES) + gzip.compress(LINES)[:50]
    found = read(data, "spans.gz")
    assert ["upper", "lower"] == [span.name for span in found.spans][:2]
    assert f"spans.gz breaks off: only the beginning of its {len(data)} bytes could be unpacked" == found.notes[-1]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "x is empty"),
        (b"{}", "it has no 'resourceSpans'"),
        (b'{"resourceLogs":[]}', "holds log records"),
        (b"[1,2]", "it has no 'resourceSpans'"),
        (b"hello there", "x is no OTLP file"),
        (b"\x00" * 64, "x is no OTLP file"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "x is no OTLP file"),
        (b"[" * 100_000, "x is nested too deeply"),
    ],
)
def test_not_otlp(data, said):
    """What is not OTLP is refused with a message that says what is missing."""
    with pytest.raises(FormatError, match=re.escape(said)):
        read(data, "x")


def test_end_before_start():
    """A span that ends before it starts lasts no time, which is noted."""
    found = read(json.dumps(otlp(Made()("x", end_ns=5))).encode())
    assert ["span 1 ends before it starts: it is taken to last no time"] == found.notes
    assert found.spans[0].started_at == found.spans[0].ended_at


def test_missing_file(tmp_path):
    """A file that is not there and a directory are named."""
    with pytest.raises(NotFoundError, match="is no file"):
        read_file(tmp_path / "none.json")
    with pytest.raises(NotFoundError, match="is a directory"):
        read_file(tmp_path)
