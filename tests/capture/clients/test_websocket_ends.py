"""Responses over websockets that fail, break off or are refused, and messages that are none of a model's."""

import asyncio
import gc
import json

import pytest
import websockets.asyncio.client
import websockets.asyncio.server
import websockets.sync.client

import optree
from optree._capture import instrument, uninstrument
from optree._values import decode
from optree.testing import capture, replay
from tests.capture.clients.websocket_model import (
    CLIENTS,
    CLOSES,
    CREATE,
    CUT,
    HEARS,
    SESSION,
    TOKENS,
    answer,
    created,
    delta,
    done,
    in_session,
    item,
    of_asyncio,
    of_responses,
    only_op,
    ops_of,
    said_by,
)
from tests.capture.conftest import outcome


def test_how_a_response_ends(model, recording):
    """One that failed has its class and its tokens, one that was cancelled too; an incomplete one is an answer that says why."""
    wrong = {"type": "failed", "error": {"type": "server_error", "code": "rate_limit_exceeded", "message": "Rate limit reached"}}
    model.says(
        SESSION, HEARS, created("r-1"), delta("r-1", "It"), done("r-1", status="failed", status_details=wrong),
        HEARS, created("r-2"), delta("r-2", "It "),
        done("r-2", status="cancelled", status_details={"type": "cancelled", "reason": "turn_detected"}),
        HEARS, created("r-3"),
        done("r-3", item("assistant", "It", "i"), status="incomplete", status_details={"reason": "max_output_tokens"}),
    )  # fmt: skip
    in_session(of_asyncio, model.url, [CREATE] * 3, ends=3)
    failed, cancelled, incomplete = ops_of(recording)
    assert ("failed", "Rate limit reached", "rate_limit") == (failed.status, failed.error, failed.attributes["error.class"])
    assert ("cancelled", "incomplete") == (cancelled.status, decode(incomplete.response.payload)["status"])
    assert "the response was cancelled: turn_detected" == cancelled.logs[-1].message
    assert [TOKENS] * 3 == [op.accounting[0].tokens for op in (failed, cancelled, incomplete)]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("ends", [CUT, CLOSES])
def test_a_connection_that_breaks(model, recording, client, ends):
    """What had come until then stays, and the program gets the exception that it would have got."""
    model.says(SESSION, HEARS, created("r-1"), delta("r-1", "It "), ends)
    hooked = in_session(client, model.url, [CREATE])
    op = only_op(recording)
    assert ("failed", "network", "It ") == (op.status, op.attributes["error.type"], decode(op.response.payload))
    assert op.response.partial
    uninstrument()
    assert outcome(lambda: client(model.url, [CREATE])) == hooked


@pytest.mark.parametrize("client", CLIENTS)
def test_a_connection_that_the_program_closes(model, recording, client):
    """A response under way is cancelled by that, and one that had not begun too."""
    model.says(SESSION, HEARS, HEARS, created("r-1"), delta("r-1", "It "), {"type": "error", "error": {"param": "session.x"}})
    in_session(client, model.url, [CREATE, CREATE])
    assert ["cancelled", "cancelled"] == [op.status for op in ops_of(recording)]
    assert "It " == decode(ops_of(recording)[0].response.payload)


def test_a_connection_that_is_forgotten(model, recording):
    """A connection that nobody closes ends what is under way when it is gone."""
    model.says(SESSION, HEARS, created("r-1"), delta("r-1", "It "))

    async def talking():
        connection = await websockets.asyncio.client.connect(f"ws://{model.url}/realtime?model=gpt-realtime")
        await connection.send(json.dumps(CREATE))
        for _ in range(3):
            await connection.recv()
        connection.transport.abort()
        await connection.wait_closed()

    with optree.session("agent"), optree.turn():
        asyncio.run(talking())
        gc.collect()
    assert "cancelled" == only_op(recording).status


def test_errors(model, recording):
    """An error belongs to the request with its event's id, or to the one that waits; that of another event is a log line."""
    limit = {"type": "invalid_request_error", "code": "rate_limit_exceeded", "message": "Slow down", "event_id": "mine", "param": None}
    beside = {"type": "invalid_request_error", "code": "invalid_value", "message": "No such voice", "param": "session.audio.output.voice"}
    busy = {"type": "invalid_request_error", "code": "conversation_already_has_active_response", "message": "Busy", "event_id": None}
    model.says(
        SESSION, HEARS, HEARS, HEARS, {"type": "error", "error": beside}, {"type": "error", "error": limit},
        {"type": "error", "error": busy}, *answer("r-1", "It rains"),
    )  # fmt: skip
    in_session(of_asyncio, model.url, [CREATE, CREATE | {"event_id": "mine"}, CREATE], ends=4)
    answered, limited, refused = ops_of(recording)
    assert ("ok", "failed", "failed") == (answered.status, limited.status, refused.status)
    assert ("rate_limit", "invalid") == (limited.attributes["error.class"], refused.attributes["error.class"])
    assert 0.0 == limited.accounting[0].cost_usd
    assert ["an event was refused: No such voice"] == [log.message for log in refused.logs if "was refused" in log.message]


@pytest.mark.parametrize("begun", [True, False])
def test_errors_of_the_responses_interface(model, recording, begun):
    """An error ends the response under way, or the request that waits, with its status."""
    error = {"type": "error", "status": 429, "error": {"type": "requests", "code": "rate_limit_exceeded", "message": "Rate limit reached"}}
    model.says(HEARS, *of_responses()[: 3 if begun else 0], error)
    in_session(of_asyncio, model.url, [{"type": "response.create", "model": "gpt-5", "input": "Weather?"}], opened="responses")
    op = only_op(recording)
    assert ("failed", "rate_limit", begun) == (op.status, op.attributes["error.class"], op.response is not None)


@pytest.mark.parametrize("sent", ["text", b"\0bytes", '{"type": "subscribe", "channel": "response.create"}', "{", '{"type": "error"}',
                                  '["response.create"]', '{"type": "error", "x": ' + "[" * 5000])  # fmt: skip
def test_other_messages_pass(model, recording, sent):
    """What is no event of a model's passes as it is, both ways, and makes no op."""
    model.says(HEARS, sent, sent)
    with websockets.sync.client.connect(f"ws://{model.url}/x") as connection:
        connection.send(sent)
        assert [sent, sent] == [connection.recv(), connection.recv()]

    async def talking():
        async with websockets.asyncio.client.connect(f"ws://{model.url}/x") as awaited:
            await awaited.send(sent)
            return [await awaited.recv(), await awaited.recv()]

    assert [sent, sent] == asyncio.run(talking())
    assert [] == recording.sessions


def test_a_server_of_the_programs(recording):
    """A server that speaks the protocol is no client: what it hears and says makes no op."""

    async def serving():
        async def talk(connection):
            await connection.recv()
            for event in [SESSION, *answer("r-1", "It rains")]:
                await connection.send(json.dumps(event))

        async with websockets.asyncio.server.serve(talk, "127.0.0.1", 0) as server:
            url = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with websockets.asyncio.client.connect(f"ws://{url}/realtime") as connection:
                await connection.send(json.dumps(CREATE))
                return [json.loads(event)["type"] async for event in connection]

    assert "response.done" == asyncio.run(serving())[-1]
    [op] = ops_of(recording)
    assert "It rains" == said_by(op)


def test_a_message_that_is_waited_for_again(model, recording):
    """An event that the program does not wait for any longer is got by the next that does, and is recorded once."""
    model.says(SESSION, HEARS, HEARS, *answer("r-1", "It rains"))
    with optree.session("agent"), optree.turn(), websockets.sync.client.connect(f"ws://{model.url}/realtime?model=m") as connection:
        connection.send(json.dumps(CREATE))
        connection.recv()
        with pytest.raises(TimeoutError):
            connection.recv(timeout=0)
        connection.send("go on")
        got = [json.loads(connection.recv(decode=False))["type"] for _ in range(3)]
    assert ["response.created", "response.output_text.delta", "response.done"] == got
    assert ("ok", "It rains") == (only_op(recording).status, said_by(only_op(recording)))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("method", ["sends", "came", "ended"])
def test_a_fault_of_ours(model, recording, client, method, monkeypatch):  # noqa: ARG001 - the hooks are in
    """A hook that raises changes nothing for the program."""
    model.says(SESSION, HEARS, *answer("r-1", "It rains"))

    def fails(*_args, **_kwargs):
        raise ValueError(method)

    monkeypatch.setattr(f"optree._capture.clients.realtime.ModelSocket.{method}", fails)
    hooked = outcome(lambda: client(model.url, [CREATE]))
    uninstrument()
    assert outcome(lambda: client(model.url, [CREATE])) == hooked
    assert "response.done" == hooked[-1]["type"]


@pytest.mark.parametrize("client", CLIENTS)
def test_budgets(model, recording, client):
    """A response beyond a budget is refused before it is asked for; one that the server begins itself is recorded all the same."""
    model.says(SESSION, *answer("r-1", "It rains"))
    with optree.session("agent"), optree.turn(), optree.budget(calls=0):
        with pytest.raises(optree.BudgetExceeded):
            client(model.url, [CREATE])
        assert [] == model.heard
        client(model.url, [])
    assert ("ok", "It rains", TOKENS) == (only_op(recording).status, said_by(only_op(recording)), only_op(recording).accounting[0].tokens)


def test_a_fork(model):
    """Ahead of the place where a run is forked nothing is asked for: no recorded answer can be given through a websocket to the model."""
    model.says(SESSION, HEARS, *answer("r-1", "It rains"), HEARS, *answer("r-2", "It rains"))

    def asks():
        with optree.session("agent"), optree.turn(), websockets.sync.client.connect(f"ws://{model.url}/realtime?model=m") as connection:
            connection.recv()
            for _ in range(2):
                connection.send(json.dumps(CREATE))
                while json.loads(connection.recv())["type"] != "response.done":
                    continue

    instrument()
    try:
        with capture() as recorded:
            asks()
        model.heard.clear()
        with (
            pytest.raises(AssertionError, match=r"1\.1: recorded answers cannot be given through websockets"),
            replay(recorded.tree, at="1.2"),
            capture(),
        ):
            assert ConnectionError is outcome(asks)[0]
    finally:
        uninstrument()
    assert [] == model.heard


def test_hooks_that_are_taken_out(model, recording):
    """A response that is under way when the hooks are taken out ends with its connection, and keeps what had come."""
    model.says(SESSION, HEARS, *answer("r-1", "It ", "rains"))
    with optree.session("agent"), optree.turn():
        with websockets.sync.client.connect(f"ws://{model.url}/realtime?model=m") as connection:
            connection.send(json.dumps(CREATE))
            for _ in range(3):
                connection.recv()
            uninstrument()
            events = [json.loads(connection.recv())["type"] for _ in range(2)]
        connection.recv_events_thread.join(60.0)  # which has the connection, too
        del connection
        gc.collect()
    assert ["response.output_text.delta", "response.done"] == events
    assert ("cancelled", "It ") == (only_op(recording).status, decode(only_op(recording).response.payload))


def test_fragments_pass(model, recording):
    """A message that is sent in fragments, or read in them, passes as it is."""
    model.says(HEARS, HEARS, json.dumps(created("r-1")), "end")
    with optree.session("agent"), websockets.sync.client.connect(f"ws://{model.url}/x") as connection:
        connection.send(iter(['{"type": "response', '.create"}']))
        connection.send(memoryview(b"bytes"))
        assert created("r-1") == json.loads("".join(connection.recv_streaming()))
        assert "end" == connection.recv()
    assert [json.dumps(CREATE), b"bytes"] == model.heard[:2]
    assert [] == ops_of(recording)
