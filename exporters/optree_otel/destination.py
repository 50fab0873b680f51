"""Where one signal goes, from the variables that OpenTelemetry's own exporters read.

The rules and their order are the OTLP exporter specification's (opentelemetry.io/docs/specs/otel/protocol/exporter); where the Python
exporters differ from it (the timeout is in seconds, ``OTEL_EXPORTER_OTLP_INSECURE`` wins over ``http://``), this does what they do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Literal, cast, get_args
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from msgspec import Struct

from optree.exporting import REDACTED

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

    @property
    def shown(self) -> str:
        """The endpoint as it may be shown: without user, password and query."""
        return shown_endpoint(self.endpoint)

    def cleared(self, text: str) -> str:
        """Return a text of somebody else's without what is secret here, should he repeat it: also where it breaks off within that."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, REDACTED)
            cut = next((size for size in range(len(secret) - 1, _SHORTEST_SECRET - 1, -1) if text.endswith(secret[:size])), 0)
            text = text[: len(text) - cut] + (REDACTED if cut else "")
        return text

    def _secrets(self) -> set[str]:
        """Return user and password, what the query says, and the headers' values, each as it stands and without the word before it."""
        _, _, query = self.endpoint.partition("?")
        user = (_USER.match(self.endpoint) or [""])[0].rpartition("//")[2].removesuffix("@")
        told = [user, user.partition(":")[2], query, *(value for _, value in parse_qsl(query)), *(value for _, value in self.headers)]
        return {part for value in told for part in (value, *value.split()[-1:]) if len(part) >= _SHORTEST_SECRET}


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
        """Note something that is used, but likely is not what was meant."""
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
    found = Destination(
        chosen,
        target,
        parsed_headers(*variables.find("HEADERS"), problems),
        _timeout(variables),
        _compression(variables, chosen),
        insecure,
        *(variables.find(name)[1] or None for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")),
    )
    return found, problems


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
    said = variables.find("INSECURE")[1].lower()
    insecure = scheme != "https" and (said == "true" if said else scheme == "http")
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
    """Return scheme, host with port, and port of a URL; all empty for what is none."""
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
