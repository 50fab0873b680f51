"""Connections to a model that it refuses: each is a call that failed, and is refused again in a replay."""

import gc
import sys

import pytest
import websockets.sync.client
from websockets.exceptions import InvalidStatus

import optree
from optree._tree import walk_ops
from optree.testing import capture, replay
from tests.capture.clients.websocket_model import CLIENTS, HEARS, SAID, of_aiohttp, of_responses, of_threads, only_op, ops_of
from tests.capture.conftest import outcome, record
from tests.cli.conftest import CommandLine

pytestmark = pytest.mark.usefixtures("hooked")
LIMIT = {"error": {"message": "Slow down", "type": "requests", "code": "rate_limit_exceeded", "param": None}}
KEY = {"error": {"message": "Incorrect API key", "type": "invalid_request_error", "code": "invalid_api_key", "param": None}}
ASKS = {"type": "response.create", "model": "gpt-5", "input": "Weather?"}
REFUSALS = [(401, KEY, "invalid_api_key", "auth"), (429, LIMIT, "rate_limit_exceeded", "rate_limit"), (503, {}, None, "model"),
            (403, "plainly no", None, "auth")]  # fmt: skip


def refused(ask):
    """Return what a program gets, and what is recorded of it."""
    with capture() as recorded, optree.session("agent"), optree.turn():
        raised = outcome(ask)
    gc.collect()
    return raised, recorded


@pytest.mark.parametrize(("status", "body", "code", "kind"), REFUSALS)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("opened", ["responses", "realtime"])
def test_a_refused_handshake(model, client, opened, status, body, code, kind):
    """It is an op that failed, with its status and code (aiohttp reads no code), which cost nothing; a replay refuses it likewise."""
    model.refuses((status, body))
    expected, recorded = refused(lambda: client(model.url, [], opened=opened))
    op = only_op(recorded)
    types = (op.attributes["error.type"], op.attributes.get("error.class"))
    told = kind if client is of_aiohttp or code is None else code
    assert ((told, kind), status) == (types, op.attributes["http.response.status_code"])
    assert ("failed", 0.0, "req-1") == (op.status, op.accounting[0].cost_usd, op.attributes["request_id"])
    assert ("gpt-realtime" if opened == "realtime" else None) == op.attributes.get("model")
    assert str(status) in expected[1]
    if body == "plainly no":  # no object: kept as its text
        assert (None if client is of_aiohttp else '"plainly no"') == op.attributes.get("error.body")
    model.refuses()
    with replay(recorded.tree):
        found, again = refused(lambda: client(model.url, [], opened=opened))
    assert [expected[0], op.error] == [found[0], only_op(again).error]
    names = ("error.type", "error.body", "error.body.type", "http.response.status_code", "request_id")
    assert [op.attributes.get(name) for name in names] == [only_op(again).attributes.get(name) for name in names]


@pytest.mark.parametrize("client", CLIENTS)
def test_without_hooks_it_is_the_same(model, client):
    """The program gets the same exception with the hooks in and without."""
    model.refuses((401, KEY), (401, KEY))
    hooked, _ = refused(lambda: client(model.url, []))
    optree.uninstrument()
    assert outcome(lambda: client(model.url, [])) == hooked


def again_and_again(url):
    """Connect until it is answered."""
    while True:
        try:
            return of_threads(url, [ASKS], opened="responses")
        except InvalidStatus as error:
            assert b"rate_limit_exceeded" in error.response.body  # noqa: PT017 - it is not what is tested


def test_a_connection_after_a_refusal(model):
    """One that is tried again is a call of its own, and so it is in a replay and in a fork."""
    model.refuses((429, LIMIT), (429, LIMIT))
    model.says(HEARS, *of_responses(SAID))
    expected, recorded = record(lambda: again_and_again(model.url))
    assert ["failed", "failed", "ok"] == [op.status for op in ops_of(recorded)]
    model.says()
    with replay(recorded.tree):
        found, again = record(lambda: again_and_again("nowhere.invalid/v1"))
    assert expected[-1]["response"]["output"] == found[-1]["response"]["output"]
    assert ["failed", "failed", "ok"] == [op.status for op in ops_of(again)]
    model.says(HEARS, *of_responses(SAID))
    with replay(recorded.tree, at="1.3"):  # a fork, in which the model is connected to after that
        found, again = record(lambda: again_and_again(model.url))
    assert expected == found
    assert [True, True, False] == ["replay.of" in op.attributes for op in ops_of(again)]


def test_within_an_op_of_the_programs(model):
    """A connection that an open op of the program's makes is an attempt of that op."""
    model.refuses((401, KEY))

    def ask():
        with optree.llm("planner"):
            of_threads(model.url, [])

    _, recorded = refused(ask)
    op = only_op(recorded)
    assert ("planner", "failed", "invalid_api_key") == (op.name, op.status, op.attributes["error.type"])


def test_other_addresses(model, recording):
    """A connection to what is no model leaves no trace, refused or not."""
    model.refuses((401, KEY))
    with optree.session("agent"), optree.turn(), pytest.raises(InvalidStatus):
        websockets.sync.client.connect(f"ws://{model.url}/chat")
    assert [] == [*walk_ops(recording.tree)]


PROGRAM = """
import sys

from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

try:
    connect(sys.argv[1] + "/responses")
except InvalidStatus as error:
    print(error.response.status_code, error.response.body.decode())
"""


def test_a_program(tmp_path, model):
    """Outside of all sessions too: `optree replay` refuses it again, and nobody is connected to."""
    line = CommandLine(tmp_path)
    line.agent.write_text(PROGRAM)
    model.refuses((401, KEY))
    line("run", "--auto", "--", sys.executable, "agent.py", f"ws://{model.url}")
    [txn] = line.txns()
    run = line("replay", txn, "--", sys.executable, "agent.py", "wss://nowhere.invalid/v1")
    assert "401" in run.stdout
    assert "invalid_api_key" in run.stdout
    assert f"optree: 1 of 1 calls of models were answered as in {txn}\n" in run.stderr
