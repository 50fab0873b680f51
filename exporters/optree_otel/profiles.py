"""What each backend takes, and what it does with the rest: limits in bytes, and peculiarities.

Measured or read from each backend's source: Jaeger 2.13, Tempo 3.0.3, Phoenix 20.26, MLflow 3.17, VictoriaTraces 0.12, and the
OpenTelemetry Collector 0.159, whose receiver gives the limits of a batch (4 MiB over gRPC, 20 MiB over HTTP, both unpacked).
"""

from __future__ import annotations

from typing import Final

import msgspec

from optree import SetupError
from optree_otel.wire import KEY_BYTES


class Profile(msgspec.Struct, frozen=True):
    """Limits of one backend, and how spans are shaped for it."""

    name: str
    value_bytes: int = 2_000
    """Longest text of an attribute or status; longer ones are cut at a character, with ``…[+N bytes]`` at their end."""
    key_bytes: int = KEY_BYTES
    name_bytes: int = 256
    events: int = 128
    """Events of a span; beyond, older and less severe ones are left out and counted."""
    attributes: int = 128
    span_bytes: int = 1 << 20
    http_bytes: int = 15 << 20
    """Size of a batch over HTTP, before compression."""
    grpc_bytes: int = 3_500_000
    trace_bytes: int | None = None
    """What one trace may hold in all; sessions beyond it want a trace per turn."""
    turn_in_name: bool = True
    """Whether a turn's number stands in its span's name: not where each name makes an index of its own."""
    openinference: bool = False
    facts: bool = False
    """Whether service, span kind and links stand among the attributes as well, since the backend drops them elsewhere."""
    empty_values: bool = True
    """Whether empty texts are kept."""


PROFILES: Final = {
    profile.name: profile
    for profile in (
        Profile("default"),
        Profile("jaeger", value_bytes=64_000, events=1_000),
        Profile("tempo", trace_bytes=4_500_000),
        Profile("phoenix", value_bytes=256_000, events=1_000, openinference=True, facts=True),
        Profile("victoriatraces", events=120, turn_in_name=False, empty_values=False),
        Profile("mlflow", value_bytes=256_000, events=1_000, span_bytes=4 << 20),
        Profile("logfire", value_bytes=64_000, events=1_000),
    )
}
"""Profiles by name. `default` is what all of them take."""


def profile(name: str = "default") -> Profile:
    """Return the profile of that name; raises `SetupError` for one that does not exist."""
    found = PROFILES.get(name)
    if found is None:
        raise SetupError(f"no profile {name!r}; choose one of {', '.join(PROFILES)}")
    return found
