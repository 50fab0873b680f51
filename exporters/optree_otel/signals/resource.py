"""What entries come from, one resource a service, and the requests that carry them under it.

A program whose user names no service gets one for each agent, in the program's namespace. Attributes of OTEL_RESOURCE_ATTRIBUTES win
over ours. Nothing tells one process of a machine from another: Jaeger takes a span that was sent twice for one only if its resource is
the same too, and what is sent again comes from another process. host.id, host.name and ip must all stand here: without a host Jaeger
takes a child for one of another machine, and its older interface looks at `ip` alone.

The three requests of OTLP have one shape: resources, in each the scopes, in each the items. Ours has one scope, ``optree``.
"""

from __future__ import annotations

import platform
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from optree import __version__
from optree.exporting import Remembered
from optree_otel.signals import names
from optree_otel.signals.limits import PROFILES, Fitter, Profile
from optree_otel.signals.protobuf import KeyValues, field, some, varint

PerAgent = Literal["auto", "always", "never"]
"""Whether each agent is a service of its own; `auto`: if the user has named no service."""

KEPT_RESOURCES: Final = 1000
"""Encoded ones that are kept; of a program with more agents the oldest goes."""
_ATTRIBUTES: Final = KeyValues(1)
_MACHINE_ID = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_NOWHERE = ("192.0.2.1", 9)
"""An address of RFC 5737, to which nothing is sent: connecting a datagram socket to it tells this machine's own."""
Group = tuple[bytes, Sequence[bytes]]
"""An encoded resource, and the encoded items that come from it."""
SCOPE: Final = some(1, b"optree") + some(2, __version__.encode())
_SCOPE_FIELD: Final = field(1, SCOPE)


class Owner(NamedTuple):
    """The program that a session was recorded by, and whether its agents are services of their own: the same for whoever sends it."""

    program: str
    agents: bool

    def __str__(self) -> str:
        """Return it as it is noted on disk."""
        return f"{'each' if self.agents else 'one'} {self.program}"

    @classmethod
    def parse(cls, noted: str) -> Owner:
        """Return what `str` made."""
        kind, _, program = noted.partition(" ")
        return cls(program, kind == "each")


class Resources(Remembered):
    """The resources of this process's services.

    *service* and *attributes* are what the user has set (`Settings.service_name`, `Settings.resource`); *program* names the process
    where nothing is (default: the script's name).
    """

    def __init__(
        self,
        *,
        service: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        program: str | None = None,
        per_agent: PerAgent = "auto",
        profile: Profile = PROFILES["default"],
    ) -> None:
        super().__init__()
        self._configured = dict(attributes or {})
        named = service or self._configured.pop("service.name", None)
        self._configured.pop("service.name", None)
        self.program: str = str(named or program or _program())
        self.agents = per_agent == "always" or (per_agent == "auto" and not named)
        self._profile = profile
        self._encoded: dict[tuple[str, Owner, str], bytes] = {}

    @property
    def owner(self) -> Owner:
        """Whose services these are."""
        return Owner(self.program, self.agents)

    def service(self, agent: str, suffix: str = "", owner: Owner | None = None) -> str:
        """Return the name of an agent's service; *suffix* is for a second trace of it (`` live``)."""
        whose = owner or self.owner
        return ((agent if whose.agents and agent else whose.program) or "unknown_service") + suffix

    def encoded(self, service: str, owner: Owner | None = None, instance: str = "") -> bytes:
        """Return the resource of a service, encoded: `opentelemetry.proto.resource.v1.Resource`.

        *instance* tells one process from another: metrics need it, since each process counts from nought.
        """
        key = service, owner or self.owner, instance
        result = self._encoded.get(key)
        if result is None:
            if len(self._encoded) >= KEPT_RESOURCES:
                self._encoded.pop(next(iter(self._encoded)), None)
            pairs = Fitter(self._profile).attributes(list(self.attributes(*key).items()))
            result = self._encoded[key] = _ATTRIBUTES.encode(pairs)
        return result

    def clear(self) -> None:
        """Encode all anew: what may leave is not what it was."""
        self._encoded.clear()

    def attributes(self, service: str, owner: Owner | None = None, instance: str = "") -> dict[str, Any]:
        """Return the attributes of a service's resource."""
        whose = owner or self.owner
        result: dict[str, Any] = {"service.name": service}
        if instance:
            result["service.instance.id"] = instance
        if whose.agents:
            result["service.namespace"] = whose.program
        result |= _of_process()
        if self._profile.openinference:
            result[names.OI_PROJECT] = whose.program
        return result | self._configured


def _of_process() -> dict[str, Any]:
    return {
        **_of_host(),
        "process.runtime.name": sys.implementation.name,
        "process.runtime.version": platform.python_version(),
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "optree",
        "telemetry.sdk.version": __version__,
        names.VERSION: __version__,
    }


@lru_cache(maxsize=1)
def _of_host() -> dict[str, Any]:
    name = socket.gethostname()
    return {"host.id": _machine_id() or blake2b(name.encode(), digest_size=16).hexdigest(), "host.name": name, "ip": _address()}


def _machine_id() -> str:
    for path in _MACHINE_ID:
        try:
            result = Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if result:
            return result
    return ""


def _address() -> str:
    """Return this machine's address as others see it; the loopback one where there is no other."""
    try:
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
            probe.connect(_NOWHERE)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _program() -> str:
    """Return the name of the script or module that runs, as a service's name."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name).removesuffix(".__main__")
    return Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python"


def request(groups: Iterable[Group]) -> bytes:
    """Return an ExportTraceServiceRequest of encoded spans; of log records or metrics the request for these, which looks the same."""
    return of_joined((resource, [joined(items)]) for resource, items in groups)


def joined(items: Iterable[bytes]) -> bytes:
    """Return encoded items as the fields of their scope's list."""
    out: list[bytes] = []
    for item in items:
        out += (b"\x12", varint(len(item)), item)
    return b"".join(out)


def of_joined(groups: Iterable[Group]) -> bytes:
    """Return a request of items that are `joined` already."""
    out: list[bytes] = []
    for resource, items in groups:
        scope_size = len(_SCOPE_FIELD) + sum(map(len, items))
        head = field(1, resource)
        out += (b"\x0a", varint(len(head) + 1 + len(varint(scope_size)) + scope_size), head, b"\x12", varint(scope_size), _SCOPE_FIELD)
        out += items
    return b"".join(out)
