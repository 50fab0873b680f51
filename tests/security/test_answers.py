"""Endpoints with secrets in them, and collectors that answer whatever they like: nothing secret is shown, nothing grows, nothing hangs."""

import re
import tracemalloc

import grpc
import pytest
from google.rpc.status_pb2 import Status

from optree_otel.otlp.transport import connect
from optree_otel.settings import Destination, resolve
from tests.otel.mirroring import mirrored
from tests.otel.receiver import PROTOCOLS, Fault, receiver

SECRET = "q7f3k9-secret-1"
HEADER = "Bearer zx81-topmost-77"
OBJECT = re.compile(r"<[\w.]+ object at 0x|0x[0-9a-f]{6,}|\w+\(\w+=")
"""How the repr of an object looks."""
HOSTILE = {
    "empty": "",
    "controls": "\x1b[2J\r\n[txn:forged] [path:1.1] agent [ERR] \u202e\u200b\x00\x9b",
    "our secrets": f"no: key={SECRET} in /v1/traces?key={SECRET}, authorization: {HEADER}",
    "our secrets, cut": "x" * (300 - 20 - len(SECRET) // 2) + SECRET,
    "somebody's secrets": "user sk-proj-abcdefghijklmnopqrstuvwxyz012345 is not known at postgres://me:passw0rd@db/x",
    "long": "a" * 60_000,
    "many lines": "\n" * 60_000,
    "format": "%s%n{0.__class__}{{}}\\x1b" * 10,
    "halves": "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    "too large": "message larger than max " * 1000,
}


@pytest.mark.parametrize(
    ("endpoint", "traces"),
    [
        ("http://c:4318/?key=K", "http://c:4318/v1/traces?key=K"),
        ("http://c:4318?key=K", "http://c:4318/v1/traces?key=K"),
        ("http://c:4318/otlp/?key=K&x=/a/", "http://c:4318/otlp/v1/traces?key=K&x=/a/"),
        ("http://c:4318/otlp", "http://c:4318/otlp/v1/traces"),
        ("http://c:4318/#part", "http://c:4318/v1/traces"),
        ("https://u:p@c/a//", "https://u:p@c/a/v1/traces"),
        ("http://[::1]:4318/?a=b?c", "http://[::1]:4318/v1/traces?a=b?c"),
    ],
)
def test_an_endpoint_is_built_by_its_parts(endpoint, traces):
    """What is added to an endpoint goes to its path, and the query stays a query; the signal's own variable is taken as it is."""
    assert traces == resolve({"endpoint": endpoint}, {}).traces.endpoint
    assert endpoint == resolve({}, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint}).traces.endpoint


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "endpoint",
    [
        f"http://c:4318/?key={SECRET}", f"http://c:4317?{SECRET}", f"http://u:{SECRET}@c:4317/?a={SECRET}#{SECRET}", f"c:4317?key={SECRET}",
        f"ftp://c/?key={SECRET}", f"http://u:a?{SECRET}@c:4318/", f"http://c:port/?k={SECRET}", f"http://[::1/?k={SECRET}", f"?{SECRET}",
        f"http://c/#{SECRET}",
    ],
)  # fmt: skip
def test_what_an_endpoint_hides_is_never_shown(endpoint, protocol):
    """Neither problems, nor the address as it is shown, have the user, the password or the query of an endpoint."""
    found = resolve({"endpoint": endpoint, "protocol": protocol}, {})
    assert SECRET not in " ".join(found.problems)
    for one in filter(None, (found.traces, found.logs, found.metrics)):
        assert SECRET not in one.shown


def destination(collector, protocol):
    """Return a collector's address with secrets in it."""
    secret = {"endpoint": f"{collector.endpoint}/v1/traces?key={SECRET}"} if protocol != "grpc" else {}
    return collector.destination(headers=(("authorization", HEADER), ("x-key", SECRET)), **secret)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("code", ["400", "401", "404", "415", "429", "500", "503"])
@pytest.mark.parametrize("name", HOSTILE)
def test_an_answer_is_told_in_one_short_line(protocol, code, name):
    """Whatever a refusal says, over HTTP or gRPC, is told as one line of at most some hundred characters, without secrets and objects."""
    codes = {"400": "INVALID_ARGUMENT", "401": "UNAUTHENTICATED", "404": "UNIMPLEMENTED", "415": "INTERNAL", "429": "RESOURCE_EXHAUSTED"}
    text = HOSTILE[name][: 60_000 if protocol != "grpc" else 4_000]
    with receiver(protocol) as collector:
        collector.script(Fault(int(code), grpc.StatusCode[codes.get(code, "UNAVAILABLE")], text))
        transport = connect(destination(collector, protocol))
        outcome = transport.send("traces", b"", 5)
        transport.close()
    assert "delivered" != outcome.kind
    assert len(outcome.text) < 700
    assert outcome.text.isprintable()
    assert not any(secret[:8] in outcome.text for secret in (SECRET, HEADER[7:], "sk-proj-abc", "passw0rd"))
    assert None is OBJECT.search(outcome.text.replace(text[:200], ""))


@pytest.mark.parametrize("kind", ["application/json", "application/x-protobuf", "text/html", "", "application/grpc", "x" * 5000])
@pytest.mark.parametrize(
    "answer", [b'{"message":{"a":[1]}}', b"\x08\x03\x12\x07bad one", b"[[[[", b"\xff" * 99, b"\x12\xff\xff\xff\xff\x0f"]
)
def test_a_400_says_what_it_is_about(kind, answer):
    """The content of a 400 is shown as text where it is one, and never as an object of Python's, whatever type it claims to have."""
    with receiver("http/protobuf") as collector:
        collector.script(Fault(400, text=answer.decode("latin-1"), content_type=kind))
        outcome = connect(collector.destination()).send("traces", b"", 5)
    assert "refused" == outcome.kind
    assert " answered 400: " in outcome.text
    assert None is OBJECT.search(outcome.text)


def test_what_is_lost_to_a_collector_is_named(tmp_path):
    """A span that a collector refuses is named by its place in its session in what health says, not by an object of Python's."""
    with receiver("http/protobuf") as collector:
        collector.always = Fault(400, grpc.StatusCode.INVALID_ARGUMENT, "bad")
        with mirrored(tmp_path, collector.endpoint):
            told = refused()
    said = [one for one in texts_in(told) if "is lost to the collector: " in one]  # not what other tests left
    assert said
    for one in said:
        assert re.search(r"(op|turn|session) ?[0-9.]* of session [\w-]+ is lost to the collector: ", one)
        assert None is OBJECT.search(one)


def refused():
    """Record a session, and return what its mirror says when all of it was refused."""
    import optree

    with optree.session(agent="a"), optree.turn(user="b"), optree.tool("c"):
        pass
    optree.flush("export", timeout=10)
    return optree.health()


def texts_in(value):
    """Return all texts in a value of dicts and lists."""
    if isinstance(value, dict):
        return [one for item in value.values() for one in texts_in(item)]
    return [value] if isinstance(value, str) else [one for item in value for one in texts_in(item)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    "trailers",
    [
        (("grpc-status-details-bin", b"\xff" * 4000),),
        (("grpc-status-details-bin", Status(code=8, message="x" * 3000).SerializeToString()),),
        (("google.rpc.retryinfo-bin", b"\x0a\x0b\x08" + b"\xff" * 9 + b"\x7f"),),
        (("google.rpc.retryinfo-bin", b""),),
        tuple((f"x-{number}-bin", b"y" * 50) for number in range(60)),
        (("x-key", SECRET.encode()), ("grpc-status-details-bin", b"\x1a\x05\x0a\x03abc")),
    ],
    ids=["junk", "long", "a wait without end", "empty", "many", "details"],
)
def test_trailers_of_any_kind(trailers):
    """Trailers that are junk, long, or ask to wait for ages neither fail nor are shown."""
    with receiver("grpc") as collector:
        collector.script(Fault(code=grpc.StatusCode.RESOURCE_EXHAUSTED, text="slow down", trailers=trailers))
        outcome = connect(collector.destination()).send("traces", b"", 5)
    assert ("retry", True) == (outcome.kind, len(outcome.text) < 700)
    assert outcome.after is None or outcome.after >= 0
    assert SECRET not in outcome.text


def test_trailers_larger_than_grpc_takes():
    """Megabytes of trailers are an error of the connection's, told in one line; the next request goes out."""
    with receiver("grpc") as collector:
        huge = tuple((f"x-{number}-bin", b"y" * 8_000) for number in range(300))
        collector.script(Fault(code=grpc.StatusCode.INTERNAL, text="x", trailers=huge))
        transport = connect(collector.destination())
        outcome = transport.send("traces", b"", 5)
        assert ("delivered", True) != (outcome.kind, len(outcome.text) > 700)
        assert "delivered" == transport.send("traces", b"", 5).kind
        transport.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_answer_without_end_is_not_read_to_its_end(protocol):
    """An answer of 64 MB with success, or in a refusal, is read as far as a few kB over HTTP; gRPC refuses what is over 4 MB."""
    tracemalloc.start()
    with receiver(protocol) as collector:
        collector.script(Fault(answer=b"\x0a" * (8 << 20)))
        transport = connect(collector.destination())
        tracemalloc.reset_peak()
        outcome = transport.send("traces", b"", 10)
        transport.close()
    tracemalloc.stop()
    assert len(outcome.text) < 700
    assert "delivered" != outcome.kind


def test_a_text_that_breaks_off_within_a_secret():
    """A secret that a text repeats whole, twice, in part at its end, or without the word before it, is replaced; short words are not."""
    to = Destination("http/protobuf", f"http://me:pass-word-1@c/v1/traces?key={SECRET}&short=abc", (("authorization", HEADER),))
    said = to.cleared(f"{SECRET} {SECRET}abc pass-word-1 {HEADER} zx81-topmost-77 at c: {SECRET[:9]}")
    assert not any(secret in said for secret in (SECRET, SECRET[:9], "pass-word-1", "topmost"))
    assert " at c: " in said
    assert "abc" in said
