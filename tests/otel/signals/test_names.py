"""Every name that leaves is one of the released conventions, or is listed with its source."""

import importlib
import pkgutil

import pytest
from opentelemetry.semconv._incubating import attributes as incubating
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

from optree_otel.signals import names
from optree_otel.signals.limits import PROFILES
from optree_otel.signals.logs import DETAILS
from optree_otel.signals.mapping import op_span, session_span, turn_span
from optree_otel.signals.resource import Resources
from optree_otel.signals.scope import SpanScope, trace_id
from tests.otel.tree_of_all import tree_of_all

oi_resource, oi_trace = (
    pytest.importorskip(f"openinference.semconv.{name}", reason="OpenInference's package asks for a Python before 3.15")
    for name in ("resource", "trace")
)
OURS = "optree."
USERS = {"user.id"}
"""Names that the tree's own attributes have."""


def texts(value) -> set[str]:
    """Return the names in a constant of the table."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        return {name for item in value.values() for name in texts(item)}
    return {name for item in value for name in texts(item)} if isinstance(value, tuple) else set()


def released() -> set[str]:
    """Return every attribute name in the two packages of conventions."""
    found: set[str] = set()
    for module in pkgutil.iter_modules(incubating.__path__):
        found |= {
            value for value in vars(importlib.import_module(f"{incubating.__name__}.{module.name}")).values() if isinstance(value, str)
        }
    for module in (oi_trace, oi_resource):
        for kind in vars(module).values():
            if isinstance(kind, type):
                found |= {value for key, value in vars(kind).items() if isinstance(value, str) and key.isupper()}
    return found


def is_known(name: str) -> bool:
    """Tell whether a name is released, ours, or listed as newer."""
    return name in released() or name in names.NEWER or name.startswith(OURS)


def table() -> set[str]:
    """Return all names of the table, but for its version, the values of others, and descriptions of sources."""
    left_out = {
        "CONVENTIONS",
        "NEWER",
        "PROVIDERS",
        "OI_KINDS",
        "TOKEN_USAGE",
        "OPERATION_DURATION",
        "TIME_TO_FIRST_CHUNK",
        "REASONING",
        "LOG",
        "HEARTBEAT",
        "RESUMED",
    }
    return {name for key, value in vars(names).items() if key.isupper() and key not in left_out for name in texts(value)}


def test_the_table_names_only_what_is_known():
    """A name that the packages lack stands in `NEWER`, with its source."""
    assert [] == sorted(name for name in table() if not is_known(name))


def test_no_newer_name_has_been_released_meanwhile():
    """What a release has need not be listed any more."""
    assert set() == set(names.NEWER) & released()


def test_each_newer_name_is_emitted():
    """The list holds no name that nobody writes."""
    resource = set(Resources(service="x").attributes("x"))
    assert set(names.NEWER) <= table() | resource | {"optree"}


@pytest.mark.parametrize("profile_name", list(PROFILES))
def test_every_span_and_resource_emits_names_of_the_table_only(profile_name):
    """A tree with everything in it, content and OpenInference included."""
    builder = tree_of_all()
    scope = SpanScope(
        builder.txn, trace_id(builder.txn), builder.node, PROFILES[profile_name], content=True, openinference=True, pool=builder.core.pool
    )
    emitted: set[str] = set()
    pending = [(builder.node, scope)]
    while pending:
        session, within = pending.pop()
        spans = [session_span(session, within), *(turn_span(turn, within) for turn in session.turns)]
        for op in (op for turn in session.turns for op in turn.ops):
            spans.append(op_span(op, within))
            if op.child_session is not None:
                pending.append((op.child_session, within.for_child(op, op.child_session)))
        emitted |= {key for span in spans for key, _ in span.attributes}
        emitted |= {key for span in spans for event in span.events for key, _ in event.attributes}
    emitted |= set(Resources(service="x", profile=PROFILES[profile_name]).attributes("x"))
    assert [] == sorted(name for name in emitted - USERS if not is_known(name))
    assert {"gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_write.input_tokens", "llm.model_name"} <= emitted


def test_metrics_and_events_have_the_names_of_the_conventions():
    """As the package of metrics has them."""
    assert (gen_ai_metrics.GEN_AI_CLIENT_TOKEN_USAGE, gen_ai_metrics.GEN_AI_CLIENT_OPERATION_DURATION) == (
        names.TOKEN_USAGE, names.OPERATION_DURATION
    )  # fmt: skip
    assert gen_ai_metrics.GEN_AI_CLIENT_OPERATION_TIME_TO_FIRST_CHUNK == names.TIME_TO_FIRST_CHUNK
    assert "gen_ai.client.inference.operation.details" == DETAILS


def test_providers_are_called_as_the_conventions_call_them():
    """Each mapped value is one of the well-known."""
    known = {item.value for item in importlib.import_module(f"{incubating.__name__}.gen_ai_attributes").GenAiProviderNameValues}
    assert set() == set(names.PROVIDERS.values()) - known - {"moonshot_ai"}
