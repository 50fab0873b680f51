"""The options of the mirror: ours, then ``OPTREE_OTEL_<NAME>``, then OpenTelemetry's environment variables, then the defaults.

A value that is not possible is passed over with a text in `Settings.problems`; nothing here raises.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, cast, get_args
from urllib.parse import unquote

from msgspec import Struct
from msgspec.json import encode

from optree import Redaction
from optree.exporting import redact
from optree_otel.delivered import Addressee
from optree_otel.destination import SIGNALS, Destination, Signal, destination
from optree_otel.origin import Parent

Profile = Literal["default", "jaeger", "tempo", "phoenix", "victoriatraces", "mlflow", "logfire"]
Services = Literal["auto", "always", "never"]
Content = Literal["no_content", "span_only", "event_only", "span_and_event"]
OPTIONS = (
    *("endpoint", "protocol", "profile", "live", "trace_per_turn", "openinference", "content", "services", "parent"),
    "deliver_at_exit",
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
    opt_in: tuple[str, ...] = ()
    """``OTEL_SEMCONV_STABILITY_OPT_IN``."""
    traces_off: bool = False
    """True by ``OTEL_TRACES_EXPORTER=none``."""
    deliver_at_exit: bool | None = None
    """Whether a process of its own delivers what is left when this one ends; None: unless tests run."""
    problems: tuple[str, ...] = ()
    """What was passed over, and what to write instead."""

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
        told = [
            self.traces.shown if self.traces is not None else "",
            *([f"content {self.content}"] if self.content != "no_content" else []),
            *(["redaction of its own"] if redaction != Redaction() else []),
        ]
        return Addressee(digest[:16], ", ".join(told))


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
    where = {} if disabled else {signal: _destination(signal, chosen, environ, problems) for signal in SIGNALS}
    service, resource = _resource(environ, problems)
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
        tuple(part.strip() for part in environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").split(",") if part.strip()),
        environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none",
        chosen.flag("deliver_at_exit") if chosen.find("deliver_at_exit")[1] is not None else None,
        tuple(dict.fromkeys(str(redact(problem)) for problem in problems)),
    )


class _Options:
    """Our own options, each with its variable ``OPTREE_OTEL_<NAME>`` behind it."""

    def __init__(self, given: Mapping[str, Any], environ: Mapping[str, str], problems: list[str]) -> None:
        self._given = given
        self._environ = environ
        self._problems = problems
        listed = ", ".join(OPTIONS)
        problems.extend(
            f"there is no option {name!r} and it is passed over; the options are {listed}" for name in given if name not in OPTIONS
        )

    def find(self, name: str) -> tuple[str, Any]:
        """Return what the value comes from, and the value; None where there is none."""
        value = self._given.get(name)
        if value is not None:
            return name, value
        variable = f"OPTREE_OTEL_{name.upper()}"
        return variable, self._environ.get(variable) or None

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

    def flag(self, name: str) -> bool:
        source, value = self.find(name)
        said = str(value).strip().lower()
        if value is None or isinstance(value, bool) or said in _YES | _NO:
            return said in _YES
        self._passed_over(source, value, "write true or false")
        return False

    def _passed_over(self, source: str, value: object, advice: str) -> None:
        self._problems.append(f"{source}={value!r} is not possible and passed over; {advice}")


def _disabled(environ: Mapping[str, str], problems: list[str]) -> bool:
    """Return what ``OTEL_SDK_DISABLED`` says; by the specification every text but ``true`` is false."""
    said = environ.get("OTEL_SDK_DISABLED", "").strip().lower()
    if said not in ("", "true", "false"):
        problems.append(f"OTEL_SDK_DISABLED={said!r} does not switch off; OpenTelemetry knows true and false only")
    return said == "true"


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
    found, said = destination(signal, environ, options.text("endpoint"), protocol)
    problems.extend(said)
    return found


def _resource(environ: Mapping[str, str], problems: list[str]) -> tuple[str | None, dict[str, str]]:
    """Return the service's name and the other resource attributes."""
    found: dict[str, str] = {}
    for part in environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        key, separator, value = part.partition("=")
        if separator and key.strip():
            found[key.strip()] = unquote(value.strip())
        elif part.strip():
            problems.append(f"OTEL_RESOURCE_ATTRIBUTES: {part.strip()!r} is not possible and passed over; write key=value,key=value")
    service = environ.get("OTEL_SERVICE_NAME") or found.get("service.name")
    return service or None, {key: value for key, value in found.items() if key != "service.name"}


def _content(options: _Options, environ: Mapping[str, str], problems: list[str]) -> Content:
    """Return what our option says, else the conventions' switch; a plain yes means: on spans."""
    source, value = options.find("content")
    if value is None:
        source, value = _CONTENT, environ.get(_CONTENT) or "no_content"
    said = str(value).strip().lower()
    if said in get_args(Content):
        return cast("Content", said)
    if said not in _YES | _NO:
        problems.append(f"{source}={value!r} is not possible and passed over; choose one of true, false, {', '.join(get_args(Content))}")
    return "span_only" if said in _YES else "no_content"
