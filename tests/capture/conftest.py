"""A scripted provider, and hooks that are there for one test."""

import functools
import gc
import inspect
import signal
import sys

import pytest

import optree
from optree._capture import LIBRARIES, START, _hooked, instrument, uninstrument
from optree._store import Directory
from optree._store.reading.recovery import load
from optree._tree import walk_ops
from optree._values import decode
from optree.testing import capture, replay
from tests.capture.documented import EITHER, Documented
from tests.capture.frameworks.claude import Child
from tests.capture.provider import Provider, Reply
from tests.cli.conftest import ROOT, CommandLine

KEY = "sk-proj-Zq8LmN4xT7vBc9Kq8LmN4xT7vB"
"""A credential that is told by its form."""


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


def record(run):
    """Return what a program returns, and what it records."""
    with capture() as recording, optree.session("agent"), optree.turn(user="Weather?"):
        result = run()
    return result, recording


def twice(provider, replies, run):
    """Return what a program comes to, recorded and in a replay, and both recordings; in the replay nothing may be sent."""
    provider.says(*replies)
    with capture() as recorded:
        expected = outcome(run)
    sent = len(provider.requests)
    provider.says(Reply({}, status=500))
    with replay(recorded.tree), capture() as again:
        found = outcome(run)
    assert sent == len(provider.requests)
    return expected, found, recorded, again


def survives(fault, recording, monkeypatch, run):
    """Hold a program on LangChain or CrewAI to its answer, and what is recorded of it, with a *fault* in a function of the hooks."""
    monkeypatch.setattr(fault, lambda _parent: 1 / 0)
    with optree.session("lead") as session:
        assert "It rains" == run()
    assert 2 == session.totals.llm_requests
    assert recording.sessions


def kind_of(function):
    """Return which kind of function it is, as programs ask for it."""
    asked = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return next((one.__name__ for one in asked if one(function)), "a plain one")


def stay_what_they_are(package):
    """Hold the functions of a package that hooks replace to the kind that they are without."""
    instrument([package])
    replaced = [(f"{owner.__name__}.{name}", *found) for module in LIBRARIES[package].modules for owner, name, *found in _hooked[module]]
    uninstrument()
    assert [(name, kind_of(before)) for name, before, _ in replaced] == [(name, kind_of(now)) for name, _, now in replaced]


CREDENTIALS = {"api_key": "hunter2-hunter2", "headers": {"Authorization": "Bearer abcdef0123456789"}}
"""What a tool is given that logs in."""


def credentials_in(said):
    """Return the credentials that a text has, and whether it says that some were replaced."""
    known = KEY, CREDENTIALS["api_key"], CREDENTIALS["headers"]["Authorization"]
    return [one for one in known if one in said], "[REDACTED]" in said


def broke_off_in_a_tool(session, agent):
    """Hold what a program has left that was killed in its tool to a tree with one call, in which all that was open has no end."""
    assert (agent, None) == (session.agent_id, session.ended_at)
    ops = {op.name: op for _, _, op in walk_ops(session)}
    assert ({"city": "Athens"}, None) == (decode(ops["weather"].request.payload), ops["weather"].ended_at)
    assert (1, 8) == (session.totals.llm_requests, session.totals.input_tokens)


def wrap(owner, name, monkeypatch, *, wraps=True):
    """Wrap a function as other libraries do, with what says so, or without."""
    ours = vars(owner)[name]

    def theirs(*args, **kwargs):
        return ours(*args, **kwargs)

    monkeypatch.setattr(owner, name, functools.wraps(ours)(theirs) if wraps else theirs)


@pytest.fixture
def killed(provider, tmp_path):
    """Return what runs a program that does not name optree until it kills itself, and returns the session that it leaves."""

    def run(program):
        line = CommandLine(tmp_path)
        (line.folder / "agent.py").write_text(program)
        process = line.start(sys.executable, "agent.py", provider.url, env=line.env | {"OPTREE_AUTO": "1", "PYTHONPATH": f"{START}:{ROOT}"})
        assert ("True\n", -signal.SIGKILL) == (process.communicate()[0], process.returncode)
        [txn] = line.txns()
        return load(txn, Directory.of(line.base)).session

    return run


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
def saved(tmp_path, hooked):  # noqa: ARG001 - as above
    """Save what a test records without credentials, and return what reads all of that."""
    optree.configure(base_dir=tmp_path, console=False, redacted_save=True, compression="none")

    def read():
        assert optree.flush("snapshot", 60)
        return "".join(path.read_text() for path in tmp_path.glob("sessions/*.json"))

    return read


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
    from tests.capture.clients.websocket_model import WebsocketModel  # some environments have no websockets

    model = WebsocketModel()
    yield model
    model.close()
    gc.collect()


@pytest.fixture
def model(listening):
    """Return the same, which heard nothing yet."""
    listening.heard.clear()
    return listening


@pytest.fixture(params=["aiohttp", "httpx"])
def sent_by(request):
    """Return what google-genai sends by."""
    return request.param


@pytest.fixture
def asking(provider):
    """Return a program of ADK's on the provider."""
    from tests.capture.frameworks.adk_programs import Asking

    return Asking(provider)
