"""A scripted provider, and hooks that are there for one test."""

import gc

import pytest

from optree.capture import instrument, uninstrument
from optree.testing import capture
from tests.capture.claude import Child
from tests.capture.documented import EITHER, Documented
from tests.capture.provider import Provider


def outcome(function):
    """Return what a program comes to."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - it is compared
        return type(error), str(error)


def with_hooks(function):
    """Return what a function does, called with the hooks in, and recorded."""
    instrument()
    try:
        with capture():
            return function()
    finally:
        uninstrument()


@pytest.fixture(scope="module")
def server():
    """Return a provider that answers as it is told."""
    provider = Provider()
    yield provider
    provider.close()
    gc.collect()  # a client that a test leaves open fails here, and no test of another module


@pytest.fixture
def provider(server):
    """Return the same, which was asked nothing yet."""
    server.requests.clear()
    return server


@pytest.fixture
def hooked():
    """Have the hooks in for a test."""
    instrument()
    yield
    uninstrument()


@pytest.fixture
def recording(hooked):  # noqa: ARG001 - the hooks are there before
    """Return what a test records, with the hooks in."""
    with capture() as recording:
        yield recording


@pytest.fixture
def child(tmp_path):
    """Return a child process in place of Claude Code that does as it is told."""
    return Child(tmp_path)


@pytest.fixture(params=EITHER)
def documented(request, tmp_path, provider):
    """Return what runs a program, in each way to have it recorded."""
    return Documented(tmp_path, provider, request.param)


@pytest.fixture(scope="module")
def listening():
    """Return a model behind a websocket."""
    from tests.capture.websocket_model import WebsocketModel  # some environments have no websockets

    model = WebsocketModel()
    yield model
    model.close()
    gc.collect()


@pytest.fixture
def model(listening):
    """Return the same, which heard nothing yet."""
    listening.heard.clear()
    return listening
