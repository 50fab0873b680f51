import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import OTELResourceDetector
from opentelemetry.util.re import parse_env_headers

from optree._tracing.config import OtelOptions
from optree.errors import SetupError
from optree_otel import make, settings
from optree_otel.settings import Destination, Protocol, Settings, parsed_headers, resolve
from optree_otel.signals.scope import Parent

PREFIX = "OTEL_EXPORTER_OTLP_"
GRPC = {f"{PREFIX}PROTOCOL": "grpc"}


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing of this machine's environment count."""
    for name in [name for name in os.environ if name.startswith(("OTEL_", "OPTREE_OTEL_"))]:
        monkeypatch.delenv(name)


ENVIRONMENTS: list[dict[str, str]] = [
    {},
    {"ENDPOINT": "http://collector:4000"},
    {"ENDPOINT": "http://collector:4000/"},
    {"ENDPOINT": "http://collector:4000/base"},
    {"ENDPOINT": "https://collector.example"},
    {"TRACES_ENDPOINT": "http://collector:4000/as/it/is", "ENDPOINT": "http://other:1"},
    {"TRACES_ENDPOINT": "https://collector:4000"},
    {"ENDPOINT": "https://collector:4000", "INSECURE": "true"},
    {"ENDPOINT": "http://collector:4000", "INSECURE": "false"},
    {"ENDPOINT": "http://collector:4000", "INSECURE": "false", "TRACES_INSECURE": "TRUE"},
    {"HEADERS": "api-key=a%20b,Other=2"},
    {"HEADERS": "general=1", "TRACES_HEADERS": "own=2"},
    {"HEADERS": "authorization=Bearer abc, x = y=z ,,nonsense,=v,bad name=1"},
    {"COMPRESSION": "gzip"},
    {"COMPRESSION": "GZIP "},
    {"COMPRESSION": "gzip", "TRACES_COMPRESSION": "gzip"},
    {"TIMEOUT": "3"},
    {"TIMEOUT": "3", "TRACES_TIMEOUT": "0.5"},
]


@pytest.mark.parametrize("variables", ENVIRONMENTS, ids=str)
def test_same_as_the_stock_http_exporter(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    """OpenTelemetry's own exporter over HTTP resolves the same environment to the same endpoint, headers, compression and timeout."""
    for name, value in variables.items():
        monkeypatch.setenv(PREFIX + name, value)
    stock = HttpExporter()
    ours = resolve().traces
    assert ours is not None
    headers = {
        name: value for name, value in stock._client._headers.items() if name not in {"content-type", "user-agent", "Content-Encoding"}
    }
    expected = (stock._endpoint, headers, stock._compression.value, stock._client._timeout)
    assert expected == (ours.endpoint, dict(ours.headers), ours.compression, ours.timeout)
    stock.shutdown()


@pytest.mark.parametrize(
    "variables", [*ENVIRONMENTS, {"ENDPOINT": "collector:4000"}, {"ENDPOINT": "collector:4000", "INSECURE": "true"}], ids=str
)
def test_same_as_the_stock_grpc_exporter(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    """OpenTelemetry's own exporter over gRPC resolves the same environment to the same target, TLS, headers, compression and timeout."""
    for name, value in {"PROTOCOL": "grpc", **variables}.items():
        monkeypatch.setenv(PREFIX + name, value)
    stock = GrpcExporter()
    ours = resolve().traces
    assert ours is not None
    expected = (stock._endpoint, stock._insecure, stock._headers, stock._compression.name.lower(), stock._timeout)
    compression = {"none": "nocompression"}.get(ours.compression, ours.compression)
    assert expected == (ours.endpoint, ours.insecure, ours.headers, compression, ours.timeout)
    stock.shutdown()


@given(st.text(st.characters(min_codepoint=1, max_codepoint=255, exclude_characters="\n\r") | st.sampled_from("=, %2aA;"), max_size=30))
def test_headers_as_the_stock_parser(text: str):
    """Any text gives the headers that OpenTelemetry's own parser finds in it."""
    logging.disable(logging.WARNING)
    try:
        expected = dict(parse_env_headers(text, liberal=True))
    finally:
        logging.disable(logging.NOTSET)
    assert expected == dict(parsed_headers("HEADERS", text, []))


@pytest.mark.parametrize(
    ("signal", "endpoint"),
    [("traces", "http://all:1/v1/traces"), ("logs", "http://own:2"), ("metrics", "http://all:1/v1/metrics")],
)
def test_each_signal_has_its_own(signal: Any, endpoint: str):
    """A signal's own endpoint is used as it is, the general one with the signal's path."""
    found = resolve({}, {f"{PREFIX}ENDPOINT": "http://all:1", f"{PREFIX}LOGS_ENDPOINT": "http://own:2"}).destination(signal)
    assert endpoint == (found and found.endpoint)


def test_defaults():
    """With nothing set, all signals go to a collector on this machine over HTTP, without content, and each agent is a service."""
    found = resolve({}, {})
    assert Destination("http/protobuf", "http://localhost:4318/v1/logs", insecure=True) == found.logs
    assert ("no_content", "default", "auto", None, ()) == (found.content, found.profile, found.services, found.service_name, found.problems)


def test_options_win():
    """An option wins over its own variable, which wins over OpenTelemetry's."""
    environ = {f"{PREFIX}TRACES_ENDPOINT": "http://a:1/x", "OPTREE_OTEL_ENDPOINT": "http://b:1", "OPTREE_OTEL_PROFILE": "tempo"}
    assert ["http://c:1/v1/traces", "http://b:1/v1/traces", "http://a:1/x"] == [
        found.endpoint
        for found in (
            resolve({"endpoint": "http://c:1/"}, environ).traces,
            resolve({}, environ).traces,
            resolve({}, {f"{PREFIX}TRACES_ENDPOINT": "http://a:1/x"}).traces,
        )
        if found
    ]
    assert ("jaeger", "tempo") == (resolve({"profile": "jaeger"}, environ).profile, resolve({"profile": None}, environ).profile)


def test_disabled():
    """OTEL_SDK_DISABLED=true leaves nowhere to send to; other texts do not, as the specification says."""
    assert (True, None) == (resolve({}, {"OTEL_SDK_DISABLED": " True"}).disabled, resolve({}, {"OTEL_SDK_DISABLED": "true"}).traces)
    kept = resolve({}, {"OTEL_SDK_DISABLED": "1"})
    assert (False, 1) == (kept.disabled, len(kept.problems))


@pytest.mark.parametrize(
    ("exporter", "protocol", "problems"),
    [
        ("otlp", "http/protobuf", 0),
        ("console,otlp", "http/protobuf", 0),
        ("otlp_proto_grpc", "grpc", 0),
        ("none", None, 0),
        ("console", None, 1),
        ("oltp", "http/protobuf", 1),
        ("", "http/protobuf", 0),
    ],
)
def test_exporter(exporter: str, protocol: str | None, problems: int):
    """A signal goes out if its exporter is OTLP, and a misspelt name is said."""
    found = resolve({}, {"OTEL_TRACES_EXPORTER": exporter})
    assert (protocol, problems) == (found.traces and found.traces.protocol, len(found.problems))
    assert found.logs is not None


@pytest.mark.parametrize("text", ["service.name=a,k=v%20w, spaced = x ", "service.name=a", "k=v", "bad,k=v", ""])
@pytest.mark.parametrize("named", ["", "mine"])
def test_resource_as_the_stock_detector(text: str, named: str, monkeypatch: pytest.MonkeyPatch):
    """The resource's attributes and the service's name are those that OpenTelemetry's own detector finds."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", text)
    monkeypatch.setenv("OTEL_SERVICE_NAME", named)
    expected = dict(OTELResourceDetector().detect().attributes)
    found = resolve()
    assert (expected.pop("service.name", None), expected) == (found.service_name, found.resource)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("true", "span_only"),
        ("SPAN_ONLY", "span_only"),
        ("event_only", "event_only"),
        ("span_and_event", "span_and_event"),
        ("false", "no_content"),
        ("NO_CONTENT", "no_content"),
        ("", "no_content"),
        ("all", "no_content"),
    ],
)
def test_content(value: str, content: str):
    """Content goes out only if the conventions' switch or our option says so."""
    found = resolve({}, {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": value})
    assert (content, value == "all") == (found.content, bool(found.problems))
    assert "no_content" == resolve({"content": False}, {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": value}).content


@pytest.mark.parametrize(
    ("options", "environ", "named"),
    [
        ({}, {f"{PREFIX}PROTOCOL": "http/json"}, "http/json"),
        ({}, {f"{PREFIX}TIMEOUT": "soon"}, "'soon'"),
        ({}, {f"{PREFIX}TIMEOUT": "-1"}, "'-1'"),
        ({}, {f"{PREFIX}TIMEOUT": "nan"}, "'nan'"),
        ({}, {f"{PREFIX}TIMEOUT": "10000"}, "10000"),
        ({}, {f"{PREFIX}COMPRESSION": "zstd"}, "zstd"),
        ({}, {**GRPC, f"{PREFIX}COMPRESSION": "deflate"}, "deflate"),
        ({}, {f"{PREFIX}ENDPOINT": "collector:4318"}, "collector:4318"),
        ({}, {f"{PREFIX}ENDPOINT": "http://[::1"}, "http://[::1"),
        ({}, {f"{PREFIX}ENDPOINT": "http://collector:4317"}, "4317"),
        ({}, {**GRPC, f"{PREFIX}ENDPOINT": "http://collector:4318"}, "4318"),
        ({}, {f"{PREFIX}HEADERS": "novalue"}, "HEADERS"),
        ({}, {"OTEL_RESOURCE_ATTRIBUTES": "novalue"}, "novalue"),
        ({"profile": "zipkin"}, {}, "zipkin"),
        ({"profile": 3}, {}, "3"),
        ({"endpoint": 3}, {}, "3"),
        ({"services": "each"}, {}, "each"),
        ({"live": "perhaps"}, {}, "perhaps"),
        ({"colour": "red"}, {}, "colour"),
    ],
)
def test_bad_values(options: Mapping[str, Any], environ: dict[str, str], named: str):
    """A value that cannot be used is passed over with one text that names it, and raises nothing."""
    found = resolve(options, environ)
    assert isinstance(found, Settings)
    assert any(named in problem for problem in found.problems)


def test_an_unusable_endpoint_is_not_replaced():
    """Where the endpoint cannot be used nothing is sent: credentials must not go to another address than the one that was named."""
    assert resolve({}, {f"{PREFIX}ENDPOINT": "collector:4318"}).traces is None


def test_no_secret_in_problems():
    """A header that cannot be used is named without its value."""
    found = resolve({}, {f"{PREFIX}HEADERS": 'x-key=sec"ret'})
    assert (1, False) == (len(found.problems), "sec" in found.problems[0])


def test_import_is_light():
    """Settings need none of OpenTelemetry's packages."""
    code = "import sys, optree_otel.settings, optree_otel.otlp.sender; print(*sorted(sys.modules), sep=chr(10))"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(["exporters", "."])}
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ).stdout.split()
    assert set() == {"grpc", "requests", "opentelemetry", "google"} & set(loaded)


@pytest.mark.parametrize("endpoint", ["localhost:4318", "garbage", "ftp://x"])
def test_an_impossible_endpoint_is_said(endpoint: str, monkeypatch: pytest.MonkeyPatch):
    """Once, whether an option or the environment names it; not where traces are switched off."""
    for name, options in (("endpoint", {"endpoint": endpoint}), (f"{PREFIX}ENDPOINT", {})):
        monkeypatch.setenv(f"{PREFIX}ENDPOINT", endpoint)
        with pytest.raises(SetupError) as caught:
            make(options)
        assert 1 == str(caught.value).count(f"{name}={endpoint!r} is no address for OTLP over HTTP")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert make({}) is None


def test_an_impossible_endpoint_over_grpc():
    """Another scheme is no address; a target without any is one."""
    found = [resolve({"endpoint": endpoint, "protocol": "grpc"}, {}) for endpoint in ("ftp://x", "localhost:4317")]
    assert [True, False] == [one.traces is None for one in found]
    assert [1, 0] == [len(one.problems) for one in found]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize(
    "endpoint", ["http://user:sec@c:4317", "http://user:sec@c:4318", "user:sec@c:4318", "ftp://sec@c", "http://u:a/sec@c"]
)
def test_no_password_in_problems(endpoint: str, protocol: str):
    """An address is shown without its user."""
    found = resolve({"endpoint": endpoint, "protocol": protocol}, {})
    assert "sec" not in " ".join(found.problems)
    assert found.traces is None or "sec" not in found.traces.shown


def test_type_checkers_know_the_options() -> None:
    """What `configure(otel={…})` takes by its type is what is understood, each option with the same values."""
    hints = get_type_hints(OtelOptions)
    assert set(settings.OPTIONS) == set(hints)
    choices = {
        "protocol": Protocol,
        "profile": settings.Profile,
        "content": settings.Content,
        "services": settings.Services,
        "parent": Parent,
    }
    told = {name: {one for part in get_args(hints[name]) for one in get_args(part)} for name in choices}
    assert {name: set(get_args(kind)) for name, kind in choices.items()} == told
