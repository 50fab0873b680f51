"""The options of the mirror: ours, then ``OPTREE_OTEL_<NAME>``, then OpenTelemetry's environment variables, then the defaults.

A value that is not possible is passed over with a text in `Settings.problems`; nothing here raises.

The rules and their order are the OTLP exporter specification's (opentelemetry.io/docs/specs/otel/protocol/exporter); where the Python
exporters differ from it (the timeout is in seconds, ``OTEL_EXPORTER_OTLP_INSECURE`` wins over ``http://``), this does what they do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, Literal, cast, get_args
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import replace

from optree import Redaction
from optree.exporting import REDACTED, redact
from optree_otel.delivered import Addressee
from optree_otel.exporter_option import STOCK, Exporters, exporters_of, name
from optree_otel.sampling import Sampler, impossible, sampler
from optree_otel.signals.scope import Parent

Profile = Literal["default", "jaeger", "tempo", "phoenix", "victoriatraces", "mlflow", "logfire"]
Services = Literal["auto", "always", "never"]
Content = Literal["no_content", "span_only", "event_only", "span_and_event"]
OPTIONS = (
    *("endpoint", "protocol", "exporter", "profile", "live", "trace_per_turn", "openinference", "content", "services", "parent"),
    *("deliver_at_exit", "sampler", "sampler_arg", "sample_failed"),
)
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_OTLP_EXPORTERS = {"otlp": None, "otlp_proto_http": "http/protobuf", "otlp_proto_grpc": "grpc"}
_OTHER_EXPORTERS = frozenset({"console", "jaeger", "logging", "otlp/stdout", "prometheus", "zipkin"})
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})
_OF_ONE_PROCESS = ("container.", "host.", "k8s.pod.", "process.", "service.instance.")
"""Beginnings of resource attributes that another run of the same program has otherwise."""
_SECRET_BYTES = 2
"""Of a digest of credentials: they tell one account of a collector from another, and are too few to find a password by."""
Signal = Literal["traces", "logs", "metrics"]
Protocol = Literal["http/protobuf", "grpc"]
Compression = Literal["none", "gzip", "deflate"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)
DEFAULT_ENDPOINTS: dict[Protocol, str] = {"http/protobuf": "http://localhost:4318", "grpc": "http://localhost:4317"}
DEFAULT_TIMEOUT = 10.0
_LONG_SECONDS = 1000.0
_COMPRESSIONS: dict[Protocol, tuple[str, ...]] = {"http/protobuf": get_args(Compression), "grpc": ("none", "gzip")}
_GRPC_SCHEMES = frozenset({"http", "https", "grpc", "grpcs", "dns", "unix", "ipv4", "ipv6"})
_USER = re.compile(r"^([^/@]*//)?.*@", re.DOTALL)
_QUERY = re.compile(r"[?#]")
_SHORTEST_SECRET = 6
"""What is shorter would be found in other words."""
_HEADER_NAME = re.compile(r"[!#-'*+.0-9A-Z^-z|~-]+")
_ENCODED_VALUE = re.compile(r"[!#-+\--:<-\[\]-~]*")
_PLAIN_VALUE = re.compile(r"[ !#-+\--:<-\[\]-~]*")


class Settings(Struct, frozen=True):
    """What to send, where to, and how."""

    disabled: bool = False
    """True by ``OTEL_SDK_DISABLED``: nothing is sent."""
    traces: Destination | None = None
    """None if this signal is switched off, or has no usable endpoint."""
    logs: Destination | None = None
    metrics: Destination | None = None
    service_name: str | None = None
    """As the user named it (``OTEL_SERVICE_NAME``, or ``service.name`` in ``OTEL_RESOURCE_ATTRIBUTES``); None if he did not."""
    resource: Mapping[str, str] = {}
    """``OTEL_RESOURCE_ATTRIBUTES``, without ``service.name``."""
    profile: Profile = "default"
    live: bool = False
    trace_per_turn: bool = False
    openinference: bool = False
    content: Content = "no_content"
    """Where the texts of messages, tool arguments and results may stand."""
    services: Services = "auto"
    parent: Parent = "child"
    """What a session becomes that begins inside somebody else's span."""
    traces_off: bool = False
    """True by ``OTEL_TRACES_EXPORTER=none``."""
    deliver_at_exit: bool | None = None
    """Whether a process of its own delivers what is left when this one ends; None: unless tests run."""
    problems: tuple[str, ...] = ()
    """What was passed over, and what to write instead."""
    sampler: Sampler = Sampler()
    """Which sessions are sent."""
    sample_failed: bool = True
    """Whether those that fail are sent at their end though they were not sampled."""

    def destination(self, signal: Signal) -> Destination | None:
        """Return where *signal* goes; None if it is not sent."""
        return {"traces": self.traces, "logs": self.logs, "metrics": self.metrics}[signal]

    def addressee(self, redaction: Redaction) -> Addressee:
        """Return who is to have what these settings send, while texts are redacted so."""
        callback = redaction.callback
        named = [str(getattr(callback, name, "")) for name in ("__module__", "__qualname__")] if callback is not None else []
        rules = redaction.to_json(), named, str(getattr(getattr(callback, "__code__", None), "co_filename", ""))
        form = self.profile, self.live, self.trace_per_turn, self.openinference, self.content, self.services
        resource = sorted((name, value) for name, value in self.resource.items() if not name.startswith(_OF_ONE_PROCESS))
        digest = sha256(encode([*map(_account, (self.traces, self.logs)), form, resource, rules])).hexdigest()
        details = [
            self.traces.shown if self.traces is not None else "",
            *([f"content {self.content}"] if self.content != "no_content" else []),
            *(["redaction of its own"] if redaction != Redaction() else []),
        ]
        return Addressee(digest[:16], ", ".join(details))


def _account(destination: Destination | None) -> tuple[str, ...]:
    """Return what tells one account of one collector from another."""
    if destination is None:
        return ()
    certificate = destination.client_certificate and str(Path(destination.client_certificate).absolute())
    secret = sha256(encode((destination.endpoint, sorted(destination.headers), certificate))).hexdigest()
    return destination.protocol, destination.shown, secret[: 2 * _SECRET_BYTES]


def resolve(options: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings that *options* (see `OPTIONS`; None is not given) and the environment make together."""
    problems: list[str] = []
    chosen = _Options(options or {}, environ, problems)
    disabled = _disabled(environ, problems)
    where = {} if disabled else _destinations(chosen, environ, problems)
    service, resource = _resource(environ, problems)
    which = sampler(chosen.traces, problems)
    keeps_failed = chosen.flag("sample_failed", otherwise=True)
    return Settings(
        disabled,
        where.get("traces"),
        where.get("logs"),
        where.get("metrics"),
        service,
        resource,
        chosen.choice("profile", get_args(Profile)),
        chosen.flag("live"),
        chosen.flag("trace_per_turn"),
        chosen.flag("openinference"),
        _content(chosen, environ, problems),
        chosen.choice("services", get_args(Services)),
        chosen.choice("parent", get_args(Parent)),
        environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none",
        chosen.flag("deliver_at_exit") if chosen.find("deliver_at_exit")[1] is not None else None,
        tuple(dict.fromkeys(str(redact(problem)) for problem in problems)),
        which,
        keeps_failed,
    )


class _Options:
    """Our own options, each with its variable ``OPTREE_OTEL_<NAME>`` behind it."""

    def __init__(self, options: Mapping[str, Any], environ: Mapping[str, str], problems: list[str]) -> None:
        self._options = options
        self._environ = environ
        self._problems = problems
        listed = ", ".join(OPTIONS)
        problems.extend(f"there is no option {name!r}; the options are {listed}" for name in options if name not in OPTIONS)

    def find(self, name: str) -> tuple[str, Any]:
        """Return what the value comes from, and the value; None where there is none."""
        value = self._options.get(name)
        if value is not None:
            return name, value
        variable = f"OPTREE_OTEL_{name.upper()}"
        return variable, self._environ.get(variable) or None

    def traces(self, name: str) -> tuple[str, Any]:
        """Return the same, with OpenTelemetry's own ``OTEL_TRACES_<NAME>`` behind them."""
        source, value = self.find(name)
        variable = f"OTEL_TRACES_{name.upper()}"
        return (source, value) if value is not None else (variable, self._environ.get(variable) or None)

    def text(self, name: str) -> str | None:
        source, value = self.find(name)
        if value is None or isinstance(value, str):
            return value or None
        self._passed_over(source, value, "give a text")
        return None

    def choice(self, name: str, choices: tuple[Any, ...]) -> Any:
        """Return the value if it is one of *choices*, else the first of them."""
        source, value = self.find(name)
        if value is None or (isinstance(value, str) and value in choices):
            return value or choices[0]
        self._passed_over(source, value, f"choose one of {', '.join(choices)}")
        return choices[0]

    def flag(self, name: str, *, otherwise: bool = False) -> bool:
        source, value = self.find(name)
        word = str(value).strip().lower()
        if value is None:
            return otherwise
        if isinstance(value, bool) or word in _YES | _NO:
            return word in _YES
        self._passed_over(source, value, "write true or false")
        return otherwise

    def _passed_over(self, source: str, value: object, advice: str) -> None:
        self._problems.append(impossible(source, value, advice))


def _disabled(environ: Mapping[str, str], problems: list[str]) -> bool:
    """Return what ``OTEL_SDK_DISABLED`` says; by the specification every text but ``true`` is false."""
    value = environ.get("OTEL_SDK_DISABLED", "").strip().lower()
    if value not in ("", "true", "false"):
        problems.append(f"OTEL_SDK_DISABLED={value!r} does not switch off; OpenTelemetry knows true and false only")
    return value == "true"


def _destinations(options: _Options, environ: Mapping[str, str], problems: list[str]) -> dict[Signal, Destination | None]:
    """Return where each signal goes. With exporters of the program's own, log records and metrics go only where somebody says where to."""
    source, value = options.find("exporter")
    exporters = (STOCK,) if value in (None, "otlp") else exporters_of(value)
    if exporters is None:
        kinds = "a SpanExporter or a SpanProcessor of opentelemetry-sdk, or a list of them"
        problems.append(f"{source}={value!r} takes no spans; give {kinds}, {STOCK!r} or 'otlp'")
        return {}
    beside = options.text("endpoint") or any(environ.get(f"OTEL_EXPORTER_OTLP_{infix}ENDPOINT") for infix in ("", "LOGS_", "METRICS_"))
    where: dict[Signal, Destination | None] = {
        signal: _destination(signal, options, environ, problems) for signal in SIGNALS if STOCK in exporters or beside
    }
    if STOCK not in exporters:
        where["traces"] = None if environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none" else Destination("http/protobuf", "")
    if (traces := where["traces"]) is not None and value not in (None, "otlp"):
        where["traces"] = replace(traces, exporters=exporters)
    return where


def _destination(signal: Signal, options: _Options, environ: Mapping[str, str], problems: list[str]) -> Destination | None:
    """Return where *signal* goes, unless ``OTEL_<SIGNAL>_EXPORTER`` names something else than OTLP."""
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    protocol = options.text("protocol")
    names = [name.strip().lower() for name in environ.get(variable, "").split(",") if name.strip()]
    known = [name for name in names if name in _OTLP_EXPORTERS]
    if names == ["none"]:
        return None
    if known:
        protocol = protocol or _OTLP_EXPORTERS[known[0]]
    elif names and set(names) <= _OTHER_EXPORTERS:
        problems.append(
            f"{variable}={environ[variable]!r} names no OTLP exporter: optree does not send {signal}; write otlp to have them sent"
        )
        return None
    elif names:
        problems.append(f"{variable}={environ[variable]!r} is not possible and passed over; write otlp or none")
    target, notes = destination(signal, environ, options.text("endpoint"), protocol)
    problems.extend(notes)
    return target


def _resource(environ: Mapping[str, str], problems: list[str]) -> tuple[str | None, dict[str, str]]:
    """Return the service's name and the other resource attributes."""
    attributes: dict[str, str] = {}
    for part in environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        key, separator, value = part.partition("=")
        if separator and key.strip():
            attributes[key.strip()] = unquote(value.strip())
        elif part.strip():
            problems.append(f"OTEL_RESOURCE_ATTRIBUTES: {part.strip()!r} is not possible and passed over; write key=value,key=value")
    service = environ.get("OTEL_SERVICE_NAME") or attributes.get("service.name")
    return service or None, {key: value for key, value in attributes.items() if key != "service.name"}


def _content(options: _Options, environ: Mapping[str, str], problems: list[str]) -> Content:
    """Return what our option says, else the conventions' switch; a plain yes means: on spans."""
    source, value = options.find("content")
    if value is None:
        source, value = _CONTENT, environ.get(_CONTENT) or "no_content"
    word = str(value).strip().lower()
    if word in get_args(Content):
        return cast("Content", word)
    if word not in _YES | _NO:
        problems.append(impossible(source, value, f"choose one of true, false, {', '.join(get_args(Content))}"))
    return "span_only" if word in _YES else "no_content"


class Destination(Struct, frozen=True):
    """Where one signal goes, and how."""

    protocol: Protocol
    endpoint: str
    """Over HTTP the whole URL, over gRPC the target (``host:port``)."""
    headers: tuple[tuple[str, str], ...] = ()
    """Names in lower case."""
    timeout: float = DEFAULT_TIMEOUT
    """Seconds for one request."""
    compression: Compression = "none"
    insecure: bool = False
    """Over gRPC: no TLS. Over HTTP the URL says it."""
    certificate: str | None = None
    """File of the authorities to trust; None for those of the machine."""
    client_certificate: str | None = None
    client_key: str | None = None
    exporters: Exporters = ()
    """What takes the spans in place of our own encoder's requests."""

    @property
    def shown(self) -> str:
        """The endpoint as it may be shown: without user, password and query."""
        places = [self.endpoint if exporter == STOCK else name(exporter) for exporter in self.exporters] or [self.endpoint]
        return ", ".join(map(shown_endpoint, places))

    def cleared(self, text: str) -> str:
        """Return another program's text without the secrets of these settings that it may repeat, also where it breaks off within one."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, REDACTED)
            cut = next((size for size in range(len(secret) - 1, _SHORTEST_SECRET - 1, -1) if text.endswith(secret[:size])), 0)
            text = text[: len(text) - cut] + (REDACTED if cut else "")
        return text

    def _secrets(self) -> set[str]:
        """Return user and password, what the query says, and the headers' values, each as it stands and without the word before it."""
        _, _, query = self.endpoint.partition("?")
        user = (_USER.match(self.endpoint) or [""])[0].rpartition("//")[2].removesuffix("@")
        values = [user, user.partition(":")[2], query, *(value for _, value in parse_qsl(query)), *(value for _, value in self.headers)]
        return {part for value in values for part in (value, *value.split()[-1:]) if len(part) >= _SHORTEST_SECRET}


class Variables:
    """``OTEL_EXPORTER_OTLP_<NAME>`` of one signal: its own form wins over the general one; an empty value is none."""

    def __init__(self, environ: Mapping[str, str], signal: Signal, problems: list[str]) -> None:
        self._environ = environ
        self._signal = signal
        self._problems = problems

    def own(self, name: str) -> tuple[str, str]:
        """Return the name of the signal's own variable, and its value; the value is "" where it is not set."""
        variable = f"OTEL_EXPORTER_OTLP_{self._signal.upper()}_{name}"
        return variable, self._environ.get(variable, "")

    def find(self, name: str) -> tuple[str, str]:
        """Return the variable that holds, and its value."""
        variable, value = self.own(name)
        return (variable, value) if value else (f"OTEL_EXPORTER_OTLP_{name}", self._environ.get(f"OTEL_EXPORTER_OTLP_{name}", ""))

    def passed_over(self, variable: str, value: str, advice: str) -> None:
        """Note a value that cannot be used."""
        self._problems.append(f"{variable}={value!r} is not possible and passed over; {advice}")

    def say(self, problem: str) -> None:
        """Note a value that is used, but likely was not intended."""
        self._problems.append(problem)


def destination(
    signal: Signal, environ: Mapping[str, str], endpoint: str | None, protocol: str | None
) -> tuple[Destination | None, list[str]]:
    """Return where *signal* goes, and texts about what is passed over; None if the endpoint cannot be used.

    *endpoint* (the part before ``/v1/traces``) and *protocol* are options, which win over the environment.
    """
    problems: list[str] = []
    variables = Variables(environ, signal, problems)
    chosen = _protocol(variables, protocol)
    target, insecure = _http_target(variables, signal, endpoint) if chosen == "http/protobuf" else _grpc_target(variables, endpoint)
    if target is None:
        return None, problems
    certificate, client_certificate, client_key = (
        variables.find(name)[1] or None for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
    )
    resolved = Destination(
        chosen,
        target,
        parsed_headers(*variables.find("HEADERS"), problems),
        _timeout(variables),
        _compression(variables, chosen),
        insecure,
        certificate,
        client_certificate,
        client_key,
    )
    return resolved, problems


def parsed_headers(variable: str, value: str, problems: list[str]) -> tuple[tuple[str, str], ...]:
    """Return the headers of ``name=value,name=value``, percent-decoded; one with characters that need encoding is taken as it is."""
    headers: dict[str, str] = {}
    for part in value.split(","):
        name, separator, content = (piece.strip(" \t") for piece in part.strip().partition("="))
        if not part.strip():
            continue
        if not separator or not _HEADER_NAME.fullmatch(name) or not _PLAIN_VALUE.fullmatch(content):
            shown = name if separator else "a part without ="  # a value may be a secret
            problems.append(f"{variable}: {shown!r} is not possible and passed over; write name=value,name=value, values percent-encoded")
        elif _ENCODED_VALUE.fullmatch(content):
            headers[unquote(name).strip().lower()] = unquote(content).strip()
        else:
            headers[name.lower()] = content
    return tuple(headers.items())


def _protocol(variables: Variables, option: str | None) -> Protocol:
    variable, value = ("protocol", option) if option else variables.find("PROTOCOL")
    if value and value not in DEFAULT_ENDPOINTS:
        variables.passed_over(variable, value, f"choose one of {', '.join(DEFAULT_ENDPOINTS)}")
    return "grpc" if value == "grpc" else "http/protobuf"


def _http_target(variables: Variables, signal: Signal, option: str | None) -> tuple[str | None, bool]:
    own, exact = variables.own("ENDPOINT")
    if option or not exact:
        variable, general = ("endpoint", option) if option else variables.find("ENDPOINT")
        url = _with_path(general or DEFAULT_ENDPOINTS["http/protobuf"], f"/v1/{signal}")
    else:
        variable, general, url = own, exact, exact
    scheme, host, port = _split(url)
    if scheme not in ("http", "https") or not host:
        advice = "write it as http://host:4318; nothing is sent there"
        variables.say(f"{variable}={shown_endpoint(general)!r} is no address for OTLP over HTTP: {advice}")
        return None, False
    if port == 4317:  # noqa: PLR2004 - the port that OTLP over gRPC has
        shown = shown_endpoint(general)
        variables.say(f"{variable}={shown!r} is used with http/protobuf, but port 4317 is usually gRPC's: use 4318, or protocol grpc")
    return url, scheme == "http"


def _grpc_target(variables: Variables, option: str | None) -> tuple[str | None, bool]:
    variable, value = ("endpoint", option) if option else variables.find("ENDPOINT")
    scheme, host, port = _split(value or DEFAULT_ENDPOINTS["grpc"])
    if port == 4318:  # noqa: PLR2004 - the port that OTLP over HTTP has
        shown = shown_endpoint(value)
        variables.say(f"{variable}={shown!r} is used with grpc, but port 4318 is usually HTTP's: use 4317, or protocol http/protobuf")
    if host and scheme not in _GRPC_SCHEMES:
        advice = "write it as http://host:4317; nothing is sent there"
        variables.say(f"{variable}={shown_endpoint(value)!r} is no address for OTLP over gRPC: {advice}")
        return None, False
    setting = variables.find("INSECURE")[1].lower()
    insecure = scheme != "https" and (setting == "true" if setting else scheme == "http")
    return (host or value).rpartition("@")[2], insecure  # gRPC has no user in an address


def shown_endpoint(endpoint: str) -> str:
    """Return an endpoint as it may be shown: what stands before an ``@`` may be a password, and what stands in a query a key."""
    address, mark, _ = _QUERY.sub("?", _USER.sub(rf"\g<1>{REDACTED}@", endpoint), 1).partition("?")
    return f"{address}?{REDACTED}" if mark else address


def _with_path(url: str, path: str) -> str:
    """Return a URL with more behind its path; its query stays where it is."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + path, fragment=""))


def _split(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host with port, and port of a URL; all empty for a text that is not a URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "", "", None
    return parts.scheme, parts.netloc, port


def _timeout(variables: Variables) -> float:
    variable, value = variables.find("TIMEOUT")
    try:
        seconds = float(value or DEFAULT_TIMEOUT)
    except ValueError:
        seconds = 0.0
    if not isfinite(seconds) or seconds <= 0:
        variables.passed_over(variable, value, f"give seconds, such as {DEFAULT_TIMEOUT:g}")
        return DEFAULT_TIMEOUT
    if seconds >= _LONG_SECONDS:
        variables.say(
            f"{variable}={value!r} is read as seconds, as OpenTelemetry for Python does; write 10 if 10000 milliseconds are meant"
        )
    return seconds


def _compression(variables: Variables, protocol: Protocol) -> Compression:
    variable, value = variables.find("COMPRESSION")
    wanted = value.strip().lower() or "none"
    if wanted in _COMPRESSIONS[protocol]:
        return cast("Compression", wanted)
    variables.passed_over(variable, value, f"choose one of {', '.join(_COMPRESSIONS[protocol])}")
    return "none"
