"""Resources: what a service is called, and where it runs."""

import socket

import pytest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

import optree
from optree_otel.settings import resolve
from optree_otel.signals import resource
from optree_otel.signals.limits import profile
from optree_otel.signals.resource import Resources


def told(data: bytes) -> dict:
    """Return the attributes of an encoded resource."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in Resource.FromString(data).attributes}


def test_each_agent_is_a_service_where_the_user_named_none():
    """In the namespace of the program."""
    found = Resources(program="bench")
    assert ("planner", "bench", "planner live") == (found.service("planner"), found.service(""), found.service("planner", " live"))
    assert {"service.name": "planner", "service.namespace": "bench"}.items() <= told(found.encoded("planner")).items()


@pytest.mark.parametrize("environ", [{"OTEL_SERVICE_NAME": "shop"}, {"OTEL_RESOURCE_ATTRIBUTES": "service.name=shop,team=blue"}])
def test_a_service_that_the_user_named_holds_all_agents(environ):
    """Unless each agent is to be one always, in the namespace of that name."""
    settings = resolve({}, environ)
    found = Resources(service=settings.service_name, attributes=settings.resource, per_agent=settings.services)
    assert ("shop", False) == (found.service("planner"), "service.namespace" in found.attributes("shop"))
    always = Resources(service=settings.service_name, attributes=settings.resource, per_agent="always")
    assert ("planner", "shop") == (always.service("planner"), always.attributes("planner")["service.namespace"])
    assert "planner" == always.attributes("planner")["service.name"]


def test_one_service_can_be_asked_for():
    """The program's name for all."""
    assert "bench" == Resources(program="bench", per_agent="never").service("planner")


def test_the_users_attributes_win():
    """Over what we find out."""
    found = Resources(attributes={"host.name": "mine", "deployment.environment": "test"})
    assert ("mine", "test") == tuple(told(found.encoded("x"))[key] for key in ("host.name", "deployment.environment"))


def test_a_host_and_a_process_are_named():
    """Jaeger's page needs `ip`, its newer interface `host.id`; the versions tell who wrote the spans."""
    found = told(Resources(program="bench").encoded("x"))
    assert (socket.gethostname(), "python", "optree", optree.__version__) == tuple(
        found[key] for key in ("host.name", "telemetry.sdk.language", "telemetry.sdk.name", "optree.version")
    )
    assert "process.pid" not in found
    assert found["host.id"]
    assert 4 == len(socket.inet_aton(found["ip"]))


def test_a_resource_is_encoded_once():
    """The same bytes for each batch."""
    found = Resources(program="bench")
    assert found.encoded("x") is found.encoded("x")


def test_phoenix_gets_its_project():
    """It puts traces without one under `default`."""
    assert "bench" == Resources(program="bench", profile=profile("phoenix")).attributes("x")["openinference.project.name"]


def test_attributes_of_a_resource_are_made_fit():
    """Without credentials, and cut where a backend takes less."""
    found = told(Resources(program="bench", attributes={"key": "sk-abcdefghijklmnop1234", "long": "x" * 5000}).encoded("x"))
    assert "[REDACTED]" == found["key"]
    assert found["long"].endswith("bytes]")


def test_few_resources_are_kept(monkeypatch):
    """A program with any number of agents keeps the encoded resources of the last; each is as it was."""
    monkeypatch.setattr(resource, "KEPT_RESOURCES", 10)
    resources = Resources(program="p")
    first = resources.encoded("agent-0")
    for number in range(100):
        assert f"agent-{number}".encode() in resources.encoded(f"agent-{number}")
        assert len(resources._encoded) <= 10
    assert first == resources.encoded("agent-0")
